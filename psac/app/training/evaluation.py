"""The loss that a model is trained with, and its accuracy on other records.

A record has one class (labels are int64 of shape [n]) or several (float32, 0 or 1, of shape
[n, classes]).  With one class, the loss is the cross-entropy.  With several, it is the mean of the
binary cross-entropies of the classes, and the accuracy is the share of correct labels.

Guarantees: `accuracy` and `loss` are means over all records, whatever the batch size; row i, column
j of `confusion` counts records of class i that were predicted as class j.  There is no noise: on
private records, the results are NOT private (`Splits.public`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psac.app.training.in_memory import Records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One entry per record, in order."""

    labels: Tensor
    predictions: Tensor
    confidences: Tensor  # the probability that the model gives to its prediction
    losses: Tensor
    classes: int

    @property
    def accuracy(self) -> float:
        return float((self.predictions == self.labels).double().mean())

    @property
    def loss(self) -> float:
        return float(self.losses.double().mean())

    @property
    def constant_accuracy(self) -> float:
        """The accuracy of always predicting the most frequent class."""
        return float(torch.bincount(self.labels).max()) / len(self.labels)

    def confusion(self) -> list[list[int]]:
        cells = torch.bincount(self.labels * self.classes + self.predictions, minlength=self._cells)
        return cells.view(self.classes, self.classes).tolist()

    @property
    def _cells(self) -> int:
        return self.classes * self.classes

    def per_class_accuracy(self) -> list[float | None]:
        """None for a class without records."""
        rows = self.confusion()
        return [row[k] / sum(row) if sum(row) else None for k, row in enumerate(rows)]

    def mistakes(self, limit: int) -> list[dict[str, Any]]:
        """The wrong predictions with the highest confidence; records are numbered from 1."""
        wrong = torch.nonzero(self.predictions != self.labels).flatten()
        order = torch.argsort(self.confidences[wrong], descending=True, stable=True)[:limit]
        return [
            {
                "record": k + 1,
                "label": int(self.labels[k]),
                "prediction": int(self.predictions[k]),
                "confidence": float(self.confidences[k]),
            }
            for k in wrong[order].tolist()
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralLabels:
    """For records with several classes: a row per record, a column per class."""

    labels: Tensor
    predictions: Tensor
    losses: Tensor

    @property
    def accuracy(self) -> float:
        return float(self._correct.mean())

    @property
    def loss(self) -> float:
        return float(self.losses.double().mean())

    @property
    def constant_accuracy(self) -> float:
        """The accuracy of always predicting the more frequent value of each class."""
        share = self.labels.double().mean(0)
        return float(torch.maximum(share, 1 - share).mean())

    @property
    def _correct(self) -> Tensor:
        return (self.predictions == self.labels).double()

    def confusion(self) -> None:
        """None, as no class is confused with another."""

    def per_class_accuracy(self) -> list[float | None]:
        return self._correct.mean(0).tolist()

    def mistakes(self, limit: int) -> list[dict[str, Any]]:
        """Empty, as hardly any record is correct in every class."""
        return []


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of one record, for `private.step`."""
    return losses_of(model(inputs), labels).squeeze(0)


def losses_of(scores: Tensor, labels: Tensor) -> Tensor:
    """One loss per record; of scores [n, copies, classes] it is the mean over copies."""
    if scores.ndim == 3:
        labels = labels.unsqueeze(1).expand(-1, scores.shape[1], *labels.shape[1:])
    if labels.is_floating_point():
        each = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return each.flatten(1).mean(1)
    each = F.cross_entropy(scores.movedim(-1, 1), labels, reduction="none")
    return each if each.ndim == 1 else each.mean(1)


@torch.no_grad()
def evaluate(
    model: nn.Module, records: Records, *, classes: int, batch_size: int
) -> Evaluation | SeveralLabels:
    """Evaluates the model on all records; its training mode is restored."""
    training, parts = model.training, []
    model.eval()
    for numbers, inputs, labels in records.parts(batch_size):
        scores = model(inputs).float()
        parts.append((numbers, labels, scores, losses_of(scores, labels)))
    model.train(training)
    numbers, *rest = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    labels, scores, losses = (each[numbers.argsort()] for each in rest)
    if labels.ndim == 2:
        return SeveralLabels(labels=labels, predictions=(scores > 0).float(), losses=losses)
    confidences, predictions = scores.softmax(1).max(1)
    return Evaluation(
        labels=labels,
        predictions=predictions,
        confidences=confidences,
        losses=losses,
        classes=classes,
    )
