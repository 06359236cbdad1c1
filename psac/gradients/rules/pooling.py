"""Max pooling of images with stride one, by a compiled loop in a tenth of torch's time.

It has no parameters.  The backward pass is torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.kernels.loops import loops
from psac.gradients.rules.convolution import spread
from psac.gradients.rules.physical import are_records, physically

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder

Pair = int | Sequence[int]


class MaxPool(torch.autograd.Function):
    """Of images [..., height, width]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: list[int], dilation: list[int]) -> Tensor:
        compiled = loops()
        assert compiled is not None, "the rule serves only where there are compiled loops"
        outputs, places = compiled.max_pool(images, kernel, dilation)
        ctx.save_for_backward(images, places)
        ctx.kernel, ctx.dilation = kernel, dilation
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        images, places = ctx.saved_tensors
        planes, grad, places = (t.reshape(1, -1, *t.shape[-2:]) for t in (images, *grads, places))
        pulled = torch.ops.aten.max_pool2d_with_indices_backward(
            grad, planes, ctx.kernel, [1, 1], [0, 0], ctx.dilation, False, places
        )
        return pulled.view(images.shape), None, None


def max_pool2d(
    rec: Recorder,
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    kernel, dilation = spread(kernel_size, 2), spread(dilation, 2)
    steps = kernel if stride in (None, [], ()) else spread(stride, 2)  # type: ignore[arg-type]
    is_plain = steps == [1, 1] and spread(padding, 2) == [0, 0] and not return_indices
    if not is_plain or input.dim() not in (3, 4):
        return NotImplemented
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    is_inside = all(0 <= r < size for r, size in zip(reach, input.shape[-2:], strict=True))
    compiled = loops() if is_inside and min(*kernel, *dilation) > 0 else None
    if compiled is None or are_records(input) != [True] or not rec.serves(input):
        return NotImplemented
    with physically():
        images = rec.physical(input)
        if images.is_contiguous() and images.numel() and compiled.serves(images):
            return rec.of_records(MaxPool.apply(images, kernel, dilation))
    return NotImplemented
