"""Result files -> what a person reads: Markdown tables, plots, the blocks in the README and in
docs/benchmarks.md.

Nothing is measured and nothing typed here: all figures come from the JSON records of a folder.
A contestant that cannot run stands in its cell as such, with the reason in a note below.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import noise, plots, records
from benchmarks.contestants import CONTESTANTS, TITLES
from benchmarks.records import Record
from benchmarks.workloads import WORKLOADS

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
OPACUS = ("opacus_ghost", "opacus_hooks")
PRIVATE = tuple(name for name in CONTESTANTS if name != "ordinary")


def lines_of(record: Record) -> list[str]:
    """A record in a few lines for the terminal."""
    if record["kind"] == "scaling":
        return scaling_table(record).splitlines()
    if record["kind"] == "noise":
        return [noise.sentence(record)]
    if record["kind"] == "workers":
        return []  # it has a page of its own
    result = []
    for name, figure in record["contestants"].items():
        if figure["status"] != "ran":
            result.append(f"{TITLES[name]:16} cannot run: {figure['error'][:90]}")
            continue
        in_milliseconds = 1000 * figure.get("lower_quartile_seconds", 0)
        amount = (
            f"{in_milliseconds:9.1f} ms"
            if record["kind"] == "speed"
            else f"{figure['steady_mb']:9.1f} MB"
        )
        times = f"{figure['ratio']:7.2f}x" if "ratio" in figure else ""
        result.append(f"{TITLES[name]:16} {amount} {times}")
    return result


def _in_order(found: dict[str, Record]) -> list[Record]:
    return [found[name] for name in WORKLOADS if name in found]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class _Notes:
    """Numbered reasons below a table; equal reasons share a number."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def mark(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"cannot run [{self.reasons.index(reason) + 1}]"

    def text(self) -> str:
        escaped = [reason.replace("|", "\\|").replace("<", "&lt;") for reason in self.reasons]
        return "\n".join(f"[{i}] {reason}  " for i, reason in enumerate(escaped, 1))


def _ratio_cell(figure: dict[str, Any] | None, name: str, notes: _Notes) -> str:
    if figure is None:
        return "-"
    if figure["status"] != "ran":
        return notes.mark(figure["error"])
    if "ratio" not in figure:
        return "-"
    cell = f"{figure['ratio']:.2f}x"
    return f"**{cell}**" if name == "psac" else cell


def best_opacus(figures: dict[str, dict[str, Any]]) -> float | None:
    """The lower of Opacus' two ratios, if one of them ran."""
    ratios = [figures.get(name, {}).get("ratio") for name in OPACUS]
    return min((value for value in ratios if value), default=None)


def _gain_cell(figures: dict[str, dict[str, Any]]) -> str:
    best, ours = best_opacus(figures), figures.get("psac", {}).get("ratio")
    return f"{best / ours:.2f}x" if best and ours else "-"


def _base_cell(figures: dict[str, dict[str, Any]], field: str, scale: float, unit: str) -> str:
    base = figures.get("ordinary", {})
    return f"{scale * base[field]:.1f} {unit}" if field in base else "-"


def ratio_table(found: dict[str, Record], *, kind: str, notes: _Notes | None = None) -> str:
    """Ratios to the ordinary step, a row per workload; kind is "speed" or "memory"."""
    notes = notes or _Notes()
    field, scale, unit = (
        ("lower_quartile_seconds", 1000.0, "ms") if kind == "speed" else ("steady_mb", 1.0, "MB")
    )
    head = ["workload", "B", "ordinary", *(TITLES[name] for name in PRIVATE), "psac vs best Opacus"]
    rows = []
    for record in _in_order(found):
        figures = record["contestants"]
        cells = [_ratio_cell(figures.get(name), name, notes) for name in PRIVATE]
        base = _base_cell(figures, field, scale, unit)
        size = str(record["settings"]["batch_size"])
        rows.append([record["title"], size, base, *cells, _gain_cell(figures)])
    return _markdown(head, rows)


def scaling_table(record: Record) -> str:
    """Milliseconds and megabytes of each contestant at each size, and the exponents."""
    names = list(record["exponents"])
    symbol = "T" if record["axis"] == "length" else "B"
    head = [symbol, *(f"{TITLES[n]}, {unit}" for unit in ("ms", "MB") for n in names)]
    rows = [
        [str(point["size"])]
        + [_amount(point, n, "time", "lower_quartile_seconds", 1000) for n in names]
        + [_amount(point, n, "memory", "steady_mb", 1) for n in names]
        for point in record["points"]
    ]
    exponents = [
        f"{record['exponents'][n][q]:.2f}" if q in record["exponents"][n] else "-"
        for q in ("time", "memory")
        for n in names
    ]
    return _markdown(head, [*rows, ["exponent", *exponents]])


def _amount(point: dict[str, Any], name: str, quantity: str, field: str, scale: float) -> str:
    figure = point["contestants"][name][quantity]
    return f"{scale * figure[field]:.1f}" if figure["status"] == "ran" else "cannot run"


def _caption(found: Sequence[Record]) -> str:
    """Versions, machine and commands of the records, and whether they belong together."""
    newest = max(found, key=lambda record: record["date"])
    env = newest["environment"]
    loads = [record["load_average"] for record in found]
    commands = sorted({record["command"] for record in found})
    mixed = len({record["source_digest"] for record in found}) > 1
    elsewhere = [
        f"{record['kind']} {record['name']} ({record['environment']['cpu']})"
        for record in found
        if record["environment"]["cpu"] != env["cpu"]
    ]
    return (
        f"psac {env['psac']} (source {newest['source_digest']}), torch {env['torch']}, "
        f"Opacus {env['opacus']}, Python {env['python']}; {env['cpu']}, {env['threads']} threads; "
        f"{newest['date'][:10]}; load average at the start {min(loads):.1f} to {max(loads):.1f}; "
        f"commands {', '.join(f'`{text}`' for text in commands)}."
        + (" These files were measured with several versions of the code." if mixed else "")
        + (f" Measured on another machine: {', '.join(elsewhere)}." if elsewhere else "")
    )


def markdown(folder: Path) -> str:
    """The whole page of tables, from the records of a folder."""
    speed, memory, sweeps, noises = (records.load(folder, kind) for kind in records.KINDS)
    notes, parts = _Notes(), []
    if speed:
        parts += [
            "Time of one full step over the ordinary step (lower quartile, interleaved in one "
            "process whose allocator keeps its memory). The last column says how many times faster "
            "psac is than Opacus' better mode.",
            ratio_table(speed, kind="speed", notes=notes),
        ]
    if memory:
        parts += [
            "Peak memory of one full step beyond model and batch, over the ordinary step's "
            "(each in its own process).",
            ratio_table(memory, kind="memory", notes=notes),
        ]
    parts += [text] if (text := _first_steps(speed, memory)) else []
    parts += [f"{record['title']}\n\n{scaling_table(record)}" for record in sweeps.values()]
    parts += [noise.sentence(record) for record in noises.values()]
    everything = [*speed.values(), *memory.values(), *sweeps.values(), *noises.values()]
    if not everything:
        raise FileNotFoundError(
            f"no result files in '{folder.name}'. Run `python -m benchmarks speed` first."
        )
    parts += [notes.text()] if notes.reasons else []
    return "\n\n".join([*parts, _caption(everything)]) + "\n"


def _first_steps(speed: dict[str, Record], memory: dict[str, Record]) -> str:
    """What psac's first steps take, which the tables leave out."""

    def span(found: dict[str, Record], field: str) -> str:
        figures = [record["contestants"].get("psac", {}).get(field) for record in found.values()]
        ratios = [ratio for ratio in figures if ratio is not None]
        return f"{min(ratios):.1f}x to {max(ratios):.1f}x" if ratios else ""

    time, peak = span(speed, "first_step_ratio"), span(memory, "first_ratio")
    costs = [f"{time} the time of an ordinary step"] if time else []
    costs += [f"{peak} its memory"] if peak else []
    if not costs:
        return ""
    return (
        "The first steps of a run, in which psac compares its gradients with plain autograd on a "
        f"few records, are not in the tables: they take {' and '.join(costs)}."
    )


def small_table(folder: Path) -> str:
    """One line per workload, for the README; each column of Opacus has its better mode."""
    speed, memory = (records.load(folder, kind) for kind in ("speed", "memory"))
    head = ["workload", "ordinary", "psac", "Opacus", "vmap", "memory: psac", "memory: Opacus"]
    rows = []
    for record in _in_order(speed):
        times = record["contestants"]
        sizes = memory.get(record["name"], {}).get("contestants", {})
        time, size = f"**{_times(times, 'psac')}**", f"**{_times(sizes, 'psac')}**"
        opacus, opacus_size = _times(times, *OPACUS), _times(sizes, *OPACUS)
        ordinary = _base_cell(times, "lower_quartile_seconds", 1000, "ms")
        title, vmap = record["title"], _times(times, "vmap")
        rows.append([title, ordinary, time, opacus, vmap, size, opacus_size])
    return _markdown(head, rows)


def _times(figures: dict[str, dict[str, Any]], *names: str) -> str:
    """The lowest ratio of these contestants."""
    present = [figures[name] for name in names if name in figures]
    ratios = [figure["ratio"] for figure in present if "ratio" in figure]
    return f"{min(ratios):.2f}x" if ratios else "cannot run" if present else "-"


def readme_block(folder: Path) -> str:
    """What stands between the markers of the README."""
    newest = max(records.load(folder, "speed").values(), key=lambda record: record["date"])
    env = newest["environment"]
    caption = (
        f"psac {env['psac']}, torch {env['torch']}, Opacus {env['opacus']}; {env['cpu']}, "
        f"{env['threads']} threads; {newest['date'][:10]}. [All tables](docs/benchmarks.md)."
    )
    return f"{BEGIN}\n{small_table(folder)}\n\n{caption}\n{END}"


def page_block(folder: Path) -> str:
    """What stands between the markers of the page in docs/: the picture and all tables."""
    picture = (
        "<picture>\n"
        '  <source media="(prefers-color-scheme: dark)" srcset="benchmarks/bench-dark.svg">\n'
        '  <img alt="Time and memory of a private step over the ordinary step" '
        'src="benchmarks/bench-light.svg">\n'
        "</picture>"
    )
    return f"{BEGIN}\n{picture}\n\n{markdown(folder).strip()}\n{END}"


def insert(text: str, block: str) -> str:
    """Replace what stands between the markers; a text without markers stays as it is."""
    if BEGIN not in text or END not in text:
        return text
    before, rest = text.split(BEGIN, 1)
    return before + block + rest.split(END, 1)[1]


def write(folder: Path, *, root: Path | None = None) -> list[Path]:
    """Write tables and plots into the folder; with `root`, README and docs there as well."""
    table = folder / "table.md"
    records.write_text(table, markdown(folder))
    plotted = plots.write(folder)
    written = [table, *plotted]
    if root is None:
        return written
    for plot in plotted:
        if plot.suffix == ".svg" and plot.name.startswith("bench"):
            written.append(Path(shutil.copy(plot, root / "docs" / "benchmarks")))
    blocks = {"README.md": readme_block(folder), "docs/benchmarks.md": page_block(folder)}
    for name, block in blocks.items():
        old = (root / name).read_text()
        new = insert(old, block)
        if new != old:
            records.write_text(root / name, new)
            written.append(root / name)
    return written
