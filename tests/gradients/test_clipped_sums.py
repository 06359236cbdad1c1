"""Sums of clipped gradients: batch after batch, in groups, and as plain functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator
from tests import oracles
from tests.gradients.cases import CASES
from tests.gradients.table import squares

ONES = psac.Custom(torch.ones_like, bound=1e9)  # weights of one: the plain sum
GREEDY = psac.Custom(lambda norms: torch.full_like(norms, 1e9), bound=0.1)
GROUPED = {"0.*": psac.PSAC(bound=0.5), "*": psac.Abadi(bound=2.0)}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def slowly(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same, by a branch on values."""
    return loss(model, x, y) if float(x.sum()) < 1e9 else loss(model, -x, y)


def close(first: dict, second: dict, tolerance: float = 1e-5) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name].double(), second[name].double(), rtol=tolerance, atol=tolerance
        )


def expected(model: nn.Module, batch, rule: psac.ClippingRule | None = None) -> dict[str, Tensor]:
    """The weighted sum by a loop over records."""
    gradients = oracles.gradients(model, loss, batch)
    weights = (rule or psac.PSAC()).weights(oracles.norms(gradients))
    return oracles.weighted_sum(gradients, weights.tolist())


def size(sums: dict[str, Tensor]) -> float:
    return float(torch.cat([value.flatten().double() for value in sums.values()]).norm())


def test_batches_add_up_until_they_are_collected():
    model, (x, y) = network(), data(11)
    total = ClippedSum(Evaluator(model), psac.PSAC())
    for part in (slice(0, 4), slice(4, 5), slice(5, 11)):
        total.add(loss, (x[part], y[part]))
    close(total.collect(), expected(model, (x, y)))
    assert size(total.collect()) == 0
    total.add(loss, (x, y))
    total.discard()
    assert size(total.collect()) == 0


def test_weights_of_one_give_the_ordinary_gradient():
    model, (x, y) = network(), data()
    sums = psac.weighted_gradient(model, loss, (x, y), ONES)
    F.cross_entropy(model(x), y, reduction="sum").backward()
    close(sums, {name: p.grad for name, p in model.named_parameters()})


def test_losses_norms_and_weights_are_those_of_each_record():
    model, (x, y) = network(), data()
    sensitive = ClippedSum(Evaluator(model), psac.PSAC()).add(loss, (x, y))
    norms = oracles.norms(oracles.gradients(model, loss, (x, y))).float()
    torch.testing.assert_close(sensitive.losses, F.cross_entropy(model(x), y, reduction="none"))
    torch.testing.assert_close(sensitive.norms, norms)
    torch.testing.assert_close(sensitive.weights, psac.PSAC().weights(norms))


def test_nothing_of_the_model_is_touched():
    model, batch = network(), data()
    before = [p.clone() for p in model.parameters()]
    psac.weighted_gradient(model, loss, batch, psac.PSAC())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        "weight_used_twice",
        "weight_used_turned",
        "tied_embedding_and_head",
        "same_modules_called_twice",
        "conv2d_circular",
        "conv2d_groups",
        "embedding_padding_idx",
        "linear_on_4d",
        "core_before_any_record",
        "rows_by_index",
        "class_token_by_expand",
        "bilinear",
        "mha_bias_kv",
        "regulariser",
    ],
)
def test_no_record_adds_more_than_the_bound_whatever_the_rule_says(name):
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    for k in range(len(batch)):
        one = batch[k : k + 1]
        assert size(psac.weighted_gradient(model, loss, one, GREEDY)) <= 0.1
        pair = torch.cat([one, one])
        assert 0.19 < size(psac.weighted_gradient(model, loss, pair, GREEDY)) <= 0.2


def test_sums_that_were_collected_are_not_written_to_again():
    model, x = nn.Linear(40, 30), torch.randn(6, 40)
    total = ClippedSum(Evaluator(model), psac.PSAC())
    total.add(squares, x)
    held = total.collect()
    copies = {name: value.clone() for name, value in held.items()}
    for _ in range(3):
        total.add(squares, x * 3)
        total.add(squares, x * 5)
        total.collect()
    assert all(torch.equal(held[name], copies[name]) for name in held)


def test_parameters_that_no_record_reaches_have_sums_of_zero():
    model, x = nn.ModuleDict({"used": nn.Linear(4, 2), "idle": nn.Linear(4, 2)}), torch.randn(5, 4)
    sums = psac.weighted_gradient(model, lambda m, x: m["used"](x).sum(), x, psac.PSAC())
    assert not sums["idle.weight"].any()
    assert sums["used.weight"].any()


def test_the_padding_row_of_an_embedding_gets_no_gradient():
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 3))
    tokens = torch.tensor([[2, 2, 1], [2, 3, 3], [2, 2, 2]])
    table = psac.weighted_gradient(model, squares, tokens, psac.PSAC())["0.weight"]
    assert not table[2].any()
    assert table[3].any()


def test_a_layer_registered_out_of_order_is_trained():
    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(5, 2), nn.Linear(4, 5)

        def forward(self, x):
            return self.last(self.first(x).tanh())

    sums = psac.weighted_gradient(Shuffled(), squares, torch.randn(6, 4), psac.PSAC())
    assert all(value.any() for value in sums.values())


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
def test_complex_parameters_that_are_computed_alone():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3, dtype=torch.complex64), torch.randn(5, 4)

    def branching(model: nn.Module, x: Tensor) -> Tensor:
        factor = 1.0 if float(x.sum()) > 0 else 2.0
        return factor * model(x.to(torch.complex64)).abs().square().sum()

    gradients = oracles.gradients(model, branching, x)
    norms = oracles.norms(gradients)
    torch.testing.assert_close(psac.per_sample_norms(model, branching, x), norms)
    sums = psac.weighted_gradient(model, branching, x, psac.PSAC())
    truth = oracles.weighted_sum(gradients, psac.PSAC().weights(norms).tolist())
    for name, value in truth.items():
        torch.testing.assert_close(sums[name].to(value.dtype), value, rtol=1e-5, atol=1e-5)


# Groups of parameters, each with a rule of its own
def of_groups(model: nn.Module, batch) -> dict[str, Tensor]:
    gradients, found = oracles.gradients(model, loss, batch), {}
    for prefix, rule in (("0.", GROUPED["0.*"]), ("2.", GROUPED["*"])):
        parts = [{k: g for k, g in one.items() if k.startswith(prefix)} for one in gradients]
        norms = oracles.norms(parts)
        found |= oracles.weighted_sum(parts, rule.weights(norms).tolist())
    return found


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("function, way", [(loss, "vmap"), (slowly, "alone")])
def test_groups_are_clipped_each_by_its_own_norm(function, way):
    model, batch = network(), data()
    total = ClippedSum(Evaluator(model), GROUPED)
    sensitive = total.add(function, batch)
    assert sensitive.way == way
    assert sensitive.norms.shape == sensitive.weights.shape == (2, 7)
    close(total.collect(), of_groups(model, batch))


def test_groups_that_leave_a_parameter_out_or_fit_none_are_refused():
    with pytest.raises(ValueError, match=r"no clipping rule is given for .*2\.bias"):
        ClippedSum(Evaluator(network()), {"0.*": psac.PSAC()})
    with pytest.raises(ValueError, match=r"\['head\.\*'\] fit no parameter"):
        ClippedSum(Evaluator(network()), {"*": psac.PSAC(), "head.*": psac.PSAC()})


def test_parameters_that_are_measured_together_must_be_in_one_group():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))

        def forward(self, x):
            return x @ torch.linalg.solve(self.a, self.b)

    rules = {"a": psac.PSAC(), "*": psac.PSAC()}
    with pytest.raises(psac.PrivacyError, match="Clip them by one rule"):
        psac.weighted_gradient(Two(), squares, torch.randn(5, 4), rules)


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("function", [loss, slowly])
def test_a_record_that_is_not_finite_in_one_group_is_dropped_from_all(function):
    model, (x, y) = network(), data()
    model[2].register_forward_hook(lambda module, args, out: out * args[0][:, :1].exp())
    sums = psac.weighted_gradient(model, function, (x[1:], y[1:]), GROUPED)
    x[0] = float("inf")
    close(psac.weighted_gradient(model, function, (x, y), GROUPED), sums)


def test_a_record_whose_gradient_overflows_in_one_group_only_is_dropped_from_all():
    """The gradient of the second layer is infinite, that of the first is not."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.ones(3, 4)
    rules = {"0.*": psac.Abadi(bound=1.0), "2.*": psac.Abadi(bound=1.0)}
    factor = torch.tensor([1.0, 3e38, 1.0])

    def scaled(model, x, factor):
        hidden = model[:2](x) + 2
        return model[2](hidden.detach() * factor + hidden).sum() * factor.sum().clamp(max=1e30)

    others = torch.tensor([0, 2])
    expected = psac.weighted_gradient(model, scaled, (x[others], factor[others]), rules)
    total = ClippedSum(Evaluator(model), rules)
    sensitive = total.add(scaled, (x, factor))
    assert sensitive.norms.isfinite().tolist() == [[True] * 3, [True, False, True]]
    assert (sensitive.weights > 0).tolist() == [[True, False, True]] * 2
    close(total.collect(), expected)


def test_a_bound_that_changes_is_refused():
    model, batch = network(), data()
    total = ClippedSum(Evaluator(model), psac.Abadi(bound=1.0))
    total.add(loss, batch)
    total.clipping = psac.Abadi(bound=2.0)
    with pytest.raises(psac.PrivacyError, match="Other bounds need a new run"):
        total.add(loss, batch)
