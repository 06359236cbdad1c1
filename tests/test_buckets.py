"""Batches of public lengths: what a record is padded to is a function of that record alone."""

import collections
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from psac.gradients.errors import NotIsolated, PrivacyError
from psac.loading.collation import IsolatedCollate
from psac.loading.collation.buckets import ByLength

Pair = collections.namedtuple("Pair", "ids labels")


@dataclasses.dataclass
class Batch:
    ids: Tensor
    labels: Tensor


def by_length(samples, collate_fn, lengths) -> list[Any]:
    return ByLength(collate_fn, lengths)(samples)


def rows(*lengths: int) -> list[tuple[Tensor, int]]:
    """Record k holds k + 1, and is labelled k."""
    return [(torch.full((n,), k + 1), k) for k, n in enumerate(lengths)]


def pads(samples: list[tuple[Tensor, int]]) -> Pair:
    ids = pad_sequence([ids for ids, _ in samples], batch_first=True, padding_value=-7)
    return Pair(ids, torch.tensor([label for _, label in samples]))


@given(st.lists(st.integers(1, 12), max_size=9))
def test_each_record_is_there_once_at_the_least_length_that_fits(lengths):
    batches = by_length(rows(*lengths), pads, (4, 8, 12))
    seen = []
    for batch in batches:
        length = batch.ids.shape[1]
        assert batch.labels.tolist() == sorted(batch.labels.tolist())
        for ids, label in zip(batch.ids, batch.labels.tolist(), strict=True):
            own = lengths[label]
            assert length == min(n for n in (4, 8, 12) if n >= own)
            assert ids.tolist() == [label + 1] * own + [-7] * (length - own)
            seen.append(label)
    assert sorted(seen) == list(range(len(lengths)))
    assert [b.ids.shape[1] for b in batches] == sorted({b.ids.shape[1] for b in batches})


@pytest.mark.parametrize("others", [(), (3,), (2, 5), (1, 8, 8)])
def test_a_record_looks_the_same_whatever_comes_with_it(others):
    batch = by_length([*rows(3), *rows(*others)], pads, (4, 8))[0]
    assert batch.ids[0].tolist() == [1, 1, 1, -7]


@pytest.mark.parametrize("own", [1, 2, 3, 4])
def test_padding_is_known_from_one_record_of_any_length(own):
    (batch,) = by_length(rows(own), pads, (6,))
    assert batch.ids.tolist() == [[1] * own + [-7] * (6 - own)]


def test_padding_is_known_where_the_first_record_has_the_greatest_length_that_is_allowed():
    def cut_and_padded(samples):
        return pads([(ids[:6], label) for ids, label in samples])

    buckets = ByLength(cut_and_padded, (3, 6))
    buckets(rows(9))
    assert [batch.ids.shape[1] for batch in buckets(rows(2, 9))] == [3, 6]


@pytest.mark.parametrize(
    "build, kind",
    [
        (lambda ids, labels: {"ids": ids, "labels": labels}, dict),
        (lambda ids, labels: [ids, labels, None], list),
        (Batch, Batch),
        (Pair, Pair),
    ],
)
def test_batches_keep_their_structure(build, kind):
    batches = by_length(rows(2, 5), lambda samples: build(*pads(samples)), (3, 6))
    assert [type(batch) for batch in batches] == [kind, kind]


@pytest.mark.parametrize(
    "sample",
    [
        lambda n: list(range(n)),
        lambda n: np.arange(n),
        lambda n: {"ids": torch.arange(n), "mask": [1] * n, "fixed": torch.ones(n)},
        lambda n: Batch(torch.arange(n), torch.ones(n)),
        lambda n: " ".join(map(str, range(n))),
    ],
    ids=["list", "array", "dict", "dataclass", "string"],
)
def test_samples_of_any_kind_are_understood(sample):
    def collate(samples):
        ids = [s["ids"] if isinstance(s, dict) else getattr(s, "ids", s) for s in samples]
        ids = [list(map(int, row.split())) if isinstance(row, str) else row for row in ids]
        return pad_sequence([torch.as_tensor(row) for row in ids], True, -7)

    (batch,) = by_length([sample(3)], collate, (5,))
    assert batch.tolist() == [[0, 1, 2, -7, -7]]


def test_leaves_of_a_fixed_size_stay_as_they_are():
    def collate(samples):
        return pads(samples).ids, torch.stack([torch.arange(3.0) + label for _, label in samples])

    for ids, fixed in by_length(rows(3, 5, 1), collate, (4, 8)):
        assert ids.shape[1] in (4, 8)
        assert fixed.shape[1] == 3


def test_records_without_a_length_make_one_batch():
    (batch,) = by_length([torch.ones(3), torch.zeros(3)], default_collate, (8, 16))
    assert batch.shape == (2, 3)


def test_all_axes_that_vary_are_padded():
    def masks(samples):
        size = max(len(s) for s in samples)
        return torch.stack([F.pad(s, (0, size - len(s), 0, size - len(s))) for s in samples])

    shapes = [batch.shape for batch in by_length([torch.ones(n, n) for n in (2, 5)], masks, (3, 6))]
    assert shapes == [(1, 3, 3), (1, 6, 6)]


def test_special_values_survive():
    def collate(samples):
        return pad_sequence(samples, batch_first=True, padding_value=float("nan"))

    (batch,) = by_length([torch.tensor([1.0, float("inf")])], collate, (3,))
    assert batch[0, :2].tolist() == [1.0, float("inf")]
    assert batch[0, 2].isnan()


def test_samples_and_generators_are_left_as_they_were():
    def pops(samples):
        return torch.nn.functional.dropout(
            pad_sequence([sample.pop("ids") for sample in samples], batch_first=True), 0.5
        ).sign()

    samples = [{"ids": torch.ones(n)} for n in (3, 2)]
    torch.manual_seed(1)
    by_length(samples, pops, (4,))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    for n in (3, 2):
        F.dropout(torch.ones(1, n), 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(sample["ids"]) for sample in samples] == [3, 2]


def test_what_was_learned_is_pickled():
    buckets = ByLength(pads, (4,))
    buckets(rows(3))
    again = pickle.loads(pickle.dumps(buckets))
    assert again(rows(2))[0].ids.tolist() == [[1, 1, -7, -7]]
    assert again._asked


def test_an_isolated_collate_may_be_inside():
    batches = by_length(rows(2, 5, 3), IsolatedCollate(pads), (3, 6))
    assert [len(batch.ids) for batch in batches] == [2, 1]


# Refusals
def test_a_record_that_is_too_long_is_refused_with_what_is_allowed():
    message = (
        r"record 1 of the list has length 9, and lengths is \(4, 8\).*data set, or add a larger"
    )
    with pytest.raises(ValueError, match=message):
        by_length(rows(3, 9), pads, (8, 4))


@pytest.mark.parametrize("lengths", [(), (0, 4), (2.5,), (-1,)])
def test_lengths_that_are_none_are_refused(lengths):
    with pytest.raises(ValueError, match="positive whole numbers"):
        ByLength(pads, lengths)


def test_a_function_that_does_not_pad_is_refused():
    with pytest.raises(
        ValueError, match="batch varies along axis 1, and the collate_fn does not pad"
    ):
        by_length([torch.ones(3), torch.ones(5)], default_collate, (8,))


def test_positions_behind_the_record_are_refused():
    def positions(samples):
        ids = pads(samples).ids
        return ids, torch.arange(ids.shape[1]).expand(len(ids), -1)

    with pytest.raises(PrivacyError, match=r"does not pad \[1\] by one constant"):
        by_length(rows(3, 5), positions, (8,))


class Hidden:
    """A record whose length cannot be changed from outside."""

    def __init__(self, length: int) -> None:
        self.length = length


def unfolds(samples: list[Hidden]) -> Tensor:
    return pad_sequence([torch.ones(sample.length) for sample in samples], True, -7.0)


def test_padding_is_learned_from_other_records_where_copies_show_nothing():
    buckets = ByLength(unfolds, (4, 8))
    assert [b.tolist() for b in buckets([Hidden(3), Hidden(1)])] == [
        [[1, 1, 1, -7], [1, -7, -7, -7]]
    ]
    assert buckets([Hidden(5)])[0].tolist() == [[1.0] * 5 + [-7.0] * 3]


def test_a_length_that_shows_too_late_is_refused():
    buckets = ByLength(unfolds, (4, 8))
    buckets([Hidden(3)])
    with pytest.raises(PrivacyError, match="batch varies along axis 1, but records went out"):
        buckets([Hidden(3), Hidden(1)])


def test_a_function_that_joins_records_is_refused():
    with pytest.raises(NotIsolated, match=r"has the shape \[3\] for 1 records"):
        by_length([torch.ones(3)], torch.cat, (4,))


# Hugging Face
def test_collators_of_transformers_are_padded_as_they_pad():
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    class Decoder:
        def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
            inputs = F.pad(labels[:, :-1], (1, 0), value=2)
            return inputs.masked_fill(inputs == -100, 0)

    words = ["[UNK]", "[PAD]", *"abcdefgh"]
    model = models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), unk_token="[UNK]", pad_token="[PAD]"
    )
    collate_fn = transformers.DataCollatorForSeq2Seq(tokenizer, model=Decoder())
    samples: list[dict[str, Any]] = [
        {"input_ids": [5] * n, "attention_mask": [1] * n, "labels": [6, 7, 8][:k]}
        for n, k in [(5, 2), (2, 3), (6, 1)]
    ]
    short, long = by_length(samples, collate_fn, (4, 8))
    assert {name: leaf.tolist() for name, leaf in short.items() if leaf is not None} == {
        "input_ids": [[5, 5, 1, 1]],
        "attention_mask": [[1, 1, 0, 0]],
        "labels": [[6, 7, 8, -100]],
        "decoder_input_ids": [[2, 6, 7, 0]],
    }
    assert {name: list(leaf.shape) for name, leaf in long.items()} == {
        name: [2, 8] for name in short
    }
    assert long["labels"][0].tolist() == [6, 7, *[-100] * 6]


def test_what_a_record_has_beside_its_tensors_never_stands_for_others():
    """A batch is built like its first record."""

    def keyed(samples):
        ids, labels = pads(samples)
        return {"ids": ids, f"label {int(labels[0])}": labels}

    with pytest.raises(NotIsolated, match="for some batches and not for others"):
        by_length(rows(3, 2), keyed, (4,))
