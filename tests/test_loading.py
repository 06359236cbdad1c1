"""Any map-style data becomes a loader of exactly our batches; other samplings are refused."""

import collections
import os
import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from psac.loading.dataset import LOADER_SETTINGS, OneAtATime, dataset_of, loader_over
from psac.noise.generators import SecureGenerator
from psac.sampling import Poisson, Sampler, physical_batches

BATCHES = [[4, 0, 9], [7], [2, 2], [1, 3, 5, 6]]
INPUTS, LABELS = torch.arange(20.0).reshape(10, 2), torch.arange(10)


def forks_workers(test):
    """Python warns where a process with threads is forked, torch where cores are scarce."""
    threads = pytest.mark.filterwarnings("ignore:This process .* is multi-thr:DeprecationWarning")
    return threads(
        pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")(test)
    )


class Squares(Dataset):
    """Record i is i squared, and the process that read it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> dict[str, int]:
        return {"square": number**2, "process": os.getpid()}


class HuggingFaceLike:
    """As `datasets.Dataset`: a number gives a record, a list of them a dict of columns."""

    __module__ = "datasets.arrow_dataset"
    format: ClassVar = {"type": None}

    def __init__(self) -> None:
        self.fetched: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: int | list[int]) -> dict[str, Any]:
        return {"label": key}

    def __getitems__(self, keys: list[int]) -> list[dict[str, int]]:
        self.fetched.append(keys)
        return [{"label": key} for key in keys]


def tupled(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(batch)


# ---- Every kind of data


def test_a_plain_tensor_is_read_by_row():
    batches = list(loader_over(INPUTS, BATCHES))
    assert [batch.tolist() for batch in batches] == [INPUTS[batch].tolist() for batch in BATCHES]


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(INPUTS, LABELS),
        list(zip(INPUTS, LABELS, strict=True)),
        DataLoader(TensorDataset(INPUTS, LABELS), batch_size=4, shuffle=True, drop_last=True),
        Subset(TensorDataset(INPUTS, LABELS), range(10)),
    ],
    ids=["TensorDataset", "list of tuples", "DataLoader", "Subset"],
)
def test_tuples_are_collated_column_by_column(data):
    batches = list(loader_over(data, BATCHES))
    assert len(batches) == len(BATCHES)
    for (inputs, labels), numbers in zip(batches, BATCHES, strict=True):
        assert torch.equal(inputs, INPUTS[numbers])
        assert labels.tolist() == numbers


@pytest.mark.parametrize(
    "data",
    [
        [{"label": number} for number in range(10)],
        HuggingFaceLike(),
        DataLoader(HuggingFaceLike(), batch_size=2),  # type: ignore[arg-type]
    ],
    ids=["list", "Hugging Face", "DataLoader of it"],
)
def test_dicts_are_collated_key_by_key(data):
    assert [batch["label"].tolist() for batch in loader_over(data, BATCHES)] == BATCHES


@pytest.mark.parametrize("wrapped", [False, True])
def test_records_are_read_one_at_a_time_if_a_batch_could_mix_them(wrapped):
    class Centred(TensorDataset):
        def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, ...]]:
            inputs, labels = self.tensors[0][numbers], self.tensors[1][numbers]
            return list(zip(inputs - inputs.mean(0), labels, strict=True))

    data: Any = Centred(INPUTS, LABELS)
    loader = loader_over(Subset(data, range(10)) if wrapped else data, BATCHES)
    for (inputs, _), numbers in zip(loader, BATCHES, strict=True):
        assert torch.equal(inputs, INPUTS[numbers])


def test_a_transform_of_whole_batches_is_given_one_record():
    data = HuggingFaceLike()
    data.format = {"type": "custom"}  # type: ignore[misc]
    assert [batch["label"].tolist() for batch in loader_over(data, BATCHES)] == BATCHES
    assert data.fetched == []


def test_the_attributes_of_a_data_set_that_is_read_one_at_a_time_are_its_own():
    data = HuggingFaceLike()
    data.format = {"type": "custom"}  # type: ignore[misc]
    dataset: Any = pickle.loads(pickle.dumps(OneAtATime(Squares())))
    assert loader_over(data, BATCHES).dataset.fetched is data.fetched  # type: ignore[attr-defined]
    assert (len(dataset), dataset[3]["square"]) == (10, 9)


def test_a_hugging_face_dataset_is_asked_for_a_whole_batch_at_once():
    data = HuggingFaceLike()
    list(loader_over(data, BATCHES))
    assert data.fetched == BATCHES


@pytest.mark.parametrize("data", [np.arange(10), list(range(10)), range(10)], ids=str)
def test_arrays_lists_and_ranges_of_numbers_are_data(data):
    assert [batch.tolist() for batch in loader_over(data, BATCHES)] == BATCHES


def test_the_dataset_stays_the_same_object():
    data = Squares()
    assert dataset_of(data) is data
    assert dataset_of(DataLoader(data, batch_size=3, shuffle=True)) is data
    assert loader_over(DataLoader(data), BATCHES).dataset is data


# ---- What is kept of the user's DataLoader


def test_a_collate_function_is_kept():
    loader = DataLoader(LABELS, batch_size=5, collate_fn=tupled)  # type: ignore[arg-type]
    assert list(loader_over(loader, [[1, 2]])) == [(torch.tensor(1), torch.tensor(2))]


def test_every_setting_but_the_batches_is_kept():
    loader = DataLoader(
        Squares(),
        batch_size=3,
        num_workers=1,
        collate_fn=tupled,
        pin_memory=True,
        timeout=60,
        worker_init_fn=print,
        multiprocessing_context="spawn",
        generator=torch.Generator(),
        prefetch_factor=5,
        persistent_workers=True,
        pin_memory_device="cuda",
    )
    ours, plain = loader_over(loader, BATCHES), DataLoader(Squares())
    for name in LOADER_SETTINGS:
        assert getattr(ours, name) is getattr(loader, name) != getattr(plain, name), name
    assert ours.batch_sampler is BATCHES
    assert len(ours) == len(BATCHES)


def test_no_argument_of_a_data_loader_is_forgotten():
    decided_by_us = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order"}
    code = DataLoader.__init__.__code__
    arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    assert set(arguments) == decided_by_us | {*LOADER_SETTINGS, "dataset"}


@forks_workers
def test_workers_read_the_batches_in_order():
    loader = loader_over(DataLoader(Squares(), num_workers=2), BATCHES * 5)
    batches = list(loader)
    squares = [[number**2 for number in numbers] for numbers in BATCHES * 5]
    assert [batch["square"].tolist() for batch in batches] == squares
    processes = {int(process) for batch in batches for process in batch["process"]}
    assert len(processes) == 2
    assert os.getpid() not in processes


@forks_workers
def test_persistent_workers_serve_new_batches_epoch_after_epoch():
    class Epochs:
        """Other batches each time, as a sampler gives them."""

        def __init__(self) -> None:
            self.epoch = 0

        def __iter__(self):
            self.epoch += 1
            yield from ([self.epoch, number] for number in range(5))

    loader = loader_over(DataLoader(Squares(), num_workers=2, persistent_workers=True), Epochs())
    processes = set()
    for epoch in (1, 2, 3):
        batches = list(loader)
        expected = [[epoch**2, number**2] for number in range(5)]
        assert [batch["square"].tolist() for batch in batches] == expected
        processes |= {int(process) for batch in batches for process in batch["process"]}
    assert len(processes) == 2


@pytest.mark.skipif(torch.accelerator.is_available(), reason="here memory is pinned in earnest")
def test_pinning_without_an_accelerator_warns_as_torch_does_and_changes_nothing():
    loader = loader_over(DataLoader(TensorDataset(LABELS), pin_memory=True), BATCHES)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(loader)
    assert [batch.tolist() for (batch,) in batches] == BATCHES


def test_the_loader_reads_what_a_sampler_draws():
    sampler = Sampler(Poisson(), 10, 8, SecureGenerator())
    draws = [sampler.draw() for _ in range(20)]
    parts = [part for draw in draws for part in physical_batches(draw, 3)]
    read = torch.cat(list(loader_over(LABELS, parts)))
    assert torch.equal(read, torch.cat(draws))


# ---- Refusals


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class WithoutLength(Dataset):
    def __getitem__(self, number: int) -> int:
        return number


class LengthNotWritten(WithoutLength):
    def __len__(self) -> int:
        raise NotImplementedError


class Frame:
    """As `pandas.DataFrame`, where [0] is no record."""

    iloc = None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, column: str) -> list[int]:
        return []


NO_DATASETS = {
    "stream": (Stream(), "a Stream, an IterableDataset: psac must"),
    "stream in a loader": (DataLoader(Stream()), "Stream, an IterableDataset"),
    "no length": (WithoutLength(), "WithoutLength without a length, so there is no sampling rate"),
    "length not written": (LengthNotWritten(), "LengthNotWritten without a length"),
    "generator": ((number for number in range(3)), "generator, which has no numbered records"),
    "set": ({1, 2}, "set, which has no numbered records"),
    "number": (7, "int, which has no numbered records"),
    "none": (None, "NoneType, which has no numbered records"),
    "zero-dimensional tensor": (torch.tensor(3.0), "Tensor without a length"),
    "string": ("train.csv", "str, which has no numbered records.*a list, a tensor or a Dataset"),
    "bytes": (b"records", "bytes, which has no numbered records"),
    "columns": (
        {"x": INPUTS, "y": LABELS},
        r"keys 'x', 'y'.*TensorDataset\(\*dataset.values\(\)\)",
    ),
    "splits": (
        collections.UserDict(train=[1]),
        r"keys 'train'.*pass one, such as dataset\['train'\]",
    ),
    "tuple of columns": ((INPUTS, LABELS), r"tuple.*TensorDataset\(\*dataset\).*list\(dataset\)"),
    "data frame": (Frame(), r"Frame, where \[0\] is a column.*to_dict\('records'\)"),
}


@pytest.mark.parametrize("data, message", NO_DATASETS.values(), ids=NO_DATASETS)
def test_what_has_no_numbered_records_is_refused_with_advice(data, message):
    for function in (dataset_of, lambda data: loader_over(data, BATCHES)):
        with pytest.raises(TypeError, match=message):
            function(data)


@pytest.mark.parametrize(
    "data", [[], TensorDataset(INPUTS[:0]), INPUTS[:0], DataLoader(Subset(Squares(), []))]
)
def test_data_without_records_is_refused(data):
    with pytest.raises(ValueError, match="without records"):
        dataset_of(data)


@pytest.mark.parametrize("numbers", [[0, 1, 1], torch.tensor([3, 3])], ids=["list", "tensor"])
def test_a_subset_that_repeats_records_is_refused(numbers):
    for data in (Subset(Squares(), numbers), DataLoader(Subset(Squares(), numbers))):
        with pytest.raises(ValueError, match="repeats records"):
            dataset_of(data)


SQUARES = Squares()
REPEATING = {
    "concatenated with itself": ConcatDataset([SQUARES, SQUARES]),
    "parts that overlap": ConcatDataset([Subset(SQUARES, [0, 1]), Subset(SQUARES, [1, 2])]),
    "part of a part": Subset(Subset(SQUARES, [0, 0, 1]), [0, 1, 2]),
    "counted from the end": Subset(SQUARES, [1, 1 - len(SQUARES)]),
    "part of a union": Subset(ConcatDataset([SQUARES, SQUARES]), [3, len(SQUARES) + 3]),
    "the same tensors": ConcatDataset([TensorDataset(INPUTS), TensorDataset(INPUTS)]),
    "a union of unions": ConcatDataset([ConcatDataset([SQUARES]), Subset(SQUARES, [2])]),
}


@pytest.mark.parametrize("name", REPEATING)
def test_records_that_are_reached_in_two_ways_are_refused(name):
    for data in (REPEATING[name], DataLoader(REPEATING[name])):
        with pytest.raises(ValueError, match="repeats records"):
            dataset_of(data)


@pytest.mark.parametrize(
    "data",
    [
        Subset(Subset(SQUARES, [0, 0, 1]), [0, 2]),
        Subset(ConcatDataset([SQUARES, SQUARES]), [3, len(SQUARES) + 4]),
        ConcatDataset([SQUARES, Squares()]),
        ConcatDataset([Subset(SQUARES, range(2)), Subset(SQUARES, torch.tensor([2, -1]))]),
        ConcatDataset([TensorDataset(INPUTS[:5]), TensorDataset(INPUTS[5:])]),
        ConcatDataset([TensorDataset(INPUTS, INPUTS), TensorDataset(torch.zeros(2), INPUTS[:2])]),
    ],
)
def test_unions_and_parts_that_have_each_record_once_are_accepted(data):
    assert dataset_of(data) is data


class Reversing(RandomSampler):
    def __iter__(self):
        return reversed(range(10))


class OwnIteration(DataLoader):
    def __iter__(self):
        return iter([])


class OwnConstructor(DataLoader):
    """As PyTorch Geometric's, which only sets another collate_fn."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, batch_size=2, collate_fn=tupled)


DATA = Squares()
LOADERS = {
    "weighted": ({"sampler": WeightedRandomSampler([1.0] * 10, 10)}, "WeightedRandomSampler"),
    "subset": ({"sampler": SubsetRandomSampler(range(10))}, "SubsetRandomSampler"),
    "distributed": ({"sampler": DistributedSampler(DATA, 2, 0)}, "DistributedSampler"),
    "list": ({"sampler": [3, 1, 2]}, "a sampler of its own, list"),
    "subclass": ({"sampler": Reversing(DATA)}, "Reversing"),
    "replacement": ({"sampler": RandomSampler(DATA, True)}, "replacement=True"),
    "part": ({"sampler": RandomSampler(DATA, num_samples=4)}, "takes 4 of 10 records"),
    "first ones": ({"sampler": SequentialSampler(range(6))}, "takes 6 of 10 records"),
    "batches": (
        {"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False)},
        "a batch_sampler of its own, BatchSampler",
    ),
    "listed batches": ({"batch_sampler": [[1, 2]]}, "a batch_sampler of its own, list"),
    "no batches": ({"batch_size": None}, "batch_size=None"),
    "order": ({"in_order": False}, "in_order=False"),
}


@pytest.mark.parametrize("settings, message", LOADERS.values(), ids=LOADERS)
def test_a_loader_that_decides_about_its_batches_is_refused(settings, message):
    loader = DataLoader(DATA, **settings)
    for function in (dataset_of, lambda data: loader_over(data, BATCHES)):
        with pytest.raises(ValueError, match=f"{message}.*accounted.*or the dataset itself"):
            function(loader)


def test_a_loader_that_iterates_in_its_own_way_is_refused_and_other_subclasses_are_not():
    with pytest.raises(ValueError, match="OwnIteration with an __iter__ of its own"):
        dataset_of(OwnIteration(DATA))
    assert list(loader_over(OwnConstructor(LABELS), [[1]])) == [(torch.tensor(1),)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle": True},
        {"sampler": SequentialSampler(DATA)},
        {"sampler": RandomSampler(DATA)},
        {"batch_size": 4, "drop_last": True},
        {"collate_fn": default_collate},
    ],
)
def test_a_loader_that_takes_every_record_once_is_accepted(settings):
    loader = loader_over(DataLoader(DATA, **settings), BATCHES)
    squares: list[Tensor] = [batch["square"] for batch in loader]
    assert [batch.tolist() for batch in squares] == [[n**2 for n in batch] for batch in BATCHES]
