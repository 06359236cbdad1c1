"""A collate_fn that lets one record change another is refused; others pass, whatever they draw."""

import collections
import copy
import dataclasses
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import register_pytree_node
from torch.utils.data import DataLoader, default_collate

from psac.gradients.errors import NotIsolated, PrivacyError
from psac.loading.collation import IsolatedCollate
from psac.loading.collation import isolated as collation
from psac.loading.collation.check import Check

LENGTHS = [3, 5, 2, 4, 6, 3, 5]
Pair = collections.namedtuple("Pair", "inputs labels")


@dataclasses.dataclass
class Batch:
    inputs: Tensor
    labels: Tensor | None = None


def vectors() -> list[tuple[Tensor, int]]:
    """Records of one length, each with a label; four in seven are of one class."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, generator=generator), number % 2) for number in range(7)]


def sequences() -> list[Tensor]:
    """Records of several lengths, all entries of which differ."""
    starts = np.cumsum([0, *LENGTHS[:-1]])
    return [torch.arange(s, s + n) + 10.0 for s, n in zip(starts, LENGTHS, strict=True)]


def features() -> list[dict[str, Any]]:
    generator = np.random.default_rng(2)
    return [
        {
            "input_ids": [2, *generator.integers(5, 30, size=n).tolist(), 3],
            "attention_mask": [1] * (n + 2),
            "labels": generator.integers(0, 9, size=n + 2).tolist(),
        }
        for n in LENGTHS
    ]


def passes(collate_fn: Any, samples: list[Any], calls: int = 3) -> IsolatedCollate:
    """The function sees every check and returns what it would return by itself."""
    isolated = IsolatedCollate(collate_fn)
    for _ in range(calls):
        isolated._certain = 1
        isolated(copy.deepcopy(samples))
    return isolated


def refused(collate_fn: Any, samples: list[Any]) -> str:
    isolated = IsolatedCollate(collate_fn)
    with pytest.raises(NotIsolated) as caught:
        [isolated(list(samples)) for _ in range(collation.FIRST_CHECKS)]
    return str(caught.value)


# Functions that keep records apart
def pads(rows: list[Tensor]) -> dict[str, Tensor]:
    return {
        "inputs": pad_sequence(rows, batch_first=True, padding_value=-1.0),
        "lengths": torch.tensor([len(row) for row in rows]),
    }


def pads_and_masks(rows: list[Tensor]) -> Tensor:
    batch = pad_sequence(rows, batch_first=True)
    return torch.where(torch.rand(batch.shape) < 0.3, 0.0, batch)


def adds_noise(rows: list[Tensor]) -> Tensor:
    batch = pad_sequence(rows, batch_first=True)
    return batch + torch.randn(batch.shape)


def crops_and_flips(rows: list[Tensor]) -> Tensor:
    """Two passes, each of which draws a number of bits that depends on lengths."""
    starts = [random.randrange(len(row) - 1) for row in rows]
    turns = [random.randrange(len(row)) for row in rows]
    return torch.stack(
        [row.roll(k)[start : start + 2] for row, start, k in zip(rows, starts, turns, strict=True)]
    )


def crops_to_any_length(rows: list[Tensor]) -> Tensor:
    rows = [row[: np.random.randint(1, len(row) + 1)] for row in rows]
    return pad_sequence(rows, batch_first=True)


def flips_all_or_none(rows: list[Tensor]) -> Tensor:
    flipped = [row.flip(0) for row in rows] if random.random() < 0.5 else rows
    return pad_sequence(flipped, batch_first=True)


def keeps_own_generator() -> Any:
    generator = np.random.default_rng(3)
    return lambda rows: pad_sequence(
        [r * float(generator.random()) for r in rows], batch_first=True
    )


def empties_its_samples(samples: list[dict[str, Any]]) -> Tensor:
    return torch.tensor([sample.pop("labels")[0] for sample in samples])


def nested(samples: list[tuple[Tensor, int]]) -> Any:
    inputs, labels = default_collate(samples)
    return [Pair(inputs, labels), {"all": Batch(inputs, None)}, None]


def with_nan(samples: list[tuple[Tensor, int]]) -> Tensor:
    """NaN whose bits depend on the batch: all are one value."""
    nan = torch.tensor(math.nan if len(samples) == 1 else -math.nan)
    return torch.stack([torch.stack([x[0], nan]) for x, _ in samples])


def shifted(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """As decoder inputs are made of labels: the place behind a record holds its last entry."""
    labels = pad_sequence(rows, batch_first=True, padding_value=-100.0)
    inputs = F.pad(labels[:, :-1], (1, 0), value=1.0)
    return labels, torch.where(inputs == -100, 0.0, inputs)


INNOCENT = {
    "default": (None, vectors),
    "nested": (nested, vectors),
    "nan": (with_nan, vectors),
    "pads": (pads, sequences),
    "pads and masks": (pads_and_masks, sequences),
    "adds noise": (adds_noise, sequences),
    "crops and flips": (crops_and_flips, sequences),
    "crops to any length": (crops_to_any_length, sequences),
    "flips all or none": (flips_all_or_none, sequences),
    "own generator": (keeps_own_generator(), sequences),
    "empties its samples": (empties_its_samples, features),
    "shifted": (shifted, sequences),
}


@pytest.mark.parametrize("collate_fn, samples", INNOCENT.values(), ids=INNOCENT.keys())
@pytest.mark.parametrize("num_records", [2, 7])
def test_a_function_that_keeps_records_apart_is_never_refused(collate_fn, samples, num_records):
    passes(collate_fn, samples()[:num_records], calls=4)


# Functions that do not
def centred(samples):
    inputs, labels = default_collate(samples)
    return inputs - inputs.mean(0), labels


def scaled(samples):
    inputs, labels = default_collate(samples)
    return inputs / inputs.abs().max(), labels


def class_weights(samples):
    inputs, labels = default_collate(samples)
    return inputs, len(labels) / torch.bincount(labels)[labels]


def mixed(samples):
    inputs, labels = default_collate(samples)
    weight, order = np.random.beta(1.0, 1.0), torch.randperm(len(inputs))
    return weight * inputs + (1 - weight) * inputs[order], labels


def pasted(samples):
    inputs, labels = default_collate(samples)
    order, start = torch.randperm(len(inputs)), random.randrange(3)
    return torch.cat([inputs[:, :start], inputs[order, start:]], dim=1), labels


def neighbours(samples):
    inputs, labels = default_collate(samples)
    return (inputs + inputs.roll(1, 0)) / 2, labels


def numbered(samples):
    inputs, _ = default_collate(samples)
    return inputs, torch.arange(len(inputs))


def number_added(samples):
    inputs, labels = default_collate(samples)
    return inputs + 10 * torch.arange(len(inputs))[:, None], labels


def drawn_again(samples):
    return default_collate(random.choices(samples, k=len(samples)))


def first_repeated(samples):
    return default_collate([samples[0]] * len(samples))


def one_dropped(samples):
    return default_collate(samples[:-1])


def one_twice(samples):
    return default_collate([*samples, samples[0]])


def summary(samples):
    inputs, labels = default_collate(samples)
    return inputs, labels, inputs.mean()


def longest_first(rows):
    return pad_sequence(sorted(rows, key=len, reverse=True), batch_first=True)


def shortest_first(rows):
    return pad_sequence(sorted(rows, key=len), batch_first=True)


def padded_length(rows):
    batch = pad_sequence(rows, batch_first=True)
    return batch, torch.full((len(rows),), batch.shape[1])


def divided_by_padded_length(rows):
    batch = pad_sequence(rows, batch_first=True)
    return batch / batch.shape[1]


def cut_to_the_shortest(rows):
    return torch.stack([row[: min(map(len, rows))] for row in rows])


def padded_by_the_mean(rows):
    return pad_sequence(rows, batch_first=True, padding_value=float(torch.cat(rows).mean()))


def followed_by_positions(rows):
    batch = pad_sequence(rows, batch_first=True)
    return torch.where(batch == 0, torch.arange(batch.shape[1]), batch)


def padded_by_the_next(rows):
    batch = pad_sequence(rows, batch_first=True)
    return torch.where(batch == 0, batch.roll(1, 0), batch)


GUILTY = [
    *((f, vectors) for f in (centred, scaled, class_weights, mixed, pasted, neighbours, numbered)),
    *((f, vectors) for f in (number_added, drawn_again, first_repeated)),
    *((f, vectors) for f in (one_dropped, one_twice, summary)),
    *((f, sequences) for f in (longest_first, shortest_first, padded_length)),
    *((f, sequences) for f in (divided_by_padded_length, cut_to_the_shortest)),
    *((f, sequences) for f in (padded_by_the_mean, padded_by_the_next)),
]
NAMES = [collate_fn.__name__ for collate_fn, _ in GUILTY]


@pytest.mark.parametrize("collate_fn, samples", GUILTY, ids=NAMES)
def test_a_function_that_lets_records_change_one_another_is_refused(collate_fn, samples):
    refused(collate_fn, samples())


DRAWS = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "random": random.random}


@pytest.mark.parametrize("collate_fn, samples", GUILTY, ids=NAMES)
def test_drawing_a_number_hides_nothing(collate_fn, samples):
    def hidden(rows):
        random.random()
        return collate_fn(rows)

    refused(hidden, samples())


@pytest.mark.parametrize("source", DRAWS)
def test_draws_from_each_global_generator_are_seen(source):
    """Innocent, though no record is the same alone."""
    passes(lambda rows: torch.tensor([DRAWS[source]() for _ in rows]), vectors())


@pytest.mark.parametrize("collate_fn, samples", GUILTY, ids=NAMES)
def test_random_masks_over_the_whole_batch_hide_nothing(collate_fn, samples):
    def mask(leaf):
        return torch.where(torch.rand(leaf.shape) < 0.15, 0, leaf) if leaf.dim() > 1 else leaf

    def hidden(rows):
        batch = collate_fn(rows)
        return mask(batch) if isinstance(batch, Tensor) else tuple(map(mask, batch))

    refused(hidden, samples())


@pytest.mark.parametrize("collate_fn", [centred, scaled, mixed, number_added, class_weights])
def test_two_records_are_enough(collate_fn):
    refused(collate_fn, vectors()[:2])


def test_great_noise_hides_no_mean_of_records_of_many_lengths():
    """Only the same numbers, drawn for the same padded lengths, can show it."""

    def hidden(rows):
        batch = pad_sequence(rows, batch_first=True)
        return batch - batch.mean(0) + 1000 * torch.randn(batch.shape)

    assert "changes when other records of the batch change" in refused(hidden, sequences())


def test_the_longest_of_each_leaf_stay_when_others_are_replaced():
    """Else the padded lengths, and with them the random numbers, would change."""

    def two_lengths(rows):
        return pad_sequence(rows, True), pad_sequence([row[: 8 - len(row)] for row in rows], True)

    record, *others = [torch.ones(n) for n in (3, 4, 2, 6, 3, 7)]  # second leaf: 3 4 2 2 3 1
    front, rest = Check(two_lengths, [], {}, {})._front(record, others)
    assert [len(row) for row in front] == [3, 4, 7]
    assert [len(row) for row in rest] == [2, 6, 3]


def test_values_behind_a_record_that_are_not_one_constant_are_refused():
    assert "the one constant that pads this leaf" in refused(followed_by_positions, sequences())


def test_noise_hides_no_number_by_place():
    def hidden(samples):
        inputs, _ = number_added(samples)
        return inputs + torch.randn(inputs.shape)

    assert "whatever random numbers are drawn" in refused(hidden, vectors())


def test_numbers_that_cannot_be_drawn_again_are_refused_with_the_reason():
    def fresh(rows):
        noise = np.random.default_rng().normal(size=(len(rows), 4)).astype("float32")
        return torch.stack([x for x, _ in rows]) + torch.from_numpy(noise)

    assert "Draw random numbers from the global generators" in refused(fresh, vectors())


# What a refusal says
@pytest.mark.parametrize(
    "collate_fn, leaf",
    [
        (centred, "[0] of record 0 of 7 differs from the same record collated alone"),
        (lambda rows: {"x": centred(rows)[0]}, "['x'] of record"),
        (lambda rows: Batch(centred(rows)[0]), ".inputs of record"),
        (lambda rows: centred(rows)[0], "batch of record"),
        (summary, "[2] has the shape [] for 7 records"),
        (one_dropped, "[0] has the shape [6, 4] for 7 records"),
    ],
)
def test_a_refusal_names_the_leaf_and_says_what_to_do(collate_fn, leaf):
    message = refused(collate_fn, vectors())
    assert leaf in message
    assert "in the data set or inside the loss function, or with public constants" in message


def test_padding_in_front_is_refused_by_its_name():
    def in_front(rows):
        return pad_sequence(rows, batch_first=True, padding_side="left")

    assert "padding_side='right'" in refused(in_front, sequences())


def test_a_record_that_cannot_be_collated_alone_is_refused():
    def pairs(samples):
        if len(samples) < 2:
            raise ValueError("pairs are needed")
        return default_collate(samples)

    assert "pairs are needed" in refused(pairs, vectors())


def test_what_is_no_tensor_is_refused():
    with pytest.raises(PrivacyError, match="a batch contains a str"):
        IsolatedCollate()(["one", "two"])


def test_a_leaf_for_some_lists_only_is_refused():
    def sometimes(samples):
        batch = {"x": default_collate(samples)[0]}
        return batch | {"many": batch["x"]} if len(samples) > 3 else batch

    assert "['many'] is there for some batches" in refused(sometimes, vectors())


def test_a_dtype_that_others_decide_is_refused():
    assert "torch.int64" in refused(torch.tensor, [1, 2.5, 3])


class Marked(Tensor):
    pass


class Registered:
    """Of a class that torch knows, with something beside its tensors."""

    def __init__(self, x, extra=None):
        self.x, self.extra = x, extra


register_pytree_node(Registered, lambda r: ([r.x], r.extra), lambda parts, e: Registered(*parts, e))


@pytest.mark.parametrize(
    "around", [Registered, lambda x: {"b": Registered(x)}, lambda x: [Registered(x), x]]
)
def test_a_registered_class_is_looked_into(around):
    apart = IsolatedCollate(lambda rows: around(torch.stack(rows)))
    apart([row[0] for row in vectors()])
    rows = [row[0] for row in vectors()]
    assert "differs" in refused(
        lambda rows: around(torch.stack(rows) - torch.stack(rows).mean(0)), rows
    )


@pytest.mark.parametrize(
    "around",
    [
        lambda x: Registered(x, len(x)),
        lambda x: {"x": x, "y": x} if len(x) > 1 else {"y": x, "x": x},
        lambda x: (x,) if len(x) > 1 else [x],
        lambda x: x.as_subclass(Marked) if len(x) > 1 else x,
    ],
    ids=["context", "order of keys", "class", "class of a tensor"],
)
def test_what_surrounds_tensors_is_the_same_in_all_batches(around):
    rows = [row[0] for row in vectors()]
    assert refused(lambda rows: around(torch.stack(rows)), rows)
    unchecked = IsolatedCollate(lambda rows: around(torch.stack(rows)))
    unchecked(rows[:1])  # no check of one record
    unchecked._certain = 0
    with pytest.raises(NotIsolated):
        unchecked(rows)


# When it looks
def test_later_checks_come_at_secret_calls(monkeypatch):
    numbers = iter([5, 3, 0])  # then 5 again: no check by chance
    isolated = IsolatedCollate()
    for _ in range(collation.FIRST_CHECKS):
        isolated(vectors())
    isolated.collate_fn = lambda samples: list(centred(samples))  # as the default arranges them
    monkeypatch.setattr(collation.secrets, "randbelow", lambda n: next(numbers, 5))
    isolated(vectors())
    isolated(vectors())
    for _ in range(2):  # and what was refused once is looked at again
        with pytest.raises(NotIsolated):
            isolated(vectors())


def test_one_record_is_handed_on_and_does_not_count():
    isolated = IsolatedCollate(centred)
    for _ in range(5):
        assert isolated(vectors()[:1])[0].tolist() == [[0.0] * 4]
    with pytest.raises(NotIsolated):
        isolated(vectors())


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


@pytest.mark.parametrize("collate_fn", [pads, pads_and_masks, crops_and_flips, crops_to_any_length])
def test_checks_leave_no_trace_in_batches_nor_in_generators(collate_fn):
    def run(function: Any) -> list[Any]:
        torch.manual_seed(4), np.random.seed(4), random.seed(4)
        return [str(function(sequences())) for _ in range(4)] + [states()]

    assert run(IsolatedCollate(collate_fn)) == run(collate_fn)


def test_a_generator_of_the_function_is_left_as_it_was():
    first, second = keeps_own_generator(), keeps_own_generator()
    isolated = IsolatedCollate(first)
    for _ in range(3):
        assert torch.equal(isolated(sequences()), second(sequences()))


def test_samples_are_handed_on_themselves():
    handed = []
    samples = vectors()
    IsolatedCollate(lambda rows: handed.append(rows) or default_collate(rows))(samples)
    assert handed[0] is samples


# Padding
@pytest.mark.parametrize(
    "collate_fn, samples, expected",
    [(None, vectors(), False), (pads, sequences(), True), (pads_and_masks, sequences(), True)],
)
def test_pads_tells_whether_lengths_come_from_the_batch(collate_fn, samples, expected):
    assert passes(collate_fn, samples).pads == expected


def test_pads_is_seen_without_a_check_too():
    isolated = IsolatedCollate(pads)
    isolated(sequences()[:1])
    assert not isolated.pads
    isolated(sequences()[1:2])
    assert isolated.pads


@pytest.mark.filterwarnings("ignore:This process .* is multi-thr:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_tell_the_main_process_of_padding(context):
    isolated = IsolatedCollate(pads)
    loader = DataLoader(
        sequences(),  # type: ignore[arg-type]
        batch_size=4,
        num_workers=1,
        collate_fn=isolated,
        multiprocessing_context=context,
    )
    assert [len(batch["lengths"]) for batch in loader] == [4, 3]
    assert isolated.pads


@pytest.mark.filterwarnings("ignore:This process .* is multi-thr:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_refusal_in_a_worker_reaches_the_main_process():
    loader = DataLoader(vectors(), batch_size=4, num_workers=1, collate_fn=IsolatedCollate(centred))  # type: ignore[arg-type]
    with pytest.raises(NotIsolated, match="differs from the same record"):
        list(loader)


def test_a_pickled_object_goes_on_where_it_was():
    isolated = pickle.loads(pickle.dumps(passes(pads, sequences())))
    assert isolated.pads
    assert isolated._pads.is_shared()
    isolated(sequences())


# Hugging Face
@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"word{k}" for k in range(30))]
    model = models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model),
        **{f"{name[1:-1].lower()}_token": name for name in special},
    )


class Decoder:
    """What the collator asks of an encoder-decoder model."""

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        inputs = F.pad(labels[:, :-1], (1, 0), value=2)
        return inputs.masked_fill(inputs == -100, 0)


COLLATORS = {
    "padding": ("DataCollatorWithPadding", {}),
    "padding to eights": ("DataCollatorWithPadding", {"pad_to_multiple_of": 8}),
    "causal": ("DataCollatorForLanguageModeling", {"mlm": False}),
    "masked": ("DataCollatorForLanguageModeling", {}),
    "masked often": ("DataCollatorForLanguageModeling", {"mlm_probability": 0.5}),
    "masked by a seed": ("DataCollatorForLanguageModeling", {"seed": 1}),
    "sequences": ("DataCollatorForSeq2Seq", {}),
    "sequences with a model": ("DataCollatorForSeq2Seq", {"model": Decoder()}),
    "tokens": ("DataCollatorForTokenClassification", {}),
}


@pytest.mark.parametrize("name, options", COLLATORS.values(), ids=COLLATORS.keys())
@pytest.mark.parametrize("num_records", [2, 7])
def test_collators_of_transformers_are_never_refused(tokenizer, name, options, num_records):
    import transformers

    samples = features()[:num_records]
    if not name.endswith(("Seq2Seq", "TokenClassification")):
        for sample in samples:
            sample["label" if "Padding" in name else "token_type_ids"] = sample.pop("labels")
    if name == "DataCollatorWithPadding":
        for sample in samples:
            sample["label"] = sample["label"][0]
    if name == "DataCollatorForSeq2Seq":
        for number, sample in enumerate(samples):
            sample["labels"] = sample["labels"][: 2 + number % 3]
    isolated = passes(getattr(transformers, name)(tokenizer, **options), samples)
    assert isolated.pads or "pad_to_multiple_of" in options


def test_a_seeded_collator_of_transformers_draws_as_without_checks(tokenizer):
    import transformers

    samples = [{"input_ids": sample["input_ids"]} for sample in features()]
    collators = [transformers.DataCollatorForLanguageModeling(tokenizer, seed=1) for _ in range(2)]
    isolated = IsolatedCollate(collators[0])
    for _ in range(4):
        assert torch.equal(isolated(samples)["input_ids"], collators[1](samples)["input_ids"])


def test_a_collator_that_joins_all_records_into_one_is_refused():
    transformers = pytest.importorskip("transformers")
    assert "for 7 records" in refused(transformers.DataCollatorWithFlattening(), features())


def test_the_probe_of_padding_leaves_the_model_as_it_was():
    """What a first call settles, as some configurations do, is no change of the user's."""
    from psac.loading.collation.padding import Probe, refuse_padding_that_counts

    model = torch.nn.Linear(3, 1)
    model.kind = None

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.kind = "one number"
        return model(x.sum(1)).sum()

    batch = torch.nn.functional.pad(torch.randn(2, 4, 3), (0, 0, 0, 2))
    refuse_padding_that_counts(model, loss, batch, Probe(1, batch[1:, :4]))
    assert model.kind is None
    assert model.training
