"""`psac compare` and `psac sweep`: what is run, what is printed, what it costs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from scipy import stats

import psac
from psac.app.reporting import numerals
from psac.app.training import Run
from psac.app.training.run import write_json

SHORT = ("--epochs", "0.5", "--physical-batch-size", "64")


@pytest.fixture
def compared(call, place, at_once):
    words = ("--rule", "psac", "--rule", "auto_s:r=0.5,learning_rate=2", "--repeats", "2")
    return call("compare", "mine.toml", *SHORT, *words, "--seed", "7")


def test_rules_are_compared_by_runs_of_the_same_settings(compared, place):
    assert compared.code == 0, compared.err
    assert "The seed makes these runs repeatable and NOT private." in compared.message
    folder = place / "runs" / "compare-mine"
    recipes = {run.name: Run(run).recipe() for run in sorted(folder.iterdir()) if run.is_dir()}
    assert list(recipes) == [
        *("auto_s-r=0.5-learning_rate=2-1", "auto_s-r=0.5-learning_rate=2-2"),
        *("psac-1", "psac-2"),
    ]
    assert [recipe.seed for recipe in recipes.values()] == [7, 8, 7, 8]
    differences = recipes["psac-1"].differences(recipes["auto_s-r=0.5-learning_rate=2-1"])
    assert {text.split(":")[0] for text in differences} == {"rule", "r", "learning_rate"}


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_the_comparison_is_that_of_the_runs(compared, place):
    folder = place / "runs" / "compare-mine"
    found = json.loads((folder / "compare.json").read_text())
    by_rule = {entry["recipe"]["rule"]: entry["accuracies"] for entry in found["rules"]}
    assert by_rule["psac"] == [Run(folder / f"psac-{k}").summary()["accuracy"] for k in (1, 2)]
    expected = stats.ttest_ind(by_rule["psac"], by_rule["auto_s"], equal_var=False).pvalue
    assert found["tests"][0]["p"] == pytest.approx(expected, nan_ok=True)
    assert "Welch's test" in compared.out
    assert "would cost, without a seed" in " ".join(compared.out.split())
    summary = Run(folder / "psac-1").summary()
    four = psac.epsilon(
        noise_multiplier=4.0,
        sampling_rate=summary["expected_batch_size"] / summary["num_records"],
        steps=4 * summary["steps"],
        delta=summary["delta"],
    )
    assert found["price"]["epsilon"] == pytest.approx(four, rel=0.02)
    assert (folder / "report.html").exists()


def test_runs_without_a_seed_are_private_and_go_on(call, place, at_once):
    words = ("compare", "mine.toml", *SHORT, "--rule", "psac", "--rule", "abadi", "--repeats", "1")
    first = call(*words)
    assert first.code == 0, first.err
    assert "Repeat each rule (--repeats) for a test." in first.out
    run = Run(place / "runs" / "compare-mine" / "psac-1")
    before = run.model_path.read_bytes()
    assert call(*words).code == 0
    assert run.model_path.read_bytes() == before
    assert run.summary()["secure"] is True


def test_a_folder_with_another_comparison_is_refused_as_a_whole(call, place, at_once):
    words = ("compare", "mine.toml", "--rule", "psac", "--physical-batch-size", "64")
    assert call(*words, "--epochs", "0.5", "--repeats", "1").code == 0
    refused = call(*words, "--epochs", "1", "--repeats", "2")
    assert refused.code == 2
    assert "runs/compare-mine holds another comparison: psac-1" in refused.message
    assert "epochs: 0.5 -> 1.0" in refused.message
    assert not (place / "runs" / "compare-mine" / "psac-2").exists()
    assert call(*words, "--epochs", "0.5", "--repeats", "2").code == 0  # more of the same


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "mine.toml", "--rule", "psca"), "Did you mean 'psac'"),
        (
            ("compare", "mine.toml", "--rule", "psac:epochs=3"),
            "setting 'epochs' is unknown. Known: bound",
        ),
        (("compare", "mine.toml", *["--rule", "psac"] * 2), "--rule psac is given twice"),
        (("compare", "mine.toml", "--rule", "psac:r=much"), "r is 'much', which is not a number"),
        (("sweep", "mine.toml"), "give either --try"),
        (("sweep", "mine.toml", "--try", "r=1,2", "--range", "r=1:2"), "give either --try"),
        (("sweep", "mine.toml", "--try", "learning_rate=fast"), "NAME=A,B"),
        (("sweep", "mine.toml", "--try", "epochs=1,2"), "cannot be changed by a sweep"),
        (("sweep", "mine.toml", "--range", "r=0.1:0.2:0.3"), "3 numbers. Give LOW:HIGH"),
        (("sweep", "mine.toml", "--range", "r=0.2:0.1"), "0 < low < high"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_run(call, place, words, message):
    refused = call(*words)
    assert refused.code == 2
    assert message in refused.message
    assert not (place / "runs").exists()


def test_a_grid_costs_as_much_as_all_of_its_runs(call, place, at_once):
    done = call("sweep", "mine.toml", *SHORT, "--try", "learning_rate=0.1,1", "--try", "r=0.1,0.2")
    assert done.code == 0, done.err
    folder = place / "runs" / "sweep-mine"
    found = json.loads((folder / "results.json").read_text())
    assert len(found["results"]) == 4
    best = max(found["results"], key=lambda result: result["accuracy"])
    assert Run(folder / found["best"]).summary()["accuracy"] == best["accuracy"]
    assert found["tuned"] is None
    assert found["price"]["epsilon"] > 1.2 * best["epsilon"]
    said = " ".join(done.out.split())
    assert (
        f"Releasing all 4 runs costs epsilon {numerals.epsilon(found['price']['epsilon'])}" in said
    )
    assert (folder / "report.html").exists()


def test_a_random_sweep_states_its_price_and_keeps_its_draws(call, place, at_once):
    words = ("sweep", "mine.toml", *SHORT, "--range", "learning_rate=0.1:10")
    done = call(*words, "--expected-runs", "1.5")
    assert done.code == 0, done.err
    folder = place / "runs" / "sweep-mine"
    found = json.loads((folder / "results.json").read_text())
    summary = Run(folder / found["best"]).summary()
    expected = psac.tuned_epsilon(
        noise_multiplier=4.0,
        sampling_rate=32 / 200,
        steps=summary["steps"],
        delta=summary["delta"],
        expected_runs=1.5,
    )
    assert found["tuned"] == pytest.approx(expected)
    said = f"epsilon is {numerals.epsilon(expected)}, if nothing about the others"
    assert said in " ".join(done.out.split())
    before = (folder / "plan.json").read_bytes()
    assert call(*words, "--expected-runs", "1.5").code == 0
    assert (folder / "plan.json").read_bytes() == before
    other = call(*words, "--expected-runs", "2")
    assert other.code == 2
    assert "holds another sweep" in other.message


@pytest.mark.parametrize(
    "search", [("--range", "r=0.1:1", "--expected-runs", "1.1"), ("--try", "r=0.1,0.5")]
)
def test_choosing_by_held_out_records_is_not_covered(call, place, at_once, search):
    done = call("sweep", "mine.toml", *SHORT, *search, "--validation-fraction", "0.3")
    text = " ".join(done.out.split())
    assert "that choice is not covered" in text
    assert "NOT private" in text


@pytest.mark.parametrize(
    "command, file",
    [
        (("compare", "mine.toml", "--rule", "psac", "--repeats", "1"), "compare-mine/compare.json"),
        (("sweep", "mine.toml", "--try", "r=0.1"), "sweep-mine/results.json"),
    ],
)
@pytest.mark.parametrize("public", [False, True])
def test_results_on_private_records_are_marked_in_every_line_and_file(
    call, place, at_once, command, file, public
):
    done = call(*command, *SHORT, *["--test-is-public"] * public)
    assert done.code == 0, done.err
    found = json.loads((place / "runs" / file).read_text())
    mark = {"public": True} if public else {"private": False}
    assert {key: found[key] for key in ("public", "private") if key in found} == mark
    assert ("not private: accuracy" in done.out) is not public
    assert ("NOT private: accuracy on private records" in " ".join(done.out.split())) is not public


@pytest.mark.parametrize(
    "command, file",
    [
        (("compare", "own.toml", "--rule", "psac", "--repeats", "1"), "compare-own/compare.json"),
        (("sweep", "own.toml", "--try", "r=0.1"), "sweep-own/results.json"),
    ],
)
def test_the_cost_of_several_runs_names_what_it_does_not_cover(call, place, at_once, command, file):
    text = (place / "mine.toml").read_text()
    (place / "own.toml").write_text(text.replace('classes = ["0", "1"]', "unsafe = true"))
    done = call(*command, *SHORT)
    assert done.code == 0, done.err
    sentence = "The classes in the array y were read off the private records."
    assert f"does not cover what psac warned of: {sentence}" in " ".join(done.out.split())
    assert json.loads((place / "runs" / file).read_text())["price"]["warnings"] == [sentence]


def test_a_random_search_does_not_leave_out_what_each_run_releases_before_training(call, place):
    text = (place / "mine.toml").read_text()
    own = '[data_settings]\nlabel = "y"\nranges = "private"\nprivacy_share = 0.2\n'
    (place / "own.toml").write_text(text.partition("[data_settings]")[0] + own)
    refused = call("sweep", "own.toml", "--range", "r=0.1:1")
    assert refused.code == 2
    assert "(--range) cannot be priced" in refused.message
    assert not (place / "runs").exists()


def test_a_random_search_counts_steps_that_were_lost_with_a_process(
    call, place, at_once, monkeypatch
):
    train_here = psac.training.train_many

    def with_loss(jobs, **settings):
        outcomes = train_here(jobs, **settings)
        run = Run(jobs[-1].folder)
        ledger = run.ledger()
        (entry,) = ledger.training
        ledger.record(**{**dataclasses.asdict(entry), "steps": 5})
        write_json(run.ledger_path, ledger.to_json())
        return outcomes

    monkeypatch.setattr(psac.training, "train_many", with_loss)
    words = ("sweep", "mine.toml", *SHORT, "--range", "learning_rate=0.1:10")
    assert call(*words, "--expected-runs", "1.5").code == 0
    folder = place / "runs" / "sweep-mine"
    found = json.loads((folder / "results.json").read_text())
    summary = Run(folder / found["best"]).summary()
    expected = psac.tuned_epsilon(
        noise_multiplier=4.0,
        sampling_rate=32 / 200,
        steps=summary["steps"] + 5,
        delta=summary["delta"],
        expected_runs=1.5,
    )
    assert found["tuned"] == pytest.approx(expected)


def test_a_failed_run_fails_the_command(call, place, monkeypatch):
    import psac
    from psac.app.training import Outcome

    def fails(jobs, *, processes, watch):
        for job in jobs:
            watch(job, {"kind": "failed", "message": "no memory"})
        return [Outcome(job, "no memory") for job in jobs]

    monkeypatch.setattr(psac.training, "train_many", fails)
    failed = call("compare", "mine.toml", "--rule", "psac", "--repeats", "1")
    assert failed.code == 1
    assert "psac-1: failed: no memory" in failed.out


def test_ctrl_c_says_that_the_same_command_goes_on(call, place, monkeypatch):
    import psac

    def stopped(jobs, *, processes, watch):
        raise KeyboardInterrupt("0 of 2 runs are finished.")

    monkeypatch.setattr(psac.training, "train_many", stopped)
    found = call("sweep", "mine.toml", "--try", "r=0.1,0.2")
    assert found.code == 130
    assert "0 of 2 runs are finished. Run the same command to continue." in found.message
