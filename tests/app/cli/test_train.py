"""`psac train`: recipes and options, what it prints, Ctrl-C and going on."""

from __future__ import annotations

import dataclasses
import json
import signal

import pytest

from psac.app.cli.recipe_options import SETTINGS
from psac.app.training import Recipe, Run
from psac.app.training.recipe import CHOICES
from psac.sampling import SCHEMES

SHORT = ("--epochs", "0.2", "--physical-batch-size", "64")
DIRECT = (
    "--data", "records", "--model", "linear", "--noise-multiplier", "4", "--batch-size", "32",
    "--epochs", "0.2", "--learning-rate", "0.5", "--data-settings", 'classes=["0","1"]',
)  # fmt: skip


def test_every_setting_of_a_recipe_is_an_option_and_nothing_else_is(call):
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Recipe)}
    shown = call("train", "--help").out
    for name in SETTINGS:
        assert f"--{name.replace('_', '-')} " in shown


def test_help_says_which_names_an_option_takes(call):
    shown = " ".join(call("train", "--help").out.replace("│", " ").split())
    for name, known in CHOICES.items():
        about = shown[shown.index(f"--{name} ") :]
        listed = about[about.index("One of ") :].partition(".")[0]
        assert listed == f"One of {', '.join(sorted(known))}"
    listed = shown[shown.index("--sampling ") :]
    assert f"One of {', '.join(sorted(SCHEMES))}" in listed


def test_a_run_that_goes_on_with_other_settings_says_how_to_go_on(call, place):
    assert call("train", "mine.toml", *SHORT).code == 0
    refused = call("train", "mine.toml", "--epochs", "3", "--resume")
    assert refused.code == 1
    assert "epochs: 0.2 -> 3.0" in refused.message
    assert "psac train --run runs/mine --resume" in refused.message


def test_every_option_reaches_the_recipe(call, place, monkeypatch):
    """Each setting is given another value than it has, and none is lost or mixed up."""
    import psac

    other = {
        "data": "digits", "data_root": "there", "data_settings": {"size": 8, "label": "y"},
        "validation_fraction": 0.25, "test_is_public": True, "most_frequent_share": 0.6,
        "model": "mlp", "model_settings": {"hidden": [4, 2]},
        "rule": "auto_s", "r": 0.3, "bound": 0.7, "scale": 2.0, "epsilon": 5.0, "delta": 1e-3,
        "sampling": "balls-in-bins", "batch_size": 16, "epochs": 3.0, "physical_batch_size": 8,
        "copies": 2, "shift": 3,
        "optimizer": "adam", "learning_rate": 0.1, "weight_decay": 0.01, "schedule": "cosine",
        "precision": "bfloat16", "seed": 4, "device": "cpu",
    }  # fmt: skip
    assert set(SETTINGS) - set(other) == {"noise_multiplier", "momentum"}
    found = []

    def trained(recipe, folder, **_):
        found.append(recipe)
        raise KeyboardInterrupt

    monkeypatch.setattr(psac.training, "train", trained)
    words = []
    for name, value in other.items():
        pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else [value]
        pairs = [] if value is True else pairs
        words += [f"--{name.replace('_', '-')}"] if value is True else []
        words += [word for pair in pairs for word in (f"--{name.replace('_', '-')}", pair)]
    call("train", "mine.toml", *words)
    call("train", "mine.toml", "--momentum", "0.1", "--noise-multiplier", "2")
    call("train", "mine.toml", "--label", "income", "--data-settings", "size=8")
    assert dataclasses.asdict(found[0]) == other | {"noise_multiplier": None, "momentum": 0.0}
    assert (found[1].momentum, found[1].noise_multiplier) == (0.1, 2.0)
    assert found[2].data_settings == {"classes": ["0", "1"], "label": "income", "size": 8}


def test_a_run_can_be_described_by_options_alone(call, place):
    done = call("train", *DIRECT)
    assert done.code == 0, done.err
    assert Run(place / "runs" / "records-linear").finished
    assert "delta 5e-4 = 1 / (10 records)" in done.out


def test_a_network_of_ones_own_is_trained_and_predicts(call, place):
    (place / "mine.py").write_text(
        "from torch import nn\ndef build(classes): return nn.Linear(4, classes)\n"
    )
    done = call("train", "mine.toml", "--model", "mine.py:build", "--run", "run", *SHORT)
    assert done.code == 0, done.err
    (place / "mine.py").unlink()
    assert call("report", "run").code == 0
    told = call("predict", "run", "records/test.npz")
    assert told.code == 0, told.err
    assert len(told.out.splitlines()) == 51


def test_a_run_is_told_in_lines_where_there_is_no_terminal(call, place):
    done = call("train", "mine.toml", "--run", "first", *SHORT)
    assert done.code == 0, done.err
    head, *lines, result, page = done.out.splitlines()
    assert head.startswith(
        "mine: PSAC(r=0.2, bound=1.0, scale=1.0) on 200 records, poisson batches"
    )
    assert len(lines) == 1
    public, sensitive = lines[0].split("; not private: ")
    assert public.startswith("  step 1 of 1: epsilon 0.")
    assert "accuracy" in sensitive  # nobody called these test records public
    assert "samples/s" in sensitive
    assert "loss 0.6" in sensitive
    assert "weights " in sensitive
    assert "loss" not in public
    assert result.startswith("accuracy ")
    assert page == "Report: first/report.html"
    assert (place / "first" / "report.html").exists()


def test_accuracy_on_held_out_private_records_is_said_to_be_not_private(call, place):
    done = call("train", "mine.toml", "--validation-fraction", "0.2", *SHORT)
    public, sensitive = done.out.splitlines()[1].split("; not private: ")
    assert "accuracy" not in public
    assert "on validation records" in sensitive
    assert "on private validation records (not private: do not publish), " in done.out


def test_quiet_prints_one_line(call, place):
    done = call("train", "mine.toml", "--quiet", *SHORT)
    assert done.code == 0
    assert done.out.startswith("accuracy ")
    assert done.out.endswith("report runs/mine/report.html\n")
    assert done.out.count("\n") == 1


def test_json_prints_the_metrics_and_the_result_and_nothing_else(call, place):
    done = call("train", "mine.toml", "--json", *SHORT)
    *lines, result = [json.loads(line) for line in done.out.splitlines()]
    assert lines == Run("runs/mine").metrics()
    assert result["kind"] == "result"
    assert result["epsilon"] == Run("runs/mine").summary()["epsilon"]
    assert result["isolation"] == "by construction (vmap)"
    assert result["report"] == "runs/mine/report.html"


def test_an_occupied_folder_is_a_failure_and_says_how_to_go_on(call, place):
    assert call("train", "mine.toml", *SHORT).code == 0
    again = call("train", "mine.toml", *SHORT)
    assert again.code == 1
    assert "runs/mine already holds a run" in again.message
    assert "--resume" in again.message
    assert call("train", "--run", "runs/mine", "--resume").code == 0  # finished: as it is


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fashion-minst-cnn",), "Did you mean 'fashion-mnist-cnn'?"),
        (("none.toml",), "there is no file none.toml"),
        (("mine.toml", "--rule", "psca"), "Did you mean 'psac'?"),
        (("mine.toml", "--data", "fashon-mnist"), "Did you mean 'fashion-mnist'?"),
        (("mine.toml", "--model", "resnet"), "Did you mean 'resnet9'?"),
        (("mine.toml", "--sampling", "poison"), "Did you mean 'poisson'?"),
        (("mine.toml", "--epochs", "-1"), "Invalid value: --epochs is -1.0: allowed is"),
        (("mine.toml", "--batch-size", "0"), "Invalid value: --batch-size is 0"),
        ((*DIRECT, "--r", "-1"), "Invalid value: --r is -1.0"),
        (("--run", "nothere", "--resume"), "nothere holds no run to resume"),
        (("mine.toml", "--epochs", "many"), "unable to parse string as a number"),
        (("mine.toml", "--epoch", "1"), "No such option: --epoch"),
        (("mine.toml", "--data-settings", "size"), "give NAME=VALUE"),
        (("mine.toml", "--quiet", "--json"), "exclude each other"),
        ((), "give a recipe"),
        (("--data", "records"), "--model, --batch-size, --epochs, --learning-rate missing"),
        (("--resume",), "give a recipe"),
    ],
)
def test_what_cannot_be_done_as_typed_is_refused_with_two(call, place, words, message):
    refused = call("train", *words)
    assert refused.code == 2
    assert message in refused.message
    assert "Traceback" not in refused.err
    assert not (place / "runs").exists()


@pytest.mark.parametrize(("signals", "saved"), [(1, 1), (2, 0)])
def test_the_request_of_a_scheduler_to_end_saves_and_a_second_one_ends_at_once(
    call, place, monkeypatch, signals, saved
):
    left = [signal.SIGTERM] * signals

    def strike(*_):
        while left:
            signal.raise_signal(left.pop())

    monkeypatch.setattr("psac.app.training.observer.Silent.stepped", strike)
    stopped = call("train", "mine.toml", "--quiet")
    assert stopped.code == 128 + (signal.SIGTERM if signals == 1 else signal.SIGINT)
    assert stopped.out == ""
    assert f"Stopped and saved at step {saved}." in stopped.err
    assert "psac train --run runs/mine --resume" in stopped.err
    assert ("are lost, but count as spent" in stopped.err) == (signals == 2)
    assert Run("runs/mine").ledger().steps == saved


def test_ctrl_c_saves_and_the_command_that_is_printed_goes_on(place, start):
    process = start("train", "mine.toml", "--epochs", "400", "--json", folder=place)
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["kind"] != "step":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    stopped = json.loads(out.splitlines()[-1])
    assert stopped["kind"] == "stopped"
    assert 0 < stopped["step"] == Run(place / "runs" / "mine").ledger().steps < 2500
    assert stopped["go_on"] == "psac train --run runs/mine --resume"
    assert "Stopped and saved at step" in err
    assert stopped["go_on"] in err
    assert "Traceback" not in err
    resumed = start(*stopped["go_on"].split()[1:], "--json", folder=place)
    assert resumed.stdout is not None
    first = json.loads(resumed.stdout.readline())
    assert (first["resumed"], first["step"]) == (True, stopped["step"])
    resumed.send_signal(signal.SIGINT)
    out, _ = resumed.communicate(timeout=300)
    assert json.loads(out.splitlines()[-1])["step"] >= stopped["step"]


def test_a_full_disk_is_said_with_the_folder_and_how_to_go_on(call, place, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psac.app.training.trainer.Trainer._evaluate", full)
    failed = call("train", "mine.toml", *SHORT)
    assert failed.code == 1
    assert "No space left on device (while writing to runs/mine)" in failed.message
    assert "psac train --run runs/mine --resume" in failed.message


@pytest.mark.filterwarnings("always::psac.InsecureNoiseWarning")
def test_a_seed_is_said_even_where_nothing_else_is(call, place):
    assert "not private" in call("train", "mine.toml", "--seed", "1", "--json", *SHORT).err


def test_lines_without_private_figures_do_not_speak_of_them(call, place, monkeypatch):
    monkeypatch.setattr("psac.app.training.trainer.STEP_LINES", 1)  # no step is logged at first
    done = call("train", "mine.toml", "--run", "run", "--epochs", "2")
    told = [line for line in done.out.splitlines() if line.startswith("  step ")]
    assert told
    assert not any(line.rstrip().endswith("not private:") for line in told)


def test_a_log_for_tensorboard_is_beside_the_run(call, place):
    done = call("train", "mine.toml", "--tensorboard", *SHORT)
    assert done.code == 0, done.err
    assert len(list((place / "runs" / "mine" / "tensorboard").glob("events.*"))) == 1


@pytest.mark.parametrize("seconds", [30.0, 0.0])
def test_lines_come_by_the_clock_too(call, place, monkeypatch, seconds):
    monkeypatch.setattr("psac.app.cli.views.SECONDS_BETWEEN_LINES", seconds)
    done = call("train", "mine.toml", "--run", "run", "--epochs", "0.5")
    told = [line for line in done.out.splitlines() if line.startswith("  step ")]
    assert len(told) == (1 if seconds else 4)  # three steps and an evaluation


def test_a_seeded_run_says_that_it_is_not_private(place, start):
    process = start("train", "mine.toml", "--seed", "1", "--epochs", "0.2", folder=place)
    out, err = process.communicate(timeout=300)
    assert "The seed makes this run repeatable and NOT private." in out
    assert "NOT private (seeded)" in out
    assert err == ""  # it is said once
    environment = json.loads((place / "runs" / "mine" / "environment.json").read_text())
    assert environment["command"] == "psac train mine.toml --seed 1 --epochs 0.2"
