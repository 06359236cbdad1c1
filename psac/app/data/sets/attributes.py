"""CIFAR-10 with 40 labels a image instead of one: a stand-in for tasks such as CelebA's.

Ten labels are the classes; 14 follow from the class, such as "animal"; 16 are facts of the image
itself, such as "bright", each by a fixed threshold.  So the labels of a record are functions of it
alone, and of no other one: `psac.data.load("cifar10", attributes=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

GROUPS: dict[str, tuple[str, ...]] = {
    "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "vehicle": ("airplane", "automobile", "ship", "truck"),
    "mammal": ("cat", "deer", "dog", "horse"),
    "pet": ("cat", "dog"),
    "hoofed": ("deer", "horse"),
    "flies": ("airplane", "bird"),
    "on wheels": ("airplane", "automobile", "truck"),
    "on roads": ("automobile", "truck"),
    "on water": ("frog", "ship"),
    "carries people": ("airplane", "automobile", "horse", "ship", "truck"),
    "eats meat": ("bird", "cat", "dog", "frog"),
    "on four legs": ("cat", "deer", "dog", "frog", "horse"),
    "lays eggs": ("bird", "frog"),
    "on farms": ("cat", "dog", "horse"),
}


def _light(x: Tensor) -> Tensor:
    return x.mean(1)


def _part(rows: slice, columns: slice) -> Callable[[Tensor], Tensor]:
    return lambda x: _light(x)[:, rows, columns].mean((1, 2))


ALL, FIRST, LAST, INNER = slice(None), slice(0, 16), slice(16, 32), slice(8, 24)
# Each compares a number of the image with a constant.
FACTS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "bright": (lambda x: x.mean((1, 2, 3)), 0.5),
    "very dark": (lambda x: -x.mean((1, 2, 3)), -0.3),
    "reddish": (lambda x: (x[:, 0] - x[:, 2]).mean((1, 2)), 0.08),
    "bluish": (lambda x: (x[:, 2] - x[:, 0]).mean((1, 2)), 0.02),
    "greenish": (lambda x: (2 * x[:, 1] - x[:, 0] - x[:, 2]).mean((1, 2)), 0.02),
    "colourful": (lambda x: (x.amax(1) - x.amin(1)).mean((1, 2)), 0.15),
    "grey": (lambda x: -(x.amax(1) - x.amin(1)).mean((1, 2)), -0.07),
    "high contrast": (lambda x: _light(x).flatten(1).std(1), 0.24),
    "low contrast": (lambda x: -_light(x).flatten(1).std(1), -0.15),
    "lighter above": (lambda x: _part(FIRST, ALL)(x) - _part(LAST, ALL)(x), 0.05),
    "lighter below": (lambda x: _part(LAST, ALL)(x) - _part(FIRST, ALL)(x), 0.05),
    "lighter on the left": (lambda x: _part(ALL, FIRST)(x) - _part(ALL, LAST)(x), 0.02),
    "lighter inside": (lambda x: _part(INNER, INNER)(x) - _light(x).mean((1, 2)), 0.02),
    "white corner": (lambda x: _light(x)[:, :4, :4].mean((1, 2)), 0.8),
    "fine detail": (lambda x: _light(x).diff(dim=2).abs().mean((1, 2)), 0.06),
    "smooth": (lambda x: -_light(x).diff(dim=2).abs().mean((1, 2)), -0.035),
}


def attribute_names(classes: Sequence[str]) -> tuple[str, ...]:
    return (*classes, *GROUPS, *FACTS)


def labels_of(images: Tensor, numbers: Tensor, classes: Sequence[str]) -> Tensor:
    """0 or 1 for each of `attribute_names`, a row per image; `numbers` count `classes`."""
    columns = [numbers == place for place in range(len(classes))]
    for members in GROUPS.values():
        columns.append(torch.isin(numbers, torch.tensor([classes.index(name) for name in members])))
    for number, threshold in FACTS.values():
        parts = [number(part) for part in images.split(1000)]  # for memory
        columns.append(torch.cat(parts) > threshold)
    return torch.stack(columns, 1).float()
