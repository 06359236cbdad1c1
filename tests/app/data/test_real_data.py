"""The real data, fetched anew: their numbers, and facts that everybody knows of them."""

from __future__ import annotations

import pytest
import torch

import psac

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def fresh_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSAC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    "name, train_labels, test_labels, shape, mean",
    [
        ("fashion-mnist", [9, 0, 0, 3, 0], [9, 2, 1, 1, 6], (1, 28, 28), [0.2860]),
        ("mnist", [5, 0, 4, 1, 9], [7, 2, 1, 0, 4], (1, 28, 28), [0.1307]),
        ("cifar10", [6, 9, 9, 4, 1], [3, 8, 8, 0, 6], (3, 32, 32), [0.4914, 0.4822, 0.4465]),
    ],
)
def test_images_are_the_published_ones(name, train_labels, test_labels, shape, mean):
    calls = []
    psac.data.fetch(name, lambda *call: calls.append(call))
    assert calls
    info = psac.data.info(name)
    assert info.obtained in info.sources
    train, test = psac.data.load(name), psac.data.load(name, "test")
    assert {"train": len(train), "test": len(test)} == info.records
    inputs, labels = train.tensors
    assert labels[:5].tolist() == train_labels
    assert test.tensors[1][:5].tolist() == test_labels
    assert inputs.shape[1:] == shape
    assert (inputs.min(), inputs.max()) == (0, 1)
    assert torch.allclose(inputs.mean((0, 2, 3)), torch.tensor(mean), atol=1e-4)
    if name != "mnist":
        assert labels.bincount().tolist() == [len(train) // 10] * 10


def test_movie_reviews_are_balanced_in_both_splits():
    records = {split: psac.data.load("movie-reviews", split) for split in ("train", "test")}
    assert {split: len(records[split]) for split in records} == psac.data.info(
        "movie-reviews"
    ).records
    for split in records.values():
        positive = sum(split[number]["label"] for number in range(len(split)))
        assert 0.48 < positive / len(split) < 0.52
    assert records["train"][0]["text"].startswith("I rented I AM CURIOUS-YELLOW")


@pytest.mark.parametrize("name", ["minilm", "mpnet"])
def test_pretrained_weights_give_the_number_of_parameters_that_is_stated(name):
    from psac.app.text.classifier import build
    from psac.app.text.pretrained import PRETRAINED, fetch

    calls = []
    fetch(name, lambda *call: calls.append(call))
    assert calls
    model = build(name, classes=2)
    head = 2 * model.network.config.hidden_size + 2
    assert sum(p.numel() for p in model.parameters()) - head == PRETRAINED[name].parameters


def test_adult_has_its_official_split_and_rates():
    records = {split: psac.data.load("adult", split) for split in ("train", "test")}
    assert {split: len(records[split]) for split in records} == psac.data.info("adult").records
    assert int(records["train"].tensors[1].sum()) == 7_841
    assert int(records["test"].tensors[1].sum()) == 3_846
    inputs = records["train"].tensors[0]
    assert inputs.shape == (32_561, 104)
    assert inputs.min() == 0
    assert inputs.max() == 1
    # Unknown are 1,836 employers, 1,843 occupations, 583 countries.
    assert int(inputs[:, 5:].sum()) == 8 * 32_561 - 1_836 - 1_843 - 583


def test_digits_are_those_of_scikit_learn():
    records = {split: psac.data.load("digits", split) for split in ("train", "test")}
    assert {split: len(records[split]) for split in records} == psac.data.info("digits").records
    datasets = pytest.importorskip("sklearn.datasets")
    inputs = torch.cat([split.tensors[0] for split in records.values()]).flatten(1) * 16
    labels = torch.cat([split.tensors[1] for split in records.values()])
    ours = sorted(
        [*row, label] for row, label in zip(inputs.tolist(), labels.tolist(), strict=True)
    )
    images, numbers = datasets.load_digits(return_X_y=True)
    theirs = sorted([*row, label] for row, label in zip(images.tolist(), numbers, strict=True))
    assert ours == theirs
