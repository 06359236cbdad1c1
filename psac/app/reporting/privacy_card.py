"""The privacy card: everything that an epsilon needs to mean something.

The rows follow the list of Ponomareva et al. 2023, "How to DP-fy ML", section 5.3.3
(arXiv:2303.00654): setting, unit and relation, which data and which releases are covered, tuning,
accountant, and the sampling that it assumes.  What is unknown is called unknown.
"""

from psac.accounting import Ledger
from psac.app.reporting import clipping_rule, numerals
from psac.app.reporting.head import data_name, warning_texts
from psac.app.reporting.html import Child, Html, element, join, table, unfold
from psac.app.reporting.snapshot import RunSnapshot, first, number
from psac.app.text.pretrained import PRETRAINED
from psac.app.training.price import price
from psac.clipping.rules import AdaptivePSAC

RELATIONS = {
    "add-or-remove-one": "Add or remove one: two data sets are neighbours if one has a single "
    "record more than the other.",
    "replace-one": "Replace one: two data sets of equal size are neighbours if they differ in a "
    "single record.",
}
SAMPLINGS = {
    "poisson": "Poisson: each record enters each step independently with the same probability.",
    "fixed-size-without-replacement": "Fixed size without replacement: each step uses a uniformly "
    "random subset of exactly this size.",
    "fixed-size-with-replacement": "Fixed size with replacement: each step draws records "
    "independently, and a record that is drawn twice counts twice.",
    "balls-in-bins": "Balls in bins: each record enters exactly one, random step of each epoch.",
}
SETTING = (
    "Central: one trusted party holds the data and trains. Noise is added during training, so what "
    "is released is protected."
)
TUNING = (
    " This is the cost of this run alone. Choosing settings by other runs on the same data costs "
    "more; psac.tuned_epsilon computes how much."
)
ACCOUNTANT = (
    "Privacy loss distributions (PLD), computed by psac and, if it supports the sampling, by "
    "dp-accounting. Both are upper bounds, and the larger one counts. Epsilon was computed from "
    "the ledger when this report was written."
)
NOT_COVERED = (
    "the number of records, which is assumed to be public",
    "the choice of settings, if it is based on other runs on the same data",
    "other uses of the same data, including other models",
    "training losses, norms, batch sizes and times, if they are shown",
    "a person with several records, who is protected less",
    "timing and other side channels of the computer that trained",
)
ABOUT = (
    "What is guaranteed, to whom, under which assumptions, and what is not. These facts may be "
    "published with the model."
)
WITHOUT_LEDGER = (
    "There is no readable ledger, so nothing is guaranteed. The rest is what the run wrote about "
    "itself. Do not publish the model on this basis."
)
OTHER_DELTAS = (1e-4, 1e-6, 1e-8)
UNKNOWN = "unknown"


def card(run: RunSnapshot) -> Html:
    rows: dict[str, Child] = {
        "Guarantee": _guarantee(run),
        "Warnings": _warnings(run),
        "Setting": SETTING,
        "What is protected": "One record, which is one training example.",
        "Neighbouring data": RELATIONS.get(relation(run) or "", relation(run) or UNKNOWN),
        "Data covered": f"{_data(run)}{_before(run)}",
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


def relation(run: RunSnapshot) -> str | None:
    """The neighbouring relation, as named in the ledger."""
    if run.ledger is not None and run.ledger.entries:
        return run.ledger.entries[0].relation
    written = run.start.get("relation")
    return None if written is None else str(written).removesuffix(" record").replace(" ", "-")


def _guarantee(run: RunSnapshot) -> Child:
    if run.secure is False:
        refusal = element("b", "None: the noise is reproducible.")
        return join(refusal, " With secure noise, it would be ", _pair(run))
    return join(_pair(run), _other_pairs(run.ledger, run.delta))


def _pair(run: RunSnapshot) -> Html:
    if run.epsilon is None or run.delta is None:
        return Html("Unknown, because the ledger or delta is missing.")
    pair = f"epsilon {numerals.epsilon(run.epsilon)} at delta {numerals.delta(run.delta)}"
    so_far = "" if run.finished else ", so far"
    steps = " of the training steps only; see the warnings" if run.warnings or run.warned else ""
    return join(element("b", pair), f"{so_far}: (epsilon, delta)-differential privacy{steps}.")


def _warnings(run: RunSnapshot) -> Child:
    sentences = warning_texts(run)
    if not sentences:
        return "None from psac." if run.ledger is not None else UNKNOWN
    return element("ul", [element("li", element("b", sentence)) for sentence in sentences])


def _other_pairs(ledger: Ledger | None, delta: float | None) -> Html | None:
    if ledger is None or delta is None or not ledger.entries:
        return None
    deltas = sorted({delta, *OTHER_DELTAS}, reverse=True)
    exact = {delta: price(ledger, delta)}
    prices = {d: price(ledger, d, quick=True) for d in OTHER_DELTAS} | exact
    rows = [[numerals.delta(d), numerals.epsilon(prices[d])] for d in deltas]
    pairs = table(["delta", "epsilon"], rows, caption="Epsilon at other deltas")
    return unfold("The same guarantee at other deltas", pairs)


def _data(run: RunSnapshot) -> str:
    records = run.start.get("num_records")
    size = "The" if records is None else f"All {numerals.count(records)}"
    held_out = number(run.recipe.get("validation_fraction"))
    text = f"{size} training records of {data_name(run)}."
    if held_out:
        return (
            f"{text} The {numerals.percent(held_out, 0)} of records that were held out for "
            "validation are NOT covered: the accuracy was measured on them without noise."
        )
    if run.on_private_records:
        return (
            f"{text} Test records are NOT covered: the accuracy was measured on them without "
            "noise, and nobody stated that they are public."
        )
    if run.on_public_records:
        source = "the recipe" if run.recipe.get("test_is_public") else "the publisher of the data"
        return f"{text} Test records are public, according to {source}."
    return text


def _before(run: RunSnapshot) -> str:
    """What pretrained weights have seen, which no guarantee of this run covers."""
    model = PRETRAINED.get(str(run.recipe.get("model")))
    if model is None:
        return ""
    settings = run.recipe.get("model_settings")
    own = isinstance(settings, dict) and "weights" in settings
    what = " NOT covered: what the weights were trained on before."
    return what if own else f"{what} {model.seen}"


def _releases(run: RunSnapshot) -> str:
    scale = ", the learned scale" if isinstance(clipping_rule.rule_of(run), AdaptivePSAC) else ""
    releases = run.ledger.releases if run.ledger is not None else ()
    before = "".join(f", {each.what.partition(' (release')[0]}" for each in releases)
    models = "The final model, all intermediate models, the optimizer state"
    text = f"{models}{scale}{before}, and the ledger."
    if _scheme(run) == "balls-in-bins":
        return (
            f"{text} Checkpoints are not covered: they hold the order of the records in the epoch."
        )
    return text


def _scheme(run: RunSnapshot) -> str | None:
    entries = run.ledger.training if run.ledger is not None else ()
    return entries[-1].sampling if entries else run.start.get("sampling")


def _sampling(run: RunSnapshot) -> str:
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
    return f"{text} The accountant assumes exactly this sampling."


def sampling_rate(run: RunSnapshot) -> float | None:
    if run.ledger is not None and run.ledger.training:
        return run.ledger.training[-1].sampling_rate
    size, records = run.start.get("expected_batch_size"), run.start.get("num_records")
    return size / records if size and records else None


def _noise(run: RunSnapshot) -> Child:
    multipliers = noise_multipliers(run)
    if not multipliers:
        return UNKNOWN
    values = ", ".join(numerals.rounded(value, 4) for value in multipliers)
    rule, note = clipping_rule.rule_of(run), ""
    if rule is not None:
        deviation = numerals.rounded(multipliers[-1] * rule.bound)
        note = f" Its standard deviation on the sum is {deviation}, the multiplier times C."
    if isinstance(rule, AdaptivePSAC):
        note = " The noise is a little larger than that, to pay for learning the scale."
    return join("Gaussian, noise multiplier ", element("b", values), ".", note)


def noise_multipliers(run: RunSnapshot) -> list[float]:
    """The noise multipliers in the ledger, in order."""
    entries = run.ledger.training if run.ledger is not None else ()
    multipliers = list(dict.fromkeys(entry.noise_multiplier for entry in entries))
    written = number(run.start.get("noise_multiplier"))
    return multipliers or ([] if written is None else [written])


def _clipping(run: RunSnapshot) -> Child:
    rule = clipping_rule.rule_of(run)
    formula = clipping_rule.FORMULAS.get(type(rule).__name__)
    bound = getattr(rule, "bound", None)
    note = "" if bound is None else f" No record contributes more than C = {bound:g} to the sum."
    return join(
        element("code", clipping_rule.text_of(run)),
        "." if formula is None else join(": ", element("code", formula), "."),
        note,
    )


def _isolation(run: RunSnapshot) -> str:
    """How it is ensured that the gradient of a record depends on no other record."""
    how = run.ledger.isolation_statement if run.ledger is not None else ""
    if not how:
        return UNKNOWN
    return f"The gradient of each record depends on that record only, {how}."


def _steps(run: RunSnapshot) -> str:
    counted = run.ledger.steps if run.ledger is not None else None
    planned = "" if run.planned is None else f" of {numerals.count(run.planned)} planned"
    text = f"{numerals.count(first(counted, run.done))}{planned}."
    if counted is not None and counted > run.done:
        lost = numerals.count(counted - run.done)
        text += f" {lost} of them count as spent, although the run has no line about them."
    if run.resumed:
        text += f" The run was resumed {numerals.plural(run.resumed, 'time')}."
    return text


def _generator(run: RunSnapshot) -> Child:
    if run.secure is None:
        return UNKNOWN
    if run.secure:
        return (
            "Secure: sampling and noise come from a cryptographic generator, whose state was not "
            "kept."
        )
    return element(
        "b",
        "NOT secure: the generator was seeded, so the run is reproducible and not private.",
        style="color:var(--bad)",
    )
