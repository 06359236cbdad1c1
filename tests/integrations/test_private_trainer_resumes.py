"""A resumed PrivateTrainer goes on with its ledger, and forgets no step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import psac
from psac.checkpoint.saving import CheckpointError

transformers = pytest.importorskip("transformers")

from psac.integrations.transformers import PrivacyArguments, PrivateTrainer  # noqa: E402
from tests.integrations.small import classifier, collate, settings, texts, weights  # noqa: E402

USUAL = PrivacyArguments(noise_multiplier=1.0)


class Killed(Exception):
    pass


class Kill(transformers.TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args, state, control, **others):
        if state.global_step == self.at:
            raise Killed


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


def trainer(folder: Path, privacy: Any = USUAL, stop: int | None = None, **others: Any) -> Any:
    args = settings(folder, save_strategy="steps", save_steps=2, **others)
    callbacks = [Kill(stop)] if stop else []
    return PrivateTrainer(
        classifier(dropout=0.1), args, collate, texts(), privacy=privacy, callbacks=callbacks
    )


def stopped(folder: Path, at: int, **others: Any) -> Any:
    run = trainer(folder, stop=at, **others)
    with pytest.raises(Killed):
        run.train()
    return run


@pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
@pytest.mark.parametrize("at", [3, 4, 5, 7])
def test_a_seeded_run_goes_on_bit_by_bit(tmp_path: Path, at: int) -> None:
    """In the middle of an epoch of three steps, at its end, and after a save."""
    privacy = PrivacyArguments(noise_multiplier=1.0, seed=3)
    whole = trainer(tmp_path / "whole", privacy)
    whole.train()
    stopped(tmp_path / "part", at, privacy=privacy)
    resumed = trainer(tmp_path / "part", privacy)
    result = resumed.train(resume_from_checkpoint=True)
    assert result.global_step == 9
    assert resumed.state.epoch == 3
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.private.ledger == whole.private.ledger


def test_lost_steps_count_as_spent(tmp_path: Path) -> None:
    stopped(tmp_path, 7)
    resumed = trainer(tmp_path)
    with pytest.warns(psac.PrivacyWarning, match="1 steps ran after"):
        result = resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert resumed.private.ledger.steps == resumed.private.planned_steps == 9
    assert result.global_step == 8  # one step was lost, and the budget holds


def test_an_old_checkpoint_knows_of_all_steps(tmp_path: Path) -> None:
    finished = trainer(tmp_path)
    finished.train()
    again = trainer(tmp_path)
    with pytest.warns(psac.PrivacyWarning, match="7 steps ran after"):
        result = again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.private.ledger.steps == 9
    assert result.global_step == 2  # nothing is left


def test_a_folder_without_its_ledger_is_not_resumed(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    (tmp_path / "checkpoint-4" / "privacy.json").unlink()
    with pytest.raises(CheckpointError, match=r"privacy\.json is missing"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_weights_of_another_step_are_not_resumed(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    old, new = tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"
    shutil.copy(new / "model.safetensors", old / "model.safetensors")
    with pytest.raises(CheckpointError, match="ledger may be behind"):
        trainer(tmp_path).train(resume_from_checkpoint=str(old))


def test_a_damaged_ledger_is_not_resumed(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    path = tmp_path / "checkpoint-4" / "privacy.json"
    content = json.loads(path.read_text())
    content["private"]["ledger"]["entries"][0]["steps"] = 0
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="damaged"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_another_plan_is_another_run(tmp_path: Path) -> None:
    stopped(tmp_path, 5, privacy=PrivacyArguments(epsilon=3.0, delta=1e-3))
    with pytest.raises(ValueError, match="noise_multiplier"):
        trainer(tmp_path, PrivacyArguments(epsilon=6.0, delta=1e-3)).train(True)


def test_a_saved_model_has_its_ledger_beside_it(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.train()
    run.save_model(str(tmp_path / "final"))
    saved = json.loads((tmp_path / "final" / "privacy.json").read_text())
    assert psac.Ledger.from_json(saved["private"]["ledger"]) == run.private.ledger
