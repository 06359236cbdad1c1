"""What psac warns of stays with the run: in its ledger, its summary, its model, on its pages."""

from __future__ import annotations

import json
import warnings

import pytest

import psac
from psac.app.reporting import report
from psac.app.training import Run, train, trainer
from psac.app.training.interruption import Interrupted
from psac.app.training.privacy_warnings import PrivacyWarnings
from tests.app.training.small import recipe, splits

PROVED = "proved for every attack"


def warn(text: str = "something was read off") -> None:
    warnings.warn(text, psac.PrivacyWarning, stacklevel=2)


@pytest.fixture
def given(monkeypatch):
    """Splits that a test may change, and warnings given while they are loaded."""
    texts: list[str] = []

    def load(recipe, released=None):
        for text in texts:
            warn(text)
        return splits(public=True)

    monkeypatch.setattr(trainer, "load_splits", load)
    return texts


def all_of(run: Run) -> list[str]:
    """Everything that must say it."""
    header = json.dumps(run.model_facts())
    pages = [report(run.folder, publish=publish).read_text() for publish in (False, True)]
    return [json.dumps(run.ledger().to_json()), json.dumps(run.summary()), header, *pages]


def test_a_run_without_warnings_is_proved(given, tmp_path):
    run = train(recipe(seed=None), tmp_path / "run")
    assert run.ledger().warnings == ()
    assert PROVED in report(run.folder, publish=True).read_text()


@pytest.mark.parametrize("action", ["default", "ignore"])
def test_a_warning_is_in_the_folder_even_if_a_filter_hides_it(given, tmp_path, action):
    given.append("folder/jane.csv: 'age' was read off")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        run = train(recipe(seed=None), tmp_path / "run")
    assert bool(seen) == (action == "default")
    assert [line["text"] for line in run.metrics() if line["kind"] == "warning"] == given
    for text in all_of(run):
        assert "psac warned about privacy" in text
        assert PROVED not in text
    assert "jane.csv" in report(run.folder).read_text()
    assert "jane.csv" not in report(run.folder, publish=True).read_text()


def test_what_was_read_off_private_records_is_said_everywhere(monkeypatch, tmp_path):
    sentence = "The classes were read off the private records, without noise."
    monkeypatch.setattr(trainer, "load_splits", lambda *_: splits(public=True, unsafe=(sentence,)))
    run = train(recipe(seed=None), tmp_path / "run")
    for text in all_of(run):
        assert sentence in text
        assert PROVED not in text
    page = report(run.folder, publish=True).read_text()
    assert "middle" not in page  # the name of a class
    assert "middle" in report(run.folder).read_text()


def test_a_large_epsilon_is_said_everywhere(given, tmp_path):
    with pytest.warns(psac.PrivacyWarning, match="epsilon is"):
        run = train(recipe(seed=None, noise_multiplier=0.0), tmp_path / "run")
    for text in all_of(run):
        assert "Epsilon is above 10" in text
        assert PROVED not in text


class Stop:
    """Interrupts at the first evaluation."""

    def started(self, info): ...

    def stepped(self, info): ...

    def evaluated(self, info):
        raise Interrupted("here")

    def ended(self, info): ...


def test_a_warning_before_an_interruption_is_not_forgotten(given, tmp_path):
    given.append("of the first session")
    with pytest.warns(psac.PrivacyWarning), pytest.raises(Interrupted):
        train(recipe(seed=None), tmp_path / "run", observer=Stop())
    given[:] = []
    with pytest.warns(psac.PrivacyWarning, match="count as spent|more steps"):
        run = train(recipe(seed=None), tmp_path / "run", resume=True)
    texts = [line["text"] for line in run.metrics() if line["kind"] == "warning"]
    assert texts[0] == "of the first session"
    for text in all_of(run):
        assert PROVED not in text


def test_the_second_of_two_equal_warnings_is_heard_too():
    def session() -> list[str]:
        with PrivacyWarnings() as heard:
            warn()
            return heard.take()

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("default")
        assert session() == session() == ["something was read off"]


def test_what_is_an_error_stays_one():
    with pytest.raises(psac.PrivacyWarning), PrivacyWarnings():
        warn()
