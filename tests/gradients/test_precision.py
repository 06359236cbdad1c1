"""What one record adds to a sum before its noise, in few digits and where large terms cancel.

The change of the sum by one more record, in units of the bound: at most 1, up to MARGIN.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import TensorDataset

import psac
import psac.private.run
from psac.gradients import ClippedSum, Evaluator, measured
from psac.gradients.contributions import joint
from psac.gradients.contributions.weights import Weights
from psac.gradients.kernels.loops import loops
from psac.gradients.precision import pieces
from tests import oracles

MARGIN = 1e-3
BFLOAT = torch.bfloat16


def flat(sums: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten().double() for value in sums.values()])


class Cut(nn.Module):
    """A weight and a bias in two slices, as cross attention has them."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(6, 4)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return F.linear(x, self.w[:3], self.b[:3]) + F.linear(x, self.w[3:], self.b[3:])


class Cast(nn.Module):
    """A weight that is cast, turned and cut by hand."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 6))

    def forward(self, x):
        w = self.w.to(BFLOAT).transpose(-1, 0)
        return F.linear(x.to(BFLOAT), w) + F.linear(x.to(BFLOAT), w[1:3]).sum(1, keepdim=True)


class Low(nn.Module):
    """A weight with a product of two others on top."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 4))
        self.a, self.b = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2, 4))

    def forward(self, x):
        return F.linear(x, self.w + self.a @ self.b)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, 2 * x[:, :2], x[:, :2], need_weights=False)[0]


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 4)

    def forward(self, x):
        return self.table(x[:, :2].long())


MODELS = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "positions": (lambda: nn.Linear(4, 3), (5, 4)),
    "convolution": (lambda: nn.Conv1d(2, 3, 3), (2, 6)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), (4,)),
    "table": (Table, (4,)),
    "slices": (Cut, (4,)),
    "cross attention": (Attention, (3, 4)),
    "weight norm": (lambda: weight_norm(nn.Linear(4, 3)), (4,)),
    "weight norm of a convolution": (lambda: weight_norm(nn.Conv1d(1, 2, 1)), (1, 3)),
    "low rank": (Low, (4,)),
    "cast by hand": (Cast, (4,)),
}
HALVES = {  # dtype of the model, autocast in the function, autocast around the step
    "parameters": (BFLOAT, False, False),
    "autocast": (torch.float32, True, False),
    "autocast around the step": (torch.float32, True, True),
    "float16": (torch.float16, False, False),
}


def loss_of(autocast: bool):
    """An uneven sum of the outputs, by their first numbers in half precision."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BFLOAT, enabled=autocast):
            out = model(x).flatten().float()
            return (out * torch.linspace(1, 2, len(out))).sum()

    return loss


class Sums:
    """Of one model, by normalised gradients, however often they are asked for."""

    def __init__(self, build, half: str) -> None:
        self.dtype, autocast, self.around = HALVES[half]
        torch.manual_seed(0)
        self.total = ClippedSum(Evaluator(build().to(self.dtype)), psac.AutoV(1.0))
        self.loss = loss_of(autocast)

    def of(self, *parts: Tensor) -> Tensor:
        for part in parts:
            with torch.autocast("cpu", dtype=BFLOAT, enabled=self.around):
                sensitive = self.total.add(self.loss, part.to(self.dtype))
            assert sensitive.way == "vmap"
        sums = self.total.collect()
        assert all(value.dtype is torch.float32 for value in sums.values())
        return flat(sums)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_a_record_moves_a_half_precision_sum_by_no_more_than_the_bound(name, half):
    build, shape = MODELS[name]
    sums, record = Sums(build, half), torch.linspace(1, 2, math.prod(shape)).view(1, *shape)
    for num_samples, num_parts in ((2056, 1), (2060, 1), (1099, 8)):
        before, after = (
            sums.of(*record.repeat(n, *[1] * len(shape)).tensor_split(num_parts))
            for n in (num_samples, num_samples + 1)
        )
        change = float((after - before).norm())
        assert 0.99 < change <= 1 + MARGIN, (num_samples, num_parts)


@pytest.mark.parametrize("half", ["parameters", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_a_random_record_adds_no_more_than_the_bound_in_half_precision(name, half):
    build, shape = MODELS[name]
    sums = Sums(build, half)
    for _ in range(5):
        x = torch.randn(11, *shape).abs().clamp(max=2.9)
        assert float((sums.of(x) - sums.of(x[1:])).norm()) <= 1 + 1e-5


@pytest.mark.parametrize("half", ["parameters", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_norms_in_half_precision_are_near_those_of_a_loop(name, half):
    build, shape = MODELS[name]
    dtype, autocast, _ = HALVES[half]
    torch.manual_seed(0)
    model, x = build().to(dtype), torch.randn(7, *shape).abs().clamp(max=2.9).to(dtype)
    norms = psac.per_sample_norms(model, loss_of(autocast), x)
    assert norms.dtype is torch.float32
    expected = oracles.norms(oracles.gradients(model, loss_of(autocast), x))
    torch.testing.assert_close(norms.double(), expected, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("dtype", [BFLOAT, torch.float64])
def test_kept_gradients_of_layer_norms_survive_other_layers_and_comparisons(dtype):
    """By torch, where the compiled loop does not serve: one row a sample, so nothing is summed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Tanh(), nn.LayerNorm(4)).to(dtype)
    total, found = ClippedSum(Evaluator(model), psac.AutoV(1.0)), []
    for _ in range(3):  # the first is compared with plain autograd
        total.add(loss_of(False), torch.randn(40, 4, generator=seeded(1)).to(dtype))
        found.append(flat(total.collect()))
    for sums in found:
        torch.testing.assert_close(sums, found[-1])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [BFLOAT, torch.float16])
def test_noise_is_added_in_float32_and_the_parameter_gets_its_own_dtype(monkeypatch, dtype):
    seen, add_noise = [], psac.private.run.add_noise_
    monkeypatch.setattr(
        psac.private.run,
        "add_noise_",
        lambda sums, **rest: (seen.extend(s.clone() for s in sums), add_noise(sums, **rest)),
    )
    sizes = []
    for num_records in (2056, 2057):
        model = nn.Linear(16, 1, bias=False).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        records = TensorDataset(torch.ones(num_records, 16))
        with psac.make_private(
            model, optimizer, records, batch_size=num_records, steps=1, noise_multiplier=1.0,
            clipping=psac.AutoV(1.0), delta=1e-9,
        ) as private:  # fmt: skip
            for batch in private.loader:
                private.step(lambda m, x, dtype=dtype: m(x.to(dtype)).float().sum(), batch)
        assert model.weight.dtype is dtype
        assert seen[-1].dtype is torch.float32
        sizes.append(float(seen[-1].double().norm()))
    assert sizes[1] - sizes[0] == pytest.approx(1, abs=MARGIN)


def test_plain_functions_return_float32_sums_of_half_precision_models():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).to(BFLOAT)
    x = torch.ones(5, 4, dtype=BFLOAT)
    sums = psac.weighted_gradient(model, lambda m, x: m(x).float().sum(), x, psac.PSAC())
    assert {value.dtype for value in sums.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [BFLOAT, torch.float16])
def test_pieces_of_few_digits_add_up_exactly(dtype):
    values = torch.randn(3, 50) * torch.tensor([[1e-9], [1.0], [1e12]])
    found, factor = pieces(values, [1])
    total = torch.stack([piece.to(dtype).float() for piece in found]).double().sum(0) / factor
    assert float(((total - values).abs().amax(1) / values.abs().amax(1)).max()) < 1e-10


def test_compiled_loops_are_compared_outside_of_autocast():
    known = loops()
    loops.cache_clear()
    with torch.autocast("cpu", dtype=BFLOAT):
        assert (loops() is None) == (known is None)


# Terms of a record's gradient that cancel, times c: what is left is of the size of 0.01.
class Times(nn.Module):
    """Output gradients are given as an input."""

    def __init__(self, layer: nn.Module, twice: bool = False):
        super().__init__()
        self.layer, self.twice = layer, twice

    def forward(self, x, grads):
        total = (self.layer(x) * grads).sum()
        return total - (self.layer(x + 1e-3) * grads).sum() if self.twice else total


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 8) / 10)

    def forward(self, tokens, a, b):
        chosen, logits = F.embedding(tokens, self.table), F.linear(a, self.table)
        picked = logits.gather(2, tokens.unsqueeze(-1)).sum()
        return (chosen * a).sum() - picked + (chosen * b).sum()


class Centred(nn.Module):
    """Weight standardisation without its division."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3, 3, 3))

    def forward(self, x, grads):
        w = self.w - self.w.mean((1, 2, 3), keepdim=True)
        return (F.conv2d(x, w) * grads).sum()


def opposite_rows(inputs: int, outputs: int, positions: int):
    def record(c: float) -> tuple[Tensor, ...]:
        x, grads = torch.randn(1, positions // 2, inputs), torch.randn(1, positions // 2, outputs)
        x = torch.cat([c * x, -c * x], 1) + 0.01 * torch.randn(1, positions, inputs)
        return x, torch.cat([grads, grads], 1)

    return record


def flat_image(channels: int, size: int, out_channels: int, out: int, centred: bool = True):
    def record(c: float) -> tuple[Tensor, ...]:
        x = c * torch.ones(1, channels, size, size) + 0.01 * torch.randn(1, channels, size, size)
        grads = torch.randn(1, out_channels, out, out)
        return x, grads - grads.mean((2, 3), keepdim=True) if centred else grads

    return record


def same_tokens(c: float) -> tuple[Tensor, ...]:
    rows = c * torch.randn(1, 10, 8)
    tokens = torch.arange(20).view(1, 20) % 10
    return tokens, torch.cat([rows, -rows], 1) + 0.01 * torch.randn(1, 20, 8)


def tied(c: float) -> tuple[Tensor, ...]:
    return torch.randint(6, (1, 1)), c * torch.randn(1, 1, 8), torch.randn(1, 1, 8)


class Penalised(nn.Module):
    """A term of the weight alone, times a number of the record, against one of outputs."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 6))
        self.register_buffer("a", torch.randn(8))
        self.register_buffer("b", torch.randn(6))

    def forward(self, x, grads, c):
        shared = (self.w * torch.outer(self.a, self.b)).sum()
        return (c * shared).sum() - (F.linear(x, self.w) * grads).sum()


def penalty(c: float) -> tuple[Tensor, ...]:
    model = seeded_penalised()
    x = c * model.b + 0.01 * torch.randn(1, 6)
    return x, model.a.unsqueeze(0), torch.full((1,), c)


@functools.cache
def seeded_penalised() -> nn.Module:
    torch.manual_seed(0)
    return Penalised()


@functools.cache
def normed() -> nn.Module:
    torch.manual_seed(0)
    layer = weight_norm(nn.Linear(6, 4, bias=False))
    weight = layer.parametrizations.weight.original1
    weight.data[1:] = weight.data[0]  # all rows point in one direction
    return Times(layer)


def along_the_weight(c: float) -> tuple[Tensor, ...]:
    direction = normed().layer.parametrizations.weight.original1.detach()[:1]
    return c * direction + 0.01 * torch.randn(1, 6), torch.randn(1, 4)


def masked_entries(c: float) -> tuple[Tensor, ...]:
    x = torch.cat([c * torch.randn(1, 20, 4), 0.01 * torch.randn(1, 20, 4)], 2)
    x[:, 10:] = -x[:, :10] + 0.01 * torch.randn(1, 10, 8)
    grads = torch.randn(1, 10, 3)
    return x, torch.cat([grads, grads], 1)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 8))
        self.register_buffer("mask", torch.rand(3, 8))

    def forward(self, x, grads):
        return (F.linear(x, self.w * self.mask) * grads).sum()


CANCELLING = {
    "gram": (lambda: Times(nn.Linear(64, 64, bias=False)), opposite_rows(64, 64, 8)),
    "formed in slices": (lambda: Times(nn.Linear(4, 4, bias=False)), opposite_rows(4, 4, 64)),
    "used twice": (lambda: Times(nn.Linear(64, 64), True), opposite_rows(64, 64, 8)),
    "unique rows": (lambda: Times(nn.Embedding(10, 8)), same_tokens),
    "gram of pixels": (lambda: Times(nn.Conv2d(64, 64, 3)), flat_image(64, 6, 64, 4)),
    "direct": (lambda: Times(nn.Conv2d(3, 16, 8, 2)), flat_image(3, 20, 16, 7)),
    "summed": (lambda: Times(nn.Conv2d(3, 4, 3), True), flat_image(3, 6, 4, 4, False)),
    "cross term": (Tied, tied),
    "a penalty": (seeded_penalised, penalty),
    "along a normed weight": (normed, along_the_weight),
    "times a mask": (Masked, masked_entries),
    "pulled back": (Centred, flat_image(3, 6, 8, 4, False)),
}


def called(model: nn.Module, *record: Tensor) -> Tensor:
    return model(*record)


@pytest.mark.parametrize("budget", [True, False], ids=["kept where possible", "nothing kept"])
@pytest.mark.parametrize("name", CANCELLING)
def test_terms_that_cancel_move_the_sum_by_no_more_than_the_bound(monkeypatch, name, budget):
    if not budget:
        monkeypatch.setattr(measured, "MINIMAL_BUDGET", 0)
        monkeypatch.setattr(measured, "BUDGET_SHARE", 0)
        monkeypatch.setattr(joint, "KEPT_BYTES", 0)
    build, record = CANCELLING[name]
    torch.manual_seed(0)
    model = build()
    others = [record(1.0) for _ in range(12)]
    for rule in (psac.PSAC(), psac.AutoS(), psac.AutoV()):
        vectorized = ClippedSum(Evaluator(model), rule)

        def summed(records, total=vectorized):
            total.add(called, tuple(map(torch.cat, zip(*records, strict=True))))
            return flat(total.collect())

        for c in (1e3, 1e5, 1e7, 1e10):
            before, with_it = summed(others), summed([record(c), *others])
            assert float((with_it - before).norm()) <= 1 + MARGIN, (c, rule)


def test_the_norm_of_a_tied_table_is_not_lost_where_its_uses_cancel():
    torch.manual_seed(0)
    model = Tied()
    tokens, a, b = map(torch.cat, zip(*[tied(1e4) for _ in range(20)], strict=True))
    norms = psac.per_sample_norms(model, called, (tokens, a, b))
    torch.testing.assert_close(norms, b.flatten(1).norm(dim=1), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT, torch.float64])
def test_no_weight_grows_when_it_is_cast(dtype):
    smallest = torch.tensor([2.0**-149, 2.0**-126, 1.0, 2e38], dtype=torch.float64)
    given = torch.cat([smallest * factor for factor in (0.3, 0.7, 1.0, 1 + 1e-9, 1.6)])
    found = Weights(given).like(torch.zeros((), dtype=dtype))
    assert found.dtype is dtype
    assert bool((found.double() <= given).all())
    assert torch.allclose(found.double(), given, rtol=1e-2, atol=2.0**-133)
    assert torch.equal(Weights(given).of_rows(1, False, dtype), found)


def test_a_record_whose_weight_is_denormal_keeps_its_bound():
    """Its norm is above 1e38, so that its weight comes in float64."""
    bound, x, y = 1e-6, torch.randn(9, 6), torch.randint(3, (9,))
    x[0] *= 1e34
    total = ClippedSum(Evaluator(nn.Linear(6, 3)), psac.Abadi(bound=bound))

    def sums(x, y):
        total.add(lambda m, x, y: F.cross_entropy(m(x), y) * 1e4, (x, y))
        return flat(total.collect())

    assert float((sums(x, y) - sums(x[1:], y[1:])).norm()) <= bound * (1 + MARGIN)
