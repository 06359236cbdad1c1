"""What the core does not hold yet: by the id of a case, or the name of an innocent row.

A defect that is mended must leave this list: its test then passes, and `xfail(strict=True)` fails.
`python -m tests.privacy` names what belongs here.
"""

from __future__ import annotations

from typing import Any

import pytest

DEFECTS: dict[str, str] = {}


def marked(value: Any, name: str) -> Any:
    """A parameter of a test, expected to fail if it is a known defect."""
    known = [pytest.mark.xfail(strict=True, reason=DEFECTS[name])] if name in DEFECTS else []
    return pytest.param(value, id=name, marks=known)
