"""What the core does not hold yet: by the id of a case, or the name of an innocent row.

A defect that is mended must leave this list: its test then passes, and `xfail(strict=True)` fails.
`python -m tests.privacy` names what belongs here.
"""

from __future__ import annotations

from typing import Any

import pytest

FROM_OUTSIDE = "what changes outside is warned of once, from the second step on, and not refused"
UNSEEN = "what changes outside is not seen in this place"
OPERATORS = "vmap calls Python kernels record by record, and they remember"
NOT_WALKED = "a memory that is not reached by walking over objects; a second pass would show it"

DEFECTS: dict[str, str] = {
    **dict.fromkeys(
        [
            "N1-a_number",
            "N1-a_tensor",
            "N1-a_copy",
            "N1-a_default",
            "N1-a_partial",
            "N1-a_partial_tensor",
            "N1-a_callable",
            "N1-a_method",
            "N1-a_number_on_the_model",
            "N1-a_tensor_on_the_model",
            "N1-a_tensor_written_in_place",
            "N1-a_tensor_written_by_data",
            "N1-a_tensor_written_by_numpy",
            "S13-the_size_in_a_closure",
            "S13-a_loss_scaled_by_the_size",
        ],
        FROM_OUTSIDE,
    ),
    **dict.fromkeys(
        [
            "N1-an_array",
            "N1-a_global",
            "N1-a_hook",
            "N1-a_function",
            "N1-self_paced",
        ],
        UNSEEN,
    ),
    **dict.fromkeys(
        [
            "N2-an_operator_of_a_library",
            "N2-an_operator_inside_a_function",
            "N2-an_operator_of_a_library_inside_a_function",
        ],
        OPERATORS,
    ),
    **dict.fromkeys(["N2-a_scripted_module", "N2-a_file", "N2-a_thread"], NOT_WALKED),
}


def marked(value: Any, name: str) -> Any:
    """A parameter of a test, expected to fail if it is a known defect."""
    known = [pytest.mark.xfail(strict=True, reason=DEFECTS[name])] if name in DEFECTS else []
    return pytest.param(value, id=name, marks=known)
