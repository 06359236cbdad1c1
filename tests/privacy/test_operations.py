"""A record that is not finite, or huge, leaves the others as they are, whatever the operation."""

from __future__ import annotations

import pytest

from tests.privacy.operations import TABLE, measure

SAMPLE = TABLE[::7]


@pytest.mark.parametrize("operation", SAMPLE, ids=lambda o: o.name)
def test_a_spoilt_record_leaves_the_others_as_they_are(operation):
    for name, result in measure(operation).items():
        assert result.ratio <= 1.001, name
        assert result.rest <= 1e-3, name


@pytest.mark.slow
@pytest.mark.parametrize("operation", [o for o in TABLE if o not in SAMPLE], ids=lambda o: o.name)
def test_a_spoilt_record_leaves_the_others_as_they_are_in_the_rest(operation):
    test_a_spoilt_record_leaves_the_others_as_they_are(operation)


def test_there_are_two_hundred_operations():
    assert len({operation.name for operation in TABLE}) == len(TABLE) >= 200
    assert len(SAMPLE) >= 40
