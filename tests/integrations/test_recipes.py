"""Other loops around a private run, as the guide shows them; skipped where they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import psac
from tests.integrations.small import classifier, collate, texts


def own_loss(model: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    return model(**batch).loss


def test_a_loop_with_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state()  # of other tests
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model = classifier(dropout=0.1).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 6)
    data = torch.utils.data.DataLoader(texts(), collate_fn=collate)
    settings = {"batch_size": 8, "physical_batch_size": 3, "steps": 3, "noise_multiplier": 1.0}
    with psac.make_private(model, optimizer, data, **settings) as private:
        for batches in private.loader.steps():
            for batch in batches:
                moved = {name: value.to(accelerator.device) for name, value in batch.items()}
                with accelerator.autocast():
                    private.step(own_loss, moved)
            scheduler.step()
        assert private.steps_taken == scheduler.last_epoch == 3
        assert private.ledger.isolation == ("vmap",)


class LogicalSteps:
    """What Lightning iterates: its "batch" is a logical step."""

    def __init__(self, private: psac.Private) -> None:
        self._private = private

    def __iter__(self) -> Iterator[Any]:
        return self._private.loader.steps()

    def __len__(self) -> int:
        return len(self._private.loader)


def test_lightning_runs_logical_steps() -> None:
    lightning = pytest.importorskip("lightning")

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    class Module(lightning.LightningModule):
        def __init__(self, private: psac.Private) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.network, self.private = private.model, private

        def configure_optimizers(self) -> list:
            return []

        def train_dataloader(self) -> LogicalSteps:
            return LogicalSteps(self.private)

        def training_step(self, batches: Iterator[Any]) -> None:
            for batch in batches:
                self.private.step(loss, batch)

    network = nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(2, (60,)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    settings = {"batch_size": 10, "physical_batch_size": 4, "epochs": 2, "noise_multiplier": 1.0}
    with psac.make_private(network, optimizer, data, **settings) as private:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(private))
        assert private.steps_taken == private.planned_steps == 12


def test_trl_trains_with_the_loss_of_trainer(tmp_path: Path) -> None:
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    datasets, tokenizers = pytest.importorskip("datasets"), pytest.importorskip("tokenizers")
    from psac.integrations.transformers import PrivacyArguments, PrivateTrainer

    class PrivateSFTTrainer(PrivateTrainer, trl.SFTTrainer):
        compute_loss = transformers.Trainer.compute_loss

    words = {str(k): k for k in range(60)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0")),
        pad_token="0", eos_token="1", unk_token="0",
    )  # fmt: skip
    config = transformers.GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    rows = [{"input_ids": torch.randint(2, 60, (5 + k % 7,)).tolist()} for k in range(40)]
    args = trl.SFTConfig(
        str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3,
        use_cpu=True, report_to=[], save_strategy="no", bf16=False, disable_tqdm=True,
        gradient_checkpointing=False,
    )  # fmt: skip
    run = PrivateSFTTrainer(
        transformers.GPT2LMHeadModel(config),
        args,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        privacy=PrivacyArguments(noise_multiplier=1.0),
    )
    run.train()
    assert run.private is not None
    assert run.private.ledger.isolation == ("vmap",)
    assert not any("entropy" in log or "num_tokens" in log for log in run.state.log_history)
