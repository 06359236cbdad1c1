"""MNIST, CIFAR-10, digits, Imagenette and CelebA, read from small files in their layouts."""

from __future__ import annotations

import dataclasses
import gzip
import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from psac.app.data import DataNotFound, ImageFiles, TensorRecords, catalogue, load
from psac.app.data.sets import cifar
from tests.app.data import small_files
from tests.app.data.small_files import mnist_files, plain_image, sha256, tgz, write


def label_of(record) -> int:
    return int(record[1])


# ---- MNIST and Fashion-MNIST


@pytest.mark.parametrize(
    "name, folder",
    [
        *(("mnist", folder) for folder in (".", "raw", "MNIST/raw")),
        *(("fashion-mnist", folder) for folder in (".", "raw", "FashionMNIST/raw")),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_found_packed_or_not(tmp_path, name, folder, packed):
    files = mnist_files()
    if packed:
        files = {f"{file}.gz": gzip.compress(content) for file, content in files.items()}
    write(tmp_path / folder, files)
    records = load(name, root=tmp_path)
    assert isinstance(records, TensorRecords)
    assert len(records) == 6
    assert len(load(name, "test", root=tmp_path)) == 4
    assert records.name == name
    assert len(records.classes) == 10


def test_pixels_are_shares_of_255(tmp_path):
    files = mnist_files()
    pixels = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8)
    inputs, labels = load("mnist", root=write(tmp_path, files)).tensors
    assert inputs.shape == (6, 1, 28, 28)
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal((inputs * 255).round().to(torch.uint8).flatten(), torch.tensor(pixels))
    assert 0 <= inputs.min() < inputs.max() <= 1


def test_a_record_is_its_row_of_the_tensors(tmp_path):
    records = load("mnist", root=write(tmp_path, mnist_files()))
    for number in range(6):
        assert torch.equal(records[number][0], records.tensors[0][number])
        assert label_of(records[number]) == number


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", b"\0\0\x08\x03\0\0", small_files.idx(np.zeros((2, 2, 2)))[:-1], b"<html>"],
)
def test_a_file_that_is_not_idx_is_named(tmp_path, content):
    write(tmp_path, {**mnist_files(), "train-images-idx3-ubyte": content})
    with pytest.raises(DataNotFound, match="train-images-idx3-ubyte is not a whole IDX file"):
        load("mnist", root=tmp_path)


def test_images_and_labels_that_differ_in_number_are_refused(tmp_path):
    write(tmp_path, {**mnist_files(), "train-labels-idx1-ubyte": small_files.idx(np.zeros(5))})
    with pytest.raises(DataNotFound, match="do not belong together"):
        load("mnist", root=tmp_path)


def test_a_packed_file_that_was_cut_is_named(tmp_path):
    packed = gzip.compress(mnist_files()["train-images-idx3-ubyte"])[:-20]
    write(tmp_path, {"train-images-idx3-ubyte.gz": packed})
    with pytest.raises(DataNotFound, match=r"train-images-idx3-ubyte\.gz is damaged"):
        load("mnist", root=tmp_path)


def test_a_root_that_is_no_folder_is_named(tmp_path):
    with pytest.raises(DataNotFound, match="is not a folder"):
        load("mnist", root=tmp_path / "nowhere")


# ---- CIFAR-10


def cifar_records(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, 3072))
    return np.concatenate([random.integers(0, 10, (count, 1)), pixels], 1).astype(np.uint8)


def test_binary_cifar_is_read_in_the_order_of_its_files(tmp_path):
    rows = {file: cifar_records(3, seed) for seed, file in enumerate(cifar.FILES)}
    write(tmp_path / "cifar-10-batches-bin", {file: rows[file].tobytes() for file in rows})
    inputs, labels = load("cifar10", root=tmp_path).tensors
    every = np.concatenate([rows[file] for file in cifar.TRAIN])
    assert torch.equal(labels, torch.tensor(every[:, 0]).long())
    assert torch.equal((inputs * 255).round().byte().flatten(1), torch.tensor(every[:, 1:]))
    assert inputs.shape == (15, 3, 32, 32)
    assert len(load("cifar10", "test", root=tmp_path)) == 3


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\x0a" + b"\0" * 3072])
def test_a_file_that_is_not_cifar_is_named(tmp_path, content):
    write(tmp_path, dict.fromkeys(cifar.FILES, content))
    with pytest.raises(DataNotFound, match=r"data_batch_1\.bin is not a whole file"):
        load("cifar10", root=tmp_path)


def test_the_pictures_of_the_package_become_the_official_files(monkeypatch):
    rows = {file: cifar_records(2, seed) for seed, file in enumerate(cifar.FILES)}
    package = {
        # A row of 1024 pixels, where the official file has three planes.
        file.replace(".bin", ".png"): small_files.image(
            rows[file][:, 1:].reshape(2, 3, 1024).swapaxes(1, 2)
        )
        for file in rows
    }
    labels = [row.tolist() for file in cifar.TRAIN for row in rows[file][:, 0]]
    spread = [label for k in range(5) for label in labels[2 * k : 2 * k + 2] + [0] * 9_998]
    package["train_lables.json"] = json.dumps(spread).encode()
    package["test_lables.json"] = json.dumps(rows["test_batch.bin"][:, 0].tolist()).encode()
    assert cifar.official_files(package) == {file: rows[file].tobytes() for file in rows}


# ---- Digits


def test_digits_are_split_by_their_content_alone(tmp_path):
    random = np.random.default_rng(0)
    lines = [
        ",".join(map(str, [*row, k % 10]))
        for k, row in enumerate(random.integers(0, 17, (200, 64)))
    ]
    write(tmp_path, {"digits.csv": "\n".join(lines)})
    train, test = (load("digits", split, root=tmp_path) for split in ("train", "test"))
    assert len(train) + len(test) == 200
    assert 20 <= len(test) <= 60
    assert train[0][0].shape == (1, 8, 8)
    assert train.tensors[0].max() == 1
    write(tmp_path, {"digits.csv": "\n".join(lines[::-1][:-1])})
    fewer = [load("digits", split, root=tmp_path) for split in ("train", "test")]
    assert sorted([len(train) - len(fewer[0]), len(test) - len(fewer[1])]) == [0, 1]


def test_a_line_of_digits_that_is_cut_is_an_error(tmp_path):
    write(tmp_path, {"digits.csv": "1,2,3\n4,5,6\n"})
    with pytest.raises(DataNotFound, match=r"digits\.csv must have 65 numbers"):
        load("digits", root=tmp_path)


# ---- Imagenette


def imagenette_files() -> dict[str, bytes]:
    return {
        "train/n03888257/b.JPEG": plain_image(200, 20, 16, "JPEG"),
        "train/n01440764/a.JPEG": plain_image(100, 16, 20, "JPEG"),
        "val/n02102040/c.JPEG": plain_image(50, 16, 16, "JPEG"),
        "train/n01440764/notes.txt": b"no image",
        "train/other/d.JPEG": plain_image(),
    }


@pytest.mark.parametrize("folder", [".", "imagenette2-160"])
def test_a_folder_of_imagenette_is_read_by_class(tmp_path, folder):
    write(tmp_path / folder, imagenette_files())
    records = load("imagenette", root=tmp_path, size=16)
    assert isinstance(records, ImageFiles)
    assert [label_of(record) for record in records] == [0, 9]
    assert records.classes[9] == "parachute"
    assert torch.allclose(records.tensors[0][1], torch.tensor(200 / 255), atol=0.02)
    assert records.tensors[0].shape == (2, 3, 16, 16)
    assert load("imagenette", "test", root=tmp_path)[0][0].shape == (3, 160, 160)


def test_the_archive_of_imagenette_reads_like_its_folder(tmp_path, cache, monkeypatch):
    archive = tgz({f"imagenette2-160/{name}": data for name, data in imagenette_files().items()})
    entry = dataclasses.replace(
        catalogue.ENTRIES["imagenette"], files={"imagenette2-160.tgz": sha256(archive)}
    )
    monkeypatch.setitem(catalogue.ENTRIES, "imagenette", entry)
    write(cache / "imagenette", {"imagenette2-160.tgz": archive})
    write(tmp_path, imagenette_files())
    for split in ("train", "test"):
        packed = load("imagenette", split, size=16).tensors
        unpacked = load("imagenette", split, root=tmp_path, size=16).tensors
        assert torch.equal(packed[0], unpacked[0])
        assert torch.equal(packed[1], unpacked[1])


def test_a_broken_picture_is_named_when_it_is_read(tmp_path):
    write(tmp_path, {**imagenette_files(), "train/n01440764/a.JPEG": b"broken"})
    with pytest.raises(DataNotFound, match=r"a\.JPEG cannot be read as an image"):
        load("imagenette", root=tmp_path)[0]


@pytest.mark.parametrize("size", [0, -1, 2.5, "64", True])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    with pytest.raises((TypeError, ValueError), match="size is"):
        load("imagenette", root=tmp_path, size=size)


# ---- CelebA

NAMES = catalogue.ENTRIES["celeba"].classes
HEADER = "1\n" + " ".join(NAMES) + "\n"


def celeba_files() -> dict[str, bytes | str]:
    signs = [[-1] * 40 for _ in range(4)]
    signs[0][31] = signs[1][20] = signs[2][31] = 1
    rows = [f"00000{k + 1}.jpg " + "  ".join(map(str, row)) for k, row in enumerate(signs)]
    images = {f"img_align_celeba/00000{k + 1}.jpg": plain_image(60 * k, 18, 22) for k in range(4)}
    return {
        **images,
        "list_attr_celeba.txt": "\n".join(["4", " ".join(NAMES), *rows]) + "\n",
        "list_eval_partition.txt": "".join(
            f"00000{k + 1}.jpg {part}\n" for k, part in enumerate((0, 0, 2, 1))
        ),
    }


@pytest.mark.parametrize("folder", [".", "celeba"])
def test_an_attribute_of_celeba_makes_two_classes(tmp_path, folder):
    write(tmp_path / folder, celeba_files())
    smiling = load("celeba", root=tmp_path, attribute="Smiling")
    male = load("celeba", root=tmp_path, attribute="Male")
    assert [label_of(record) for record in smiling] == [1, 0]
    assert [label_of(record) for record in male] == [0, 1]
    assert smiling.classes == ("not Smiling", "Smiling")
    assert smiling[0][0].shape == (3, 64, 64)
    assert smiling.labels.dtype == torch.int64


def test_all_forty_attributes_are_one_label(tmp_path):
    records = load("celeba", root=write(tmp_path, celeba_files()), size=None)
    image, label = records[0]
    assert image.shape == (3, 22, 18)
    assert label.dtype == torch.float32
    assert label.nonzero().flatten().tolist() == [31]
    assert records.classes == NAMES
    (inputs, labels), *_ = DataLoader(records, batch_size=2)
    assert inputs.shape == (2, 3, 22, 18)
    assert labels.shape == (2, 40)


def test_celeba_has_its_three_official_splits(tmp_path):
    write(tmp_path, celeba_files())
    lengths = {
        split: len(load("celeba", split, root=tmp_path)) for split in ("train", "validation")
    }
    assert lengths == {"train": 2, "validation": 1}
    (record,) = load("celeba", "test", root=tmp_path, attribute="Smiling")
    assert label_of(record) == 1
    assert torch.allclose(record[0], torch.tensor(120 / 255))


def test_an_unknown_attribute_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'Smiling'"):
        load("celeba", root=tmp_path, attribute="smilling")


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("list_attr_celeba.txt", "4\nSmiling Male\n", "40 attributes"),
        ("list_attr_celeba.txt", HEADER + "000001.jpg 1 -1\n", "40 values"),
        ("list_attr_celeba.txt", HEADER + "000001.jpg" + " 2" * 40 + "\n", "40 values"),
        ("list_attr_celeba.txt", HEADER + "000001.jpg", "damaged"),
        ("list_attr_celeba.txt", HEADER + "1.jpg 1 1\n2.jpg 1\n", "damaged"),
        ("list_attr_celeba.txt", HEADER, "and then the images"),
        ("list_eval_partition.txt", "000001.jpg\n", "0, 1 or 2"),
        ("list_eval_partition.txt", "000001.jpg 7\n", "0, 1 or 2"),
        ("list_attr_celeba.txt", b"\xff\xfe", "not text in UTF-8"),
    ],
)
def test_a_table_of_celeba_that_is_damaged_is_named(tmp_path, file, content, message):
    write(tmp_path, {**celeba_files(), file: content})
    with pytest.raises(DataNotFound, match=f"{file} .*{message}"):
        load("celeba", root=tmp_path)


def test_missing_pictures_of_celeba_are_named(tmp_path):
    files = celeba_files()
    tables = {name: content for name, content in files.items() if name.endswith(".txt")}
    write(tmp_path, tables)
    with pytest.raises(DataNotFound, match=r"looked for the folder .*img_align_celeba"):
        load("celeba", root=tmp_path)
    (tmp_path / "img_align_celeba").mkdir()
    with pytest.raises(DataNotFound, match=r"000001\.jpg does not exist"):
        load("celeba", root=tmp_path)[0]
