"""The example scripts run, within seconds, and show what they promise."""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.usefixtures("same_draws_each_time")


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Runs an example as a script, in a folder of its own, and returns what it prints."""

    def run(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy (\d+\.\d)%", text)]


def test_a_loop_of_ones_own_trains_privately(printed):
    text = printed("train_privately.py")
    assert re.search(r"epoch 4: accuracy 9\d\.\d%, epsilon (1\.99\d|2\.000)", text)
    assert "privacy ledger: 156 steps" in text


def test_data_of_ones_own_becomes_a_model_and_a_page(printed, tmp_path):
    text = printed("own_data.py")
    assert accuracies(text)[0] > 75
    assert re.search(r"epsilon (1\.99\d|2\.000)\n", text)
    (page,) = tmp_path.rglob("report-public.html")
    assert str(page) in text


def test_lora_trains_a_few_parameters_of_many(printed):
    text = printed("fine_tune_lora.py")
    assert "trainable params: 4,226 || all params: 93,252" in text
    assert accuracies(text)[-1] > 65
    assert re.search(r"epsilon (2\.99\d|3\.000)\n", text)


def test_the_adaptive_scale_learns_where_the_fixed_one_cannot(printed):
    text = printed("adaptive_scale.py")
    fixed, adaptive = text.split("AdaptivePSAC(")
    # drowned in noise, the fixed one goes up and down
    assert min(accuracies(fixed)) < 80 < 90 < min(accuracies(adaptive))
    assert "scale 1\n" in fixed
    assert float(re.findall(r"scale (\S+)\n", adaptive)[-1]) < 0.01
    assert len(re.findall(r"epsilon (2\.99\d|3\.000)\n", text)) == 2


def test_the_audit_tells_private_training_from_ordinary(printed):
    text = printed("audit_a_run.py")
    assert "passed" in text
    step, private, ordinary = map(float, re.findall(r"shown epsilon >= (\d+\.\d+)", text))
    assert 3 < step <= 4.38
    assert private < 3
    assert private < ordinary


def test_a_vision_transformer_is_checked(printed):
    text = printed("check_a_model.py")
    assert re.search(r"can be trained privately +yes\n", text)
    assert re.search(r"records are isolated +by construction \(torch\.vmap\)\n", text)
    assert re.search(r"  token +1x1x64 ", text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_has_a_test(path):
    assert len(path.read_text().splitlines()) <= 60
    assert f'printed("{path.name}")' in Path(__file__).read_text()
