"""What was proved on the first batch must hold for the next ones, or be found out.

Rows that move between samples while the operations stay the same; forwards that mix samples only
sometimes; hooks of the user, which are a part of the forward.
"""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import psac
from tests import oracles
from tests.gradients.cases import CASES

ONE = psac.Abadi(bound=1.0)


class Rows(nn.Module):
    """Linear layers on rows that a function takes from the samples and puts back."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.run = nn.Linear(5, 3), nn.Linear(3, 2), forward

    def forward(self, *batch: Tensor) -> Tensor:
        return self.run(self, *batch)


def heads_outside(m: Rows, x: Tensor) -> Tensor:
    n, heads, length, k = x.shape
    rows = m.layer(x.permute(1, 0, 2, 3).reshape(-1, k)).view(heads, n, length, 3)
    return rows.permute(1, 0, 2, 3).flatten(1).tanh().sum(1)


def time_outside(m: Rows, x: Tensor) -> Tensor:
    n, length, k = x.shape
    return m.layer(x.transpose(0, 1).reshape(-1, k)).view(length, n, 3).tanh().sum((0, 2))


def split_by_a_number(m: Rows, x: Tensor, length: int) -> Tensor:
    return heads_outside(m, x.unflatten(1, (-1, length)))


def unpadded(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    rows = x.new_zeros(*x.shape[:2], 3)
    rows[mask] = m.layer(x[mask]).tanh()
    return rows.sum((1, 2))


def unpadded_by_numbers(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    places = mask.flatten().nonzero().flatten()
    rows = m.layer(x.flatten(0, 1).index_select(0, places)).tanh()
    return x.new_zeros(mask.numel(), 3).index_add(0, places, rows).view(len(x), -1).sum(1)


def sorted_by_length(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    order = mask.sum(1).argsort(descending=True, stable=True)
    rows = m.head(m.layer(x.mean(1)).tanh().index_select(0, order) * mask.sum(1)[order, None])
    return rows.tanh().index_select(0, order.argsort()).sum(1)


def sorted_by_a_matrix(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    order = torch.eye(len(x))[mask.sum(1).argsort(descending=True, stable=True)]
    return (order.t() @ m.head(order @ m.layer(x.mean(1)).tanh())).tanh().sum(1)


def sorted_in_a_checkpoint(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    return checkpoint(lambda x: sorted_by_length(m, x, mask), x, use_reentrant=False)


def masks(*lengths: int, longest: int = 8) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def shaped(*shape: int) -> tuple[Tensor, ...]:
    return (torch.randn(*shape),)


def padded(*lengths: int, longest: int = 8) -> tuple[Tensor, ...]:
    return torch.randn(len(lengths), longest, 5), masks(*lengths, longest=longest)


# name: (forward, first batch, next batch)
MOVED = {
    "longer": (heads_outside, shaped(6, 2, 4, 5), shaped(6, 2, 6, 5)),
    "other_number_of_rows": (heads_outside, shaped(6, 2, 4, 5), shaped(6, 2, 5, 5)),
    "same_number_of_rows": (heads_outside, shaped(6, 2, 6, 5), shaped(6, 3, 4, 5)),
    "split_otherwise": (
        split_by_a_number,
        (*shaped(6, 12, 5), 6),
        (*shaped(6, 12, 5), 4),
    ),
    "one_position_at_first": (time_outside, shaped(6, 1, 5), shaped(6, 4, 5)),
    "one_head_at_first": (heads_outside, shaped(6, 1, 4, 5), shaped(6, 2, 4, 5)),
    "padding_later": (unpadded, padded(8, 8, 8, 8), padded(2, 8, 5, 5)),
    "padding_later_uneven": (unpadded, padded(8, 8, 8, 8), padded(2, 8, 5, 6)),
    "lengths_of_the_same_sum": (unpadded, padded(5, 5, 5, 5), padded(2, 8, 5, 5)),
    "lengths_by_numbers": (unpadded_by_numbers, padded(5, 5, 5, 5), padded(2, 8, 5, 5)),
    "only_the_last_differ": (unpadded, padded(*[5] * 20), padded(*[5] * 18, 2, 8)),
    "sorted_by_length": (sorted_by_length, padded(5, 5, 5, 5), padded(1, 2, 3, 4)),
    "sorted_by_a_matrix": (sorted_by_a_matrix, padded(5, 5, 5, 5), padded(1, 2, 3, 4)),
    "sorted_in_a_checkpoint": (sorted_in_a_checkpoint, padded(5, 5, 5, 5), padded(1, 2, 3, 4)),
}


def truth(model: nn.Module, batch: tuple) -> Tensor:
    def take(batch: tuple, i: int) -> tuple:
        return tuple(t[i : i + 1] if isinstance(t, Tensor) else t for t in batch)

    def loss(m: nn.Module, b: tuple) -> Tensor:
        return m(*b).square()

    return oracles.norms(oracles.loop_gradients(model, loss, batch, take, len(batch[0])))


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
def test_rows_that_move_are_given_to_the_right_samples(name):
    forward, first, second = MOVED[name]
    model = Rows(forward)
    plain = copy.deepcopy(model)
    with psac.Engine(model, clipping=ONE, loss_reduction="sum") as engine:
        # also after the repeated proofs, and back again
        for batch in (first, first, second, first, second, first):
            model(*batch).square().sum().backward()
            expected = truth(plain, batch).float()
            torch.testing.assert_close(engine.norms, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("lengths", [(8, 1, 1, 1, 1, 1, 1, 2), (3, 8, 1, 1, 1, 1, 1, 8)])
def test_one_record_changes_the_sum_by_the_bound_at_most_when_lengths_vary(lengths):
    x, mask = padded(*lengths)
    x[0] = 5 * x[0].abs()
    sums = []
    for batch in ((x, mask), (x[1:], mask[1:])):
        model = Rows(unpadded_by_numbers)
        with psac.Engine(model, clipping=ONE, loss_reduction="sum") as engine:
            model(*padded(*[8] * 8)).sum().backward()
            engine.collect()
            (100 * model(*batch)).sum().backward()
            sums.append(torch.cat([g.flatten() for g in engine.collect().values()]))
    assert float((sums[0] - sums[1]).norm()) <= 1.0 + 1e-5


def last_token(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    rows = m.layer(x).tanh()
    return m.head(rows[torch.arange(len(x)), mask.sum(1) - 1])


def pooled_tokens(m: Rows, x: Tensor, mask: Tensor) -> Tensor:
    rows, places = m.layer(x).tanh(), mask.sum(1) - 1
    return m.head(rows.gather(1, places[:, None, None].expand(-1, 1, 3)).squeeze(1))


@pytest.mark.parametrize("forward", [last_token, pooled_tokens])
@pytest.mark.parametrize("half", [False, True])
def test_tokens_that_data_choose_within_a_sample_go_the_fast_way(forward, half):
    """No loop over samples: SlowPathWarning is an error here."""
    model = Rows(forward)
    plain = copy.deepcopy(model)
    with psac.Engine(model, clipping=ONE, loss_reduction="sum") as engine:
        for lengths in ((5, 5, 5, 5), (2, 8, 5, 5), (1, 2, 3, 4, 5, 6, 7, 8)):
            batch = padded(*lengths)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                model(*batch).float().square().sum().backward()
            expected = truth(plain, batch).float()
            torch.testing.assert_close(
                engine.norms, expected, rtol=0.1 if half else 1e-4, atol=1e-4
            )


def test_images_of_another_size_need_no_other_plan(monkeypatch):
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with psac.Engine(model, loss_reduction="sum") as engine:
        model(torch.randn(4, 1, 5, 5)).sum().backward()
        monkeypatch.setattr("psac.gradients.call.find_plan", None)
        for size in (6, 7):
            model(torch.randn(3, 1, size, 5)).sum().backward()
        assert (
            len({id(plan) for plan in engine.plans[next(iter(engine.plans))].variants.values()})
            == 1
        )


class Sometimes(nn.Module):
    def __init__(self, prepare):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.prepare, self.calls = (
            nn.Linear(4, 6),
            nn.Linear(6, 3),
            prepare,
            0,
        )

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.layer(self.prepare(self, x)).tanh())


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


MIXING = {
    "in_large_batches": lambda m, x: centred(x) if len(x) > 16 else x,
    "by_a_small_number": lambda m, x: centred(x) if torch.rand(()) < 0.5 else x,
    "by_a_large_number": lambda m, x: centred(x) if torch.rand(1) > 0.6 else x,
    "by_a_coin": lambda m, x: x if torch.bernoulli(torch.tensor(0.9)) else centred(x),
    "by_a_whole_number": lambda m, x: centred(x) if torch.randint(5, ()) == 4 else x,
    "by_a_normal_number": lambda m, x: centred(x) if torch.randn(()) > 1 else x,
    "by_python": lambda m, x: centred(x) if random.random() < 0.1 else x,
    "by_numpy": lambda m, x: centred(x) if np.random.rand() > 0.9 else x,
    "in_a_later_step": lambda m, x: centred(x) if m.calls > 40 else x,
    "in_training": lambda m, x: centred(x) if m.training else x,
    "at_a_threshold": lambda m, x: x / 255 if x.max() > 50 else x,
    "by_the_largest": lambda m, x: x / x.abs().max().clamp(min=50),
    "a_little": lambda m, x: x - 1e-3 * x.mean(0),
}


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_mix_only_sometimes_are_refused(name):
    model = Sometimes(MIXING[name])
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    canary = torch.cat([torch.full((1, 4), 1e6), x[1:]])

    def train(engine: psac.Engine) -> None:
        F.cross_entropy(model.eval()(x), y).backward()
        model.train()
        for _ in range(70):
            engine.discard()
            F.cross_entropy(model(canary), y).backward()

    with psac.Engine(model, clipping=ONE) as engine, pytest.raises(psac.NotIsolated):
        train(engine)
    assert engine.num_samples == 0


def test_experts_of_a_fixed_capacity_are_refused():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

        def forward(self, x):
            chosen = [x[:, 0] > 0, x[:, 0] <= 0]
            open_ = [k & (k.cumsum(0) <= 20) for k in chosen]
            return sum(e(x) * k[:, None] for e, k in zip(self.experts, open_, strict=True))

    model = Experts()
    with psac.Engine(model) as engine, pytest.raises(psac.NotIsolated, match="64 samples"):
        F.cross_entropy(model(torch.randn(64, 4)), torch.zeros(64, dtype=torch.long)).backward()
    assert engine.num_samples == 0


def test_a_loss_inside_the_model_that_is_weighted_later_is_refused():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, y, w):
            return (w * F.cross_entropy(self.layer(x), y, reduction="none")).sum() / w.sum()

    model, x, y = Weighted(), torch.randn(20, 4), torch.randint(3, (20,))

    def train(engine: psac.Engine) -> None:
        weights = torch.ones(20)
        model(x, y, weights).backward()
        engine.discard()
        weights[7] = 1e4
        model(x, y, weights).backward()

    with psac.Engine(model) as engine, pytest.raises(psac.NotIsolated):
        train(engine)
    assert engine.num_samples == 0


class Chance(nn.Module):
    """Random numbers of every kind, and no sample sees another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x + 0.1 * torch.randn_like(x)) * (1 + 0.1 * random.random())
        h = h * torch.bernoulli(torch.full((len(x), 1), 0.9)) + 0.1 * torch.rand(len(x), 6)
        h = h.roll(int(torch.randint(3, ())), 1)
        return self.head(-h if torch.rand(()) > 0.5 else h.tanh()[:, torch.randperm(6)])


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
def test_chance_that_keeps_samples_apart_is_not_refused():
    model, x, y = Chance(), torch.randn(30, 4), torch.randint(3, (30,))
    with psac.Engine(model) as engine:
        for _ in range(9):
            F.cross_entropy(model(x), y).backward()
        assert engine.num_samples == 9 * 30


def test_proofs_leave_the_random_numbers_of_the_user_alone():
    model, x, y = Sometimes(lambda m, x: x * random.random()), torch.randn(9, 4), torch.zeros(9)
    random.seed(1)
    np.random.seed(1)
    expected = [random.random() for _ in range(2)][1], np.random.rand()
    random.seed(1)
    np.random.seed(1)
    with psac.Engine(model):
        F.cross_entropy(model(x), y.long()).backward()
    assert (random.random(), np.random.rand()) == expected


class Routed(nn.Module):
    """Served by the loop over samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = x[:, 0] > 0, x.new_zeros(len(x), 3)
        out[chosen], out[~chosen] = self.one(x[chosen]), self.other(x[~chosen])
        return out


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda m, args, out: out.softmax(-1) * 4),
    "before": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] / 5,)),
}


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 3), Routed])
def test_hooks_of_the_user_are_a_part_of_the_forward(build, kind, late):
    torch.manual_seed(0)
    model, x, y = build(), 5 * torch.randn(9, 4), torch.randint(3, (9,))
    plain = copy.deepcopy(model)
    HOOKS[kind](plain)
    if not late:
        HOOKS[kind](model)

    def losses(m, batch):
        return F.cross_entropy(m(batch[0]), batch[1], reduction="none")

    gradients = oracles.loop_gradients(plain, losses, (x, y), oracles.take_first, 9)
    with psac.Engine(model) as engine:
        if late:
            HOOKS[kind](model)
        for _ in range(2):
            F.cross_entropy(model(x), y).backward()
            expected = oracles.norms(gradients).float()
            torch.testing.assert_close(engine.norms, expected, rtol=1e-4, atol=1e-4)


def test_a_hook_that_is_put_before_the_engine_is_refused():
    model, reason = nn.Linear(4, 3), r"prepend=True.*Linear"
    with psac.Engine(model):
        model.register_forward_pre_hook(lambda m, args: (args[0] / 5,), prepend=True)
        with pytest.raises(psac.PrivacyError, match=reason):
            model(torch.randn(5, 4))


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning", "ignore:LSTM with projections")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_sums_of_batches_that_are_proved_are_those_of_others(name, dtype):
    """A proof runs while gradients of the batch are kept: it must not touch them."""
    torch.manual_seed(0)
    model, batch, loss_fn, _, _ = CASES[name]()
    if dtype == torch.float64:  # which no compiled loop serves
        model, batch = model.double(), in_double(batch)
    found = []
    with psac.Engine(model, loss_reduction="sum") as engine:
        for _ in range(3):  # forwards 1 and 2 are proved
            try:
                loss_fn(model, batch).sum().backward()
            except (psac.PrivacyError, RuntimeError) as error:
                pytest.skip(f"not by a loop of one's own: {error}")
            found.append(engine.collect())
    for sums in found[:2]:
        for parameter, value in sums.items():
            torch.testing.assert_close(value, found[2][parameter], rtol=1e-4, atol=1e-6)


def in_double(leaf):
    """The batch with its floating-point numbers in double precision."""
    if isinstance(leaf, (tuple, list)) and not hasattr(leaf, "_fields"):
        return type(leaf)(map(in_double, leaf))
    if isinstance(leaf, dict):
        return {key: in_double(value) for key, value in leaf.items()}
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
