"""A batch on its way from the loader to the step: the same tensors, always arranged alike.

Guarantees of `Handed.refuse_other`:

- Each tensor is one that the loader handed out, or a copy of it on any device, equal bit for bit;
  not one that was changed, computed, reordered or taken from elsewhere.  There are no more of them
  than were handed out.  What is done to records is done inside the loss function.
- How they are arranged tells nothing about records: classes, keys and their order, contexts of
  registered classes, the place of each tensor, its layout in memory and its flags are those of the
  first step of a loss function.  The first step is taken for public; `with
  private.public_change():` declares a change.

Sizes are not compared: batches and padding may be of any length.  What changes in the classes
themselves, `Outside` compares with what else a loss function reaches.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from psac.errors import PrivacyError
from psac.gradients import trees
from psac.gradients.isolation.checksums import checksums
from psac.gradients.isolation.outside import code_of
from psac.gradients.isolation.reach import is_library

Origins = set[tuple[str, str]]  # path of a tensor in the loader's batch, and a layout
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class Handed:
    """A batch that awaits its step."""

    def __init__(
        self, batch: Any, is_last: bool, probe: Any = None, *, stands_in: bool = False
    ) -> None:
        """One that `stands_in` is another worker's: it is evaluated, and counts there."""
        trees.num_records(batch)  # refuses what is not a batch
        self.is_last, self.probe, self.stands_in = is_last, probe, stands_in
        self._leaves = [(path, leaf) for path, leaf, node in trees.walk(batch) if node is None]
        self._prints = checksums(leaf for _, leaf in self._leaves)

    def refuse_other(self, batch: Any, loss: Any, arrangements: Arrangements) -> None:
        """Raises if `batch` is not the one that was handed out, arranged as in other steps."""
        given = trees.leaves(batch)
        if checksums(leaf for _, leaf in self._leaves) != self._prints:
            raise PrivacyError(
                "the batch was written to after private.loader handed it out. Do what is to be "
                "done to records inside the loss function, which sees one at a time."
            )
        origins = [self._origins(leaf) for leaf in given]
        strange = [leaf for leaf, own in zip(given, origins, strict=True) if not own]
        if strange or not given:
            shapes = ", ".join(str(list(leaf.shape)) for leaf in strange[:3]) or "no tensor"
            raise PrivacyError(
                f"private.step was given {shapes}, which private.loader did not hand out: records "
                "may have been mixed, left out or taken twice on the way. Give it the batch as it "
                "came (moved to a device, if need be), and do the rest inside the loss function."
            )
        if len(given) > len(self._leaves):
            raise PrivacyError(
                "private.step was given more tensors than private.loader handed out, some of them "
                "several times: their number could tell how many records there are. Give each "
                "once, and use it as often as need be inside the loss function."
            )
        arrangements.refuse_other(code_of(loss), batch, origins)

    def _origins(self, leaf: Tensor) -> Origins:
        """The tensors of the loader that it may be, with the layouts that it may have."""
        known = [(path, own) for path, own in self._leaves if own is leaf]
        if not known:
            known = [(path, own) for path, own in self._leaves if is_copy(leaf, own)]
        return {(path, layout) for path, own in known for layout in layouts(leaf, own)}


class Arrangements:
    """How batches are passed to `step`, by loss function: as in its first step.

    Attributes:
        classes: The user's own classes among them, by name.
    """

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self._known: dict[Any, tuple[dict[str, tuple], list[Origins]]] = {}

    def forget(self) -> None:
        """The next step is the first one again."""
        self._known = {}

    def refuse_other(self, function: Any, batch: Any, origins: list[Origins]) -> None:
        """Raises if what surrounds the tensors, or where they come from, is not as before."""
        now = trees.arrangement(batch)
        if function not in self._known:
            self._known[function] = copy.deepcopy(now), origins
            for kind in {kind for part in now.values() for kind in part[0].__mro__}:
                if not is_library(kind):
                    self.classes[kind.__qualname__] = kind
            return
        before, places = self._known[function]
        common = [own & other for own, other in zip(places, origins, strict=False)]
        finding = trees.differs(before, now)
        if finding is None and all(common):
            self._known[function] = before, common
            return
        finding = finding or "a tensor lies in memory otherwise, or stands for another one"
        raise PrivacyError(
            f"the batch is arranged otherwise than in the first step: {finding}. Such a choice "
            "could tell about records. Pass all batches in one arrangement, and decide inside the "
            "loss function. If the change has nothing to do with records, make it within `with "
            "private.public_change():`."
        )


def layouts(given: Tensor, known: Tensor) -> set[str]:
    """The ways to say how it lies in memory: one of them holds for batches of all sizes."""
    strides = given.stride()
    found = {f"order {sorted(range(given.dim()), key=lambda k: -strides[k])}"}
    if given is known or strides == torch.empty_like(known, device="meta").stride():
        found.add("as handed out")
    if given.is_contiguous():
        found.add("contiguous")
    if given.dim() in FORMATS and given.is_contiguous(memory_format=FORMATS[given.dim()]):
        found.add("channels last")
    return found


def is_copy(given: Tensor, known: Tensor) -> bool:
    """Whether it is one, perhaps on another device: the same bits, so that -0.0 is not 0.0."""
    return (
        type(given) is type(known)
        and (given.shape, given.dtype) == (known.shape, known.dtype)
        and torch.equal(bits(given.to(known.device)), bits(known))
    )


def bits(tensor: Tensor) -> Tensor:
    """All of them, as numbers."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.contiguous().reshape(-1).view(torch.uint8)
