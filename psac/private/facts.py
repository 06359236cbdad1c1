"""What all workers of a run must have alike, by name: compared before anything is released.

Guarantee: workers that pass with these facts have one ledger, one plan, one draw and one stream of
noise, equal parameters, and the same records under the same numbers.  The last matters for privacy:
a record with two numbers could enter a step twice.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from psac.distributed.generators import SharedGenerator
from psac.distributed.sharded import is_split
from psac.gradients.isolation.checksums import checksums
from psac.gradients.isolation.generators import same_generators
from psac.noise import loops
from psac.noise.generators import SeededGenerator
from psac.private import resume

if TYPE_CHECKING:
    from psac.private.run import Private

READ = 8  # records, twice


def of_settings(private: Private) -> dict[str, Any]:
    """At the beginning."""
    is_stable, records = records_of(private.loader.dataset)
    return {
        "settings": resume.identity(private),
        "planned steps": private.plan.steps,
        "batches": private.loader.limits,
        "parameters": kinds(private.parameters.items()),
        "frozen parameters and buffers": kinds(
            (name, tensor)
            for name, tensor in (*private.model.named_parameters(), *private.model.named_buffers())
            if name not in private.parameters
        ),
        "the model's mode": private.model.training,
        "the optimizer": type(private.optimizer).__name__,
        "settings of the optimizer": settings_of(private.optimizer),
        "torch": torch.__version__,
        "the processor": (platform.machine(), loops.compiled() is not None),
        "the order of the records": order_of(private.loader.dataset),
        "secret: the records (every worker needs the whole data set, in one order)": records
        if not private.workers.most(not is_stable)
        else None,
    }


def of_run(private: Private) -> dict[str, Any]:
    """At each pass, and where the run is saved or loaded."""
    state = [v for s in private.optimizer.state.values() for v in tensors_in(s)]
    return {
        **of_step(private),
        "planned steps": private.plan.steps,
        "the parameters": checksums(
            tensor
            for tensor in (*private.model.parameters(), *private.model.buffers())
            if not is_split(tensor)
        ),
        "the state of the optimizer": checksums(state),
    }


def of_step(private: Private) -> dict[str, Any]:
    """Before each release."""
    return {
        "the step": private.steps_taken,
        "the ledger": private.ledger.entries,
        "secret: the draw": private.loader.fingerprint,
        "secret: the stream of noise": position(private.noise),
        "settings of the optimizer": settings_of(private.optimizer),
        "the scale": private.scale,
    }


def position(generator: Any) -> Any:
    """Where a stream is; of one that is this process's alone, nothing."""
    if isinstance(generator, SharedGenerator):
        return generator.position()
    return generator.state_dict() if isinstance(generator, SeededGenerator) else None


def kinds(tensors: Any) -> list[Any]:
    return [(name, list(t.shape), t.dtype) for name, t in tensors if isinstance(t, Tensor)]


def settings_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Learning rates and the like, of each group."""
    return [
        [(k, float(v) if isinstance(v, Tensor) else v) for k, v in group.items() if k != "params"]
        for group in optimizer.param_groups
    ]


def tensors_in(state: Any) -> Iterator[Tensor]:
    for value in state.values() if isinstance(state, Mapping) else ():
        if isinstance(value, Tensor) and not is_split(value):
            yield value


# The records


def order_of(data: Any) -> list[int]:
    """A number for the choice of each `Subset`, however nested."""
    choices = []
    while isinstance(data, Subset):
        choices += checksums([torch.tensor([int(k) for k in data.indices])])
        data = data.dataset
    return choices


def records_of(data: Any) -> tuple[bool, list[Any]]:
    """Whether some records are the same when they are read twice, and what is in them."""
    count = len(data)
    numbers = sorted({k * (count - 1) // (READ - 1) for k in range(READ)})
    with same_generators():
        first = [content(data[k]) for k in numbers]
    with same_generators():
        again = [content(data[k]) for k in numbers]
    return first == again, first


def content(value: Any) -> Any:
    """What a record says, as numbers: equal for equal records on two workers."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return content(value.tolist())
    if isinstance(value, (Tensor, np.ndarray)):
        kind = (type(value).__name__, tuple(value.shape), str(value.dtype))
        number = checksums([value.cpu()])[0] if isinstance(value, Tensor) else value.tobytes()
        return (*kind, number)
    if isinstance(value, Mapping):
        return [(str(key), content(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [content(part) for part in value]
    if isinstance(value, (str, bytes, int, float, complex, bool, np.generic, type(None))):
        return repr(value)
    to_bytes = getattr(value, "tobytes", None)  # an image
    return to_bytes() if callable(to_bytes) else type(value).__name__
