"""A run on disk: whole or not at all, never behind what was released, and equal when resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import psac
from psac.checkpoint import CheckpointError, journal_of, packed, unpacked
from tests.interrupted_run import make, step_through

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


def weights(private: psac.Private) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in private.model.parameters()])


def finished(private: psac.Private, scheduler) -> torch.Tensor:
    step_through(private, scheduler)
    return weights(private)


@pytest.mark.parametrize("stop", [0, 1, 5, 6])
def test_a_saved_run_goes_on_bit_by_bit(tmp_path, stop):
    path = tmp_path / "run" / "checkpoint.safetensors"
    whole, scheduler = make(seed=0)
    expected = finished(whole, scheduler)
    first, scheduler = make(seed=0)
    step_through(first, scheduler, until=stop)
    psac.save_checkpoint(path, first, scheduler=scheduler, extra={"epoch": 3})
    step_through(first, scheduler, until=stop + 2)  # lost
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    second, scheduler = make(seed=0)
    extra = psac.load_checkpoint(path, second, scheduler=scheduler)
    assert extra == {"epoch": 3}
    assert second.step == stop
    assert torch.equal(finished(second, scheduler), expected)
    assert second.ledger == whole.ledger
    assert second.optimizer.state_dict()["state"].keys() == (
        whole.optimizer.state_dict()["state"].keys()
    )


def test_steps_after_the_last_save_count_as_spent_in_a_secure_run(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=3)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=5)
    second, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="2 steps ran after"):
        psac.load_checkpoint(path, second, scheduler=scheduler)
    assert second.step == 3
    assert second.ledger.steps == first.ledger.steps == 5
    finished(second, scheduler)
    assert second.ledger.steps == second.planned_steps  # the budget holds
    assert second.step == second.planned_steps - 2


def test_a_step_is_in_the_journal_before_its_gradient_is_handed_on(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(path, private, scheduler=scheduler)

    def broken(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("psac.private.add_noise_", broken)
    with pytest.raises(KeyboardInterrupt):
        step_through(private, scheduler)
    assert journal_of(path).read_text().split() == ["0", "1"]


def test_steps_that_were_lost_twice_count_twice(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=3)
    second, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="3 steps ran after"):
        psac.load_checkpoint(path, second, scheduler=scheduler)
    step_through(second, scheduler, until=1)
    third, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="4 steps ran after"):
        psac.load_checkpoint(path, third, scheduler=scheduler)
    assert third.step == 0
    assert third.ledger.steps == 4


@pytest.mark.parametrize("lost", [2, 6, 7, 9])
def test_lost_bins_are_not_drawn_again(tmp_path, lost):
    path = tmp_path / "checkpoint"

    def bins() -> psac.Private:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(56, 4), torch.arange(56) % 3)
        return psac.make_private(
            model,
            optimizer,
            data,
            batch_size=8,
            epochs=4,
            noise_multiplier=1.0,
            sampling=psac.BallsInBins(),
        )

    first, second = bins(), bins()
    psac.save_checkpoint(path, first)
    for x, y in first.loader:
        first.backward(torch.nn.functional.cross_entropy(first.model(x), y, reduction="none"))
        first.optimizer.step()
        if first.step == 1:
            break
    psac.save_checkpoint(path, first)  # in the middle of an epoch of seven bins
    journal_of(path).write_text(f"{1 + lost}\n")
    with pytest.warns(psac.PrivacyWarning, match=f"{lost} steps ran after"):
        psac.load_checkpoint(path, second)
    drawn = 1 + lost if lost <= 6 else 14
    assert second.loader.state_dict()["steps_drawn"] == drawn
    assert second.ledger.steps == drawn


def test_nothing_of_a_secure_generator_is_written(tmp_path):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    content = psac.checkpoint.read(path)
    assert content["private"]["noise"] is None
    assert content["private"]["run"]["seed"] is None


def saved(tmp_path: Path) -> Path:
    private, scheduler = make(seed=0)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(tmp_path / "checkpoint", private, scheduler=scheduler)
    return tmp_path / "checkpoint"


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        private, scheduler = make(seed=0)
        with pytest.raises(CheckpointError, match="not a whole checkpoint"):
            psac.load_checkpoint(path, private, scheduler=scheduler)
        assert private.step == 0


@pytest.mark.parametrize("place", ["ledger", "weights"])
def test_an_edited_file_is_refused(tmp_path, place):
    path = saved(tmp_path)
    data = path.read_bytes()
    if place == "ledger":
        assert data.count(rb"\"step\", 2") >= 1
        data = data.replace(rb"\"step\", 2", rb"\"step\", 1")
    else:
        data = data[:-1] + bytes([data[-1] ^ 1])
    path.write_bytes(data)
    private, scheduler = make(seed=0)
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        psac.load_checkpoint(path, private, scheduler=scheduler)


def test_other_files_and_other_runs_are_refused_before_anything_changes(tmp_path):
    path = saved(tmp_path)
    private, scheduler = make(seed=0)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        psac.load_checkpoint(tmp_path / "other", private, scheduler=scheduler)
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="not written by psac"):
        psac.load_checkpoint(tmp_path / "other", private, scheduler=scheduler)
    with pytest.raises(CheckpointError, match=r"saved with \['scheduler'\]"):
        psac.load_checkpoint(path, private)
    before = weights(private)
    private.model.append(nn.Linear(3, 3))
    with pytest.raises(CheckpointError, match=r"another model: \['4\.bias', '4\.weight'\]"):
        psac.load_checkpoint(path, private, scheduler=scheduler)
    assert torch.equal(weights(private)[: len(before)], before)
    assert private.step == private.ledger.steps == 0


def test_states_that_need_pickle_are_refused():
    with pytest.raises(TypeError, match=r"/a/1 is a set, which cannot be saved without pickle"):
        packed({"a": [1, {2}]}, "", {})


def test_trees_come_back_as_they_were():
    tree = {
        1: [True, None, 2.5, float("inf"), "text"],
        "t": (torch.arange(3), {"half": torch.ones(2, dtype=torch.bfloat16)}),
        "empty": {},
    }
    tensors: dict[str, torch.Tensor] = {}
    back = unpacked(json.loads(json.dumps(packed(tree, "", tensors))), tensors)
    assert back[1] == tree[1]
    assert isinstance(back["t"], tuple)
    assert torch.equal(back["t"][0], tree["t"][0])
    assert back["t"][1]["half"].dtype is torch.bfloat16
    assert back["empty"] == {}


def run_and_kill(folder: Path, seconds: float) -> int:
    """Runs until it ends or is killed; its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.interrupted_run", str(folder)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun to train
    process.stdout.close()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def killed_again_and_again(folder: Path, kills: int) -> None:
    chance = random.Random(0)
    ends = [run_and_kill(folder, chance.uniform(0.0, 0.5)) for _ in range(kills)]
    assert -signal.SIGKILL in ends
    assert run_and_kill(folder, 600.0) == 0
    whole, scheduler = make(seed=0, slowly=True)
    expected = finished(whole, scheduler)
    last, scheduler = make(seed=0, slowly=True)
    psac.load_checkpoint(folder / "checkpoint", last, scheduler=scheduler)
    assert last.step == whole.step
    assert torch.equal(weights(last), expected)
    assert last.ledger == whole.ledger


def test_a_run_killed_at_random_moments_ends_bit_equal(tmp_path):
    killed_again_and_again(tmp_path, kills=3)


@pytest.mark.slow
def test_a_run_killed_many_times_ends_bit_equal(tmp_path):
    killed_again_and_again(tmp_path, kills=30)
