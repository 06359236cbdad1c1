"""How rules run their operation: as an ordinary one, on the tensors that hold all records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]


class physically:  # noqa: N801
    """In here vmap is off: torch computes with what `Recorder.physical` gives."""

    __slots__ = ("_layers",)

    def __enter__(self) -> None:
        self._layers = []
        while _functorch.peek_interpreter_stack() is not None:
            self._layers.append(_functorch.pop_dynamic_layer_stack())

    def __exit__(self, *_: object) -> None:
        while self._layers:
            _functorch.push_dynamic_layer_stack(self._layers.pop())


unsafe_view: Any = torch.ops.aten._unsafe_view.default._op  # without the detour through Python


def are_records(*tensors: Tensor | None) -> list[bool]:
    """Which of these have a value for each record; None is passed over."""
    return [_functorch.is_functorch_wrapped_tensor(t) for t in tensors if t is not None]


def detached(*tensors: Tensor | None) -> list[Any]:
    return [t.detach() if t is not None and t.requires_grad else t for t in tensors]


def shaped(output: Tensor, shape: Sequence[int]) -> Tensor:
    """The same memory in another shape, and no view for autograd.

    For outputs that nobody else has: a hook on a view would be lost when it is written in place
    (`F.relu_`).  For gradients: a view would hold the tensor that it was made of.
    """
    return output if output.shape == tuple(shape) else unsafe_view(output, list(shape))
