"""Chooses how a loss function is evaluated, and refuses what would let one record see another.

    evaluator = Evaluator(model)
    evaluation = evaluator(loss, batch)      # one loss for each record, and per-sample gradients

Guarantees, on every call:

- A record's loss and gradient are computed from that record, the model, and what the function reads
  from outside, never from another record: by `torch.vmap`, or, where vmap refuses, one at a time.
  With `batched=True` the function sees the whole batch, and this is tested (isolation.py).
- Nothing that was computed from a record stays behind.
- A computation that psac has not seen before is compared with plain autograd before it counts.
- A record whose gradient is not finite by itself adds zero, and spoils no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from psac.gradients import trees
from psac.gradients.alone import OneByOne
from psac.gradients.batched.evaluate import Batched
from psac.gradients.batched.isolation import Schedule
from psac.gradients.errors import (
    NotVectorized,
    PrivacyError,
    announce_alone,
    announce_paths,
    place_of,
    warn,
)
from psac.gradients.isolation.eligibility import survey, trainable
from psac.gradients.isolation.outside import Outside, code_of
from psac.gradients.isolation.state import State
from psac.gradients.isolation.watch import refuse_remains
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.evaluate import Evaluation, Vectorized
from psac.gradients.vectorized.libraries import refuse_overridden_operators
from psac.gradients.vectorized.selfcheck import distance, tolerance

CHANGED = "The loss function read something from outside that changed between two steps."


FEW = 8  # records, which may each take a path of their own


class Evaluator:
    """Evaluates loss functions of one model.  `reasons` tells what is computed alone, and why."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.parameters = model, trainable(model)
        split = [name for name, p in self.parameters.items() if hasattr(p, "device_mesh")]
        if split:
            raise PrivacyError(
                f"{', '.join(split[:5])}: parameters that are split between processes. A private "
                "run gathers those of fully_shard; elsewhere, pass the plain model."
            )
        self.outside = Outside(model)
        self.vectorized = Vectorized(model, self.parameters, self.outside)
        self.one_by_one = OneByOne(model, self.parameters, self.outside)
        self.batched = Batched(model, self.parameters, self.outside)
        self._schedule = Schedule()
        self.reasons: dict[tuple, str] = {}  # by function and kind of batch
        self._vectorizable: set[tuple] = set()  # by function and kind of batch
        self._pure: set[tuple] = set()  # by function and kind of batch: it writes to no argument
        self._trusted: set[tuple] = set()  # signatures that were compared with plain autograd
        self._told_of_paths: set[tuple] = set()  # by function and kind of batch
        self._told = False
        self.is_suspicious = False  # a probe has seen that something outside has changed
        # Told of every warning about privacy, in a short sentence that may be published.
        self.on_warning: Callable[[str], None] = lambda sentence: None

    def __call__(self, loss: LossFunction, batch: Any, *, batched: bool = False) -> Evaluation:
        if not callable(loss):
            raise TypeError(
                f"loss is a {type(loss).__name__}: pass the function itself, loss(model, *batch), "
                "not its result."
            )
        refuse_modes()
        refuse_overridden_operators()
        self.outside.known = survey(self.model, self.parameters)
        _functorch._set_vmap_fallback_warning_enabled(False)
        changed = self.outside.changed(loss)
        evaluate = self._together if batched else self._evaluate
        evaluation = evaluate(loss, batch)
        self.outside.remember(loss)
        self._judge_changes(evaluation.way, changed)
        return evaluation

    def _evaluate(self, loss: LossFunction, batch: Any) -> Evaluation:
        key = self._key(loss, batch)
        if key not in self._vectorizable:
            trees.refuse_other_arguments(loss, self.model, batch)
        if key in self.reasons:
            return self.one_by_one.evaluate(loss, batch)
        before = None if key in self._vectorizable else State({"model": self.model, "loss": loss})
        try:
            evaluation = self._vectorized(key, loss, batch, before)
            self._prove(evaluation, loss, batch)
            self._vectorizable.add(key)
            self._judge_paths(key, evaluation)
        except (PrivacyError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if "allocate memory" in str(error):
                raise
            return self._alone(key, loss, batch, error, before)
        self._refuse_remains(loss)
        return evaluation

    def _together(self, loss: LossFunction, batch: Any) -> Evaluation:
        """By the user's choice: the function sees the whole batch, and isolation is tested."""
        try:
            evaluation = self.batched.evaluate(loss, batch)
            self._schedule(self.batched, evaluation, loss, batch)
        except NotVectorized as reason:
            raise PrivacyError(
                f"with batched=True, {reason}. Without batched=True, records are isolated by "
                "torch.vmap or computed one at a time: write the function for one record."
            ) from None
        roots = {"model": self.model, "loss": loss}
        refuse_remains(self.model, self.batched.watch.remains(), roots)
        return evaluation

    def _vectorized(
        self, key: tuple, loss: LossFunction, batch: Any, before: State | None
    ) -> Evaluation:
        is_pure = key in self._pure
        evaluation = self.vectorized.evaluate(loss, batch, copies=not is_pure, before=before)
        if not self.vectorized.writes:
            self._pure.add(key)
        elif is_pure:
            raise PrivacyError(
                "the loss function has written to its arguments, which it did not do before: the "
                "batch is not what the loader handed out any more. Clone a record before writing."
            )
        return evaluation

    def _alone(
        self, key: tuple, loss: LossFunction, batch: Any, error: Exception, before: State | None
    ) -> Evaluation:
        """Tried without vmap: if that fails too, the function itself is wrong, and says so."""
        error, text = without_frames(error)
        if before is not None:
            before.restore()
        self._refuse_remains(loss)
        evaluation = self.one_by_one.evaluate(loss, batch)
        self.reasons[key] = announce_alone(error, text)
        return evaluation

    def _judge_paths(self, key: tuple, evaluation: Evaluation) -> None:
        """Says once if most records take paths of their own."""
        paths, n = evaluation.paths, len(evaluation.losses)
        if n >= FEW and 2 * len(paths) > n and key not in self._told_of_paths:
            self._told_of_paths.add(key)
            announce_paths(paths[-1].place)

    def _prove(self, evaluation: Evaluation, loss: LossFunction, batch: Any) -> None:
        """Each computation that is new is compared with plain autograd."""
        for path in evaluation.paths:
            self._prove(path.evaluation, loss, trees.records(batch, path.numbers))
        if not evaluation.paths and evaluation.signature not in self._trusted:
            self._compare(loss, batch)
            self._trusted.add(evaluation.signature)

    def _compare(self, loss: LossFunction, batch: Any) -> None:
        watch = self.vectorized.watch
        apart = distance(self.vectorized, loss, batch)
        self.vectorized.watch.join(watch)
        allowed = tolerance(self.vectorized)
        if not apart <= allowed:
            raise NotVectorized(
                f"psac's gradients are {apart:.1e} from plain autograd's, more than {allowed:g}: "
                "the function draws random numbers that cannot be repeated, or psac has a bug"
            )

    def _refuse_remains(self, loss: LossFunction) -> None:
        refuse_remains(
            self.model, self.vectorized.watch.remains(), {"model": self.model, "loss": loss}
        )

    def _judge_changes(self, way: str, changed: list[str]) -> None:
        """Names what the function reads from outside, if that changes from step to step."""
        reads = {
            "vmap": self.vectorized.watch.read,
            "batched": self.batched.watch.read,
            "alone": self.one_by_one.read,
        }[way]
        changed += [f"a tensor of shape {list(t.shape)}" for t in self.outside.changed_reads(reads)]
        if self.is_suspicious and not changed:
            changed = ["something that psac does not reach (a file, a library, another thread)"]
        self.is_suspicious = False
        if changed:
            self.on_warning(CHANGED)
        if changed and not self._told:
            self._told = True
            warn(
                f"the loss function reads from outside: {', '.join(changed[:5])}, which changed "
                "since the last step. If it was computed from private records (their mean, their "
                "number, ...), the run is not private: compute it inside the function. If it "
                "follows from the model, from public data or from the number of steps, make the "
                "change within `with private.public_change():`, and this warning goes away."
            )

    def _key(self, loss: LossFunction, batch: Any) -> tuple:
        """The function, and what kind of batch it is given."""
        kinds = tuple((leaf.dim(), leaf.dtype, leaf.layout) for leaf in trees.leaves(batch))
        return code_of(loss), kinds, self.model.training


def refuse_modes() -> None:
    """Raises for a torch function mode around the call, which would see psac's own operations."""
    modes = [type(m) for m in _get_current_function_mode_stack() if type(m) is not DeviceContext]
    if modes:
        raise PrivacyError(
            f"{modes[0].__name__} is on, a torch function mode: it would see all records of the "
            "batch. Call private.step outside of it."
        )


def without_frames(error: Exception) -> tuple[Exception, str]:
    """The error, and the line that it came from; its frames would keep tensors alive."""
    place = place_of(error.__traceback__)
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return error, place
