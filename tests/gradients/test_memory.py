"""Memory of private records is known in any view of it, and so are the data sets themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import psac
from psac.gradients.isolation.memory import Memory
from psac.loading import dataset as datasets
from psac.loading.dataset import held_by
from tests.private_runs import loss, network, private_run, records, sgd, train

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


class Rows(Dataset):
    """Keeps its records as it likes."""

    def __init__(self, keep) -> None:
        x, y, k = records().tensors
        self.length, self.kept = len(x), keep(x, y, k)
        self.classes, self.transform = 3, torch.nn.Linear(4, 4)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        x, y, k = records().tensors
        return x[number], y[number], k[number]


KEPT = {
    "a list of tensors": lambda x, y, k: [row.clone() for row in x],
    "a list of pairs": lambda x, y, k: [
        (row.clone(), int(label)) for row, label in zip(x, y, strict=True)
    ],
    "a dict of tensors": lambda x, y, k: {"x": x, "y": y},
    "an array": lambda x, y, k: x.numpy().copy(),
    "a view of an array": lambda x, y, k: x.numpy().copy()[:, 1:3],
    "an array of arrays": lambda x, y, k: np.array([*x.numpy(), None], dtype=object),
    "another data set": lambda x, y, k: Subset(ConcatDataset([TensorDataset(x, y)]), [1, 2]),
    "a loader": lambda x, y, k: DataLoader(TensorDataset(x, y)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_data_set_keeps_is_found(name):
    data = Rows(KEPT[name])
    assert held_by(data).values
    assert held_by(DataLoader(data)).values
    assert data in held_by(Subset(data, [0, 1])).datasets
    assert all(value is not data.transform.weight for value in held_by(data).values)


def test_memory_is_known_in_any_view():
    x, array = torch.zeros(10, 4), np.zeros((10, 4), dtype=np.float32)
    memory = Memory([x, array, x[3], array[2:, 1]], [array])
    inside = [x, x[4:, 2], x.t(), x.numpy(), x.numpy()[3], torch.from_numpy(array[5])]
    assert all(memory.has(value) for value in inside)
    outside = [x.clone(), array + 0, torch.zeros(0), np.zeros(0), torch.zeros(3, device="meta"), 3]
    assert not any(memory.has(value) for value in outside)
    larger = memory | {7}
    assert 7 in larger
    assert 7 not in memory


def test_the_walk_ends_at_the_stated_number_of_objects(monkeypatch):
    monkeypatch.setattr(datasets, "MOST_OBJECTS", 50)
    assert 0 < len(held_by([[torch.zeros(1)] for _ in range(100)]).values) < 60


def test_an_array_row_that_becomes_a_tensor_is_refused_by_its_memory():
    """A function of a library is not walked through: what it reads is seen when it is read."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = [(x[k], k % 3, k) for k in range(40)]
    private = private_run(data=data)
    hidden = {id(private): x}

    def reads(model, x, y, k):
        rows = torch.from_numpy(hidden[id(private)][1]) if hidden else 0
        return loss(model, x - rows, y, k)

    with pytest.raises(psac.PrivacyError, match=r"private (batch or )?data set"):
        train(private, loss=reads)


@pytest.mark.parametrize("name", KEPT)
def test_a_function_that_reaches_the_data_set_is_refused(name):
    data = Rows(KEPT[name])

    def reads(model, x, y, k):
        return loss(model, x, y, k) / len(data)

    with pytest.raises(psac.PrivacyError, match=r"reaches loss \(closure\) data, a Rows"):
        train(private_run(data=data), loss=reads)


class Trainer:
    def __init__(self) -> None:
        self.data, self.model, self.weight = records(), network(), 2.0
        self.private = private_run(self.model, sgd(self.model), self.data)

    def loss(self, model, x, y, k):
        return getattr(self, "weight") * loss(model, x, y, k)  # noqa: B009

    def train(self):
        return train(self.private, loss=self.loss)


def test_a_trainer_that_has_the_data_set_and_does_not_use_it_in_the_loss_is_welcome():
    assert Trainer().train()


def test_a_module_that_has_the_data_set_is_welcome():
    model = network()
    model.train_set = data = records()
    assert train(private_run(model, data=data))
