"""The workloads: what is trained in one step, the same for every contestant.

A workload builds a fresh model and a batch from a seed and knows its per-sample losses. Batches are
random: time and memory depend on shapes, not on values. The one property of real data that does
matter, padding, is kept: batches of BERT have 0, 30 or 70 % padding, with lengths spread evenly
around the rest.  The causal model predicts every next token of a batch without padding.

Dropout is 0 in every model, which stays in training mode, so that all contestants do the same sum.

>>> sorted(WORKLOADS)[:6]
['bert', 'bert-0', 'bert-30', 'causal', 'cnn', 'lora']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import networks


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Model inputs by keyword (empty name: the one positional input) and class labels.

    psac takes it as it is: a dataclass of tensors, the records along their first axis.
    """

    inputs: dict[str, Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One row of the benchmark."""

    name: str
    title: str
    batch_size: int
    network: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], dict[str, Tensor]]
    classes: int

    def build(self, *, seed: int = 0) -> nn.Module:
        """A fresh model in training mode; the same seed gives the same weights."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.network().train()

    def make_batch(self, *, batch_size: int | None = None, seed: int = 0) -> Batch:
        """A random batch; the same seed gives the same one."""
        generator = torch.Generator().manual_seed(seed)
        size = batch_size or self.batch_size
        inputs = self.inputs(size, generator)
        return Batch(
            inputs=inputs, labels=torch.randint(self.classes, (size,), generator=generator)
        )

    def logits(self, model: nn.Module | Callable[..., object], inputs: dict[str, Tensor]) -> Tensor:
        """The model's class scores, whichever way it takes its inputs and gives its outputs."""
        output = model(inputs[""]) if "" in inputs else model(**inputs)
        return output if isinstance(output, Tensor) else output.logits  # type: ignore[attr-defined]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per sample."""
        return F.cross_entropy(self.logits(model, batch.inputs), batch.labels, reduction="none")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Their mean; on a batch of one record that record's loss, as `private.step` wants it."""
        return F.cross_entropy(self.logits(model, batch.inputs), batch.labels)

    def resized(self, batch_size: int) -> Workload:
        """The same workload at another batch size."""
        return replace(self, batch_size=batch_size)


def _images(*shape: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    return lambda size, generator: {"": torch.randn(size, *shape, generator=generator)}


def _tokens(length: int, vocabulary: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    return lambda size, generator: {
        "": torch.randint(vocabulary, (size, length), generator=generator)
    }


def _sentences(padding: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    """BERT inputs of 128 positions, of which so many percent are padding: token 0."""
    length, spread = 128, min(padding, 20) / 100

    def inputs(size: int, generator: torch.Generator) -> dict[str, Tensor]:
        share = 1 - padding / 100
        words = torch.linspace(share - spread, share + spread, size).mul(length).round().long()
        mask = (torch.arange(length) < words[:, None]).long()
        tokens = torch.randint(1, 30522, (size, length), generator=generator) * mask
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "token_type_ids": torch.zeros_like(tokens),
            # Given in full, though BERT would make its own [1, length]: Opacus cannot run that.
            "position_ids": torch.arange(length).expand(size, length).contiguous(),
        }

    return inputs


@dataclass(frozen=True, kw_only=True)
class Causal(Workload):
    """Every token is predicted from those before it; a record's loss is the mean over them."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, tokens = self.logits(model, batch.inputs)[:, :-1], batch.inputs["input_ids"]
        each = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        return each.mean(1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, tokens = self.logits(model, batch.inputs)[:, :-1], batch.inputs["input_ids"]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _running_text(size: int, generator: torch.Generator) -> dict[str, Tensor]:
    length = 128
    return {
        "input_ids": torch.randint(50_257, (size, length), generator=generator),
        "position_ids": torch.arange(length).expand(size, length).contiguous(),
    }


def transformer(*, length: int = 128, batch_size: int = 16) -> Workload:
    """The encoder transformer at any sequence length."""
    return Workload(
        name="transformer",
        title=f"Transformer, 4 layers, d 384, T {length}",
        batch_size=batch_size,
        network=lambda: networks.Transformer(length=length),
        inputs=_tokens(length, 8000),
        classes=2,
    )


_ALL = (
    Workload(
        name="cnn",
        title="CNN of the paper, 28x28",
        batch_size=512,
        network=networks.paper_cnn,
        inputs=_images(1, 28, 28),
        classes=10,
    ),
    Workload(
        name="resnet9",
        title="ResNet9-GroupNorm, width 64, 32x32",
        batch_size=64,
        network=networks.resnet9,
        inputs=_images(3, 32, 32),
        classes=10,
    ),
    Workload(
        name="mlp",
        title="MLP 784-1024-1024-10",
        batch_size=512,
        network=networks.mlp,
        inputs=_images(784),
        classes=10,
    ),
    transformer(),
    Workload(
        name="bert",
        title="BERT (MiniLM size), T 128, 70 % padding",
        batch_size=16,
        network=networks.minilm_bert,
        inputs=_sentences(70),
        classes=2,
    ),
    Workload(
        name="lora",
        title="LoRA r=8 on that BERT",
        batch_size=16,
        network=networks.minilm_bert_lora,
        inputs=_sentences(70),
        classes=2,
    ),
    *(
        Workload(
            name=f"{name}-{padding}",
            title=f"{title}, T 128, {'no' if padding == 0 else f'{padding} %'} padding",
            batch_size=16,
            network=network,
            inputs=_sentences(padding),
            classes=2,
        )
        for padding in (0, 30)
        for name, title, network in (
            ("bert", "BERT (MiniLM size)", networks.minilm_bert),
            ("lora", "LoRA r=8 on that BERT", networks.minilm_bert_lora),
        )
    ),
    Causal(
        name="causal",
        title="GPT-2, 4 layers, d 384, 50,257 tokens, tied head, T 128",
        batch_size=8,
        network=networks.causal,
        inputs=_running_text,
        classes=2,
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
