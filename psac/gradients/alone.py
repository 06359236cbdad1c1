"""One record after the other, for what `torch.vmap` refuses: exact for every model, and slow.

Here plain Python runs between records, and could remember one for the next.  Guarantees:

- Every record starts from the same state of model and function, and must leave the same one; what
  it has left is undone.
- What no walk over objects reaches (files, other threads) is tested: where a function is new, and
  at secret steps, records are computed once more, in another order, and must give the same.
- Which random numbers a record gets follows from what it is, not from its place in the batch.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from psac.gradients import trees
from psac.gradients.errors import PrivacyError, warn
from psac.gradients.isolation.again import Again, refuse_other_result, shuffled
from psac.gradients.isolation.beginning import Beginning
from psac.gradients.isolation.checksums import checksums
from psac.gradients.isolation.generators import own_generators
from psac.gradients.isolation.memory import Memory
from psac.gradients.isolation.outside import Outside
from psac.gradients.isolation.state import refuse_memory, tell_of_undone
from psac.gradients.isolation.watch import Watch, refuse_remains
from psac.gradients.measured import Measured
from psac.gradients.trees import LossFunction, own_copy
from psac.gradients.vectorized.evaluate import (
    Evaluation,
    gradient_of,
    one_number,
)
from psac.gradients.vectorized.libraries import (
    OPERATORS,
    as_written,
    guarded,
    refuse_operator_in_python,
    refuse_seeding,
    without_checkpoints,
)
from psac.gradients.vectorized.recorder import tensors_in, under

TORCH: Any = torch._C


class OneRecord(TorchFunctionMode):
    """Plain torch on one record; what was computed from the record is known, and watched."""

    def __init__(self, watch: Watch, record: list[Tensor]) -> None:
        super().__init__()
        self.watch = watch
        self._of_record = set(map(id, record))
        watch.known |= self._of_record
        for tensor in record:
            watch.keep(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return self._run(func, args, kwargs or {})
        except PrivacyError as error:
            self.watch.raised(error)
            raise

    def _run(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        if isinstance(func, OPERATORS):
            refuse_operator_in_python(func, is_alone=True)
        is_of_record = False
        for tensor in tensors_in((*args, *kwargs.values())):
            if id(tensor) in self._of_record:
                is_of_record = True
            elif id(tensor) not in self.watch.known:
                self.watch.meet(tensor)
        result = func(*under(self, args), **under(self, kwargs))
        for tensor in tensors_in((result,)):
            self.watch.known.add(id(tensor))
            if is_of_record:
                self._of_record.add(id(tensor))
                self.watch.keep(tensor)
            else:
                self._of_record.discard(id(tensor))
        return result


class OneByOne:
    """Evaluates one record after the other, by plain autograd."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], outside: Outside
    ) -> None:
        self.model, self.parameters, self.outside = model, parameters, outside
        self.read: list[Any] = []
        self._again = Again()
        self._beginning: Beginning | None = None  # of the last batch
        self._has_had_gradients = False

    def evaluate(self, loss: LossFunction, batch: Any) -> Evaluation:
        refuse_those_who_look()
        n, seed = trees.num_records(batch), int(torch.randint(2**62, ()))
        self.read = []
        twice, order = self._again.is_due(loss), shuffled(n)
        by_number = dict(self._each(loss, batch, order, seed, not twice))
        if twice:
            for k, again in self._each(loss, batch, reversed(order), seed):
                refuse_other_result(f"record {k}", by_number[k], again)
            self._again.passed(loss)
        results = [by_number[k] for k in range(n)]
        rows = {name: [grads.get(name) for _, grads in results] for name in self.parameters}
        stacked = {
            name: filled(grads) for name, grads in rows.items() if any(g is not None for g in grads)
        }
        if not (stacked or self._has_had_gradients):
            warn(
                "no loss of this batch depends on a trainable parameter of the model. That is fine "
                "if all of its records are masked. Was the output detached?",
                UserWarning,
            )
        self._has_had_gradients = True  # or one warning, which is enough
        losses = torch.stack([value for value, _ in results])
        return Evaluation(losses, Measured.of_rows(stacked, n), "alone")

    def _each(
        self, loss: LossFunction, batch: Any, order: Iterable[int], seed: int, keeps: bool = True
    ) -> Iterator[tuple[int, tuple[Tensor, dict[str, Tensor]]]]:
        """Numbers of records, and the loss and the gradient of each, all from one state."""
        private = self.outside.private(batch)
        roots = {"model": self.model, "loss": loss}
        before, left, order = (
            Beginning.following(self._beginning, roots, private),
            None,
            list(order),
        )
        self._beginning = before

        def run(one: Any) -> tuple[Tensor, dict[str, Tensor]]:
            with own_generators(hash((seed, *checksums(trees.leaves(one))))):
                return contextvars.copy_context().run(self.gradient, loss, one, private)

        for k in order:
            try:
                result = run(trees.record(batch, k))
            finally:
                difference = before.left(whole=k == order[-1])
            if left is not None and left != difference:
                refuse_memory(left, difference)
            left = difference
            yield k, result
        if left and keeps:
            made_up = (functools.partial(run, one) for one in trees.made_up(batch))
            if not before.keep(left, made_up):
                tell_of_undone(left)

    def gradient(
        self, loss: LossFunction, one: Any, private: Memory
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one record and its gradient, by name where there is any."""
        one = trees.map_tensors(one, own_copy)
        watch, seed = Watch(self.outside, private), torch.initial_seed()
        grads = [p.grad for p in self.parameters.values()]
        with (
            torch.enable_grad(),
            guarded(),
            as_written(),
            without_checkpoints(),
            OneRecord(watch, trees.leaves(one)),
        ):
            value = one_number(trees.call(loss, self.model, one)).reshape(())
        watch.refuse_caught()
        if torch.initial_seed() != seed:
            refuse_seeding()
        refuse_backward(self.parameters, grads)
        found = gradient_of(value, self.parameters)
        value = value.detach().clone()
        del one
        refuse_remains(self.model, watch.remains(), {"model": self.model, "loss": loss})
        self.read += watch.read
        return value, found


def refuse_backward(parameters: Mapping[str, nn.Parameter], before: list[Tensor | None]) -> None:
    """Raises if the function has given parameters a gradient."""
    pairs = list(zip(parameters.values(), before, strict=True))
    if all(parameter.grad is grad for parameter, grad in pairs):
        return
    for parameter, grad in pairs:
        parameter.grad = grad
    raise PrivacyError(
        "the loss function calls backward(), which adds to the gradients of parameters, neither "
        "clipped nor noisy. For a gradient inside the function (an adversarial step, a penalty), "
        "use torch.autograd.grad; psac runs the backward of the loss itself."
    )


def refuse_those_who_look() -> None:
    """Raises for what is on around the call, and would see one record after the other."""
    if torch._C._len_torch_dispatch_stack():
        raise PrivacyError(
            "a TorchDispatchMode is on: it sees one record after the other, and psac does not "
            "see what it keeps. Call private.step outside of it."
        )
    if TORCH._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise PrivacyError(
            "hooks on saved tensors are on: they see one record after the other, and psac does "
            "not see what they keep. Call private.step outside of them."
        )


def filled(grads: list[Tensor | None]) -> Tensor:
    like = next(g for g in grads if g is not None)
    return torch.stack([torch.zeros_like(like) if g is None else g for g in grads])
