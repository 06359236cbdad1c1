"""The classes of your own records: stated, or read off the records if you allow it.

Which classes occur depends on who is in the data, and the names stand in the header of the model.
So they are stated as public knowledge.  With `unsafe` they are read off the private records
without noise; then a sentence says so, in the ledger and wherever the run is shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from psac.accounting import Ledger
from psac.app.toml import strings
from psac.errors import PrivacyWarning

SEEN = "seen in private data: confirm that it is public, or replace it"


class Classes(NamedTuple):
    """`unsafe` says what was read off the records, and `ledger` holds the same sentences."""

    names: tuple[str, ...]
    unsafe: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger | None:
        return ledger_of(self.unsafe)


def ledger_of(unsafe: Sequence[str]) -> Ledger | None:
    """A ledger that warns of what was read off the records; None if nothing was."""
    if not unsafe:
        return None
    ledger = Ledger(secure=True)
    for sentence in unsafe:
        ledger.note_warning(sentence)
    return ledger


def classes_of(
    place: object, where: str, stated: Sequence[object] | None, seen: Sequence[str], unsafe: bool
) -> Classes:
    """The stated classes; or those `seen`, which stand `where` in the data at `place`."""
    if stated is not None:
        return Classes(checked_classes(stated))
    if not unsafe:
        raise ValueError(
            f"{place}: nothing states the classes. Reading them off the private records would "
            "release them without noise. Put this line below [data_settings] of the recipe, after "
            "you have made sure that it holds public knowledge only:\n\n"
            f"classes = {strings(seen)}  # {SEEN}\n\n"
            "In Python, pass classes=[...]. Or set unsafe = true: then the classes are read off "
            "the records, and every report says that this was not private."
        )
    sentence = f"The classes in the {where} were read off the private records."
    warnings.warn(f"{place}: {sentence}", PrivacyWarning, stacklevel=4)
    return Classes(tuple(seen), (sentence,))


def checked_classes(stated: object) -> tuple[str, ...]:
    if isinstance(stated, str) or not isinstance(stated, Sequence):
        raise TypeError(f"classes is {stated!r}: pass a list of names.")
    names = tuple(map(str, stated))
    if len(set(names)) < len(names):
        raise ValueError(f"classes names a class twice: {', '.join(names)}.")
    return names
