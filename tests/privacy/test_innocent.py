"""No false refusals: what isolates records works, and gives the gradients of a plain loop."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

import psac
from psac.gradients import trees
from tests.privacy.defects import marked
from tests.privacy.innocent import TABLE, cross_entropy


def plain_norms(model, loss, batch):
    """One record after the other, by autograd alone."""
    norms = []
    for k in range(trees.num_records(batch)):
        value = trees.call(loss, model, trees.record(batch, k))
        if not value.requires_grad:
            norms.append(0.0)
            continue
        grads = torch.autograd.grad(value.sum(), list(model.parameters()), materialize_grads=True)
        norms.append(sum(float(g.abs().square().sum()) for g in grads) ** 0.5)
    return torch.tensor(norms)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("row", [marked(row, row.name) for row in TABLE])
def test_it_works_or_is_refused_for_a_true_reason(row):
    torch.manual_seed(0)
    model, loss, batch = row.make()
    if row.refused:
        with pytest.raises(psac.PrivacyError) as error:
            psac.per_sample_norms(model, loss, batch)
        assert re.search(row.refused, str(error.value)), str(error.value)
        return
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        sensitive = psac.gradients.ClippedSum(
            psac.gradients.Evaluator(model), psac.Abadi(bound=1.0)
        ).add(loss, batch)
    told = [w for w in raised if issubclass(w.category, psac.SlowPathWarning)]
    assert (sensitive.way, len(told)) == (row.way, int(row.way == "alone"))
    if not row.random:
        torch.testing.assert_close(
            sensitive.norms.float(), plain_norms(model, loss, batch), rtol=1e-4, atol=1e-5
        )


def test_a_batch_without_records_has_no_norms_and_no_gradient():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    batch = torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    assert psac.per_sample_norms(model, cross_entropy, batch).shape == (0,)
    gradient = psac.weighted_gradient(model, cross_entropy, batch, psac.PSAC())
    assert all(not value.any() for value in gradient.values())
