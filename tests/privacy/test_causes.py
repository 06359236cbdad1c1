"""No cause lets one record move the sums by more than its bound, without psac's refusal."""

from __future__ import annotations

import pytest

from tests.privacy import causes, innocent
from tests.privacy.case import CASES, measure
from tests.privacy.defects import DEFECTS, marked

causes.load()


@pytest.mark.parametrize("case", [marked(case, case.id) for case in CASES])
def test_one_record_moves_the_sums_by_its_bound_at_most(case):
    outcome = measure(case)
    assert outcome.allowed, f"{case.title}: {outcome}"


def test_every_cause_has_at_least_five_cases():
    counts = {cause: sum(c.cause == cause for c in CASES) for cause in causes.CAUSES}
    assert {cause: n for cause, n in counts.items() if n < 5} == {}


def test_no_two_cases_have_the_same_name():
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)


def test_every_known_defect_is_a_case_or_an_innocent_row():
    names = {case.id for case in CASES} | {row.name for row in innocent.TABLE}
    assert set(DEFECTS) <= names
