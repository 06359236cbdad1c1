"""Several runs side by side: a table, accuracy against epsilon, learning curves, tests.

Guarantees: the cost of releasing all runs is stated beside the cost of each, if their ledgers can
be added up; unfinished runs are not averaged.  As in the report of one run, everything outside a
marked section is made from what may be published.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from psac.accounting import Ledger
from psac.app.reporting import clipping_rule, numerals
from psac.app.reporting.comparison_plots import against_epsilon, curves
from psac.app.reporting.diagnostics import not_private, quantile_rows
from psac.app.reporting.head import DO_NOT_PUBLISH, MISSING, banner, data_name
from psac.app.reporting.html import Child, Html, element, join, table
from psac.app.reporting.privacy_card import noise_multipliers, relation
from psac.app.reporting.publishing import published
from psac.app.reporting.snapshot import RunSnapshot, number
from psac.app.reporting.statistics import Comparison, Group, common, comparisons, groups
from psac.app.training.price import price, record


def compare(runs: Sequence[RunSnapshot], *, publish: bool) -> list[Html | None]:
    """The parts of the page."""
    shown = [published(run) for run in runs]
    hidden = any(run.on_private_records for run in runs)
    return [
        _head(shown, publish),
        _price(runs),
        *_results(groups(shown)),
        None if publish else _inside(runs, _results(groups(runs)) if hidden else []),
    ]


def title(runs: Sequence[RunSnapshot]) -> str:
    names = list(dict.fromkeys(run.title for run in runs))
    subject = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return f"{len(runs)} runs: {subject}"


def _head(runs: Sequence[RunSnapshot], publish: bool) -> Html:
    notes = [element("li", f"{run.name}: {note}") for run in runs for note in run.notes]
    seeded = [run.name for run in runs if run.secure is False]
    unfinished = [run.name for run in runs if not run.finished]
    warned = [run.name for run in runs if run.warnings or run.warned]
    held_out = [run.name for run in runs if run.on_private_records]
    return element(
        "header",
        element("p", "Comparison of private training runs", class_="kicker"),
        element("h1", title(runs)),
        None if publish else element("p", DO_NOT_PUBLISH, class_="facts"),
        _warning(
            "bad", "Reproducible, hence not private.", seeded, runs,
            "seeded. Anyone who knows the seed can subtract the noise; epsilon is what it would be "
            "without a seed.",
        ),
        _warning(
            "bad", "psac warned about privacy.", warned, runs,
            "the report of each run says of what. Epsilon does not cover it.",
        ),
        _warning(
            "warn", "Not finished.", unfinished, runs,
            "shown up to their last step, and left out of the statistics.",
        ),
        _warning(
            "warn", "Measured on private records.", held_out, runs,
            "the accuracy has no noise, so it is not shown here.",
        ),
        banner("warn", "Some folders are incomplete.", element("ul", notes)) if notes else None,
    )  # fmt: skip


def _warning(
    tone: str, heading: str, names: Sequence[str], runs: Sequence[RunSnapshot], text: str
) -> Html | None:
    which = "All runs" if len(names) == len(runs) else ", ".join(names)
    return banner(tone, heading, element("p", f"{which}: {text}")) if names else None


def _price(runs: Sequence[RunSnapshot]) -> Html | None:
    """The cost of releasing all runs."""
    total = together(runs)
    if total is None:
        return None
    spent, delta = total
    secure = all(run.secure for run in runs)
    return element(
        "div",
        element(
            "p",
            f"Releasing all {len(runs)} runs {'costs' if secure else 'would cost'} epsilon "
            f"{numerals.epsilon(spent)} at delta {numerals.delta(delta)}"
            f"{'' if secure else ', if none were seeded'}.",
        ),
        element(
            "p",
            f"All of them used {data_name(runs[0])}, so their costs add up. The epsilon of one run "
            "holds for that model alone, and only if it was not chosen by looking at the others: "
            "tuning is not included (psac.tuned_epsilon computes its cost).",
        ),
        class_=f"verdict {'fair' if secure else 'bad'}",
    )


def together(runs: Sequence[RunSnapshot]) -> tuple[float, float] | None:
    """Epsilon and delta of all ledgers together, if data and relation are the same."""
    deltas = [run.delta for run in runs if run.delta is not None]
    ledgers = [run.ledger for run in runs if run.ledger is not None and run.ledger.entries]
    records = {entry.num_records for ledger in ledgers for entry in ledger.training}
    same = len({relation(run) for run in runs}) == 1 and len(records) == 1
    if len(ledgers) < len(runs) or not deltas or not same or common(runs, "data") is None:
        return None
    total = Ledger(secure=all(ledger.secure for ledger in ledgers))
    for ledger in ledgers:
        for entry in ledger.entries:
            record(total, entry)
    return price(total, min(deltas), quick=True), min(deltas)


def _results(groups: Sequence[Group]) -> list[Html | None]:
    return [_table(groups), against_epsilon(groups), curves(groups), _tests(groups)]


COLUMNS: dict[str, Callable[[RunSnapshot], Child]] = {
    "accuracy": lambda run: _written(run.accuracy, lambda value: numerals.percent(value, 2)),
    "epsilon": lambda run: _written(run.epsilon, numerals.epsilon),
    "rule": lambda run: element("code", clipping_rule.text_of(run)),
    "delta": lambda run: _written(run.delta, numerals.delta),
    "noise": lambda run: ", ".join(map(numerals.rounded, noise_multipliers(run))) or MISSING,
    "learning rate": lambda run: _written(
        number(run.recipe.get("learning_rate")), numerals.rounded
    ),
    "batch": lambda run: _written(number(run.recipe.get("batch_size")), numerals.count),
    "steps": lambda run: _steps(run),
    "seed": lambda run: _seed(run),
}
ALWAYS = ("rule", "accuracy", "epsilon", "learning rate", "seed")


def _table(groups: Sequence[Group]) -> Html:
    """One row for each run; a column with equal values becomes a sentence instead."""
    runs = [run for group in groups for run in group.runs]
    values = {name: [write(run) for run in runs] for name, write in COLUMNS.items()}
    equal = [
        name for name in values if name not in ALWAYS and len(set(map(str, values[name]))) == 1
    ]
    names = [name for name in values if name not in equal]
    rows = [[run.name, *(values[name][place] for name in names)] for place, run in enumerate(runs)]
    same = ", ".join(f"{name} {values[name][0]}" for name in equal)
    means = [_mean_row(group) for group in groups if len(group.accuracies) > 1]
    head = ["settings", "runs", "mean accuracy", "deviation", "epsilon"]
    return element(
        "section",
        element("h2", "Runs"),
        element("p", f"The same in all runs: {same}.", class_="about") if same else None,
        table(["run", *names], rows, caption="Runs", texts=["rule"]),
        element("h3", "Means over runs", style="margin:30px 0 8px") if means else None,
        table(head, means, caption="Means over runs") if means else None,
        id="runs",
    )


def _written(value: float | None, write: Callable[[float], str]) -> str:
    return MISSING if value is None else write(value)


def _steps(run: RunSnapshot) -> str:
    done = numerals.count(run.done)
    if run.finished:
        return done
    return f"{done} of {numerals.count(run.planned)}" if run.planned else f"{done}, interrupted"


def _seed(run: RunSnapshot) -> Child:
    if run.secure is False:
        return element("span", f"{run.recipe.get('seed', 'seeded')}, not private", class_="tag bad")
    return element("span", "secure", class_="tag good") if run.secure else MISSING


def _mean_row(group: Group) -> list[Child]:
    deviation = "" if group.deviation is None else f"{100 * group.deviation:.2f} points"
    return [
        group.label,
        str(len(group.accuracies)),
        _written(group.mean, lambda value: numerals.percent(value, 2)),
        deviation,
        _written(group.epsilon, numerals.epsilon),
    ]


def _tests(groups: Sequence[Group]) -> Html | None:
    tested = comparisons(groups)
    if not tested:
        known = {group.runs[0].recipe.get("rule") for group in groups if group.mean is not None}
        if len(known) < 2:
            return None
        reason = "A test needs two finished runs for each of two rules."
        return element("section", element("h2", "Could it be chance?"), element("p", reason))
    return element(
        "section",
        element("h2", "Could it be chance?"),
        element(
            "p",
            "Welch's test of the difference in mean accuracy between rules, in percentage points. "
            "A small p means that chance alone would rarely cause such a difference. Holm's column "
            f"is corrected for {numerals.plural(len(tested), 'comparison')}.",
            class_="about",
        ),
        table(
            ["rules", "difference", "95 % interval", "p", "p (Holm)"],
            [_test_row(comparison) for comparison in tested],
            caption="Welch tests",
        ),
    )


def _test_row(comparison: Comparison) -> list[Child]:
    first, second = comparison.first.label, comparison.second.label
    names = join(first, element("span", " minus ", class_="quiet"), second)
    if math.isnan(comparison.p):
        return [names, _points(comparison.difference), "no spread", MISSING, MISSING]
    return [
        names,
        _points(comparison.difference),
        f"{_points(comparison.low)} to {_points(comparison.high)}",
        _probability(comparison.p),
        _probability(comparison.holm),
    ]


def _points(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", numerals.MINUS)


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _inside(runs: Sequence[RunSnapshot], results: Sequence[Html | None]) -> Html:
    """What must not be published: time, speed, training loss and norms."""
    rows = [[run.name, *_inner_values(run)] for run in runs]
    head = ["run", "time", "records per second", "training loss", "median norm"]
    return not_private(
        "Computed from private records without noise. Speed is averaged over the whole run, loss "
        "and norm over the last tenth of the logged steps.",
        table(head, rows, caption="Inside the training"),
        *results,
    )


def _inner_values(run: RunSnapshot) -> list[str]:
    tenth = max(1, len(run.steps) // 10)
    losses = [number(line.get("loss")) for line in run.steps[-tenth:]]
    speeds = [number(line.get("samples_per_second")) for line in run.steps]
    norms = [row[3] for row in quantile_rows(run, "norms")[-tenth:]]
    return [
        _written(run.seconds, numerals.duration),
        _written(_mean(speeds), numerals.count),
        _written(_mean(losses), numerals.rounded),
        _written(_mean(norms), numerals.rounded),
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
