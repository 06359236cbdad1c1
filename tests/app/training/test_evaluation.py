"""Evaluation and step statistics against sums by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import psac
from psac.app.training.evaluation import Evaluation, evaluate, loss_of, losses_of
from psac.app.training.in_memory import Records
from psac.app.training.metrics import MetricsLog, read
from psac.app.training.step_statistics import EDGES, StepStatistics
from psac.gradients import ClippedSum, Evaluator


class Scores(nn.Module):
    """Gives its inputs back, and notes in which mode."""

    def __init__(self):
        super().__init__()
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return x


def test_evaluation_counts_what_a_loop_counts():
    scores = torch.randn(23, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(23) % 3  # nobody is of class 3
    model = Scores()
    result = evaluate(model, Records(scores, labels), classes=4, batch_size=5)
    table = [[0] * 4 for _ in range(4)]
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        table[label][row.index(max(row))] += 1
    assert result.confusion() == table
    assert result.accuracy == pytest.approx(sum(table[k][k] for k in range(4)) / 23)
    assert result.loss == pytest.approx(float(F.cross_entropy(scores, labels)), rel=1e-6)
    assert result.per_class_accuracy()[:3] == [table[k][k] / sum(table[k]) for k in range(3)]
    assert result.per_class_accuracy()[3] is None
    assert result.constant_accuracy == 8 / 23  # 0 and 1 are the most frequent
    assert model.modes == [False] * 5
    assert model.training


@pytest.mark.parametrize("several", [False, True])
def test_the_loss_of_copies_is_their_mean(several):
    torch.manual_seed(0)
    scores = torch.randn(5, 3, 4)
    labels = torch.randint(2, (5, 4)).float() if several else torch.randint(4, (5,))
    each = [losses_of(scores[:, k], labels) for k in range(3)]
    torch.testing.assert_close(losses_of(scores, labels), torch.stack(each).mean(0))


def test_several_labels_are_answered_one_by_one():
    scores = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 1.0, -0.5]])
    labels = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    result = evaluate(Scores(), Records(scores, labels), classes=3, batch_size=1)
    assert result.accuracy == pytest.approx(4 / 6)
    assert result.per_class_accuracy() == [1.0, 0.5, 0.5]
    assert result.constant_accuracy == pytest.approx((0.5 + 1 + 1) / 3)
    by_hand = [
        math.log1p(math.exp(-score if label else score))
        for score, label in zip(scores.flatten().tolist(), labels.flatten().tolist(), strict=True)
    ]
    assert result.loss == pytest.approx(sum(by_hand) / 6)
    assert result.confusion() is None
    assert result.mistakes(5) == []
    assert losses_of(scores, labels).tolist() == pytest.approx(
        [sum(by_hand[:3]) / 3, sum(by_hand[3:]) / 3]
    )


def test_mistakes_are_those_of_which_the_model_was_most_sure():
    result = Evaluation(
        labels=torch.tensor([0, 0, 1, 1]),
        predictions=torch.tensor([0, 1, 0, 0]),
        confidences=torch.tensor([0.9, 0.5, 0.7, 0.6]),
        losses=torch.zeros(4),
        classes=2,
    )
    found = result.mistakes(2)
    assert [row["record"] for row in found] == [3, 4]
    assert found[0] == {
        "record": 3, "label": 1, "prediction": 0, "confidence": pytest.approx(0.7),
    }  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_loss_of_a_record_is_its_entry_in_the_losses_of_the_batch(several, copies):
    torch.manual_seed(0)
    classify = nn.Linear(4, copies * 3)
    shape = (3,) if copies == 1 else (copies, 3)
    model = nn.Sequential(classify, nn.Unflatten(1, shape))
    inputs = torch.randn(5, 4)
    labels = torch.randint(2, (5, 3)).float() if several else torch.randint(3, (5,))
    total = ClippedSum(Evaluator(model), psac.PSAC())
    sensitive = total.add(loss_of, (inputs, labels))
    assert sensitive.way == "vmap"
    torch.testing.assert_close(sensitive.losses, losses_of(model(inputs), labels).detach())


def sensitive_of(losses, norms, weights) -> psac.Sensitive:
    return psac.Sensitive(losses=losses, norms=norms, weights=weights, way="vmap")


def test_step_statistics_do_not_depend_on_the_parts():
    losses, norms, weights = torch.rand(3, 20)
    whole, parts = StepStatistics(), StepStatistics()
    whole.add(sensitive_of(losses, norms, weights))
    for k in range(0, 20, 7):
        parts.add(sensitive_of(losses[k : k + 7], norms[k : k + 7], weights[k : k + 7]))
    one, other = whole.to_json(), parts.to_json()
    assert one.pop("loss") == pytest.approx(other.pop("loss"))
    assert one == other
    assert one["norms"]["quantiles"][2] == pytest.approx(float(norms.double().quantile(0.5)))


def test_norms_beyond_the_edges_and_those_that_are_not_finite_are_counted_once():
    norms = torch.tensor([0.0, 1e-9, 1e9, math.inf, math.nan, 1.5])
    statistics = StepStatistics()
    statistics.add(sensitive_of(torch.ones(6), norms, torch.ones(6)))
    line = statistics.to_json()
    counts = line["histogram"]["counts"]
    assert (counts[0], counts[-1], counts[EDGES.index(0.0)]) == (2, 3, 1)
    assert sum(counts) == line["samples"] == 6
    assert len(counts) == len(EDGES) - 1
    assert all(math.isfinite(value) for value in line["norms"]["quantiles"])
    nobody = StepStatistics()
    nobody.add(sensitive_of(torch.ones(1), torch.tensor([math.nan]), torch.zeros(1)))
    assert nobody.to_json()["norms"]["quantiles"] is None


def test_every_weight_is_counted_between_its_edges():
    statistics = StepStatistics()
    norms = torch.tensor([1.0, 1.0, 1.0, 1.0, math.inf])
    statistics.add(sensitive_of(torch.ones(5), norms, torch.tensor([1.0, 1.2, 0.5, 0.0, 0.0])))
    line = statistics.to_json()["weights"]
    edges, counts = line["log10_edges"], line["counts"]
    assert (edges[0], edges[-1], len(edges)) == (-6.0, 0.125, len(counts) + 1)
    assert {k for k, count in enumerate(counts) if count} == {0, len(counts) - 1, len(counts) - 4}
    assert edges[-5] <= math.log10(0.5) < edges[-4]
    assert (counts[0], counts[-4], counts[-1]) == (1, 1, 2)  # the infinite norm is left out
    nobody = StepStatistics()
    nobody.add(sensitive_of(torch.ones(1), torch.tensor([math.nan]), torch.zeros(1)))
    assert nobody.to_json()["weights"]["counts"] == []


def test_metrics_are_rewound_to_a_step_without_the_end_and_the_torn_line(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for kind, step in (("start", 0), ("step", 1), ("step", 2), ("step", 3), ("end", 2)):
        log.write(kind, step=step, loss=math.nan)
    with open(log.path, "a") as file:
        file.write('{"kind": "step", "st')
    assert len(read(log.path)) == 5
    log.rewind(2)
    assert [(line["kind"], line["step"]) for line in read(log.path)] == [
        ("start", 0), ("step", 1), ("step", 2),
    ]  # fmt: skip
    assert read(log.path)[0]["loss"] is None
    log.rewind(0)
    assert len(read(log.path)) == 1
