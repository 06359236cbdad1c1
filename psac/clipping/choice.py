"""The argument `clipping=`: a rule, `AdaptivePSAC`, or a mapping from patterns of names to rules.

Guarantee: anything else is refused when the run is made, not in its first step.

>>> checked("psac")
Traceback (most recent call last):
    ...
TypeError: clipping is 'psac', a text: pass the rule itself, psac.PSAC().
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psac.clipping.rules import RULES, AdaptivePSAC, ClippingRule, positive

ALLOWED = (
    "pass a rule such as psac.PSAC() or psac.Abadi(bound=1.0), psac.AdaptivePSAC(), or a mapping "
    "from patterns of parameter names to rules, {'head.*': psac.Abadi(0.5), '*': psac.PSAC()}."
)
OF_OPACUS = ("flat", "per_layer")  # its words for one norm, and for one a group


def checked(clipping: Any) -> Any:
    """Returns `clipping` if it is a valid rule, and raises otherwise."""
    if isinstance(clipping, AdaptivePSAC):
        return clipping
    if isinstance(clipping, Mapping):
        return _checked_mapping(clipping)
    return _checked_rule("clipping", clipping)


def _checked_mapping(rules: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if not rules:
        raise ValueError(f"clipping is an empty mapping: {ALLOWED}")
    for pattern, rule in rules.items():
        if not isinstance(pattern, str):
            raise TypeError(
                f"clipping has the key {pattern!r}: it must be a pattern of parameter names, such "
                "as 'head.*' or '*'."
            )
        if isinstance(rule, AdaptivePSAC):
            raise TypeError(
                f"clipping[{pattern!r}] is {rule!r}, which learns one scale for the whole model: "
                "pass it alone, clipping=psac.AdaptivePSAC(), or give the pattern a psac.PSAC()."
            )
        _checked_rule(f"clipping[{pattern!r}]", rule)
    return rules


def _checked_rule(name: str, rule: Any) -> ClippingRule:
    if isinstance(rule, type):
        raise TypeError(f"{name} is the class {rule.__name__}: call it, {rule.__name__}().")
    if isinstance(rule, str):
        raise TypeError(f"{name} is {rule!r}, a text: {_of_text(rule)}")
    if isinstance(rule, (int, float)):
        raise TypeError(f"{name} is {rule!r}: for the bound C of DP-SGD pass psac.Abadi({rule}).")
    if not isinstance(rule, ClippingRule):
        own = " For a function of your own: psac.Custom(function, bound=1.0)."
        raise TypeError(f"{name} is {rule!r}: {ALLOWED}{own if callable(rule) else ''}")
    positive(rule, "bound")
    return rule


def _of_text(text: str) -> str:
    known = RULES.get(text.lower())
    if isinstance(known, type):
        return f"pass the rule itself, psac.{known.__name__}()."
    if text in OF_OPACUS:
        return (
            "pass psac.Abadi(bound=1.0) for one norm of the whole model, or one rule for each "
            "group of parameters, {'head.*': psac.Abadi(0.5), '*': psac.Abadi(1.0)}."
        )
    return ALLOWED
