"""Collects the privacy warnings of a run, so that they stay with the run.

    with PrivacyWarnings() as collected: ...
    collected.take()    # the new texts of `PrivacyWarning` since the last call

Guarantees: a warning is collected even if a filter hides it or it was given before in this process,
and it is shown only where it would have been shown anyway.  If the filters turn it into an error,
it stays an error.  The texts are for the owner of the run, as they may name files and columns;
`Ledger.note_warning` holds what may be published.
"""

from __future__ import annotations

import warnings
from typing import Any

from psac.accounting import PrivacyWarning

SEE_OWNER = "psac warned about privacy during this run. The owner's report has the details."


class PrivacyWarnings:
    def __init__(self) -> None:
        self._all: set[str] = set()
        self._new: list[str] = []
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> PrivacyWarnings:
        is_shown, is_error = _current_filters()
        self._filters.__enter__()
        show_before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            is_about_privacy = issubclass(category, PrivacyWarning)
            if is_about_privacy and str(message) not in self._all:
                self._all.add(str(message))
                self._new.append(str(message))
            if is_shown or not is_about_privacy:
                show_before(message, category, *rest, **more)

        if not is_error:
            warnings.simplefilter("always", PrivacyWarning)
        warnings.showwarning = show
        return self

    def __exit__(self, *error: Any) -> None:
        self._filters.__exit__(*error)

    def take(self) -> list[str]:
        """The warnings since the last call, each once per run."""
        new, self._new = self._new, []
        return new


def _current_filters() -> tuple[bool, bool]:
    """Whether a privacy warning would be shown, and whether it would be an error."""
    with warnings.catch_warnings(record=True) as shown:
        try:
            warnings.warn_explicit("", PrivacyWarning, __file__, 1, registry={})
        except PrivacyWarning:
            return False, True
    return bool(shown), False
