"""Several runs at a time: finished, resumed, failed and stopped ones."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from psac.app.training import Job, Recipe, Run, train_many
from tests.app.training import small

ROOT = Path(__file__).parents[3]
CLASSES = {"classes": list(small.CLASSES)}


def clouds(folder: Path) -> Path:
    """The small records as a folder of the user's own."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", 120), ("test", 60)):
        records = small.records(count, count)
        np.savez(folder / f"{split}.npz", x=records.inputs.numpy(), y=records.labels.numpy())
    return folder


@pytest.fixture
def data(tmp_path) -> str:
    return str(clouds(tmp_path / "clouds"))


def jobs(data: str, folder: Path, *, count: int = 3, **settings) -> list[Job]:
    return [
        Job(
            small.recipe(data=data, data_settings=CLASSES, seed=seed, **settings),
            folder / f"seed{seed}",
        )
        for seed in range(count)
    ]


def test_runs_of_several_processes_are_those_of_one(data, tmp_path):
    told: list[tuple[Path, str]] = []
    outcomes = train_many(
        jobs(data, tmp_path / "two"),
        processes=2,
        watch=lambda job, line: told.append((job.folder, line["kind"])),
    )
    alone = train_many(jobs(data, tmp_path / "one", count=1), processes=1, threads=1)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert outcomes[0].run.model_path.read_bytes() == alone[0].run.model_path.read_bytes()
    assert outcomes[0].run.model_path.read_bytes() != outcomes[1].run.model_path.read_bytes()
    kinds = [kind for folder, kind in told if folder.name == "seed2"]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("evaluation") == 3
    # The first two were at work at the same time.
    first = [folder.name for folder, _ in told]
    assert first.index("seed1") < len(first) - 1 - first[::-1].index("seed0")


def test_finished_runs_are_not_made_again(data, tmp_path):
    wanted = jobs(data, tmp_path / "runs")
    train_many(wanted[:1], processes=1)
    before = wanted[0].folder.joinpath("metrics.jsonl").read_bytes()
    told: list[tuple[str, str]] = []
    train_many(wanted, watch=lambda job, line: told.append((job.folder.name, line["kind"])))
    assert wanted[0].folder.joinpath("metrics.jsonl").read_bytes() == before
    assert [kind for name, kind in told if name == "seed0"] == ["already_finished"]
    assert all(Run(job.folder).finished for job in wanted)


def test_one_failure_is_told_and_the_others_go_on(data, tmp_path):
    wanted = jobs(data, tmp_path / "runs")
    wanted[1] = Job(small.recipe(data=str(tmp_path / "nowhere")), tmp_path / "runs" / "lost")
    told: list[dict] = []
    outcomes = train_many(wanted, watch=lambda job, line: told.append(line))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert "nowhere" in str(outcomes[1].error)
    assert [line["message"] for line in told if line["kind"] == "failed"] == [outcomes[1].error]


def test_a_folder_of_another_recipe_is_a_failure_and_is_kept(data, tmp_path):
    train_many(jobs(data, tmp_path / "runs", count=1), processes=1)
    [outcome] = train_many(jobs(data, tmp_path / "runs", count=1, r=0.5), processes=1)
    assert "another recipe" in str(outcome.error)
    assert outcome.run.recipe().r is None


def test_two_jobs_in_one_folder_are_refused(data, tmp_path):
    twice = [Job(small.recipe(data=data, seed=seed), tmp_path / "same") for seed in (0, 1)]
    with pytest.raises(ValueError, match="2 jobs have the folder"):
        train_many(twice)
    with pytest.raises(ValueError, match="processes is 0"):
        train_many(twice[:1], processes=0)


SCRIPT = """
import json, signal, sys
from pathlib import Path
from psac.app.training import Job, Recipe, train_many

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
recipes = [Recipe.from_settings(settings) for settings in json.loads(sys.argv[1])]
jobs = [Job(recipe, Path(sys.argv[2]) / f"seed{recipe.seed}") for recipe in recipes]
train_many(jobs, watch=lambda job, line: print(line["kind"], flush=True))
"""


def begun(data: str, folder: Path) -> tuple[subprocess.Popen, list[Job]]:
    """Two long runs in a process of their own, as soon as both are stepping."""
    wanted = jobs(data, folder, count=2, epochs=3000)
    settings = json.dumps([dataclasses.asdict(job.recipe) for job in wanted])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, settings, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None
    kinds = []
    while kinds.count("start") < 2 or kinds[-1] != "step":
        kinds.append(process.stdout.readline().strip())
        assert kinds[-1], process.stderr.read()  # pyright: ignore
    return process, wanted


def members(group: int) -> list[str]:
    found = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_all_runs_and_they_go_on(data, tmp_path, number):
    process, wanted = begun(data, tmp_path / "runs")
    assert len(members(process.pid)) == 3
    os.killpg(process.pid, number)  # as a terminal does
    _, errors = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "0 of 2 runs are finished" in errors
    assert not members(process.pid)
    for job in wanted:
        assert Run(job.folder).checkpoint_path.exists()
        assert not Run(job.folder).finished
        # Saved after the very step at hand, not a minute ago.
        told = max(line["step"] for line in Run(job.folder).metrics())
        assert told <= Run(job.folder).ledger().steps <= told + 45  # 18,000 steps in 400 lines


def test_children_of_a_killed_parent_end_by_themselves(data, tmp_path):
    process, _ = begun(data, tmp_path / "runs")
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not members(process.pid)


def test_a_child_that_dies_is_told_of(data, tmp_path, monkeypatch):
    monkeypatch.setattr("psac.app.training.many.CHILD", "import os; os.kill(os.getpid(), 9)")
    [outcome] = train_many(jobs(data, tmp_path / "runs", count=1))
    assert "the process ended with exit code -9" in str(outcome.error)


def test_a_recipe_survives_the_way_to_the_child(data):
    recipe = small.recipe(data=data, model_settings={"hidden": [8, 4]})
    assert Recipe.from_settings(json.loads(json.dumps(dataclasses.asdict(recipe)))) == recipe
