"""The progress of a run in words and numbers, from the lines that training writes.

There are two groups of figures: those that are public or covered by the guarantee, and those that
come from private records without noise.  The second group holds the speed, as the size of a batch
is secret, and the accuracy on private records.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

from psac.app.reporting import numerals

NOT_PRIVATE = "not private"
BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 24


class Progress:
    """An observer of `psac.training.train` that keeps what views show."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.facts: dict[str, Any] = {}
        self.step = 0
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.epsilon: float | None = None
        self.end: dict[str, Any] = {}  # the last line of a finished run
        self._last: dict[str, Any] = {}  # the last logged step
        self._evaluation: dict[str, Any] = {}
        self._begun = self._told = time.monotonic()

    # An observer
    def started(self, info: dict[str, Any]) -> None:
        self.facts, self.step = info, info["step"]
        self._begun = self._told = time.monotonic()

    def stepped(self, info: dict[str, Any]) -> None:
        self._last = info
        if info["loss"] is not None:
            self.losses.append(info["loss"])
        self._moved(info)

    def evaluated(self, info: dict[str, Any]) -> None:
        self._evaluation = info
        self.accuracies.append(info["accuracy"])
        self._moved(info)

    def ended(self, info: dict[str, Any]) -> None:
        self.end = info

    def _moved(self, info: dict[str, Any]) -> None:
        self.step, self._told = info["step"], time.monotonic()
        self.epsilon = info.get("epsilon", self.epsilon)

    # In words
    def plan(self) -> tuple[str, str]:
        """The data and the rule, then the noise and the guarantee."""
        facts = self.facts
        own = abs(facts["delta"] * 10 * facts["num_records"] - 1) < 1e-9
        delta = f"delta {numerals.delta(facts['delta'])}{' = 1 / (10 records)' if own else ''}"
        return (
            f"{facts['rule']} on {facts['num_records']:,} records, {facts['sampling']} batches of "
            f"{facts['expected_batch_size']:,}",
            f"noise multiplier {facts['noise_multiplier']:.4g}, {delta}, {facts['relation']}",
        )

    def warnings(self) -> list[str]:
        return (
            [] if self.facts["secure"] else ["The seed makes this run repeatable and NOT private."]
        )

    def place(self) -> str:
        return f"step {self.step:,} of {self.facts['planned_steps']:,}"

    def public(self) -> dict[str, str]:
        """The figures that may be published, by name."""
        figures = {} if self._accuracy_is_sensitive else self._accuracy()
        planned = self.facts["planned_epsilon"]
        if planned is None:
            figures["epsilon"] = "infinite"
        elif self.epsilon is not None:
            figures["epsilon"] = f"{numerals.epsilon(self.epsilon)} of {numerals.epsilon(planned)}"
        if (left := self.seconds_left()) is not None:
            figures["time left"] = clock(left)
        return figures

    def sensitive(self) -> dict[str, str]:
        """The figures that come from private records without noise, by name."""
        figures = self._accuracy() if self._accuracy_is_sensitive else {}
        if self._last:
            loss = self._last["loss"]
            figures["loss"] = "not finite" if loss is None else f"{loss:.3f}"
            figures["weights"] = weights(self._last["weights"])
            figures["speed"] = f"{self._last['samples_per_second']:,.0f} samples/s"
        return figures

    @property
    def _accuracy_is_sensitive(self) -> bool:
        return self._evaluation.get("public") is not True

    def _accuracy(self) -> dict[str, str]:
        last = self._evaluation
        return {"accuracy": f"{last['accuracy']:.1%} on {last['split']} records"} if last else {}

    def seconds_left(self) -> float | None:
        """Estimated from the pace of this session; None if there is no pace yet or nothing left."""
        done, planned = self.step - self.facts["step"], self.facts["planned_steps"]
        if not done or self.step == planned:
            return None
        pace = (self._told - self._begun) / done
        left = pace * (planned - self.step)
        return max(left - (time.monotonic() - self._told), 0.0)


def weights(line: dict[str, Any]) -> str:
    """The distribution of the weights as bars, from the smallest weight to the largest.

    >>> weights({"log10_edges": [-1.0, -0.875, -0.75, -0.625], "counts": [1, 8, 3]})
    '0.1 ▂█▄ 0.24'
    """
    if not line["counts"]:
        return "none"
    low, high = (10 ** line["log10_edges"][end] for end in (0, -1))
    return f"{low:.2g} {sparks(line['counts'])} {high:.2g}"


def price(epsilon: float | None) -> str:
    """Epsilon as text; None is infinite, as in JSON."""
    return numerals.epsilon(float("inf") if epsilon is None else epsilon)


def sparks(values: Sequence[float]) -> str:
    """A bar for each value, from 0 up; many values are averaged in groups.

    >>> sparks([0.0, 0.5, 1.0]), len(sparks(range(1000)))
    ('▁▅█', 24)
    """
    places = [k * len(values) // SPARKS for k in range(SPARKS + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(places) if a < b]
    means = [statistics.fmean(part) for part in parts]
    highest = max(means, default=0.0) or 1.0
    return "".join(BLOCKS[round(mean / highest * (len(BLOCKS) - 1))] for mean in means)


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(7384)
    ('1:15', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
