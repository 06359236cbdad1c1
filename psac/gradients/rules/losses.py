"""Losses that torch.vmap would compute slowly, record by record, or not at all.

Cross entropy and CTC take all records as one batch.  The others are written out in operations that
vmap knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder


def reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def written_out(terms: Callable[..., Tensor]) -> Callable[..., Any]:
    """The rule of a loss whose terms, before their reduction, are computed by `terms`."""

    def rule(
        rec: Recorder,
        *args: Any,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        **kwargs: Any,
    ) -> Any:
        tensors = [value for value in args if isinstance(value, Tensor)]
        if size_average is not None or reduce is not None or not any(are_records(*tensors)):
            return NotImplemented
        with rec:
            if reduction == "batchmean":
                return terms(*args, **kwargs).sum() / len(args[0])
            return reduced(terms(*args, **kwargs), reduction)

    return rule


def kl_div_terms(input: Tensor, target: Tensor, *, log_target: bool = False) -> Tensor:
    if log_target:
        return target.exp() * (target - input)
    return torch.xlogy(target, target) - target * input


def soft_margin_terms(input: Tensor, target: Tensor) -> Tensor:
    return F.softplus(-target * input)


def margin_ranking_terms(
    input1: Tensor, input2: Tensor, target: Tensor, *, margin: float = 0
) -> Tensor:
    return (margin - target * (input1 - input2)).clamp(min=0)


def triplet_margin_terms(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
) -> Tensor:
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return (margin + near - far).clamp(min=0)


def gaussian_nll_terms(
    input: Tensor, target: Tensor, var: Tensor | float, *, full: bool = False, eps: float = 1e-6
) -> Tensor:
    """Torch looks at the values of the variances, which may not be negative."""
    var = torch.as_tensor(var, dtype=input.dtype, device=input.device)
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    terms = (var.log() + (input - target).square() / var) / 2
    return terms + math.log(2 * math.pi) / 2 if full else terms


def multi_margin_terms(
    input: Tensor,
    target: Tensor,
    *,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    place = target.unsqueeze(-1)
    others = torch.arange(input.shape[-1], device=input.device) != place
    terms = (margin - input.gather(-1, place) + input).clamp(min=0) ** p * others
    if weight is not None:
        terms = terms * F.embedding(place, weight.unsqueeze(-1)).squeeze(-1)
    return terms.mean(-1)


def multilabel_margin_terms(input: Tensor, target: Tensor) -> Tensor:
    """Labels count until the first -1."""
    counts = (target >= 0).to(input.dtype).cumprod(-1)
    label = target.clamp(min=0)
    is_label = (F.one_hot(label, input.shape[-1]) * counts.unsqueeze(-1)).amax(-2)
    margins = (1 - input.gather(-1, label).unsqueeze(-1) + input.unsqueeze(-2)).clamp(min=0)
    terms = margins * counts.unsqueeze(-1) * (1 - is_label).unsqueeze(-2)
    return terms.sum((-2, -1)) / input.shape[-1]


kl_div = written_out(kl_div_terms)
soft_margin = written_out(soft_margin_terms)
margin_ranking = written_out(margin_ranking_terms)
triplet_margin = written_out(triplet_margin_terms)
gaussian_nll = written_out(gaussian_nll_terms)
multi_margin = written_out(multi_margin_terms)
multilabel_margin = written_out(multilabel_margin_terms)


def cross_entropy(
    rec: Recorder,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Scores of a record are [classes] or [batch, classes, ...]."""
    settings = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return of_classes(
        F.cross_entropy, rec, input, target, weight, size_average, reduce, reduction, settings
    )


def nll_loss(
    rec: Recorder,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """The same for log-probabilities."""
    settings = {"ignore_index": ignore_index}
    return of_classes(
        F.nll_loss, rec, input, target, weight, size_average, reduce, reduction, settings
    )


def of_classes(
    loss: Callable[..., Tensor],
    rec: Recorder,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    size_average: bool | None,
    reduce: bool | None,
    reduction: str,
    settings: dict[str, Any],
) -> Any:
    shared = weight is None or not (weight.requires_grad or any(are_records(weight)))
    if not shared or size_average is not None or reduce is not None:
        return NotImplemented
    if are_records(input) != [True] or input.dim() == 0 or not rec.serves(input, target):
        return NotImplemented
    targets = rec.for_each(target, loss.__name__)
    with physically():
        x, y = rec.physical(input), rec.physical(targets)
        if input.dim() > 1:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        values = loss(x, y, weight, reduction="none", **settings)
        if input.dim() > 1:
            values = values.unflatten(0, (rec.num_samples, len(input)))
        if reduction != "none" and values.dim() > 1:
            values = values.flatten(1).sum(1)
        if reduction == "mean":
            values = values / counted(x, y, weight, settings["ignore_index"], rec.num_samples)
        return rec.of_records(values)


def counted(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, n: int
) -> Tensor | float:
    """What the mean over a record's targets divides by."""
    if target.is_floating_point():  # probabilities of classes
        return target.numel() / scores.shape[1] / n
    counts = target != ignore_index
    if weight is None:
        return counts.view(n, -1).sum(1)
    return (weight[target.where(counts, 0)] * counts).view(n, -1).sum(1)


def ctc(
    rec: Recorder,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Log-probabilities of a record are [time, batch, classes] or [time, classes].

    Targets are padded.
    """
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    if are_records(log_probs) != [True] or (targets.dim() == 1 and batch > 1):
        return NotImplemented
    lengths = [torch.as_tensor(given) for given in (input_lengths, target_lengths)]
    if not rec.serves(log_probs, targets, *lengths):
        return NotImplemented
    others = [rec.for_each(tensor, "ctc_loss") for tensor in (targets, *lengths)]
    with physically():
        n, rows = rec.num_samples, rec.num_samples * batch
        values = rec.physical(log_probs).movedim(1, 0).flatten(1, -2)
        labels, times, counts = (rec.physical(t).reshape(rows, -1) for t in others)
        times, counts = times.flatten(), counts.flatten()
        losses = torch.ctc_loss(values, labels, times, counts, blank, 0, zero_infinity)
        losses = losses.view(n, batch)
        if reduction == "mean":
            losses = (losses / counts.clamp(min=1).view(n, batch)).mean(1)
        elif reduction == "sum":
            losses = losses.sum(1)
        elif log_probs.dim() == 2:
            losses = losses.squeeze(1)
        return rec.of_records(losses)
