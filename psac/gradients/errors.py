"""What the engine refuses, and why."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

import torch

from psac.errors import PrivacyError, PrivacyWarning, warn

__all__ = ["NotIsolated", "NotVectorized", "PrivacyError", "PrivacyWarning", "SlowPathWarning"]
# Code that is not the user's: torch, psac, Python itself.
PACKAGES = tuple(
    str(path)
    for path in (
        Path(torch.__file__).parent,
        Path(__file__).parents[1],
        Path(contextlib.__file__).parent / "contextlib.py",
        Path(contextlib.__file__).parent / "functools.py",
    )
)
VALUES = (
    "it takes a number out of a tensor. Compute with the tensor itself, and leave .item(), "
    ".tolist(), .numpy() and printing out"
)
# What torch says under vmap -> what to write instead; the first that fits.
REMEDIES = {
    "data-dependent control flow": VALUES,
    ".item()": VALUES,
    "dynamic shape": VALUES,
    "numpy": VALUES,
    "text of a tensor": "leave printing and logging of tensors out, or print their shapes alone",
    "catches an error": (
        "ask for what the error would tell, as torch.linalg.cholesky_ex and torch.where do"
    ),
    "TorchScript": "train the module itself, and let torch.jit have it afterwards",
    "torch.jit": "train the module itself, and let torch.jit have it afterwards",
    "vmap rule": "leave the vmap rule out: torch then runs the function record by record",
    "is not possible because there exists a Tensor": (
        "it writes values of a record into a tensor from outside. Make a new tensor instead"
    ),
    "saved_tensors_hooks": "leave hooks on saved tensors out",
    "backward() called inside": "take gradients by torch.autograd.grad",
    "_make_dual": "take tangents by torch.func.jvp instead of torch.autograd.forward_ad",
    "Tensor.requires_grad_()": (
        "freeze a layer for a part of the function by torch.func.functional_call with detached "
        "parameters, and take gradients by torch.autograd.grad"
    ),
    "cannot register a hook": (
        "change the gradient by the tensor itself: k * x + ((1 - k) * x).detach() scales it by k"
    ),
}


class NotIsolated(PrivacyError):
    """A record's gradient depends on other records of the batch."""


class NotVectorized(Exception):
    """Internal: the function cannot be evaluated under vmap; records are computed one at a time."""


class SlowPathWarning(UserWarning):
    """Records are computed one at a time: exact, isolated and slow."""


def announce_alone(error: BaseException, place: str) -> str:
    """Warns that vmap refused the loss function, where, and what to write; returns the reason."""
    text = " ".join(str(error).split())
    reason = f"{place}: {text[:200]}"
    remedy = next((cure for sign, cure in REMEDIES.items() if sign in text), "")
    warn(
        f"torch.vmap cannot run the loss function ({reason}), so records are computed one at a "
        "time: exact and isolated, but slow."
        + (f" To make it fast: {remedy}." if remedy else "")
        + " docs/models.md has a table of remedies.",
        SlowPathWarning,
    )
    return reason


def announce_paths(place: str) -> None:
    """Warns that records take so many paths that little is gained by vmap; says no number of them.

    How many records a batch has is secret.
    """
    warn(
        "most records of a batch take different paths through the loss function, because it "
        f"branches on values ({place}). Each path is evaluated separately: exact and isolated, but "
        "slow. To make it fast, replace branches by torch.where, x[mask] by a product with the "
        "mask, and lengths by padding and a mask (docs/models.md).",
        SlowPathWarning,
    )


def place_of(traceback: TracebackType | None) -> str:
    """The deepest line of the user's own code."""
    place = "the loss function"
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(PACKAGES) and not path.startswith("<"):
            place = f"{Path(path).name}, line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
