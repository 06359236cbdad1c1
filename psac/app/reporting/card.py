"""The privacy card: everything that must be said for an epsilon to mean something.

The rows follow the list of Ponomareva et al. 2023, "How to DP-fy ML", section 5.3.3
(arXiv:2303.00654): setting, unit and relation, which data and which releases are covered, tuning,
accountant, what sampling it assumes and what was done.  What is not known is said to be unknown.
"""

from psac.accounting import Ledger
from psac.app.reporting import numerals, rules
from psac.app.reporting.head import data_name, told
from psac.app.reporting.html import Child, Html, element, join, table, unfold
from psac.app.reporting.runs import Run, number, price
from psac.clipping.rules import AdaptivePSAC

RELATIONS = {
    "add-or-remove-one": "Add or remove one: data sets that differ by one record, which is there "
    "or not.",
    "replace-one": "Replace one: data sets of equal size that differ in the content of one record.",
}
SAMPLINGS = {
    "poisson": "Poisson: each record enters each step by a coin of its own.",
    "fixed-size-without-replacement": "Fixed size without replacement: each step takes a uniform "
    "subset of exactly that size.",
    "fixed-size-with-replacement": "Fixed size with replacement: each step draws records "
    "independently, and one that comes twice counts twice.",
    "balls-in-bins": "Balls in bins: in each epoch, each record enters exactly one step.",
}
SETTING = (
    "Central: one trusted party holds the data and trains; noise is added in training, and what "
    "leaves is protected."
)
TUNING = (
    " This is the price of this one run. Settings that were chosen by other runs on the same data "
    "cost more; psac.tuned_epsilon prices that."
)
ACCOUNTANT = (
    "Privacy loss distributions (PLD), by psac and, where it knows the sampling, by dp-accounting: "
    "both are upper bounds, and the larger one counts. Priced from the ledger when this page was "
    "written."
)
NOT_COVERED = (
    "the number of records, which is taken to be public",
    "the choice of settings, if other runs on the same data led to it",
    "other uses of the same data, and other models trained on them",
    "training losses, norms, samples and times, if they are shown",
    "a person behind several records, who is protected less",
    "time and other side channels of the computer that trained",
)
ABOUT = (
    "What was guaranteed, to whom, under which assumptions, and what was not. These facts may be "
    "published with the model."
)
WITHOUT_LEDGER = (
    "There is no ledger that can be read, so nothing is guaranteed. The rest is what the run wrote "
    "of itself: do not publish the model by it."
)
OTHER_DELTAS = (1e-4, 1e-6, 1e-8)
UNKNOWN = "not written"


def card(run: Run) -> Html:
    rows: dict[str, Child] = {
        "Guarantee": _guarantee(run),
        "Warnings": _warnings(run),
        "Setting": SETTING,
        "What is protected": "One record, that is one training example.",
        "Neighbouring data": RELATIONS.get(relation(run) or "", relation(run) or UNKNOWN),
        "Data covered": _data(run),
        "Releases covered": _releases(run) if run.ledger is not None else UNKNOWN,
        "Tuning": join(element("b", "Not included."), TUNING),
        "Accountant": ACCOUNTANT if run.ledger is not None else UNKNOWN,
        "Sampling": _sampling(run),
        "Noise": _noise(run),
        "Clipping": _clipping(run),
        "Isolation": _isolation(run),
        "Steps": _steps(run),
        "Random generator": _generator(run),
        "Not covered": element("ul", [element("li", item) for item in NOT_COVERED]),
    }
    body = [
        element("div", element("dt", name), element("dd", value)) for name, value in rows.items()
    ]
    return element(
        "section",
        element("h2", "Privacy card"),
        element(
            "p",
            ABOUT if run.ledger is not None else WITHOUT_LEDGER,
            class_="about",
        ),
        element("dl", body, class_="card"),
        id="privacy",
    )


def relation(run: Run) -> str | None:
    """In the ledger's words."""
    if run.ledger is not None and run.ledger.entries:
        return run.ledger.entries[0].relation
    written = run.start.get("relation")
    return None if written is None else str(written).removesuffix(" record").replace(" ", "-")


def _guarantee(run: Run) -> Child:
    if run.secure is False:
        refusal = element("b", "None: the noise is reproducible.")
        return join(refusal, " With secure noise it would be: ", _pair(run))
    return join(_pair(run), _other_pairs(run.ledger, run.delta))


def _pair(run: Run) -> Html:
    if run.epsilon is None or run.delta is None:
        return Html("unknown: there is no ledger, or no delta.")
    pair = f"epsilon {numerals.epsilon(run.epsilon)} at delta {numerals.delta(run.delta)}"
    so_far = "" if run.finished else ", so far"
    steps = " of the training steps; see the warnings" if run.warnings or run.warned else ""
    return join(element("b", pair), f"{so_far}: (epsilon, delta)-differential privacy{steps}.")


def _warnings(run: Run) -> Child:
    sentences = told(run)
    if not sentences:
        return "None by psac." if run.ledger is not None else UNKNOWN
    return element("ul", [element("li", element("b", sentence)) for sentence in sentences])


def _other_pairs(ledger: Ledger | None, delta: float | None) -> Html | None:
    """The same guarantee at other deltas."""
    if ledger is None or delta is None or not ledger.entries:
        return None
    deltas = sorted({delta, *OTHER_DELTAS}, reverse=True)
    exact = {delta: price(ledger, delta)}
    prices = {d: price(ledger, d, quick=True) for d in OTHER_DELTAS} | exact
    rows = [[numerals.delta(d), numerals.epsilon(prices[d])] for d in deltas]
    pairs = table(["delta", "epsilon"], rows, caption="Epsilon at other deltas")
    return unfold("The same guarantee at other deltas", pairs)


def _data(run: Run) -> str:
    records = run.start.get("num_records")
    size = "The" if records is None else f"All {numerals.count(records)}"
    held_out = number(run.recipe.get("validation_fraction"))
    text = f"{size} training records of {data_name(run)}, for all that training did with them."
    if held_out:
        return (
            f"{text} The {numerals.percent(held_out, 0)} of records that were held out for "
            "validation are NOT covered: accuracy was measured on them without noise."
        )
    if run.on_private_records:
        return (
            f"{text} Test records are NOT covered: accuracy was measured on them without noise, "
            "and nobody called them public."
        )
    if run.on_public_records:
        who = "the recipe" if run.recipe.get("test_is_public") else "who published the data"
        return f"{text} Test records are public, says {who}."
    return text


def _releases(run: Run) -> str:
    scale = ", the learned scale" if isinstance(rules.rule_of(run), AdaptivePSAC) else ""
    text = f"Every model on the way and the last one, the optimizer's state{scale}, the ledger."
    if _scheme(run) == "balls-in-bins":
        return f"{text} Not the checkpoints: they hold who comes when in the epoch."
    return text


def _scheme(run: Run) -> str | None:
    entries = run.ledger.training if run.ledger is not None else ()
    return entries[-1].sampling if entries else run.start.get("sampling")


def _sampling(run: Run) -> str:
    scheme = _scheme(run)
    text = SAMPLINGS.get(scheme or "", scheme or UNKNOWN)
    size, records = run.start.get("expected_batch_size"), run.start.get("num_records")
    rate = sampling_rate(run)
    if rate is not None and size and records:
        text += (
            f" Rate {numerals.rounded(rate, 4)}, which is {numerals.count(size)} of "
            f"{numerals.count(records)}."
        )
    elif rate is not None:
        text += f" Rate {numerals.rounded(rate, 4)}."
    if run.ledger is None:
        return text
    return f"{text} The accountant assumes what was done: the draws are exactly of this law."


def sampling_rate(run: Run) -> float | None:
    if run.ledger is not None and run.ledger.training:
        return run.ledger.training[-1].sampling_rate
    size, records = run.start.get("expected_batch_size"), run.start.get("num_records")
    return size / records if size and records else None


def _noise(run: Run) -> Child:
    multipliers = noise_multipliers(run)
    if not multipliers:
        return UNKNOWN
    values = ", ".join(numerals.rounded(value, 4) for value in multipliers)
    rule, told = rules.rule_of(run), ""
    if rule is not None:
        deviation = numerals.rounded(multipliers[-1] * rule.bound)
        told = f" On the sum it has the standard deviation {deviation}, the multiplier times C."
    if isinstance(rule, AdaptivePSAC):
        told = " The count that the scale is learned from is paid for by a little more than that."
    return join("Gaussian, noise multiplier ", element("b", values), ".", told)


def noise_multipliers(run: Run) -> list[float]:
    """Those of the ledger, in the order in which they came."""
    entries = run.ledger.training if run.ledger is not None else ()
    found = list(dict.fromkeys(entry.noise_multiplier for entry in entries))
    written = number(run.start.get("noise_multiplier"))
    return found or ([] if written is None else [written])


def _clipping(run: Run) -> Child:
    rule = rules.rule_of(run)
    formula = rules.FORMULAS.get(type(rule).__name__)
    bound = getattr(rule, "bound", None)
    told = "" if bound is None else f" No record adds more than C = {bound:g} to the sum."
    return join(
        element("code", rules.text_of(run)),
        "." if formula is None else join(": ", element("code", formula), "."),
        told,
    )


def _isolation(run: Run) -> str:
    """Whether a record's gradient can depend on other records, and how that was ruled out."""
    how = run.ledger.isolation_statement if run.ledger is not None else ""
    if not how:
        return UNKNOWN
    return f"Each record's gradient was computed without sight of the others, {how}."


def _steps(run: Run) -> str:
    counted = run.ledger.steps if run.ledger is not None else None
    planned = "" if run.planned is None else f" of {numerals.count(run.planned)} planned"
    text = f"{numerals.count(first_of(counted, run.done))}{planned}."
    if counted is not None and counted > run.done:
        lost = numerals.count(counted - run.done)
        text += f" {lost} of them are counted as spent, though no line of the run shows them."
    if run.resumed:
        text += f" The run was resumed {numerals.plural(run.resumed, 'time')}."
    return text


def first_of(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _generator(run: Run) -> Child:
    if run.secure is None:
        return UNKNOWN
    if run.secure:
        return "Secure: sampling and noise come from a cryptographic generator, and nothing that "\
            "could repeat them was kept."  # fmt: skip
    return element(
        "b", "NOT secure: seeded. Reproducible, hence not private.", style="color:var(--bad)"
    )
