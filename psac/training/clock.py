"""The time of a run: all of its sessions, the lap between two lines, the time since a save."""

from __future__ import annotations

import time


class Clock:
    def __init__(self) -> None:
        self._begun = self._lap = self._save = time.monotonic()
        self._earlier = 0.0  # sessions before this one
        self._samples = 0

    def add(self, seconds: float) -> None:
        """Earlier sessions took so long."""
        self._earlier += seconds

    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._begun

    def count(self, samples: int) -> None:
        self._samples += samples

    def samples_per_second(self) -> float:
        """In this lap."""
        return self._samples / max(time.monotonic() - self._lap, 1e-9)

    def new_lap(self) -> None:
        self._lap, self._samples = time.monotonic(), 0

    def saved(self) -> None:
        self._save = time.monotonic()

    def seconds_since_save(self) -> float:
        return time.monotonic() - self._save
