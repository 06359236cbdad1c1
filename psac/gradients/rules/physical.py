"""How rules run their operation: as an ordinary one, on the tensors that hold all records."""

from __future__ import annotations

from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

# In here vmap is off: torch computes with what `Recorder.physical` gives.
physically = temporarily_clear_interpreter_stack


def are_records(*tensors: Tensor | None) -> list[bool]:
    """Which of these have a value for each record; None is passed over."""
    return [_functorch.is_functorch_wrapped_tensor(t) for t in tensors if t is not None]


def detached(*tensors: Tensor | None) -> list[Tensor | None]:
    return [t.detach() if t is not None and t.requires_grad else t for t in tensors]


def folded(tensor: Tensor, dims: int) -> Tensor:
    """[n, leading..., the last `dims`] -> [n x leading, the last `dims`]."""
    return tensor.reshape(-1, *tensor.shape[tensor.dim() - dims :])


def unfolded(tensor: Tensor, like: Tensor, dims: int) -> Tensor:
    """What `folded` did to `like`, undone."""
    return tensor.reshape(*like.shape[: like.dim() - dims], *tensor.shape[1:])
