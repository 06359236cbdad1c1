"""What the README and the examples show, runs."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import psac

ROOT = Path(__file__).parents[1]


def test_the_code_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    exec("\n".join(blocks), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert re.search(
        r"accuracy 9\d\.\d% at epsilon 2\.99\d|accuracy 9\d\.\d% at epsilon 3\.000", printed
    )
    assert "torch.Size([16, 4]) torch.Size([32])" in printed
    assert "can be trained privately     yes" in printed


def test_the_commands_of_the_readme_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())
    assert "test" in named
    assert set(named) <= set(targets)


def test_files_that_documents_link_to_exist():
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(((?!http)[^)#]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_the_example_trains_privately(capsys):
    runpy.run_path(str(ROOT / "examples" / "train_privately.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"epoch 4: accuracy 9\d\.\d%, epsilon (1\.99\d|2\.000)", printed)
    assert "privacy ledger: 156 steps" in printed


NOISE_FOR_THREE = {
    "`Poisson()`": ("poisson", 512 / 60_000),
    "`BallsInBins()`": ("balls-in-bins", 1 / 118),
    "`FixedSize()`": ("fixed-size-without-replacement", 512 / 60_000),
    "`FixedSize(replacement=True)`": ("fixed-size-with-replacement", 512 / 60_000),
}


@pytest.mark.parametrize("row", NOISE_FOR_THREE)
def test_the_table_of_prices_is_what_the_accountant_says(row):
    sampling, rate = NOISE_FOR_THREE[row]
    steps = psac.sampling.steps_in(40, 118, 1) if sampling == "balls-in-bins" else 4687
    noise = psac.calibrate(
        epsilon=3.0,
        delta=1e-5,
        sampling_rate=rate,
        steps=steps,
        sampling=sampling,
        num_records=60_000,
    )
    line = next(
        line
        for line in (ROOT / "docs" / "private.md").read_text().splitlines()
        if line.startswith(f"| {row}")
    )
    assert line.endswith(f"| {noise:.2f} |")


def test_the_example_checks_a_vision_transformer(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_a_model.py"])
    runpy.run_path(str(ROOT / "examples" / "check_a_model.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "can be trained privately     yes" in printed
    assert "token" in printed
