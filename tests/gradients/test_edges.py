"""Batches of one and of none, gradients of zero, and values that are not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator
from tests import oracles
from tests.gradients.cases import CASES
from tests.gradients.table import squares
from tests.gradients.test_against_the_loop import IGNORED, announced, hold_to_the_loop

# Rows with a tensor of random numbers as batch, one for each kind of contribution and rule.
SOME = (
    "linear", "linear_on_3d", "linear_wide_gram", "linear_very_long_sequence", "padded_positions",
    "bilinear", "matmul_of_groups", "einsum_heads", "addmm", "weight_used_twice",
    "weight_slices_overlap", "weight_norm", "conv2d_zeros", "conv2d_many_channels",
    "conv2d_groups", "conv3d_zeros", "conv_transpose2d", "conv_over_frames",
    "same_convolution_called_twice", "layer_norm", "group_norm_2d", "instance_norm_1d",
    "batch_norm_2d_fixed", "rms_norm", "prelu", "class_token_by_expand", "rows_by_index",
    "embedding_of_shared_indices", "mha_no_weights", "encoder_layer", "lstm", "gru_cell",
    "complex_filter", "regulariser", "quantized_weight", "sign_of_weight_at_positions",
    "low_rank_weight", "mirrored_weight", "penalty_times_record", "spectral_norm",
    "experts_that_pick_tokens",  # the last: one record at a time
)  # fmt: skip
INNER = ("embedding_bag_mean", "tied_embedding_and_head", "embedding_padding_idx")


def sums_of(model: nn.Module, loss, batch, clipping=None) -> dict[str, Tensor]:
    total = ClippedSum(Evaluator(model), clipping or psac.PSAC())
    total.add(loss, batch)
    return total.collect()


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Bit by bit."""
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def scaled(loss):
    """The same loss, times a number that comes with the record."""
    return lambda model, batch, factor: loss(model, batch) * factor.sum()


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("name", list(CASES))
def test_a_batch_of_one_record_is_evaluated_like_any_other(name):
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    hold_to_the_loop(model, loss, oracles.take_first(batch, 0), way, 1e-4)


def test_a_batch_without_records_adds_nothing():
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(0, 4)
    norms = psac.per_sample_norms(model, squares, x)
    assert norms.shape == (0,)
    sums = psac.weighted_gradient(model, squares, x, psac.PSAC())
    assert {name: value.shape for name, value in sums.items()} == {
        name: p.shape for name, p in model.named_parameters()
    }
    assert not any(value.any() for value in sums.values())


@pytest.mark.parametrize("name", [*SOME, *INNER])
def test_gradients_of_zero_add_zero(name):
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    evaluator, factor = Evaluator(model), torch.zeros(len(batch))
    total = ClippedSum(evaluator, psac.PSAC())
    with announced(way):
        sensitive = total.add(scaled(loss), (batch, factor))
    assert sensitive.way == way
    assert not sensitive.norms.any()
    assert not any(value.any() for value in total.collect().values())


@pytest.mark.parametrize("name", [*SOME, *INNER])
def test_a_record_without_gradient_leaves_the_others_as_they_are(name):
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    factor = torch.ones(len(batch))
    factor[1] = 0
    hold_to_the_loop(model, scaled(loss), (batch, factor), way, 1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SOME)
def test_a_record_that_is_not_finite_adds_nothing_and_spoils_no_other(name, value):
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    others = [k for k in range(len(batch)) if k != 1]
    with announced(way):
        expected = sums_of(model, loss, batch[others])
    batch[1] = value
    with announced(way):
        assert equal(sums_of(model, loss, batch), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", INNER)
def test_a_loss_that_is_not_finite_adds_nothing_and_spoils_no_other(name, value):
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    others, factor = [k for k in range(len(batch)) if k != 1], torch.ones(len(batch))
    expected = sums_of(model, scaled(loss), (batch[others], factor[others]))
    factor[1] = value
    assert equal(sums_of(model, scaled(loss), (batch, factor)), expected)


@pytest.mark.parametrize("name", [*SOME[:-1], *INNER])
def test_a_record_whose_norm_overflows_adds_what_it_adds_alone(name):
    """Its gradient is finite, its squared norm in float32 is not."""
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    others, factor = [k for k in range(len(batch)) if k != 1], torch.ones(len(batch))
    factor[1] = 1e25
    parts = [
        sums_of(model, scaled(loss), (batch[chosen], factor[chosen]))
        for chosen in (others, [1], list(range(len(batch))))
    ]
    rest, own, whole = parts
    assert equal(whole, {name: rest[name] + own[name] for name in rest})
    size = math.sqrt(sum(float(value.abs().double().square().sum()) for value in own.values()))
    assert 0.99 < size <= 1


def test_several_records_may_be_out_of_range_at_once():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(7, 4)
    factor = torch.tensor([1, math.nan, 1, 1e25, math.inf, 1, 0])
    total = ClippedSum(Evaluator(model), psac.PSAC())
    sensitive = total.add(scaled(squares), (x, factor))
    good = factor.isfinite()
    assert torch.equal(sensitive.norms.isfinite(), good)
    assert torch.equal(sensitive.weights > 0, good)
    gradients = oracles.gradients(model, scaled(squares), (x[good], factor[good]))
    expected = oracles.norms(gradients)
    torch.testing.assert_close(sensitive.norms[good].double(), expected, rtol=1e-5, atol=1e-6)
    weights = [oracles.psac_weight(norm) for norm in expected.tolist()]
    sums = total.collect()
    for name, value in oracles.weighted_sum(gradients, weights).items():
        torch.testing.assert_close(sums[name].double(), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batched", [False, True])
def test_a_key_of_the_batch_that_is_the_name_of_the_models_argument_is_named(batched):
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().sum(1)

    total = ClippedSum(Evaluator(nn.Linear(4, 3)), psac.PSAC())
    with pytest.raises(TypeError, match="The model goes to 'model': rename that argument, or"):
        total.add(loss, {"model": torch.randn(5, 4), "x": torch.randn(5, 4)}, batched=batched)


def test_an_operator_in_the_place_of_another_is_seen():
    """As many kernels are registered as before."""
    refused = []
    for name in ("first", "second"):
        library = torch.library.Library(f"psac_tests_{name}", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CPU")
        operator = getattr(torch.ops, f"psac_tests_{name}").twice

        def loss(model: nn.Module, x: Tensor, operator: Any = operator) -> Tensor:
            return model(operator(x)).square().sum()

        for _ in range(2):
            try:
                psac.per_sample_norms(nn.Linear(2, 1), loss, (torch.ones(3, 2),))
            except psac.PrivacyError as error:
                refused.append(f"psac_tests_{name}::twice" in str(error))
        library._destroy()
    assert refused == [True] * 4
