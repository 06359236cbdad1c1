"""What happens between the model's outputs and `backward` must keep samples apart, too.

The engine repeats the model's forward to prove it; the loss is the user's code and cannot be called
again.  So on the first batch, then ever more rarely (at 2, 4, 8, ... backward passes), and after a
backward whose loss had another number of operations than were met before, the
batch of the loader and the outputs of the model are handed on as tensors of a subclass that tells a
`LossTape` which torch functions are called on them, and `prove_loss` plays those again:

- for the whole batch, which must give the gradients that really came back to the outputs: else a
  part of the loss is not on the tape;
- for one sample alone (its outputs, its labels): the gradient that reaches the sample's outputs
  must be the same as in the batch, divided by n for a loss that is a mean over samples, as it is
  for a sum;
- for copies of one sample: what the model was given for it must be the same as in the batch.

Guarantees: a loss that compares samples, or a mean over something other than samples (tokens, kept
entries, positive labels), inputs that mix the batch, and either of them computed from an earlier
batch raise `NotIsolated` before anything of that batch is added up.  What cannot be played again (a
custom autograd Function outside the model) is refused.  It is a proof on the values of these
batches: a mixing that only rare values switch on passes until a proof meets them.

A constant that happens to have as many rows as the batch (class weights, where there are as many
classes as samples) is taken for labels, and the loss may be refused, unless an earlier proof met
the same tensor beside a batch of another size: make it once, not in each step.

A batch size n that was written into the loss is played as 1.  Where the tape still does not run for
one sample, all samples are replaced by copies of one; that cannot tell a mean from a sum, but
everything else.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import flat, is_ref
from .errors import NotIsolated, PrivacyError
from .layout import Layout
from .proof import ALONE, spread
from .sandbox import Quiet
from .tape import LossTape, Played

REMEDY = (
    "Each sample's loss must be its own, and the whole their plain mean or sum over samples, as in "
    "private.backward(losses) with one loss per sample. For a mean over tokens, take the mean "
    "within each sample first."
)
READINGS = 64  # more are not tried


class Constants:
    """Tensors that belong to no sample: a proof met them beside a batch of another size."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        reference, version = self._met.get(id(tensor), (None, 0))
        return reference is not None and reference() is tensor and tensor._version == version

    def learn(self, tensors: Sequence[Tensor], n: int) -> None:
        self._met = {key: met for key, met in self._met.items() if met[0]() is not None}
        for tensor in tensors:
            if sample_layouts(tensor, n) == [None] and not tensor.is_inference():
                self._met[id(tensor)] = (weakref.ref(tensor), tensor._version)


def prove_loss(
    tape: LossTape,
    n: int,
    mean: bool,
    known: Constants,
    dims_of: Callable[[tuple], Sequence[int | None] | None],
) -> list[Tensor]:
    """Raises unless the loss treats a sample in the batch as it does the sample alone.

    `dims_of` says where the outputs of a forward hold their samples, if that was proved; the
    constants of the loss become `known`.  Returns trainable tensors that the loss uses and that
    no private model holds: their gradients are ordinary ones.
    """
    if tape.loss is None and tape.entered_a_model:
        return []
    if tape.loss is None:
        raise PrivacyError(
            "a gradient came back that no loss.backward() of a tensor on the tape has started: the "
            "loss was made from the outputs by something that torch functions do not show (a "
            "scripted or compiled function, torch.vmap), or by torch.autograd.backward, so it "
            "cannot be proved. Call loss.backward() or private.backward(losses) on a loss made "
            "by ordinary torch functions, or compute the loss inside the model's forward."
        )
    below, leaves = reached_by(tape.loss)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proof = Proof(tape, n, mean, known, dims_of, below)
        proof.refuse_mixed_inputs()
        if not any(tape.end == number for number, _ in proof.outputs):
            proof.run()
        # else: the model reduces its loss by itself, and was proved with it
    known.learn(tape.constants(tape.played), n)
    return leaves


class Proof:
    """The proof of one tape: what it starts from, and where the samples are in that."""

    def __init__(
        self,
        tape: LossTape,
        n: int,
        mean: bool,
        known: Constants,
        dims_of: Callable[[tuple], Sequence[int | None] | None],
        below: set[Any],
    ) -> None:
        self.tape, self.n, self.mean, self.known = tape, n, mean, known
        self.outputs: list[tuple[int, Layout | None]] = []
        self.values: dict[int, Tensor] = {}
        self.inputs: list[int] = []
        self.arrived: list[Tensor | None] = []
        forwards = {forward.node for forward in tape.forwards}
        refuse_unwatched(tape, below - forwards)
        for forward in tape.forwards:
            numbers, values = zip(*forward.outputs, strict=True)
            dims = dims_of(forward.signature) if forward.node in below else None
            self.values |= dict(forward.outputs)
            self.outputs += zip(numbers, layouts(values, n, dims), strict=True)
            self.arrived += tape.arrived.get(forward.node, [None] * len(numbers))
            self.inputs += forward.inputs if forward.node in below else []
        self.values |= {number: value for number, (value, _) in tape.drawn.items()}
        self.places = dict(self.outputs) | {k: layout for k, (_, layout) in tape.drawn.items()}
        self.calls = tape.needed([tape.end])

    # What enters the model
    def refuse_mixed_inputs(self) -> None:
        """Copies of one sample in the place of all must leave it its inputs as they are."""
        tape, n = self.tape, self.n
        calls = tape.needed(self.inputs)
        self.refuse_stale(calls, "an input of the model")
        if not self.inputs:
            return
        together = self.inputs_of(calls, lambda tensor, layout: tensor)
        for sample in spread(n, ALONE):
            single = self.inputs_of(calls, lambda t, layout, k=sample: copies(t, layout, n, k))
            for before, after in zip(together, single, strict=True):
                (layout,) = layouts([before], n, None)
                if before.shape != after.shape or not agree(
                    alone(after, layout, n, sample),
                    alone(before, layout, n, sample),
                    tape.tolerance / 10,
                ):
                    raise NotIsolated(
                        f"what the model is given for sample {sample} changes with the other "
                        "samples of the batch: something between private.loader and the model "
                        "mixes them (mixup, statistics of the batch, an order other than the "
                        "loader's). Use public constants, and mix nothing but the views of one "
                        "record (docs/models.md)."
                    )

    def inputs_of(self, calls: Sequence[Played], choose: Callable[..., Tensor]) -> list[Tensor]:
        now = {k: choose(t.detach(), self.places[k]).clone() for k, t in self.values.items()}
        with Quiet(), torch.no_grad():
            made = self.tape.play(calls, now, {}, {})
        return [made[number].detach() for number in self.inputs]

    def refuse_stale(self, calls: Sequence[Played], what: str) -> None:
        started = {k for k, t in self.tape.started.items() if t in self.tape.earlier}
        used = {leaf.number for c in calls for leaf in flat((c.args, c.kwargs)) if is_ref(leaf)}
        if any(call.stale for call in calls) or started & used:
            raise NotIsolated(
                f"{what} uses something that was computed from an earlier batch (a running mean "
                "of losses, a bank of features), which was never made private. Use public "
                f"constants, or what the private model itself says. {REMEDY}"
            )

    # The loss
    def run(self) -> None:
        self.refuse_stale(self.calls, "the loss")
        together = self._as_it_was()
        for sample in spread(self.n, ALONE):
            labels = [t for t in self.tape.constants(self.calls) if t not in self.known]
            found = self.compare(labels, together, alone, sample)
            if found is None:
                found = self.compare(labels, together, copies, sample)
            if found is None:
                raise PrivacyError(
                    "the loss cannot be computed again for one sample, so it cannot be proved. "
                    + REMEDY
                )
            found = found or self.depends_on_others(together, sample)
            if found:
                raise NotIsolated(f"{found} {REMEDY}")

    def _as_it_was(self) -> list[Tensor | None]:
        """The gradients of the batch by the tape, which must be those that really came back."""
        tape = self.tape
        for calls in (self.calls, tape.played):
            self.calls = calls
            with contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError):
                together = self.cotangents(lambda tensor, layout: tensor, {}, {})
                drawn = together
                if any(call.draws for call in calls):
                    drawn = self.cotangents(lambda t, layout: t, {}, {}, drawing=True)
                if tape.entered_a_model or all(map(self._is_same, self.arrived, drawn)):
                    return together
        raise NotIsolated(
            "the gradients that came back to the model's outputs are not those of the loss as its "
            "torch functions show it: a hook changes them, labels were written over after they "
            "were used, or a part of the loss was made by something that cannot be seen (a "
            "scripted or compiled function, torch.vmap). Make the loss of ordinary torch "
            f"functions, or compute it inside the model's forward. {REMEDY}"
        )

    def _is_same(self, arrived: Tensor | None, played: Tensor | None) -> bool:
        if arrived is None or played is None:
            there = arrived if played is None else played
            return there is None or not bool(there.any())
        return agree(played, arrived, self.tape.tolerance / 10)

    def compare(
        self,
        labels: Sequence[Tensor],
        together: list[Tensor | None],
        among: Callable[..., Tensor],
        sample: int,
    ) -> str | None:
        """What is wrong with the loss of one sample, empty if nothing; None if it does not run."""
        found, n = None, self.n
        for constants, numbers in readings(labels, n, sample, among):
            try:
                single = self.cotangents(
                    lambda tensor, layout: among(tensor, layout, n, sample), constants, numbers
                )
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue
            found = self.difference(together, single, among, sample)
            if not found:
                return ""
        return found

    def depends_on_others(self, together: list[Tensor | None], sample: int) -> str:
        """Far other values of the other samples: for what has no slope here, such as a hinge."""
        for change in (lambda others: others.roll(1), lambda others: -100 * others - 1):

            def moved(tensor: Tensor, layout: Layout | None, change=change) -> Tensor:
                if layout is None:
                    return tensor
                if not tensor.is_floating_point():  # labels: such as there are
                    return around(tensor, tensor.roll(1), layout, self.n, sample)
                return around(tensor, change(tensor), layout, self.n, sample)

            try:
                other = self.cotangents(moved, {}, {})
            except (RuntimeError, ValueError, IndexError, TypeError):  # not allowed by the loss
                continue
            for (_, layout), before, after in zip(self.outputs, together, other, strict=True):
                if before is None or after is None or layout is None:
                    continue
                own = alone(before, layout, self.n, sample)
                if not same(alone(after, layout, self.n, sample), own, self.tape.tolerance):
                    return f"the gradient of sample {sample} changes with the others."
        return ""

    def cotangents(
        self,
        choose: Callable[..., Tensor],
        constants: dict[int, Tensor],
        numbers: dict[int, int],
        *,
        drawing: bool = False,
    ) -> list[Tensor | None]:
        """Gradients that reach the outputs when the tape is played for some samples."""
        now = {
            number: choose(value.detach(), self.places[number]).clone()
            for number, value in self.values.items()
        }
        leaves = [now[number].requires_grad_() for number, _ in self.outputs]
        # Copies, so that the user's in-place operations stay possible.
        now = {number: value.clone() for number, value in now.items()}
        with contextlib.nullcontext() if drawing else Quiet():
            made = self.tape.play(self.calls, now, constants, numbers, drawing=drawing)
            loss = made.get(self.tape.end)
            if loss is None or not loss.requires_grad:
                return [None] * len(leaves)
            return list(torch.autograd.grad(loss.sum(), leaves, allow_unused=True))

    def difference(
        self,
        together: list[Tensor | None],
        single: list[Tensor | None],
        among: Callable[..., Tensor],
        sample: int,
    ) -> str:
        n, mean, tolerance = self.n, self.mean, self.tape.tolerance
        for (_, layout), batch, one in zip(self.outputs, together, single, strict=True):
            if batch is None or one is None:
                if (batch is None) != (one is None):
                    return (
                        f"sample {sample} has no gradient alone and one in the batch, or vice "
                        "versa."
                    )
                continue
            own = alone(batch, layout, n, sample)
            expected = alone(one, layout, n, sample) if among is copies else one
            divided = among is alone and layout is not None
            if same(own, expected / n if divided and mean else expected, tolerance):
                continue
            if divided and same(own, expected if mean else expected / n, tolerance):
                return self._other_reduction()
            return (
                f"sample {sample} gets another gradient from the loss in its batch (size "
                f"{float(own.norm()):.4g}) than alone ({float(expected.norm()):.4g}, over {n} for "
                "a mean): the loss mixes samples, or is a mean over something else."
            )
        return ""

    def _other_reduction(self) -> str:
        given, found = ("mean", "sum") if self.mean else ("sum", "mean")
        stated = f"loss_reduction={given!r} was stated, but the loss is a {found} over samples"
        if self.mean and self._divides_by_a_tensor():
            return (
                f"{stated}, divided by a tensor. If that tensor was computed from the batch (a "
                "number of tokens, kept entries or positive labels), samples are mixed, whatever "
                "is stated: divide by a public constant, or take the mean within each sample."
            )
        return f"{stated}: pass loss_reduction={found!r}."

    def _divides_by_a_tensor(self) -> bool:
        names = {"div", "div_", "true_divide", "__rtruediv__", "__rdiv__", "mul", "mul_"}
        return any(
            getattr(call.function, "__name__", "") in names
            and any(isinstance(t, Tensor) and t.numel() == 1 for t in flat(call.args))
            for call in self.calls
        )


def refuse_unwatched(tape: LossTape, nodes: set[Any]) -> None:
    """Raises for forwards of the same model that were not on the tape."""
    if any(node.call.engine._tape is tape for node in nodes):
        raise PrivacyError(
            "the loss joins a forward of an earlier step to this one: its samples are others, and "
            "what each adds would not be clipped together. Call backward for each batch."
        )


def around(tensor: Tensor, others: Tensor, layout: Layout, n: int, sample: int) -> Tensor:
    """The other samples as in `others`, this one as it is."""
    rows = layout.rows_of(tensor.shape[layout.dim], n, sample)
    index = torch.tensor(rows, device=tensor.device)
    return others.index_copy(layout.dim, index, tensor.index_select(layout.dim, index))


def same(first: Tensor, second: Tensor, tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    if not bool(second.isfinite().all()):
        return True  # such a sample is dropped
    return float((first - second).abs().max()) <= tolerance * max(float(second.abs().max()), 1e-12)


def agree(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """The same up to rounding, and finite in the same places."""
    finite = second.isfinite()
    if first.shape != second.shape or not torch.equal(first.isfinite(), finite):
        return False
    first, second = (torch.where(finite, t, 0) for t in (first, second))
    first, second = (t if t.is_complex() else t.double() for t in (first, second))
    return not first.numel() or same(first, second, tolerance)


def alone(tensor: Tensor, layout: Layout | None, n: int, sample: int) -> Tensor:
    """What belongs to one sample."""
    if layout is None:
        return tensor
    rows = layout.rows_of(tensor.shape[layout.dim], n, sample)
    return tensor.index_select(layout.dim, torch.tensor(rows, device=tensor.device))


def copies(tensor: Tensor, layout: Layout | None, n: int, sample: int) -> Tensor:
    """The same shape, with every sample replaced by one of them."""
    if layout is None:
        return tensor
    size = tensor.shape[layout.dim]
    index = torch.empty(size, dtype=torch.long)
    for other in range(n):
        index[layout.rows_of(size, n, other)] = torch.tensor(layout.rows_of(size, n, sample))
    return tensor.index_select(layout.dim, index.to(tensor.device))


def readings(
    labels: Sequence[Tensor], n: int, sample: int, among: Callable[..., Tensor]
) -> Iterator[tuple[dict[int, Tensor], dict[int, int]]]:
    """Ways to find the sample in labels and numbers, likeliest first.

    Labels are [n, ...], perhaps merged rows [n * p, ...], or belong to no sample; 0 ... n-1 may be
    row numbers, as in out[arange(n), y]; a number n may be the batch size.
    """
    places = [[(t, layout) for layout in sample_layouts(t, n)] for t in labels]
    counting = [t for t in labels if is_row_numbers(t, n)]
    ways = itertools.product(
        itertools.product(*places),
        [[], counting] if counting else [[]],
        [{}, {n: 1}] if among is alone else [{}],
    )
    for rows, counted, size in itertools.islice(ways, READINGS):
        chosen = {id(t): among(t, layout, n, sample) for t, layout in rows if layout is not None}
        yield chosen | {id(t): t[:1] if among is alone else t for t in counted}, size


def sample_layouts(tensor: Tensor, n: int) -> list[Layout | None]:
    """Where a label may hold the samples, likeliest first; None: it belongs to no sample.

    What has as many rows as the batch is a label: as a constant, the labels of all would pass.
    """
    plain: list[Layout | None] = [Layout(dim) for dim in sample_dims(tensor, n)]
    if plain:
        return plain
    if tensor.dim() and tensor.shape[0] > n and tensor.shape[0] % n == 0:
        return [None, Layout(0)]
    return [None]


def is_row_numbers(tensor: Tensor, n: int) -> bool:
    return (
        tensor.shape == (n,) and not tensor.is_floating_point() and tensor.tolist() == [*range(n)]
    )


def layouts(
    outputs: Sequence[Tensor], n: int, dims: Sequence[int | None] | None
) -> list[Layout | None]:
    """Where the samples are in outputs: as the proof of the model found it, or as sizes say."""
    if dims is not None:
        return [None if dim is None else Layout(dim) for dim in dims]
    merged = [t.dim() > 0 and t.shape[0] % n == 0 for t in outputs]
    return [
        Layout(sample_dims(t, n)[0]) if sample_dims(t, n) else Layout(0) if rows else None
        for t, rows in zip(outputs, merged, strict=True)
    ]


def place_of_samples(tensor: Tensor, n: int, batch_dim: int) -> Layout | None:
    """Where a tensor of the batch holds its samples, if it does."""
    if tensor.dim() > batch_dim and tensor.shape[batch_dim] == n:
        return Layout(batch_dim)
    return Layout(sample_dims(tensor, n)[0]) if sample_dims(tensor, n) else None


def sample_dims(tensor: Tensor, n: int) -> list[int]:
    """The first dimension that has as many entries as there are samples, if any."""
    return [d for d in range(min(tensor.dim(), 2)) if tensor.shape[d] == n][:1]


def reached_by(loss: Tensor) -> tuple[set[Any], list[Tensor]]:
    """The forwards of private models that the loss depends on, and trainable tensors beside them.

    Raises for custom autograd Functions on the way: the tape cannot see them.
    """
    todo, seen, found, leaves = [loss.grad_fn], set(), set(), []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        leaves += [] if leaf is None else [leaf]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.add(node)
            if type(node).__name__ != "BoundaryBackward":
                raise PrivacyError(
                    f"the loss uses {type(node).__name__.removesuffix('Backward')}, a custom or "
                    "compiled function that cannot be played again for one sample, so it cannot be "
                    "proved. Compute the loss inside the model's forward."
                )
            continue
        todo += [below for below, _ in node.next_functions]
    return found, leaves
