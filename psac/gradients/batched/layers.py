"""Convolutions, whose rows are frames, and affine parameters behind a normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.batched.owners import Owners
from psac.gradients.contributions.base import Bias, Dense
from psac.gradients.precision import as_autocast
from psac.gradients.rules.convolution import by_name, spread, sum_of_positions
from psac.gradients.rules.patches import Patches, Settings
from psac.gradients.rules.physical import detached

if TYPE_CHECKING:
    from psac.gradients.batched.recorder import RowRecorder
    from psac.gradients.vectorized.recorder import Uses


def convolution(dims: int, transposed: bool = False) -> Callable[..., Any]:
    """torch.conv1d and the like: frames are rows."""
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    defaults = {"output_padding": 0, "groups": 1, "dilation": 1}

    def rule(
        rec: RowRecorder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *more: Any,
        **named: Any,
    ) -> Any:
        if rec.is_shared(input) or input.dim() not in (dims + 1, dims + 2):
            return NotImplemented
        other = defaults | dict(zip(names, more, strict=False)) | named
        dilation, ahead = spread(other["dilation"], dims), []
        if isinstance(padding, str):
            padding, ahead = by_name(padding, weight.shape[2:], dilation)
        settings = Settings(
            spread(stride, dims),
            spread(padding, dims),
            dilation,
            transposed,
            spread(other["output_padding"], dims),
            other["groups"],
        )
        return convolved(rec, F.pad(input, ahead) if any(ahead) else input, weight, bias, settings)

    return rule


def convolved(
    rec: RowRecorder, input: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings
) -> Tensor:
    operands: list[Any] = as_autocast(input, *detached(weight, bias))
    x, w, b = operands
    frames = x.reshape(-1, *x.shape[1 - weight.dim() :])
    y, inputs = settings.run(frames, w, b), frames.detach()
    shape = y.shape

    def uses(owners: Owners, grad: Tensor) -> Uses:
        n, part = owners.num_records, None
        grad, x = (owners.rows(t).flatten(0, 1) for t in (grad.reshape(shape), inputs))
        if bias is not None and bias.requires_grad:
            part = Bias(n, lambda: sum_of_positions(grad, n))
        if weight.requires_grad:
            yield weight, Patches(x, grad, n, settings, tuple(weight.shape), part)
        if bias is not None and part is not None:
            yield bias, part

    y = rec.tap("convolution", y, 1, [weight, bias], uses, [inputs])
    return y.reshape(*x.shape[: 1 - weight.dim()], *y.shape[1:])


def affine(
    rec: RowRecorder,
    rule: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
) -> Tensor:
    """x * weight + bias, of normalised rows x; parameters are broadcast in this shape."""
    y, axes, normalised = x, x.dim() - len(shape), x.detach()
    w, b = detached(weight, bias)
    if w is not None:
        y = y * w.reshape(shape)
    if b is not None:
        y = y + b.reshape(shape)

    def uses(owners: Owners, grad: Tensor) -> Uses:
        inputs = normalised.reshape(-1, *normalised.shape[axes:])
        grad = grad.reshape(inputs.shape)
        for parameter, factor in ((weight, inputs), (bias, None)):
            if parameter is not None and parameter.requires_grad:
                rows = grad if factor is None else grad * factor
                sums = owners.sums(rows.sum_to_size(len(rows), *shape))
                yield parameter, Dense(sums.reshape(-1, *parameter.shape))

    return rec.tap(rule, y, axes, [weight, bias], uses)


def layer_norm(
    rec: RowRecorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    x = torch.layer_norm(input, normalized_shape, None, None, eps)
    return affine(rec, "layer_norm", x, weight, bias, normalized_shape)


def rms_norm(
    rec: RowRecorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    x = torch.rms_norm(input, normalized_shape, None, eps)
    return affine(rec, "rms_norm", x, weight, None, normalized_shape)


def group_norm(
    rec: RowRecorder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    x = torch.group_norm(input, num_groups, None, None, eps)
    return affine(rec, "group_norm", x, weight, bias, by_channel(x))


def statistics_norm(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """torch.batch_norm and torch.instance_norm."""

    def rule(
        rec: RowRecorder, input: Tensor, weight: Tensor | None, bias: Tensor | None, *settings: Any
    ) -> Any:
        x = function(input, None, None, *settings)
        return affine(rec, function.__name__, x, weight, bias, by_channel(x))

    return rule


def by_channel(x: Tensor) -> list[int]:
    return [x.shape[1], *[1] * (x.dim() - 2)]


def prelu(rec: RowRecorder, input: Tensor, weight: Tensor) -> Any:
    with rec:
        slope = weight.reshape(by_channel(input)) if len(weight) > 1 else weight
        return torch.where(input > 0, input, slope * input)
