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
from psac.app.cli import epsilon_curve, sampling_comparison
from psac.app.cli.console import as_typed, console, errors
from psac.app.cli.error_messages import typed
from psac.app.cli.options import with_options
from psac.app.cli.plan_options import PlanOptions
from psac.app.reporting import numerals
from psac.app.training.metrics import plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """How the result is shown."""

    compare: Annotated[
        bool, typer.Option("--compare", help="Also price the other sampling schemes.")
    ] = False
    plot: Annotated[
        Path | None, typer.Option(help="Plot epsilon over steps to this .svg, .png or .pdf file.")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the number.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    def __post_init__(self) -> None:
        if self.plot is not None:
            epsilon_curve.refuse_format(self.plot)


@with_options(options=PlanOptions, output=Output)
def calibrate(
    epsilon: Annotated[float, typer.Argument(help="Privacy budget.")],
    *,
    options: PlanOptions,
    output: Output,
) -> None:
    """Compute the noise multiplier for a privacy budget."""
    with typed(), errors.status("calibrating"):
        plan = options.plan()
        noise = psac.calibrate(epsilon=epsilon, **plan)
        with quietly():  # calibrate has warned
            spent = psac.epsilon(noise_multiplier=noise, **plan)
    result = {"noise_multiplier": noise, "epsilon": spent, **plan}
    _show(result, options, output, number=noise, target=epsilon)


@with_options(options=PlanOptions, output=Output)
def epsilon(
    noise_multiplier: Annotated[
        float, typer.Argument(help="Standard deviation of the noise over the clipping bound.")
    ],
    *,
    options: PlanOptions,
    output: Output,
) -> None:
    """Compute the epsilon that a noise multiplier spends."""
    with typed(), errors.status("pricing"):
        plan = options.plan()
        spent = psac.epsilon(noise_multiplier=noise_multiplier, **plan)
    result = {"noise_multiplier": noise_multiplier, "epsilon": spent, **plan}
    _show(result, options, output, number=spent, target=spent)


def _show(
    result: dict[str, Any], options: PlanOptions, output: Output, *, number: float, target: float
) -> None:
    noise, finite = result["noise_multiplier"], math.isfinite(result["epsilon"])
    with errors.status("pricing the curve and other schemes"):
        rows = (
            sampling_comparison.compared(options, noise, target)
            if output.compare and finite
            else []
        )
        drawn = epsilon_curve.points(result) if finite and (output.plot or not output.quiet) else []
        if output.plot and drawn:
            epsilon_curve.write(output.plot, drawn, "\n".join(_sentences(result)))
    if output.as_json:
        print(json.dumps(plain({**result, "accountant": "pld", "curve": drawn, "schemes": rows})))
        return
    if output.quiet:
        console.print(f"{number:.6g}")
        return
    first, second = _sentences(result)
    console.print(f"[bold]{first}[/]\n{second}\n")
    if drawn:
        console.print(epsilon_curve.drawing(drawn))
    if rows:
        console.print(sampling_comparison.table(rows, noise, target))
    if output.plot and drawn:
        console.print(f"Plot: [bold]{escape(as_typed(output.plot))}[/]", soft_wrap=True)


def _sentences(result: dict[str, Any]) -> tuple[str, str]:
    return (
        f"noise multiplier {result['noise_multiplier']:.6g}, epsilon "
        f"{numerals.epsilon(result['epsilon'])} at delta {numerals.delta(result['delta'])}",
        f"{numerals.plural(result['steps'], 'step')} of {result['sampling']} batches at rate "
        f"{result['sampling_rate']:.4g}, {result['relation']}",
    )
