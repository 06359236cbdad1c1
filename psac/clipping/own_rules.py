"""A clipping rule of the user's own, evaluated one norm at a time.

If a rule computes a record's weight from the norms of others, in this batch or earlier ones, its
bound is not the sensitivity of the sum.  Guarantees of `weights_alone`:

- Each weight is computed from its own norm: by `torch.vmap`, or, for a rule that branches on
  values, by one call for each norm.  Either way the rule receives a tensor of shape [1].
- A rule that keeps a tensor of norms is refused.
- A rule with a memory is refused: its weights for public norms, `probes`, must never change, and
  one call for each norm must give the same weights in reverse order.
- A rule that is written to look at other norms is refused: on all probes together it must give the
  weights that it gives for each of them.

That a rule has no memory is checked by its weights; that it sees one norm holds by construction.

>>> weights_alone("mine", lambda norms: 1 / (1 + norms), torch.tensor([1.0, 3.0]), bound=1.0)
tensor([0.5000, 0.2500])
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode

from psac.errors import PrivacyError

APART = 1e-5  # Of the bound: how far kernels for one norm and for many may move a contribution.

_first: dict[tuple, Tensor] = {}  # by rule and kind of norms: the weights of the probes
_without_end: list[Any] = []  # rules whose end cannot be seen, so that no id is used twice


def weights_alone(
    rule: Any, function: Callable[[Tensor], Tensor], norms: Tensor, bound: float
) -> Tensor:
    """One weight for each norm by the rule's `function`, which is given one norm at a time."""
    known = _first_look(rule, function, norms, bound)
    weights = _vectorized(rule, function, norms)
    if weights is None:
        weights = _looped(rule, function, norms)
    if not _same(_each(function, probes(norms)), known):
        _refuse_memory(rule, "since the first step, for public norms that are always the same")
    return weights


def probes(like: Tensor) -> Tensor:
    """Public norms, over the range that may occur."""
    return torch.logspace(-6, 6, 13, dtype=like.dtype, device=like.device)


def _first_look(
    rule: Any, function: Callable[[Tensor], Tensor], norms: Tensor, bound: float
) -> Tensor:
    """The weights of the probes at the first call, before the rule has seen a private norm."""
    key = id(rule), norms.dtype, norms.device
    if key not in _first:
        public = probes(norms)
        alone = _looped(rule, function, public)
        _refuse_looking_around(rule, public, alone, _vectorized(rule, function, public), bound)
        for k in range(2, len(public) + 1):
            together = _together(function, public[:k])
            _refuse_looking_around(rule, public[:k], alone[:k], together, bound)
        try:
            weakref.finalize(rule, _first.pop, key, None)
        except TypeError:
            _without_end.append(rule)
        _first[key] = alone
    return _first[key]


class _Watch(TorchFunctionMode):
    """Keeps weak references to the tensors that are computed from a norm."""

    def __init__(self) -> None:
        super().__init__()
        self._norms: list[weakref.ref[Tensor]] = []

    def keep(self, value: Any) -> None:
        if isinstance(value, Tensor):
            if _functorch.is_functorch_wrapped_tensor(value):
                self._norms.append(weakref.ref(value))
        elif isinstance(value, (tuple, list)):
            for part in value:
                self.keep(part)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.keep(result)
        return result

    def remains(self) -> bool:
        if any(reference() is not None for reference in self._norms):
            gc.collect()  # reference cycles do not count
        return any(reference() is not None for reference in self._norms)


def _vectorized(rule: Any, function: Callable[[Tensor], Tensor], norms: Tensor) -> Tensor | None:
    """All norms under vmap; None where it refuses."""
    watch, weights = _Watch(), None

    def one(norm: Tensor) -> Tensor:
        watch.keep(norm)
        with watch:
            return function(norm)

    try:
        weights = torch.vmap(one)(norms.clone().unsqueeze(1)).squeeze(1)
    except Exception:  # noqa: BLE001 - if the rule itself is wrong, it raises for one norm as well
        weights = None
    if watch.remains():
        raise PrivacyError(
            f"{rule!r} keeps a tensor that it computed from the norms of a batch, where the next "
            "step can see it. Keep nothing: the norms of the last batch are in "
            "private.sensitive.norms."
        )
    return weights


def _looped(rule: Any, function: Callable[[Tensor], Tensor], norms: Tensor) -> Tensor:
    weights = _each(function, norms)
    if not _same(_each(function, norms.flip(0)).flip(0), weights):
        _refuse_memory(rule, "between two calls with the same norm")
    return weights


def _each(function: Callable[[Tensor], Tensor], norms: Tensor) -> Tensor:
    # A copy each: what a rule does to it in place must not move others.
    weights = [function(norm.clone()) for norm in norms.unsqueeze(1)]
    return torch.cat(weights) if weights else norms.clone()


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _together(function: Callable[[Tensor], Tensor], norms: Tensor) -> Tensor | None:
    """By one ordinary call, as most rules are written; None if the rule takes one norm only."""
    try:
        return function(norms.clone())
    except Exception:  # noqa: BLE001 - it is written for one norm
        return None


def _refuse_looking_around(
    rule: Any, norms: Tensor, alone: Tensor, together: Tensor | None, bound: float
) -> None:
    if together is None:
        return
    limit = bound / norms
    moved = ((together.minimum(limit) - alone.minimum(limit)).abs() * norms).nan_to_num(0.0)
    moved = torch.where(together.isnan() == alone.isnan(), moved, torch.inf)
    if float(moved.max()) > APART * bound:
        worst = int(moved.argmax())
        raise PrivacyError(
            f"{rule!r} gives the norm {norms[worst].item():.6g} the weight "
            f"{together[worst].item():.6g} among others and {alone[worst].item():.6g} alone, so "
            "the bound is not the sensitivity of the sum: one sample would change the weights of "
            "all. Compute each weight from its own norm and from constants."
        )


def _refuse_memory(rule: Any, when: str) -> None:
    raise PrivacyError(
        f"{rule!r} has a memory: its weights have changed {when}. A sample's weight then depends "
        "on earlier samples, and the bound is not the sensitivity of the sum. Compute each weight "
        "from its own norm and from constants; settings must not change during a run."
    )
