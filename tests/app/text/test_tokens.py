"""Texts as numbers: what the tokenizer gives, padded to public lengths."""

from __future__ import annotations

import pytest
import torch

from psac.app.text.tokens import Tokens, checked_lengths, own_lengths, tokenizer_in, trimmed
from psac.app.training.in_memory import Padded, TokenRecords
from tests.app.text.small import reviews

TEXTS = [text for text, _ in reviews(50)]


@pytest.fixture
def tokens(weights) -> Tokens:
    return Tokens(tokenizer_in(weights), (8, 16))


def test_a_row_is_what_the_tokenizer_gives_and_padding_behind_it(tokens, monkeypatch):
    monkeypatch.setattr("psac.app.text.tokens.CHUNK", 7)
    rows = tokens(TEXTS)
    assert rows.shape == (50, 16)
    for row, text in zip(rows.tolist(), TEXTS, strict=True):
        alone = tokens.tokenizer(text)["input_ids"]
        assert row == alone + [tokens.padding] * (16 - len(alone))


def test_long_texts_are_cut_to_the_largest_length_and_of_pairs_the_longer_text(tokens):
    rows = tokens(["good " * 40, "bad"], ["film", "plot " * 40])
    assert bool((rows != tokens.padding).all())
    film, bad = (tokens.tokenizer(word)["input_ids"][1] for word in ("film", "bad"))
    assert film in rows[0].tolist()
    assert bad in rows[1].tolist()


def test_the_numbers_of_a_text_do_not_depend_on_other_texts(tokens):
    together = tokens(TEXTS)
    for number in (0, 17, 49):
        assert torch.equal(together[number], tokens([TEXTS[number]])[0])


@pytest.mark.parametrize("lengths", [[], [2], "16", [8.0], None, 16])
def test_lengths_that_are_no_lengths_are_refused(lengths):
    with pytest.raises(ValueError, match="numbers of tokens"):
        checked_lengths(lengths)
    assert checked_lengths([16, 8, 16]) == (8, 16)


def test_padding_inside_a_text_is_kept_and_behind_it_is_cut():
    ids = torch.tensor([[2, 0, 3, 0, 0], [2, 3, 0, 0, 0]])
    assert own_lengths(ids, 0).tolist() == [3, 2]
    assert trimmed(ids, 0).tolist() == [[2, 0, 3], [2, 3, 0]]


def test_records_are_their_own_tokens_and_parts_hold_each_of_them_once(tokens):
    rows, labels = tokens(TEXTS), torch.arange(50)
    records = TokenRecords(rows, labels, tokens=tokens, texts=TEXTS)
    assert records.lengths == (8, 16)
    assert records[3][0].tolist() == tokens.tokenizer(TEXTS[3])["input_ids"]
    seen = []
    for numbers, inputs, own in records.parts(7):
        assert torch.equal(numbers, own)
        assert torch.equal(inputs, rows[numbers][:, : inputs.shape[1]])
        assert int(rows[numbers][:, inputs.shape[1] :].sum()) == 0
        seen += numbers.tolist()
    assert sorted(seen) == list(range(50))
    kept = records.where(torch.arange(50) % 2 == 1)
    assert kept.texts == TEXTS[1::2]
    assert torch.equal(kept.labels, labels[1::2])


def test_batches_are_padded_behind(tokens):
    rows = [(torch.tensor([2, 3]), torch.tensor(0)), (torch.tensor([2, 4, 3]), torch.tensor(1))]
    inputs, labels = Padded(9)(rows)
    assert inputs.tolist() == [[2, 3, 9], [2, 4, 3]]
    assert labels.tolist() == [0, 1]
