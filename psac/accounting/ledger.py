"""The ledger of a run: what was released, and what that costs.

Guarantees: every recorded release is priced, in any order and mixture of noises and rates, under
one relation; a ledger read from JSON equals the one that was written; recording takes a
microsecond.  If it is not `secure`, all its texts say that the run is NOT private.  It says how
records were isolated and what psac warned of; sums, copies and files include that.  Left to others:
to record each step once, before it is seen, with the settings that were used.

A ledger holds counts and settings, nothing of the data: it may be published with the model.
Releases other than steps of training have their own entries; `steps` does not count them.

>>> ledger = Ledger(secure=True)
>>> for _ in range(3):
...     ledger.record(noise_multiplier=1.0, sampling_rate=0.01, num_records=60_000)
>>> ledger.note_way("vmap")
>>> print(ledger)
privacy ledger: 3 steps, relation add-or-remove-one
  isolation of records: by construction (vmap)
  3 steps, poisson at rate 0.01 of 60000 records, noise multiplier 1
>>> round(ledger.epsilon(1e-5), 3)
0.275
"""

import dataclasses
from typing import Any

from psac.accounting import pricing, schemes
from psac.accounting.entries import Entry
from psac.checks import positive
from psac.sampling import Sampling

FORMAT, VERSION = "psac ledger", 2
WAYS = ("vmap", "alone", "batched")  # to evaluate a loss function; the last is tested
ONLY_OF_RELEASES = ("what", "delta")
NOT_PRIVATE = (
    "The noise is reproducible: whoever knows the seed can subtract it. This run is NOT private."
)


class Ledger:
    """Counts releases.  `secure` says that all noise came from a secure generator."""

    def __init__(self, *, secure: bool) -> None:
        self.secure = secure
        self._kinds: list[Entry] = []  # With steps=1; how many there were is in `_counts`.
        self._counts: list[int] = []
        self._last: tuple[Any, ...] | None = None
        self._ways: set[str] = set()
        self._warnings: dict[str, None] = {}

    def record(
        self,
        *,
        noise_multiplier: float,
        sampling_rate: float,
        sampling: Sampling | str = "poisson",
        relation: str | None = None,
        num_records: int | None = None,
        steps: int = 1,
        what: str = "",
        delta: float = 0.0,
    ) -> None:
        """Writes down `steps` releases.  `sampling` is a scheme or its name.

        Balls-in-bins is priced by epochs: record an epoch as a whole one if it is redrawn before
        its end.  A release that is no step of training says `what` it is; `delta` is the
        probability that one such release shows more than its noise allows.
        """
        settings = (noise_multiplier, sampling_rate, sampling, relation, num_records, what, delta)
        count = positive("steps", steps, advice="It counts releases.")
        if settings != self._last:
            self._begin(
                schemes.entry(
                    sampling=sampling,
                    relation=relation,
                    noise_multiplier=noise_multiplier,
                    sampling_rate=sampling_rate,
                    num_records=num_records,
                    steps=1,
                    what=what,
                    delta=delta,
                )
            )
            self._last = settings
        self._counts[-1] += count

    def _begin(self, kind: Entry) -> None:
        """Makes `kind` the last one."""
        if self._kinds and kind.relation != self._kinds[-1].relation:
            raise ValueError(
                f"this ledger has the relation {self._kinds[-1].relation}, and the step has "
                f"{kind.relation}: they do not add up. Use one relation, or a second ledger."
            )
        if not self._kinds or kind != self._kinds[-1]:
            self._kinds.append(kind)
            self._counts.append(0)

    def note_way(self, way: str) -> None:
        """Writes down a way in which losses were evaluated: "vmap", "alone" or "batched"."""
        if way not in WAYS:
            raise ValueError(f"the way is {way!r}: it must be one of {', '.join(WAYS)}.")
        self._ways.add(way)

    def note_warning(self, sentence: object) -> None:
        """Writes down a warning, once.  It may be published, so it says nothing of the data."""
        if not isinstance(sentence, str):
            raise TypeError(f"the warning is {sentence!r}: it must be a sentence.")
        self._warnings[sentence] = None

    @property
    def isolation(self) -> tuple[str, ...]:
        """The ways in which losses were evaluated."""
        return tuple(way for way in WAYS if way in self._ways)

    @property
    def isolation_statement(self) -> str:
        """The isolation in words; empty before the first evaluation."""
        if not self._ways:
            return ""
        kind = "tested, not by construction" if "batched" in self._ways else "by construction"
        return f"{kind} ({', '.join(self.isolation)})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of psac during the run, each once."""
        return tuple(self._warnings)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One entry for each series of equal steps, in order."""
        pairs = zip(self._kinds, self._counts, strict=True)
        return tuple(dataclasses.replace(kind, steps=count) for kind, count in pairs)

    @property
    def steps(self) -> int:
        """Number of training steps."""
        pairs = zip(self._kinds, self._counts, strict=True)
        return sum(count for kind, count in pairs if not kind.what)

    @property
    def training(self) -> tuple[Entry, ...]:
        """The entries of training steps."""
        return tuple(entry for entry in self.entries if not entry.what)

    @property
    def releases(self) -> tuple[Entry, ...]:
        """The entries of all other releases."""
        return tuple(entry for entry in self.entries if entry.what)

    def epsilon(self, delta: float, accountant: str = "pld") -> float:
        """The privacy loss of all releases: 0 without any, infinity without noise."""
        sizes = [kind.num_records for kind in self._kinds if kind.num_records is not None]
        delta = pricing.checked_delta(delta, max(sizes, default=None))
        return pricing.with_warning(pricing.price(self.entries, delta, accountant))

    def __add__(self, other: object) -> "Ledger":
        """The ledger of two runs on the same records; secure only if both are.

        An epoch of balls-in-bins that the first run did not finish counts as a whole one, because
        the second run starts a new epoch.
        """
        if not isinstance(other, Ledger):
            return NotImplemented
        total = Ledger(secure=self.secure and other.secure)
        for entry in self.entries:
            total.record(**dataclasses.asdict(schemes.completed(entry)))
        for entry in other.entries:
            total.record(**dataclasses.asdict(entry))
        for ledger in (self, other):
            total.include_notes(ledger)
        return total

    def include_notes(self, other: "Ledger") -> None:
        """Adds the ways and warnings of another ledger."""
        self._ways |= other._ways
        self._warnings |= other._warnings

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `json.dump`."""
        warning = {} if self.secure else {"warning": NOT_PRIVATE}
        entries = [_written(entry) for entry in self.entries]
        return {
            "format": FORMAT,
            "version": VERSION,
            "secure": self.secure,
            **warning,
            "isolation": list(self.isolation),
            "warnings": list(self.warnings),
            "entries": entries,
        }

    @classmethod
    def from_json(cls, data: Any) -> "Ledger":
        """The ledger that `to_json` was called on; anything else is refused."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(
                "this is no ledger: pass the dict that Ledger.to_json() returned, with "
                f"'format': {FORMAT!r}."
            )
        if data.get("version") != VERSION:
            raise ValueError(
                f"the ledger has version {data.get('version')!r}; this psac reads {VERSION}."
            )
        lists: list[Any] = [data.get(name) for name in ("entries", "isolation", "warnings")]
        secure, (entries, ways, warnings) = data.get("secure"), lists
        if not isinstance(secure, bool) or not all(isinstance(value, list) for value in lists):
            raise ValueError(
                "the ledger is damaged: 'secure', 'entries', 'isolation' or 'warnings' is missing "
                "or has the wrong type."
            )
        ledger = cls(secure=secure)
        try:
            for way in ways:
                ledger.note_way(way)
            for sentence in warnings:
                ledger.note_warning(sentence)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the ledger is damaged: {error}") from error
        for k, entry in enumerate(entries):
            ledger._read(entry, f"entry {k} of the ledger")
        if ledger.to_json() != data:
            raise ValueError(
                "the ledger was edited: written again, it would differ. Use an unchanged copy of "
                "what to_json() returned."
            )
        return ledger

    def _read(self, entry: Any, name: str) -> None:
        fields = [field.name for field in dataclasses.fields(Entry)]
        needed = [name for name in fields if name not in ONLY_OF_RELEASES]
        if not isinstance(entry, dict) or not set(needed) <= set(entry) <= set(fields):
            raise ValueError(f"{name} is {entry!r}: it must have exactly {', '.join(needed)}.")
        try:
            self.record(**entry)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is damaged: {error}") from error

    def __str__(self) -> str:
        relation = f", relation {self._kinds[0].relation}" if self._kinds else ""
        lines = [f"privacy ledger: {self.steps} steps{relation}"]
        if not self.secure:
            lines.append(NOT_PRIVATE)
        if self._ways:
            lines.append(f"  isolation of records: {self.isolation_statement}")
        lines += [f"  {entry}" for entry in self.entries]
        return "\n".join(lines + [f"  warning: {sentence}" for sentence in self.warnings])

    def __repr__(self) -> str:
        return f"<Ledger of {self.steps} steps, {'secure' if self.secure else 'NOT private'}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return self._all() == other._all()

    def _all(self) -> tuple[Any, ...]:
        return self.secure, self.entries, self.isolation, self.warnings

    __hash__ = None  # type: ignore[assignment]


def _written(entry: Entry) -> dict[str, Any]:
    """Its fields, without those that a step of training does not need."""
    fields = dataclasses.asdict(entry).items()
    return {name: value for name, value in fields if value or name not in ONLY_OF_RELEASES}
