"""Settings of torch, numpy and the process that change what a function computes.

They are in no object that a walk reaches.  A function that follows them reads what switched them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

BACKENDS: Any = torch._C
NAMES = (
    *("default dtype", "autocast", "autocast's dtype", "autocast on cuda", "deterministic"),
    *("matmul precision", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32"),
    *("inference mode", "numpy's errors", "the working directory"),
)


def settings() -> tuple[Any, ...]:
    """In the order of `NAMES`, in some microseconds."""
    return (
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.are_deterministic_algorithms_enabled(),
        BACKENDS._get_float32_matmul_precision(),
        BACKENDS._get_cudnn_benchmark(),
        BACKENDS._get_cudnn_deterministic(),
        BACKENDS._get_cudnn_allow_tf32(),
        torch.is_inference_mode_enabled(),
        np.geterr(),
        os.getcwd(),
    )


def changed_settings(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[str]:
    if before == now:
        return []
    pairs = zip(NAMES, before, now, strict=True)
    return [f"a setting ({name})" for name, was, is_now in pairs if was != is_now]
