"""Runs on disk, by several workers: one folder, as one process would have left it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psac
from psac.app.training import Run
from tests.distributed import programs
from tests.distributed.world import returned
from tests.docs.markdown import ROOT, blocks
from tests.private_runs import weights


def test_a_run_stops_on_two_workers_and_ends_on_three_as_on_one(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    assert returned(2, programs.trained_on_disk, place, True, False) == ["interrupted"] * 2
    assert returned(3, programs.trained_on_disk, place, False, True) == [place] * 3
    with pytest.warns(psac.InsecureNoiseWarning):
        programs.trained_on_disk(str(tmp_path / "one"), False, False)
    several, one = Run(tmp_path / "run"), Run(tmp_path / "one")
    assert {p.name for p in several.folder.iterdir()} == {p.name for p in one.folder.iterdir()}
    np.testing.assert_allclose(weights(several.model()), weights(one.model()), rtol=1e-4, atol=1e-5)
    assert several.ledger() == one.ledger()
    kinds = [[line["kind"] for line in run.metrics()] for run in (several, one)]
    assert kinds[0].count("start") == 2  # it was resumed once
    assert [k for k in kinds[0] if k != "start"] == [k for k in kinds[1] if k != "start"]
    assert several.summary()["epsilon"] == one.summary()["epsilon"]


@pytest.mark.slow
def test_the_command_starts_workers_and_stops_all_of_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "psac", "train", "digits-linear", "--workers", "2"]
    options = ["--epochs", "200", "--run", str(tmp_path / "run"), "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["kind"] == "step":
                process.send_signal(signal.SIGINT)
                break
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait(60) == 128 + signal.SIGINT
    assert last["kind"] == "stopped"
    assert last["step"] > 0
    assert "--workers 2" in last["go_on"]
    command += ["--epochs", "2", "--run", str(tmp_path / "other"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1
    assert again.stderr.count("already holds a run") == 1
    assert "elastic" not in again.stderr


@pytest.mark.slow
def test_the_script_of_the_guide_is_one_run_of_two_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(blocks(ROOT / "docs" / "guides" / "several-workers.md", "python")[0][1])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert float(first) == float(second) > 0
