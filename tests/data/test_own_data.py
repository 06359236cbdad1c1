"""The user's own folders, tables and arrays, and what is said of those that cannot be used."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import psac
from psac.data import (
    DataNotFound,
    TensorRecords,
    TextRecords,
    from_csv,
    from_folder,
    from_npz,
    from_parquet,
    optional,
)
from tests.data.made import image, plain_image, write

# ---- Folders of images


def test_a_folder_per_class_becomes_labels_in_the_order_of_names(tmp_path):
    files = {
        "sad/1.png": plain_image(30),
        "happy/2.jpg": plain_image(90, kind="JPEG"),
        "happy/deep/1.PNG": plain_image(60),
        "happy/.hidden.png": b"",
        "happy/notes.txt": b"",
        ".git/x.png": b"",
        "list.csv": b"",
    }
    records = from_folder(write(tmp_path / "faces", files))
    assert records.name == "faces"
    assert records.classes == ("happy", "sad")
    inputs, labels = records.tensors
    assert labels.tolist() == [0, 0, 1]
    shades = (inputs.mean((1, 2, 3)) * 255).round()
    assert sorted(shades.tolist()) == [30, 60, 90]
    assert inputs.shape == (3, 3, 8, 8)


def test_images_are_made_squares_of_one_size_from_their_middle(tmp_path):
    wide = np.zeros((10, 30, 3))
    wide[:, 10:20] = 255
    write(tmp_path / "a", {"wide.png": image(wide), "tall.png": image(wide.transpose(1, 0, 2))})
    for picture, _ in from_folder(tmp_path, size=10):
        assert torch.equal(picture, torch.ones(3, 10, 10))


def test_images_of_several_sizes_ask_for_one(tmp_path):
    write(tmp_path / "a", {"1.png": plain_image(width=4), "2.png": plain_image(width=6)})
    records = from_folder(tmp_path)
    assert records[1][0].shape == (3, 8, 6)
    with pytest.raises(ValueError, match="Pass size=64"):
        _ = records.tensors


def test_images_can_be_grey(tmp_path):
    write(tmp_path / "a", {"1.png": plain_image(100)})
    assert from_folder(tmp_path, channels=1)[0][0].shape == (1, 8, 8)
    with pytest.raises(ValueError, match="3 for RGB or 1 for grey"):
        from_folder(tmp_path, channels=4)


def test_a_folder_without_images_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataNotFound, match="is not a folder"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(DataNotFound, match=r"looked for images \(\.bmp .*/<class>/"):
        from_folder(tmp_path)
    write(tmp_path, {"a/1.png": plain_image(), "b/notes.txt": b""})
    with pytest.raises(DataNotFound, match=r"looked for images .* in .*/b and found none"):
        from_folder(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_broken_image_is_named_and_never_something_else(tmp_path, kind):
    random = np.random.default_rng(0)
    whole = image(random.integers(0, 256, (16, 16, 3)), kind)
    write(tmp_path / "a", {"1.png": whole})
    records = from_folder(tmp_path)
    for _ in range(60):
        content = bytearray(whole[: random.integers(len(whole))])
        for _ in range(random.integers(3)):
            if content:
                content[random.integers(len(content))] ^= 1 << random.integers(8)
        write(tmp_path / "a", {"1.png": bytes(content)})
        try:
            assert records[0][0].ndim == 3
        except DataNotFound as error:
            assert "1.png cannot be read as an image" in str(error)  # noqa: PT017


# ---- Tables

PEOPLE = "age,city,income\n20,Rome,low\n40,Oslo,high\n60,Rome,low\n"


def test_numbers_are_scaled_by_public_bounds_and_words_are_one_hot(tmp_path):
    write(tmp_path, {"people.csv": PEOPLE})
    records = from_csv(
        tmp_path / "people.csv",
        label="income",
        ranges={"age": (0, 50)},
        categories={"city": ["Oslo", "Paris", "Rome"]},
    )
    assert isinstance(records, TensorRecords)
    assert records.name == "people"
    assert records.classes == ("high", "low")
    expected = torch.tensor([[0.4, 0, 0, 1], [0.8, 1, 0, 0], [1.0, 0, 0, 1]])
    assert torch.allclose(records.tensors[0], expected)
    assert records.tensors[1].tolist() == [1, 0, 1]


def test_numbers_without_bounds_stay_as_they_are(tmp_path):
    write(tmp_path, {"t.csv": "x,y\n1.5,a\n-200,b\n"})
    assert from_csv(tmp_path / "t.csv", label="y").tensors[0].tolist() == [[1.5], [-200.0]]


def test_a_category_that_is_not_listed_is_all_zeros(tmp_path):
    write(tmp_path, {"t.csv": "c,y\nred,1\n,0\n"})
    records = from_csv(tmp_path / "t.csv", label="y", categories={"c": ["blue", "green"]})
    assert records.tensors[0].tolist() == [[0, 0], [0, 0]]


def test_categories_read_off_the_records_are_warned_of(tmp_path):
    write(tmp_path, {"people.csv": PEOPLE})
    with pytest.warns(psac.PrivacyWarning, match=r"'city': its 2 categories") as caught:
        records = from_csv(tmp_path / "people.csv", label="income")
    assert records.tensors[0].shape == (3, 3)
    assert caught[0].filename == __file__


def test_classes_are_in_the_order_given_or_of_their_numbers(tmp_path):
    write(tmp_path, {"t.csv": "x,y\n1,10\n2,9\n3,10\n"})
    assert from_csv(tmp_path / "t.csv", label="y").classes == ("9", "10")
    records = from_csv(tmp_path / "t.csv", label="y", classes=["10", "9", "8"])
    assert records.classes == ("10", "9", "8")
    assert records.tensors[1].tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="'9' is not among the classes 10"):
        from_csv(tmp_path / "t.csv", label="y", classes=["10"])


def test_a_column_of_text_gives_texts(tmp_path):
    write(tmp_path, {"t.csv": '\ufefftext,n,label\n"a, b",1,yes\nc,2,no\n'})
    records = from_csv(tmp_path / "t.csv", label="label", text="text")
    assert isinstance(records, TextRecords)
    assert list(records) == [{"text": "a, b", "label": 1}, {"text": "c", "label": 0}]


OPTIONS = {
    "label": "income",
    "ranges": {"age": (0, 100)},
    "categories": {"city": ["Oslo", "Paris", "Rome"]},
}


def test_columns_of_a_second_table_are_found_by_their_names(tmp_path):
    moved = "city,income,age\nRome,low,20\nOslo,high,40\nRome,low,60\n"
    write(tmp_path, {"people.csv": PEOPLE, "moved.csv": moved})
    people = from_csv(tmp_path / "people.csv", **OPTIONS)
    assert people.columns == {"age": "number", "city": "categories"}
    same = from_csv(tmp_path / "moved.csv", **OPTIONS, columns=people.columns)
    assert torch.equal(same.tensors[0], people.tensors[0])
    assert list(same.columns.items()) == list(people.columns.items())


@pytest.mark.parametrize(
    "content, message",
    [
        ("city,income\nRome,low\n", r"'age' missing\. Expected, in any order: age, city\."),
        ("id,age,city,income\n7,20,Rome,low\n", r"'id' unknown\. Expected, in any order: age"),
        ("years,city,income\n20,Rome,low\n", "'age' missing, 'years' unknown"),
        ("age,city,income\nten,Rome,low\n", "'age' has a range, but record 1 is 'ten'"),
    ],
)
def test_a_second_table_with_other_columns_is_refused_by_their_names(tmp_path, content, message):
    write(tmp_path, {"people.csv": PEOPLE, "other.csv": content})
    columns = from_csv(tmp_path / "people.csv", **OPTIONS).columns
    with pytest.raises(ValueError, match=message):
        from_csv(tmp_path / "other.csv", **OPTIONS, columns=columns)


def test_a_second_table_has_the_kinds_of_the_first(tmp_path):
    write(tmp_path, {"t.csv": "n,c,y\n1,2,a\n", "words.csv": "n,c,y\none,2,a\n"})
    given = {"c": ["2", "3"]}
    columns = from_csv(tmp_path / "t.csv", label="y", categories=given).columns
    assert columns == {"n": "number", "c": "categories"}
    for name, options, message in (
        ("words", {"categories": given}, "'n' had numbers .* record 1 is 'one'"),
        ("t", {}, "'c': its categories are not given"),
        (
            "t",
            {"categories": given | {"n": ["1"]}},
            "'n': categories are given, but",
        ),
        ("t", {"columns": ["n", "c"]}, "such as train.columns"),
        ("t", {"columns": {"n": "word", "c": "number"}}, "'number' or 'categories' for each name"),
        ("t", {"text": "c"}, "without a column of text"),
    ):
        with pytest.raises(ValueError, match=message):
            from_csv(tmp_path / f"{name}.csv", label="y", **({"columns": columns} | options))


def test_parquet_reads_like_csv(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"age": [20, 40], "city": ["Rome", "Oslo"], "income": [1, 0]}
    table = pytest.importorskip("pyarrow").table(columns)
    parquet.write_table(table, tmp_path / "t.parquet")
    options = {"ranges": {"age": (0, 50)}, "categories": {"city": ["Oslo", "Rome"]}}
    write(tmp_path, {"t.csv": "age,city,income\n20,Rome,1\n40,Oslo,0\n"})
    one = from_parquet(tmp_path / "t.parquet", label="income", **options)
    other = from_csv(tmp_path / "t.csv", label="income", **options)
    assert torch.equal(one.tensors[0], other.tensors[0])
    assert torch.equal(one.tensors[1], other.tensors[1])
    moved = from_parquet(
        tmp_path / "t.parquet",
        label="income",
        columns={"city": "categories", "age": "number"},
        **options,
    )
    assert torch.equal(moved.tensors[0], one.tensors[0][:, [1, 2, 0]])
    write(tmp_path, {"broken.parquet": b"PAR1 no"})
    with pytest.raises(DataNotFound, match=r"broken\.parquet cannot be read as Parquet"):
        from_parquet(tmp_path / "broken.parquet", label="income")


@pytest.mark.parametrize(
    "content, options, message",
    [
        (PEOPLE, {"label": "salary"}, r"no column 'salary'\. It has: age, city, income"),
        (PEOPLE, {"label": "income", "text": "bio"}, r"no column 'bio'\. It has: age"),
        (PEOPLE, {"label": "income", "ranges": {"agee": (0, 1)}}, "no column 'agee'"),
        (PEOPLE, {"label": "income", "ranges": {"city": (0, 1)}}, "record 1 is 'Rome'"),
        (PEOPLE, {"label": "income", "ranges": {"age": (9, 9)}}, r"pass \(lowest, highest\)"),
        (
            PEOPLE,
            {"label": "income", "text": "city", "ranges": {"age": (0, 1)}},
            "without a column",
        ),
        ("x,y\n1,a\n,b\n", {"label": "y"}, "'x': record 2 is empty"),
        ("x,y\n1,\n", {"label": "y"}, "'y': record 1 is empty"),
        ("x,y\n1,a,b\n", {"label": "y"}, "record 1 has 3 fields, the header 2"),
        ("x,x,y\n1,2,a\n", {"label": "y"}, "names a column twice"),
        ("x,y\n1,a\nnan,a\n", {"label": "y"}, "'x': record 2 is 'nan', which is not finite"),
        ("x;z;y\n1;2;a\n", {"label": "y"}, r"semicolons between .*'x;z;y'\)\. Save it with commas"),
        ("x\ty\n1\ta\n", {"label": "y"}, "tabs between its columns"),
        ("y\na\n", {"label": "y"}, "only the column 'y'"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_why(tmp_path, content, options, message):
    write(tmp_path, {"t.csv": content})
    with pytest.raises(ValueError, match=message):
        from_csv(tmp_path / "t.csv", **options)


def test_a_table_that_is_missing_empty_or_no_text_is_not_found(tmp_path):
    with pytest.raises(DataNotFound, match=r"there is no file .*t\.csv"):
        from_csv(tmp_path / "t.csv", label="y")
    write(tmp_path, {"t.csv": "x,y\n"})
    with pytest.raises(DataNotFound, match="holds no records"):
        from_csv(tmp_path / "t.csv", label="y")
    write(tmp_path, {"t.csv": ""})
    with pytest.raises(DataNotFound, match="holds no records"):
        from_csv(tmp_path / "t.csv", label="y")
    write(tmp_path, {"t.csv": b"x,y\n\xff\xfe,1\n"})
    with pytest.raises(DataNotFound, match="cannot be read as CSV in UTF-8"):
        from_csv(tmp_path / "t.csv", label="y")


# ---- Arrays


def test_bytes_in_an_array_are_pixels_and_floats_are_kept(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((2, 1, 4, 4), 255, np.uint8), y=np.array([0, 2]))
    records = from_npz(tmp_path / "a.npz")
    assert torch.equal(records.tensors[0], torch.ones(2, 1, 4, 4))
    assert records.tensors[1].tolist() == [0, 2]
    assert records.classes == ("0", "1", "2")
    np.savez(tmp_path / "b.npz", x=np.array([[3.0], [-2.0]]), y=np.array([0.5, 1.5]))
    records = from_npz(tmp_path / "b.npz")
    assert records.tensors[0].tolist() == [[3.0], [-2.0]]
    assert records.tensors[1].dtype == torch.float32


def test_a_row_of_zeros_and_ones_is_several_labels(tmp_path):
    y = np.array([[0, 1, 1], [1, 0, 0]])
    for kind in (np.int64, np.float32, bool):
        np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)), y=y.astype(kind))
        records = from_npz(tmp_path / "a.npz")
        assert records.tensors[1].tolist() == y.tolist()
        assert records.tensors[1].dtype == torch.float32
        assert records.classes == ("0", "1", "2")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)), y=np.array([[0.5, 1.0], [0.0, 2.0]]))
    assert from_npz(tmp_path / "a.npz").classes == ()


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": np.zeros(2)}, "no array y, but x"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "one entry per record"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "at least one"),
        ({"x": np.array(["a"]), "y": np.zeros(1)}, "x is of type <U1"),
        ({"x": np.array([np.nan]), "y": np.zeros(1)}, "not finite"),
        ({"x": np.zeros(1), "y": np.array([-1])}, "Count classes from 0"),
        ({"x": np.array([{}], object), "y": np.zeros(1)}, "cannot be used"),
    ],
)
def test_arrays_that_cannot_be_used_are_told_why(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises((ValueError, DataNotFound), match=message):
        from_npz(tmp_path / "a.npz")


def test_a_file_that_is_no_npz_is_named(tmp_path):
    with pytest.raises(DataNotFound, match="there is no file"):
        from_npz(tmp_path / "a.npz")
    for content in (b"", b"broken", b"PK\x03\x04broken"):
        write(tmp_path, {"a.npz": content})
        with pytest.raises(DataNotFound, match=r"a\.npz cannot be used"):
            from_npz(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(DataNotFound, match="single array"):
        from_npz(tmp_path / "a.npy")


def test_a_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(ImportError, match=r"Reading images needs Pillow.*psac\[data\]"):
        optional.needed("no_such_module", package="Pillow", purpose="Reading images")


def test_nothing_optional_is_imported_before_it_is_needed():
    for path in Path(optional.__file__).parent.glob("*.py"):
        imports = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        text = " ".join(ast.unparse(node) for node in imports)
        assert not any(name in text for name in ("PIL", "pyarrow", "sklearn", "pandas")), path
