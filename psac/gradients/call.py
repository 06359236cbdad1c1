"""One forward of a private model, until its backward.

The outputs are handed on through a `Boundary`, cut off from the graph inside.  When their gradients
come back, the call finds out which rows are whose (a plan that was proved, or the loop over
samples) and runs the inner backward, as far as it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import samples as trees
from .capture import Captured, Rows, capture, capture_single
from .errors import CannotAssign, OutsideTheTape, PrivacyError, announce
from .graph import Graph, trace
from .groups import TOGETHER
from .loop import loop
from .plan import Plan
from .planner import Forward, find_plan
from .proof import LARGEST, first_that_fits, largest, plan_or_none, prove, prove_isolation
from .samples import Batch
from .sandbox import untouched
from .training import silenced

if TYPE_CHECKING:
    from .engine import Engine


class Call:
    """One forward of the model, until its backward."""

    def __init__(self, engine: Engine, args: tuple, kwargs: dict, roots: list[Tensor]):
        self.engine, self.args, self.kwargs, self.roots = engine, args, kwargs, roots
        self.graph: Graph = trace(roots, engine.names)
        # What a plan is made for; see `_shapes` for the rest.
        self.key = (self.graph.signature, engine.modes)
        self.batch = engine.batch  # the number of the batch that it belongs to
        self.origins = {id(inner): outer for inner, outer in getattr(engine, "_origins", [])}
        engine._origins = []
        self.autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ]

    def foreign(self) -> list[Tensor]:
        """Tensors outside the model that the forward depends on and that want a gradient.

        They get their ordinary gradient, which is not private.
        """
        leaves = [self.graph.nodes[k].variable for k in self.graph.foreign]
        return [self.origins.get(id(leaf), leaf) for leaf in leaves]

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        if not self.roots:
            raise OutsideTheTape(
                "a second backward through the same forward: its samples would count twice. "
                "Run the forward again."
            )
        n = self.num_samples()
        if n == 0:
            self.roots = []
            return [torch.zeros_like(tensor) for tensor in self.foreign()]
        with torch.no_grad():
            captured, foreign = self._captured(n, grads)
        result = [foreign.get(k) for k in self.graph.foreign]
        self.roots, self.args, self.kwargs, self.leaves = [], (), {}, []
        del self.graph  # the user may hold the loss for long
        self.engine._arrived(self, captured)
        return result

    def num_samples(self) -> int:
        dim, expected = self.engine.batch_dim, self.engine.expected
        self.leaves = trees.leaves((self.args, self.kwargs))
        found = [
            int(leaf.batch_sizes[0]) if not isinstance(leaf, Tensor) else leaf.shape[dim]
            for leaf in self.leaves
            if not isinstance(leaf, Tensor) or leaf.dim() > dim
        ]
        if not found:
            raise PrivacyError(
                "no input of the forward is a tensor, so the samples of the batch cannot be found."
            )
        if expected is None:
            return found[0]
        self._refuse_unexpected(found, expected)
        return expected

    def _refuse_unexpected(self, found: list[int], expected: int) -> None:
        if expected == 0:
            raise PrivacyError(
                "a backward outside the loop over private.loader: its samples were not drawn by "
                "the private sampler. For gradients that train other models use private.paused()."
            )
        if expected not in found:
            raise PrivacyError(
                f"the model was given {found[0]} samples, private.loader handed out {expected}. "
                "Each of them must be in the forward exactly once: split batches by "
                "physical_batch_size, and draw copies of a sample (augmentation) inside the model."
            )
        if self.batch != self.engine.batch:
            raise PrivacyError(
                "the loss holds a forward of an earlier batch: its samples are others than those "
                "that private.loader handed out last, and would be added to the sum unaccounted. "
                "Call backward for each batch, before the next one is taken from the loader."
            )
        if self.engine._served:
            raise PrivacyError(
                "a second backward on the same batch: its samples would count twice, and what one "
                "sample adds would pass the bound. Add the losses up, and call backward once."
            )

    def _captured(
        self, n: int, grads: Sequence[Tensor | None]
    ) -> tuple[Captured | Rows, dict[int, Tensor]]:
        wanted = [
            (root, grad) for root, grad in zip(self.roots, grads, strict=True) if grad is not None
        ]
        roots, cotangents = [root for root, _ in wanted], [grad for _, grad in wanted]
        if n == 1 and self.engine.method == "auto":
            rows, foreign = capture_single(self.graph, roots, cotangents)
            return Rows({name: grad.unsqueeze(0) for name, grad in rows.items()}, 1), foreign
        plan = self._plan(n, grads)
        if isinstance(plan, Plan):
            try:
                captured = capture(
                    self.graph, plan, roots, cotangents, n, at_once=self.engine._alone()
                )
                self._prove_again(plan, captured, n, grads)
                return captured, captured.foreign_gradients
            except CannotAssign as reason:
                # This batch by the loop; the next one looks for a plan again, if that may help.
                if plan.moves:
                    self._give_up(reason)
                else:
                    del self.engine.plans[self.key]
                plan = self._forward_to_loop(n, grads)
        if self.graph.foreign:
            raise PrivacyError(
                "the loop over samples cannot pass gradients on to tensors outside the model."
            )
        with self._again(), untouched(self.engine.model):
            return loop(plan, self.roots, grads, self.engine.loss_reduction == "mean"), {}

    def _plan(self, n: int, grads: Sequence[Tensor | None]) -> Plan | Forward:
        """A proved plan for inputs of these shapes, or the forward to loop over."""
        plans, shapes = self.engine.plans, self._shapes(n)
        known = plans.get(self.key)
        if known is not None:
            plan = known.variants.get(shapes)
            if plan is not None:
                return plan
            try:
                known.variants[shapes] = plan = self._variant(known, n)
                return plan
            except CannotAssign as reason:
                self._give_up(reason)
        if self.key in plans:
            return self._forward_to_loop(n, grads)
        with self._again():
            forward, plan, result = first_that_fits(
                self._forwards(n), lambda f: self._attempt(f, grads)
            )
        plans[self.key] = plan
        if plan is None:
            if self.engine.method != "loop":
                announce(self.engine.model, result)
            return forward
        plan.variants[shapes] = plan
        return plan

    def _shapes(self, n: int) -> tuple:
        """What a sample's share of the inputs looks like: with it, rows may change their places."""
        dim = self.engine.batch_dim
        shapes: list[Any] = []
        for leaf in self.leaves:
            shape = tuple(leaf.shape if isinstance(leaf, Tensor) else leaf.data.shape)
            merged = len(shape) > dim and shape[dim] == n
            shapes.append((*shape[:dim], None, *shape[dim + 1 :]) if merged else shape)
        values = (*self.args, *self.kwargs.values())
        return (*shapes, *[value for value in values if isinstance(value, (int, float, str))])

    def _variant(self, known: Plan, n: int) -> Plan:
        """The plan of the same operations for inputs of other shapes.

        Where a sample has one row in each tensor there is nothing to find out; else there is a
        probe of a few samples.
        """
        if known.plain and known.fits(self.graph, n):
            return known
        with self._again():
            _, plan, _ = first_that_fits(
                self._forwards(n), lambda f: (find_plan(self.graph, f), 0.0)
            )
        assert plan is not None
        plan.root_dims, plan.variants, plan.first = known.root_dims, known.variants, known
        return plan

    def _prove_again(
        self, plan: Plan, captured: Captured, n: int, grads: Sequence[Tensor | None]
    ) -> None:
        """At every doubling of the number of forwards; before anything of this one is used."""
        first = plan.first or plan
        first.uses += 1
        if first.uses < 2 or first.uses & (first.uses - 1):
            return
        (squared,) = captured.norms_squared(TOGETHER)
        chosen = [] if squared is None else largest(squared, LARGEST)
        mean = self.engine.loss_reduction == "mean"
        with self._again():
            first_that_fits(
                self._forwards(n), lambda f: (plan, prove(plan, f, grads, mean, chosen))
            )

    def _give_up(self, reason: object) -> None:
        """From now on the loop serves this forward."""
        self.engine.plans[self.key] = None
        announce(self.engine.model, reason)

    def _forward_to_loop(self, n: int, grads: Sequence[Tensor | None]) -> Forward:
        """The reading of the inputs that stands the proof for the loop."""
        mean = self.engine.loss_reduction == "mean"
        with self._again():
            forward, _, _ = first_that_fits(
                self._forwards(n), lambda f: (None, str(prove_isolation(f, mean) or ""))
            )
        return forward

    def _attempt(
        self, forward: Forward, grads: Sequence[Tensor | None]
    ) -> tuple[Plan | None, float | str]:
        if self.engine.method == "loop":
            prove_isolation(forward, self.engine.loss_reduction == "mean")
            return None, ""
        return plan_or_none(self.graph, forward, grads, self.engine.loss_reduction == "mean")

    def _forwards(self, n: int) -> Iterator[Forward]:
        """The forward, for each way to find its samples in the inputs.

        Only ways that fit the stated batch dimension.
        """
        for reading in Batch.readings((self.args, self.kwargs), n):
            if reading.axes[0] in (None, self.engine.batch_dim):
                yield Forward(self.engine.model, self.engine.names, self._run, reading)

    def _run(self, tree: tuple[tuple, dict]) -> list[Tensor]:
        args, kwargs = tree
        output = self.engine.model(*args, **kwargs)
        return list({id(t): t for t in trees.tensors(output) if t.requires_grad}.values())

    @contextlib.contextmanager
    def _again(self) -> Iterator[None]:
        """The state that the forward ran in: hooks silent, autocast as it was."""
        with silenced(self.engine.model), contextlib.ExitStack() as stack:
            for device, enabled, dtype in self.autocast:
                if enabled:
                    stack.enter_context(torch.autocast(device, dtype=dtype))
            yield


class Boundary(torch.autograd.Function):
    """Hands outputs on without their graph; its backward is the call's."""

    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor, *foreign: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(root.detach() for root in call.roots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise PrivacyError(
                "backward(create_graph=True): second derivatives of a private model "
                "are not supported."
            )
        tape = ctx.call.engine._tape
        if tape is not None:
            tape.arrived[ctx] = grads
        return None, None, *ctx.call.backward(grads)


def replaced(leaf: Any, handed_on: dict[int, Tensor]) -> Any:
    if isinstance(leaf, Tensor):
        return handed_on.get(id(leaf), leaf)
    return leaf._replace(data=handed_on.get(id(leaf.data), leaf.data))


def together(parts: Sequence[Captured | Rows]) -> Captured | Rows:
    """One capture for the forwards that a backward joined: each sample's gradients add up."""
    first, *others = parts
    if not others:
        if isinstance(first, Captured) and not first.at_once:
            first.join([])
        return first
    if {part.num_samples for part in parts} != {first.num_samples}:
        raise PrivacyError(
            f"one backward joins forwards of {sorted({p.num_samples for p in parts})} samples; "
            "they must be the same samples. Call backward for each."
        )
    if all(isinstance(part, Captured) for part in parts):
        assert not any(part.at_once for part in parts), "a measured capture cannot be joined"  # type: ignore[union-attr]
        first.join(others)  # type: ignore[union-attr, arg-type]
        return first
    rows: dict[str, Tensor] = {}
    for part in parts:
        if isinstance(part, Captured):
            raise PrivacyError(
                "one backward joins a fast and a looped forward; use Engine(method='loop')."
            )
        for name, row in part.rows.items():
            rows[name] = rows[name] + row.values if name in rows else row.values
    return Rows(rows, first.num_samples)
