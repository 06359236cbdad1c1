"""The user's data as a `DataLoader` over our batches.

`dataset_of` finds the records: anything with a length whose records can be read by number, which
every sampling scheme needs.  `loader_over` reads them as the user's own `DataLoader` would, with
its dataset, `collate_fn`, workers and pinning; only the batches are ours.  Guarantees:

- Batch k of the loader is entry k of `batch_sampler`, whole and in order.
- Each record is read by its own number.  A `__getitems__`, which reads many at once and could let
  one change another, is used only where it is known to keep them apart.
- A `DataLoader` that asks for its own sampling (weighted, partial, distributed, by batch) is
  refused: records would not be drawn with the probability that is accounted.  Its batch_size,
  shuffle and drop_last are ignored.

A record is a number: of one that the dataset holds twice, each copy is protected by itself.  So a
`Subset` or a `ConcatDataset`, however nested, that reaches a record in two ways is refused; copies
within a dataset are not detected.  Left to others: that record i depends on no other record (no
vocabulary or mean of the private data inside the dataset), and the draws (`psac.sampling`).

>>> import torch
>>> [batch.tolist() for batch in loader_over(torch.arange(10, 20), [[0, 3], [9]])]
[[10, 13], [19]]
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)


class Records(Protocol):
    """A dataset whose records have numbers from 0 to its length."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


MOST_OBJECTS = 300_000
PLAIN = {int, float, bool, str, bytes, complex, type(None), np.float64, np.int64}
LOADER_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def loader_over(data: Any, batch_sampler: Iterable[list[int]]) -> DataLoader:
    """A loader of the records that `batch_sampler` lists, batch by batch, each time it is iterated.

    Without a `DataLoader` of the user's, torch's defaults hold: no workers, default collation.
    With workers, torch throws away the first of two iterators that it asks for, and asks the second
    for num_workers * prefetch_factor batches in advance: let `batch_sampler.__iter__` be a
    generator function, and do not take what it has yielded for what was trained on.
    """
    records: Any = dataset_of(data)
    names = LOADER_SETTINGS if isinstance(data, DataLoader) else ()
    settings = {name: getattr(data, name) for name in names}
    records = records if keeps_apart(records) else OneAtATime(records)
    return DataLoader(records, batch_sampler=batch_sampler, **settings)


class OneAtATime(Dataset):
    """A data set that is asked for one record after the other; its attributes are those of it."""

    __getitems__ = None

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        return self.dataset[number]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


def keeps_apart(records: Any) -> bool:
    """Whether a data set reads each record by its own number, or is known to read many alike.

    Those of psac, and those of the `datasets` library unless a transform of the user's own is given
    the whole batch.
    """
    if getattr(records, "__getitems__", None) is None:
        return True
    kind = type(records)
    if kind in (Subset, ConcatDataset, StackDataset):
        return all(map(keeps_apart, parts_of(records)))
    if kind.__module__ == "datasets.arrow_dataset":
        return records.format["type"] != "custom"
    return kind.__module__.startswith("psac.")


def parts_of(records: Any) -> Iterable[Any]:
    """The data sets that one of torch's is made of."""
    if isinstance(records, Subset):
        return [records.dataset]
    parts = records.datasets
    return parts.values() if isinstance(parts, Mapping) else parts


def dataset_of(data: Any) -> Records:
    """The records behind a Dataset, DataLoader, tensor, array, list or Hugging Face dataset."""
    if isinstance(data, DataLoader):
        records = _checked_records(data.dataset)
        _check_loader(data, len(records))
        return records
    return _checked_records(data)


def _checked_records(data: Any) -> Records:
    kind = f"dataset is {a(data)}"
    if fault := _no_records(data):
        raise TypeError(f"{kind}{fault}")
    try:
        length = len(data)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(
            f"{kind} without a length, so there is no sampling rate. {_STORE}"
        ) from error
    if length == 0:
        raise ValueError(f"{kind} without records: there is nothing to train on.")
    if isinstance(data, (Subset, ConcatDataset)) and _repeats(data, length):
        raise ValueError(
            f"{kind} that repeats records: one that comes k times is drawn k times as often as is "
            "accounted. List each once; weigh the loss of a sample instead."
        )
    return data


def _repeats(data: Any, length: int) -> bool:
    """Whether two of its numbers lead to the same record."""
    by_source: defaultdict[Hashable, list[np.ndarray]] = defaultdict(list)
    for source, numbers in _sources(data, np.arange(length)):
        by_source[_identity(source)].append(numbers)
    return any(len(np.unique(k)) < len(k) for k in map(np.concatenate, by_source.values()))


def _sources(data: Any, numbers: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """Where the records with these numbers are: datasets, and the numbers there."""
    if isinstance(data, Subset):
        inner = np.array([int(k) for k in data.indices], dtype=np.int64)[numbers]
        # From the end, as lists count: -1 is the last one.
        size = len(data.dataset) if (inner < 0).any() else 0  # type: ignore[arg-type]
        yield from _sources(data.dataset, np.where(inner < 0, inner + size, inner))
    elif isinstance(data, ConcatDataset):
        ends = np.array(data.cumulative_sizes)
        part_of = np.searchsorted(ends, numbers, side="right")
        for k, part in enumerate(data.datasets):
            yield from _sources(part, numbers[part_of == k] - (ends[k - 1] if k else 0))
    else:
        yield data, numbers


def _identity(source: Any) -> Hashable:
    """Equal for two views of the same tensors, too."""
    tensors = source.tensors if isinstance(source, TensorDataset) else (source,)
    if all(isinstance(t, Tensor) and t.layout is torch.strided for t in tensors):
        return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors)
    return id(source)


def a(value: Any) -> str:
    """Its class, with an article."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


_STORE = "Store the records in a list, a tensor or a Dataset with __len__ and __getitem__."


def _no_records(data: Any) -> str | None:
    """Why there are no numbered records, and what to do; None if there may be."""
    if isinstance(data, IterableDataset):
        return f", an IterableDataset: psac must be able to read any record by its index. {_STORE}"
    if isinstance(data, Mapping):
        return (
            f" with the keys {', '.join(map(repr, list(data)[:5]))}. If they are splits, pass one, "
            "such as dataset['train']; if they are columns, pass TensorDataset(*dataset.values()), "
            "or a list with one dict for each record."
        )
    if isinstance(data, tuple):
        return (
            ", which could be one record or several columns. Pass TensorDataset(*dataset) for "
            "columns such as (inputs, labels), or list(dataset) for records."
        )
    if hasattr(data, "iloc"):
        return (
            ", where [0] is a column or a label. Pass dataset.to_dict('records') or a "
            "TensorDataset of its columns."
        )
    if isinstance(data, (str, bytes)) or not hasattr(type(data), "__getitem__"):
        return f", which has no numbered records. {_STORE}"
    return None


def _check_loader(loader: DataLoader, num_records: int) -> None:
    if fault := _fault(loader, num_records):
        raise ValueError(
            f"dataset is {a(loader)} with {fault}. Which records enter a step, and with "
            "what chance, is decided by the sampling that is accounted. Pass a DataLoader(dataset, "
            "batch_size=...), shuffled or not, or the dataset itself."
        )


def _fault(loader: DataLoader, num_records: int) -> str | None:
    """What would be ignored, or would draw otherwise than is accounted; None if nothing."""
    sampler: Any = loader.sampler
    if type(loader).__iter__ is not DataLoader.__iter__:
        return "an __iter__ of its own"
    if loader.batch_sampler is None:
        return "batch_size=None, which leaves the batches to the dataset"
    if loader.batch_size is None:
        return f"a batch_sampler of its own, {type(loader.batch_sampler).__name__}"
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return f"a sampler of its own, {type(sampler).__name__}"
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        return "a RandomSampler(replacement=True)"
    if len(sampler) != num_records:
        return f"a sampler that takes {len(sampler)} of {num_records} records an epoch"
    if not loader.in_order:
        return "in_order=False, so that a batch could meet the step of another"
    return None


def released_with(data: Any) -> list[Any]:
    """Ledgers of what was released of these records before.

    `psac.data` attaches them to a data set and to its tensors, so that a data set built from those
    tensors has them, too.
    """
    held = held_by(data)
    ledgers = [getattr(carrier, "released", None) for carrier in (*held.datasets, *held.values)]
    return list({id(ledger): ledger for ledger in ledgers if ledger is not None}.values())


class Held(NamedTuple):
    """What a data set holds: tensors and arrays, and the data sets that it is made of."""

    values: list[Any]
    datasets: list[Any]


def held_by(data: Any) -> Held:
    """What holds the records, where it can be seen.

    Up to 300,000 lists, dicts and objects are entered, with all of their attributes; not what can
    be called, such as a transform.  Files, tables of other libraries and numbers of Python are not
    seen.
    """
    source = data.dataset if isinstance(data, DataLoader) else data
    held, seen = Held([], [source]), {id(source)}
    if isinstance(source, (Tensor, np.ndarray)):
        return Held([source], [])
    waiting, entered = [source], 0
    while waiting and entered < MOST_OBJECTS:
        entered += 1
        for value in _inside(waiting.pop()):
            if type(value) in PLAIN or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, (Tensor, np.ndarray)):
                held.values.append(value)
                if isinstance(value, Tensor) or not value.dtype.hasobject:
                    continue
            elif isinstance(value, Dataset):
                held.datasets.append(value)
            waiting.append(value)
    return held


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value
    if isinstance(value, dict):  # other mappings may read files
        return value.values()
    if isinstance(value, np.ndarray):
        return value.flat
    if callable(value) and not isinstance(value, Dataset):
        return ()
    return list(getattr(value, "__dict__", {}).values())
