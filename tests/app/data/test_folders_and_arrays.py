"""The user's own folders, tables and arrays, and what is said of those that cannot be used."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from psac import PrivacyWarning
from psac.app.data import DataNotFound, from_folder, from_npz, optional
from tests.app.data.small_files import image, plain_image, write

# ---- Folders of images


def test_a_folder_per_class_becomes_labels_in_the_stated_order(tmp_path):
    files = {
        "sad/1.png": plain_image(30),
        "happy/2.jpg": plain_image(90, kind="JPEG"),
        "happy/deep/1.PNG": plain_image(60),
        "happy/.hidden.png": b"",
        "happy/notes.txt": b"",
        ".git/x.png": b"",
        "list.csv": b"",
    }
    records = from_folder(write(tmp_path / "faces", files), classes=["happy", "sad"])
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
    for picture, _ in from_folder(tmp_path, size=10, classes=["a"]):
        assert torch.equal(picture, torch.ones(3, 10, 10))


def test_images_of_several_sizes_ask_for_one(tmp_path):
    write(tmp_path / "a", {"1.png": plain_image(width=4), "2.png": plain_image(width=6)})
    records = from_folder(tmp_path, classes=["a"])
    assert records[1][0].shape == (3, 8, 6)
    with pytest.raises(ValueError, match="Pass size=64"):
        _ = records.tensors


def test_images_can_be_grey(tmp_path):
    write(tmp_path / "a", {"1.png": plain_image(100)})
    assert from_folder(tmp_path, channels=1, classes=["a"])[0][0].shape == (1, 8, 8)
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
    records = from_folder(tmp_path, classes=["a"])
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


def test_classes_of_folders_are_stated_or_refused_with_the_line_to_add(tmp_path):
    write(tmp_path, {"sad/1.png": plain_image(), "happy/1.png": plain_image()})
    with pytest.raises(ValueError, match=r'classes = \["happy", "sad"\]  # seen in private data'):
        from_folder(tmp_path)
    assert from_folder(tmp_path, classes=["sad", "happy", "angry"]).labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"has the folder 'sad', which is not one of .*: happy\."):
        from_folder(tmp_path, classes=["happy"])
    with pytest.raises(ValueError, match="names a class twice: sad, sad"):
        from_folder(tmp_path, classes=["sad", "sad"])
    with pytest.raises(TypeError, match="classes is 'sad': pass a list"):
        from_folder(tmp_path, classes="sad")
    with pytest.warns(PrivacyWarning, match="classes in the names of folders were read off"):
        records = from_folder(tmp_path, unsafe=True)
    assert records.classes == ("happy", "sad")
    assert records.released is not None
    assert records.released.warnings == records.unsafe
    assert not from_folder(tmp_path, classes=["happy", "sad"]).unsafe


# ---- Arrays


def test_classes_of_arrays_are_stated_or_refused_with_the_line_to_add(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)), y=np.array([0, 2]))
    with pytest.raises(ValueError, match=r'classes = \["0", "1", "2"\]  # seen in private data'):
        from_npz(tmp_path / "a.npz")
    stated = from_npz(tmp_path / "a.npz", classes=["cat", "dog", "emu", "fox"])
    assert stated.classes == ("cat", "dog", "emu", "fox")
    assert stated.released is None
    with pytest.raises(ValueError, match="class 2, but only 2 classes are stated: cat, dog"):
        from_npz(tmp_path / "a.npz", classes=["cat", "dog"])
    with pytest.warns(PrivacyWarning, match="The classes in the array y were read off"):
        records = from_npz(tmp_path / "a.npz", unsafe=True)
    assert records.classes == ("0", "1", "2")
    assert records.released is not None
    assert records.released.warnings == records.unsafe


def test_bytes_in_an_array_are_pixels_and_floats_are_kept(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((2, 1, 4, 4), 255, np.uint8), y=np.array([0, 2]))
    records = from_npz(tmp_path / "a.npz", classes=["0", "1", "2"])
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


def test_columns_of_labels_can_have_names(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)), y=np.array([[0, 1], [1, 0]]))
    assert from_npz(tmp_path / "a.npz", classes=["red", "blue"]).classes == ("red", "blue")
    with pytest.raises(ValueError, match="y has 2 columns, but 1 classes are stated"):
        from_npz(tmp_path / "a.npz", classes=["red"])


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": np.zeros(2)}, "no array y, but x"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "one entry per record"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "at least one"),
        ({"x": np.array(["a"]), "y": np.zeros(1)}, "x is of type <U1"),
        ({"x": np.array([np.nan]), "y": np.zeros(1)}, "not finite"),
        ({"x": np.zeros(1), "y": np.array([-1])}, "Count classes from 0"),
        ({"x": np.zeros(2), "y": np.array([0, 10**9])}, "class 1000000000, but only 2 records"),
        ({"x": np.array([{}], object), "y": np.zeros(1)}, "cannot be used"),
    ],
)
def test_arrays_that_cannot_be_used_are_told_why(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises((ValueError, DataNotFound), match=message):
        from_npz(tmp_path / "a.npz")


def test_a_file_that_is_no_npz_is_named(tmp_path):
    with pytest.raises(DataNotFound, match="does not exist"):
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
