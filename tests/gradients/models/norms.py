"""Normalisation: layer, group, instance, RMS, and batch norm with fixed statistics."""

from __future__ import annotations

import torch
from torch import nn

from tests.gradients.models.convolutions import PLAIN, SIZES
from tests.gradients.table import rows

INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def behind_linear(norm: nn.Module, features: int = 4) -> nn.Sequential:
    """So that the input of the norm has a gradient of its own."""
    return nn.Sequential(nn.Linear(features, features), norm)


def with_statistics(norm: nn.Module) -> nn.Module:
    """A norm in evaluation mode, whose statistics are not zero and one."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm.eval()


rows("layer_norm", lambda: behind_linear(nn.LayerNorm(4)), (5, 6, 4))
rows("layer_norm_of_two_axes", lambda: nn.LayerNorm((3, 4)), (5, 2, 3, 4))
rows("layer_norm_of_all", lambda: nn.LayerNorm((6, 4)), (5, 6, 4))
rows(
    "layer_norm_no_affine",
    lambda: behind_linear(nn.LayerNorm(4, elementwise_affine=False)),
    (5, 6, 4),
)
rows("layer_norm_no_bias", lambda: behind_linear(nn.LayerNorm(4, bias=False)), (5, 4))
rows("rms_norm", lambda: behind_linear(nn.RMSNorm(4)), (5, 6, 4))
rows("rms_norm_of_two_axes", lambda: nn.RMSNorm((3, 4), eps=1e-3), (5, 2, 3, 4))
rows(
    "rms_norm_no_affine", lambda: behind_linear(nn.RMSNorm(4, elementwise_affine=False)), (5, 6, 4)
)
rows("group_norm_without_positions", lambda: behind_linear(nn.GroupNorm(2, 4)), (5, 4))
rows(
    "batch_norm_without_positions",
    lambda: behind_linear(with_statistics(nn.BatchNorm1d(4))),
    (5, 4),
)
for _dims, _shape in SIZES.items():

    def behind(norm: nn.Module, dims: int = _dims) -> nn.Sequential:
        return nn.Sequential(PLAIN[dims](4, 4, 2), norm, nn.Tanh())

    rows(f"group_norm_{_dims}d", lambda f=behind: f(nn.GroupNorm(2, 4)), _shape)
    rows(
        f"group_norm_{_dims}d_no_affine",
        lambda f=behind: f(nn.GroupNorm(2, 4, affine=False)),
        _shape,
    )
    rows(
        f"instance_norm_{_dims}d",
        lambda f=behind, d=_dims: f(INSTANCE[d](4, affine=True)),
        _shape,
    )
    rows(f"instance_norm_{_dims}d_no_affine", lambda f=behind, d=_dims: f(INSTANCE[d](4)), _shape)
    rows(
        f"instance_norm_{_dims}d_of_one_image",
        lambda d=_dims: INSTANCE[d](4, affine=True),
        _shape,
        lambda m, x: m(x[0]),
    )
    rows(
        f"instance_norm_{_dims}d_fixed",
        lambda f=behind, d=_dims: f(
            with_statistics(INSTANCE[d](4, affine=True, track_running_stats=True))
        ),
        _shape,
    )
    rows(
        f"batch_norm_{_dims}d_fixed",
        lambda f=behind, d=_dims: f(with_statistics(BATCH[d](4))),
        _shape,
    )
    rows(
        f"batch_norm_{_dims}d_no_affine",
        lambda f=behind, d=_dims: f(with_statistics(BATCH[d](4, affine=False))),
        _shape,
    )
rows(
    "local_response_norm",
    lambda: nn.Sequential(nn.Conv2d(4, 4, 2), nn.LocalResponseNorm(2)),
    (4, 4, 5, 6),
)
