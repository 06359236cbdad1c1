"""Nothing but the released gradient moves the model.

Guarantees, for the model and the optimizer of a private run:

- A backward of the user's own that reaches a private parameter raises, and so does a call of
  `optimizer.step()` that the run did not make.
- The optimizer sees the gradient that was handed to it: hooks around its step that change the
  gradient or the model raise.
- A parameter, a buffer or a part of `optimizer.state` that something other than the optimizer has
  written to since the last step is refused by name.  Writes to large tensors that torch does not
  know of (`.data`, numpy) are seen in the first three steps, and later within 16 steps if they are
  repeated in each (`psac.gradients.isolation.checksums`).
- The parameters that are trained are those of the beginning, and the optimizer has no others.

Not covered: settings of the optimizer (`param_groups`), such as a learning rate.  Schedules change
them, and nobody can see what a number was computed from.

`detach` gives model and optimizer back without a trace.
"""

# Private names of torch: the hooks of an optimizer, the stores of a module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import secrets
import sys
from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from psac.distributed.sharded import local
from psac.errors import PrivacyError, warn
from psac.gradients.isolation.checksums import Marks, Prints, checksums
from psac.gradients.isolation.eligibility import attach, attached, modules_of, refuse_modules

OPTIMIZERS: Any = sys.modules["torch.optim.optimizer"]
FIRST_TURNS = 3  # at which everything is read
FUNCTION_FORM = """\
    def loss(model, x, y):            # a batch of one record
        return F.cross_entropy(model(x), y)

    for batch in private.loader:
        private.step(loss, batch)"""


class Guard:
    """Watches one model and its optimizer, from `attach` to `detach`."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, parameters: dict[str, Any]
    ) -> None:
        self.model, self.optimizer, self.parameters = model, optimizer, parameters
        self._names = {id(p): name for name, p in parameters.items()}
        self._prints: Prints | None = None  # of all tensors of the model, after the last step
        self._state: tuple[Marks, list[Any]] | None = None  # tensors and numbers of the optimizer
        self._turn = self._first_turn = secrets.randbits(30)
        self._after_prints: Prints | None = None
        self._stepping = False
        self._gradients: list[Tensor] = []  # on their way to the optimizer
        self._gradient_prints: list[int] = []
        self._handles: list[Any] = []

    # Life
    def attach(self, owner: Any) -> None:
        """Raises for a model or an optimizer that cannot be trained privately."""
        refuse_optimizer(self.optimizer)
        refuse_modules(self.model)
        self._refuse_strangers({id(p) for p in self.model.parameters()})
        attach(self.model, self.parameters, owner)
        optimized = {id(p): p for g in self.optimizer.param_groups for p in g["params"]}
        for parameter in [*self.parameters.values(), *optimized.values()]:
            parameter.grad = None  # computed without noise: the optimizer must not see it
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        self._handles += [
            p.register_post_accumulate_grad_hook(self._refuse_backward)
            for p in self.parameters.values()
        ]
        left_out = [name for name, p in self.parameters.items() if id(p) not in optimized]
        if left_out:
            warn(
                f"the parameters {left_out} are trainable but not in the optimizer: they never "
                "change, yet their gradients count in the norms. Freeze them by "
                "requires_grad_(False).",
                UserWarning,
            )

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        attached.pop(self.model, None)

    def trainable_modules(self) -> list[nn.Module]:
        """Those with parameters that are trained; an activation may serve many models."""
        return [
            module
            for module in self.model.modules()
            if any(id(p) in self._names for p in module.parameters(recurse=False))
        ]

    # Between steps
    def remember(self) -> None:
        """The model as it is now is what the next step must find."""
        self._turn += 1
        is_new = self._turn <= self._first_turn + FIRST_TURNS
        self._prints = Prints(self._held(), self._turn, reads_all=is_new)
        tensors, numbers = self._parts_of_state()
        self._state = Marks(tensors, self._turn, reads_all=is_new), numbers

    def begin(self) -> None:
        """From here on a batch is known to the user."""
        if self._prints is None:
            self.remember()

    def forget(self) -> None:
        """Whatever was changed is accepted."""
        self._prints = self._state = None

    def refuse_changes(self) -> None:
        """Raises if something other than the optimizer has written to the model, or to its state.

        And if others of its parameters are trained than at the beginning.
        """
        tensors = self._tensors()
        self._refuse_other_parameters(tensors)
        if self._prints is None or self._state is None:
            return
        changed, names = self._prints.changed(self._held()), []
        if changed:
            names = [name for k, name in enumerate(self._names_of_tensors()) if k in changed]
        tensors, numbers = self._parts_of_state()
        before, numbers_before = self._state
        in_state = before.changed(tensors)
        if in_state or numbers != numbers_before:
            every = self._names_of_state()
            names += [every[k] for k in sorted(in_state) if k < len(every)] or ["optimizer.state"]
        if changed or names:
            raise PrivacyError(
                f"{', '.join(names[:5]) or 'a tensor of the model'} was changed since the last "
                "step, and not by the optimizer: if it was computed from private records, it would "
                "be released without noise. If the change is public, make it within "
                "`with private.public_change():`."
            )

    def _refuse_other_parameters(self, tensors: list[Tensor]) -> None:
        trained = [t for t in tensors if t.requires_grad and isinstance(t, nn.Parameter)]
        if self._names.keys() != set(map(id, trained)):
            changed = [name for name, p in self.parameters.items() if not p.requires_grad]
            changed += [
                f"a new one of shape {list(p.shape)}" for p in trained if id(p) not in self._names
            ]
            raise PrivacyError(
                f"{', '.join(changed[:5])}: which parameters are trained was changed after "
                "make_private. Close the run and make a new one, which costs its own privacy; both "
                "together cost (first.ledger + second.ledger).epsilon(delta)."
            )
        self._refuse_strangers(self._names)

    def _tensors(self) -> list[Tensor]:
        stores = [s for m in modules_of(self.model) for s in (m._parameters, m._buffers)]
        return [t for store in stores for t in store.values() if t is not None]

    def _held(self) -> list[Tensor]:
        """What of them is on this worker."""
        return [local(tensor) for tensor in self._tensors()]

    def _names_of_tensors(self) -> list[str]:
        """In the order of the fingerprints."""
        return [
            f"{path}.{name}".lstrip(".")
            for path, module in self.model.named_modules()
            for store in (module._parameters, module._buffers)
            for name, tensor in store.items()
            if tensor is not None
        ]

    def _parts_of_state(self) -> tuple[list[Tensor], list[Any]]:
        """Tensors and numbers that the optimizer keeps from step to step, such as momentum."""
        tensors: list[Tensor] = []
        numbers: list[Any] = []
        for _, value in self._values_of_state():
            if isinstance(value, Tensor):
                tensors.append(local(value))
            elif isinstance(value, (int, float)):
                numbers.append(value)
        return tensors, numbers

    def _names_of_state(self) -> list[str]:
        """In the order of the tensors."""
        return [
            f"the optimizer's {key} of {self._names.get(id(parameter), 'a parameter')}"
            for parameter, state in self.optimizer.state.items()
            for key, value in self._values_of_state([state])
            if isinstance(value, Tensor)
        ]

    def _values_of_state(self, states: Iterable[Any] | None = None) -> list[tuple[str, Any]]:
        """By name; of a list, each of its values."""
        found: list[tuple[str, Any]] = []
        for state in self.optimizer.state.values() if states is None else states:
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, (list, tuple)):
                    found += [(key, part) for part in value]
                else:
                    found.append((key, value))
        return found

    def _refuse_strangers(self, known: Container[int]) -> None:
        """Raises for what the optimizer would train that is not known, by its id."""
        strange = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in known:
                    if p.requires_grad:
                        strange.append(list(p.shape))
                    else:
                        p.grad = None  # it would move all the same
        if strange:
            raise PrivacyError(
                f"the optimizer has {len(strange)} parameters that are not the model's, or were "
                f"not when make_private was called (of shapes {strange[:3]}): their gradients "
                "would be neither clipped nor noisy. Give them to the model before that, or to an "
                "optimizer of their own if no private data reaches them."
            )

    # The optimizer's step
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """The optimizer's step, on these gradients and no others."""
        for name, parameter in self.parameters.items():
            # rounded to half precision here, with its noise; the sum before it is not
            parameter.grad = gradients[name].to(parameter.dtype)
        self._surround_other_hooks()
        self._gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        self._gradient_prints = self._prints_of(self._gradients) if self._has_other_hooks() else []
        self._stepping = True
        try:
            self.optimizer.step()
            self._refuse_changes_of_hooks()
        finally:
            self._stepping, self._gradients = False, []
            for parameter in self.parameters.values():
                parameter.grad = None

    def _before_step(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        """Whoever calls optimizer.step: only `step` may."""
        if not self._stepping:
            for parameter in self.parameters.values():
                parameter.grad = None
            raise PrivacyError(
                "optimizer.step() was called on a private model. psac calls it itself, when a "
                f"logical batch is complete. Write\n{FUNCTION_FORM}"
            )
        if not self._gradients:
            return  # of a class whose step calls super().step(): the outer one has been here
        grads, handed = [p.grad for p in self.parameters.values()], self._gradients
        self._gradients = []
        prints = self._gradient_prints
        if not all(a is b for a, b in zip(grads, handed, strict=True)) or (
            prints and self._prints_of(handed) != prints
        ):
            raise PrivacyError(
                "a hook on optimizer.step has changed the private gradient, or the model, before "
                "the optimizer saw it. Remove the hook. What is computed from the released "
                "gradient alone belongs into a step of your own optimizer class."
            )

    def _after_step(self, *_: Any) -> None:
        """The first of the hooks after the optimizer's step."""
        self._after_prints = Prints(self._watched()) if self._has_other_hooks() else None

    def _refuse_changes_of_hooks(self) -> None:
        if self._after_prints is not None and self._after_prints.changed(self._watched()):
            raise PrivacyError(
                "a hook after optimizer.step has changed the model, or the optimizer's state. If "
                "the change is public, make it after private.step, within `with "
                "private.public_change():`."
            )

    def _watched(self) -> list[Tensor]:
        """What hooks must leave alone."""
        return self._held() + self._parts_of_state()[0]

    def _prints_of(self, gradients: list[Tensor]) -> list[int]:
        return checksums([*map(local, gradients), *self._watched()])

    def _surround_other_hooks(self) -> None:
        """Ours runs last before the step and first after it, so that it sees what others do."""
        before, after = self._handles[0].id, self._handles[1].id
        hooks: Any = self.optimizer
        hooks._optimizer_step_pre_hooks.move_to_end(before)
        hooks._optimizer_step_post_hooks.move_to_end(after, last=False)

    def _has_other_hooks(self) -> bool:
        """Whether somebody else has hooks around the optimizer's step."""
        return (
            len(self.optimizer._optimizer_step_pre_hooks) > 1
            or len(self.optimizer._optimizer_step_post_hooks) > 1
            or bool(OPTIMIZERS._global_optimizer_pre_hooks)
            or bool(OPTIMIZERS._global_optimizer_post_hooks)
        )

    def _refuse_backward(self, parameter: Tensor) -> None:
        """A backward of the user's own has reached a private parameter."""
        parameter.grad = None
        name = self._names.get(id(parameter), "a parameter")
        raise PrivacyError(
            f"backward() has reached '{name}' of the private {type(self.model).__name__}: that "
            "gradient is neither clipped nor noisy. psac runs the backward itself. Write\n"
            f"{FUNCTION_FORM}\nFor a gradient inside the function (an adversarial step, a "
            "penalty), use torch.autograd.grad. To train something else through the model, call "
            "backward within `with private.paused():`."
        )


def refuse_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is {type(optimizer).__name__}: pass a torch.optim.Optimizer.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyError(
            "LBFGS evaluates the loss several times within a step, and each time is a release. "
            "Use an optimizer that takes one gradient a step, such as SGD or Adam."
        )
