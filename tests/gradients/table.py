"""How a row of the table of models is written.

A row is a name and a function that builds a `Case`. The rows are in `models/`, by family;
`cases.py` has all of them. Batches are small, and sizes differ from each other except where a row
is about sizes that coincide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    model: nn.Module
    batch: Any  # a tree of tensors with records along their first axis
    loss: Callable[..., Tensor]  # loss(model, *batch) of a batch of one record
    way: str = "vmap"  # how psac evaluates it; "alone" is slow, so that a row must say so


CASES: dict[str, Callable[[], Case]] = {}


def row(
    name: str,
    build: Callable[[], nn.Module],
    batch: Callable[[], Any],
    loss: Callable[..., Tensor],
    way: str = "vmap",
) -> None:
    """Any model, batch and loss."""
    assert name not in CASES, name
    CASES[name] = lambda: Case(build(), batch(), loss, way)


def rows(
    name: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    call: Callable[..., Any] = lambda model, x: model(x),
    way: str = "vmap",
    below: int | None = None,
) -> None:
    """A model and how it is called, on random numbers, or on whole numbers below `below`."""

    def batch() -> Tensor:
        return torch.randn(shape) if below is None else torch.randint(below, shape)

    row(name, build, batch, lambda model, x: uneven(call(model, x)), way)


def uneven(out: Any) -> Tensor:
    """A loss that reaches every number of the output, each in its own way."""
    out = out[0] if isinstance(out, tuple) else out
    flat = out.abs().flatten() if out.is_complex() else out.flatten()
    return ((flat - 0.3).square() * torch.linspace(0.5, 1.5, len(flat), dtype=flat.dtype)).sum()


def squares(model: nn.Module, x: Any) -> Tensor:
    return uneven(model(x))


class Raw(nn.Module):
    """Parameters without a layer, and what is done with them."""

    def __init__(self, function: Callable[..., Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def raw(
    name: str,
    function: Callable[..., Tensor],
    shape: tuple[int, ...],
    way: str = "vmap",
    **shapes: tuple[int, ...],
) -> None:
    """Parameters of these shapes, and a function of them and of a record."""
    rows(name, lambda: Raw(function, shapes), shape, way=way)


class Call(nn.Module):
    """A layer that is called in a way of its own, with others before and behind if need be."""

    def __init__(self, call: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.call(self, *given, **named)
