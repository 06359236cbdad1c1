"""Epsilon over steps: as points, as a drawing in the terminal, as an image file.

Points between the ends are priced on a coarser lattice, which makes them up to half a percent
larger; the last one is the price that is reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from psac.accounting import pricing
from psac.accounting.schemes import entry
from psac.app.reporting.axes import Axis

POINTS = 40
COARSE = 8.0
WIDTH, HEIGHT = 56, 12
# The bits of a braille character, by row and column of its dots.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
FORMATS = (".svg", ".png", ".pdf")

Points = list[tuple[int, float]]


def points(plan: dict[str, Any]) -> Points:
    """(steps, epsilon) from the first step to the last."""
    total = plan["steps"]
    # Denser at the beginning, where the curve bends.
    places = sorted({max(1, total * k * k // POINTS**2) for k in range(POINTS)} - {total})
    return [*((steps, _coarsely(plan, steps)) for steps in places), (total, plan["epsilon"])]


def _coarsely(plan: dict[str, Any], steps: int) -> float:
    keys = ("sampling", "relation", "noise_multiplier", "sampling_rate", "num_records")
    release = entry(**{key: plan[key] for key in keys}, steps=steps)
    return pricing.price([release], plan["delta"], "pld", coarseness=COARSE, first_look=True)


def drawing(curve: Points) -> Text:
    """The curve in braille dots, with its axes."""
    x = Axis.over([0, curve[-1][0]], "steps", tight=True)
    y = Axis.over([0.0, *(epsilon for _, epsilon in curve)], "epsilon")
    canvas = [[0] * WIDTH for _ in range(HEIGHT)]
    for column in range(2 * WIDTH):
        value = _between(curve, column / (2 * WIDTH - 1) * x.high)
        row = round((1 - y.place(value)) * (4 * HEIGHT - 1))
        canvas[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    labels = {round((1 - y.place(tick.value)) * (HEIGHT - 1)): tick.label for tick in y.ticks}
    margin = max(len(label) for label in labels.values())
    text = Text(f"{y.label}\n", "dim")
    for number, row in enumerate(canvas):
        text.append(
            f"{labels.get(number, ''):>{margin}} ┤" if number in labels else f"{'':>{margin}} │"
        )
        text.append("".join(chr(0x2800 + bits) for bits in row) + "\n", "cyan not dim")
    text.append(f"{'':>{margin}} └" + "─" * WIDTH + "\n")
    return text.append(_ticks(x, margin + 2))


def _ticks(x: Axis, margin: int) -> str:
    line = [" "] * (margin + WIDTH + 8)
    for tick in x.ticks:
        start = margin + round(x.place(tick.value) * (WIDTH - 1)) - len(tick.label) // 2
        line[start : start + len(tick.label)] = tick.label
    return "".join(line).rstrip() + f"  {x.label}"


def _between(curve: Points, steps: float) -> float:
    """Linear interpolation; zero steps cost nothing."""
    before = (0.0, 0.0)
    for point in curve:
        if point[0] >= steps:
            share = (steps - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]


def refuse_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--plot is '{path}': the file must end in {', '.join(FORMATS)}.")


def write(path: Path, curve: Points, title: str) -> None:
    """Draws the curve with matplotlib (the extra `plots`)."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'psac[plots]'.") from error
    matplotlib.rcParams["svg.hashsalt"] = "psac"  # equal curves, equal files
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, *(steps for steps, _ in curve)], [0.0, *(price for _, price in curve)])
    axes.set(xlabel="steps", ylabel="epsilon", xlim=(0, curve[-1][0]), ylim=(0, None))
    axes.set_title(title, fontsize="small", loc="left")
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
