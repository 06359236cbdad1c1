"""Whether a record's loss depends on padding, in batches that are padded to their longest record.

A record's padded length follows from the others of its batch.  That is harmless if the loss masks
the padding, and a leak if it does not (`x.mean(1)`).  So some batches come with a `Probe`: one of
their records, collated alone, whose loss must be the same.  With `lengths=` of `make_private` no
probe is needed: a record's length follows from the record.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from psac.errors import PrivacyError
from psac.gradients import trees
from psac.gradients.isolation.generators import same_generators, seed_all
from psac.gradients.isolation.state import State
from psac.loading.collation.generators import generators_of, restore, saved
from psac.loading.collation.isolated import IsolatedCollate

FIRST_PROBES, BATCHES_PER_PROBE = 3, 16
TOLERANCE = 1e-3  # relative, for kernels of another length


class Probe(NamedTuple):
    number: int  # of the record in its batch
    alone: Any  # the record as a batch of its own


class Collated(NamedTuple):
    batch: Any
    probe: Probe | None


class ProbingCollate:
    """`IsolatedCollate`, whose batches come with a probe now and then, if it pads."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.isolated = IsolatedCollate(collate_fn)
        self._certain = FIRST_PROBES

    def __call__(self, samples: list[Any]) -> Collated:
        alone = [samples[secrets.randbelow(len(samples))]] if len(samples) > 1 else []
        number = next((k for k, s in enumerate(samples) if alone and s is alone[0]), 0)
        batch = self.isolated(samples)
        if not (alone and self.isolated.pads and self._due()):
            return Collated(batch, None)
        generators = generators_of(self.isolated.collate_fn)
        before = saved(generators)
        try:
            return Collated(batch, Probe(number, self.isolated.collate_fn(alone)))
        finally:
            restore(generators, before)

    def _due(self) -> bool:
        if self._certain > 0:
            self._certain -= 1
            return True
        return secrets.randbelow(BATCHES_PER_PROBE) == 0


def refuse_padding_that_counts(
    model: nn.Module, loss: Callable[..., Any], batch: Any, probe: Probe
) -> None:
    """Raises if the padding behind the record changes its loss."""
    shapes = [[leaf.shape[1:] for leaf in trees.leaves(tree)] for tree in (batch, probe.alone)]
    if shapes[0] == shapes[1]:
        return  # it is the longest itself
    device = trees.leaves(batch)[0].device
    alone = trees.map_tensors(probe.alone, lambda leaf: leaf.to(device))
    modes = {module: module.training for module in model.modules()}
    before = State({"model": model, "loss": loss})  # a first call may settle something
    try:
        model.eval()  # dropout would draw other numbers for another length
        with same_generators(), torch.no_grad():
            values = []
            for tree in (trees.record(batch, probe.number), alone):
                seed_all(0)
                tree = trees.map_tensors(tree, torch.clone)
                values.append(float(trees.call(loss, model, tree)))
    finally:
        for module, mode in modes.items():
            module.training = mode
        before.restore()
    padded, unpadded = values
    if abs(padded - unpadded) > TOLERANCE * max(abs(unpadded), 1e-3):
        raise PrivacyError(
            f"a record has the loss {padded:.6g} in its batch and {unpadded:.6g} without padding, "
            "so one long record changes the others. Mask the padding, with (e * mask).sum(1) / "
            "mask.sum(1) instead of e.mean(1), or pad to public lengths: make_private(..., "
            "lengths=(32, 64, 128))."
        )
