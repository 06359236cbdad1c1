"""Affine parameters of layer, group, instance and (fixed) batch norm.

gradient of the weight = sum of g * normalised input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from psac.gradients.contributions.base import Dense
from psac.gradients.contributions.memory import SCRATCH_BYTES, scratch, slices
from psac.gradients.kernels.loops import loops
from psac.gradients.precision import wide
from psac.gradients.rules.physical import are_records, detached, physically, shaped

if TYPE_CHECKING:
    from psac.gradients.vectorized.recorder import Recorder, Uses


def served(rec: Recorder, input: Tensor, *parameters: Tensor | None) -> bool:
    present = [p for p in parameters if p is not None]
    if are_records(input) != [True] or any(are_records(*present)):
        return False
    # mixed precision and autocast are left to torch
    if any(p.dtype is not input.dtype for p in present):
        return False
    return rec.serves(input, *present)


def layer_norm(
    rec: Recorder,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    input = rec.one_for_each(input)
    if len(normalized_shape) > input.dim():
        raise RuntimeError(  # under vmap torch takes in the axis of records
            f"normalized_shape is {list(normalized_shape)}, and the input {list(input.shape)}"
        )
    if not served(rec, input, weight, bias):
        return NotImplemented
    with physically():
        x, n = rec.physical(input), rec.num_samples
        w, b = detached(weight, bias)
        y, mean, rstd = torch.native_layer_norm(x, normalized_shape, w, b, eps)

        def uses(grad: Tensor) -> Uses:
            sides = (t.reshape(n, -1, math.prod(normalized_shape)) for t in (grad, x))
            statistics = (t.reshape(n, -1) for t in (mean, rstd))
            return affine(weight, bias, layer_norm_sums(*sides, *statistics))

        return rec.of_records(rec.tap("layer_norm", y, [weight, bias], uses, [x]))


def layer_norm_sums(
    grad_npd: Tensor, inputs_npd: Tensor, mean_np: Tensor, rstd_np: Tensor
) -> tuple[Dense, Dense]:
    """Gradients of weight and bias, [n, d] each."""
    operands, compiled = (grad_npd, inputs_npd, mean_np, rstd_np), loops()
    if compiled is not None and compiled.serves(*operands):
        bias, weight = compiled.layer_norm(*operands)
        return Dense(*weight), Dense(*bias)
    grad = wide(grad_npd)
    product = wide(inputs_npd) - mean_np.unsqueeze(-1)
    return Dense(product.mul_(rstd_np.unsqueeze(-1)).mul_(grad).sum(1)), Dense(grad.sum(1))


def affine(weight: Tensor | None, bias: Tensor | None, sums: tuple[Dense, Dense]) -> Uses:
    """The sums of those that are trained, in the shape of the parameters."""
    for parameter, part in zip((weight, bias), sums, strict=True):
        if parameter is not None and parameter.requires_grad:
            yield parameter, Dense(part.values.reshape(-1, *parameter.shape), part.squares)


def group_norm(
    rec: Recorder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    if not served(rec, input, weight, bias):
        return NotImplemented
    with physically():
        x = rec.physical(input)
        frames = x.flatten(0, 1).contiguous()
        rows, channels, *positions = frames.shape
        w, b = detached(weight, bias)
        y, mean, rstd = torch.native_group_norm(
            frames, w, b, rows, channels, math.prod(positions), num_groups, eps
        )

        def uses(grad: Tensor) -> Uses:
            grad = positions_last(grad.flatten(0, 1))
            sums = group_norm_sums(grad, positions_last(frames), mean, rstd)
            return affine(weight, bias, of_samples(rec, *sums))

        y = shaped(y, x.shape)
        return rec.of_records(rec.tap("group_norm", y, [weight, bias], uses, [frames]))


def group_norm_sums(
    grad: Tensor, inputs: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums over positions for weight and bias, [frames, channels] each."""
    grad, inputs = wide(grad), wide(inputs)
    operands, compiled = (grad, inputs, mean, rstd), loops()
    if compiled is not None and compiled.serves(*operands):
        bias, weight = compiled.group_norm(*operands)
        return weight, bias
    mean, rstd = (
        wide(t).repeat_interleave(inputs.shape[1] // mean.shape[1], 1) for t in (mean, rstd)
    )
    total, scaled = torch.empty_like(mean), torch.empty_like(mean)
    # what is read twice is still in the cache
    for s in slices(len(inputs), inputs[0].nbytes, SCRATCH_BYTES):
        torch.sum(grad[s], 2, out=total[s])
        centred = torch.sub(inputs[s], mean[s].unsqueeze(-1), out=scratch(inputs[s]))
        torch.sum(centred.mul_(grad[s]), 2, out=scaled[s])
    return scaled.mul_(rstd), total


def instance_norm(
    rec: Recorder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """A group for each channel, or a batch norm with fixed statistics."""
    if not use_input_stats:
        return batch_norm(
            rec, input, weight, bias, running_mean, running_var, False, momentum, eps, False
        )
    if running_mean is not None or input.dim() < 3:
        return NotImplemented
    return group_norm(rec, input, input.shape[1], weight, bias, eps)


def batch_norm(
    rec: Recorder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """With fixed statistics."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    if not served(rec, input, weight, bias, running_mean, running_var):
        return NotImplemented
    with physically():
        x = rec.physical(input)
        frames = x.flatten(0, 1)
        w, b = detached(weight, bias)
        y = torch.batch_norm(frames, w, b, running_mean, running_var, False, momentum, eps, False)

        def uses(grad: Tensor) -> Uses:
            grad, inputs = (positions_last(wide(t)) for t in (grad.flatten(0, 1), frames))
            factor = (wide(running_var) + eps).rsqrt()
            centred = inputs - wide(running_mean).unsqueeze(-1)
            sums = (grad * centred).sum(2) * factor, grad.sum(2)
            return affine(weight, bias, of_samples(rec, *sums))

        y = shaped(y, x.shape)
        return rec.of_records(rec.tap("batch_norm", y, [weight, bias], uses, [frames]))


def positions_last(values: Tensor) -> Tensor:
    """[frames, channels, positions], with one position where there are none."""
    return values.flatten(2) if values.dim() > 2 else values.unsqueeze(-1)


def of_samples(rec: Recorder, *sums: Tensor) -> tuple[Dense, Dense]:
    """[frames, channels] -> a sum over the frames of each record."""
    weight, bias = (Dense(t.reshape(rec.num_samples, -1, t.shape[1]).sum(1)) for t in sums)
    return weight, bias
