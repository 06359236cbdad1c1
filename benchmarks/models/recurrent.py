"""Sequences by recurrence, scans and convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import (
    Case,
    classes,
    cross_entropy,
    lengths,
    next_token,
    numbers,
    squared_error,
    tokens,
)

VOCABULARY, LENGTH, WIDTH = 500, 32, 128


class Reader(nn.Module):
    """Words -> a recurrent layer -> classes."""

    def __init__(self, layer: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.words, self.layer, self.head = (
            nn.Embedding(VOCABULARY, 64),
            layer,
            nn.Linear(outputs, 4),
        )

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.layer(self.words(words))
        return self.head(hidden[:, -1])


def read(layer: nn.RNNBase, outputs: int = WIDTH) -> Case:
    return Reader(layer, outputs), cross_entropy, (tokens(LENGTH, VOCABULARY), classes(4))


def lstm() -> Case:
    """LSTM over words"""
    return read(nn.LSTM(64, WIDTH, batch_first=True))


def bidirectional_lstm() -> Case:
    """LSTM, two layers, both directions, dropout"""
    layer = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True, dropout=0.2)
    return read(layer)


def projected_lstm() -> Case:
    """LSTM with a projection"""
    return read(nn.LSTM(64, WIDTH, batch_first=True, proj_size=48), 48)


def gru() -> Case:
    """GRU, two layers"""
    return read(nn.GRU(64, WIDTH, 2, batch_first=True))


def elman() -> Case:
    """Elman network (tanh), both directions"""
    return read(nn.RNN(64, 64, batch_first=True, bidirectional=True))


class Cells(nn.Module):
    def __init__(self, cell: nn.Module, width: int) -> None:
        super().__init__()
        self.cell, self.head, self.width = cell, nn.Linear(width, 3), width

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), self.width)
        state = (hidden, hidden) if isinstance(self.cell, nn.LSTMCell) else hidden
        for k in range(x.shape[1]):
            state = self.cell(x[:, k], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


def lstm_cell() -> Case:
    """LSTMCell in a loop of 16 steps"""
    return Cells(nn.LSTMCell(32, 64), 64), cross_entropy, (numbers(16, 32), classes(3))


def gru_cell() -> Case:
    """GRUCell in a loop of 16 steps"""
    return Cells(nn.GRUCell(32, 64), 64), cross_entropy, (numbers(16, 32), classes(3))


class Causal(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class TemporalBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(
            Causal(width, width, 3, dilation=dilation)
        )
        self.second, self.drop = Causal(width, width, 3, dilation=dilation), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.drop(self.second(F.relu(self.first(x)))))


def tcn() -> Case:
    """TCN: causal dilated convolutions, weight norm"""
    blocks = [TemporalBlock(48, 2**k) for k in range(3)]
    model = nn.Sequential(
        nn.Conv1d(8, 48, 1), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 5)
    )
    return model, cross_entropy, (numbers(8, 64), classes(5))


class WaveNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Causal(width, 2 * width, 2, dilation=2**k) for k in range(5))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(5))
        self.last = nn.Conv1d(width, 256, 1)

    def forward(self, words: Tensor) -> Tensor:
        x, total = self.first(words).transpose(1, 2), 0.0
        for layer, skip in zip(self.layers, self.skips, strict=True):
            left, right = layer(x).chunk(2, 1)
            gated = skip(torch.tanh(left) * torch.sigmoid(right))
            x, total = x + gated, total + gated
        return self.last(F.relu(total)).transpose(1, 2)


def wavenet() -> Case:
    """WaveNet (gated dilated convolutions)"""
    return WaveNet(), next_token, (tokens(128, 256),)


class Scan(nn.Module):
    """A selective state space, step by step, as in Mamba."""

    def __init__(self, width: int = 64, states: int = 8) -> None:
        super().__init__()
        self.words, self.enter = nn.Embedding(VOCABULARY, width), nn.Linear(width, 2 * width)
        self.local = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.select, self.step = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))
        self.skip, self.leave = nn.Parameter(torch.ones(width)), nn.Linear(width, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        x, gate = self.enter(self.words(words)).chunk(2, -1)
        x = F.silu(self.local(x.transpose(1, 2))[..., : words.shape[1]].transpose(1, 2))
        enter, leave = self.select(x).chunk(2, -1)
        step = F.softplus(self.step(x)).unsqueeze(-1)
        kept = torch.exp(-step * self.decay.exp())
        added = step * enter.unsqueeze(-2) * x.unsqueeze(-1)
        state, outputs = torch.zeros_like(added[:, 0]), []
        for k in range(words.shape[1]):
            state = kept[:, k] * state + added[:, k]
            outputs.append((state * leave[:, k].unsqueeze(-2)).sum(-1))
        y = torch.stack(outputs, 1) + self.skip * x
        return self.leave(y * F.silu(gate))


def mamba() -> Case:
    """Mamba: a selective scan in a loop"""
    return Scan(), next_token, (tokens(LENGTH, VOCABULARY),)


class TimeMixing(nn.Module):
    """RWKV: a weighted mean of what came before, by a loop."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.mix = (
            nn.Embedding(VOCABULARY, width),
            nn.Parameter(torch.full((3, width), 0.5)),
        )
        self.key, self.value, self.gate = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.decay, self.bonus = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        before = F.pad(x, (0, 0, 1, -1))
        inputs = [x * m + before * (1 - m) for m in self.mix]
        key, value, gate = (
            self.key(inputs[0]),
            self.value(inputs[1]),
            self.gate(inputs[2]).sigmoid(),
        )
        decay, top, bottom, outputs = torch.exp(-self.decay.exp()), 0.0, 0.0, []
        for k in range(words.shape[1]):
            now = torch.exp(key[:, k])
            with_bonus = torch.exp(self.bonus) * now
            outputs.append((top + with_bonus * value[:, k]) / (bottom + with_bonus))
            top, bottom = decay * top + now * value[:, k], decay * bottom + now
        return self.head(gate * torch.stack(outputs, 1))


def rwkv() -> Case:
    """RWKV: time mixing in a loop"""
    return TimeMixing(), next_token, (tokens(LENGTH, VOCABULARY),)


class StateSpace(nn.Module):
    """S4D: a long convolution by FFT, with a complex diagonal."""

    def __init__(self, width: int = 64, states: int = 16) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.full((width, states), -1.0))
        self.frequency = nn.Parameter(torch.arange(states).float().repeat(width, 1))
        self.out = nn.Parameter(torch.randn(width, states, 2) / states)
        self.enter, self.leave = nn.Linear(8, width), nn.Linear(width, 8)

    def kernel(self, length: int) -> Tensor:
        rates = torch.complex(-self.log_rate.exp(), self.frequency)
        powers = torch.exp(rates.unsqueeze(-1) * torch.arange(length) / length)
        return torch.einsum("ws,wst->wt", torch.view_as_complex(self.out), powers).real

    def forward(self, x: Tensor) -> Tensor:
        x, length = self.enter(x).transpose(1, 2), x.shape[1]
        spectrum = torch.fft.rfft(x, 2 * length) * torch.fft.rfft(self.kernel(length), 2 * length)
        y = torch.fft.irfft(spectrum, 2 * length)[..., :length]
        return self.leave(F.gelu(y).transpose(1, 2))


def s4() -> Case:
    """S4D: a long convolution by FFT"""
    return StateSpace(), squared_error, (numbers(128, 8), numbers(128, 8))


class SpectralConv(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        scale = 1 / width
        self.weight = nn.Parameter(
            scale * torch.randn(width, width, modes, modes, dtype=torch.cfloat)
        )
        self.local, self.modes = nn.Conv2d(width, width, 1), modes

    def forward(self, x: Tensor) -> Tensor:
        spectrum, m = torch.fft.rfft2(x), self.modes
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight)
        out = F.pad(low, (0, spectrum.shape[-1] - m, 0, spectrum.shape[-2] - m))
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


def fno() -> Case:
    """Fourier neural operator, complex weights"""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 1), SpectralConv(16, 6), SpectralConv(16, 6), nn.Conv2d(16, 1, 1)
    )
    return model, squared_error, (numbers(3, 32, 32), numbers(1, 32, 32))


class Packed(Reader):
    def forward(self, words: Tensor, count: Tensor) -> Tensor:  # type: ignore[override]
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(words), count, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.layer(packed)
        return self.head(hidden[-1])


def packed_lstm() -> Case:
    """LSTM over packed sequences"""

    def loss(model: nn.Module, words: Tensor, count: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(words, count), y)

    model = Packed(nn.LSTM(64, WIDTH, batch_first=True), WIDTH)
    return model, loss, (tokens(LENGTH, VOCABULARY), lengths(16, LENGTH), classes(4))


MODELS = (
    lstm, bidirectional_lstm, projected_lstm, gru, elman, lstm_cell, gru_cell, tcn, wavenet, mamba,
    rwkv, s4, fno, packed_lstm,
)  # fmt: skip
