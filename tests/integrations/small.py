"""A small classifier of texts and its records, as a data set of transformers has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY, RECORDS = 50, 24
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 20,
}  # fmt: skip
Record = dict[str, Any]


def classifier(*, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **rates))


def texts(number: int = RECORDS, *, seed: int = 0, length: int | None = None) -> list[Record]:
    """Of 4 to 12 words, with a column that no model knows."""
    generator = torch.Generator().manual_seed(seed)
    records = []
    for k in range(number):
        size = length or int(torch.randint(4, 13, (), generator=generator))
        words = torch.randint(3, VOCABULARY, (size,), generator=generator).tolist()
        records.append(
            {"input_ids": words, "attention_mask": [1] * size, "labels": k % 2, "identity": k}
        )
    return records


def collate(records: list[Record]) -> dict[str, torch.Tensor]:
    """Padded to the longest, as DataCollatorWithPadding does."""
    longest = max(len(record["input_ids"]) for record in records)
    batch = {
        name: torch.tensor([r[name] + [0] * (longest - len(r[name])) for r in records])
        for name in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([record["labels"] for record in records])}


def settings(folder: Path, **others: Any) -> transformers.TrainingArguments:
    """Three epochs of three steps."""
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
        "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_steps": 100,
        "disable_tqdm": True, "learning_rate": 1e-2, "optim": "adamw_torch",
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **{**usual, **others})


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
