"""What is done to the outputs of a model, from the moment they are handed to the user.

Outputs are handed on as tensors of a subclass, `Watched`, which writes every torch function that is
called on them, or on what was made from them, on a `LossTape`; its `play` calls them again with
other tensors in the place of some.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import samples as trees
from .layout import Layout
from .proof import HALF

OVER = torch.empty(0)  # in the place of a loss: nothing is recorded any more


class Played(NamedTuple):
    function: Callable
    args: tuple
    kwargs: dict
    result: Any
    autocast: list[tuple[str, torch.dtype]]


class LossTape:
    """What is done to the outputs of the model from the moment they are handed to the user."""

    def __init__(self) -> None:
        self.played: list[Played] = []
        # For each forward: the signature of its graph, and its outputs as they are handed on.
        self.forwards: list[tuple[tuple, Any, list[Tensor]]] = []
        self.outputs: list[tuple[Tensor, Layout | None]] = []  # None: it has no sample dimension
        self.loss: Tensor | None = None
        self.entered_a_model = False  # a private one, whose own proofs cover what follows

    def watch(self, signature: tuple, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a forward as tensors that tell the tape what is done to them."""
        watched = [watch(output, (self,)) for output in outputs]
        self.forwards.append((signature, outputs[0].grad_fn, watched))
        return watched

    def forget(self) -> None:
        """Lets go of the tensors; what the user computes from those they hold is not recorded."""
        self.played, self.forwards, self.outputs, self.loss = [], [], [], OVER

    @property
    def tolerance(self) -> float:
        made = [t for call in self.played for t in trees.leaves(call.result)]
        half = any(t.dtype in HALF for t in (*made, *(output for output, _ in self.outputs)))
        return 5e-2 if half else 1e-3

    def play(self, replaced: dict[int, Tensor], numbers: dict[int, int]) -> Tensor | None:
        """The loss, with other tensors and numbers in the place of some.

        None if it does not depend on them.
        """
        now = dict(replaced)
        for call in self.played:
            inputs = (call.args, call.kwargs)
            if not any(id(t) in now for t in trees.leaves(inputs)):
                continue
            before = trees.leaves(call.result)
            if not before and call.function is not Tensor.__setitem__:
                continue  # a number for the user to look at
            args, kwargs = trees.map_tensors(inputs, lambda t, now=now: now.get(id(t), plain(t)))
            args = exchanged(args, numbers)
            with contextlib.ExitStack() as stack:
                for device, dtype in call.autocast:
                    stack.enter_context(torch.autocast(device, dtype=dtype))
                after = trees.leaves(call.function(*args, **kwargs))
            now.update((id(old), new) for old, new in zip(before, after, strict=True))
        return now.get(id(self.loss))

    def constants(self) -> list[Tensor]:
        """Tensors that the loss uses and that neither the model nor the tape made: labels."""
        made = {id(output) for output, _ in self.outputs}
        made |= {id(t) for call in self.played for t in trees.leaves(call.result)}
        used = [t for call in self.played for t in trees.leaves((call.args, call.kwargs))]
        return list(
            {id(t): t for t in used if isinstance(t, Tensor) and id(t) not in made}.values()
        )


class Watched(Tensor):
    """An output, or what was computed from outputs, whose functions go on their tapes."""

    tapes: tuple[LossTape, ...]

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        watched = [t for t in trees.leaves((args, kwargs)) if isinstance(t, Watched)]
        tapes = tuple(
            {id(tape): tape for t in watched for tape in t.tapes if tape.loss is None}.values()
        )
        if function is Tensor.backward:
            for tape in tapes:
                tape.loss = args[0]
            tapes = ()
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
            if tapes and trees.leaves(result):
                result = trees.map_tensors(result, lambda t: watch(t, tapes))
            if tapes and (trees.leaves(result) or function is Tensor.__setitem__):
                played = Played(function, args, kwargs, result, autocast_now())
                for tape in tapes:
                    tape.played.append(played)
        return result


def watch(tensor: Any, tapes: tuple[LossTape, ...]) -> Any:
    if isinstance(tensor, Watched) or not isinstance(tensor, Tensor):
        return tensor
    watched = tensor.as_subclass(Watched)
    watched.tapes = tapes
    return watched


def plain(tensor: Any) -> Any:
    """The tensor without its tapes."""
    if not isinstance(tensor, Watched):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def exchanged(tree: Any, numbers: dict[int, int]) -> Any:
    """The tree with some of its numbers exchanged: a batch size that is written in."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(exchanged(value, numbers) for value in tree)
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        return numbers.get(int(tree), tree) if tree == int(tree) else tree
    return tree


def autocast_now() -> list[tuple[str, torch.dtype]]:
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
