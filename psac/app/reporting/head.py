"""The top of a page about one run: what it is, what it achieved, what it protects, in plain words.

It is made from what may be published (`Run.published`); on the owner's page, accuracy on private
records is added, marked as such.  Guarantees: no sentence promises more than the ledger does.  A
seeded run is called not private before any number is; so is a run that psac warned of, before
anything is said to be proved; a run that is not finished, or whose folder lacks a file, says so.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psac.app.reporting import guarantee, numerals, rules
from psac.app.reporting.guarantee import Meaning
from psac.app.reporting.html import Child, Html, element, join
from psac.app.reporting.runs import SEE_OWNER, Run, number

MISSING = "\N{EN DASH}"
DO_NOT_PUBLISH = join(
    element("span", "do not publish", class_="tag bad"),
    "This page is for the owner of the data: what is marked was computed from private records "
    "without noise. psac report --publish, or publish=True in Python, makes a page without it.",
)


def head(run: Run, meaning: Meaning | None, *, owner: Run | None) -> Html:
    """`run` is what may be published; `owner` the whole run, on the page of its owner."""
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


def _kind(run: Run) -> str:
    """What the title may call the run."""
    return "private " if run.is_proved else ""


def warnings(run: Run) -> list[str]:
    """The page's banners and verdict in sentences, where they warn: for the terminal."""
    said = verdict(run, None)[:1] if _is_not_private(run) else []
    said += told(run)
    if not run.finished:
        said.append("This run is not finished.")
    if _large_delta(run) is not None:
        said.append(f"Delta is too large: {numerals.delta(run.delta or 1.0)}.")
    return [*said, *run.notes]


def _facts(run: Run) -> str:
    recipe, rule = run.recipe, rules.rule_of(run)
    copies = f", each seen as {recipe['copies']}" if recipe.get("copies", 1) != 1 else ""
    parts = [
        f"{numerals.count(run.start['num_records'])} records{copies}"
        if "num_records" in run.start
        else "",
        f"{recipe['epochs']:g} epochs" if isinstance(recipe.get("epochs"), int | float) else "",
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


def banners(run: Run) -> Html:
    """What must be known before anything else is read."""
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
    given = "" if seed is None else f" (seed {seed})"
    return banner(
        "bad",
        "Reproducible, hence not private.",
        element(
            "p",
            f"The noise of this run was seeded{given}: whoever knows the seed can subtract it. "
            "That is good for research and for finding mistakes, but a model of private data must "
            "not be released so: train it without a seed.",
        ),
    )


def told(run: Run) -> list[str]:
    """What psac warned of: in full where the owner reads it."""
    short = () if set(run.warned) - {SEE_OWNER} and run.warnings == (SEE_OWNER,) else run.warnings
    return list(dict.fromkeys((*short, *run.warned)))


def _warned(run: Run) -> Html | None:
    sentences = told(run)
    if not sentences:
        return None
    return banner(
        "bad",
        f"psac warned about privacy {numerals.plural(len(sentences), 'time')}.",
        element("ul", [element("li", sentence) for sentence in sentences]),
    )


def _unfinished(run: Run) -> Html:
    of = "" if run.planned is None else f" of {numerals.count(run.planned)} planned"
    done = f"{numerals.count(run.done)}{of} steps are done"
    return banner(
        "warn",
        "This run is not finished.",
        element("p", f"{done}; the numbers are those that it had written by then."),
    )


def _large_delta(run: Run) -> Html | None:
    records = run.start.get("num_records")
    if not records or run.delta is None or run.delta < 1 / records:
        return None
    return banner(
        "warn",
        "Delta is too large.",
        element(
            "p",
            f"{numerals.delta(run.delta)} is not below 1 / {numerals.count(records)}: a mechanism "
            "that publishes a random record would pass. Take a tenth of that or less.",
        ),
    )


def _notes(notes: Sequence[str]) -> Html:
    return banner(
        "warn",
        "The folder is not complete.",
        element("ul", [element("li", note) for note in notes]),
    )


def tone(run: Run, meaning: Meaning | None) -> str:
    """The colour of the verdict."""
    if run.secure is False or run.epsilon is None or not math.isfinite(run.epsilon):
        return "bad" if run.secure is False or run.epsilon is not None else "warn"
    if meaning is None:
        return "warn"
    found = ("good", "fair", "warn", "bad")[guarantee.rank(meaning.guess, run.epsilon)]
    return found if run.is_proved or found == "bad" else "warn"


def _verdict(run: Run, meaning: Meaning | None) -> Html:
    sentences = [element("p", sentence) for sentence in verdict(run, meaning)]
    return element("div", sentences, class_=f"verdict {tone(run, meaning)}")


def verdict(run: Run, meaning: Meaning | None) -> list[str]:
    """What the run protects, for one who has never heard of epsilon."""
    if run.secure is False:
        return [
            "This model protects nobody: its noise can be computed again from the seed.",
            "The numbers below are those of the same run with noise from a secure generator.",
        ]
    if run.epsilon is not None and not math.isfinite(run.epsilon):
        return ["This model is not private: it was trained without noise, or with next to none."]
    if run.secure is None or meaning is None or run.epsilon is None:
        return [
            "Nothing in the folder proves how private this model is.",
            "That takes the ledger (ledger.json) and delta; without them, treat the model as the "
            "data themselves.",
        ]
    words = guarantee.VERDICTS[guarantee.rank(meaning.guess, run.epsilon)][-1]
    sure = numerals.percent(guarantee.FALSE_POSITIVES)
    proof = "This is proved for every attack, on every record; it is not a measurement."
    return [
        *_reservations(run),
        f"Whoever sees this model {words}: an attacker who knows all "
        f"other records and every setting guesses right at most {_up(meaning.guess)} of the time, "
        "where tossing a coin is right half of the time.",
        f"An attack that may be wrong about {sure} of those who were not in the data recognises at "
        f"most {_up(meaning.found)} of those who were." + (f" {proof}" if run.is_proved else ""),
    ]


def _reservations(run: Run) -> list[str]:
    """Why the ledger's epsilon is not all there is to say."""
    said = []
    if run.warnings or run.warned:
        said.append(
            "What follows is the price of the training steps alone. psac warned about privacy, "
            "see above, and what it warned of is not covered."
        )
    if run.ledger is not None and "batched" in run.ledger.isolation:
        said.append(
            "What follows holds if the loss function kept records apart. That was tested, not "
            "proved."
        )
    return said


def _is_not_private(run: Run) -> bool:
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


def _accuracy_tile(run: Run, owner: Run | None) -> Html:
    if owner is not None and owner.on_private_records and owner.accuracy is not None:
        mark = element("dd", element("span", "not private: do not publish", class_="tag bad"))
        value = numerals.percent(owner.accuracy)
        return tile("Accuracy", value, accuracy_note(owner), *_constant(owner), mark)
    accuracy = MISSING if run.accuracy is None else numerals.percent(run.accuracy)
    return tile("Accuracy", accuracy, accuracy_note(run), *_constant(run))


def _tiles(run: Run, meaning: Meaning | None, owner: Run | None) -> list[Html]:
    spent = MISSING if run.epsilon is None else numerals.epsilon(run.epsilon)
    of = "" if run.planned is None else f"of {numerals.count(run.planned)} planned"
    return [
        _accuracy_tile(run, owner),
        tile("Epsilon", spent, _epsilon_note(run)),
        _guess_tile(run, meaning),
        tile("Steps", numerals.count(run.done), of),
    ]


def _epsilon_note(run: Run) -> str:
    if run.epsilon is None or run.delta is None:
        return "unknown: there is no ledger, or no delta"
    if run.secure is False:
        return f"at delta {numerals.delta(run.delta)}, if it were not seeded"
    return f"at delta {numerals.delta(run.delta)}; tuning is not included"


def _guess_tile(run: Run, meaning: Meaning | None) -> Html:
    title = "Best possible guess"
    if run.secure is not False and (run.secure is None or meaning is None):
        return tile(title, MISSING, "unknown: there is no ledger")
    best = 1.0 if run.secure is False or meaning is None else meaning.guess
    width = f"width:{200 * (best - 0.5):.0f}%"
    meter = element("dd", element("i", style=width), class_=f"meter {tone(run, meaning)}")
    scale = f"50{numerals.SPACE}% is a coin, 100{numerals.SPACE}% is certainty"
    return tile(title, _up(best), meter, scale)


def accuracy_note(run: Run) -> str:
    """On what, and how sure."""
    records = records_of(run)
    if run.accuracy is None:
        hidden = f"not shown here: it was measured on {records}"
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


def records_of(run: Run) -> str:
    """What the model was evaluated on; "public" only where somebody said so."""
    if run.on_public_records:
        return "public test records"
    return "private records that were held out" if run.held_out else "private test records"


def _constant(run: Run) -> list[str]:
    """What the accuracy must be held against."""
    return [compared(run.accuracy, run.summary)] if run.accuracy is not None else []


def compared(accuracy: float, summary: Mapping[str, Any]) -> str:
    """How it compares with an answer that does not look at the record."""
    share = number(summary.get("constant_accuracy"))
    if share is None:
        return "always the most frequent answer: not known (most_frequent_share in the recipe)"
    points = f"{100 * abs(accuracy - share):.1f} points {'above' if accuracy >= share else 'BELOW'}"
    return f"{points} always the most frequent answer ({numerals.percent(share)})"


def data_name(run: Run) -> str:
    return Path(str(run.recipe.get("data", "the data"))).name
