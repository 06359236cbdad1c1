"""Numbers and arrays that come from outside, checked and turned into float64 arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.ArrayLike


def positive(name: str, value: Numbers) -> Array:
    """Finite and above 0."""
    return _checked(name, value, lambda x: x > 0, "above 0")


def not_negative(name: str, value: Numbers) -> Array:
    """Finite, 0 or above."""
    return _checked(name, value, lambda x: x >= 0, "0 or above")


def fraction(name: str, value: Numbers) -> Array:
    """From 0 to below 1."""
    return _checked(name, value, lambda x: (x >= 0) & (x < 1), "from 0 to below 1")


def probability(name: str, value: Numbers) -> Array:
    """Above 0 and below 1."""
    return _checked(name, value, lambda x: (x > 0) & (x < 1), "above 0 and below 1")


def rate(name: str, value: Numbers) -> Array:
    """Above 0 and at most 1."""
    return _checked(name, value, lambda x: (x > 0) & (x <= 1), "above 0 and at most 1")


def regulariser(value: Numbers) -> Array:
    """The r of DP-PSAC, as the paper's proofs need it."""
    return _checked(
        "r", value, lambda x: (x > 0) & (x <= 1), "above 0 and at most 1, as in the paper's lemmas"
    )


def _checked(name: str, value: Numbers | None, allowed: Any, said: str) -> Array:
    try:
        if value is None:  # which numpy takes for a NaN
            raise TypeError(name)
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} is {value!r}: it must be a number or an array of them.") from error
    wrong = ~(np.isfinite(array) & allowed(array))
    if wrong.any():
        raise ValueError(f"{name} is {array[wrong].flat[0]:g}: it must be finite, {said}.")
    return array
