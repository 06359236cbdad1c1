"""Commands called as a shell would, within this process or as one of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from psac.app.cli.app import main

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
RECIPE = """
data = "records"
model = "linear"
rule = "psac"
r = 0.2
noise_multiplier = 4.0
delta = 1e-4
batch_size = 32
epochs = 2
optimizer = "sgd"
learning_rate = 0.5
momentum = 0.5

[data_settings]
classes = ["0", "1"]
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What stderr says, without boxes and line breaks."""
        return " ".join(self.err.replace("│", " ").split())


@pytest.fixture
def call(capsys):
    """Calls `psac` with these arguments."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        code = end.value.code
        return Outcome(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture
def start():
    """Starts `psac` as a process without a terminal, which hears Ctrl-C."""
    started = []

    def start(*arguments: object, folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "psac", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=ENVIRONMENT | {"PSAC_STATE_DIR": os.environ["PSAC_STATE_DIR"]},
            # A shell has Ctrl-C ignored in the background, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with small data and a recipe, mine.toml; the user is there."""
    generator = np.random.default_rng(0)
    (tmp_path / "records").mkdir()
    for split, count in (("train", 200), ("test", 50)):
        y = generator.integers(0, 2, count)
        x = generator.normal(size=(count, 4)) + 2 * y[:, None]
        np.savez(tmp_path / "records" / f"{split}.npz", x=x.astype("float32"), y=y)
    (tmp_path / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def at_once(monkeypatch):
    """Many runs are made one after the other in this process: children take seconds to start."""
    import psac
    from psac.app.training import Run, train

    def train_here(jobs, *, processes, watch):
        for job in jobs:
            with warnings.catch_warnings():  # those of a child are not seen either
                warnings.simplefilter("ignore")
                found = train(job.recipe, job.folder, resume=Run(job.folder).started)
            for line in found.metrics():
                watch(job, line)
        return [psac.training.Outcome(job) for job in jobs]

    monkeypatch.setattr(psac.training, "train_many", train_here)


@pytest.fixture(autouse=True)
def _one_thread():
    """These steps are shorter than waiting for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
