"""Features of a frozen network: computed once, in parts, from each picture alone."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
import torch

from psac.app.data import catalogue
from psac.app.data.records import TensorRecords
from psac.app.data.sets import features


@pytest.fixture
def pictures(monkeypatch, tmp_path):
    """25 and 15 pictures instead of CIFAR-10, in parts of 10, in an empty cache."""
    generator = torch.Generator().manual_seed(0)
    made = {
        split: TensorRecords(
            torch.rand(n, 3, 32, 32, generator=generator),
            torch.arange(n) % 10,
            name="few",
            classes="ab",
        )
        for split, n in (("train", 25), ("test", 15))
    }
    monkeypatch.setattr(features, "_images", made.__getitem__)
    monkeypatch.setattr(features, "PART", 10)
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path))
    return made


class Network:
    """Means of four corners, and how many pictures it was shown; it may break down."""

    def __init__(self, breaks_after: int = 1000) -> None:
        self.seen, self.breaks_after = 0, breaks_after

    def __call__(self, pictures):
        if self.seen >= self.breaks_after:
            raise KeyboardInterrupt
        self.seen += len(pictures)
        return torch.nn.functional.adaptive_avg_pool2d(pictures, 2).flatten(1)[:, :, None, None]


def with_network(monkeypatch, network: Network) -> None:
    entry = features.CIFAR10_FEATURES
    source = dataclasses.replace(entry.sources[0], load_network=lambda: network)
    changed = dataclasses.replace(entry, sources=(source,))
    monkeypatch.setitem(catalogue.ENTRIES, entry.name, changed)


def test_features_have_length_one_and_are_those_of_the_picture_alone(pictures, monkeypatch):
    with_network(monkeypatch, Network())
    inputs, labels = catalogue.load("cifar10-features").tensors
    assert inputs.shape == (25, 12)
    assert inputs.norm(dim=1).numpy() == pytest.approx(np.ones(25), abs=1e-6)
    assert labels.tolist() == pictures["train"].tensors[1].tolist()
    alone = features.features_of(Network(), pictures["train"].tensors[0][7:8]).float()
    assert torch.allclose(inputs[7], alone[0] / alone.norm(), atol=1e-3)
    assert len(catalogue.load("cifar10-features", "test")) == 15


def test_computing_goes_on_where_it_was_stopped_and_is_done_once(pictures, monkeypatch):
    with_network(monkeypatch, Network(breaks_after=20))
    with pytest.raises(KeyboardInterrupt):
        catalogue.load("cifar10-features")
    again = Network()
    with_network(monkeypatch, again)
    told = []
    catalogue.load("cifar10-features", progress=lambda *call: told.append(call))
    assert again.seen == 40 - 20
    assert told[-1] == ("features of test images", 15, 15)
    catalogue.load("cifar10-features", "test")
    assert again.seen == 40 - 20


def test_a_missing_network_is_told_with_what_to_install(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'psac\[features\]'"):
        catalogue.load("cifar10-features")
