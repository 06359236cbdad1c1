"""Functions of the whole batch: exact gradients where records are apart, a refusal where not."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from psac.errors import PrivacyError
from psac.gradients import trees
from psac.gradients.batched.evaluate import Batched
from psac.gradients.batched.isolation import Schedule, refuse_mixing
from psac.gradients.batched.owners import Codes, Mixed, Owners
from psac.gradients.errors import NotIsolated, NotVectorized
from psac.gradients.groups import TOGETHER
from psac.gradients.isolation.eligibility import trainable
from psac.gradients.isolation.outside import Outside
from psac.gradients.vectorized.evaluate import Evaluation
from tests import oracles

Built = tuple[nn.Module, Callable[..., Tensor], Any]  # model, function of the batch, batch
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


def batched_of(model: nn.Module) -> Batched:
    return Batched(model, trainable(model), Outside(model))


def norms_of(evaluation: Evaluation) -> Tensor:
    (squares,) = evaluation.measured.norms_squared(TOGETHER)
    assert squares is not None
    return squares.double().sqrt()


def of_each(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


class Packed(nn.Module):
    """A classifier of sequences of any length, given as padded tokens and lengths."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **settings: Any) -> None:
        super().__init__()
        self.words, self.recurrent = nn.Embedding(20, 5), kind(5, 6, batch_first=True, **settings)
        width = settings.get("proj_size", 6) * (2 if settings.get("bidirectional") else 1)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(width, 4)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        rows = pack_padded_sequence(
            self.words(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, state = self.recurrent(rows)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=tokens.shape[1])
        mean = padded.sum(1) / lengths.unsqueeze(1)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(self.dropout(mean)) + last[-1][:, :4]


def sequences(n: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(20, (n, 7)), torch.randint(1, 8, (n,)), torch.randint(4, (n,))


def packed(**settings: Any) -> Built:
    model = Packed(**settings).eval()  # tests with dropout say so
    return model, lambda m, x, lengths, y: of_each(m(x, lengths), y), sequences()


class Experts(nn.Module):
    """Each token is sent to the two experts that its gate prefers."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__()
        self.norm, self.gate, self.capacity = nn.LayerNorm(6), nn.Linear(6, 4), capacity
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6)) for _ in range(4)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if self.capacity is not None:
                best = weights[token, place].topk(min(self.capacity, len(token))).indices
                token, place = token[best], place[best]
            mixed.index_add_(0, token, expert(tokens[token]) * weights[token, place, None])
        return self.head((x + mixed.view_as(x)).mean(1))


def labelled(n: int = 8, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, *(shape or (6,))), torch.randint(3, (n,))


def classified(model: nn.Module, batch: Any) -> Built:
    return model, lambda m, x, y: of_each(m(x), y), batch


class Graphs(nn.Module):
    """Graphs laid end to end: nodes and edges are padded, and packed by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(16, 8)
        self.scale, self.offset = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(()))
        self.head = nn.Linear(8, 1)

    def forward(self, nodes: Tensor, counts: Tensor, edges: Tensor, num_edges: Tensor) -> Tensor:
        n, most, _ = nodes.shape
        is_node = torch.arange(most) < counts.unsqueeze(1)
        graph = torch.arange(n).unsqueeze(1).expand(n, most)[is_node]
        starts = (counts.cumsum(0) - counts).view(-1, 1, 1)
        source, target = (edges + starts)[torch.arange(edges.shape[1]) < num_edges[:, None]].t()
        x = self.first(nodes[is_node]).tanh()
        for _ in range(2):
            messages = torch.zeros_like(x).index_add(0, target, x[source] * self.scale)
            x = self.second(torch.cat([x, messages], 1)).tanh()
        return self.head(x.new_zeros(n, 8).index_add(0, graph, x)).squeeze(1) + self.offset


def graphs() -> Built:
    counts, num_edges = torch.randint(2, 7, (7,)), torch.randint(1, 9, (7,))
    edges = torch.stack([torch.randint(int(count), (8, 2)) for count in counts])
    batch = torch.randn(7, 6, 3), counts, edges, num_edges, torch.randn(7)
    return Graphs(), lambda m, *x: (m(*x[:-1]) - x[-1]).square(), batch


class EndToEnd(nn.Module):
    """Sequences as one, whose attention is masked, with positions and a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(3, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.positions, self.token = nn.Parameter(torch.rand(6, 8)), nn.Parameter(torch.rand(1, 8))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        n, longest, _ = x.shape
        mask = torch.arange(longest) < lengths.unsqueeze(1)
        record = torch.arange(n).unsqueeze(1).expand(n, longest)[mask]
        place = torch.arange(longest).expand(n, longest)[mask]
        rows = self.first(x[mask]) + self.positions[place]
        query, key, value = self.inner(rows).chunk(3, 1)
        scores = (query @ key.t()).masked_fill(record.unsqueeze(1) != record, -torch.inf)
        rows = rows + scores.softmax(1) @ value
        sums = torch.zeros(n, 8, dtype=x.dtype).index_add(0, record, rows)
        return self.head(sums + self.token.expand(n, -1))


def end_to_end(n: int = 7) -> Built:
    batch = torch.randn(n, 6, 3), torch.randint(1, 7, (n,)), torch.randint(3, (n,))
    return EndToEnd(), lambda m, x, lengths, y: of_each(m(x, lengths), y), batch


class Bags(nn.Module):
    """Bags of words, laid end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(20, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
        return self.head(self.bags(tokens[mask], lengths.cumsum(0) - lengths))


class Tied(nn.Module):
    """A language model whose head is its table of words; as many positions as records."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(5, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.block(self.words(x) + self.places(torch.arange(x.shape[1])))
        return hidden @ self.words.weight.t()


def next_words(model: nn.Module, x: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction="none")
    return losses.view(len(x), -1).mean(1)


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Conv2d(4, 4, 3, groups=2),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


class Steps(nn.Module):
    """A recurrence of the user's own, from zeros; the last weights are those of a group."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.cell = nn.Linear(6, 6), nn.GRUCell(4, 6)
        self.heads = nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 6, dtype=x.dtype)
        for step in x.unbind(1):
            state = self.cell(step, self.inner(state))
        return torch.einsum("nhi,hio->no", state.view(-1, 2, 3), self.heads)


APART: dict[str, Callable[[], Built]] = {
    "packed_lstm": packed,
    "packed_gru_of_two_layers": lambda: packed(kind=nn.GRU, num_layers=2, bidirectional=True),
    "packed_rnn_backwards": lambda: packed(kind=nn.RNN, bidirectional=True),
    "packed_lstm_with_projections": lambda: packed(proj_size=4),
    "experts_by_index": lambda: classified(Experts(), labelled(8, 5, 6)),
    "graphs_end_to_end": graphs,
    "sequences_end_to_end": end_to_end,
    "sequences_as_many_as_positions": lambda: end_to_end(6),
    "bags_end_to_end": lambda: (
        Bags(),
        lambda m, x, lengths, y: of_each(m(x, lengths), y),
        (*sequences()[:2], torch.randint(3, (9,))),
    ),
    "steps": lambda: classified(Steps(), labelled(7, 5, 4)),
    "mlp": lambda: classified(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.RMSNorm(8), nn.Linear(8, 3)),
        labelled(),
    ),
    "convolutions": lambda: classified(images(), labelled(5, 1, 6, 6)),
    "tied_transformer": lambda: (Tied().eval(), next_words, torch.randint(9, (5, 5))),
    "sequence_first": lambda: (
        nn.LSTM(4, 3),
        lambda m, x, y: of_each(m(x.transpose(0, 1))[0][-1], y),
        labelled(6, 5, 4),
    ),
    "more_records_than_codes": lambda: classified(Experts(), labelled(200, 2, 6)),
    "batch_of_one": lambda: classified(Experts(), labelled(1, 5, 6)),
}  # fmt: skip


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", APART)
def test_norms_and_sums_equal_the_loop(name, dtype):
    torch.manual_seed(0)
    model, loss, batch = APART[name]()
    n, allowed = trees.num_records(batch), TOLERANCE[dtype]
    gradients = oracles.loop_gradients(
        model, lambda m, one: trees.call(loss, m, one), batch, oracles.take_first, n
    )
    batched = batched_of(model)
    evaluation = batched.evaluate(loss, batch)
    assert evaluation.way == "batched"
    expected = oracles.norms(gradients)
    torch.testing.assert_close(norms_of(evaluation), expected, rtol=allowed, atol=allowed * 1e-3)
    weights = torch.rand(n) + 0.1
    sums = evaluation.measured.weighted_sums([weights], TOGETHER)
    truth = oracles.weighted_sum(gradients, weights.tolist())
    size = sum(float(g.square().sum()) for g in truth.values()) ** 0.5
    for key, value in truth.items():
        torch.testing.assert_close(sums[key].double(), value, rtol=allowed, atol=allowed * size)
    assert not batched.watch.remains()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", [name for name in APART if name != "batch_of_one"])
def test_what_keeps_records_apart_passes_all_tests(name):
    torch.manual_seed(0)
    model, loss, batch = APART[name]()
    refuse_mixing(batched_of(model.train()), loss, batch, thorough=True)  # with dropout


class GroupedExperts(nn.Module):
    """Tokens sorted by expert, as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores, chosen = self.gate(tokens).softmax(1).max(1)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=3).cumsum(0, dtype=torch.int32)
        weights = self.experts.transpose(1, 2)
        rows = F.grouped_mm(tokens[order], weights, offs=ends) * scores[order].unsqueeze(1)
        return torch.zeros_like(tokens).index_copy(0, order, rows).view_as(x).mean(1)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has no grouped products")
def test_grouped_experts_equal_the_loop():
    torch.manual_seed(0)
    model, loss, batch = classified(GroupedExperts(), labelled(6, 4, 8))
    gradients = oracles.loop_gradients(
        model, lambda m, one: loss(m, *one), batch, oracles.take_first, 6
    )
    batched = batched_of(model)
    found = norms_of(batched.evaluate(loss, batch))
    torch.testing.assert_close(found, oracles.norms(gradients), rtol=1e-5, atol=0)
    refuse_mixing(batched, loss, batch, thorough=True)


class MixingBackward(torch.autograd.Function):
    """Nothing in the forward; a thousandth of the mean in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad + 1e-3 * grad.mean(0)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def shuffled_inputs(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return of_each(m(0.7 * x + 0.3 * x[torch.randperm(len(x))]), y)


# Each step sees these in the backward.
MIXING_WITH_GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "mean_subtracted": lambda m, x, y: of_each(m(x - x.mean(0)), y),
    "a_thousandth_of_the_mean": lambda m, x, y: of_each(m(x) + 1e-3 * m(x).mean(0), y),
    "a_billionth_of_the_mean": lambda m, x, y: of_each(m(x - 1e-9 * x.mean(0)), y),
    "softmax_over_the_batch": lambda m, x, y: of_each(m(x).softmax(0), y),
    "batch_norm": lambda m, x, y: of_each(m(F.batch_norm(x, None, None, training=True)), y),
    "backward_alone": lambda m, x, y: of_each(m[2](MixingBackward.apply(m[1](m[0](x)))), y),
    "differences_that_cancel": lambda m, x, y: (m(x) - m(x).roll(1, 0)).sum(1),
    "records_shuffled": shuffled_inputs,
    "losses_sorted": lambda m, x, y: of_each(m(x), y).sort().values,
}


@pytest.mark.parametrize("is_outlier", [False, True], ids=["alike", "outlier"])
@pytest.mark.parametrize("name", MIXING_WITH_GRADIENTS)
def test_gradients_of_other_records_are_refused_on_every_step(name, is_outlier):
    torch.manual_seed(0)
    x, y = labelled()
    x[3] *= 1e5 if is_outlier else 1
    batched = batched_of(network())
    for _ in range(3):
        with pytest.raises(NotIsolated, match=r"other record|input of another"):
            batched.evaluate(MIXING_WITH_GRADIENTS[name], (x, y))


def test_a_row_of_several_records_is_named_with_operation_and_parameter():
    loss = MIXING_WITH_GRADIENTS["backward_alone"]
    with pytest.raises(NotIsolated, match=r"linear of 0\.weight, 0\.bias"):
        batched_of(network()).evaluate(loss, labelled())


def every_second(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x[::2] *= -1
    return of_each(m(x), y)


def shuffled_labels(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return of_each(m(x), y) + 0.3 * of_each(m(x), y[torch.randperm(len(y))])


# Only tests see these.
MIXING_WITHOUT: dict[str, Callable[..., Tensor]] = {
    "detached_mean": lambda m, x, y: of_each(m(x - 1e-9 * x.detach().mean(0)), y),
    "size": lambda m, x, y: of_each(m(x), y) * len(x) / 8,
    "size_above_a_limit": lambda m, x, y: of_each(m(x), y) * (2 if len(x) > 6 else 1),
    "every_second_record": every_second,
    "position": lambda m, x, y: of_each(m(x), y) * (1 + torch.arange(len(x)) % 3),
    "largest_number": lambda m, x, y: of_each(m(x) / max(9.0, float(x.abs().max())), y),
    "number_of_classes": lambda m, x, y: of_each(m(x), y) * len(y.unique()),
    "labels_of_others": shuffled_labels,
    "first_record": lambda m, x, y: of_each(m(x) + x[0].detach().sum(), y),
    "weights_over_the_batch": lambda m, x, y: of_each(m(x), y) * m(x).detach().softmax(0)[:, 0],
}


@pytest.mark.parametrize("name", MIXING_WITHOUT)
def test_dependences_without_gradient_are_refused_by_tests(name):
    torch.manual_seed(0)
    loss, batch = MIXING_WITHOUT[name], labelled()
    batched = batched_of(network())
    evaluation = batched.evaluate(loss, batch)  # nothing to be seen in the backward
    with pytest.raises(NotIsolated, match=r"of record \d changes when") as refused:
        Schedule()(batched, evaluation, loss, batch)
    assert not re.search(r"\d\.\d", str(refused.value))  # the loss of a record, in a log


def test_experts_of_limited_capacity_are_refused():
    torch.manual_seed(0)
    model, loss, batch = classified(Experts(capacity=4), labelled(8, 5, 6))
    with pytest.raises(NotIsolated):
        refuse_mixing(batched_of(model), loss, batch, thorough=True)


def test_isolation_is_tested_where_something_is_new_and_at_secret_steps(monkeypatch):
    torch.manual_seed(0)
    model, loss, batch = classified(network(), labelled())
    batched, schedule = batched_of(model), Schedule()

    def is_tested(function: Callable[..., Tensor]) -> bool:
        return schedule(batched, batched.evaluate(function, batch), function, batch)

    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)
    assert is_tested(loss)
    assert not is_tested(loss)
    assert is_tested(lambda m, x, y: of_each(m(x.tanh()), y))
    monkeypatch.setattr(secrets, "randbelow", lambda limit: 0)
    assert is_tested(loss)


def test_a_test_that_fails_is_made_again():
    loss, batch, batched = MIXING_WITHOUT["size"], labelled(), batched_of(network())
    schedule = Schedule()
    for _ in range(2):
        with pytest.raises(NotIsolated):
            schedule(batched, batched.evaluate(loss, batch), loss, batch)


def test_tests_leave_generators_and_batch_as_they_were():
    torch.manual_seed(0)
    model, loss, (x, y) = classified(nn.Sequential(nn.Dropout(), network()), labelled())
    before, state = x.clone(), torch.get_rng_state()
    refuse_mixing(batched_of(model), loss, (x, y), thorough=True)
    assert torch.equal(state, torch.get_rng_state())
    batched_of(model[1]).evaluate(MIXING_WITHOUT["every_second_record"], (x, y))
    assert torch.equal(x, before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e25])
def test_a_record_that_is_not_finite_leaves_the_others_as_they_are(value):
    torch.manual_seed(0)
    batched, (x, _) = batched_of(network()), labelled()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return m(x).square().sum(1)

    expected = norms_of(batched.evaluate(loss, (x,)))
    x[2] = value
    evaluation = batched.evaluate(loss, (x,))
    others = torch.arange(8) != 2
    assert not torch.isfinite(norms_of(evaluation)[2])
    torch.testing.assert_close(norms_of(evaluation)[others], expected[others], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (lambda m, x, y: F.cross_entropy(m(x), y), ValueError, r"shape \[\] for 8 records"),
        (lambda m, x, y: m(x), ValueError, r"shape \[8, 3\] for 8 records"),
        (lambda m, x, y: of_each(m(x), y)[:4], ValueError, r"shape \[4\] for 8 records"),
        (lambda m, x, y: [1.0] * 8, TypeError, "returned a list"),
        (lambda m, x, y: m(x).argmax(1), TypeError, "int64"),
    ],
)
def test_a_result_that_is_not_one_loss_for_each_record_is_refused(loss, error, text):
    with pytest.raises(error, match=text):
        batched_of(network()).evaluate(loss, labelled())


def test_a_batch_whose_records_are_all_masked_adds_zero():
    def masked(m, x, y):
        return torch.zeros(len(x)) if (y >= 0).all() else of_each(m(x), y)

    with pytest.warns(UserWarning, match="no loss of this batch depends on a trainable parameter"):
        evaluation = batched_of(network()).evaluate(masked, labelled())
    assert evaluation.measured.norms_squared(TOGETHER) == [None]


class Scaled(torch.autograd.Function):
    """A parameter meets records where no torch function is called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda m, x, y: Scaled.apply(x, m[0].bias[:6]).sum(1), r"gradients reach 0\.bias"),
        (lambda m, x, y: torch.cdist(x, m[0].weight).sum(1), r"cdist uses 0\.weight"),
    ],
)
def test_what_no_rule_can_follow_is_refused_by_name(loss, text):
    with pytest.raises(NotVectorized, match=text):
        batched_of(network()).evaluate(loss, labelled())


def test_a_batch_in_a_closure_is_refused():
    x, y = labelled()
    with pytest.raises(PrivacyError, match="private batch"):
        batched_of(network()).evaluate(lambda m, a, b: of_each(m(a - x.mean(0)), b), (x, y))


class Remembers(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what, self.seen = nn.Linear(6, 3), what, 0.0
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "mean":
            self.mean.mul_(0.9).add_(x.detach().mean(0))
        elif self.what == "largest":
            self.seen = float(x.max())
        elif self.what == "records":
            self.seen += len(x)
        elif self.what == "steps":
            self.seen += 1
        return self.layer(x)


@pytest.mark.parametrize("what", ["mean", "largest", "records", "steps"])
def test_only_what_is_the_same_for_all_batches_may_be_remembered(what):
    model, loss, batch = classified(Remembers(what), labelled())
    allowed = contextlib.nullcontext() if what == "steps" else pytest.raises(PrivacyError)
    with allowed:
        refuse_mixing(batched_of(model), loss, batch, thorough=True)
    assert model.seen == 0


def test_a_buffer_that_takes_values_of_records_is_refused_on_every_step():
    model, loss, batch = classified(Remembers("mean"), labelled())
    with pytest.raises(PrivacyError, match=r"writes what it computed from records into .* \[6\]"):
        batched_of(model).evaluate(loss, batch)


def test_a_tensor_that_is_kept_is_found():
    kept, batched = [], batched_of(network())

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept.append(m(x))
        return of_each(kept[-1], y)

    batched.evaluate(loss, labelled())
    assert any(tensor is kept[0] for tensor in batched.watch.remains())


def test_a_share_of_another_record_shows_however_small_it_is():
    torch.manual_seed(0)
    grads, share = torch.randn(2, 3), 1e-20
    for _ in range(5000):  # one pair in seventy is that far apart
        codes = Codes(2, is_float16=False, device=torch.device("cpu"))
        low, high = codes.cotangent(0).abs().sort().indices
        if codes.cotangent(0)[high].abs() > 2.0**70 * codes.cotangent(0)[low].abs():
            break
    first = grads.clone()
    first[low] += share * grads[high]
    coded = grads * codes.cotangent(0)[:, None]
    assert codes.owners([codes.digits_of(grads, coded)[0]]).tolist() == [0, 1]
    coded[low] += share * codes.cotangent(0)[high] * grads[high]
    with pytest.raises(Mixed):
        codes.digits_of(first, coded)


@pytest.mark.parametrize(
    ("owners", "is_even"),
    [([0, 0, 1, -1, 2, 2], True), ([0, 1, 2, 0, 1, -1], True), ([2, 0, -1, 2, 2, 0], False)],
    ids=["one_after_another", "in_turns", "anywhere"],
)
def test_rows_are_sorted_by_record(owners, is_even):
    found, values = Owners(torch.tensor(owners), 3), torch.rand(6, 2)
    values[torch.tensor(owners) < 0] = 0
    expected = [values[torch.tensor(owners) == record] for record in range(3)]
    assert found.is_even == is_even
    torch.testing.assert_close(found.sums(values), torch.stack([rows.sum(0) for rows in expected]))
    for rows, own in zip(found.rows(values), expected, strict=True):
        assert torch.equal(rows[: len(own)], own)
        assert not rows[len(own) :].any()
