"""S12: what a file on disk tells, and what a restored one forgets.

Ratios do not apply: a case ends as refused, or as isolated when the file holds what it may hold.
`tests/test_checkpoint.py` has the details.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import psac
from psac.checkpoint.saving import read
from psac.private.account import released, trained
from tests.privacy.case import case
from tests.privacy.world import World, cross_entropy, network


def secure(world: World, model: nn.Module | None = None, **settings):
    model = network() if model is None else model
    data = TensorDataset(*world.batch())
    given = {"batch_size": 4, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, **settings}
    return psac.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, **given)


def train(private, steps: int) -> None:
    while steps:
        for batch in private.loader:
            private.step(cross_entropy, batch)
            steps -= 1
            if not steps:
                return


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for the run, and another for the user's state, as on a machine of its own."""
    before = os.environ.get("PSAC_STATE_DIR")
    with tempfile.TemporaryDirectory() as place:
        os.environ["PSAC_STATE_DIR"] = str(Path(place) / "state")
        try:
            yield Path(place)
        finally:
            del os.environ["PSAC_STATE_DIR"]
            if before is not None:
                os.environ["PSAC_STATE_DIR"] = before


def a_new_process() -> None:
    """Nothing that this process knows of released steps is left."""
    released.clear()
    trained.clear()


def nothing_moved(world: World) -> None:
    world.sums.append((False, [torch.zeros(1)]))


@case("S12", "a secure checkpoint of a model with dropout holds no generator")
def no_generator(world: World) -> None:
    model = nn.Sequential(nn.Dropout(0.5), network())
    with folder() as place, secure(world, model) as private:
        path = place / "run.safetensors"
        psac.save_checkpoint(path, private)
        content = read(path)
        torch.manual_seed(5)
        psac.save_checkpoint(path, private)
        assert repr(read(path)) == repr(content), "the file depends on torch's generator"
    nothing_moved(world)


@case("S12", "the state of a secure run holds no key and no draw")
def no_key(world: World) -> None:
    with secure(world) as private:
        state = private.state_dict()
    assert state["noise"] is None
    assert "key" not in str(state["sampler"])
    nothing_moved(world)


@case("S12", "a backup of the run folder, restored with its journal, after more steps")
def a_restored_backup(world: World) -> None:
    with folder() as place:
        run, backup = place / "run", place / "backup"
        run.mkdir()
        with secure(world) as private:
            psac.save_checkpoint(run / "run.safetensors", private)
            train(private, 2)
            shutil.copytree(run, backup)
            train(private, 2)
            spent = private.ledger.steps
        shutil.rmtree(run)
        shutil.copytree(backup, run)
        a_new_process()
        with secure(world) as again:
            psac.load_checkpoint(run / "run.safetensors", again)
            assert again.ledger.steps >= spent, "steps that were released are forgotten"
    nothing_moved(world)


@case("S12", "a checkpoint loaded twice")
def loaded_twice(world: World) -> None:
    with folder() as place:
        path = place / "run.safetensors"
        with secure(world) as private:
            psac.save_checkpoint(path, private)
        with secure(world) as first:
            psac.load_checkpoint(path, first)
            train(first, 2)
        a_new_process()
        with secure(world) as second:
            psac.load_checkpoint(path, second)
            assert second.ledger.steps >= 2, "steps that were released are forgotten"
    nothing_moved(world)


@case("S12", "a state loaded into a run that has spent")
def loaded_over_a_ledger(world: World) -> None:
    with secure(world) as private:
        state = private.state_dict()
        train(private, 1)
        private.load_state_dict(state)


@case("S12", "other settings than those that were saved")
def other_settings(world: World) -> None:
    with secure(world) as private:
        state = private.state_dict()
    with secure(world, noise_multiplier=0.1) as other:
        try:
            other.load_state_dict(state)
        except ValueError as error:
            raise psac.PrivacyError(str(error)) from error


@case("S12", "model.load_state_dict between two steps")
def weights_from_elsewhere(world: World) -> None:
    model = network()
    with world.training(model) as training:
        for x, y in training.batches():
            state = {name: p + x.mean() for name, p in model.state_dict().items()}
            model.load_state_dict(state)
            training.private.step(cross_entropy, (x, y))
