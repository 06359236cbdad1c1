"""Whole runs on disk: what they leave, what they mark, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import psac
from psac.accounting import pricing
from psac.app.training import Interrupted, Run, RunError, train
from psac.app.training import trainer as trainer_module
from psac.app.training.assembly import follow_schedule, model_of, private_of
from psac.app.training.evaluation import evaluate, loss_of
from psac.app.training.splits import Splits
from psac.private import account as private_module
from tests.app.training.small import CLASSES, recipe, splits

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
TIMES = ("time", "seconds", "samples_per_second")


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", lambda *_: splits(public=True))


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """One thread, as these steps are shorter than its waiting for others; each price once."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "price", functools.cache(pricing.price))
        yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """In the background a shell has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Watcher:
    """Keeps what it is told, and calls `act` with every line."""

    def __init__(self, act=lambda info: None):
        self.seen, self._act = [], act

    def _told(self, info):
        self.seen.append(info)
        self._act(info)

    started = stepped = evaluated = ended = _told


class Crash(RuntimeError):
    """The process ends here, as far as the run can tell."""


def at(kind, step, deed):
    def act(info):
        if (info["kind"], info["step"]) == (kind, step):
            deed()

    return Watcher(act)


def crash():
    raise Crash


def story(run: Run) -> list[dict]:
    """The metrics without what differs between two equal runs."""
    lines = [line for line in run.metrics() if line["kind"] != "start"]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def assert_equal_runs(one: Run, other: Run) -> None:
    assert one.model_path.read_bytes() == other.model_path.read_bytes()
    assert one.ledger_path.read_bytes() == other.ledger_path.read_bytes()
    assert one.predictions_path.read_bytes() == other.predictions_path.read_bytes()
    assert story(one) == story(other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """The seeded run, never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "load_splits", lambda *_: splits(public=True))
        with pytest.warns(psac.InsecureNoiseWarning):
            return train(recipe(), tmp_path_factory.mktemp("runs") / "whole")


# ---- Copies of pictures


def in_pictures(recipe, kept) -> Splits:
    """The same records, as pictures of 2 x 2 pixels."""
    both = splits(public=True)
    for part in (both.training, both.evaluation):
        part.inputs = part.inputs.view(-1, 1, 2, 2)
    return both


def test_a_run_on_copies_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    """The moves are random, and belong to the run; torch's generator is left as it was."""
    monkeypatch.setattr(trainer_module, "load_splits", in_pictures)
    asked, before = recipe(copies=3, shift=1), torch.get_rng_state()
    whole = train(asked, tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)  # what the process has drawn before does not count
    with pytest.raises(Crash):
        train(asked, tmp_path / "run", observer=at("evaluation", 12, crash))
    torch.manual_seed(8)
    assert_equal_runs(train(asked, tmp_path / "run", resume=True), whole)
    at_once = train(recipe(copies=3, shift=1, physical_batch_size=64), tmp_path / "at once")
    one, other = ([line.get("loss", 0) for line in run.metrics()] for run in (whole, at_once))
    assert one == pytest.approx(other, rel=1e-4)
    plain = train(recipe(), tmp_path / "plain")
    assert plain.summary()["loss"] != whole.summary()["loss"]


def test_the_model_that_is_left_answers_as_it_was_evaluated(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", in_pictures)
    run = train(recipe(copies=2, shift=1, epochs=1), tmp_path / "run")
    result = evaluate(run.model(), in_pictures(None, None).evaluation, classes=3, batch_size=8)
    assert result.accuracy == run.summary()["accuracy"]


def test_copies_of_what_is_no_picture_are_refused(tmp_path):
    with pytest.raises(ValueError, match="copies need images"):
        train(recipe(copies=2, shift=1), tmp_path / "run")


# ---- What a run leaves


def test_a_run_leaves_every_file_and_they_agree(whole):
    names = {path.name for path in whole.folder.iterdir()}
    assert names == {
        "recipe.toml", "environment.json", "metrics.jsonl", "ledger.json", "model.safetensors",
        "checkpoint.safetensors", "checkpoint.safetensors.journal", "predictions.json",
        "summary.json", ".lock",
    }  # fmt: skip
    assert whole.recipe() == recipe()
    summary = whole.summary()
    assert summary["steps"] == summary["planned_steps"] == whole.ledger().steps == 18
    assert summary["epsilon"] == pytest.approx(whole.ledger().epsilon(1e-3))
    assert summary["accuracy"] > 0.5
    assert sum(map(sum, summary["confusion_matrix"])) == 60
    assert summary["classes"] == list(CLASSES)
    assert not summary["secure"]
    assert summary["isolation"] == "by construction (vmap)"
    assert summary["public"] is True
    assert "private" not in summary


def test_the_model_on_disk_is_the_one_that_was_evaluated(whole):
    result = evaluate(whole.model(), splits().evaluation, classes=3, batch_size=8)
    assert result.accuracy == whole.summary()["accuracy"]
    assert result.confusion() == whole.summary()["confusion_matrix"]
    mistakes = json.loads(whole.predictions_path.read_text())["mistakes"]
    assert mistakes == result.mistakes(48)
    assert len(mistakes) == round(60 * (1 - result.accuracy))


def test_metrics_tell_the_story_in_order(whole):
    lines = whole.metrics()
    kinds = [line["kind"] for line in lines]
    assert kinds == ["start"] + (["step"] * 6 + ["evaluation"]) * 3 + ["end"]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 19))
    start, end = lines[0], lines[-1]
    assert start["planned_epsilon"] == pytest.approx(end["epsilon"])
    assert (start["num_records"], start["expected_batch_size"], start["delta"]) == (120, 20, 1e-3)
    assert lines[6]["epoch"] == lines[7]["epoch"] == 1.0
    assert len({line["scale"] for line in lines if line["kind"] == "step"}) > 10


def test_what_comes_from_private_records_is_marked_and_the_rest_is_not(whole):
    sensitive = {"loss", "norms", "weights", "histogram", "samples"}
    for line in whole.metrics():
        assert ("private" in line) == (line["kind"] == "step")
        assert line.get("private", False) is False
        if line["kind"] == "step":
            assert sensitive <= line.keys()
            assert sum(line["histogram"]["counts"]) == line["samples"]


def test_results_on_held_out_records_are_marked_and_no_record_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "load_splits", lambda *_: splits("validation"))
    run = train(recipe(epochs=1), tmp_path / "run")
    assert not run.predictions_path.exists()
    assert run.summary()["private"] is False
    marked = [line["kind"] for line in run.metrics() if line.get("private") is False]
    assert {"evaluation", "end"} <= set(marked)


def test_observers_are_told_what_is_written(tmp_path):
    watcher = Watcher()
    run = train(recipe(epochs=1), tmp_path / "run", observer=watcher)
    assert watcher.seen == run.metrics()


def test_statistics_are_of_the_logical_batch(whole, tmp_path):
    run = train(recipe(physical_batch_size=1024, epochs=1), tmp_path / "run")
    one, other = run.metrics()[1], whole.metrics()[1]
    assert one["samples"] == other["samples"] > 8
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for key in ("norms", "weights"):
        assert one[key]["quantiles"] == pytest.approx(other[key]["quantiles"], rel=1e-4)


def test_long_runs_have_few_lines_and_fewer_prices(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "STEP_LINES", 6)
    monkeypatch.setattr(trainer_module, "STEP_LINES_WITH_EPSILON", 3)
    run = train(recipe(), tmp_path / "run")
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [3, 6, 9, 12, 15, 18]
    assert [line["step"] for line in steps if "epsilon" in line] == [6, 12, 18]


def test_a_run_without_noise_has_no_finite_epsilon_and_says_null(tmp_path):
    with pytest.warns(psac.PrivacyWarning, match="epsilon is inf"):
        run = train(recipe(noise_multiplier=0.0, epochs=1), tmp_path / "run")
    assert run.summary()["epsilon"] is None
    assert "Infinity" not in run.metrics_path.read_text()


@pytest.mark.parametrize("budget", [{"epsilon": 20.0}, {"noise_multiplier": 0.3}])
def test_a_large_epsilon_and_a_large_delta_are_warned_of_once(tmp_path, budget, monkeypatch):
    cached: Any = pricing.price  # see `quickly`; calibration gives it lists
    monkeypatch.setattr(pricing, "price", cached.__wrapped__)
    usual = {"noise_multiplier": None, "delta": 0.01, "batch_size": 60, "epochs": 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(recipe(**(usual | budget)), tmp_path / "run")
    told = [str(w.message)[:7] for w in caught if issubclass(w.category, psac.PrivacyWarning)]
    assert sorted(told) == ["delta i", "epsilon"]


def test_empty_draws_are_steps_too(tmp_path):
    run = train(recipe(batch_size=1, epochs=0.2, rule="psac"), tmp_path / "run")
    steps = [line["step"] for line in run.metrics() if line["kind"] == "step"]
    assert len(steps) < 24 == run.summary()["steps"] == run.ledger().steps


@pytest.mark.parametrize("sampling", ["balls-in-bins", "fixed-size-without-replacement"])
def test_other_samplings_are_trained_and_named(tmp_path, sampling):
    run = train(recipe(sampling=sampling, epochs=0.5), tmp_path / "run")
    assert run.summary()["sampling"] == run.metrics()[0]["sampling"] == sampling
    assert run.summary()["steps"] == run.ledger().steps == 3


def test_delta_is_a_tenth_of_one_record_unless_given(tmp_path):
    run = train(recipe(delta=None, epochs=1), tmp_path / "run")
    assert run.summary()["delta"] == run.metrics()[0]["delta"] == pytest.approx(1 / 1200)


# ---- Going on


@pytest.mark.parametrize(
    ("kind", "step"), [("start", 0), ("step", 1), ("step", 8), ("evaluation", 6), ("step", 18)]
)
def test_a_seeded_run_that_crashed_ends_equal_to_one_that_did_not(whole, tmp_path, kind, step):
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        train(recipe(), folder, observer=at(kind, step, crash))
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "st')  # torn by the kill
    torch.manual_seed(99)
    run = train(recipe(), folder, resume=True)
    assert_equal_runs(run, whole)
    assert [line["resumed"] for line in run.metrics() if line["kind"] == "start"] == [False, True]
    assert len(json.loads(run.environment_path.read_text())["resumed"]) == 1


@pytest.mark.parametrize("step", [6, 8])
def test_ctrl_c_saves_after_the_step_and_says_how_to_go_on(whole, tmp_path, step):
    folder, handler = tmp_path / "run", signal.getsignal(signal.SIGINT)
    strike = at("step", step, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match="resume=True") as caught:
        train(recipe(), folder, observer=strike)
    assert caught.value.folder == folder
    assert signal.getsignal(signal.SIGINT) == handler
    assert Run(folder).ledger().steps == step  # saved: nothing is repeated or lost
    assert max(line["step"] for line in Run(folder).metrics()) == step
    assert_equal_runs(train(recipe(), folder, resume=True), whole)


def test_a_ctrl_c_that_was_swallowed_while_reading_still_stops(tmp_path, monkeypatch):
    read = trainer_module.load_splits

    def reads(*words):
        with contextlib.suppress(KeyboardInterrupt):  # as some packages do while imported
            signal.raise_signal(signal.SIGINT)
        return read(*words)

    monkeypatch.setattr(trainer_module, "load_splits", reads)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) == handler
    assert not Run(tmp_path / "run").started


def test_a_second_ctrl_c_ends_at_once_and_the_last_checkpoint_holds(whole, tmp_path):
    def strike_twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt) as caught:
        train(recipe(), folder, observer=at("step", 9, strike_twice))
    assert not isinstance(caught.value, Interrupted)
    assert Run(folder).ledger().steps == 6
    assert_equal_runs(train(recipe(), folder, resume=True), whole)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_a_killed_process_leaves_a_run_that_goes_on(whole, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tests.app.training.small", str(folder)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "10":
            assert process.poll() is None
        with pytest.raises(RunError, match=f"process {process.pid} is training"):
            train(recipe(), folder, resume=True)
        process.kill()
    assert not Run(folder).finished
    assert_equal_runs(train(recipe(), folder, resume=True), whole)


def test_steps_that_a_secure_run_lost_count_as_spent_even_if_it_crashes_again(tmp_path):
    folder, secure = tmp_path / "run", recipe(seed=None)
    with pytest.raises(Crash):
        train(secure, folder, observer=at("step", 3, crash))
    with pytest.raises(Crash), pytest.warns(psac.PrivacyWarning, match="3 steps ran after"):
        train(secure, folder, resume=True, observer=at("step", 2, crash))
    with pytest.warns(psac.PrivacyWarning, match="2 steps ran after"):
        run = train(secure, folder, resume=True)
    assert run.ledger().steps == 18
    assert run.summary()["steps"] == 18 - 3 - 2
    assert run.summary()["secure"]
    assert run.summary()["epsilon"] == pytest.approx(run.ledger().epsilon(1e-3))


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("known_by", ["ledger.json", "metrics.jsonl", "checkpoint.safetensors"])
def test_a_run_whose_checkpoint_is_gone_is_not_started_again(tmp_path, known_by, seed):
    """It would forget what was spent, whichever file still knows of it."""
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        train(recipe(seed=seed), folder, observer=at("step", 9, crash))
    kept = {known_by, known_by + ".journal", "recipe.toml", "environment.json"}
    for path in folder.iterdir():
        if path.name not in kept or path.suffix == ".safetensors":
            path.unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    steps = {"ledger.json": 6}.get(known_by, 9)
    with pytest.raises(RunError, match=f"{steps} steps, but checkpoint.safetensors is missing"):
        train(recipe(seed=seed), folder, resume=True)
    after = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}
    assert after == before


def test_a_ledger_that_cannot_be_read_beside_a_lost_checkpoint_is_refused(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        train(recipe(), folder, observer=at("step", 9, crash))
    (folder / "checkpoint.safetensors").unlink()
    (folder / "ledger.json").write_text('{"format": ')
    with pytest.raises(RunError, match=r"ledger\.json cannot be read"):
        train(recipe(), folder, resume=True)


def as_on_another_machine() -> None:
    """Only the files of the run folder are known."""
    private_module.released.clear()
    for record in Path(os.environ["PSAC_STATE_DIR"]).iterdir():
        record.unlink()


def test_steps_that_only_ledger_or_metrics_know_of_count_as_spent(tmp_path):
    """The journal is gone, or the checkpoint was replaced by an older copy of itself."""
    folder, secure = tmp_path / "run", recipe(seed=None)
    with pytest.raises(Crash):
        train(secure, folder, observer=at("step", 3, crash))
    old = {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("checkpoint")}
    (folder / "checkpoint.safetensors.journal").unlink()
    as_on_another_machine()
    with (
        pytest.raises(Crash),
        pytest.warns(psac.PrivacyWarning, match="no record of run"),
        pytest.warns(psac.PrivacyWarning, match="record 3 more steps"),
    ):
        train(secure, folder, resume=True, observer=at("step", 8, crash))
    assert Run(folder).ledger().steps == 9  # three were lost; six are saved
    for name, content in old.items():
        (folder / name).write_bytes(content)
    as_on_another_machine()
    with (
        pytest.warns(psac.PrivacyWarning, match="no record of run"),
        pytest.warns(psac.PrivacyWarning, match="3 steps ran after"),  # by the journal of the copy
        pytest.warns(psac.PrivacyWarning, match="record 6 more steps"),
    ):
        run = train(secure, folder, resume=True)
    assert run.ledger().steps == 18
    assert run.summary()["steps"] == 9


def test_a_journal_that_is_gone_is_said_even_if_nothing_is_known_to_be_lost(tmp_path):
    folder, secure = tmp_path / "run", recipe(seed=None)
    strike = at("step", 8, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted):
        train(secure, folder, observer=strike)
    (folder / "checkpoint.safetensors.journal").unlink()
    with pytest.warns(psac.PrivacyWarning, match="there is no journal of this run"):
        run = train(secure, folder, resume=True)
    assert run.ledger().steps == run.summary()["steps"] == 18


def test_checkpoints_come_by_the_clock_too(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 0.0)
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        train(recipe(), folder, observer=at("step", 5, crash))
    assert Run(folder).ledger().steps == 4


def test_a_crash_after_the_last_step_loses_only_the_files_to_come(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "write_mistakes", lambda *_: crash())
        with pytest.raises(Crash):
            train(recipe(), folder)
    assert not Run(folder).finished
    with pytest.raises(RunError, match="not finished"):
        Run(folder).summary()
    run = train(recipe(), folder, resume=True)
    assert_equal_runs(run, whole)
    assert run.summary()["isolation"] == whole.summary()["isolation"]  # though no step was left


def test_a_finished_run_is_given_back_as_it_is(whole):
    before = {path: path.read_bytes() for path in whole.folder.iterdir()}
    train(recipe(), whole.folder, resume=True)
    assert {path: path.read_bytes() for path in whole.folder.iterdir()} == before


def test_a_run_that_is_killed_before_its_first_checkpoint_starts_when_resumed(whole, tmp_path):
    folder = tmp_path / "run"
    Run(folder).enter(recipe(), {})
    assert_equal_runs(train(recipe(), folder, resume=True), whole)


def test_training_works_outside_the_main_thread(whole, tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(train(recipe(), tmp_path / "run")))
    thread.start()
    thread.join()
    assert_equal_runs(runs[0], whole)


# ---- Refusals


def test_a_folder_with_a_run_is_not_used_again(whole):
    with pytest.raises(RunError, match="already holds a run"):
        train(recipe(), whole.folder)


def test_a_second_process_in_the_folder_is_refused_and_the_first_goes_on(whole, tmp_path):
    folder, refusals = tmp_path / "run", []

    def intrude():
        for resume in (False, True):
            with pytest.raises(RunError) as refusal:
                train(recipe(), folder, resume=resume)
            refusals.append(str(refusal.value))

    run = train(recipe(), folder, observer=at("step", 8, intrude))
    assert_equal_runs(run, whole)
    assert len(refusals) == 2
    for refusal in refusals:
        assert f"process {os.getpid()} is training in {folder}" in refusal


def test_a_run_that_another_process_began_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    def slow_data(recipe, kept):
        Run(tmp_path / "run").enter(recipe, {})
        return splits()

    monkeypatch.setattr(trainer_module, "load_splits", slow_data)
    with pytest.raises(RunError, match="already holds a run"):
        train(recipe(), tmp_path / "run")
    assert Run(tmp_path / "run").metrics() == []


def test_another_recipe_is_refused_with_what_differs(whole):
    with pytest.raises(RunError, match=r"learning_rate: 0\.5 -> 0\.1; .*seed: 0 -> None"):
        train(recipe(learning_rate=0.1, seed=None), whole.folder, resume=True)


def test_nothing_to_resume_is_said_so(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        train(recipe(), tmp_path / "empty", resume=True)
    assert not (tmp_path / "empty").exists()


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="batch_size is 500, but 'small' has 120 records"):
        train(recipe(batch_size=500), tmp_path / "run")
    with pytest.raises(ValueError, match="device 'cuda:99' is not available here"):
        train(recipe(device="cuda:99"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- Assembly


def test_the_learning_rate_follows_its_schedule_on_empty_draws_too():
    settings = recipe(schedule="linear", batch_size=1, epochs=0.2, rule="psac", momentum=0.0)
    model = model_of(settings, splits())
    private = private_of(settings, splits(), model)
    follow_schedule(settings, private)
    rates = []
    # A post hook of the step before has set the rate: read it as the step begins.
    private.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    batches = 0
    while private.steps_taken < 24:
        for batch in private.loader:
            private.step(loss_of, batch)
            batches += 1
    assert batches < 24 == len(rates)
    assert rates == pytest.approx([0.5 * (1 - k / 24) for k in range(24)])


def test_initial_weights_follow_the_seed_and_leave_torch_alone():
    def weights(seed):
        return torch.cat([p.flatten() for p in model_of(recipe(seed=seed), splits()).parameters()])

    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert not torch.equal(weights(None), weights(None))
    assert torch.equal(torch.get_rng_state(), state)
