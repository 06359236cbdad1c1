"""A private run in one file, with all that is needed to resume it.

    psac.save_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)
    ...
    psac.load_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)

The file holds model, optimizer, ledger, sampler and any other object with a `state_dict` that is
passed: tensors as safetensors, the rest as JSON in its header.  Loading executes nothing.
Guarantees:

- Complete or absent.  It is written beside, synced and renamed: a kill at any moment leaves the old
  file or the new one.  A truncated, damaged or edited file is refused, by a SHA-256 of its content:
  against accidents, not against attackers.
- The ledger is never behind.  Weights and ledger are in the same file.  Later steps are written
  down before their gradients are released, in `<path>.journal` and in the user's state directory
  (`psac.checkpoint.releases`).  They count as spent when the run is resumed: what they released may
  have been seen, and the resumed run draws other batches.  This holds for every checkpoint of a run
  and for a backup of the whole folder: whichever is loaded, the ledger counts all that the run has
  released since on this machine.
- What is unknown is announced.  Loading a secure run without its journal or its record, or without
  a place for a record, gives one `PrivacyWarning`.
- The file of a secure run holds no state of any random generator, whether of noise and sampling or
  of torch, CUDA, numpy or Python.  How far dropout has advanced torch's between two checkpoints
  would tell how many records were drawn.  Loading leaves the generators as they are.
- The file of a seeded run, which is not private, holds them all.  A resumed run repeats the lost
  steps bit for bit, which releases nothing new: it equals an uninterrupted run, ledger included.

Of several workers worker 0 alone reads and writes files, and all of them call the functions here.

A checkpoint of a secure run is as private as the model in it, with two exceptions.  In the middle
of an epoch of `BallsInBins` it says which records the next steps take: keep it with the data.  And
`extra` and the states of `others` are written as they are: a loss, a batch size, a running time or
the state of a generator that you put there is in the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from psac.checkpoint.atomic import write_atomically
from psac.checkpoint.journal import journal_of, spent_beside
from psac.checkpoint.releases import Releases, spent_on_record
from psac.distributed.sharded import split_state, whole_state
from psac.errors import warn
from psac.private import Private, facts

FORMAT, VERSION = "psac checkpoint", 1


class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class CheckpointError(ValueError):
    """The file is not a complete checkpoint of this run; nothing was changed."""


def save_checkpoint(
    path: str | os.PathLike[str],
    private: Private,
    *,
    extra: Mapping[str, Any] | None = None,
    **others: Stateful,
) -> None:
    """Saves the run in one file, completely or not at all.

    Save once before the first step as well: from then on, each step is written to a journal beside
    the file before it is released.

    Args:
        path: The file. An older checkpoint in its place is replaced.
        private: The run.
        extra: JSON that `load_checkpoint` returns. In a file that others may see, it must say
            nothing about the records.
        **others: Further objects with a `state_dict`, such as a scheduler.

    Raises:
        TypeError: `extra` or the state of another object cannot be saved without pickle.
        OSError: The file cannot be written.

    Examples:
        ```python
        psac.save_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)
        ```
    """
    workers = private.workers
    with workers.together("psac.save_checkpoint"):
        workers.meet("psac.save_checkpoint", lambda: facts.of_run(private))
        model = whole_state(private.model.state_dict())
        optimizer = whole_state(private.optimizer.state_dict())
        if workers.rank == 0:
            write(Path(path), private, (model, optimizer), extra, others)
        workers.meet("a checkpoint")  # is there for all


def write(
    path: Path,
    private: Private,
    states: tuple[Any, Any],
    extra: Mapping[str, Any] | None,
    others: Mapping[str, Stateful],
) -> None:
    """The file and its journal."""
    content: dict[str, Any] = {
        "private": private.state_dict(),
        "model": states[0],
        "optimizer": states[1],
        "optimizer_type": type(private.optimizer).__name__,
        "others": {name: other.state_dict() for name, other in others.items()},
        "extra": dict(extra or {}),
    }
    if not private.ledger.secure:
        content["random"] = random_state()
    tensors: dict[str, Tensor] = {}
    text = json.dumps(packed(content, "", tensors))
    write_atomically(path, serialized(tensors, text))
    write_down_releases(path, private)


def load_checkpoint(
    path: str | os.PathLike[str], private: Private, **others: Stateful
) -> dict[str, Any]:
    """Continues a saved run, with its ledger.

    Steps that were released after the checkpoint was saved count as spent, unless a seed repeats
    them. For a seeded run, the generators of torch, numpy and Python are restored as well.

    Args:
        path: The file.
        private: A new run, made with the same arguments as the saved one, before its first step.
        **others: The same names as for `save_checkpoint`.

    Returns:
        What was saved as `extra`.

    Raises:
        CheckpointError: The file is damaged, or of another model or optimizer.
        PrivacyError: `private` has already released steps.
        ValueError: `private` was made with other settings.

    Examples:
        ```python
        private = psac.make_private(model, optimizer, dataset, **settings)
        psac.load_checkpoint("run/checkpoint.safetensors", private, scheduler=scheduler)
        ```
    """
    with private.workers.together("psac.load_checkpoint"):
        return load(Path(path), private, others)


def load(path: Path, private: Private, others: Mapping[str, Stateful]) -> dict[str, Any]:
    """All workers have what worker 0 reads."""
    content, journal, record = private.workers.of_first(lambda: on_disk(path))
    if content["others"].keys() != others.keys():
        raise CheckpointError(
            f"{path} was saved with {sorted(content['others'])} and is loaded with "
            f"{sorted(others)}: pass the same."
        )
    refuse_other_model(path, content["model"], private.model.state_dict())
    refuse_other_optimizer(path, content, private.optimizer)
    private.load_state_dict(content["private"])
    load_states(private, content["model"], content["optimizer"])
    for name, other in others.items():
        other.load_state_dict(content["others"][name])
    if "random" in content:
        restore_random_state(content["random"])
    unknown = charge_lost_steps(path, private, journal, record)
    if private.workers.rank == 0:
        write_down_releases(path, private, unknown)
    private.workers.meet("psac.load_checkpoint", lambda: facts.of_run(private))
    return content["extra"]


def load_states(private: Private, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Into model and optimizer, in shards where the model has them."""
    private.model.load_state_dict(split_state(model, private.model.state_dict()))
    parameters = [p for group in private.optimizer.param_groups for p in group["params"]]
    for number, state in optimizer["state"].items():
        like = parameters[number]
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == like.shape:
                state[key] = split_state(value, like)
    private.optimizer.load_state_dict(optimizer)


def on_disk(path: Path) -> tuple[dict[str, Any], int | None, int | None]:
    """The content of a checkpoint; the steps that its journal and this machine's record count."""
    content = read(path)
    run = content["private"]["id"]
    return content, spent_beside(path, run), spent_on_record(run)


def charge_lost_steps(
    path: Path, private: Private, journal: int | None, record: int | None
) -> str | None:
    """Steps that ran after the save count as spent; returns what is unknown about them."""
    private.charge_lost(max(journal or 0, record or 0), path)
    missing = []
    if journal is None:
        missing.append(
            f"there is no journal of this run beside {path} (it is {journal_of(path).name}, and "
            "belongs to the checkpoint wherever that is moved)"
        )
    if record is None:
        missing.append(f"this machine has no record of run {private.account.id}")
    if not missing or not private.ledger.secure:  # a seeded run repeats them, which costs nothing
        return None
    return (
        f"{', and '.join(missing)}: if the run went on elsewhere after this copy was made, count "
        "those steps with private.charge(steps)."
    )


def write_down_releases(path: Path, private: Private, unknown: str | None = None) -> None:
    """Every release from here on is written down; one warning says what is unknown."""
    releases = private.account.on_release
    if not isinstance(releases, Releases) or releases.run != private.account.id:
        releases = private.account.on_release = Releases(
            private.account.id, secure=private.ledger.secure
        )
    fault = releases.keep_beside(path, private.ledger.steps)
    if unknown or fault:
        private.ledger.note_warning(
            "Steps may be missing: not every place where releases are written down was there."
        )
        text = " ".join(filter(None, [unknown, fault]))
        warn(text)


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
            f"{path} is not a complete checkpoint ({error}). Restore it from a copy, or start a "
            "new run in another folder; deleting it does not give back what was spent."
        ) from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by psac.save_checkpoint.")
    if header.get("version") != str(VERSION):
        raise CheckpointError(f"{path} has version {header['version']}; this psac reads {VERSION}.")
    if header.get("sha256") != digest(tensors, header["content"]):
        raise CheckpointError(
            f"{path} was changed after it was written: its SHA-256 does not match. Restore it from "
            "a copy; an edited ledger proves nothing."
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
    here = {name: list(t.shape) for name, t in own.items() if isinstance(t, Tensor)}
    there = {name: list(t.shape) for name, t in saved.items()}
    if here != there:
        wrong = sorted(k for k in here.keys() | there.keys() if here.get(k) != there.get(k))
        raise CheckpointError(
            f"{path} holds another model: {wrong[:5]} differ. Build the same model."
        )


def refuse_other_optimizer(
    path: Path, content: Mapping[str, Any], own: torch.optim.Optimizer
) -> None:
    """Before anything is changed: torch would accept the state, and fail in the next step."""
    kind = type(own).__name__
    saved = content["optimizer_type"]
    if saved != kind:
        raise CheckpointError(
            f"{path} was saved with the optimizer {saved} and is loaded into {kind}: use the same "
            "optimizer."
        )


# ---- Trees of states as JSON and tensors


def packed(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON; its tensors go to `tensors` under their names."""
    if isinstance(tree, Tensor):
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(tree, Mapping):
        # As pairs: the keys of an optimizer's state are numbers.
        return {"map": [[k, packed(v, f"{name}/{k}", tensors)] for k, v in tree.items()]}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [packed(v, f"{name}/{k}", tensors) for k, v in enumerate(tree)]}
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {"float": str(tree)}
    raise TypeError(
        f"{name or 'the state'} is a {type(tree).__name__}, which cannot be saved without pickle. "
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


# ---- Generators of models and data sets; noise and sampling have their own


def random_state() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "python": random.getstate(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
