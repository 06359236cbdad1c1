"""The engine's rules, held against plain autograd, once for every new computation.

vmap isolates records by construction; that the norms and sums which psac takes from the vmapped
graph are right is psac's own claim, and this is its test.  A few records are computed alone, with
the same random numbers, and compared: norms one by one, and a weighted sum of them.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psac.gradients import trees
from psac.gradients.groups import TOGETHER
from psac.gradients.isolation.generators import same_generators, seed_all
from psac.gradients.isolation.state import State
from psac.gradients.precision import HALF
from psac.gradients.trees import LossFunction, own_copy
from psac.gradients.vectorized.evaluate import (
    Vectorized,
    gradient_of,
    one_number,
)
from psac.gradients.vectorized.libraries import without_checkpoints

COMPARED = 3  # records


def tolerance(vectorized: Vectorized) -> float:
    """How far kernels for one record and for many may be apart, relative to the norm."""
    is_half = vectorized.is_half or any(p.dtype in HALF for p in vectorized.parameters.values())
    return 5e-2 if is_half else 5e-3


def distance(vectorized: Vectorized, loss: LossFunction, batch: Any) -> float:
    """The largest relative error on a few records; it leaves model and generators as they were."""
    n = trees.num_records(batch)
    chosen = sorted({k * (n - 1) // max(1, COMPARED - 1) for k in range(COMPARED)})
    seed = secrets.randbits(31)
    with same_state(vectorized, loss) as before, same_generators():
        seed_all(seed)
        together = vectorized.evaluate(loss, batch, randomness="same")
        (squares,) = together.measured.norms_squared(TOGETHER)
        if squares is None:
            squares = torch.zeros(n)
        norms = squares.double().sqrt()
        weights, expected, worst = torch.zeros_like(squares), {}, 0.0
        floor = 1e-3 * float(norms.nan_to_num(0, 0, 0).max())
        for k in chosen:
            before.restore()
            seed_all(seed)
            grads = plain_gradient(vectorized, loss, trees.record(batch, k))
            alone = sum(float(exact(g).abs().square().sum()) for g in grads.values()) ** 0.5
            if not (np.isfinite(alone) and torch.isfinite(norms[k])):
                continue
            worst = max(worst, abs(alone - float(norms[k])) / max(alone, floor, 1e-12))
            weights[k] = (k + 1) / max(alone, floor, 1e-12)
            for name, grad in grads.items():
                added = float(weights[k]) * exact(grad)
                expected[name] = expected[name] + added if name in expected else added
        together.measured.zero_samples(~torch.isfinite(norms))
        sums = together.measured.weighted_sums([weights], TOGETHER)
    return max(worst, direction_error(sums, expected))


def exact(tensor: Tensor) -> Tensor:
    """In double precision, complex or not."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def direction_error(sums: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The length of the difference, over the length of what is expected."""
    difference = total = 0.0
    for name in sums.keys() | expected.keys():
        ours = exact(sums[name]) if name in sums else torch.zeros(())
        theirs = expected.get(name, torch.zeros(()))
        difference += float((ours - theirs).abs().square().sum())
        total += float(theirs.abs().square().sum())
    return (difference / total) ** 0.5 if total else float(difference > 0)


def plain_gradient(vectorized: Vectorized, loss: LossFunction, one: Any) -> dict[str, Tensor]:
    with torch.enable_grad(), without_checkpoints():
        one = trees.map_tensors(one, own_copy)
        value = one_number(trees.call(loss, vectorized.model, one))
    return gradient_of(value, vectorized.parameters)


@contextlib.contextmanager
def same_state(vectorized: Vectorized, loss: LossFunction) -> Iterator[State]:
    """What the function changes in here is changed back."""
    before = State({"model": vectorized.model, "loss": loss})
    try:
        yield before
    finally:
        before.restore()
