"""The clipping rule of a run, parsed from what the run wrote: `PSAC(r=0.1, bound=1.0)`.

It is never executed.  A rule that psac does not know (`Custom`, a mapping of groups) has a text but
no curve.

>>> parse("PSAC(r=0.25, bound=0.1, scale=1.0)")
PSAC(r=0.25, bound=0.1, scale=1.0)
>>> parse("Custom(function=<lambda>, bound=1.0)") is None
True
"""

import ast
import inspect
from typing import Any

import torch

from psac.app.reporting.snapshot import RunSnapshot, number
from psac.clipping import rules as clipping
from psac.clipping.rules import AdaptivePSAC, ClippingRule

KNOWN = {**clipping.RULES, "adaptive_psac": AdaptivePSAC}
CLASSES = {getattr(rule, "__name__", name): rule for name, rule in KNOWN.items()}
FORMULAS = {
    "PSAC": "w = C / (s (x + r / (x + r))), x = norm / s",
    "AdaptivePSAC": "w = C / (s (x + r / (x + r))), x = norm / s, s learned privately",
    "AutoS": "w = C / (norm + s r)",
    "NSGD": "w = C / (norm + r)",
    "AutoV": "w = C / norm",
    "Abadi": "w = min(1, C / norm)",
}

Rule = ClippingRule | AdaptivePSAC


def parse(text: str) -> Rule | None:
    """The rule with this repr; None if psac does not know it."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        settings = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        return CLASSES[call.func.id](**settings)  # type: ignore[return-value]
    except (SyntaxError, ValueError, KeyError, TypeError):
        return None


def rule_of(run: RunSnapshot) -> Rule | None:
    """The rule that the run wrote at its start, or else that of its recipe."""
    written = run.start.get("rule")
    if written is not None:
        return parse(str(written))
    build = KNOWN.get(str(run.recipe.get("rule")))
    if build is None:
        return None
    known = inspect.signature(build).parameters
    settings: dict[str, Any] = {name: run.recipe.get(name) for name in known}
    try:
        return build(**{k: v for k, v in settings.items() if v is not None})  # type: ignore[return-value]
    except (ValueError, TypeError):
        return None


def text_of(run: RunSnapshot) -> str:
    """The rule as text."""
    written = run.start.get("rule")
    if written is not None:
        return str(written)
    rule = rule_of(run)
    return repr(rule) if rule is not None else str(run.recipe.get("rule", "unknown"))


def last_scale(run: RunSnapshot) -> float | None:
    """The last scale that an adaptive rule learned, which was released with noise."""
    scales = [number(line.get("scale")) for line in run.steps]
    return next((scale for scale in reversed(scales) if scale is not None), None)


def curve(run: RunSnapshot, norms: list[float]) -> list[float] | None:
    """The weight at each norm; for an adaptive rule with its last scale."""
    rule = rule_of(run)
    if isinstance(rule, AdaptivePSAC):
        rule = rule.rule(last_scale(run) or rule.initial_scale)
    if rule is None:
        return None
    return rule.weights(torch.tensor(norms, dtype=torch.float64)).tolist()
