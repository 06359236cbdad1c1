"""One run on E2E NLG, private or not, with perplexity and BLEU on the dev set, as a result file.

    python -m paper e2e --data e2e-dataset.zip                    # epsilon 8
    python -m paper e2e --data e2e-dataset.zip --not-private

A stopped run goes on from its checkpoint.  Settings are stated here and were not tuned; results say
so.  The runs are seeded, hence repeatable and NOT private: the data are public.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import psac
from paper.generation import model as lm
from paper.generation.bleu import bleu
from paper.generation.e2e import Example, examples, references
from psac.app.text.pretrained import folder_of
from psac.app.text.tokens import Tokens, tokenizer_in
from psac.app.training.environment import environment
from psac.app.training.in_memory import TokenRecords
from psac.app.training.optimization import set_learning_rate
from psac.app.training.run import write_json
from psac.checkpoint.saving import load_checkpoint, save_checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`epsilon` None is ordinary training: no clipping and no noise."""

    epsilon: float | None = 8.0
    delta: float = 1e-5
    batch_size: int = 1024
    physical_batch_size: int = 64
    epochs: float = 10.0
    learning_rate: float = 2e-3
    width: int = 256
    layers: int = 4
    heads: int = 4
    lengths: tuple[int, ...] = (48, 64, 96, 128)
    seed: int = 0
    save_seconds: float = 60.0

    @property
    def name(self) -> str:
        return "not-private" if self.epsilon is None else f"epsilon{self.epsilon:g}"


def run(archive: Path, settings: Settings, results: Path, runs: Path) -> Path:
    """Trains what is missing, and returns the result file."""
    path = results / f"{settings.name}-seed{settings.seed}.json"
    if path.exists():
        return path
    tokens = Tokens(tokenizer_in(folder_of("minilm")), settings.lengths)
    network, ledger = trained(examples(archive, "train"), tokens, settings, runs / settings.name)
    dev = examples(archive, "dev")
    found = {**evaluated(network.eval(), dev, tokens), **ledger}
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = environment(seed=settings.seed, device=torch.device("cpu"))
    kept = {key: facts[key] for key in ("versions", "platform", "threads")}
    write_json(path, {"settings": dataclasses.asdict(settings), "tuned": False, **found, **kept})
    return path


def trained(
    pairs: list[Example], tokens: Tokens, settings: Settings, folder: Path
) -> tuple[Any, dict[str, Any]]:
    """The network, and what the run cost."""
    torch.manual_seed(settings.seed)
    size = {"length": settings.lengths[-1], "width": settings.width, "layers": settings.layers}
    network = lm.language_model(len(tokens.tokenizer), heads=settings.heads, **size)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    rows = lm.encoded(pairs, tokens)
    records = TokenRecords(rows, torch.zeros(len(rows)), tokens=tokens, texts=[""] * len(rows))

    def loss(model: Any, ids: Tensor, _: Tensor) -> Tensor:
        total, count = lm.losses(model, ids, tokens)
        return (total / count.clamp(min=1)).squeeze(0)

    with private_of(network, optimizer, records, settings) as private:
        _train(private, loss, settings, folder / "checkpoint.safetensors")
        cost = {"steps": private.steps_taken, "epsilon": private.epsilon()}
    return network, cost


def private_of(
    network: Any, optimizer: torch.optim.Optimizer, records: TokenRecords, settings: Settings
) -> psac.Private:
    if settings.epsilon is None:
        budget = {"noise_multiplier": 0.0, "clipping": psac.Abadi(bound=1e6)}
    else:
        budget = {"epsilon": settings.epsilon, "clipping": psac.PSAC(scale=10.0)}
    return psac.make_private(
        network,
        optimizer,
        records.loader(settings.batch_size),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        delta=settings.delta,
        physical_batch_size=settings.physical_batch_size,
        lengths=settings.lengths,
        seed=settings.seed,
        **budget,
    )


def _train(private: psac.Private, loss: Any, settings: Settings, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        load_checkpoint(path, private)
    save_checkpoint(path, private)
    saved = time.monotonic()
    while private.steps_taken < private.planned_steps:
        for batch in private.loader:
            progress = private.steps_taken / private.planned_steps
            set_learning_rate(private.optimizer, "linear", settings.learning_rate, progress)
            if private.step(loss, batch) and time.monotonic() - saved > settings.save_seconds:
                save_checkpoint(path, private)
                saved = time.monotonic()
    save_checkpoint(path, private)


def evaluated(network: Any, pairs: list[Example], tokens: Tokens) -> dict[str, Any]:
    """Perplexity, BLEU, and three texts to look at."""
    texts = references(pairs)
    made = [lm.written(network, facts, tokens) for facts in texts]
    return {
        "perplexity": lm.perplexity(network, lm.encoded(pairs, tokens), tokens),
        "bleu": bleu(made, list(texts.values())),
        "examples": [
            {"facts": facts, "text": text}
            for facts, text in list(zip(texts, made, strict=True))[:3]
        ],
    }
