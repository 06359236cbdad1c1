"""The batch that the loader handed out, so that no other one is trained on.

Guarantee: `refuse_other` accepts the tensors that were handed out, arranged in any way, and copies
of them on another device; not one that was changed, computed, reordered or taken from elsewhere.
What is done to records is done inside the loss function, where no record sees another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from psac.errors import PrivacyError
from psac.gradients import trees
from psac.gradients.isolation.checksums import checksums


class Handed:
    """A batch on its way from the loader to the step."""

    def __init__(self, batch: Any, is_last: bool, probe: Any = None) -> None:
        trees.num_records(batch)  # refuses what is not a batch
        self.is_last, self.probe = is_last, probe
        self._leaves = trees.leaves(batch)
        self._prints = checksums(self._leaves)

    def refuse_other(self, batch: Any) -> None:
        given = trees.leaves(batch)
        if checksums(self._leaves) != self._prints:
            raise PrivacyError(
                "the batch was written to after private.loader handed it out. Do what is to be "
                "done to records inside the loss function, which sees one at a time."
            )
        own = {id(leaf) for leaf in self._leaves}
        strange = [
            leaf
            for leaf in given
            if id(leaf) not in own and not any(same_values(leaf, known) for known in self._leaves)
        ]
        if strange or not given:
            shapes = ", ".join(str(list(leaf.shape)) for leaf in strange[:3]) or "no tensor"
            raise PrivacyError(
                f"private.step was given {shapes}, which private.loader did not hand out: records "
                "may have been mixed, left out or taken twice on the way. Give it the batch as it "
                "came (moved to a device, if need be), and do the rest inside the loss function."
            )


def same_values(given: Tensor, known: Tensor) -> bool:
    """Whether it is a copy, perhaps on another device."""
    if given.shape != known.shape or given.dtype != known.dtype:
        return False
    there = given.to(known.device)
    if torch.equal(there, known):
        return True
    both_nan = (there != there) & (known != known)
    return bool(((there == known) | both_nan).all())
