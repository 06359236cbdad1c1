"""Norm in, weight out: the rules that bound what one sample adds to the gradient sum.

A rule maps per-sample norms n >= 0 to weights w >= 0 with n * w(n) <= C, so adding or removing one
sample moves the weighted sum by at most C, the rule's `bound`.  The noise takes its scale from it.

    PSAC    C / (s (x + r / (x + r))), x = n / s    arXiv:2212.00328; s (`scale`) is 1 there
    AutoS   C / (n + s r)                           arXiv:2206.07136; s is 1 there
    NSGD    C / (n + r)                             arXiv:2206.13033
    AutoV   C / n                                   arXiv:2206.07136
    Abadi   min(1, C / n)                           arXiv:1607.00133
    Custom  your own function of n

The formulas hold to rounding; `safe_weights`, which the engine calls, makes the bound hold exactly,
also for a user's own rule, and refuses a rule whose weight for a sample depends on others
(`psac.clipping.own_rules`).  Computing norms and adding noise are left to others.

>>> PSAC(r=0.25).weights(torch.tensor([0.0, 0.25, 1.0]))
tensor([1.0000, 1.3333, 0.8333])
>>> safe_weights(PSAC(), torch.tensor([0.9, float("inf")]))
tensor([1., 0.])
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from psac.checks import number, unknown
from psac.clipping.own_rules import weights_alone

SHRINK = 1e-6  # In float32, w * g passes the bound by up to 1.3e-7 of it; this is the margin.


@runtime_checkable
class ClippingRule(Protocol):
    """What the engine needs of a rule: C as `bound`, and one weight >= 0 for each norm.

    A sample's weight may depend on its own norm and on public values, never on other samples.
    Otherwise one sample changes the weights of all, and `bound` is not the sensitivity of the sum.
    """

    @property
    def bound(self) -> float: ...

    def weights(self, norms: Tensor) -> Tensor: ...


@dataclasses.dataclass(frozen=True)
class PSAC:
    """Per-sample adaptive clipping: the weight rises to a peak, then falls like C / n.

    Guarantees: the contribution n * w(n) increases with n and stays below C; w(0) = C / s; no
    weight exceeds that of `peak()`; multiplying norms and scale by k divides the weights by k.
    r -> 0 is `AutoV`, r -> infinity is `AutoS(r=1)`; the weight exceeds that of `AutoS` with the
    same r and scale where n > s (1 - r).
    """

    r: float = 0.1
    bound: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _settle(self, "r", "bound", "scale")

    def weights(self, norms: Tensor) -> Tensor:
        norms, bound, scale, knee = _tensors(norms, self.bound, self.scale, self.scale * self.r)
        # The formula above, arranged so that neither n / s nor r / (x + r) over- or underflows.
        return bound / (norms + scale / (1 + norms / knee))

    def peak(self) -> tuple[float, float]:
        """The norm with the largest weight, and that weight."""
        if self.r > 1:  # The stationary point is negative: the weight only falls.
            return 0.0, self.bound / self.scale
        root = math.sqrt(self.r)
        return self.scale * (root - self.r), self.bound / (self.scale * (2 * root - self.r))


@dataclasses.dataclass(frozen=True)
class AutoS:
    """Automatic clipping with stability: normalisation, damped where the norm is near s r.

    Guarantees: the contribution increases with n, below C; the weight falls from C / (s r).
    """

    r: float = 0.01
    bound: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _settle(self, "r", "bound", "scale")

    def weights(self, norms: Tensor) -> Tensor:
        norms, bound, knee = _tensors(norms, self.bound, self.scale * self.r)
        return bound / (norms + knee)


@dataclasses.dataclass(frozen=True)
class NSGD:
    """Normalised SGD: published at the same time as `AutoS` and, at scale 1, the same function.

    Guarantees: those of `AutoS`.  The name says which paper a run follows.
    """

    r: float = 0.01
    bound: float = 1.0

    def __post_init__(self) -> None:
        _settle(self, "r", "bound")

    def weights(self, norms: Tensor) -> Tensor:
        return AutoS(r=self.r, bound=self.bound).weights(norms)


@dataclasses.dataclass(frozen=True)
class AutoV:
    """Pure normalisation: every sample contributes exactly C.

    Guarantees: the weight is finite; it is 0 at n = 0, where C / n has no value and the gradient is
    zero or has underflowed, so that a large weight would be a risk without a gain.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        _settle(self, "bound")

    def weights(self, norms: Tensor) -> Tensor:
        norms, bound = _tensors(norms, self.bound)
        return torch.where(norms > 0, bound / norms, 0.0).clamp(max=torch.finfo(norms.dtype).max)


@dataclasses.dataclass(frozen=True)
class Abadi:
    """The clipping of DP-SGD: gradients up to C stay unchanged, longer ones are scaled to C.

    Guarantees: the weight is at most 1, and is 1 where n <= C.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        _settle(self, "bound")

    def weights(self, norms: Tensor) -> Tensor:
        norms, bound = _tensors(norms, self.bound)
        return (bound / norms).clamp(max=1.0)


@dataclasses.dataclass(frozen=True)
class Custom:
    """A rule of your own: `Custom(lambda norms: 1 / (1 + norms), bound=1.0)`.

    The function receives a tensor of one norm, shape [1], under `torch.vmap`.  If it branches on
    the value, it is called for each norm in turn.  It must not remember earlier norms.
    Guarantees: those of `safe_weights`.
    """

    function: Callable[[Tensor], Tensor]
    bound: float

    def __post_init__(self) -> None:
        _settle(self, "bound")
        if not callable(self.function):
            raise TypeError(f"Custom needs a function norms -> weights, not {self.function!r}.")

    def weights(self, norms: Tensor) -> Tensor:
        return _matching(norms, self.function(norms), self)


@dataclasses.dataclass(frozen=True)
class AdaptivePSAC:
    """PSAC whose scale is learned from the norms of the first steps (after arXiv:1905.03871).

    In each step the number of samples with norm <= s, minus half of all, is released with Gaussian
    noise of std B / 20, where B is the expected batch size; then s <- s exp(-rate b / B) for the
    released b: s goes towards the median norm.  `rate` halves every `half_life` steps, so that s
    finds the norms within a hundred steps, from as far as a factor of 100,000, and stays.
    The median itself goes to zero once most samples are fitted.  To follow it would amplify the
    samples that are already learned.

    One sample moves the count by 1/2, so this is a query with noise multiplier B / 10, raised to
    ten times that of the gradient for small batches.  It raises the gradient's noise by at most
    0.5 %, and `psac.make_private` pays for it from the same budget.

    Guarantees: s is a function of released values alone, so `bound` is the sensitivity of the
    gradient's sum whatever is learned.  `make_private` takes it; `rule` is the rule of one step.
    """

    r: float = 0.1
    bound: float = 1.0
    initial_scale: float = 1.0
    rate: float = 1.0
    half_life: float = 20.0

    def __post_init__(self) -> None:
        _settle(self, "r", "bound", "initial_scale", "rate", "half_life")

    def rule(self, scale: float) -> PSAC:
        return PSAC(r=self.r, bound=self.bound, scale=scale)

    def noise_multiplier(self, expected_batch_size: int, total: float) -> float:
        """The noise of the released count over the 1/2 by which one sample moves it.

        `total` is that of the whole step.
        """
        return max(expected_batch_size, 100 * total) / 10

    def next_scale(self, scale: float, released: float, step: int) -> float:
        """The scale after step `step` (from 1), which released the share below it, less 1/2."""
        share = min(max(released, -0.5), 0.5)  # what lies outside is noise
        rate = self.rate * 0.5 ** ((step - 1) / self.half_life)
        return min(max(scale * math.exp(-rate * share), 1e-12), 1e12)


RULES: dict[str, Callable[..., ClippingRule]] = {
    "abadi": Abadi,
    "auto_s": AutoS,
    "auto_v": AutoV,
    "nsgd": NSGD,
    "psac": PSAC,
}


def get(name: str, **settings: float) -> ClippingRule:
    """The rule called `name` in `RULES`, with these settings: `get("psac", r=0.1)`."""
    if name not in RULES:
        raise ValueError(unknown("clip rule", name, RULES))
    known = inspect.signature(RULES[name]).parameters
    for setting in sorted(settings.keys() - known.keys()):
        raise ValueError(unknown(f"{name} setting", setting, known))
    return RULES[name](**settings)


# Rules whose weights depend on single norms, as can be read above.
_READ = frozenset({PSAC, AutoS, NSGD, AutoV, Abadi})


@torch.no_grad()
def safe_weights(rule: ClippingRule, norms: Tensor) -> Tensor:
    """The rule's weights, made safe: weight * norm <= bound * (1 - SHRINK), whatever the rule does.

    Half-precision norms are promoted to float32.  A norm that is not finite gets weight 0 (and its
    sample must be dropped: 0 * inf is NaN).  A weight that is too large is reduced; one that is NaN
    or negative, or a wrong shape, raises.  A user's own rule is called with one norm at a time, and
    refused if it remembers earlier ones (`psac.clipping.own_rules`).
    """
    bound = positive(rule, "bound")
    (norms,) = _tensors(norms)
    # One number is quick to check; if the sum of finite norms overflows, that does no harm.
    finite = None if math.isfinite(float(norms.sum())) else norms.isfinite()
    usable = norms if finite is None else torch.where(finite, norms, 1.0)
    weights = _sensible(rule, usable)
    if finite is not None:
        weights = torch.where(finite, weights, 0.0)
    safe = weights.minimum(_largest(bound, norms))
    return safe if finite is None else torch.where(finite, safe, 0.0)


def _sensible(rule: ClippingRule, norms: Tensor) -> Tensor:
    """The rule's weights, if they are numbers >= 0."""

    def function(norms: Tensor) -> Tensor:
        return _matching(norms, rule.weights(norms), rule)

    read = type(rule) in _READ
    weights = function(norms) if read else weights_alone(rule, function, norms, rule.bound)
    least = float(weights.min()) if weights.numel() else 0.0  # NaN if any weight is
    if not least >= 0:
        wrong = "a negative number" if least < 0 else "NaN"
        raise ValueError(
            f"{rule!r} gives {wrong} as the weight of a norm. Weights must be numbers >= 0 for "
            "all norms >= 0: try its weights() method on torch.logspace(-12, 12, 100)."
        )
    return weights


def _largest(bound: float, norms: Tensor) -> Tensor:
    """bound * (1 - SHRINK) / norms, rounded towards zero."""
    zero, limit, smallest = _limits(bound, norms.dtype, norms.device)
    return (limit / norms.clamp(min=smallest)).nextafter(zero)


@functools.lru_cache
@torch.inference_mode(False)  # cached tensors must work everywhere
def _limits(bound: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, float]:
    """Zero; bound * (1 - SHRINK), rounded towards it; the floor of norms."""
    info, zero = torch.finfo(dtype), torch.zeros((), dtype=dtype, device=device)
    limit = torch.full_like(zero, min(bound * (1 - SHRINK), info.max)).nextafter(zero)
    # Underflowing squares make tiny norms too small: with 1e10 parameters and denormals flushed, by
    # up to 1e5 * sqrt(tiny).  Norms are raised to 1e8 * sqrt(tiny), 1e-11 in float32.
    return zero, limit, 1e8 * math.sqrt(info.tiny)


def _tensors(norms: Tensor, *settings: float) -> list[Tensor]:
    """The norms in float32 or better, and the settings as tensors within the range of that type."""
    if norms.dtype is not torch.float32:
        norms = norms.to(torch.promote_types(norms.dtype, torch.float32))
    return [norms, *(_setting(value, norms.dtype, norms.device) for value in settings)]


@functools.lru_cache
@torch.inference_mode(False)
def _setting(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    info = torch.finfo(dtype)
    return torch.full((), min(max(value, info.tiny), info.max), dtype=dtype, device=device)


def _matching(norms: Tensor, weights: object, rule: ClippingRule) -> Tensor:
    """The weights in the dtype and on the device of the norms, after a check of their shape."""
    if not isinstance(weights, Tensor) or weights.shape != norms.shape:
        shape = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else repr(weights)
        raise ValueError(
            f"{rule!r} turns norms of shape {tuple(norms.shape)} into weights of {shape}. "
            "Return a tensor with one weight for each norm."
        )
    return weights.to(norms)


_ADVICE = {
    "r": "Smaller is closer to pure normalisation, which is AutoV; try 0.1.",
    "bound": "It is the largest L2 norm that one sample may contribute; try 1.0.",
    "half_life": "After so many steps the scale moves half as fast; try 20.",
    "initial_scale": "It is a first guess of the median norm; the paper uses 1.0.",
    "rate": "It is how fast the scale moves at first; try 1.0.",
    "scale": "It is the unit of norms; the paper uses 1.0.",
}


def _settle(rule: object, *names: str) -> None:
    """Checks these settings of a frozen rule and stores them as floats."""
    for name in names:
        object.__setattr__(rule, name, positive(rule, name))


def positive(rule: object, name: str) -> float:
    """The setting of a rule, which must be a finite number above 0."""
    return number(f"{name} of {type(rule).__name__}", getattr(rule, name), advice=_ADVICE[name])
