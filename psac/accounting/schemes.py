"""How batches were drawn decides what a step costs: one row per scheme and relation in `SCHEMES`.

To add one: a file with a function from (entry, allowance) to a profile and how often it is
released, a row here, and a row in the tables of tests/test_accounting.py.  `allowance` is a
probability so small that it does not matter, for cutting tails off.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psac.accounting import balls_in_bins, fixed_size, poisson
from psac.accounting.entries import ADD_OR_REMOVE, REPLACE, Entry
from psac.accounting.losses import Price
from psac.checks import number, positive, suggestion

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    """`price` is by privacy loss distributions; `event` is what dp-accounting has for it.

    A PLD accountant of dp-accounting prices the event no lower than we do, or refuses it.  Whether
    its RDP accountant is right on it, for the same pair of laws, says `renyi`; whether its PLD
    accountant is, says `known`.
    """

    price: Callable[[Entry, float], Price]
    event: Callable[[Entry], "DpEvent"]
    known: bool
    renyi: bool


# The first row of a name has its default relation.
SCHEMES: dict[tuple[str, str], Scheme] = {
    ("poisson", ADD_OR_REMOVE): Scheme(
        price=poisson.add_or_remove_one, event=poisson.event, known=True, renyi=True
    ),
    ("poisson", REPLACE): Scheme(
        price=poisson.replace_one, event=poisson.event, known=True, renyi=False
    ),
    ("fixed-size-without-replacement", ADD_OR_REMOVE): Scheme(
        price=fixed_size.without_replacement,
        event=fixed_size.without_replacement_event,
        known=True,
        renyi=True,
    ),
    ("fixed-size-with-replacement", REPLACE): Scheme(
        price=fixed_size.with_replacement,
        event=fixed_size.with_replacement_event,
        known=False,
        renyi=False,
    ),
    ("balls-in-bins", ADD_OR_REMOVE): Scheme(
        price=balls_in_bins.add_or_remove_one,
        event=balls_in_bins.event,
        known=False,
        renyi=False,
    ),
}
REFUSED = {
    "shuffle": "no amplification by a shuffled order is proved that comes near that of Poisson. "
    "With balls-in-bins too each record comes once an epoch",
    "weighted": "a record that is drawn more often is protected less, and a price has one rate",
}


def entry(
    *,
    sampling: Any,
    relation: str | None,
    noise_multiplier: float,
    sampling_rate: float,
    num_records: int | None,
    steps: int,
    what: str = "",
    delta: float = 0.0,
) -> Entry:
    """An entry of what a user gave: `sampling` is a name or an object with one, all is checked."""
    name = getattr(sampling, "name", sampling)
    relations = [known for scheme, known in SCHEMES if scheme == name]
    if not relations:
        raise ValueError(_unknown(name))
    if relation is None:
        relation = getattr(sampling, "relation", relations[0])
    if num_records is not None:
        num_records = positive("num_records", num_records, advice="It is public.")
    return Entry(
        sampling=name,
        relation=_relation(relation, name, relations),
        noise_multiplier=number(
            "noise_multiplier",
            noise_multiplier,
            allowed="[0, inf)",
            advice="It is the standard deviation of the noise over the clipping bound.",
        ),
        sampling_rate=number(
            "sampling_rate",
            sampling_rate,
            allowed="(0, 1]",
            advice="It is expected_batch_size / num_records.",
        ),
        num_records=num_records,
        steps=steps,
        what=str(what),
        delta=number(
            "delta", delta, allowed="[0, 1)", advice="It is the chance that noise is not enough."
        ),
    )


def completed(entry: Entry) -> Entry:
    """The entry with the epoch that it has begun, where that has its price as a whole."""
    if entry.sampling != "balls-in-bins":
        return entry
    bins, epochs = balls_in_bins.bins_and_epochs(entry)
    return dataclasses.replace(entry, steps=bins * epochs)


def _unknown(name: object) -> str:
    known = ", ".join(dict.fromkeys(scheme for scheme, _ in SCHEMES))
    for refused, reason in REFUSED.items():
        if refused in str(name).lower():
            return f"sampling {name!r} has no price: {reason}. Known: {known}."
    return (
        f"sampling {name!r} is unknown, and a sampler without accounting cannot report an epsilon. "
        f"Known: {known}.{suggestion(name, [scheme for scheme, _ in SCHEMES])}"
    )


def _relation(relation: object, name: str, known: list[str]) -> str:
    """The relation in our words: `replace-one`, also if it was "replace one record"."""
    words = str(relation).lower().replace("/", " or ").replace("-", " ").replace("_", " ")
    spelled = "-".join(words.removesuffix(" record").split())
    if spelled not in known:
        raise ValueError(
            f"{name} has no price under the relation {relation!r}. Known for it: "
            f"{', '.join(known)}. Change the sampling or the relation."
        )
    return spelled
