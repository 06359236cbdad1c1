"""The time of a run: all its sessions, the time between two lines, the time since a save.

The time of a step depends on the size of its batch, which is private.  `public_seconds` and
`minute` are rounded, for what may be published.
"""

from __future__ import annotations

import time


def minute(seconds: float) -> float:
    """A time of day, rounded to a minute."""
    return 60.0 * round(seconds / 60)


class Clock:
    def __init__(self) -> None:
        self._begun = self._lap = self._save = time.monotonic()
        self._earlier = 0.0  # sessions before this one
        self._samples = 0

    def add(self, seconds: float) -> None:
        """Adds the time of earlier sessions."""
        self._earlier += seconds

    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._begun

    def public_seconds(self) -> float:
        """The time of the run with two digits, at least one second."""
        return max(1.0, float(f"{self.seconds():.1e}"))

    def count(self, samples: int) -> None:
        self._samples += samples

    def samples_per_second(self) -> float:
        """The speed since `new_lap`."""
        return self._samples / max(time.monotonic() - self._lap, 1e-9)

    def new_lap(self) -> None:
        self._lap, self._samples = time.monotonic(), 0

    def saved(self) -> None:
        self._save = time.monotonic()

    def seconds_since_save(self) -> float:
        return time.monotonic() - self._save
