"""The command line: what it prints, writes and returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import psac
from psac.cli.app import app

ROOT = Path(__file__).parents[2]
RECIPE = """
data = "{data}"
model = "linear"
epsilon = 4.0
delta = 1e-4
batch_size = 32
epochs = 2
learning_rate = 0.5
"""


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def called(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "psac", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def recipe(tmp_path):
    import numpy as np

    generator = np.random.default_rng(0)
    for split, count in (("train", 200), ("test", 50)):
        y = generator.integers(0, 2, count)
        x = generator.normal(size=(count, 4)).astype("float32") + 2 * y[:, None]
        np.savez(tmp_path / f"{split}.npz", x=x.astype("float32"), y=y)
    (tmp_path / "mine.toml").write_text(RECIPE.format(data=tmp_path))
    return tmp_path / "mine.toml"


def test_training_makes_a_run_and_its_page(recipe, tmp_path):
    result = called("train", str(recipe), "--run", "first", "--epochs", "1", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert (tmp_path / "first" / "report.html").exists()
    again = called("train", str(recipe), "--run", "first", folder=tmp_path)
    assert again.returncode == 1
    assert "Traceback" not in again.stderr
    page = called("report", "first", "--publish", folder=tmp_path)
    assert page.returncode == 0
    assert (tmp_path / "first" / "report-public.html").exists()


def test_errors_have_no_traceback_unless_it_is_asked_for(tmp_path):
    result = called("train", "fashion-minst-cnn", folder=tmp_path)
    assert result.returncode == 1
    assert "fashion-mnist-cnn" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in called("--debug", "train", "no.toml", folder=tmp_path).stderr


def test_usage_errors_exit_with_two():
    assert run("train").exit_code == 2
    assert run("nothing").exit_code == 2


def test_noise_and_epsilon_are_those_of_the_library():
    plan = ("--delta", "1e-5", "--sampling-rate", "0.01", "--steps", "100")
    result = run("epsilon", "1.0", *plan)
    expected = psac.epsilon(noise_multiplier=1.0, delta=1e-5, sampling_rate=0.01, steps=100)
    assert float(result.stdout) == pytest.approx(expected, rel=1e-5)
    result = run("calibrate", "2.0", *plan)
    assert 0.3 < float(result.stdout) < 2


def test_recipes_data_and_version_are_listed():
    assert "fashion-mnist-cnn" in run("recipes").stdout
    assert "cifar10" in run("data", "list").stdout
    assert run("version").stdout.strip() == psac.__version__


def test_the_commands_are_those_that_users_know():
    names = {command.name for command in app.registered_commands}
    assert names == {
        "train",
        "report",
        "demo",
        "calibrate",
        "epsilon",
        "audit",
        "recipes",
        "version",
        "theory",
    }
