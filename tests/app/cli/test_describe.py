"""`psac data describe`, and a whole session with a table of patients that begins with it."""

from __future__ import annotations

import collections
import csv
import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psac.app.cli.app import app
from psac.app.toml import read
from psac.app.training import Run

HEADER = ["patient_id", "age", "bmi", "ward", "admitted", "note", "back"]
TRAIN = [
    *("--validation-fraction", "0.2", "--model", "linear", "--epsilon", "2", "--delta", "1e-5"),
    *("--batch-size", "400", "--epochs", "2", "--learning-rate", "1", "--quiet"),
]


def psac(*arguments: str | Path, answers: str = "") -> str:
    """What a command that succeeds prints."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=answers)
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    return " ".join(result.output.split())


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code != 0
    return " ".join(f"{result.output} {result.exception}".split())


def patients() -> list[list[str]]:
    """5,000 of them: ids, gaps, dates, notes, a rare category and a mistyped number."""
    draw, rows = random.Random(1), []
    for k in range(5000):
        age = draw.randint(18, 95)
        date = f"20{draw.randint(15, 24)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        ward = draw.choice(["surgery", "cardiology", "maternity"])
        note = f"patient {k} was found to be in room {draw.randint(0, 10**6)}"
        bmi = "NA" if draw.random() < 0.05 else f"{draw.gauss(26, 4):.5f}"
        back = "yes" if age + draw.gauss(0, 10) > 55 else "no"
        rows.append([f"P{k:05}", "" if draw.random() < 0.02 else str(age), bmi, ward, date])
        rows[-1] += [note, back]
    rows[13][3], rows[77][1] = "leper colony", "12o"
    return rows


def write(file: Path, rows: list[list[str]]) -> None:
    with open(file, "w", newline="") as content:
        csv.writer(content).writerows([HEADER, *rows])


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "patients.csv", patients())
    return tmp_path


def test_a_described_table_marks_all_that_was_seen(here):
    said = psac("data", "describe", "patients.csv", "--label", "back", "--yes")
    assert "age: 1 cell is not a number: '12o' in record 78" in said
    text = (here / "patients.toml").read_text()
    mark = "seen in private data: confirm that it is public, or replace it"
    values = [
        line for line in text.splitlines() if re.match(r"classes|ranges|dates|categ|missing", line)
    ]
    assert len(values) == 7
    assert all(line.endswith(mark) for line in values)
    schema = read(here / "patients.toml")
    assert schema["unconfirmed"] == ["back", "age", "bmi", "ward", "admitted"]
    assert schema["ignore"] == ["patient_id", "note"]
    assert schema["ranges"]["age"] == [10, 100]
    assert schema["dates"] == {"admitted": ["2015-01-01", "2025-01-01"]}
    assert "leper colony" not in text


def test_a_schema_is_not_overwritten_without_force(here):
    psac("data", "describe", "patients.csv", "--label", "back", "--yes")
    assert "--force" in refused("data", "describe", "patients.csv", "--label", "back", "--yes")
    psac("data", "describe", "patients.csv", "--label", "back", "--yes", "--force")
    assert "--yes needs --label" in refused("data", "describe", "patients.csv", "--yes", "--force")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("head.csv", b"age,back\n", "head.csv has no records"),
        ("t.xlsx", b"PK", "t.xlsx is not a table. Pass a file that ends in .csv, .tsv"),
        ("latin.csv", "age,back\né,no\n".encode("latin1"), "it is not UTF-8). Save it as that"),
        ("folder/train.csv", b"age,back\n1,no\n", "folder is a folder. Pass a table in it"),
    ],
)
def test_what_is_no_table_is_told_what_it_is(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / name).write_bytes(content)
    said = refused("data", "describe", name.partition("/")[0], "--label", "back", "--yes")
    assert message in " ".join(said.replace("│", " ").split())
    assert not list(tmp_path.glob("*.toml"))


def test_a_column_that_identifies_records_is_no_column_of_classes(here):
    said = refused("data", "describe", "patients.csv", "--label", "patient_id", "--yes")
    assert "has 5,000 distinct values in 5,000 records" in " ".join(said.replace("│", " ").split())
    assert not (here / "patients.toml").exists()
    train = ("train", "--data", "patients.csv", "--label", "patient_id", *TRAIN)
    for unsafe in ("true", "false"):
        said = refused(*train, "--data-settings", f"unsafe={unsafe}", "--run", "run")
        assert "cannot hold the classes" in said
        assert not re.search(r"P\d{5}", said)


def test_answers_are_the_owners_own_word(here):
    answers = [
        *("back", "ignore"),
        *("number", "120 0", "0 120"),  # the first answer is the wrong way round
        *("number", ""),
        *("categories", "surgery, cardiology, maternity"),
        *("date", "2010-01-01 2030-01-01"),
        *("ignore", "no, yes"),
    ]
    psac("data", "describe", "patients.csv", answers="\n".join(answers) + "\n")
    schema = read(here / "patients.toml")
    assert schema["unconfirmed"] == ["bmi"]
    assert schema["ranges"]["age"] == [0, 120]
    assert schema["categories"] == {"ward": ["surgery", "cardiology", "maternity"]}
    assert schema["dates"] == {"admitted": ["2010-01-01", "2030-01-01"]}
    assert schema["classes"] == ["no", "yes"]


def unique_cells() -> set[str]:
    """Those that occur once in the table."""
    counts = collections.Counter(cell for row in patients() for cell in row)
    return {cell for cell, count in counts.items() if count == 1 and cell not in ("12o", "")}


@pytest.mark.filterwarnings("ignore:.*have a category that the model does not know")
@pytest.mark.parametrize("private", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_session_publishes_no_cell_that_occurs_once(here, private):
    psac("data", "describe", "patients.csv", "--label", "back", "--yes")
    train = ["train", "--data", "patients.csv", "--schema", "patients.toml", *TRAIN]
    assert "unconfirmed" in refused(*train, "--run", "run")
    text = (here / "patients.toml").read_text()
    edited = re.sub(r"unconfirmed = .*", "unconfirmed = []", text)
    if private:
        edited = re.sub(r"(ranges\.\w+|categories\.ward) = .*", r'\1 = "private"', edited)
        train += ["--data-settings", "privacy_share=0.3"]
    (here / "patients.toml").write_text(edited)
    assert "'12o' in record 78" in refused(*train, "--run", "run")
    assert not (here / "run" / "recipe.toml").exists()
    rows = patients()
    rows[77][1] = "12"
    write(here / "patients.csv", rows)
    psac(*train, "--run", "run")
    run = Run(here / "run")
    assert run.ledger().epsilon(1e-5) <= 2.0
    assert len(run.ledger().releases) == (2 if private else 0)
    assert run.ledger().warnings == ()
    psac("predict", "run", "patients.csv", "--output", "answers.csv")
    with open(here / "answers.csv") as content:
        assert len(list(csv.DictReader(content))) == 5000
    psac("report", "run", "--publish")
    published = [run.model_path, run.ledger_path, run.recipe_path, *here.glob("run/*.html")]
    published += [run.released_path] if private else []
    unique = {cell.encode() for cell in unique_cells() if len(cell) > 3}
    assert len(unique) > 10_000
    for file in published:
        content = file.read_bytes()
        assert [cell for cell in unique if cell in content] == [], file
