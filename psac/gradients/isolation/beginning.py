"""The state from which all records or paths of a batch begin, kept from step to step.

To walk over everything that a function reaches takes longer than a small model's step.  So the last
walk serves again while what it found is in its place (outside.py); tensors, which may have changed
between two steps, are copied again each time.

Guarantee: after `left`, whatever the function has changed is changed back, or `left` raises.  After
`keep`, state is as it was, or as records leave it that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from types import MethodType
from typing import Any

from psac.gradients.isolation.outside import Snapshot
from psac.gradients.isolation.state import State, refuse_memory


class Beginning:
    """What is reachable from some roots at the beginning of a step."""

    def __init__(self, roots: dict[str, Any], private: Container[int]) -> None:
        self.roots, self.private = roots, private
        self._state = State(roots, private)
        self._glance = Snapshot(self._state.reach)

    @classmethod
    def following(
        cls, last: Beginning | None, roots: dict[str, Any], private: Container[int]
    ) -> Beginning:
        """The one of now: the last one if nothing has moved, or a new one."""
        if last is None or not last._fits(roots, private):
            return cls(roots, private)
        last.private = private
        last._state.retake()
        last._glance.retake()
        return last

    def _fits(self, roots: dict[str, Any], private: Container[int]) -> bool:
        return (
            all(is_same_root(root, self.roots[name]) for name, root in roots.items())
            and self._state.has_environment()
            and not self._state.holds(private)
            and self._glance.is_same_but_tensors()
        )

    def left(self, whole: bool = False) -> dict[str, Any]:
        """What is not as it was in the beginning; it is brought back.

        With `whole`, large tensors are read to the end, and not at a secret place alone.
        """
        if not whole and self._is_in_place():
            self._state.restore_values()
            return {}
        difference = self._difference()
        self._state.restore()
        stuck = {} if self._is_in_place() else self._difference()
        if stuck:
            refuse_memory({}, stuck)
        return difference

    def keep(self, difference: dict[str, Any], runs: Iterable[Callable[[], Any]]) -> bool:
        """Keeps what all records have left alike, if made-up ones leave it as well.

        So a counter counts, and what follows from the values of records is not kept, even if they
        have agreed by chance.  `runs` evaluate made-up records.
        """
        for run in runs:
            self._state.restore()
            try:
                run()
            except Exception:  # noqa: BLE001 - of values that no record has
                break
            if self._difference() != difference:
                break
        else:
            return True
        self._state.restore()
        return False

    def _is_in_place(self) -> bool:
        return self._state.has_environment() and self._glance.is_same()

    def _difference(self) -> dict[str, Any]:
        return self._state.difference(State(self.roots, self.private))


def is_same_root(root: Any, other: Any) -> bool:
    return root is other or (isinstance(root, MethodType) and root == other)
