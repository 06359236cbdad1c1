"""The engine proves itself before it is believed: on the first batch of every new computation.

A few samples of the batch (about 16) are run together by the engine, and three of them alone by
plain autograd, both without randomness. Outputs, norms and directions must agree, or `NotIsolated`
is raised and training does not start. What the few have as outputs, they must have in the whole
batch, too; and where the model draws random numbers, whatever it draws. With the probes of
planner.py this costs less than two ordinary steps.

What a model does may depend on its inputs, on the step, on chance. So the proof is repeated ever
more rarely (at 2, 4, 8, ... forwards of the same computation), then also with the samples whose
gradients are largest: where one sample leaks into others, it shows there.

For the loop over samples there is no engine to check; its proof is that a sample's output is the
same alone and among others, and that a loss which the model reduces by itself is the stated mean
or sum over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .capture import capture, capture_single
from .errors import CannotAssign, NotIsolated, PrivacyError
from .graph import Graph
from .groups import TOGETHER
from .layout import Layout, find
from .places import same
from .plan import Plan
from .planner import Forward, find_plan
from .sandbox import HIGH, LOW

MOST, ALONE, LARGEST = 16, 3, 2
HALF = (torch.bfloat16, torch.float16)


def plan_or_none(
    full: Graph, forward: Forward, cotangents: Sequence[Tensor | None], mean: bool
) -> tuple[Plan | None, float | str]:
    """A proved plan and its error, or None and why only the loop over samples serves.

    Its isolation is proved then. `mean` says how a loss that the forward reduces by itself does it.
    """
    try:
        plan = find_plan(full, forward)
        return plan, prove(plan, forward, cotangents, mean)
    except CannotAssign as reason:
        prove_isolation(forward, mean)
        return None, str(reason)


def first_that_fits(
    forwards: Iterable[Forward], attempt: Callable[[Forward], tuple[Plan | None, float | str]]
) -> tuple[Forward, Plan | None, float | str]:
    """The first reading of the inputs that stands the proof; else the error of the likeliest."""
    errors: list[Exception] = []
    for forward in forwards:
        try:
            return forward, *attempt(forward)
        except (NotIsolated, RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, PrivacyError) and not isinstance(error, NotIsolated):
                raise
            errors.append(error)
    raise next((e for e in errors if isinstance(e, NotIsolated)), errors[0])


def prove(
    plan: Plan,
    forward: Forward,
    cotangents: Sequence[Tensor | None],
    mean: bool,
    chosen: Sequence[int] = (),
) -> float:
    """The engine's per-sample gradients against plain autograd; returns the worst error.

    `chosen` samples are among those that are compared.
    """
    # A proof that is repeated must not need much more memory than the batch itself.
    most = min(MOST, max(ALONE, forward.num_samples // 8)) if chosen else MOST
    samples = sorted({*spread(forward.num_samples, most), *chosen})
    few, n = forward.among(samples), len(samples)
    roots, graph, buffers, drew = few.again(range(n))
    if graph.signature != plan.signature:
        raise CannotAssign("the operations that run change from forward to forward")
    given = [
        rows_of(c, root, forward.num_samples, samples)
        for root, c in zip(roots, cotangents, strict=True)
    ]
    prove_company(forward, samples, roots, mean, drew)
    captured = capture(graph, plan, roots, given, n)
    (squared,) = captured.norms_squared(TOGETHER)
    if squared is None:
        return 0.0
    norms = squared.sqrt()
    tolerance = 5e-2 if any(root.dtype in HALF for root in roots) else 5e-3
    floor = 1e-3 * float(norms.nan_to_num(0, 0, 0).max())
    weights, expected, worst = torch.zeros_like(norms), {}, 0.0
    for sample in sorted({*spread(n, ALONE), *map(samples.index, chosen)}):
        alone, alone_graph, alone_buffers, _ = few.alone(sample)
        refuse_statistics(buffers, alone_buffers)
        plan.root_dims = [
            dim_of_samples(root, one, n, 1) for root, one in zip(roots, alone, strict=True)
        ]
        shares = [
            share(c, root, one, sample, n, mean)
            for c, root, one in zip(given, roots, alone, strict=True)
        ]
        loop, _ = capture_single(alone_graph, alone, shares)
        norm = size(loop)
        if not math.isfinite(norm):
            continue
        same_output(roots, alone, sample, n, 10 * tolerance)
        error = abs(norm - float(norms[sample])) / max(norm, floor, 1e-12)
        if not error <= tolerance:
            raise NotIsolated(
                f"sample {samples[sample]} has a gradient of norm {float(norms[sample]):.6g} in "
                f"the batch and {norm:.6g} alone: it depends on the other samples, or the loss is "
                "not a mean or sum over samples. For a mean over tokens, take the mean within each "
                "sample first, outside the model, and call private.backward(losses)."
            )
        worst, weights[sample] = max(worst, error), sample + 1.0
        for name, grad in loop.items():
            expected[name] = expected.get(name, 0) + (sample + 1) * grad.to(norms.dtype)
    captured.zero_samples(~torch.isfinite(norms))
    sums = captured.weighted_sums([weights], TOGETHER)
    return max(worst, same_direction(sums, expected, tolerance))


def prove_isolation(forward: Forward, mean: bool) -> None:
    """What the batch gives a sample is what it gets alone, and reduced losses add up."""
    samples = spread(forward.num_samples, MOST)
    few, n = forward.among(samples), len(samples)
    roots, _, buffers, drew = few.again(range(n))
    prove_company(forward, samples, roots, mean, drew)
    totals = [0.0] * len(roots)
    is_reduced = [root.dim() == 0 for root in roots]
    for sample in range(n) if any(is_reduced) else spread(n, ALONE):
        alone, _, alone_buffers, _ = few.alone(sample)
        refuse_statistics(buffers, alone_buffers)
        same_output(roots, alone, sample, n, 5e-2)
        for k, one in enumerate(alone):
            totals[k] += float(one.detach().sum()) / (n if mean else 1)
    same_totals(roots, totals)


def same_totals(roots: Sequence[Tensor], totals: Sequence[float]) -> None:
    """The losses that the model reduces by itself are what their samples add up to."""
    for root, total in zip(roots, totals, strict=True):
        if root.dim() or not math.isfinite(total):
            continue
        found = float(root.detach())
        if not abs(total - found) <= 5e-3 * max(abs(total), 1e-6):
            raise NotIsolated(
                f"the loss of the batch is {found:.6g} and that of its samples "
                f"{total:.6g}: the loss is not a mean or sum over samples."
            )


def prove_company(
    forward: Forward, samples: Sequence[int], few: Sequence[Tensor], mean: bool, drew: bool
) -> None:
    """What a few samples get by themselves (`few`), they get among all of the batch.

    Also for other random numbers, where the model drew any.
    """
    total = forward.num_samples
    if total > len(samples):
        whole = forward.outputs(range(total))
        same_in_company(whole, few, total, samples)
        if any(root.dim() == 0 for root in whole):
            same_totals(whole, parts_of(forward, len(whole), mean))
    for draw in (LOW, HIGH) if drew else ():
        try:
            whole = forward.outputs(range(total), draw)
            alone = [forward.outputs([sample], draw) for sample in spread(total, ALONE)]
        except (RuntimeError, ValueError, IndexError):
            continue  # numbers that this model does not expect at once
        for sample, one in zip(spread(total, ALONE), alone, strict=True):
            same_in_company(whole, one, total, [sample])


def same_in_company(
    whole: Sequence[Tensor], few: Sequence[Tensor], total: int, samples: Sequence[int]
) -> None:
    """The rows of some samples in the outputs of all are those that they have as `few`."""
    if len(whole) != len(few):
        raise NotIsolated(
            f"the forward has {len(whole)} outputs for {total} samples and {len(few)} for "
            f"{len(samples)} of them."
        )
    tolerance = 5e-1 if any(root.dtype in HALF for root in whole) else 5e-2
    for root, part in zip(whole, few, strict=True):
        if total == len(samples) or not part.numel():
            continue
        dim = dim_of_samples(root, part, total, len(samples))
        if dim is None:
            continue
        pair = rows_of(root, part, total, samples), part.detach()
        rows = [Layout(dim).samples_first(t, len(samples)).flatten(1) for t in pair]
        size = rows[1].abs().amax(1)
        difference = (rows[0] - rows[1]).abs().amax(1)
        wrong = torch.isfinite(size) & ~(difference <= tolerance * size.clamp(min=1e-6))
        if bool(wrong.any()):
            raise NotIsolated(
                f"the output of a sample differs by {float(difference[wrong].max()):.3g} between "
                f"a batch of {total} samples and {len(samples)} of them: samples leak into each "
                "other in the forward."
            )


def parts_of(forward: Forward, count: int, mean: bool) -> list[float]:
    """The reduced losses of a batch, from parts of it."""
    n, totals = forward.num_samples, [0.0] * count
    for start in range(0, n, MOST):
        part = range(start, min(start + MOST, n))
        for k, root in enumerate(forward.outputs(part)):
            totals[k] += float(root.sum()) * (len(part) / n if mean else 1)
    return totals


def spread(total: int, count: int) -> list[int]:
    """At most `count` numbers below `total`, from the first to the last."""
    if total <= count:
        return list(range(total))
    return [k * (total - 1) // (count - 1) for k in range(count)]


def largest(norms: Tensor, count: int) -> list[int]:
    """The samples of the largest finite norms."""
    return norms.nan_to_num(0, 0, 0).topk(min(count, len(norms))).indices.tolist()


def size(grads: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(grad.abs().double().square().sum()) for grad in grads.values()))


def dim_of_samples(full: Tensor, part: Tensor, num_full: int, num_part: int) -> int | None:
    """Where an output of the model holds its samples, from two batches of different size."""
    try:
        return find(full.shape, part.shape, num_full, num_part)
    except ValueError:
        raise NotIsolated(
            f"an output has shape {list(full.shape)} for {num_full} samples and "
            f"{list(part.shape)} for {num_part}, so that its entries belong to no sample alone (a "
            "number for each pair of samples, as contrastive losses have it?). Return a row for "
            "each sample."
        ) from None


def rows_of(cotangent: Tensor | None, root: Tensor, total: int, samples: Sequence[int]) -> Tensor:
    """The part of an output gradient of the whole batch that belongs to some samples."""
    if cotangent is None:
        return torch.zeros_like(root)
    dim = None
    if total > len(samples):
        dim = dim_of_samples(cotangent, root, total, len(samples))
    if dim is None:
        return cotangent
    layout, length = Layout(dim), cotangent.shape[dim]
    rows = [row for sample in samples for row in layout.rows_of(length, total, sample)]
    return cotangent.index_select(dim, torch.tensor(rows, device=cotangent.device))


def share(
    cotangent: Tensor, root: Tensor, alone: Tensor, sample: int, n: int, mean: bool
) -> Tensor:
    """The part of an output gradient that belongs to one sample."""
    if dim_of_samples(root, alone, n, 1) is None:
        return cotangent / n if mean else cotangent
    return rows_of(cotangent, alone, n, [sample])


def same_output(
    roots: Sequence[Tensor], alone: Sequence[Tensor], sample: int, n: int, tolerance: float
) -> None:
    for root, one in zip(roots, alone, strict=True):
        if dim_of_samples(root, one, n, 1) is None or not one.numel():
            continue
        together, single = rows_of(root.detach(), one, n, [sample]), one.detach()
        if not bool(torch.isfinite(single).all()):
            continue
        difference = float((together - single).abs().max())
        if not difference <= tolerance * max(float(single.abs().max()), 1e-6):
            raise NotIsolated(
                f"the output of a sample differs by {difference:.3g} when it is alone in the "
                "batch: samples leak into each other in the forward."
            )


def same_direction(sums: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> float:
    """The largest difference of a parameter's sum, relative to the whole."""
    worst, whole = 0.0, max(size(expected), 1e-12)
    for name, grad in expected.items():
        error = size({name: sums[name] - grad if name in sums else grad}) / whole
        if not error <= tolerance:
            raise NotIsolated(
                f"the gradient of '{name}' in the batch is not that of the samples alone "
                f"(off by {error:.1%})"
            )
        worst = max(worst, error)
    return worst


def refuse_statistics(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Raises for buffers that two forwards on different samples leave different.

    Those are computed from private samples.
    """
    for name, buffer in first.items():
        if name in second and not same(buffer, second[name]):
            raise PrivacyError(
                f"the forward writes values computed from its samples into the buffer '{name}' "
                "(running statistics?), which would be released without noise. Switch that off "
                "(track_running_stats=False, momentum updates)."
            )
