"""A private run on disk: everything that is needed to go on, in one file.

    psac.save_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)
    ...
    psac.load_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)

The file holds model, optimizer, ledger, sampler, the states of torch's, numpy's and Python's random
generators, and whatever else with a `state_dict` is passed: tensors as safetensors, all else as
JSON in its header, nothing that is executed on loading.  Guarantees:

- Whole or not at all.  It is written beside, synced and renamed: a kill at any moment leaves the
  old file or the new one.  A truncated, damaged or edited file is refused (SHA-256 over all of it:
  against accidents, not against those who can compute one).
- The ledger is never behind.  Weights and ledger are in the same file.  Steps after it was saved
  are written to `<path>.journal` before their gradients are released (see journal.py), and counted
  as spent when the run is resumed: what they released may have been seen, and they are not repeated
  but drawn anew.  So it is for every checkpoint of a run, the last one, the best one, those of all
  epochs: whichever is loaded, the ledger knows all that the run has released since.
- With a seed, a resumed run repeats the lost steps bit by bit, which releases nothing new: it ends
  equal to a run that was never interrupted, with the same ledger.
- The state of a secure generator is not in it.

A checkpoint is as private as the model in it, except for the sampler of `BallsInBins`: keep it with
the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from psac.accounting import PrivacyWarning
from psac.atomic import write_atomically
from psac.journal import Journal, journal_of, spent_beside
from psac.private import Private

FORMAT, VERSION = "psac checkpoint", 1


class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class CheckpointError(ValueError):
    """The file is not a whole checkpoint of this run; nothing was changed."""


def save_checkpoint(
    path: str | os.PathLike[str],
    private: Private,
    *,
    extra: Mapping[str, Any] | None = None,
    **others: Stateful,
) -> None:
    """Saves the run, replacing what is there; `others` are a scheduler and the like.

    `extra` is JSON that `load_checkpoint` gives back.  Save once before the first step, too: from
    then on every step is in the journal.
    """
    path = Path(path)
    content: dict[str, Any] = {
        "private": private.state_dict(),
        "model": private.model.state_dict(),
        "optimizer": private.optimizer.state_dict(),
        "optimizer_type": type(private.optimizer).__name__,
        "others": {name: other.state_dict() for name, other in others.items()},
        "random": random_state(),
        "extra": dict(extra or {}),
    }
    tensors: dict[str, Tensor] = {}
    text = json.dumps(packed(content, "", tensors))
    write_atomically(path, serialized(tensors, text))
    journal = private.on_release
    if not isinstance(journal, Journal) or journal.run != private.id:
        journal = private.on_release = Journal(private.id)
    journal.keep_beside(path, private.ledger.steps)


def load_checkpoint(
    path: str | os.PathLike[str], private: Private, **others: Stateful
) -> dict[str, Any]:
    """Puts a new run, made as the saved one was, where that one was saved; returns `extra`."""
    path = Path(path)
    content = read(path)
    if content["others"].keys() != others.keys():
        raise CheckpointError(
            f"{path} was saved with {sorted(content['others'])} and is loaded with "
            f"{sorted(others)}: pass the same."
        )
    refuse_other_model(path, content["model"], private.model.state_dict())
    refuse_other_optimizer(path, content, private.optimizer)
    spent = spent_beside(path, content["private"].get("id"))
    private.load_state_dict(content["private"])
    private.model.load_state_dict(content["model"])
    private.optimizer.load_state_dict(content["optimizer"])
    for name, other in others.items():
        other.load_state_dict(content["others"][name])
    restore_random_state(content["random"])
    charge_lost_steps(path, private, spent)
    private.on_release = journal = Journal(private.id)
    journal.keep_beside(path, private.ledger.steps)
    return content["extra"]


def charge_lost_steps(path: Path, private: Private, spent: int | None) -> None:
    """Steps that ran after the save and are not repeated bit by bit count as spent."""
    if spent is None and private.ledger.secure:
        warnings.warn(
            f"there is no journal of this run beside {path} (it is {journal_of(path).name}, and "
            "belongs to the checkpoint wherever that is moved). If the run went on after it was "
            "saved, count those steps: private.charge(steps).",
            PrivacyWarning,
            stacklevel=3,
        )
    private.charge_lost(spent or 0, path)


# ---- One file


def serialized(tensors: dict[str, Tensor], text: str) -> bytes:
    from safetensors.torch import save

    header = {"format": FORMAT, "version": str(VERSION), "content": text}
    return save(tensors, header | {"sha256": digest(tensors, text)})


def read(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}.")
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole checkpoint ({error}). Restore it from a copy, or begin a new "
            "run in another folder; to delete it does not give back what was spent."
        ) from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by psac.save_checkpoint.")
    if header.get("version") != str(VERSION):
        raise CheckpointError(f"{path} has version {header['version']}; this psac reads {VERSION}.")
    if header.get("sha256") != digest(tensors, header["content"]):
        raise CheckpointError(
            f"{path} was changed after it was written: its SHA-256 does not fit. Go back to a "
            "copy; a ledger that was edited vouches for nothing."
        )
    return unpacked(json.loads(header["content"]), tensors)


def digest(tensors: dict[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def refuse_other_model(path: Path, saved: Mapping[str, Tensor], own: Mapping[str, Any]) -> None:
    """Before anything is changed."""
    shapes = {name: list(t.shape) for name, t in own.items() if isinstance(t, Tensor)}
    found = {name: list(t.shape) for name, t in saved.items() if isinstance(t, Tensor)}
    if shapes != found:
        wrong = sorted(k for k in shapes.keys() | found.keys() if shapes.get(k) != found.get(k))
        raise CheckpointError(
            f"{path} holds another model: {wrong[:5]} differ. Build the model as it was built then."
        )


def refuse_other_optimizer(
    path: Path, content: Mapping[str, Any], own: torch.optim.Optimizer
) -> None:
    """Before anything is changed: torch takes the state of any, and fails in the next step."""
    kind = type(own).__name__
    saved = content.get("optimizer_type", kind)  # older files do not say
    if saved != kind:
        raise CheckpointError(
            f"{path} was saved with the optimizer {saved} and is loaded into {kind}: make the "
            "optimizer as it was made then."
        )


# ---- Trees of states as JSON and tensors


def packed(tree: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON; its tensors go to `tensors` under their places."""
    if isinstance(tree, Tensor):
        tensors[place] = tree.detach().cpu().contiguous().clone()
        return {"tensor": place}
    if isinstance(tree, Mapping):
        # As pairs: the keys of an optimizer's state are numbers.
        return {"map": [[k, packed(v, f"{place}/{k}", tensors)] for k, v in tree.items()]}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [packed(v, f"{place}/{k}", tensors) for k, v in enumerate(tree)]}
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {"float": str(tree)}
    raise TypeError(
        f"{place or 'the state'} is a {type(tree).__name__}, which cannot be saved without pickle. "
        "Use tensors, numbers, strings, lists, tuples and dicts."
    )


def unpacked(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "map":
        return {key: unpacked(item, tensors) for key, item in value}
    if kind == "float":
        return float(value)
    items = [unpacked(item, tensors) for item in value]
    return items if kind == "list" else tuple(items)


# ---- The random generators that models and data sets use; noise and sampling have their own


def random_state() -> dict[str, Any]:
    name, keys, *place = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, np.asarray(keys).tolist(), *place),
        "python": random.getstate(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
