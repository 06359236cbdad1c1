"""Logs for TensorBoard: they say what metrics.jsonl says, and mark what is not private."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from psac.app.training import Interrupted, Run, train
from psac.app.training import trainer as trainer_module
from psac.app.training.observer import Silent, Together
from psac.app.training.tensorboard import TensorBoard
from tests.app.training.small import recipe, splits

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", lambda *_: splits(public=True))


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_the_log_holds_the_metrics_and_names_what_is_not_private(tmp_path):
    with TensorBoard(tmp_path / "log") as log:
        run = train(recipe(epochs=1), tmp_path / "run", observer=Together(Silent(), log))
    found = scalars(tmp_path / "log")
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    evaluation = next(line for line in run.metrics() if line["kind"] == "evaluation")
    assert found["not_private/loss"] == [
        (line["step"], pytest.approx(line["loss"])) for line in steps
    ]
    assert found["evaluation/accuracy"] == [(6, pytest.approx(evaluation["accuracy"]))]
    assert found["privacy/epsilon"][-1] == (6, pytest.approx(evaluation["epsilon"]))
    private = {tag for tag in found if not tag.startswith("not_private/")}
    assert private == {"evaluation/accuracy", "evaluation/loss", "privacy/epsilon"}
    assert len(found["not_private/median_weight"]) == len(steps)


def test_evaluations_on_held_out_private_records_are_not_private(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", lambda *_: splits("validation"))
    with TensorBoard(tmp_path / "log") as log:
        train(recipe(epochs=1), tmp_path / "run", observer=log)
    found = scalars(tmp_path / "log")
    assert "not_private/validation_accuracy" in found
    assert not any(tag.startswith("evaluation") for tag in found)


def test_a_resumed_run_goes_on_in_the_same_log_without_telling_a_step_twice(tmp_path):
    class Strike(Silent):
        def stepped(self, info):
            if info["step"] == 8:
                signal.raise_signal(signal.SIGTERM)

    for resume, watcher in ((False, Strike()), (True, Silent())):
        with TensorBoard(tmp_path / "log") as log:
            try:
                train(recipe(), tmp_path / "run", resume=resume, observer=Together(log, watcher))
            except Interrupted:
                assert not resume
    assert Run(tmp_path / "run").finished
    assert [step for step, _ in scalars(tmp_path / "log")["not_private/loss"]] == [*range(1, 19)]


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'psac\[tensorboard\]'"):
        TensorBoard(tmp_path)
