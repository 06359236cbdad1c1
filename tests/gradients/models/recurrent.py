"""Recurrent networks and their cells."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.gradients.table import row, rows, uneven

SHAPE = (5, 6, 4)
KINDS = {
    "rnn": nn.RNN,
    "rnn_relu": lambda *sizes, **settings: nn.RNN(*sizes, nonlinearity="relu", **settings),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
CELLS = {
    "rnn_cell": nn.RNNCell,
    "rnn_relu_cell": lambda *sizes, **settings: nn.RNNCell(*sizes, nonlinearity="relu", **settings),
    "lstm_cell": nn.LSTMCell,
    "gru_cell": nn.GRUCell,
}


def flat(result) -> Tensor:
    """All that a network returns: outputs and states."""
    parts = [result] if isinstance(result, Tensor) else [flat(part) for part in result]
    return torch.cat([part.flatten() for part in parts])


for _name, _kind in KINDS.items():
    rows(_name, lambda k=_kind: k(4, 3), SHAPE, lambda m, x: flat(m(x.transpose(0, 1))))
    rows(
        f"{_name}_batch_first",
        lambda k=_kind: k(4, 3, batch_first=True),
        SHAPE,
        lambda m, x: flat(m(x)),
    )
    rows(f"{_name}_unbatched", lambda k=_kind: k(4, 3), SHAPE, lambda m, x: flat(m(x[0])))
    rows(
        f"{_name}_two_layers_bidirectional",
        lambda k=_kind: k(4, 3, 2, bidirectional=True, batch_first=True, dropout=0.0),
        SHAPE,
        lambda m, x: flat(m(x)),
    )
    rows(
        f"{_name}_without_bias",
        lambda k=_kind: k(4, 3, bias=False, batch_first=True),
        SHAPE,
    )
    rows(
        f"{_name}_of_several_sequences",
        lambda k=_kind: k(4, 3, 2, bidirectional=True, batch_first=True),
        SHAPE,
        lambda m, x: flat(m(x.view(3, 2, 4))),
    )
    rows(
        f"{_name}_used_twice",
        lambda k=_kind: k(3, 3, batch_first=True),
        (5, 6, 3),
        lambda m, x: m(m(x)[0].sin())[0],
    )
# States that fill whole vectors of the compiled loops
rows(
    "lstm_of_wide_states",
    lambda: nn.LSTM(4, 32, 2, bidirectional=True, batch_first=True),
    SHAPE,
    lambda m, x: flat(m(x)),
)
rows(
    "lstm_of_wide_states_and_several_sequences",
    lambda: nn.LSTM(4, 16, batch_first=True, bias=False),
    SHAPE,
    lambda m, x: flat(m(x.view(3, 2, 4))),
)
rows("lstm_cell_of_a_wide_state", lambda: nn.LSTMCell(4, 16), (5, 4), lambda m, x: flat(m(x)))
for _name in ("rnn", "rnn_relu", "gru"):  # torch's own LSTM refuses it
    rows(
        f"{_name}_written_in_place",
        lambda k=KINDS[_name]: k(4, 3, batch_first=True),
        SHAPE,
        lambda m, x: m(x)[0].mul_(2),
    )


class Stateful(nn.Module):
    """A state to begin with that is learned, or computed from the record."""

    def __init__(self, network: nn.Module, learned: bool) -> None:
        super().__init__()
        self.network = network
        self.start = nn.Parameter(torch.randn(1, 1, 3)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, :1, :3].transpose(0, 1).tanh() if self.start is None else self.start
        pair = isinstance(self.network, nn.LSTM)
        return flat(self.network(x, (state, state.sin()) if pair else state))


for _name, _kind in KINDS.items():
    for _learned, _word in ((True, "learned"), (False, "given")):
        rows(
            f"{_name}_{_word}_state",
            lambda k=_kind, v=_learned: Stateful(k(4, 3, batch_first=True), v),
            SHAPE,
        )
for _name, _kind in CELLS.items():
    rows(_name, lambda k=_kind: k(4, 3), (5, 4), lambda m, x: flat(m(x)))
    rows(
        f"{_name}_without_bias",
        lambda k=_kind: k(4, 3, bias=False),
        (5, 4),
        lambda m, x: flat(m(x[0])),
    )
    rows(f"{_name}_of_several_rows", lambda k=_kind: k(4, 3), SHAPE, lambda m, x: flat(m(x[0])))
rows("lstm_last_state", lambda: nn.LSTM(4, 3, batch_first=True), SHAPE, lambda m, x: m(x)[1][0])
rows(
    "lstm_projection",
    lambda: nn.LSTM(4, 5, 2, batch_first=True, proj_size=2, bidirectional=True),
    SHAPE,
    lambda m, x: flat(m(x)),
)


def gradient_of_the_inputs(m, x):
    """A transform of torch.func around the layer."""
    return torch.func.grad(lambda inputs: m(inputs)[0].square().sum())(x)


rows(
    "gru_inside_a_gradient",
    lambda: nn.GRU(4, 3, batch_first=True),
    SHAPE,
    gradient_of_the_inputs,
)


class Stepwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 3)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state


rows("cell_step_by_step", Stepwise, SHAPE)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.network = nn.Embedding(7, 4), nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.table(x), lengths, batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.network(packed)[0], batch_first=True)[0]


row(
    "lstm_packed",
    Packed,
    lambda: (torch.randint(7, (5, 6)), torch.tensor([3, 6, 1, 4, 6])),
    lambda m, x, lengths: m(x, lengths).square().sum(),
)


class LastStates(nn.Module):
    """What packed sequences of several lengths end in."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.table, self.network = nn.Embedding(7, 4), network

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        steps = self.table(x)
        first = self.network.batch_first
        packed = pack_padded_sequence(
            steps if first else steps.transpose(0, 1), lengths, first, enforce_sorted=False
        )
        return flat(self.network(packed)[1])


PACKED = []
for _name, _kind in KINDS.items():
    for _ending, _sizes, _settings in (
        ("", (4, 3), {}),
        ("_bidirectional", (4, 16, 2), {"bidirectional": True, "batch_first": True}),
    ):
        PACKED.append(f"{_name}_packed_states{_ending}")
        row(
            PACKED[-1],
            lambda k=_kind, a=_sizes, b=_settings: LastStates(k(*a, **b)),
            lambda: (torch.randint(7, (5, 6)), torch.tensor([3, 6, 1, 4, 6])),
            lambda m, x, lengths: uneven(m(x, lengths)),
        )
