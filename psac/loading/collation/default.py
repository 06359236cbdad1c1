"""torch's `default_collate`, where it keeps records apart.

It does for records of Python, torch and numpy.  Of the user's own classes it calls constructors and
methods with the whole batch: a named tuple whose `__new__` centres `x`, a mapping with an `update`,
a class of tensors.  Those are collated as by a function of the user's (`ProbingCollate`); a class
of tensors is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from psac.gradients.trees import plain_tensor
from psac.loading.collation.padding import ProbingCollate

HOME = default_collate.__module__
LEAVES = {Tensor, np.ndarray, int, float, bool, str, bytes}


class DefaultCollate:
    """Calls `default_collate`; where that could mix records, its results are checked."""

    def __init__(self) -> None:
        self._probing = ProbingCollate(default_collate)

    def __call__(self, samples: list[Any]) -> Any:
        if all(function.__module__ == HOME for function in default_collate_fn_map.values()):
            if are_plain(samples):
                return default_collate(samples)
            samples = [of_plain_tensors(sample) for sample in samples]
            if are_plain(samples):
                return default_collate(samples)
        return self._probing(samples)


def are_plain(samples: Sequence[Any]) -> bool:
    """Whether `default_collate` makes of them nothing but tensors, lists and dicts."""
    kinds = set(map(type, samples))
    if kinds <= LEAVES:
        return True
    if kinds <= {list, tuple}:
        return all(map(are_plain, zip(*samples, strict=False)))
    if kinds == {dict}:
        return all(are_plain([sample.get(key) for sample in samples]) for key in samples[0])
    return all(issubclass(kind, np.generic) for kind in kinds)


def of_plain_tensors(sample: Any) -> Any:
    """Without classes of tensors whose code would see what is stacked."""
    if isinstance(sample, Tensor) and type(sample) is not Tensor:
        return plain_tensor(sample)
    if type(sample) in (list, tuple):
        return type(sample)(map(of_plain_tensors, sample))
    if type(sample) is dict:
        return {key: of_plain_tensors(value) for key, value in sample.items()}
    return sample
