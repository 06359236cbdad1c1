"""Every warning about privacy that a run gave, so that it stays with the run.

    with Heard() as heard: ...
    heard.take()    # the texts of each `PrivacyWarning` since the last call, each once

Guarantees: a warning is heard even if a filter hides it or it was given before in this process, and
it is shown as it would have been.  Where the filters turn it into an error, it stays one.  The text
is for the owner of the run, as it may name files and columns; what may be published is said by
`Ledger.note_warning`.
"""

from __future__ import annotations

import warnings
from typing import Any

from psac.accounting import PrivacyWarning


class Heard:
    def __init__(self) -> None:
        self._all: dict[str, None] = {}
        self._new: list[str] = []
        self._within = warnings.catch_warnings()

    def __enter__(self) -> Heard:
        is_shown, is_error = _as_of_now()
        self._within.__enter__()
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            is_about_privacy = issubclass(category, PrivacyWarning)
            if is_about_privacy and str(message) not in self._all:
                self._all[str(message)] = None
                self._new.append(str(message))
            if is_shown or not is_about_privacy:
                before(message, category, *rest, **more)

        if not is_error:
            warnings.simplefilter("always", PrivacyWarning)
        warnings.showwarning = show
        return self

    def __exit__(self, *error: Any) -> None:
        self._within.__exit__(*error)

    def take(self) -> list[str]:
        new, self._new = self._new, []
        return new


def _as_of_now() -> tuple[bool, bool]:
    """Whether a warning about privacy would be shown, and whether it would be an error."""
    with warnings.catch_warnings(record=True) as shown:
        try:
            warnings.warn_explicit("", PrivacyWarning, __file__, 1, registry={})
        except PrivacyWarning:
            return False, True
    return bool(shown), False
