"""The networks that are timed, written so that every contestant can run them.

Nothing here is in-place and every parameter belongs to a module that is called, because Opacus
hooks modules; psac itself needs neither.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psac.app import models


def paper_cnn() -> nn.Module:
    """The paper's MNIST network (Tramer and Boneh, arXiv 2011.11660): 26,010 parameters."""
    network = models.build("cnn", input_shape=(1, 28, 28), classes=10)
    # Channels first, as a network has them unless one asks for another order.
    return network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def mlp() -> nn.Module:
    """784-1024-1024-10: almost all of a step is matrix products, optimizer and noise."""
    return nn.Sequential(
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def _conv_block(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(min(32, outputs), outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv_block(channels, channels), _conv_block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def resnet9(width: int = 64, classes: int = 10) -> nn.Module:
    """ResNet9 with GroupNorm for 3x32x32 images: 6.6 million parameters at width 64."""
    return nn.Sequential(
        _conv_block(3, width),
        _conv_block(width, 2 * width, pool=True),
        _Residual(2 * width),
        _conv_block(2 * width, 4 * width, pool=True),
        _conv_block(4 * width, 8 * width, pool=True),
        _Residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


class _Block(nn.Module):
    """A pre-norm encoder block; attention by four Linear layers, as Opacus can see those."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention_norm(x)
        mixed = F.scaled_dot_product_attention(
            self._split(self.query(h)), self._split(self.key(h)), self._split(self.value(h))
        )
        x = x + self.projection(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.contract(F.gelu(self.expand(self.mlp_norm(x))))


class Transformer(nn.Module):
    """Token and position tables, encoder blocks, mean pool, two-class head."""

    def __init__(
        self,
        *,
        length: int = 128,
        layers: int = 4,
        width: int = 384,
        heads: int = 6,
        vocabulary: int = 8000,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        # A whole [batch, length] table: Opacus refuses position ids without a batch dimension, and
        # its ghost mode those that are a view.
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape).contiguous()
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def minilm_bert(length: int = 128) -> nn.Module:
    """BERT of MiniLM-L6's size with random weights: 22.7 million parameters, dropout 0."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30522,
        num_hidden_layers=6,
        hidden_size=384,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=max(512, length),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,  # pyright: ignore[reportCallIssue]
    )
    return BertForSequenceClassification(config)


def causal(length: int = 128) -> nn.Module:
    """A small GPT-2 with the vocabulary of the large one; table and head are one parameter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4,
        n_embd=384,
        n_head=6,
        n_positions=length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def minilm_bert_lora(length: int = 128) -> nn.Module:
    """The same with LoRA r=8 on query and value by peft; base frozen, head trained."""
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=8,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=["query", "value"],
        # peft starts B at zero, which makes every gradient of A zero; a step from the middle of
        # training is what is to be timed, so both factors start at random.
        init_lora_weights=False,
    )
    return get_peft_model(minilm_bert(length), config)  # pyright: ignore
