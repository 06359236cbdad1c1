"""What a Trainer does behind the user's back and would not be private, PrivateTrainer refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import psac

transformers = pytest.importorskip("transformers")

from psac.integrations.transformers import PrivacyArguments, PrivateTrainer  # noqa: E402
from psac.integrations.transformers.refusals import SETTINGS  # noqa: E402
from tests.integrations.small import classifier, collate, settings, texts  # noqa: E402

USUAL = PrivacyArguments(noise_multiplier=1.0)
PUBLIC = PrivacyArguments(noise_multiplier=1.0, public_evaluation=True)
REFUSED: dict[str, Any] = {
    "auto_find_batch_size": True,
    "train_sampling_strategy": "group_by_length",
    "max_grad_norm": 0.5,
    "fp16_full_eval": True,
    "bf16_full_eval": True,
    "torch_compile": True,
    "use_liger_kernel": True,
    "optim": "adalomo",
    "include_num_input_tokens_seen": "all",
    "skip_memory_metrics": False,
    "debug": "underflow_overflow",
}
# Not to be set here: older versions, float16 without a GPU, other backends.
ELSEWHERE = {"group_by_length", "fp16", "deepspeed", "fsdp"}


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


def trainer(args: Any, privacy: Any = USUAL, **others: Any) -> PrivateTrainer:
    return PrivateTrainer(classifier(), args, collate, texts(), privacy=privacy, **others)


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    args = settings(tmp_path)
    object.__setattr__(args, name, REFUSED[name])  # whatever else the setting would ask for
    with pytest.raises(psac.PrivacyError, match=rf"{name}=.* cannot be used in a private run: \w+"):
        trainer(args)


def test_every_refusal_is_tried() -> None:
    assert REFUSED.keys() | ELSEWHERE == {name for name, *_ in SETTINGS}


def test_usual_settings_are_not_refused(tmp_path: Path) -> None:
    trainer(settings(tmp_path, bf16=True, dataloader_drop_last=True, weight_decay=0.1))


@pytest.mark.parametrize("count", ["world_size", "n_gpu"])
def test_several_devices_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    args = settings(tmp_path)
    monkeypatch.setattr(type(args), count, 2)
    with pytest.raises(psac.PrivacyError, match="one process on one device"):
        trainer(args)


DECIDING = {
    "load_best_model_at_end": {"load_best_model_at_end": True, "eval_strategy": "epoch",
                               "save_strategy": "epoch"},
    "save_strategy": {"save_strategy": "best", "eval_strategy": "epoch",
                      "metric_for_best_model": "loss"},
    "lr_scheduler_type": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDING)
def test_what_follows_an_evaluation_needs_public_records(tmp_path: Path, name: str) -> None:
    args = settings(tmp_path, **DECIDING[name])
    with pytest.raises(psac.PrivacyError, match=f"{name}=.*releases.*public_evaluation"):
        trainer(args, eval_dataset=texts(8, seed=1))
    trainer(args, PUBLIC, eval_dataset=texts(8, seed=1))


def test_early_stopping_needs_public_records(tmp_path: Path) -> None:
    args = settings(tmp_path, eval_strategy="epoch", metric_for_best_model="loss",
                    greater_is_better=True, num_train_epochs=4)  # fmt: skip
    stopping, public = transformers.EarlyStoppingCallback(1), texts(8, seed=1)
    with pytest.raises(psac.PrivacyError, match="EarlyStoppingCallback"):
        trainer(args, eval_dataset=public, callbacks=[stopping])
    later = trainer(settings(tmp_path), eval_dataset=public)
    later.add_callback(stopping)
    with pytest.raises(psac.PrivacyError, match="EarlyStoppingCallback"):
        later.train()
    run = trainer(args, PUBLIC, eval_dataset=public, callbacks=[stopping])
    run.train()
    assert run.private is not None
    assert run.private.ledger.steps <= run.private.planned_steps == 12


def test_training_records_are_no_public_evaluation(tmp_path: Path) -> None:
    data = texts()
    with pytest.raises(psac.PrivacyError, match="share records"):
        PrivateTrainer(classifier(), settings(tmp_path), collate, data, privacy=PUBLIC,
                       eval_dataset={"a": texts(4), "b": data})  # fmt: skip


def test_searches_are_refused(tmp_path: Path) -> None:
    run = trainer(settings(tmp_path))
    with pytest.raises(psac.PrivacyError, match="tuned_epsilon"):
        run.hyperparameter_search()
    with pytest.raises(psac.PrivacyError, match="tuned_epsilon"):
        run.train(trial={"learning_rate": 1.0})


def test_a_callback_cannot_step_or_train_besides(tmp_path: Path) -> None:
    class Cheating(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **others):
            with torch.no_grad():
                next(model.parameters()).add_(1.0)

    run = trainer(settings(tmp_path), callbacks=[Cheating()])
    with pytest.raises(psac.PrivacyError, match="was changed since the last step"):
        run.train()


class OfALibrary(transformers.Trainer):
    """As in trl: it logs what it has measured."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        self.log({"entropy": 1.0})
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Both(PrivateTrainer, OfALibrary):
    pass


class Usual(PrivateTrainer, OfALibrary):
    compute_loss = transformers.Trainer.compute_loss


def test_the_loss_of_another_trainer_is_refused(tmp_path: Path) -> None:
    given = (classifier(), settings(tmp_path, max_steps=1), collate, texts())
    with pytest.raises(psac.PrivacyError, match=r"OfALibrary\.compute_loss may log"):
        Both(*given, privacy=USUAL)
    run = Usual(*given, privacy=USUAL)
    run.train()
    assert not any("entropy" in log for log in run.state.log_history)
