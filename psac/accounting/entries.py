"""Entries of a ledger: one kind of release, and how often it was made.

An entry trusts its fields; `schemes.entry` checks a user's arguments and builds one.  A step of
training has no name; any other release, such as the range of a column, says `what` it was.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """`steps` releases of a sum over a sampled batch, where a record weighs at most a bound C.

    The noise has the standard deviation noise_multiplier * C.  `relation` says which data sets are
    neighbours: those that differ in the presence of one record, or in its content.  `delta` is the
    probability that one of these releases shows more than its noise allows, such as a value of a
    single record that passes a threshold.
    """

    sampling: str
    relation: str
    noise_multiplier: float
    sampling_rate: float
    num_records: int | None
    steps: int
    what: str = ""
    delta: float = 0.0

    def __str__(self) -> str:
        records = "" if self.num_records is None else f" of {self.num_records} records"
        if self.what:
            delta = f", delta {self.steps * self.delta:.3g}" if self.delta else ""
            return f"{self.what}{records}, noise multiplier {self.noise_multiplier:.6g}{delta}"
        return (
            f"{self.steps} steps, {self.sampling} at rate {self.sampling_rate:.6g}{records}, "
            f"noise multiplier {self.noise_multiplier:.6g}"
        )
