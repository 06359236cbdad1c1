"""A small GPT-2 that continues facts by a text: its tokens, its loss, its perplexity, its texts.

Tokens are those of a public tokenizer, so that no vocabulary is read off the records.  A record is

    [CLS] facts [SEP] text [SEP]

and its loss is the mean over the tokens behind the first [SEP].  Weights start at random, and the
head is the table of the tokens.  Perplexity is exp of the mean over all such tokens of a split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paper.generation.e2e import Example
from psac.app.data.optional import needed
from psac.app.text.tokens import Tokens, own_lengths


def language_model(vocabulary: int, *, length: int, width: int, layers: int, heads: int) -> Any:
    """A GPT-2 with random weights and without dropout."""
    library = needed("transformers", package="transformers", purpose="a model for text", extra="hf")
    config = library.GPT2Config(
        **{"vocab_size": vocabulary, "n_positions": length, "n_embd": width, "n_layer": layers},
        **{"n_head": heads, "use_cache": False, "bos_token_id": None, "eos_token_id": None},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    return library.GPT2LMHeadModel(config)


def encoded(pairs: Sequence[Example], tokens: Tokens) -> Tensor:
    """A row for each record, padded behind."""
    return tokens([pair.facts for pair in pairs], [pair.text for pair in pairs])


def losses(model: nn.Module, ids: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The sum over the tokens of each text, and how many there are."""
    ids = ids.long()
    logits = model(input_ids=ids, attention_mask=(ids != tokens.padding).long()).logits
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    of_text = _behind_facts(ids, tokens)[:, :-1] & (ids[:, 1:] != tokens.padding)
    return (each * of_text).sum(1), of_text.sum(1)


def _behind_facts(ids: Tensor, tokens: Tokens) -> Tensor:
    """Places from the first separator on."""
    return (ids == int(tokens.tokenizer.sep_token_id)).cumsum(1) > 0


@torch.no_grad()
def perplexity(model: nn.Module, ids: Tensor, tokens: Tokens, batch_size: int = 64) -> float:
    total = count = 0.0
    for part in ids[own_lengths(ids, tokens.padding).argsort()].split(batch_size):
        longest = int(own_lengths(part, tokens.padding).max())
        sums, counts = losses(model, part[:, :longest], tokens)
        total, count = total + float(sums.sum()), count + float(counts.sum())
    return math.exp(total / count)


@torch.no_grad()
def written(model: Any, facts: str, tokens: Tokens, most: int = 80) -> str:
    """The text of these facts, word by word the likeliest one."""
    end = int(tokens.tokenizer.sep_token_id)
    ids: list[int] = tokens.tokenizer(facts)["input_ids"]
    start = len(ids)
    while len(ids) < min(start + most, tokens.lengths[-1]):
        best = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if best == end:
            break
        ids.append(best)
    return tokens.tokenizer.decode(ids[start:], skip_special_tokens=True)
