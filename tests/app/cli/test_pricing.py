"""`psac calibrate` and `psac epsilon`: the numbers of the library, for plans told in two ways."""

from __future__ import annotations

import json
import math

import pytest

import psac
from psac.accounting.schemes import SCHEMES
from psac.app.cli import epsilon_curve, sampling_comparison
from psac.app.cli.plan_options import PlanOptions

PLAN = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 100}
OPTIONS = ("--delta", "1e-5", "--sampling-rate", "0.01", "--steps", "100")
BY_RECORDS = ("--records", "1000", "--batch-size", "10", "--epochs", "1")


def test_noise_and_epsilon_are_those_of_the_library(call):
    spent = call("epsilon", "4.0", *OPTIONS, "--quiet").out
    assert float(spent) == pytest.approx(psac.epsilon(noise_multiplier=4.0, **PLAN), rel=1e-5)
    noise = call("calibrate", "0.3", *OPTIONS, "--quiet").out
    assert float(noise) == pytest.approx(psac.calibrate(epsilon=0.3, **PLAN), rel=1e-5)


def test_a_plan_by_records_is_the_same_as_by_rate_and_its_delta_is_shown(call):
    by_records = json.loads(call("epsilon", "4.0", *BY_RECORDS, "--json").out)
    by_rate = json.loads(
        call("epsilon", "4.0", "--sampling-rate", ".01", "--steps", "100", "--delta", "1e-4",
             "--json").out
    )  # fmt: skip
    assert by_records == by_rate | {"num_records": 1000}
    assert (by_records["steps"], by_records["sampling_rate"]) == (100, 0.01)
    assert "at delta 1e-4" in call("epsilon", "4.0", *BY_RECORDS).out


def test_json_has_the_plan_the_price_and_the_curve(call):
    found = json.loads(call("calibrate", "0.3", *OPTIONS, "--json").out)
    assert found["noise_multiplier"] == psac.calibrate(epsilon=0.3, **PLAN)
    assert found["epsilon"] <= 0.3
    assert found["relation"] == "add-or-remove-one"
    assert found["curve"][-1] == [100, found["epsilon"]]
    assert found["schemes"] == []


def test_a_person_sees_a_curve_that_rises_to_the_price(call):
    shown = call("epsilon", "4.0", *OPTIONS).out
    assert shown.startswith("noise multiplier 4, epsilon ")
    rows = [line.partition("│")[2] or line.partition("┤")[2] for line in shown.splitlines()]
    dots = [row for row in rows if row.strip("\u2800")]
    ends = [max(k for k, dot in enumerate(row) if dot != "\u2800") for row in dots]
    assert len(dots) > 8
    assert ends == sorted(ends, reverse=True)  # the higher, the later
    assert "steps" in shown


def test_points_of_the_curve_are_prices_that_are_never_too_low():
    plan = {"sampling": "poisson", "relation": "add-or-remove-one", "num_records": None, **PLAN}
    spent = psac.epsilon(noise_multiplier=4.0, **PLAN)
    points = epsilon_curve.points({**plan, "noise_multiplier": 4.0, "epsilon": spent})
    assert [steps for steps, _ in points] == sorted({steps for steps, _ in points})
    for steps, price in points[:: len(points) // 4]:
        exact = psac.epsilon(noise_multiplier=4.0, **PLAN | {"steps": steps})
        assert exact <= price * (1 + 1e-9)
        assert price <= exact * 1.005


def test_every_scheme_is_compared_at_its_own_price(call):
    found = json.loads(call("calibrate", "0.2", *BY_RECORDS, "--compare", "--json").out)
    rows = {(row["sampling"], row["relation"]): row for row in found["schemes"]}
    assert rows.keys() == SCHEMES.keys() == sampling_comparison.METHODS.keys()
    first = rows["poisson", "add-or-remove-one"]
    assert first["noise_multiplier"] == pytest.approx(found["noise_multiplier"])
    assert first["epsilon"] == pytest.approx(found["epsilon"])
    second = rows["poisson", "replace-one"]
    plan = PLAN | {"delta": 1e-4, "relation": "replace-one"}
    again = psac.epsilon(noise_multiplier=second["noise_multiplier"], **plan)
    assert again == pytest.approx(0.2, rel=2e-4)
    last = rows["fixed-size-with-replacement", "replace-one"]
    for value in ("epsilon", "noise_multiplier"):
        assert first[value] < second[value] < last[value]


def test_the_comparison_says_what_it_cannot_price(call):
    shown = call("epsilon", "4.0", *OPTIONS, "--compare").out
    assert "needs --records" in shown
    assert "Shuffled epochs are not in the table" in shown
    assert "arXiv:2412.16802" in shown


@pytest.mark.parametrize("name", ["curve.svg", "curve.png"])
def test_a_picture_is_written(call, tmp_path, name):
    done = call("epsilon", "4.0", *OPTIONS, "--plot", tmp_path / "new" / name)
    assert done.code == 0, done.err
    content = (tmp_path / "new" / name).read_bytes()
    assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_balls_in_bins_get_the_rate_of_their_bins():
    for rate, bins in ((1 / 93, 93), (0.01, 100), (512 / 60_000, 118), (1.0, 1)):
        asked = PlanOptions(sampling_rate=rate, steps=10, delta=1e-5, sampling="balls-in-bins")
        assert asked.plan()["sampling_rate"] == 1 / bins
    asked = PlanOptions(records=1000, batch_size=300, epochs=2, sampling="balls-in-bins")
    assert (asked.plan()["sampling_rate"], asked.plan()["steps"]) == (1 / 4, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --sampling-rate and --steps, or --records"),
        (("--sampling-rate", "0.01", "--delta", "1e-5"), "give --sampling-rate and --steps"),
        ((*OPTIONS, "--epochs", "3"), "give --sampling-rate and --steps"),
        ((*OPTIONS, *BY_RECORDS), "give --sampling-rate and --steps"),
        (("--records", "100", "--epochs", "1"), "give --sampling-rate and --steps"),
        (("--sampling-rate", "0.01", "--steps", "9"), "give --delta, or --records"),
        ((*OPTIONS, "--sampling", "poison"), "Did you mean 'poisson'?"),
        ((*OPTIONS, "--sampling", "shuffle"), "is refused"),
        ((*OPTIONS, "--relation", "neighbour"), "neighbour"),
        ((*OPTIONS, "--plot", "curve.gif"), "the file must end in .svg, .png, .pdf"),
        (("--records", "10", "--batch-size", "20", "--epochs", "1"), "20"),
    ],
)
def test_a_plan_that_says_too_little_or_too_much_is_a_usage_error(call, words, message):
    refused = call("epsilon", "4.0", *words)
    assert refused.code == 2
    assert message in refused.message


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
def test_no_noise_is_infinite_and_not_drawn(call):
    done = call("epsilon", "0.0", *OPTIONS)
    assert "epsilon infinite" in done.out
    assert json.loads(call("epsilon", "0", *OPTIONS, "--json").out)["epsilon"] is None
    assert call("epsilon", "0", *OPTIONS, "--quiet").out == f"{math.inf}\n"


def test_a_negative_number_is_refused_as_one(call):
    for words, message in (
        (("calibrate", "-3"), "epsilon is -3: it must be above 0."),
        (("epsilon", "-.5"), "noise_multiplier is -.5: it must be 0 or above."),
        (("calibrate", "3", "--recods", "5"), "No such option: --recods"),
    ):
        refused = call(*words, *OPTIONS)
        assert refused.code == 2
        assert message in refused.message


def test_one_step_is_one_step(call):
    found = call("epsilon", "4", "--sampling-rate", "0.1", "--steps", "1", "--delta", "1e-5")
    assert "1 step of poisson batches" in found.out


@pytest.mark.filterwarnings("always::psac.PrivacyWarning")
def test_a_large_budget_is_warned_of_once(call):
    found = call("calibrate", "20", "--sampling-rate", "0.1", "--steps", "3", "--delta", "1e-5")
    assert found.err.count("Warning: epsilon is 20") == 1
