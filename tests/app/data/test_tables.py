"""The user's own tables: what is stated, what is refused, and what each cell becomes."""

from __future__ import annotations

import datetime
import subprocess
import sys

import numpy as np
import pytest
import torch

import psac
from psac.app.data import (
    DataNotFound,
    TensorRecords,
    TextRecords,
    from_csv,
    from_parquet,
    from_table,
)
from psac.app.data.tables.cells import Cells
from psac.app.data.tables.columns import Column
from psac.app.data.tables.guess import guess
from psac.app.data.tables.loading import new_records
from psac.app.data.tables.reader import table_of
from psac.app.data.tables.schema_text import lines_of
from psac.app.toml import tomllib
from tests.app.data.small_files import write

PEOPLE = "age,city,income\n20,Rome,low\n40,Oslo,high\n60,Rome,low\n"
SAID = {
    "label": "income",
    "classes": ["high", "low"],
    "ranges": {"age": [0, 50]},
    "categories": {"city": ["Oslo", "Paris", "Rome"]},
}


def features(columns: dict, **said) -> list[list[float]]:
    columns = {**columns, "y": ["a"] * len(next(iter(columns.values())))}
    return from_table(columns, label="y", classes=["a", "b"], **said).tensors[0].tolist()


# ---- What is stated


def test_numbers_are_scaled_by_public_bounds_and_words_are_one_hot(tmp_path):
    records = from_csv(write(tmp_path, {"people.csv": PEOPLE}) / "people.csv", **SAID)
    assert isinstance(records, TensorRecords)
    assert (records.name, records.classes, records.unsafe) == ("people", ("high", "low"), ())
    assert records.released is None
    expected = torch.tensor([[0.4, 0, 0, 1], [0.8, 1, 0, 0], [1.0, 0, 0, 1]])
    assert torch.allclose(records.tensors[0], expected)
    assert records.tensors[1].tolist() == [1, 0, 1]


@pytest.mark.parametrize("left_out", ["classes", "ranges", "categories"])
def test_what_is_not_stated_is_refused_with_lines_that_can_be_pasted(tmp_path, left_out):
    file = write(tmp_path, {"people.csv": PEOPLE}) / "people.csv"
    said = {name: value for name, value in SAID.items() if name != left_out}
    with pytest.raises(ValueError, match="nothing states") as refused:
        from_csv(file, **said)
    lines = str(refused.value).split("\n\n")[1]
    assert "seen in private data: confirm that it is public, or replace it" in lines
    assert left_out in lines
    (tmp_path / "pasted.toml").write_text(lines)
    assert len(from_csv(file, schema=tmp_path / "pasted.toml", **said)) == 3


@pytest.mark.parametrize(
    "left_out, sentence",
    [
        ("classes", "The classes of column 'income' were read off the private records."),
        (
            "ranges",
            "The lowest and highest values of column 'age' were read off the private records.",
        ),
        ("categories", "The categories of column 'city' were read off the private records."),
    ],
)
def test_what_is_read_off_the_records_is_told_by_records_ledger_and_run(left_out, sentence):
    people = {"age": [20, 40, 60], "city": ["R", "O", "R"], "income": ["low", "high", "low"]}
    said = SAID | {"categories": {"city": ["R", "O"]}}
    said = {name: value for name, value in said.items() if name != left_out}
    with pytest.warns(psac.PrivacyWarning, match=sentence[:-1]) as caught:
        records = from_table(people, **said, unsafe=True)
    assert caught[0].filename == __file__
    assert records.unsafe == (sentence,)
    model = torch.nn.Linear(records.tensors[0].shape[1], 2)
    for data in (records, torch.utils.data.Subset(records, [0, 1]), records.tensors[0]):
        with psac.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            data,
            batch_size=2,
            steps=1,
            noise_multiplier=1.0,
        ) as private:
            assert sentence in private.ledger.warnings


def test_unconfirmed_values_do_not_train_unless_it_is_said_to_be_unsafe():
    people = {"age": [20, 40], "city": ["Rome", "Oslo"], "income": ["low", "high"]}
    said = SAID | {"unconfirmed": ["age", "income"]}
    with pytest.raises(
        ValueError, match=r"lists 'age', 'income' as unconfirmed.* were read off .*unsafe = true"
    ):
        from_table(people, **said)
    with pytest.warns(psac.PrivacyWarning, match="read off"):
        records = from_table(people, **said, unsafe=True)
    assert [sentence.split("'")[1] for sentence in records.unsafe] == ["age", "income"]


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
@pytest.mark.parametrize("ids", [list(range(30)), [f"P{k}" for k in range(30)]])
@pytest.mark.parametrize("said", [{"unsafe": True}, {"ranges": "private"}])
def test_ids_are_refused_with_the_line_that_ignores_them(ids, said):
    table = {"id": ids, "x": [0.5 + k % 3 for k in range(30)], "y": ["a", "b"] * 15}
    with pytest.raises(ValueError, match=r'like an id(?s:.*)ignore = \["id"\]'):
        from_table(table, label="y", classes=["a", "b"], **said)
    with pytest.raises(ValueError, match=r'like an id\nignore = \["id"\]'):
        from_table(table, label="y", classes=["a", "b"])


def test_floats_that_all_differ_are_no_ids():
    table = {"x": [k + 0.5 for k in range(30)], "y": ["a", "b"] * 15}
    with pytest.raises(ValueError, match=r"ranges\.x = \[0, 30\]"):
        from_table(table, label="y", classes=["a", "b"])


def test_text_is_named_as_such():
    notes = [f"patient {k} felt rather {'well' if k % 2 else 'bad'} today" for k in range(60)]
    with pytest.raises(
        ValueError,
        match=r'text, which needs a language model \(psac train --text\)\nignore = \["note"\]',
    ):
        from_table({"note": notes, "y": ["a", "b"] * 30}, label="y", classes=["a", "b"])


def test_a_mistyped_number_does_not_make_categories_of_a_column():
    ages = [*map(str, range(20, 80)), *map(str, range(20, 60)), "12o"]
    table = {"age": ages, "y": ["a"] * 101}
    with pytest.raises(ValueError, match=r"ranges\.age = \[20, 80\]"):
        from_table(table, label="y", classes=["a", "b"])
    with pytest.raises(ValueError, match="age: 1 cell is not a number: '12o' in record 101"):
        features({"age": ages}, ranges={"age": [0, 100]})


# ---- What a cell becomes


def test_a_category_that_is_not_listed_is_all_zeros():
    cells = {"c": ["red", "", "blue"]}
    assert features(cells, categories={"c": ["blue", "green"]}) == [[0, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("gap", ["", "NA", None, "NaN", " ?", float("nan")])
def test_missing_cells_are_as_stated(gap):
    cells, ranges = {"x": [5, gap]}, {"x": [0, 10]}
    assert features(cells, ranges=ranges, missing="indicator") == [[0.5, 0], [0, 1]]
    assert features(cells, ranges=ranges, missing={"x": "indicator"}) == [[0.5, 0], [0, 1]]
    assert features(cells, ranges=ranges, missing={"x": 2}) == [[0.5], [pytest.approx(0.2)]]
    with pytest.raises(ValueError, match=r"x: 1 cell is empty, in record 2; .*missing\.x = "):
        features(cells, ranges=ranges)


def test_missing_categories_are_as_stated():
    cells, said = {"c": ["a", ""]}, {"categories": {"c": ["a", "b"]}}
    assert features(cells, **said, missing={"c": "indicator"}) == [[1, 0, 0], [0, 0, 1]]
    assert features(cells, **said, missing={"c": "b"}) == [[1, 0], [0, 1]]
    assert features({"c": ["NA", ""]}, categories={"c": ["NA"]}) == [[1], [0]]


@pytest.mark.parametrize(
    "said, message",
    [
        ({"ranges": {"x": [0, 9]}, "missing": {"x": "mean"}}, "'mean': pass 'indicator', or a num"),
        ({"categories": {"x": ["1"]}, "missing": {"x": "9"}}, "'9': pass .*, or a category of 1"),
        (
            {"dates": {"x": ["2020-01-01", "2021-01-01"]}, "missing": {"x": 3}},
            "3: pass 'indicator', or a date such as",
        ),
        ({"unsafe": True, "missing": {"x": "mean"}}, "'mean': pass 'indicator', or a number"),
    ],
)
def test_a_constant_that_does_not_fit_its_column_is_refused(said, message):
    with pytest.raises(ValueError, match=r"missing\['x'\] is " + message):
        features({"x": [1, 1]}, **said)


def test_a_constant_that_was_not_released_is_none_of_the_categories():
    column = Column(kind="categories", categories=("a",), missing="rare")
    assert column.features("x", Cells.of(["a", ""]))[0].tolist() == [[1], [0]]


def test_dates_are_scaled_between_public_days():
    for cells in (
        ["2020-01-01", "2020-01-11", "2030-01-01"],
        [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 11), datetime.date(2030, 1, 1)],
    ):
        found = features({"d": cells}, dates={"d": ["2020-01-01", "2020-01-21"]})
        assert found == [[0], [0.5], [1]]
    german = {"d": ["01.01.2020", "11.01.2020"]}
    said = {"d": ["2020-01-01", "2020-01-21", "%d.%m.%Y"]}
    assert features(german, dates=said) == [[0], [0.5]]
    with pytest.raises(
        ValueError, match=r"d: 2 cells are not dates: '01\.01\.2020', '11\.01\.2020'"
    ):
        features(german, dates={"d": ["2020-01-01", "2020-01-21"]})


def test_all_bad_cells_of_a_table_are_reported_at_once(tmp_path):
    rows = "".join(f"{k},{k},a\n" for k in range(10))
    content = f"x,z,y\n{rows}12o,1e999,a\n,?,b\nten,3,\n4,inf,c\n"
    said = {"label": "y", "classes": ["a", "b"], "ranges": {"x": [0, 9], "z": [0, 9]}}
    with pytest.raises(ValueError, match="cannot be used") as refused:
        from_csv(write(tmp_path, {"t.csv": content}) / "t.csv", **said)
    assert str(refused.value).splitlines()[1:] == [
        "  y: 1 label is empty, in record 13",
        "  y: 1 label is not among the classes (a, b): 'c' in record 14",
        "  x: 2 cells are not numbers: '12o', 'ten' in records 11, 13",
        '  x: 1 cell is empty, in record 12; add missing.x = "indicator", or a constant that '
        "replaces them",
        "  z: 2 cells are not numbers: '1e999', 'inf' in records 11, 14",
        '  z: 1 cell is empty, in record 12; add missing.z = "indicator", or a constant that '
        "replaces them",
    ]


def test_a_feature_depends_on_its_own_cell_alone():
    said = {"ranges": {"x": [0, 10]}, "categories": {"c": ["a", "b"]}, "missing": "indicator"}
    rows = [(1, "a"), ("", "z"), (99, ""), (-3, "b")]
    together = features({"x": [x for x, _ in rows], "c": [c for _, c in rows]}, **said)
    assert together == [features({"x": [x], "c": [c]}, **said)[0] for x, c in rows]


def test_a_column_of_text_gives_texts(tmp_path):
    content = '\ufefftext,n,label\n"a, b",1,yes\nc,2,no\n'
    file = write(tmp_path, {"t.csv": content}) / "t.csv"
    records = from_csv(file, label="label", text="text", classes=["no", "yes"])
    assert isinstance(records, TextRecords)
    assert list(records) == [{"text": "a, b", "label": 1}, {"text": "c", "label": 0}]


# ---- A second table


def test_columns_of_a_second_table_are_found_by_their_names(tmp_path):
    moved = "city,income,age\nRome,low,20\nOslo,high,40\nRome,low,60\n"
    write(tmp_path, {"people.csv": PEOPLE, "moved.csv": moved, "more.csv": f"id,{PEOPLE}"})
    people = from_csv(tmp_path / "people.csv", **SAID)
    again = from_csv(
        tmp_path / "moved.csv", label="income", classes=people.classes, columns=people.columns
    )
    assert torch.equal(again.tensors[0], people.tensors[0])
    for content, message in (
        ("years,city,income\n1,Rome,low\n", "'age' missing, 'years' unknown"),
        ("age,city,id,income\n1,Rome,7,low\n", "'id' unknown"),
    ):
        write(tmp_path, {"t.csv": content})
        with pytest.raises(ValueError, match=message):
            from_csv(tmp_path / "t.csv", **SAID, columns=people.columns)
    with pytest.raises(ValueError, match=r"such as train\.columns"):
        from_csv(tmp_path / "people.csv", **SAID, columns=["age"])


def test_new_records_keep_their_other_columns_and_count_unknown_categories():
    columns = from_table({"age": [1], "city": ["Rome"], "income": ["low"]}, **SAID).columns
    new = {"id": ["x", "y"], "city": ["Bonn", ""], "age": [25, 50], "income": ["?", 1.0]}
    found = new_records(new, columns)
    assert found.inputs.tolist() == [[0.5, 0, 0, 0], [1, 0, 0, 0]]
    assert found.others == {"id": ["x", "y"], "income": ["?", "1.0"]}
    assert found.unknown == {"city": 1}


# ---- Files and frames


FILES = {
    "quoted": 'a,b,y\n"x, ""z""",1,u\n"two\nlines",2,v\n',
    "windows": "a,b,y\r\nx,1,u\r\n\r\nz,2,v\r\n",
    "mark": "\ufeffa,b,y\n x ,01,u\n",
    "no end": "a,b,y\nx,1,u",
    "empty cells": 'a,b,y\n,"",u\nNA,null,v\n',
    "header": "a,b,y\n",
    "quote inside": 'a,b,y\nx"z,1,u\n',
}


@pytest.mark.parametrize("name", FILES)
def test_pyarrow_and_the_standard_library_read_the_same_cells(tmp_path, monkeypatch, name):
    pytest.importorskip("pyarrow")
    file = write(tmp_path, {"t.csv": FILES[name]}) / "t.csv"

    def cells() -> dict[str, list]:
        columns = table_of(file).columns.items()
        return {name: [c.values[k] for k in c.codes] for name, c in columns}

    fast = cells()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cells() == fast


@pytest.mark.parametrize("content", ["x,y\n1,a,b\n2,b\n3\n", 'x,y\n1,"a\n'])
def test_records_with_other_numbers_of_fields_are_all_counted(tmp_path, content):
    write(tmp_path, {"t.csv": content})
    with pytest.raises(ValueError, match=r"records do not have as many fields|nothing states"):
        from_csv(tmp_path / "t.csv", label="y")


def test_one_reader_for_text_parquet_and_frames(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"age": [20, 40], "city": ["Rome", "Oslo"], "income": [1, 0]})
    parquet.write_table(table, tmp_path / "t.parquet")
    rows = "age,city,income\n20,Rome,1\n40,Oslo,0\n"
    write(tmp_path, {"t.csv": rows, "t.tsv": rows.replace(",", "\t")})
    said = SAID | {"classes": [0, 1]}
    first = from_csv(tmp_path / "t.csv", **said)
    others = [from_parquet(tmp_path / "t.parquet", **said), from_table(table, **said)]
    others += [from_csv(tmp_path / "t.tsv", **said), from_table(table.to_pydict(), **said)]
    for other in others:
        assert torch.equal(other.tensors[0], first.tensors[0])
        assert torch.equal(other.tensors[1], first.tensors[1])
    write(tmp_path, {"broken.parquet": b"PAR1 no"})
    with pytest.raises(DataNotFound, match=r"broken\.parquet cannot be read as Parquet"):
        from_parquet(tmp_path / "broken.parquet", label="income")
    with pytest.raises(ValueError, match=r"column 'x' has the type list"):
        from_table(arrow.table({"x": [[1], [2]], "y": ["a", "b"]}), label="y")
    with pytest.raises(TypeError, match="cannot be read as a table"):
        from_table(3, label="y")


def test_a_range_that_one_record_makes_wide_is_told():
    plain = Cells.of([str(k % 50) for k in range(1000)])
    assert guess(plain).usual is None
    lines = lines_of("bmi", found := guess(Cells.of([*plain.texts() * 20, "98765.5"])), plain)
    assert found.range == (0, 100_000)
    assert lines[0].startswith("# nearly all values are between 0 and 50;")
    assert tomllib.loads("\n".join(lines))["ranges"]["bmi"] == [0, 100_000]


def test_reading_a_file_does_not_import_pandas(tmp_path):
    """pyarrow imports it in a place that swallows Ctrl-C, and it takes a second."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    days = [datetime.datetime(2020, 1, 1), None]
    table = arrow.table({"age": [20, None], "ward": ["a", "b"], "since": days})
    table = table.set_column(1, "ward", table["ward"].dictionary_encode())
    parquet.write_table(table, tmp_path / "t.parquet")
    write(tmp_path, {"t.csv": "age,ward\n20,a\n,b\n"})
    code = """
import sys
from psac.app.data.tables.reader import table_of
tables = [table_of(place) for place in sys.argv[1:]]
print([table.num_records for table in tables], "pandas" in sys.modules)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "t.csv"), str(tmp_path / "t.parquet")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "[2, 2] False\n", done.stderr


def frames_of(rows: dict) -> dict[str, object]:
    """The rows as frames of pandas and polars with all their kinds of columns."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    one, two = pandas.DataFrame(rows), polars.DataFrame(rows)
    return {
        "pandas": one,
        "with an index": pandas.DataFrame(rows, index=[7, 7, 8, 9]),
        "categories of pandas": one.astype({"ward": "category", "back": "category"}),
        "objects": one.astype(object),
        "nullable": one.convert_dtypes(),
        "backed by pyarrow": one.convert_dtypes(dtype_backend="pyarrow"),
        "times of pandas": one.assign(since=pandas.to_datetime(one["since"])),
        "numbers and text": one.assign(age=["20", None, 40.5, 17]),
        "polars": two,
        "categories of polars": two.with_columns(two["ward"].cast(polars.Categorical)),
        "times of polars": two.with_columns(two["since"].cast(polars.Datetime)),
    }


def test_frames_of_pandas_and_polars_give_the_same_records():
    day = datetime.date
    rows = {
        "age": [20.0, None, 40.5, 17.0],
        "ward": ["a", "b", None, "a"],
        "since": [day(2020, 1, 1), day(2021, 1, 1), None, day(2020, 5, 5)],
        "ok": [True, False, True, True],
        "back": [0, 1, 1, 0],
    }
    said = {
        **{"label": "back", "classes": [0, 1], "ranges": {"age": [0, 100]}},
        "categories": {"ward": ["a", "b"], "ok": ["True", "False"]},
        **{"dates": {"since": ["2020-01-01", "2022-01-01"]}, "missing": "indicator"},
    }
    expected = from_table(rows, **said).tensors
    for name, frame in frames_of(rows).items():
        found = from_table(frame, **said).tensors
        assert torch.equal(found[0], expected[0]), name
        assert torch.equal(found[1], expected[1]), name


def test_bad_cells_of_a_frame_are_reported_as_those_of_a_file():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    said = {"label": "y", "classes": ["a", "b"], "ranges": {"age": [0, 100]}}
    frame = pandas.DataFrame({"age": [20, "12o", 40], "y": ["a", "b", "a"]})
    with pytest.raises(ValueError, match="age: 1 cell is not a number: '12o' in record 2"):
        from_table(frame, **said)
    with pytest.raises(ValueError, match="the frame names a column twice: age, age"):
        from_table(pandas.DataFrame([[1, 2]], columns=["age", "age"]), **said)
    with pytest.raises(TypeError, match=r"LazyFrame cannot be read as a table\. Call its collect"):
        from_table(polars.LazyFrame({"age": [1]}), **said)
    with pytest.raises(TypeError, match="a Series cannot be read as a table"):
        from_table(pandas.Series([1]), **said)


@pytest.mark.parametrize(
    "content, said, message",
    [
        (PEOPLE, {"label": "salary"}, r"no column 'salary'\. Its columns: age, city, income"),
        (PEOPLE, {}, r"which column holds the classes \(label\)\. Its columns: age"),
        (PEOPLE, {"label": "income", "text": "bio"}, r"no column 'bio'\. Its columns: age"),
        (PEOPLE, {"label": "income", "ranges": {"agee": (0, 1)}}, "no column 'agee'"),
        (PEOPLE, {**SAID, "ranges": {"age": (9, 9)}}, r"pass \(lowest, highest\)"),
        (PEOPLE, {**SAID, "ignore": ["age"]}, "'age' is listed under ranges and ignore"),
        (PEOPLE, {**SAID, "categories": "private", "ranges": "private"}, "are both 'private'"),
        (PEOPLE, {**SAID, "missing": "zero"}, "missing is 'zero': pass 'indicator'"),
        (PEOPLE, {"label": "income", "text": "city", "classes": ["low"], "missing": "indicator"},
         "cannot be combined with text"),
        (PEOPLE, {**SAID, "ranges": {"age": "private"}}, r"its budget: privacy_share = 0\.2"),
        ("x,x,y\n1,2,a\n", {"label": "y"}, "names a column twice"),
        ("x;z;y\n1;2;a\n", {"label": "y"}, r"semicolons between .*'x;z;y'\. Save it with commas"),
        ("x\ty\n1\ta\n", {"label": "y"}, r"tabs between its columns: .*Name it \.tsv"),
        ("y\na\n", {"label": "y"}, "no columns besides 'y'"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_told_why(tmp_path, content, said, message):
    write(tmp_path, {"t.csv": content})
    with pytest.raises(ValueError, match=message):
        from_csv(tmp_path / "t.csv", **said)


def test_a_schema_with_unknown_keys_is_refused():
    with pytest.raises(ValueError, match=r"schema key 'rangs' is unknown.* Did you mean 'ranges'"):
        from_table({"x": [1], "y": [0]}, schema={"rangs": {}}, label="y")


def test_a_table_that_is_missing_empty_or_no_text_is_not_found(tmp_path):
    with pytest.raises(DataNotFound, match=r"t\.csv does not exist"):
        from_csv(tmp_path / "t.csv", label="y")
    for content in ("x,y\n", ""):
        write(tmp_path, {"t.csv": content})
        with pytest.raises(DataNotFound, match=r"has no records|is empty"):
            from_csv(tmp_path / "t.csv", label="y")
    write(tmp_path, {"t.csv": b"x,y\n\xff\xfe,1\n"})
    with pytest.raises(DataNotFound, match="cannot be read as CSV in UTF-8"):
        from_csv(tmp_path / "t.csv", label="y")


def test_numbers_of_many_records_are_those_of_numpy():
    numbers = np.random.default_rng(0).normal(size=1000)
    found = features({"x": list(map(str, numbers))}, ranges={"x": [-5, 5]})
    assert np.allclose(np.array(found)[:, 0], (numbers + 5) / 10, atol=1e-6)
