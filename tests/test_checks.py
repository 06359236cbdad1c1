"""Messages for wrong arguments say what was given, what is allowed and what to do."""

import math
from fractions import Fraction

import numpy as np
import pytest

from psac import checks

KNOWN = ["Smiling", "psac", "auto_s"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("psca", "psac"), ("Auto-S", "auto_s"), ("smilling", "Smiling"), ("zzz", None), (3, None)],
)
def test_the_nearest_known_name_is_suggested_whatever_its_case(name, meant):
    assert checks.suggestion(name, KNOWN) == (f" Did you mean '{meant}'?" if meant else "")


def test_a_synonym_comes_before_a_name_that_looks_alike():
    assert checks.suggestion("Batch", ["batches", "size"], {"batch": "size"}).endswith("'size'?")
    assert checks.suggestion("batch", ["batches"], {"batch": "size"}).endswith("'batches'?")


def test_an_unknown_name_is_answered_with_all_known_ones_in_order():
    assert checks.unknown("rule", "x", ["b", "a"]) == "rule 'x' is unknown. Known: a, b."
    assert checks.unknown("rule", "x", []) == "rule 'x' is unknown. Known: none."


def test_whole_numbers_of_any_library_are_taken_and_others_refused():
    assert checks.positive("n", np.int64(3)) == 3
    assert checks.positive("n", 0, least=0) == 0
    for value in (True, 2.0, "2", None):
        with pytest.raises(TypeError, match=r"n is .*: it must be a whole number, at least 1"):
            checks.positive("n", value)
    with pytest.raises(ValueError, match=r"n is 0: it must be a whole number, at least 1\. Why\.$"):
        checks.positive("n", 0, advice="Why.")


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(0, "[0, 1)"), (1.0, "(0, 1]"), (Fraction(1, 2), "(0, 1)"), (9, "(0, inf)")],
)
def test_a_number_in_the_interval_comes_back_as_a_float(value, allowed):
    result = checks.number("x", value, allowed)
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(0, "(0, 1)"), (1, "[0, 1)"), (math.nan, "[0, 1]"), (math.inf, "(0, inf)"), (-1, "[0, inf]")],
)
def test_a_number_outside_the_interval_is_refused(value, allowed):
    with pytest.raises(ValueError, match=r"x is .*: allowed is .*\. Why\."):
        checks.number("x", value, allowed, advice="Why.")


@pytest.mark.parametrize("value", [True, "1", None, 1j])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"x is .*: it must be a number in \[0, 1\]"):
        checks.number("x", value, "[0, 1]")


def test_exactly_one_of_two_settings_is_asked_for():
    checks.exactly_one(epochs=3, steps=None)
    for epochs, steps in ((None, None), (3, 4)):
        with pytest.raises(ValueError, match=rf"give either epochs or steps: epochs={epochs}, "):
            checks.exactly_one(epochs=epochs, steps=steps)
