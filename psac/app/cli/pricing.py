"""`psac calibrate` and `psac epsilon`: the noise for a budget, and what a noise costs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import psac
from psac.accounting.pricing import quietly
from psac.app.cli import curve, schemes
from psac.app.cli.budget import Budget
from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.mistakes import typed
from psac.app.cli.options import made_from_options
from psac.app.reporting import numerals
from psac.app.training.metrics import plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """What is told of a price."""

    compare: Annotated[
        bool, typer.Option("--compare", help="Other ways to draw batches, at their own prices.")
    ] = False
    plot: Annotated[
        Path | None, typer.Option(help="Draw epsilon over steps to this .svg, .png or .pdf.")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the number.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False

    def __post_init__(self) -> None:
        if self.plot is not None:
            curve.refuse_format(self.plot)


@made_from_options(asked=Budget, output=Output)
def calibrate(
    epsilon: Annotated[float, typer.Argument(help="The budget.")],
    *,
    asked: Budget,
    output: Output,
) -> None:
    """The noise multiplier for a budget."""
    with typed(), errors.status("calibrating"):
        plan = asked.plan()
        noise = psac.calibrate(epsilon=epsilon, **plan)
        with quietly():  # calibrate has warned
            spent = psac.epsilon(noise_multiplier=noise, **plan)
    found = {"noise_multiplier": noise, "epsilon": spent, **plan}
    _tell(found, asked, output, number=noise, target=epsilon)


@made_from_options(asked=Budget, output=Output)
def epsilon(
    noise_multiplier: Annotated[
        float, typer.Argument(help="The std of the noise over the clipping bound.")
    ],
    *,
    asked: Budget,
    output: Output,
) -> None:
    """What training with a noise multiplier costs."""
    with typed(), errors.status("pricing"):
        plan = asked.plan()
        spent = psac.epsilon(noise_multiplier=noise_multiplier, **plan)
    found = {"noise_multiplier": noise_multiplier, "epsilon": spent, **plan}
    _tell(found, asked, output, number=spent, target=spent)


def _tell(
    found: dict[str, Any], asked: Budget, output: Output, *, number: float, target: float
) -> None:
    """All of it, in the form that was asked for."""
    noise, finite = found["noise_multiplier"], math.isfinite(found["epsilon"])
    with errors.status("pricing other lengths and schemes"):
        rows = schemes.compared(asked, noise, target) if output.compare and finite else []
        drawn = curve.points(found) if finite and (output.plot or not output.quiet) else []
        if output.plot and drawn:
            curve.write(output.plot, drawn, "\n".join(_sentences(found)))
    if output.as_json:
        print(json.dumps(plain({**found, "accountant": "pld", "curve": drawn, "schemes": rows})))
        return
    if output.quiet:
        console.print(f"{number:.6g}")
        return
    first, second = _sentences(found)
    console.print(f"[bold]{first}[/]\n{second}\n")
    if drawn:
        console.print(curve.drawing(drawn))
    if rows:
        console.print(schemes.table(rows, noise, target))
    if output.plot and drawn:
        console.print(f"The curve is in [bold]{escape(as_typed(output.plot))}[/].", soft_wrap=True)


def _sentences(found: dict[str, Any]) -> tuple[str, str]:
    return (
        f"noise multiplier {found['noise_multiplier']:.6g}, epsilon "
        f"{numerals.epsilon(found['epsilon'])} at delta {numerals.delta(found['delta'])}",
        f"{numerals.plural(found['steps'], 'step')} of {found['sampling']} batches at rate "
        f"{found['sampling_rate']:.4g}, {found['relation']}",
    )
