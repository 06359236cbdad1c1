"""Convolutions of 1 to 3 dimensions: stride, padding, dilation, groups, and transposed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from psac.gradients.contributions.base import Bias
from psac.gradients.precision import as_autocast, wide
from psac.gradients.rules.patches import Patches, Settings
from psac.gradients.rules.physical import are_records, detached, physically, shaped

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses

Sizes = int | Sequence[int]


def convolution(dims: int) -> Callable[..., Any]:
    """The rule of torch.conv1d, conv2d or conv3d."""

    def rule(
        rec: Recorder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Any:
        if not served(rec, input, weight, bias, dims):
            return NotImplemented
        stride, dilation = spread(stride, dims), spread(dilation, dims)
        ahead: list[int] = []
        if isinstance(padding, str):
            padding, ahead = by_name(padding, weight.shape[2:], dilation)
        settings = Settings(stride, spread(padding, dims), dilation, False, [0] * dims, groups)
        return run(rec, input, weight, bias, settings, ahead)

    rule.__name__ = f"conv{dims}d"
    return rule


def transposed_convolution(dims: int) -> Callable[..., Any]:
    def rule(
        rec: Recorder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Any:
        if not served(rec, input, weight, bias, dims):
            return NotImplemented
        stride, padding, dilation = (spread(given, dims) for given in (stride, padding, dilation))
        settings = Settings(stride, padding, dilation, True, spread(output_padding, dims), groups)
        return run(rec, input, weight, bias, settings, [])

    rule.__name__ = f"conv_transpose{dims}d"
    return rule


conv1d, conv2d, conv3d = map(convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(transposed_convolution, (1, 2, 3))


def served(rec: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None, dims: int) -> bool:
    if are_records(input) != [True] or any(are_records(weight, bias)):
        return False
    return input.dim() in (dims + 1, dims + 2) and rec.serves(input, weight)


def run(
    rec: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: Settings,
    ahead: list[int],
) -> Tensor:
    """`ahead` is what the input is padded by before, where that is not the same on both sides."""
    with physically():
        x, w, b = as_autocast(rec.physical(input), *detached(weight, bias))
        frames = x.reshape(-1, *x.shape[-(weight.dim() - 1) :])
        if any(ahead):
            frames = F.pad(frames, ahead)
        y = settings.run(frames, w, b)
        y = shaped(y, (*x.shape[: 1 - weight.dim()], *y.shape[1:]))

        def uses(grad: Tensor) -> Uses:
            grad, part = grad.reshape(len(frames), *grad.shape[1 - weight.dim() :]), None
            if bias is not None and bias.requires_grad:
                part = Bias(rec.num_samples, lambda: sum_of_positions(grad, rec.num_samples))
            if weight.requires_grad:
                shape = tuple(weight.shape)
                yield weight, Patches(frames, grad, rec.num_samples, settings, shape, part)
            if bias is not None and part is not None:
                yield bias, part

        return rec.of_records(rec.tap("convolution", y, [weight, bias], uses, [frames]))


def sum_of_positions(grad: Tensor, n: int) -> Tensor:
    by_frame = wide(grad).flatten(2).sum(2)
    return by_frame.reshape(n, -1, by_frame.shape[1]).sum(1)


def spread(given: Sizes, dims: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * dims if len(values) == 1 else values


def by_name(
    name: str, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]]:
    """`padding` by its name: what it is on both sides, and what is missing on one, for F.pad."""
    if name == "valid":
        return [0] * len(kernel), []
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    ahead = [size for total in reversed(totals) for size in (0, total % 2)]
    return [total // 2 for total in totals], ahead
