"""Cross entropy of all records at once equals that of each record alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psac.gradients import Evaluator, trees

RECORDS, CLASSES = 5, 4


def targets_of(kind: str, shape: tuple[int, ...]) -> Tensor:
    if kind == "probabilities":
        return torch.rand(RECORDS, CLASSES, *shape).softmax(1)
    target = torch.randint(0, CLASSES, (RECORDS, *shape))
    if kind == "some ignored":
        target = torch.where(torch.rand(target.shape) < 0.3, -100, target)
    return target


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("kind", ["labels", "some ignored", "probabilities"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_losses_of_classes_equal_those_of_each_record(
    shape: tuple[int, ...], kind: str, has_weights: bool, smoothing: float, reduction: str
) -> None:
    torch.manual_seed(0)
    batch = torch.randn(RECORDS, CLASSES, *shape), targets_of(kind, shape)
    settings: dict[str, Any] = {
        "weight": torch.rand(CLASSES) + 0.5 if has_weights else None,
        "reduction": reduction,
    }

    def of_scores(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scores = (x.movedim(1, -1) * model.weight[:, 0] + model.bias).movedim(-1, 1)
        loss = F.cross_entropy(scores, y, label_smoothing=smoothing, **settings)
        if kind != "probabilities":
            loss = loss + F.nll_loss(scores.log_softmax(1), y, **settings)
        if not shape:  # scores of one record without the axis of its batch
            loss = loss + F.cross_entropy(scores[0], y[0], label_smoothing=smoothing, **settings)
        return loss

    evaluator = Evaluator(nn.Linear(1, CLASSES))
    evaluation = evaluator(of_scores, batch)
    alone = [of_scores(evaluator.model, *trees.record(batch, k)) for k in range(RECORDS)]
    assert evaluation.way == "vmap"
    torch.testing.assert_close(evaluation.losses, torch.stack(alone).detach(), equal_nan=True)
