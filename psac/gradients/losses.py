"""What happens between the model's outputs and `backward` must keep samples apart, too.

The engine repeats the model's forward to prove it; the loss is the user's code and cannot be called
again.  So on the first batch, and then ever more rarely (at 2, 4, 8, ... backward passes), outputs
are handed on as tensors of a subclass that tells a `LossTape` which torch functions are called on
them, and `prove_loss` plays those again for one sample alone (its outputs, its labels).  The
gradient that reaches the sample's outputs must be the same as in the batch: divided by n for a loss
that is a mean over samples, as it is for a sum.

Guarantees: a loss that compares samples, or a mean over something other than samples (tokens, kept
entries, positive labels), raises `NotIsolated` before anything of that batch is added up.  What
cannot be played again (a custom autograd Function outside the model) is refused.

A constant that happens to have as many rows as the batch (class weights, where there are as many
classes as samples) is taken for labels, and the loss may be refused, unless an earlier proof met
the same tensor beside a batch of another size: make it once, not in each step.

A batch size n that was written into the loss is played as 1.  Where the tape still does not run for
one sample, all samples are replaced by copies of one; that cannot tell a mean from a sum, but
everything else.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import NotIsolated, PrivacyError
from .layout import Layout
from .proof import ALONE, spread
from .sandbox import Quiet
from .tape import LossTape, plain

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
) -> None:
    """Raises unless the loss treats a sample in the batch as it does the sample alone.

    `dims_of` says where the outputs of a forward hold their samples, if that was proved; the
    constants of the loss become `known`.
    """
    if tape.loss is None and tape.entered_a_model:
        return
    if tape.loss is None:
        raise PrivacyError(
            "a gradient came back that loss.backward() did not start, so the loss cannot be "
            "proved. Call loss.backward() or private.backward(losses)."
        )
    below = forwards_below(tape.loss)
    for signature, node, outputs in tape.forwards:
        if node in below:
            tape.outputs += zip(outputs, layouts(outputs, n, dims_of(signature)), strict=True)
    if any(tape.loss is output for output, _ in tape.outputs):
        return  # the model reduces its loss by itself, and was proved with it
    with Quiet(), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = cotangents(tape, {}, lambda tensor, layout: tensor, {})
        for sample in spread(n, ALONE):
            labels = [t for t in tape.constants() if t not in known]
            found = compare(tape, labels, together, alone, sample, n, mean)
            if found is None:
                found = compare(tape, labels, together, copies, sample, n, mean)
            if found is None:
                raise PrivacyError(
                    "the loss cannot be computed again for one sample, so it cannot be proved. "
                    + REMEDY
                )
            found = found or depends_on_others(tape, together, sample, n)
            if found:
                raise NotIsolated(f"{found} {REMEDY}")
    known.learn(tape.constants(), n)


def compare(
    tape: LossTape,
    labels: Sequence[Tensor],
    together: list[Tensor | None],
    among: Callable[..., Tensor],
    sample: int,
    n: int,
    mean: bool,
) -> str | None:
    """What is wrong with the loss of one sample, empty if nothing is; None if it does not run."""
    found = None
    for constants, numbers in readings(labels, n, sample, among):
        try:
            single = cotangents(
                tape, constants, lambda tensor, layout: among(tensor, layout, n, sample), numbers
            )
        except (RuntimeError, ValueError, IndexError):
            continue
        found = difference(tape, together, single, among, sample, n, mean)
        if not found:
            return ""
    return found


def depends_on_others(tape: LossTape, together: list[Tensor | None], sample: int, n: int) -> str:
    """Far other outputs of the other samples: for what has no slope here, such as a hinge."""
    for change in (lambda others: others.roll(1), lambda others: -100 * others - 1):

        def moved(tensor: Tensor, layout: Layout | None, change=change) -> Tensor:
            if layout is None:
                return tensor
            rows = layout.rows_of(tensor.shape[layout.dim], n, sample)
            index = torch.tensor(rows, device=tensor.device)
            own = tensor.index_select(layout.dim, index)
            return change(tensor).index_copy(layout.dim, index, own)

        try:
            other = cotangents(tape, {}, moved, {})
        except (RuntimeError, ValueError, IndexError):  # outputs that the loss does not allow
            continue
        for (_, layout), before, after in zip(tape.outputs, together, other, strict=True):
            if before is None or after is None or layout is None:
                continue
            own = alone(before, layout, n, sample)
            if not same(alone(after, layout, n, sample), own, tape.tolerance):
                return f"the gradient of sample {sample} changes with the outputs of the others."
    return ""


def cotangents(
    tape: LossTape,
    constants: dict[int, Tensor],
    choose: Callable[..., Tensor],
    numbers: dict[int, int],
) -> list[Tensor | None]:
    """Gradients that reach the outputs when the tape is played for some samples."""
    leaves = [
        choose(plain(output).detach(), layout).clone().requires_grad_()
        for output, layout in tape.outputs
    ]
    # Not leaves, so that the user's in-place operations stay possible.
    replaced = {
        id(output): leaf.view_as(leaf)
        for (output, _), leaf in zip(tape.outputs, leaves, strict=True)
    }
    loss = tape.play(constants | replaced, numbers)
    if loss is None or not loss.requires_grad:
        return [None] * len(leaves)
    return list(torch.autograd.grad(loss.sum(), leaves, allow_unused=True))


def difference(
    tape: LossTape,
    together: list[Tensor | None],
    single: list[Tensor | None],
    among: Callable[..., Tensor],
    sample: int,
    n: int,
    mean: bool,
) -> str:
    for (_, layout), batch, one in zip(tape.outputs, together, single, strict=True):
        if batch is None or one is None:
            if (batch is None) != (one is None):
                return f"sample {sample} has no gradient alone and one in the batch, or vice versa."
            continue
        own = alone(batch, layout, n, sample)
        expected = alone(one, layout, n, sample) if among is copies else one
        divided = among is alone and layout is not None
        if same(own, expected / n if divided and mean else expected, tape.tolerance):
            continue
        if divided and same(own, expected if mean else expected / n, tape.tolerance):
            given, found = ("mean", "sum") if mean else ("sum", "mean")
            return (
                f"loss_reduction={given!r} was stated, but the loss is a {found} over samples: "
                f"pass loss_reduction={found!r}."
            )
        return (
            f"sample {sample} gets another gradient from the loss in its batch (size "
            f"{float(own.norm()):.4g}) than alone ({float(expected.norm()):.4g}, over {n} for a "
            "mean): the loss mixes samples, or is a mean over something else."
        )
    return ""


def same(first: Tensor, second: Tensor, tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    if not bool(second.isfinite().all()):
        return True  # such a sample is dropped
    return float((first - second).abs().max()) <= tolerance * max(float(second.abs().max()), 1e-12)


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


def sample_dims(tensor: Tensor, n: int) -> list[int]:
    """The first dimension that has as many entries as there are samples, if any."""
    return [d for d in range(min(tensor.dim(), 2)) if tensor.shape[d] == n][:1]


def forwards_below(loss: Tensor) -> set[Any]:
    """The forwards of private models that the loss depends on.

    Raises for custom autograd Functions on the way: the tape cannot see them.
    """
    todo, seen, found = [loss.grad_fn], set(), set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
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
    return found
