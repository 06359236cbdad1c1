"""A loss function that sees the whole batch, and returns one loss for each record.

For functions that must see the batch to be fast: packed sequences, routing by index, graphs laid
end to end.  The function runs once, as it is (rows/); losses are backpropagated as they are, and
once more with a code for each record (rows/owners.py).

Guarantee, on every call: a gradient of one record's loss that reaches a row or an input of another
record raises `NotIsolated`, and one that reaches a parameter unseen raises `NotVectorized`.  What
has no gradient (counts, positions, comparisons) is left to the tests of isolation.py.

A batch in which a gradient is not finite is computed one record at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from psac.gradients import trees
from psac.gradients.alone import OneByOne
from psac.gradients.batched.owners import Codes, NotFinite, Owners
from psac.gradients.batched.recorder import RowRecorder, Tap
from psac.gradients.contributions.cluster import clusters_of
from psac.gradients.errors import NotIsolated, NotVectorized
from psac.gradients.isolation.outside import Outside
from psac.gradients.isolation.watch import Watch
from psac.gradients.measured import Measured
from psac.gradients.precision import HALF, without_autocast
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.evaluate import Evaluation
from psac.gradients.vectorized.libraries import refuse_seeding, without_branches
from psac.gradients.vectorized.recorder import Uses


class Batched:
    """Evaluates functions of the whole batch; the interface is that of `Vectorized`."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], outside: Outside
    ) -> None:
        self.model, self.parameters, self.outside = model, parameters, outside
        self.names = {id(p): name for name, p in parameters.items()}
        self.one_by_one = OneByOne(model, parameters, outside)
        self.activation_bytes = 0
        self.is_half = False  # whether the last call computed in half precision
        self.layout = 0  # a number for its shapes
        self.watch = Watch(outside)

    def evaluate(self, loss: LossFunction, batch: Any, randomness: str = "different") -> Evaluation:
        """`randomness` means nothing here: the function draws what it draws."""
        trees.refuse_other_arguments(loss, self.model, batch)
        try:
            return self.together(loss, batch)
        except NotFinite:
            return self.one_by_one.evaluate(loss, batch)

    def together(self, loss: LossFunction, batch: Any, takes_constants: bool = True) -> Evaluation:
        """Raises `NotFinite` where it cannot be told whose a gradient is."""
        rec = self._recorder(batch, takes_constants)
        try:
            losses = self._forward(rec, loss, batch)
            measured = self._backward(rec, losses)
        except (NotIsolated, NotVectorized):
            if not rec.took_constants:
                raise
            return self.together(loss, batch, takes_constants=False)  # they may be constants
        self.activation_bytes = max(self.activation_bytes, measured.activation_bytes)
        rules = measured.rules(rec.rules)
        kinds = {(*rules[name], method) for name, method in measured.methods.items()}
        signature = *rec.operations, *kinds
        return Evaluation(losses.detach().clone(), measured, "batched", rules, signature)

    def losses(self, loss: LossFunction, batch: Any) -> Tensor:
        """Without gradients."""
        return self._forward(self._recorder(batch), loss, batch).detach()

    def _recorder(self, batch: Any, takes_constants: bool = False) -> RowRecorder:
        self.watch = Watch(self.outside, self.outside.private(batch))
        return RowRecorder(trees.num_records(batch), self.watch, self.parameters, takes_constants)

    def _forward(self, rec: RowRecorder, loss: LossFunction, batch: Any) -> Tensor:
        inputs = [self._input(rec, leaf) for leaf in trees.leaves(batch)]
        seed = torch.initial_seed()
        with torch.enable_grad(), without_branches(rec.made_of_records), rec:
            result = trees.call(loss, self.model, trees.rebuilt(batch, inputs))
        self.watch.refuse_caught()
        if torch.initial_seed() != seed:
            refuse_seeding()
        self.layout, self.is_half = rec.layout, not rec.kinds.isdisjoint(HALF)
        return rec.of_records(one_for_each(result, rec.num_records), "the loss")

    def _input(self, rec: RowRecorder, leaf: Tensor) -> Tensor:
        """A copy, whose gradients must come from the record's own loss."""
        value = leaf.detach().clone()
        if value.is_floating_point():
            with torch.enable_grad():
                value = rec.hook(value, Tap("the inputs", 1, its_own))
        rec.made_of_records(value)
        return value

    @without_autocast
    def _backward(self, rec: RowRecorder, losses: Tensor) -> Measured:
        if not losses.requires_grad:
            raise NotFinite  # of masked records: one at a time they are known to be
        clusters = clusters_of(rec.sources, self.names)
        measured = Measured(clusters, rec.uses, rec.num_records, self.activation_bytes)
        rec.codes = codes = Codes(rec.num_records, torch.float16 in rec.kinds, losses.device)
        rec.arrive = measured.arrive
        for stage in range(codes.passes + 1):
            rec.stage = stage
            cotangent = codes.cotangent(stage - 1) if stage else torch.ones_like(losses)
            _, *reached = torch.autograd.grad(
                [losses],
                [rec.anchor, *self.parameters.values()],
                [cotangent.to(losses.dtype)],
                allow_unused=True,
                retain_graph=stage < codes.passes,
            )
            # torch says that every gradient is there; allow_unused=True leaves some out
            unseen = [n for n, g in zip(self.parameters, reached, strict=True) if g is not None]  # pyright: ignore[reportUnnecessaryComparison]
            if unseen:
                raise NotVectorized(
                    f"gradients reach {', '.join(unseen[:5])} in a way psac cannot see"
                )
        measured.finish()
        return measured


def its_own(owners: Owners, grad: Tensor) -> Uses:
    """Of the gradient of an input: nothing, if it comes from each record's own loss."""
    if not owners.is_each_its_own():
        raise NotIsolated(
            "the loss of a record depends on the input of another. With batched=True, entry k of "
            "the result must be the loss of record k, computed from it alone."
        )
    return ()


def one_for_each(result: Any, n: int) -> Tensor:
    if not isinstance(result, Tensor):
        raise TypeError(
            f"the loss function returned a {type(result).__name__}. With batched=True it must "
            "return one loss for each record: a tensor of shape [records]."
        )
    if result.shape != (n,):
        raise ValueError(
            f"the loss function returned a tensor of shape {list(result.shape)} for {n} records. "
            f"With batched=True it must return one loss for each record: shape [{n}]. Use "
            "reduction='none', and sum or average over everything but records."
        )
    if not result.is_floating_point():
        raise TypeError(
            f"the loss function returned a tensor of {result.dtype}; losses must be real numbers "
            "of a floating-point type."
        )
    return result
