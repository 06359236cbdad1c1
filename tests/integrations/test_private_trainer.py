"""PrivateTrainer is Trainer, with the updates of a private run."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import psac

transformers = pytest.importorskip("transformers")

from psac.integrations.transformers import PrivacyArguments, PrivateTrainer  # noqa: E402
from tests.integrations.small import (  # noqa: E402
    RECORDS,
    classifier,
    collate,
    settings,
    texts,
    weights,
)

NO_NOISE = {"noise_multiplier": 0, "clipping": psac.Abadi(1e6)}
USUAL = PrivacyArguments(noise_multiplier=1.0, delta=1e-3)

pytestmark = pytest.mark.filterwarnings("ignore:.*tensor with requires_grad=True to a scalar.*")


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


def trainer(folder: Path, *, privacy: Any = USUAL, **others: Any) -> PrivateTrainer:
    named = {"model": classifier(), "train_dataset": texts(), "data_collator": collate}
    args = others.pop("args", None) or settings(folder)
    return PrivateTrainer(args=args, privacy=privacy, **{**named, **others})


@pytest.mark.parametrize("bf16", [False, True])
def test_without_noise_it_is_trainer_step_by_step(tmp_path: Path, bf16: bool) -> None:
    """Each of 5 updates has all records, with an optimizer and a schedule."""
    common = {"num_train_epochs": 5, "logging_steps": 1, "weight_decay": 0.1, "warmup_steps": 2}
    if bf16:  # AdamW would take the signs of gradients that are rounding alone
        common |= {"bf16": True, "optim": "sgd", "learning_rate": 0.5}
    one_batch = {"per_device_train_batch_size": RECORDS, "gradient_accumulation_steps": 1}
    args = settings(tmp_path, max_grad_norm=0, **common, **one_batch)
    plain = transformers.Trainer(classifier(), args, collate, texts())
    plain.train()
    private = trainer(
        tmp_path,
        args=settings(
            tmp_path, **common, per_device_train_batch_size=8, gradient_accumulation_steps=3
        ),
        privacy=PrivacyArguments(**NO_NOISE, show_training_loss=True),
    )
    result = private.train()
    accuracy = 5e-2 if bf16 else 1e-5
    start = weights(classifier())
    moved = (weights(plain.model) - start).norm()
    assert (weights(private.model) - weights(plain.model)).norm() < accuracy * moved
    for name in ("loss", "learning_rate", "epoch", "step"):
        ours, theirs = (
            [log.get(name) for log in t.state.log_history[:5]] for t in (private, plain)
        )
        assert ours == pytest.approx(theirs, rel=1e-2 if bf16 else 1e-5)
    assert result.global_step == 5
    assert private.private is not None
    assert private.private.noise_multiplier == 0


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        ({"num_train_epochs": 3}, 9),
        ({"num_train_epochs": 1.5}, 5),
        ({"max_steps": 4}, 4),
        ({"max_steps": 4, "num_train_epochs": 30}, 4),
        ({"per_device_train_batch_size": 5, "num_train_epochs": 2}, 6),
        (
            {"per_device_train_batch_size": 5, "num_train_epochs": 2, "dataloader_drop_last": True},
            4,
        ),
    ],
)
def test_every_update_is_priced_and_no_more(
    tmp_path: Path, length: dict[str, Any], steps: int
) -> None:
    args = settings(tmp_path, **length)
    run = trainer(tmp_path, args=args, privacy=PrivacyArguments(epsilon=5.0, delta=1e-3))
    result = run.train()
    assert run.private is not None
    assert result.global_step == run.private.ledger.steps == run.private.planned_steps == steps
    assert run.lr_scheduler.last_epoch == steps  # of AdamW's rate, down to zero
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0)
    expected = args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert run.private.sampling_rate == expected / RECORDS
    assert 4.9 < run.private.epsilon() <= 5.0
    assert args.gradient_accumulation_steps == 2  # the user's own were not changed


def test_an_empty_draw_is_an_update_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = psac.sampling.Sampler.draw

    def some(self: Any) -> torch.Tensor:
        numbers = draw(self)
        numbers = numbers[:0] if len(drawn) % 2 else numbers
        drawn.append(len(numbers))
        return numbers

    monkeypatch.setattr(psac.sampling.Sampler, "draw", some)
    run = trainer(
        tmp_path,
        args=settings(tmp_path, logging_steps=1),
        privacy=PrivacyArguments(noise_multiplier=1.0),
    )
    run.train()
    assert run.private is not None
    assert run.state.global_step == run.private.ledger.steps == 9
    rates = [log["learning_rate"] for log in run.state.log_history if "learning_rate" in log]
    assert rates == pytest.approx([1e-2 * (9 - k) / 9 for k in range(9)])


def test_logs_and_files_say_nothing_of_private_records(tmp_path: Path) -> None:
    run = trainer(tmp_path, args=settings(tmp_path, save_strategy="epoch", logging_steps=3))
    result = run.train()
    assert math.isnan(result.training_loss)
    assert not any("loss" in name for name in result.metrics)
    for log in run.state.log_history:
        assert log.keys() <= {
            *("epoch", "step", "learning_rate", "epsilon", "total_flos", "train_runtime"),
            *("train_samples_per_second", "train_steps_per_second"),
        }
    epsilons = [log["epsilon"] for log in run.state.log_history]
    assert epsilons == sorted(epsilons)
    (last, *_) = sorted(tmp_path.glob("checkpoint-*"), reverse=True)
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["total_flos"] == 0
    assert not (last / "rng_state.pth").exists()
    assert "noise" in json.loads((last / "privacy.json").read_text())["private"]
    assert json.loads((last / "privacy.json").read_text())["private"]["noise"] is None


def test_losses_that_are_shown_are_in_the_ledger(tmp_path: Path) -> None:
    run = trainer(
        tmp_path,
        privacy=PrivacyArguments(noise_multiplier=1.0, delta=1e-3, show_training_loss=True),
    )
    result = run.train()
    assert result.training_loss > 0
    assert run.private is not None
    assert any("losses were shown" in text for text in run.private.ledger.warnings)


def test_the_model_card_states_what_was_guaranteed(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.train()
    for _ in range(2):  # the section is there once
        run.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert run.private is not None
    assert card.count("## Privacy") == 1
    assert f"({run.private.epsilon():.4g}, 0.001)-differentially private" in card
    assert str(run.private.ledger) in card
    assert "Training Loss" not in card


def test_a_model_is_given_back_and_evaluates_and_trains_on(tmp_path: Path) -> None:
    run = trainer(tmp_path, eval_dataset=texts(8, seed=1), args=settings(tmp_path, eval_steps=2,
                  eval_strategy="steps"))  # fmt: skip
    run.train()
    losses = [log["eval_loss"] for log in run.state.log_history if "eval_loss" in log]
    assert len(losses) == 5  # at the last step, too
    loss = run.model(**collate(texts(4))).loss
    loss.backward()  # the model is nobody's any more
    with pytest.warns(psac.PrivacyWarning, match="was trained before"):
        run.train()


class Weighted(PrivateTrainer):
    """With a loss of its own, and a setting that it reads."""

    factor = 3.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = self.factor * outputs.loss
        return (loss, outputs) if return_outputs else loss


def test_a_loss_of_the_users_own_is_that_of_a_record(tmp_path: Path) -> None:
    data, seen = texts(), []

    def own(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        assert num_items_in_batch is None
        seen.append(outputs.logits.shape)
        return torch.nn.functional.cross_entropy(outputs.logits, labels)

    run = trainer(tmp_path, train_dataset=data, compute_loss_func=own)
    run.train()
    assert set(seen) == {torch.Size([1, 2])}
    for privacy in (NO_NOISE,):
        common = {"args": settings(tmp_path, per_device_train_batch_size=12, max_steps=1,
                                   optim="sgd", lr_scheduler_type="constant"),
                  "train_dataset": data, "data_collator": collate}  # fmt: skip
        runs = [
            kind(classifier(), privacy=PrivacyArguments(**privacy), **common)
            for kind in (PrivateTrainer, Weighted)
        ]
        start = weights(classifier())
        one, three = (run.train() and weights(run.model) - start for run in runs)
        torch.testing.assert_close(three, 3 * one, rtol=1e-3, atol=1e-6)
        assert all(run.private.sensitive.way == "vmap" for run in runs)


def test_label_smoothing_and_noise_on_embeddings_stay(tmp_path: Path) -> None:
    args = settings(tmp_path, label_smoothing_factor=0.1, neftune_noise_alpha=5.0, max_steps=2)
    run = trainer(tmp_path, args=args)
    run.train()
    assert run.private is not None
    assert run.private.ledger.isolation == ("vmap",)


def test_gradient_checkpointing_and_public_lengths(tmp_path: Path) -> None:
    args = settings(tmp_path, gradient_checkpointing=True, max_steps=3)
    privacy = PrivacyArguments(noise_multiplier=1.0, lengths=(6, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error", psac.SlowPathWarning)
        run = trainer(tmp_path, args=args, privacy=privacy)
        run.train()
    assert run.private is not None
    assert run.private.ledger.isolation == ("vmap",)
