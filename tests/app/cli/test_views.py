"""The picture in a terminal: what it says at which moment, and what it marks as not private."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from psac.app.cli.views import JsonLines, Lines, Live, view_of
from psac.app.training.observer import Silent

START = {
    "kind": "start", "step": 0, "planned_steps": 100, "num_records": 1000, "delta": 1e-4,
    "expected_batch_size": 50, "noise_multiplier": 1.5, "planned_epsilon": 2.0, "secure": True,
    "sampling": "poisson", "relation": "add or remove one record", "rule": "PSAC()",
}  # fmt: skip
STEP = {
    "kind": "step", "step": 25, "loss": 0.75, "samples": 51, "samples_per_second": 1234.5,
    "private": False, "epsilon": 0.875,
    "weights": {"quantiles": [], "log10_edges": [-1.0, -0.875, -0.75], "counts": [17, 34]},
}  # fmt: skip
EVALUATION = {
    "kind": "evaluation", "step": 50, "accuracy": 0.876, "split": "test", "epsilon": 1.25,
    "loss": 0.5, "public": True,
}  # fmt: skip
END = {"kind": "end", "step": 100, "accuracy": 0.9, "epsilon": 2.0, "seconds": 75.0, "public": True}


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)


def seen(console: Console, view: Live) -> str:
    with console.capture() as capture:
        console.print(view._display())
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def plain(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


def test_the_picture_tells_place_price_and_speed(console):
    view = Live(console, "mine")
    assert "reading the data" in plain(seen(console, view))
    view.started(START)
    assert "1 / (10 records)" in plain(seen(console, view))
    view.stepped(STEP)
    view.evaluated(EVALUATION)
    picture = plain(seen(console, view))
    for words in ("step 50 of 100", "left", "87.6% on test records", "1.25 of 2.00", "1,234 sam"):
        assert words in picture
    view.ended(END)
    assert plain(seen(console, view)) == "✓ mine  90.0% at epsilon 2.00, in 1:15"


def test_what_is_not_private_stands_below_a_line_that_says_so(console):
    view = Live(console, "mine")
    view.started(START)
    view.stepped(STEP)
    view.evaluated(EVALUATION)
    public, sensitive = plain(seen(console, view)).split("not private: do not publish")
    assert "accuracy" in public
    assert "loss      0.750" in sensitive
    assert "weights   0.1 ▅█ 0.18" in sensitive
    assert "0.750" not in public
    view.evaluated(EVALUATION | {"private": False, "public": False, "split": "validation"})
    public, sensitive = plain(seen(console, view)).split("not private: do not publish")
    assert "accuracy" not in public
    assert "on validation records" in sensitive


def test_a_seed_and_no_noise_are_said_aloud(console):
    view = Live(console, "mine")
    view.started(START | {"secure": False, "planned_epsilon": None, "noise_multiplier": 0.0})
    view.evaluated(EVALUATION | {"epsilon": None})
    picture = plain(seen(console, view))
    assert "repeatable and NOT private" in picture
    assert "epsilon   infinite" in picture
    view.ended(END | {"epsilon": None})
    assert "epsilon infinite" in plain(seen(console, view))


def test_a_picture_is_drawn_and_ends_with_one_line(console):
    with Live(console, "mine") as view:
        view.started(START)
        view.stepped(STEP)
        view.ended(END)
    assert plain(console.file.getvalue()).splitlines()[-1].startswith("✓ mine")


def test_the_view_fits_what_was_asked_and_where_it_is_shown(console):
    def kind(console, **asked):
        with view_of(console, "mine", **asked) as view:
            return type(view)

    pipe = Console(file=io.StringIO())
    assert kind(console) is Live
    assert kind(pipe) is Lines
    assert kind(console, quiet=True) is kind(pipe, quiet=True) is Silent
    assert kind(console, as_json=True) is kind(pipe, as_json=True) is JsonLines
