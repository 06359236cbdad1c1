"""What psac raises and warns of when privacy is at stake."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from pathlib import Path

OWN_CODE = (str(Path(__file__).parent), contextlib.__file__)


class PrivacyError(RuntimeError):
    """Going on would not be private, or could not be shown to be; nothing was released."""


class PrivacyWarning(UserWarning):
    """The numbers are right, but protect less than they seem to."""


def warn(text: str, category: type[Warning] = PrivacyWarning) -> None:
    """A warning that points at the line outside of psac from which psac was called."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(OWN_CODE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
