"""Weights that are computed from parameters: which way their gradients are had."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.contributions import base, derived, joint
from psac.gradients.contributions.exponential import of_matrix_exp_rows
from psac.gradients.contributions.single import Single
from psac.gradients.contributions.weights import Weights
from tests import oracles
from tests.gradients.cases import CASES

FORMED = "pulled back"
# Row, parameter, and how its norms are taken.
METHODS = {
    ("weight_norm", "0.parametrizations.weight.original1"): "shared gradient",
    ("weight_norm", "0.parametrizations.weight.original0"): "instantiated",
    ("spectral_norm", "parametrizations.weight.original"): "shared gradient",
    ("quantized_weight", "w"): "product of squares",
    ("quantized_weight", "s"): "instantiated",
    ("quantized_weight_at_positions", "w"): "formed in slices",
    ("sign_of_weight", "w"): "product of squares",
    ("gated_weight", "w"): "product of squares",
    ("low_rank_weight", "a"): "product of norms",
    ("low_rank_weight_at_positions", "w"): "gram",
    ("weight_with_row_and_column", "column"): "instantiated",
    ("penalty_times_record", "0.weight"): "product of norms + shared gradient + cross term",
    ("penalty_of_weight_norm", "parametrizations.weight.original1"): "shared gradient",
    ("scaled_table", "w"): "unique rows",
    ("queries_of_a_record", "v"): "gram",
    ("queries_of_a_record", "w"): "instantiated",
    ("halves_used_twice", "w"): "gram",
    ("overlapping_slices", "w"): FORMED,
    ("mirrored_weight", "w"): FORMED,
    ("orthogonal", "parametrizations.weight.original"): "formed in slices",
    ("turned_weight", "w"): "formed in slices",
    ("exponential_weight_at_positions", "w"): "formed in slices",
}


def evaluated(name: str, seed: int = 0):
    torch.manual_seed(seed)
    model, batch, loss, _ = CASES[name]()
    return Evaluator(model)(loss, batch)


@pytest.mark.parametrize("name, parameter", METHODS)
def test_derived_weights_are_measured_as_stated(monkeypatch, name, parameter):
    monkeypatch.setattr(derived, "_refused", set())
    monkeypatch.setattr(base, "CACHED_BYTES", 0)  # as large layers are
    assert METHODS[name, parameter] in evaluated(name).measured.methods[parameter]


@pytest.mark.parametrize("name", [name for name, p in METHODS if METHODS[name, p] != FORMED])
def test_nothing_is_formed_and_pulled_back_for_known_operations(monkeypatch, name):
    def refuse(*_):
        raise AssertionError("a gradient was formed")

    monkeypatch.setattr(joint, "pull_back", refuse)
    assert evaluated(name).way == "vmap"


def test_a_function_that_is_not_pointwise_is_formed_at_once_in_the_next_step(monkeypatch):
    monkeypatch.setattr(derived, "_refused", set())
    first = evaluated("mirrored_weight")
    assert derived._refused
    second = evaluated("mirrored_weight")
    torch.testing.assert_close(*(e.measured.squares[0][1] for e in (first, second)))


def test_parameters_of_one_weight_may_be_in_groups_of_their_own():
    torch.manual_seed(0)
    model, x = weight_norm(nn.Linear(4, 3)), torch.randn(5, 4)
    rules = {"*original0": psac.PSAC(bound=0.5), "*": psac.PSAC()}
    total = ClippedSum(Evaluator(model), rules)
    norms = total.add(lambda m, x: m(x).square().sum(), x).norms
    gradients = oracles.gradients(model, lambda m, x: m(x).square().sum(), x)
    for k, ending in enumerate(("original0", ("original1", "bias"))):
        own = [{n: g for n, g in one.items() if n.endswith(ending)} for one in gradients]
        torch.testing.assert_close(norms[k].double(), oracles.norms(own), rtol=1e-5, atol=1e-6)


def test_what_a_factor_leaves_is_not_lost_in_float32():
    """Squares of 1e-25 are zero in float32; the large entries are masked."""
    model = nn.Linear(3, 2, bias=False)
    mask = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]])

    def loss(model: nn.Module, x: Tensor, factor: Tensor) -> Tensor:
        return (nn.functional.linear(x, model.weight * mask) * factor).sum()

    x = torch.tensor([[1.0, 1e-25, 2e-25], [3.0, 4.0, 0.0]])
    factor = torch.tensor([[1e20], [1.0]])
    norms = psac.per_sample_norms(model, loss, (x, factor))
    expected = torch.tensor([6**0.5 * 1e-5, 32**0.5])
    torch.testing.assert_close(norms, expected)


def test_an_orthogonal_weight_and_what_it_is_made_of_are_one_group():
    model = orthogonal(nn.Linear(4, 4))
    rules = {"*original": psac.PSAC(), "*": psac.PSAC()}
    psac.weighted_gradient(model, lambda m, x: m(x).square().sum(), torch.randn(5, 4), rules)


@pytest.mark.parametrize("size", [0.0, 0.3, 1.0, 7.0])
def test_gradients_of_a_matrix_exponential_are_exact_to_rounding(size: float):
    torch.manual_seed(0)
    matrix = torch.randn(7, 7, dtype=torch.float64)
    matrix = (matrix * size / matrix.norm()).requires_grad_()
    left, right = torch.randn(2, 1, 1, 3, 7, dtype=torch.float64)
    (expected,) = torch.autograd.grad(
        torch.matrix_exp(matrix), matrix, left[0, 0].t() @ right[0, 0]
    )
    rows = of_matrix_exp_rows(matrix.detach(), left, right)
    assert rows is not None
    torch.testing.assert_close(rows[0][0, 0].t() @ rows[1][0, 0], expected, rtol=1e-7, atol=1e-8)


def test_the_exponential_of_a_huge_matrix_is_left_to_torch():
    rows = torch.ones(1, 1, 1, 3)
    for size in (1e3, torch.inf, torch.nan):
        assert of_matrix_exp_rows(torch.full((3, 3), size), rows, rows) is None


def test_two_parameters_of_one_weight_do_not_share_what_sums_write_to():
    """A sum scales gradients where they lie, if nobody else holds them."""
    left, right, weights = torch.randn(5, 4), torch.randn(5, 3), torch.rand(5)
    expected = (left * weights.unsqueeze(1)).t() @ right
    part = Single(left.clone(), right.clone())
    for one in (derived.again(part), part):
        sums = one.weighted_sum(Weights(weights, of_all=True))
        torch.testing.assert_close(sums, expected)
