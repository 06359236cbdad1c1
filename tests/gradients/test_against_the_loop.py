"""Every model of the table against a loop over samples by plain autograd."""

from __future__ import annotations

import contextlib

import pytest
import torch

import psac
from tests import oracles
from tests.gradients import unusual  # noqa: F401  # more rows
from tests.gradients.cases import CASES

# Rows of these have no fixed place in the batch: the loop over samples serves them, and says so.
LOOPED = {"packed_lstm", "mixture_of_experts"}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def announced(name: str):
    return pytest.warns(psac.SlowPathWarning) if name in LOOPED else contextlib.nullcontext()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_equal_the_loop(name, dtype):
    torch.manual_seed(0)
    model, batch, loss_fn, take, n = CASES[name]()
    gradients = oracles.loop_gradients(model, loss_fn, batch, take, n)
    expected = oracles.norms(gradients)
    with announced(name):
        norms = psac.per_sample_norms(model, loss_fn, batch)
    assert norms.shape == (n,)
    torch.testing.assert_close(
        norms.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-3
    )

    with announced(name):
        sums = psac.weighted_gradient(model, loss_fn, batch, psac.PSAC(r=0.1))
    truth = oracles.weighted_sum(gradients, [oracles.psac_weight(x) for x in expected.tolist()])
    assert sums.keys() == truth.keys()
    size = sum(float(g.square().sum()) for g in truth.values()) ** 0.5
    for key, value in truth.items():
        torch.testing.assert_close(
            sums[key].double(), value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * size
        )
