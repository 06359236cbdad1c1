"""Tests whether a function of the whole batch keeps records apart.

The backward of `Batched` sees every dependence that has a gradient, on every step.  Counts,
positions, comparisons and detached values have none: they are tested here.  Some records keep
their place while the others become NaN, huge, random numbers of all sizes, or copies of each other;
records change their order; some leave.  Those that stay must have the loss and the gradient norm
that they had before, up to the rounding of kernels, and the function must leave the same state
behind.  Random numbers are fixed meanwhile (`Still`).

It is a test, not a proof: a dependence that none of these batches shows is missed.  `Schedule` says
when it is made.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from psac.gradients import trees
from psac.gradients.batched.evaluate import Batched
from psac.gradients.batched.owners import NotFinite
from psac.gradients.batched.recorder import is_open
from psac.gradients.errors import NotIsolated, NotVectorized, PrivacyError
from psac.gradients.groups import TOGETHER
from psac.gradients.isolation.generators import same_generators, seed_all
from psac.gradients.isolation.state import State, refuse_memory
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.evaluate import Evaluation
from psac.gradients.vectorized.recorder import transparent
from psac.gradients.vectorized.selfcheck import distance, tolerance

SECRET_STEPS = 16  # one of so many is tested, though nothing in it is new
# Allowed relative differences, in units of the rounding of one number.
SAME_KERNELS, OTHER_KERNELS, OF_NORMS = 8, 256, 512
IN_HALF = 5e-2  # and by other kernels
# What draws numbers, and the same in place.
DRAWS = ("rand", "randn", "randint", "normal", "bernoulli", "poisson", "uniform", "exponential")
DRAWS += ("random", "log_normal", "geometric", "cauchy", "rand_like", "randn_like", "randint_like")


class Schedule:
    """When isolation is tested: wherever something is new, and at secret steps."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()  # operations that followed each other, and rules

    def __call__(
        self, batched: Batched, evaluation: Evaluation, loss: LossFunction, batch: Any
    ) -> bool:
        """Before the evaluation counts.  Raises `NotIsolated`; tells whether it has tested."""
        if evaluation.way != "batched" or trees.num_records(batch) < 2:
            return False
        new = set(evaluation.signature) - self._seen
        if not new and secrets.randbelow(SECRET_STEPS):
            return False
        refuse_mixing(batched, loss, batch, thorough=bool(new))
        self._seen |= new
        return True


def refuse_mixing(batched: Batched, loss: LossFunction, batch: Any, thorough: bool) -> None:
    """Raises `NotIsolated` where a record was seen to change another.

    `thorough`: all kinds of batches, and a comparison with plain autograd; else two of them.
    """
    watch = batched.watch
    try:
        with same_generators(), Still():
            probe = Probe(batched, loss)
            before = probe(batch)
            contents, orders = list(other_contents(batch)), list(other_orders(batch))
            if not thorough:
                contents, orders = ([secrets.choice(kind)] for kind in (contents, orders))
            for variant in (*contents, *orders):
                probe.compare(before, variant)
            if thorough:
                refuse_distance(batched, loss, batch)
    finally:
        batched.watch = watch


def refuse_distance(batched: Batched, loss: LossFunction, batch: Any) -> None:
    """psac's own rules against plain autograd."""
    apart = distance(batched, loss, batch)  # type: ignore[arg-type]
    allowed = tolerance(batched)  # type: ignore[arg-type]
    if not apart <= allowed:
        raise NotVectorized(
            f"psac's gradients are {apart:.1e} from plain autograd's, more than {allowed:g}: the "
            "function draws random numbers that cannot be repeated, or psac has a bug"
        )


@dataclass(frozen=True)
class Variant:
    """Another batch, in which some of the records are as they were."""

    text: str
    batch: Any
    records: list[int]  # that are as they were
    places: list[int]  # where they are now
    with_gradients: bool = True
    is_extreme: bool = False  # a function may fail on it, and give NaN: zero times NaN is NaN


def other_contents(batch: Any) -> Iterator[Variant]:
    """Some records stay; the others get values that nobody expects."""
    n, draw = trees.num_records(batch), random.SystemRandom()
    half = sorted(draw.sample(range(n), n // 2))
    has_numbers = any(leaf.is_floating_point() for leaf in trees.leaves(batch))
    for kept in ([0], [n - 1], [draw.randrange(n)], half):
        others = [k for k in range(n) if k not in kept]
        for size in (torch.nan, 1e10, 1e30) if has_numbers else ():
            changed = trees.map_tensors(batch, lambda leaf, s=size, o=others: filled(leaf, s, o))
            text = f"the numbers of other records become {size:g}"
            yield Variant(text, changed, kept, kept, size == 1e10, size != 1e10)
        if has_numbers:
            changed = trees.map_tensors(batch, lambda leaf, o=others: of_all_sizes(leaf, o))
            text = "the numbers of other records become random ones of all sizes"
            yield Variant(text, changed, kept, kept, False, True)
        numbers = torch.arange(n)
        numbers[others] = torch.tensor([draw.choice(others) for _ in others])
        text = "other records become copies of each other"
        yield Variant(text, trees.records(batch, numbers), kept, kept)


def filled(leaf: Tensor, size: float, others: list[int]) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    leaf = leaf.clone()
    leaf[others] = min(size, torch.finfo(leaf.dtype).max / 4) if size == size else size
    return leaf


def of_all_sizes(leaf: Tensor, others: list[int]) -> Tensor:
    """From 0.001 to 1e8: what asks whether a number lies between two others finds some that do."""
    if not leaf.is_floating_point():
        return leaf
    leaf, draw = leaf.clone(), np.random.default_rng(secrets.randbits(64))
    shape, largest = leaf[others].shape, torch.finfo(leaf.dtype).max / 4
    values = 10 ** draw.uniform(-3, 8, shape) * draw.choice([-1, 1], shape)
    leaf[others] = (
        torch.as_tensor(values, device=leaf.device).clamp(-largest, largest).to(leaf.dtype)
    )
    return leaf


def other_orders(batch: Any) -> Iterator[Variant]:
    """Records change places, or leave."""
    n, draw = trees.num_records(batch), random.SystemRandom()
    without = draw.randrange(n)
    for text, numbers in (
        ("records change places", draw.sample(range(n), n)),
        ("records stand in reverse order", list(reversed(range(n)))),
        ("one record leaves", [k for k in range(n) if k != without]),
        ("half of the records leave", sorted(draw.sample(range(n), (n + 1) // 2))),
        ("all other records leave", [draw.randrange(n)]),
    ):
        yield Variant(
            text, trees.records(batch, torch.tensor(numbers)), numbers, list(range(len(numbers)))
        )


@dataclass(frozen=True)
class Seen:
    losses: Tensor
    norms: Tensor | None  # None if gradients are not finite, or were not asked for
    layout: int


class Probe:
    """Runs the function from the same state, with the same random numbers."""

    def __init__(self, batched: Batched, loss: LossFunction) -> None:
        self.batched, self.loss, self.seed = batched, loss, secrets.randbits(31)
        self._state = self._now()
        self._left: dict[str, Any] | None = None  # how the function changes it

    def __call__(self, batch: Any, with_gradients: bool = True) -> Seen:
        try:
            seen = self._run(batch, with_gradients)
            left = self._state.difference(self._now())
        finally:
            self._state.restore()
        if self._left is not None and self._left != left:
            refuse_memory(self._left, left)
        self._left = left
        return seen

    def _now(self) -> State:
        roots = {"model": self.batched.model, "loss": self.loss}
        return State(roots, self.batched.outside.storages)

    def _run(self, batch: Any, with_gradients: bool) -> Seen:
        seed_all(self.seed)
        if with_gradients:
            try:
                evaluation = self.batched.together(self.loss, batch)
            except NotFinite:
                self._state.restore()
                return self._run(batch, with_gradients=False)
            (squares,) = evaluation.measured.norms_squared(TOGETHER)
            norms = None if squares is None else squares.sqrt()
            return Seen(evaluation.losses, norms, self.batched.layout)
        return Seen(self.batched.losses(self.loss, batch), None, self.batched.layout)

    def compare(self, before: Seen, variant: Variant) -> None:
        try:
            after = self(variant.batch, variant.with_gradients)
        except (PrivacyError, NotVectorized):
            raise
        except Exception:
            if variant.is_extreme:
                return
            raise
        rounding = torch.finfo(before.losses.dtype).eps
        same = before.layout == after.layout
        least = 0 if same or not self.batched.is_half else IN_HALF
        allowed = max(least, rounding * (SAME_KERNELS if same else OTHER_KERNELS))
        refuse_change("loss", before.losses, after.losses, variant, allowed)
        if before.norms is not None and after.norms is not None:
            allowed = max(least, rounding * OF_NORMS)
            refuse_change("gradient norm", before.norms, after.norms, variant, allowed)


def refuse_change(
    what: str, before: Tensor, after: Tensor, variant: Variant, allowed: float
) -> None:
    old, new = before[variant.records].double(), after[variant.places].double()
    is_finite = torch.isfinite(old)
    if variant.is_extreme:
        is_finite &= torch.isfinite(new)
    scale = old.abs() + 0.1 * before.double().nan_to_num(0, 0, 0).abs().max()
    is_apart = is_finite & ~((new - old).abs() <= allowed * scale)
    for place in is_apart.nonzero().flatten().tolist()[:1]:
        raise NotIsolated(
            f"the {what} of record {variant.records[place]} changes when {variant.text}. With "
            "batched=True the loss of each record must be computed from it alone, whatever the "
            "other records, their number and their order are. Without batched=True psac keeps "
            "records apart by itself."
        )


class Still(TorchFunctionMode):
    """Random numbers become fixed ones, so that nothing but records makes a difference.

    Those of a generator of the user's own stay: they follow from the place in the batch.
    """

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if named.get("generator") is not None:
            return func(*args, **named)
        if "dropout" in name:
            return args[0] if args else named["input"]
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            named |= {"dropout_p": 0.0} if "dropout_p" in named else {}
        elif name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            args = tuple(0.0 if isinstance(value, float) else value for value in args)
        elif name == "randperm":
            return func(*args, **named).sort().values.roll(1)
        elif name == "multinomial":
            result = func(*args, **named)
            return args[0].argmax(-1, keepdim=True).expand_as(result).clone()
        elif name.rstrip("_") in DRAWS:
            return fixed(func(*args, **named), args, named)
        elif is_open(func):
            with self:
                return transparent(func)(*args, **named)
        return func(*args, **named)


def fixed(result: Tensor, args: tuple, named: Mapping[str, Any]) -> Tensor:
    """In the place of what was drawn."""
    if result.is_floating_point():
        return result.fill_(0.5)
    bounds = [value for value in args if isinstance(value, int)]
    return result.fill_(named.get("low", bounds[0] if len(bounds) > 1 else 0))
