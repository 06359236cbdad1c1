"""Numbers in the text are what the library says."""

from __future__ import annotations

import math
import re

import pytest

import psac
from tests.docs.markdown import ROOT

PLAN = {"epsilon": 3.0, "delta": 1e-5, "num_records": 60_000}
NOISE_FOR_THREE = {
    "`Poisson()`": ("poisson", 512 / 60_000, 4687),
    "`BallsInBins()`": ("balls-in-bins", 1 / 118, 40 * 118),
    "`FixedSize()`": ("fixed-size-without-replacement", 512 / 60_000, 4687),
    "`FixedSize(replacement=True)`": ("fixed-size-with-replacement", 512 / 60_000, 4687),
}


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("row", NOISE_FOR_THREE)
def test_the_table_of_prices_is_what_the_accountant_says(row):
    sampling, rate, steps = NOISE_FOR_THREE[row]
    noise = psac.calibrate(sampling_rate=rate, steps=steps, sampling=sampling, **PLAN)
    line = next(line for line in text("private.md").splitlines() if line.startswith(f"| {row}"))
    assert line.endswith(f"| {noise:.2f} |")


def test_the_page_on_the_guarantee_quotes_that_table():
    quoted = re.search(
        r"(\d\.\d\d) by Poisson, (\d\.\d\d) by batches of a fixed size,\s+up to (\d\.\d\d)",
        text("guarantee.md"),
    )
    table = re.findall(r"^\| `(?:Poisson|FixedSize).*\| (\d\.\d\d) \|$", text("private.md"), re.M)
    assert list(quoted.groups()) == table


def test_chances_to_guess_follow_from_epsilon():
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \|", text("guarantee.md"), re.M)
    assert len(rows) == 6
    for epsilon, percent in rows:
        chance = 100 / (1 + math.exp(-float(epsilon)))
        digits = len(percent.partition(".")[2])
        assert percent == f"{chance:.{digits}f}"


@pytest.mark.filterwarnings("ignore:Optimal order is the")  # Opacus looks at RDP on its way
def test_the_noise_beside_opacus_is_measured():
    ours, theirs = re.search(r"(\d\.\d{3}) instead of (\d\.\d{3})", text("opacus.md")).groups()
    plan = {"sampling_rate": 512 / 60_000, "steps": 4687}
    assert ours == f"{psac.calibrate(**plan, **PLAN):.3f}"
    utils = pytest.importorskip("opacus.accountants.utils")
    found = utils.get_noise_multiplier(
        target_epsilon=3.0,
        target_delta=1e-5,
        sample_rate=plan["sampling_rate"],
        steps=plan["steps"],
        accountant="prv",
        epsilon_tolerance=1e-4,
    )
    assert abs(float(theirs) - found) < 2e-3
