"""Forty labels of a picture: from its class, and from its own pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psac.app.data import load
from psac.app.data.sets import cifar
from psac.app.data.sets.attributes import GROUPS, attribute_names, labels_of
from tests.app.data.small_files import write
from tests.app.data.test_pictures import cifar_records

CLASSES = cifar.CIFAR10.classes


def test_there_are_forty_and_they_differ():
    assert len(set(attribute_names(CLASSES))) == 40
    sets = [(name,) for name in CLASSES] + list(GROUPS.values())
    assert len({frozenset(members) for members in sets}) == 24
    assert all(set(members) < set(CLASSES) for members in GROUPS.values())


@pytest.mark.parametrize(
    ("picture", "yes", "no"),
    [
        (torch.ones(3, 32, 32), {"bright", "grey", "smooth", "white corner"}, {"very dark"}),
        (torch.zeros(3, 32, 32), {"very dark", "low contrast"}, {"bright", "reddish"}),
        (torch.tensor([0.9, 0.1, 0.1])[:, None, None].expand(3, 32, 32), {"reddish"}, {"bluish"}),
        (torch.linspace(1, 0, 32)[:, None].expand(3, 32, 32), {"lighter above"}, {"lighter below"}),
        ((torch.arange(32) % 2).float().expand(3, 32, 32), {"fine detail"}, {"smooth"}),
    ],
)
def test_a_picture_has_the_attributes_that_it_shows(picture, yes, no):
    (row,) = labels_of(picture[None], torch.tensor([CLASSES.index("frog")]), CLASSES)
    true = {
        name for name, value in zip(attribute_names(CLASSES), row.tolist(), strict=True) if value
    }
    assert yes | {"frog", "animal", "lays eggs"} <= true
    assert not true & (no | {"cat", "vehicle", "mammal"})


def test_a_record_has_the_same_labels_in_any_company(tmp_path):
    rows = {file: cifar_records(3, seed) for seed, file in enumerate(cifar.FILES)}
    write(tmp_path, {file: rows[file].tobytes() for file in rows})
    records = load("cifar10", root=tmp_path, attributes=True)
    inputs, labels = records.tensors
    assert labels.shape == (15, 40)
    assert records.classes == attribute_names(CLASSES)
    number = torch.tensor(np.concatenate([rows[file] for file in cifar.TRAIN])[7:8, 0]).long()
    assert torch.equal(labels_of(inputs[7:8], number, CLASSES)[0], labels[7])
