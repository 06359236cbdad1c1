"""Batches reach the step as the loader handed them out, arranged in one way."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from psac.errors import PrivacyError
from psac.private.handed import Arrangements, Handed


@dataclasses.dataclass
class Batch:
    images: Tensor
    mask: Tensor | None = None


class Marked(Tensor):
    pass


class Steps:
    """Batches of a loader, each arranged by a function."""

    def __init__(self) -> None:
        self.arrangements = Arrangements()

    def __call__(self, arrange, images: Tensor, loss=print) -> None:
        mask = torch.ones(len(images))
        handed = Handed([images, mask], is_last=True)
        handed.refuse_other(arrange(images, mask), loss, self.arrangements)


def images(n: int, size: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(n, channels, size, size)


ALIKE = {
    "as it is": lambda x, m: [x, m],
    "in part": lambda x, m: x,
    "by name": lambda x, m: {"mask": m, "images": x},
    "a class": lambda x, m: Batch(x, m),
    "nothing for a part": lambda x, m: Batch(x),
    "twice": lambda x, m: (x, x),
    "copied": lambda x, m: (x.clone(), m.clone()),
    "contiguous": lambda x, m: (x.contiguous(), m),
    "channels last": lambda x, m: (x.to(memory_format=torch.channels_last), m),
    "copied or not": lambda x, m: (x.clone() if len(x) > 2 else x, m),
}


@pytest.mark.parametrize("name", ALIKE)
def test_sizes_may_change_and_the_arrangement_stays(name):
    steps = Steps()
    for n, size, channels in ((5, 4, 3), (1, 4, 3), (2, 1, 3), (3, 4, 1), (1, 1, 1), (4, 2, 3)):
        steps(ALIKE[name], images(n, size, channels))


OTHERWISE = {
    "class": (lambda x, m: (x, m), lambda x, m: [x, m]),
    "a part less": (lambda x, m: (x, m), lambda x, m: (x,)),
    "order": (lambda x, m: (x, m), lambda x, m: (m, x)),
    "order of keys": (lambda x, m: {"x": x, "m": m}, lambda x, m: {"m": m, "x": x}),
    "a part is None": (Batch, lambda x, m: Batch(x)),
    "layout": (lambda x, m: x, lambda x, m: x.to(memory_format=torch.channels_last)),
    "a flag": (lambda x, m: x, lambda x, m: x.clone().requires_grad_()),
    "a mask for its copy": (lambda x, m: (x, x), lambda x, m: (x, m)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_arrangement_is_refused_unless_it_is_said_to_be_public(name):
    first, second = OTHERWISE[name]
    steps = Steps()
    steps(first, images(4))
    for _ in range(2):  # what was refused is not remembered
        with pytest.raises(PrivacyError, match="arranged otherwise than in the first step"):
            steps(second, images(4))
    steps(first, images(3))
    steps(second, images(3), loss=lambda: None)  # of another function
    steps.arrangements.forget()
    steps(second, images(3))


@pytest.mark.parametrize(
    "arrange",
    [lambda x, m: (x, -m), lambda x, m: (x, m, m), lambda x, m: (x.as_subclass(Marked), m)],
    ids=["negative zeros", "more tensors", "a subclass"],
)
def test_what_was_not_handed_out_is_refused_in_the_first_step(arrange):
    batch = images(4), torch.zeros(4)
    with pytest.raises(PrivacyError, match=r"private\.loader (did not hand|handed) out"):
        Handed(batch, is_last=True).refuse_other(arrange(*batch), print, Arrangements())


def test_equal_tensors_may_be_either_of_them():
    """Copies of equal labels: which was meant shows when they differ."""
    arrangements = Arrangements()
    for second in (0.0, 1.0, 0.0):
        x, y = torch.zeros(3), torch.full((3,), second)
        Handed([x, y], is_last=True).refuse_other((x.clone(), y.clone()), print, arrangements)
    x, y = torch.zeros(3), torch.ones(3)
    with pytest.raises(PrivacyError, match="stands for another"):
        Handed([x, y], is_last=True).refuse_other((y.clone(), x.clone()), print, arrangements)
