"""The top of a report: what the run is, what it achieved and what it protects, in plain words.

It is made from what may be published (publishing.py); the owner's report adds the accuracy on
private records, marked as such.  Guarantees: no sentence promises more than the ledger does.  A
seeded run is called not private before any number is shown, and privacy warnings come before
anything that is proved.  A run that is unfinished, or whose folder is incomplete, says so.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psac.app.reporting import clipping_rule, guarantee, numerals
from psac.app.reporting.guarantee import Meaning
from psac.app.reporting.html import Child, Html, element, join
from psac.app.reporting.snapshot import RunSnapshot, number
from psac.app.training.privacy_warnings import SEE_OWNER

MISSING = "\N{EN DASH}"
DO_NOT_PUBLISH = join(
    element("span", "do not publish", class_="tag bad"),
    "This report is for the owner of the data. The marked parts were computed from private records "
    "without noise. `psac report --publish` (publish=True in Python) writes a report without them.",
)


def head(run: RunSnapshot, meaning: Meaning | None, *, owner: RunSnapshot | None) -> Html:
    """`run` is what may be published; `owner` is the whole run, in its owner's report."""
    return element(
        "header",
        element("p", f"Report of a {_kind(run)}training run", class_="kicker"),
        element("h1", run.title),
        element("p", _facts(run), class_="facts"),
        None if owner is None else element("p", DO_NOT_PUBLISH, class_="facts"),
        banners(owner or run),
        _verdict(run, meaning),
        element("dl", _tiles(run, meaning, owner), class_="tiles"),
    )


def _kind(run: RunSnapshot) -> str:
    return "private " if run.is_proved else ""


def warnings(run: RunSnapshot) -> list[str]:
    """What the report warns of, as sentences for the terminal."""
    sentences = verdict(run, None)[:1] if _is_not_private(run) else []
    sentences += warning_texts(run)
    if not run.finished:
        sentences.append("This run is not finished.")
    if _large_delta(run) is not None:
        sentences.append(f"Delta is too large: {numerals.delta(run.delta or 1.0)}.")
    return [*sentences, *run.notes]


def _facts(run: RunSnapshot) -> str:
    recipe, rule = run.recipe, clipping_rule.rule_of(run)
    copies = f", each seen as {recipe['copies']}" if recipe.get("copies", 1) != 1 else ""
    parts = [
        f"{numerals.count(run.start['num_records'])} records{copies}"
        if "num_records" in run.start
        else "",
        f"{recipe['epochs']:g} epoch{'' if recipe['epochs'] == 1 else 's'}"
        if isinstance(recipe.get("epochs"), int | float)
        else "",
        type(rule).__name__ if rule is not None else str(recipe.get("rule", "")),
        f"{recipe['optimizer']}, learning rate {recipe.get('learning_rate')}"
        if "optimizer" in recipe
        else "",
        f"run {run.name}",
        str(run.environment.get("date", ""))[:10],
    ]
    return " \N{MIDDLE DOT} ".join(part for part in parts if part)


def banner(tone: str, title: str, *children: Child) -> Html:
    return element(
        "div", element("p", element("strong", title)), *children, class_=f"banner {tone}"
    )


def banners(run: RunSnapshot) -> Html:
    """What readers must know first."""
    return join(
        seeded(str(run.recipe["seed"]) if "seed" in run.recipe else None)
        if run.secure is False
        else None,
        _warned(run),
        None if run.finished else _unfinished(run),
        _large_delta(run),
        _notes(run.notes) if run.notes else None,
    )


def seeded(seed: str | None) -> Html:
    which = "" if seed is None else f" (seed {seed})"
    return banner(
        "bad",
        "Reproducible, hence not private.",
        element(
            "p",
            f"The noise of this run was seeded{which}, so anyone who knows the seed can subtract "
            "it. This is useful for research and debugging, but a model of private data must not "
            "be released like this. Train it without a seed.",
        ),
    )


def warning_texts(run: RunSnapshot) -> list[str]:
    """What psac warned of, each once; in full if the run is that of its owner."""
    whole = set(run.warned) - {SEE_OWNER}

    def is_repeated(sentence: str) -> bool:
        others = whole - {sentence}
        return bool(others) and (sentence == SEE_OWNER or any(sentence in t for t in others))

    return [s for s in dict.fromkeys((*run.warnings, *run.warned)) if not is_repeated(s)]


def _warned(run: RunSnapshot) -> Html | None:
    sentences = warning_texts(run)
    if not sentences:
        return None
    return banner(
        "bad",
        f"psac warned about privacy {numerals.plural(len(sentences), 'time')}.",
        element("ul", [element("li", sentence) for sentence in sentences]),
    )


def _unfinished(run: RunSnapshot) -> Html:
    of = "" if run.planned is None else f" of {numerals.count(run.planned)} planned"
    done = f"{numerals.count(run.done)}{of} steps are done"
    return banner(
        "warn",
        "This run is not finished.",
        element("p", f"{done}. The numbers below are from that point."),
    )


def _large_delta(run: RunSnapshot) -> Html | None:
    records = run.start.get("num_records")
    if not records or run.delta is None or run.delta < 1 / records:
        return None
    return banner(
        "warn",
        "Delta is too large.",
        element(
            "p",
            f"{numerals.delta(run.delta)} is not below 1 / {numerals.count(records)}. A mechanism "
            "that publishes a random record would satisfy this. Use a tenth of that or less.",
        ),
    )


def _notes(notes: Sequence[str]) -> Html:
    return banner(
        "warn",
        "The folder is incomplete.",
        element("ul", [element("li", note) for note in notes]),
    )


def tone(run: RunSnapshot, meaning: Meaning | None) -> str:
    """The colour of the verdict."""
    if run.secure is False or run.epsilon is None or not math.isfinite(run.epsilon):
        return "bad" if run.secure is False or run.epsilon is not None else "warn"
    if meaning is None:
        return "warn"
    colour = ("good", "fair", "warn", "bad")[guarantee.rank(meaning.guess, run.epsilon)]
    return colour if run.is_proved or colour == "bad" else "warn"


def _verdict(run: RunSnapshot, meaning: Meaning | None) -> Html:
    sentences = [element("p", sentence) for sentence in verdict(run, meaning)]
    return element("div", sentences, class_=f"verdict {tone(run, meaning)}")


def verdict(run: RunSnapshot, meaning: Meaning | None) -> list[str]:
    """What the run protects, for readers who have never heard of epsilon."""
    if run.secure is False:
        return [
            "This model protects nobody: its noise can be recomputed from the seed.",
            "The numbers below would hold for the same run with noise from a secure generator.",
        ]
    if run.epsilon is not None and not math.isfinite(run.epsilon):
        return ["This model is not private: it was trained with no noise or almost none."]
    if run.secure is None or meaning is None or run.epsilon is None:
        return [
            "Nothing in the folder proves how private this model is.",
            "The proof needs the ledger (ledger.json) and delta. Without them, treat the model "
            "like the data.",
        ]
    words = guarantee.VERDICTS[guarantee.rank(meaning.guess, run.epsilon)][-1]
    sure = numerals.percent(guarantee.FALSE_POSITIVES)
    proof = "This is proved for every attack and every record; it is not a measurement."
    return [
        *_reservations(run),
        f"Anyone who sees this model {words}. An attacker who knows all other records and every "
        f"setting guesses correctly at most {_up(meaning.guess)} of the time, compared with "
        f"50{numerals.SPACE}% for a coin toss.",
        f"An attack with a false positive rate of {sure} identifies at most "
        f"{_up(meaning.true_positives)} of the records that were in the data."
        + (f" {proof}" if run.is_proved else ""),
    ]


def _reservations(run: RunSnapshot) -> list[str]:
    """The conditions under which the epsilon of the ledger holds."""
    conditions = []
    if run.warnings or run.warned:
        conditions.append(
            "What follows covers the training steps only. It does not cover what psac warned of, "
            "see above."
        )
    if run.ledger is not None and "batched" in run.ledger.isolation:
        conditions.append(
            "What follows holds if the loss function keeps records apart. That was tested, not "
            "proved."
        )
    return conditions


def _is_not_private(run: RunSnapshot) -> bool:
    proved = run.secure is True and run.epsilon is not None and math.isfinite(run.epsilon)
    return not proved


def _up(share: float) -> str:
    """Rounded up, as a bound must be."""
    digits = 0 if share > 0.1 else 1
    unit = 10 ** (2 + digits)
    return numerals.percent(min(1.0, math.ceil(share * unit - 1e-9) / unit), digits)


def tile(title: str, value: str, *lines: Child) -> Html:
    below = [line if isinstance(line, Html) else element("dd", line) for line in lines if line]
    return element(
        "div", element("dt", title), element("dd", value, class_="value"), below, class_="tile"
    )


def _accuracy_tile(run: RunSnapshot, owner: RunSnapshot | None) -> Html:
    if owner is not None and owner.on_private_records and owner.accuracy is not None:
        mark = element("dd", element("span", "not private: do not publish", class_="tag bad"))
        value = numerals.percent(owner.accuracy)
        return tile("Accuracy", value, accuracy_note(owner), *_constant(owner), mark)
    accuracy = MISSING if run.accuracy is None else numerals.percent(run.accuracy)
    return tile("Accuracy", accuracy, accuracy_note(run), *_constant(run))


def _tiles(run: RunSnapshot, meaning: Meaning | None, owner: RunSnapshot | None) -> list[Html]:
    spent = MISSING if run.epsilon is None else numerals.epsilon(run.epsilon)
    of = "" if run.planned is None else f"of {numerals.count(run.planned)} planned"
    return [
        _accuracy_tile(run, owner),
        tile("Epsilon", spent, _epsilon_note(run)),
        _guess_tile(run, meaning),
        tile("Steps", numerals.count(run.done), of),
    ]


def _epsilon_note(run: RunSnapshot) -> str:
    if run.epsilon is None or run.delta is None:
        return "unknown: there is no ledger, or no delta"
    if run.secure is False:
        return f"at delta {numerals.delta(run.delta)}, if it were not seeded"
    return f"at delta {numerals.delta(run.delta)}; tuning is not included"


def _guess_tile(run: RunSnapshot, meaning: Meaning | None) -> Html:
    title = "Best possible guess"
    if run.secure is not False and (run.secure is None or meaning is None):
        return tile(title, MISSING, "unknown: there is no ledger")
    best = 1.0 if run.secure is False or meaning is None else meaning.guess
    width = f"width:{200 * (best - 0.5):.0f}%"
    meter = element("dd", element("i", style=width), class_=f"meter {tone(run, meaning)}")
    scale = f"50{numerals.SPACE}% is a coin toss, 100{numerals.SPACE}% is certainty"
    return tile(title, _up(best), meter, scale)


def accuracy_note(run: RunSnapshot) -> str:
    """The records it was measured on, and its margin of error."""
    records = records_of(run)
    if run.accuracy is None:
        hidden = f"not shown, as it was measured on {records}"
        return hidden if run.on_private_records else "not evaluated yet"
    matrix = run.summary.get("confusion_matrix")
    if not matrix:
        return f"on {records}"
    total = sum(sum(row) for row in matrix)
    margin = 1.96 * math.sqrt(run.accuracy * (1 - run.accuracy) / total) if total else 0.0
    return (
        f"on {numerals.count(total)} {records}, "
        f"\N{PLUS-MINUS SIGN}{100 * margin:.1f} points (95{numerals.SPACE}%)"
    )


def records_of(run: RunSnapshot) -> str:
    """What the model was evaluated on; "public" only if somebody stated it."""
    if run.on_public_records:
        return "public test records"
    return "held-out private records" if run.held_out else "private test records"


def _constant(run: RunSnapshot) -> list[str]:
    return [compared(run.accuracy, run.summary)] if run.accuracy is not None else []


def compared(accuracy: float, summary: Mapping[str, Any]) -> str:
    """The accuracy compared with always predicting the most frequent class."""
    share = number(summary.get("constant_accuracy"))
    if share is None:
        return "baseline unknown (state the share of the most frequent class: most_frequent_share)"
    points = f"{100 * abs(accuracy - share):.1f} points {'above' if accuracy >= share else 'BELOW'}"
    return f"{points} always predicting the most frequent class ({numerals.percent(share)})"


def data_name(run: RunSnapshot) -> str:
    return Path(str(run.recipe.get("data", "the data"))).name
