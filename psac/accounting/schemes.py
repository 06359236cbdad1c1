"""The price of a step, by how its batch was drawn: one row per scheme and relation in `SCHEMES`.

To add one: a file with a function from (entry, allowance) to a profile and how often it is
released, a row here, and a row in the tables of tests/test_accounting.py.  `allowance` is a
negligible probability, for cutting off tails.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from psac.accounting import balls_in_bins, fixed_size, poisson
from psac.accounting.entries import Entry
from psac.accounting.losses import Price
from psac.checks import number, positive
from psac.sampling import ADD_OR_REMOVE, REPLACE, Sampling, refusal

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a step is priced.

    `price` uses privacy loss distributions.  `event` is the same pair of distributions for
    dp-accounting, where its PLD accountant has it; `renyi` says that its RDP accountant is right
    on it, too.
    """

    price: Callable[[Entry, float], Price]
    event: Callable[[Entry], "DpEvent"] | None = None
    renyi: bool = False


# The first row of a name has its default relation.
SCHEMES: dict[tuple[str, str], Scheme] = {
    ("poisson", ADD_OR_REMOVE): Scheme(poisson.add_or_remove_one, poisson.event, renyi=True),
    ("poisson", REPLACE): Scheme(poisson.replace_one, poisson.event),
    ("fixed-size-without-replacement", ADD_OR_REMOVE): Scheme(
        fixed_size.without_replacement, fixed_size.without_replacement_event, renyi=True
    ),
    ("fixed-size-with-replacement", REPLACE): Scheme(fixed_size.with_replacement),
    ("balls-in-bins", ADD_OR_REMOVE): Scheme(balls_in_bins.add_or_remove_one),
}


def entry(
    *,
    sampling: Sampling | str,
    relation: str | None,
    noise_multiplier: float,
    sampling_rate: float,
    num_records: int | None,
    steps: int,
    what: str = "",
    delta: float = 0.0,
) -> Entry:
    """An entry from a user's arguments, which are checked; `sampling` is a scheme or its name."""
    name = sampling.name if isinstance(sampling, Sampling) else sampling
    relations = [known for scheme, known in SCHEMES if scheme == name]
    if not relations:
        reason = "A sampler without accounting cannot report an epsilon."
        raise ValueError(f"{refusal(name)} {reason}")
    if relation is None:
        relation = sampling.relation if isinstance(sampling, Sampling) else relations[0]
    if relation not in relations:
        raise ValueError(
            f"{name} has no price under the relation {relation!r}. Known for it: "
            f"{', '.join(relations)}. Change the sampling or the relation."
        )
    if num_records is not None:
        num_records = positive("num_records", num_records, advice="It is public.")
    return Entry(
        sampling=name,
        relation=relation,
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
            "delta",
            delta,
            allowed="[0, 1)",
            advice="It is the probability that the noise is not enough.",
        ),
    )


def completed(entry: Entry) -> Entry:
    """The entry with its last epoch completed, if epochs are priced as a whole."""
    if entry.sampling != "balls-in-bins":
        return entry
    bins, epochs = balls_in_bins.bins_and_epochs(entry)
    return dataclasses.replace(entry, steps=bins * epochs)
