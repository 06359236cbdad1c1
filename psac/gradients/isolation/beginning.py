"""The state from which all paths of a batch begin, kept from step to step.

To walk over everything that a function reaches takes longer than a small model's step.  So the last
walk serves again while what it found is in its place (outside.py); tensors, which may have changed
between two steps, are copied again each time.

Guarantee: after `left`, whatever the function has changed is changed back.
"""

from __future__ import annotations

from collections.abc import Container
from types import MethodType
from typing import Any

from psac.gradients.isolation.outside import Snapshot
from psac.gradients.isolation.state import State


class Beginning:
    """What is reachable from some roots at the beginning of a step."""

    def __init__(self, roots: dict[str, Any], private: Container[int]) -> None:
        self.roots, self.private = roots, private
        self._state = State(roots, private)
        self._glance = Snapshot(self._state.reach)

    def of(self, roots: dict[str, Any], private: Container[int]) -> Beginning:
        """The one of now: this one if nothing has moved, or a new one."""
        in_place = (
            all(is_same_root(root, self.roots[name]) for name, root in roots.items())
            and self._state.has_environment()
            and not self._state.holds(private)
            and self._glance.is_same_but_tensors()
        )
        if not in_place:
            return Beginning(roots, private)
        self.private = private
        self._state.retake()
        self._glance.retake()
        return self

    def left(self) -> dict[str, Any]:
        """What is not as it was in the beginning; it is brought back."""
        if self._state.has_environment() and self._glance.is_same():
            self._state.restore_values()
            return {}
        difference = self._state.difference(State(self.roots, self.private))
        self._state.restore()
        return difference


def is_same_root(root: Any, other: Any) -> bool:
    return root is other or (isinstance(root, MethodType) and root == other)
