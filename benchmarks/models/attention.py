"""Attention for text, in the forms that are about: positions, masks, shared heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Case, classes, cross_entropy, next_token, padding, tokens

VOCABULARY, LENGTH, WIDTH, HEADS = 500, 48, 128, 4


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[b, t, d] -> [b, heads, t, d / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Block(nn.Module):
    """A block before whose parts is a norm; `mix(block, q, k, v)` is the attention."""

    def __init__(self, mix: Callable[..., Tensor], width: int = WIDTH, keys: int = HEADS) -> None:
        super().__init__()
        self.mix, self.keys = mix, keys
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * keys * width // HEADS, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.bias = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH - 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        key, value = self.key_value(h).chunk(2, -1)
        mixed = self.mix(
            self, heads_of(self.query(h), HEADS), *(heads_of(t, self.keys) for t in (key, value))
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    """A language model whose output layer is its table of words."""

    def __init__(self, mix: Callable[..., Tensor], *, keys: int = HEADS, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(mix, keys=keys) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


def language_model(mix: Callable[..., Tensor], **options: int) -> Case:
    model = Decoder(mix, **options)
    if mix is not relative:
        for block in model.blocks:
            block.bias = None
    return model, next_token, (tokens(LENGTH, VOCABULARY),)


def plain(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~causal(q.shape[-2]), float("-inf")).softmax(-1) @ v


def with_dropout(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)


def rotated(x: Tensor) -> Tensor:
    length, width = x.shape[-2:]
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def rotary(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)


def alibi(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2])
    slopes = 2.0 ** -torch.arange(1, HEADS + 1)
    bias = (place[None, :] - place[:, None]) * slopes[:, None, None]
    mask = bias.masked_fill(~causal(len(place)), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def relative(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2])
    bias = block.bias[:, place[None, :] - place[:, None] + LENGTH - 1]
    mask = bias.masked_fill(~causal(len(place)), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def grouped(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def windowed(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = causal(q.shape[-2]).triu(-8)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def linear(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
    normal = (q * k.cumsum(2)).sum(-1, keepdim=True)
    return torch.einsum("bhtd,bhtde->bhte", q, state) / normal


def gpt() -> Case:
    """GPT: causal SDPA, tied embeddings"""
    return language_model(plain)


def gpt_by_hand() -> Case:
    """Attention by matmul and masked_fill"""
    return language_model(by_hand)


def gpt_dropout() -> Case:
    """SDPA with dropout"""
    return language_model(with_dropout)


def rope() -> Case:
    """Rotary positions (RoPE)"""
    return language_model(rotary)


def alibi_positions() -> Case:
    """ALiBi positions"""
    return language_model(alibi)


def relative_bias() -> Case:
    """Learned relative bias in the attention mask"""
    return language_model(relative)


def grouped_queries() -> Case:
    """Grouped queries (GQA, enable_gqa)"""
    return language_model(grouped, keys=2)


def sliding_window() -> Case:
    """Sliding window by a mask"""
    return language_model(windowed)


def linear_attention() -> Case:
    """Linear attention (cumulative sums)"""
    return language_model(linear)


class Classifier(nn.Module):
    """torch's own encoder over padded text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 256, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(self.words(words) + self.places, src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1) / mask.sum(1)[:, None, None]
        return self.head((x * weights).sum(1))


def encoder() -> Case:
    """nn.TransformerEncoder, padded text, dropout"""

    def loss(model: nn.Module, words: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(words, mask), y)

    return Classifier(), loss, (tokens(LENGTH, VOCABULARY), padding(LENGTH), classes(2))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, HEADS, 1, 1, 256, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        ahead = ~causal(target.shape[1])
        hidden = self.body(
            self.words(source), self.words(target), tgt_mask=ahead,
            src_key_padding_mask=~mask, memory_key_padding_mask=~mask,
        )  # fmt: skip
        return self.head(hidden)


def encoder_decoder() -> Case:
    """nn.Transformer, teacher forcing, label smoothing"""

    def loss(model: nn.Module, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        scores = model(source, target[:, :-1], mask)
        return F.cross_entropy(
            scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1
        )

    return Translator(), loss, (
        tokens(32, VOCABULARY), tokens(24, VOCABULARY), padding(32),
    )  # fmt: skip


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        mixed, weights = self.mix(x, x, x, need_weights=True)
        return self.head((x + mixed).mean(1) + 0.0 * weights.mean())


def multihead() -> Case:
    """nn.MultiheadAttention that returns its weights"""
    return SelfAttention(), cross_entropy, (tokens(LENGTH, VOCABULARY), classes(2))


MODELS = (
    gpt, gpt_by_hand, gpt_dropout, rope, alibi_positions, relative_bias, grouped_queries,
    sliding_window, linear_attention, encoder, encoder_decoder, multihead,
)  # fmt: skip
