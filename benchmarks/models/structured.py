"""Sequences and trees out: speech, tags, translation, trees, alignment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import RECORDS, Case, classes, cross_entropy, lengths, numbers, padding, tokens

VOCABULARY, WIDTH = 300, 64


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Conv1d(40, WIDTH, 5, 2, 2)
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, 29)

    def forward(self, frames: Tensor) -> Tensor:
        hidden = F.relu(self.local(frames.transpose(1, 2))).transpose(1, 2)
        return self.head(self.layer(hidden)[0]).log_softmax(-1)


def speech() -> Case:
    """Speech: convolution, bidirectional GRU, CTC loss"""

    def loss(model: nn.Module, frames: Tensor, text: Tensor, count: Tensor) -> Tensor:
        scores = model(frames).transpose(0, 1)
        seen = torch.full((len(frames),), scores.shape[0])
        return F.ctc_loss(scores, text, seen, count, zero_infinity=True)

    return Speech(), loss, (numbers(60, 40), tokens(8, 29), lengths(4, 8))


class Tagger(nn.Module):
    def __init__(self, tags: int = 7) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head, self.moves = nn.Linear(2 * WIDTH, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The negative log likelihood of a linear-chain CRF."""
        scores = self.head(self.layer(self.words(words))[0])
        weight = mask.float()
        given = (scores.gather(2, tags.unsqueeze(-1)).squeeze(-1) * weight).sum(1)
        given = given + (self.moves[tags[:, :-1], tags[:, 1:]] * weight[:, 1:]).sum(1)
        total = scores[:, 0]
        for k in range(1, words.shape[1]):
            new = torch.logsumexp(total.unsqueeze(-1) + self.moves, 1) + scores[:, k]
            total = torch.where(mask[:, k, None], new, total)
        return (torch.logsumexp(total, 1) - given).mean()


def crf() -> Case:
    """LSTM tagger with a CRF (forward recursion)"""

    def loss(model: nn.Module, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return model(words, tags, mask)

    return Tagger(), loss, (tokens(20, VOCABULARY), classes(7, 20), padding(20))


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.encoder, self.cell = (
            nn.GRU(WIDTH, WIDTH, batch_first=True),
            nn.GRUCell(2 * WIDTH, WIDTH),
        )
        self.query, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.source(source))
        state, outputs = state[0], []
        for word in self.target(target).unbind(1):
            weights = torch.einsum("bd,btd->bt", self.query(state), memory).softmax(-1)
            seen = torch.einsum("bt,btd->bd", weights, memory)
            state = self.cell(torch.cat([word, seen], -1), state)
            outputs.append(self.head(state))
        return torch.stack(outputs, 1)


def seq2seq() -> Case:
    """GRU seq2seq with attention, teacher forcing"""

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        scores = model(source, target[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)

    return Seq2Seq(), loss, (tokens(16, VOCABULARY), tokens(12, VOCABULARY))


class TreeLSTM(nn.Module):
    """A complete binary tree over eight leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = nn.Embedding(VOCABULARY, 2 * WIDTH)
        self.join, self.head = nn.Linear(2 * WIDTH, 5 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, words: Tensor) -> Tensor:
        hidden, cell = self.leaves(words).chunk(2, -1)
        while hidden.shape[1] > 1:
            pairs = hidden.unflatten(1, (-1, 2)).flatten(2)
            enter, left, right, leave, new = self.join(pairs).chunk(5, -1)
            first, second = cell.unflatten(1, (-1, 2)).unbind(2)
            cell = enter.sigmoid() * new.tanh() + left.sigmoid() * first + right.sigmoid() * second
            hidden = leave.sigmoid() * cell.tanh()
        return self.head(hidden[:, 0])


def tree_lstm() -> Case:
    """TreeLSTM over a fixed tree"""
    return TreeLSTM(), cross_entropy, (tokens(8, VOCABULARY), classes(5))


class Pointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(2, WIDTH, batch_first=True)
        self.query, self.key = (nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, points: Tensor) -> Tensor:
        hidden, _ = self.layer(points)
        return torch.einsum("bqd,bkd->bqk", self.query(hidden), self.key(hidden))


def pointer_network() -> Case:
    """Pointer network that sorts points"""

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        order = points[..., 0].argsort(1)
        return F.cross_entropy(model(points).flatten(0, 1), order.flatten())

    return Pointer(), loss, (numbers(12, 2),)


def soft_dtw(distances: Tensor, smoothing: float = 1.0) -> Tensor:
    """[b, i, j] -> [b]: the soft minimum over all alignments."""
    rows, columns = distances.shape[1:]
    infinite = torch.full_like(distances[:, 0, 0], 1e6)
    before = [torch.zeros_like(infinite)] + [infinite] * columns
    for i in range(rows):
        line = [infinite]
        for j in range(columns):
            ways = torch.stack([before[j], before[j + 1], line[j]], -1)
            line.append(distances[:, i, j] - smoothing * torch.logsumexp(-ways / smoothing, -1))
        before = line
    return before[-1]


def alignment() -> Case:
    """Soft dynamic time warping as the loss"""
    model = nn.GRU(3, 32, batch_first=True)

    def loss(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
        first, second = model(x)[0], model(z)[0]
        return soft_dtw(torch.cdist(first, second)).mean()

    return model, loss, (numbers(8, 3), numbers(8, 3))


class Memory(nn.Module):
    """A key-value memory network with three hops."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.EmbeddingBag(VOCABULARY, WIDTH, mode="sum") for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, story: Tensor, question: Tensor) -> Tensor:
        flat = story.flatten(0, 1)
        shape = (len(story), story.shape[1], WIDTH)
        keys, values = self.keys(flat).view(shape), self.values(flat).view(shape)
        state = self.keys(question)
        for _ in range(3):
            weights = (keys @ state.unsqueeze(-1)).squeeze(-1).softmax(-1)
            state = state + (weights.unsqueeze(-1) * values).sum(1)
        return self.head(state)


def memory_network() -> Case:
    """Memory network (EmbeddingBag, hops)"""

    def loss(model: nn.Module, story: Tensor, question: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(story, question), y)

    story = torch.randint(1, VOCABULARY, (RECORDS, 10, 6))
    return Memory(), loss, (story, tokens(6, VOCABULARY), classes(VOCABULARY))


MODELS = (
    speech, crf, seq2seq, tree_lstm, pointer_network, alignment, memory_network,
)  # fmt: skip
