"""The state of a private run beside a model that a Trainer saves.

    checkpoint-500/privacy.json            ledger, step, sampler, and the SHA-256 of the weights
    checkpoint-500/privacy.json.journal    steps that were released since (psac.checkpoint.journal)

Guarantees: what was released is never forgotten.  A folder without `privacy.json`, with a damaged
one, or with other weights than those it was written for, is not resumed; steps that were released
later count as spent, wherever they were written down.  The file of a secure run holds no state of
a random generator.  Weights, optimizer and schedule are in the files of the Trainer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from psac.checkpoint.atomic import write_atomically
from psac.checkpoint.journal import spent_beside
from psac.checkpoint.releases import spent_on_record
from psac.checkpoint.saving import CheckpointError, charge_lost_steps, write_down_releases
from psac.private import Private

NAME = "privacy.json"
PART = 2**22  # bytes
ENDINGS = (".safetensors", "model.bin")  # of weights and adapters, not of optimizers


def save(folder: str | Path, private: Private) -> None:
    """Writes the run's state; from here on its releases are written down in the folder."""
    path = Path(folder) / NAME
    content = {"private": private.state_dict(), "weights": digests(path.parent)}
    write_atomically(path, json.dumps(content, indent=1).encode())
    write_down_releases(path, private)


def load(folder: str | Path, private: Private) -> None:
    """Continues the run that was saved there.

    Raises:
        CheckpointError: There is none, its file is damaged, or the weights are of another step.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing: the folder is not a checkpoint of a private run, or its writing "
            "was interrupted. Resume from another checkpoint. Weights that were trained on the "
            "same records without a ledger cannot be continued privately."
        )
    try:
        content = json.loads(path.read_text())
        state, weights = content["private"], content["weights"]
        run = state["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Restore it from a copy.") from error
    if weights != digests(path.parent):
        raise CheckpointError(
            f"the weights in {path.parent} are not those that {NAME} was written for, so its "
            "ledger may be behind them. Restore the whole folder from a copy."
        )
    journal, record = spent_beside(path, run), spent_on_record(run)
    private.load_state_dict(state)
    unknown = charge_lost_steps(path, private, journal, record)
    write_down_releases(path, private, unknown)


@contextlib.contextmanager
def configurations_kept(model: nn.Module) -> Iterator[None]:
    """What transformers writes to configurations when it saves is taken back.

    The loss function reads them: psac would see that something has changed between two steps.
    """
    found = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(vars(c), dict(vars(c))) for c in found.values() if hasattr(c, "__dict__")]
    try:
        yield
    finally:
        for store, kept in before:
            store.clear()
            store.update(kept)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files with weights, by name."""
    found = {}
    for path in sorted(p for ending in ENDINGS for p in folder.rglob(f"*{ending}")):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(PART):
                digest.update(part)
        found[str(path.relative_to(folder))] = digest.hexdigest()
    return found
