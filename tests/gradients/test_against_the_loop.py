"""Every model of the table against a loop over records by plain autograd."""

from __future__ import annotations

import contextlib

import pytest
import torch

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.contributions import base
from tests import oracles
from tests.gradients.cases import CASES

IGNORED = (  # what torch says of its own layers
    "ignore:LSTM with projections is not supported with oneDNN",
    "ignore:Using padding='same' with even kernel lengths",
)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def announced(way: str):
    """What is computed one record at a time is announced, and nothing else is."""
    return pytest.warns(psac.SlowPathWarning) if way == "alone" else contextlib.nullcontext()


def hold_to_the_loop(model, loss, batch, way, tolerance) -> None:
    """Norms and weighted sums are those of plain autograd, had in the stated way."""
    gradients = oracles.gradients(model, loss, batch)
    expected = oracles.norms(gradients)
    total = ClippedSum(Evaluator(model), psac.PSAC(r=0.1))
    with announced(way):
        sensitive = total.add(loss, batch)
    assert sensitive.way == way
    close = {"rtol": tolerance, "atol": tolerance * 1e-3}
    torch.testing.assert_close(sensitive.norms.double(), expected, **close)
    truth = oracles.weighted_sum(gradients, [oracles.psac_weight(x) for x in expected.tolist()])
    sums = total.collect()
    assert sums.keys() == truth.keys()
    size = sum(float(g.abs().square().sum()) for g in truth.values()) ** 0.5
    for name, value in truth.items():
        torch.testing.assert_close(
            sums[name].to(value.dtype), value, rtol=tolerance, atol=tolerance * size
        )


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("name", list(CASES))
def test_norms_and_sums_equal_the_loop(name, dtype, monkeypatch):
    torch.manual_seed(0)
    if dtype is torch.float32:  # gradients of small layers are kept otherwise
        monkeypatch.setattr(base, "CACHED_BYTES", 0)
    model, batch, loss, way = CASES[name]()
    hold_to_the_loop(model, loss, batch, way, TOLERANCE[dtype])
