"""What is trained on and what is evaluated on: apart, alike, and marked."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from psac.app import data
from psac.app.data.images import scaled
from psac.app.training import splits as splits_module
from psac.app.training.in_memory import Records, records_of
from psac.app.training.overrides import overridden
from psac.app.training.own_data import load_own
from psac.app.training.splits import held_out, load_splits
from tests.app.training.small import recipe


def stored(n: int, *, shift: int = 0, classes=("a", "b", "c")) -> data.TensorRecords:
    inputs = torch.arange(float(n))[:, None] + shift
    return data.TensorRecords(inputs, torch.arange(n) % 3, name="stored", classes=classes)


@pytest.fixture
def named(monkeypatch):
    """Two splits of named data."""
    asked = []

    def load(name, split, **settings):
        asked.append((name, split, settings))
        return stored(100) if split == "train" else stored(20, shift=1000)

    monkeypatch.setattr(data, "load", load)
    return asked


def test_named_data_are_evaluated_on_the_public_test_split(named):
    found = load_splits(recipe(data="digits", data_root="here", data_settings={"size": 8}))
    settings = {"root": "here", "size": 8}
    assert named == [("digits", "train", settings), ("digits", "test", settings)]
    assert (len(found.training), len(found.evaluation)) == (100, 20)
    assert (found.split, found.public, found.mark()) == ("test", False, {"private": False})
    assert (found.classes, found.input_shape) == (("a", "b", "c"), (1,))


@pytest.mark.parametrize("own_folder", [False, True])
@pytest.mark.parametrize("said", [False, True])
def test_test_records_are_public_only_where_somebody_said_so(named, own_folder, said):
    root = "here" if own_folder else None  # files in a folder of the user's may be any
    found = load_splits(recipe(data="digits", data_root=root, test_is_public=said))
    assert found.public == (said or not own_folder)
    assert found.mark() == ({"public": True} if found.public else {"private": False})


def test_records_of_the_users_own_are_private_unless_the_recipe_says_otherwise(tmp_path):
    for split in ("train", "test"):
        x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
        np.savez(tmp_path / f"{split}.npz", x=x.astype(np.float32), y=y)
    own = recipe(data=str(tmp_path), data_settings={"classes": ["0", "1"]})
    assert not load_splits(own).public
    assert load_splits(dataclasses.replace(own, test_is_public=True)).public


def test_what_was_said_of_one_data_set_is_not_said_of_another():
    said = {"data": "mine", "test_is_public": True, "most_frequent_share": 0.7}
    assert overridden(said, {"data": "theirs"}) == {"data": "theirs"}
    assert overridden(said, {"epochs": 2}) == said | {"epochs": 2}


def test_held_out_records_are_never_trained_on_and_the_test_split_is_not_read(named):
    found = load_splits(recipe(data="digits", validation_fraction=0.2))
    assert [split for _, split, _ in named] == ["train"]
    training, evaluation = found.training.inputs.flatten(), found.evaluation.inputs.flatten()
    assert sorted([*training.tolist(), *evaluation.tolist()]) == list(range(100))
    assert (found.split, found.public, found.mark()) == ("validation", False, {"private": False})


def test_who_is_held_out_depends_on_the_number_alone():
    first, second = held_out(1000, 0.1), held_out(5000, 0.1)
    assert torch.equal(first, second[:1000])
    assert 0.08 < second.double().mean() < 0.12
    assert bool((held_out(1000, 0.3) | ~first).all())  # a larger part holds the smaller one


def test_who_is_held_out_never_changes_from_release_to_release():
    assert torch.nonzero(held_out(8, 0.5)).flatten().tolist() == [1, 2, 3, 4, 6]


def test_a_part_that_leaves_nobody_is_refused(monkeypatch):
    monkeypatch.setattr(splits_module, "_load", lambda *_, **__: stored(3))
    with pytest.raises(ValueError, match="holds out 0 of them"):
        load_splits(recipe(validation_fraction=1e-6))


def test_unknown_data_are_refused_with_the_names(tmp_path):
    with pytest.raises(
        ValueError, match=r"neither a known name nor an existing path.*Did you mean 'digits'"
    ):
        load_splits(recipe(data="digit"))
    with pytest.raises(ValueError, match="data_root is for named data"):
        load_splits(recipe(data=str(tmp_path), data_root="here"))


# ---- Records


def test_batches_are_what_stacking_would_give():
    inputs, labels = torch.randn(10, 2, 3), torch.arange(10)
    fast = list(Records(inputs, labels).loader(4))
    slow = list(DataLoader(TensorDataset(inputs, labels), batch_size=4))
    for (x, y), (u, v) in zip(fast, slow, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_bytes_come_out_as_the_very_numbers_of_the_images():
    pixels = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    records, images = Records(pixels, torch.arange(4)), scaled(pixels.numpy())
    assert torch.equal(records.__getitems__([0, 1, 2, 3])[0], images)
    assert torch.equal(records[2][0], images[2])


def test_images_in_files_are_kept_as_bytes(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for k in range(2):
            pixels = np.random.default_rng(k).integers(0, 256, (4, 4, 3), np.uint8)
            image.fromarray(pixels).save(tmp_path / label / f"{k}.png")
    files = data.from_folder(tmp_path, classes=["cat", "dog"])
    records = records_of(files)
    assert records.inputs.dtype == torch.uint8
    assert torch.equal(records.__getitems__([0, 1, 2, 3])[0], files.tensors[0])
    image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / "dog" / "9.png")
    with pytest.raises(ValueError, match="write size = 64"):
        records_of(data.from_folder(tmp_path, classes=["cat", "dog"]))


def test_text_and_labels_without_names_are_refused():
    with pytest.raises(ValueError, match="is text"):
        records_of(data.TextRecords([{"text": "a", "label": 0}], name="words", classes=("a",)))
    nameless = data.TensorRecords(torch.zeros(2, 1), torch.zeros(2, 40), name="faces", classes="ab")
    with pytest.raises(ValueError, match=r"shape \[2, 40\] for 2 classes"):
        records_of(nameless)


def test_records_may_have_several_labels():
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    several = data.TensorRecords(torch.zeros(2, 1), labels, name="faces", classes="ab")
    assert torch.equal(records_of(several).labels, labels)


# ---- The user's own


TWO = {"classes": ["0", "1"]}


def save(path, labels, width=3):
    np.savez(path, x=np.ones((len(labels), width), np.float32), y=np.array(labels))


def test_a_folder_with_both_splits_is_read(tmp_path):
    save(tmp_path / "train.npz", [0, 1, 2, 2])
    save(tmp_path / "test.npz", [1, 0])
    found = load_splits(recipe(data=str(tmp_path), data_settings={"classes": ["0", "1", "2"]}))
    assert found.classes == ("0", "1", "2")
    assert found.evaluation.labels.tolist() == [1, 0]


def test_a_single_file_is_for_training_and_a_part_can_be_held_out(tmp_path):
    save(tmp_path / "mine.npz", [0, 1] * 30)
    with pytest.raises(
        ValueError, match=r"train\.npz and test\.npz.*validation_fraction"
    ) as caught:
        load_splits(recipe(data=str(tmp_path / "mine.npz"), data_settings=TWO))
    assert "mine.npz/" not in str(caught.value)
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"that would be .*/test, or test\.csv, test\.tsv"):
        load_own(recipe(data=str(tmp_path)), "test")
    own = {"data": str(tmp_path / "mine.npz"), "data_settings": TWO}
    found = load_splits(recipe(**own, validation_fraction=0.5))
    assert len(found.training) + len(found.evaluation) == 60


TABLE = {"label": "label", "classes": ["cat", "dog"], "ranges": {"x": [0, 10]}}


@pytest.mark.parametrize("name", ["MINE.CSV", "mine.Tab"])
def test_the_end_of_a_name_may_be_in_capitals(tmp_path, name):
    mark = "\t" if name.endswith("Tab") else ","
    rows = [f"{k % 10}{mark}{'cat' if k % 2 else 'dog'}" for k in range(60)]
    (tmp_path / name).write_text("\n".join([f"x{mark}label", *rows]) + "\n")
    own = recipe(data=str(tmp_path / name), data_settings=TABLE, validation_fraction=0.5)
    found = load_splits(own)
    assert len(found.training) + len(found.evaluation) == 60


def test_test_labels_count_the_classes_of_training(tmp_path):
    (tmp_path / "train.csv").write_text("x,label\n1,cat\n2,dog\n3,emu\n")
    (tmp_path / "test.csv").write_text("x,label\n1,emu\n2,dog\n")
    settings = recipe(data=str(tmp_path), data_settings=TABLE | {"classes": ["cat", "dog", "emu"]})
    assert load_splits(settings).evaluation.labels.tolist() == [2, 1]
    (tmp_path / "test.csv").write_text("x,label\n1,fox\n")
    with pytest.raises(
        ValueError, match=r"1 label is not among the classes \(cat, dog, emu\): 'fox'"
    ):
        load_splits(settings)


def test_tables_whose_columns_would_not_fit_are_refused(tmp_path):
    (tmp_path / "train.csv").write_text("x,label\n1,cat\n2,dog\n")
    (tmp_path / "test.csv").write_text("x,label\nred,cat\n")
    settings = recipe(data=str(tmp_path), data_settings=TABLE)
    with pytest.raises(ValueError, match="x: 1 cell is not a number: 'red' in record 1"):
        load_splits(settings)
    (tmp_path / "test.csv").write_text("x,y,label\n1,2,cat\n")
    with pytest.raises(ValueError, match=r"test\.csv .*'y' unknown\. Expected, in any order: x"):
        load_splits(settings)
    (tmp_path / "test.csv").unlink()
    save(tmp_path / "test.npz", [0, 1], width=1)
    with pytest.raises(
        ValueError, match=r"test\.npz and the training .*train\.csv .* different kinds"
    ):
        load_splits(settings)


@pytest.mark.filterwarnings("ignore::psac.PrivacyWarning")
def test_what_was_read_off_training_records_is_used_for_the_test(tmp_path):
    (tmp_path / "train.csv").write_text("x,label\nred,cat\nblue,dog\n")
    (tmp_path / "test.csv").write_text("x,label\nblue,cat\ngreen,cat\n")
    own = {"label": "label", "unsafe": True}
    found = load_splits(recipe(data=str(tmp_path), data_settings=own))
    assert found.evaluation.inputs.tolist() == [[1, 0], [0, 0]]
    assert found.classes == ("cat", "dog")
    assert found.unsafe == (
        "The classes of column 'label' were read off the private records.",
        "The categories of column 'x' were read off the private records.",
    )


def test_columns_of_the_test_are_found_by_their_names(tmp_path):
    (tmp_path / "train.csv").write_text("a,b,y\n1,2,no\n3,4,yes\n")
    (tmp_path / "test.csv").write_text("b,y,a\n2,no,1\n4,yes,3\n")
    own = {"label": "y", "classes": ["no", "yes"], "ranges": {"a": [0, 4], "b": [0, 8]}}
    found = load_splits(recipe(data=str(tmp_path), data_settings=own))
    assert torch.equal(found.evaluation.inputs, found.training.inputs)
    assert found.columns is not None
    assert list(found.columns) == ["a", "b"]
    held = recipe(data=str(tmp_path / "train.csv"), data_settings=own, validation_fraction=0.5)
    assert load_splits(held).columns == found.columns


def test_training_records_of_one_class_are_refused_with_their_place(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "one.csv").write_text("a,y\n1,no\n2,no\n")
    save(tmp_path / "one.npz", [0, 0])
    save(tmp_path / "column.npz", [[0], [1]])
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    image.new("L", (4, 4)).save(tmp_path / "pictures" / "cat" / "1.png")
    for name, settings, message in (
        (
            "one.csv",
            {"label": "y", "classes": ["no"], "ranges": {"a": [0, 1]}},
            r"one\.csv: all records have the class 'no' in the column 'y'",
        ),
        ("one.npz", {"classes": ["0"]}, r"one\.npz: all records have the class 0 in y"),
        ("column.npz", {}, r"column\.npz: y has one column.*store y\[:, 0\]"),
        ("pictures", {"classes": ["cat"]}, "pictures: all records are in the folder 'cat'"),
    ):
        with pytest.raises(ValueError, match=message):
            load_own(recipe(data=str(tmp_path / name), data_settings=settings), "train")


def test_settings_that_the_reader_lacks_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("x,label\n1,cat\n")
    with pytest.raises(
        ValueError,
        match=r"mine\.csv is a table: state the column of its classes.* Its columns: x, label",
    ):
        load_splits(recipe(data=str(tmp_path / "mine.csv"), validation_fraction=0.5))
    with pytest.raises(
        ValueError,
        match=r"'sizee' is unknown\. Known: channels, classes, size, unsafe\. Did you mean 'size'",
    ):
        load_own(recipe(data=str(tmp_path), data_settings={"sizee": 16}), "train")
    with pytest.raises(ValueError, match=r"'range' is unknown\. .* Did you mean 'ranges'"):
        load_own(recipe(data=str(tmp_path / "mine.csv"), data_settings={"range": 3}), "train")
    wrong = {"label": "label", "ranges": 3}
    with pytest.raises(TypeError, match="ranges is 3: pass a value for each column"):
        load_own(recipe(data=str(tmp_path / "mine.csv"), data_settings=wrong), "train")
    (tmp_path / "mine.doc").touch()
    with pytest.raises(ValueError, match="cannot be read"):
        load_splits(recipe(data=str(tmp_path / "mine.doc"), validation_fraction=0.5))
