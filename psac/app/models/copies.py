"""A network that sees each picture together with copies of it that are moved a little.

    model = ShiftedCopies(network, copies=2, shift=1)
    scores = model(pictures)  # [n, copies, classes] while training, [n, classes] in evaluation

A sample's loss is the mean over its copies, so that its gradient is averaged before it is weighed:
what depends on where the picture happens to lie is gone before noise and bound count (augmentation
multiplicity, De et al., arXiv:2204.13650).  Guarantees:

- A record stays one sample, with one norm and one weight: sensitivity, sampling and accounting are
  those of a run without copies.
- The first copy is the picture itself.  The others are moved by up to `shift` pixels, in each
  direction by chance; what comes in at the border is 0.  Moves come from torch's generator and
  depend on no picture.
- In evaluation mode nothing is random: scores are the mean over five, the picture and it moved by
  `shift` pixels up, down, left and right.

A step takes `copies` times the time and the memory of one without, an evaluation five times.

>>> model = ShiftedCopies(torch.nn.Flatten(), copies=3, shift=1)
>>> model(torch.ones(5, 1, 2, 2)).shape, model.eval()(torch.ones(5, 1, 2, 2)).shape
(torch.Size([5, 3, 4]), torch.Size([5, 4]))
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ShiftedCopies(nn.Module):
    """`network` with so many copies of each picture [n, channels, height, width]."""

    def __init__(self, network: nn.Module, *, copies: int, shift: int) -> None:
        super().__init__()
        if copies < 2 or shift < 1:
            raise ValueError(
                f"copies is {copies} and shift {shift}: there must be 2 copies or more, the "
                "picture itself among them, moved by 1 pixel or more."
            )
        self.network, self.copies, self.shift = network, copies, shift

    def forward(self, pictures: Tensor) -> Tensor:
        if pictures.ndim != 4:
            raise ValueError(
                f"inputs have the shape {list(pictures.shape)}: copies are made of pictures, "
                "[n, channels, height, width]."
            )
        if not self.training:
            return torch.stack([self.network(one) for one in self._around(pictures)]).mean(0)
        moves = torch.randint(
            2 * self.shift + 1, (len(pictures), self.copies, 2), device=pictures.device
        )
        moves[:, 0] = self.shift  # not moved
        seen = moved(pictures, moves, self.shift).flatten(0, 1)
        return self.network(seen).unflatten(0, (len(pictures), self.copies))

    def _around(self, pictures: Tensor) -> Iterator[Tensor]:
        height, width = pictures.shape[2:]
        padded, s = F.pad(pictures, [self.shift] * 4), self.shift
        for down, right in ((s, s), (0, s), (2 * s, s), (s, 0), (s, 2 * s)):
            yield padded[..., down : down + height, right : right + width]


def with_copies(network: nn.Module, *, copies: int, shift: int) -> nn.Module:
    """The network itself where there is but one copy, which is the picture."""
    return network if copies == 1 else ShiftedCopies(network, copies=copies, shift=shift)


def moved(pictures: Tensor, moves: Tensor, shift: int) -> Tensor:
    """[n, copies, channels, height, width]; `moves` [n, copies, 2] from 0 to 2 * shift."""
    height, width = pictures.shape[2:]
    windows = F.pad(pictures, [shift] * 4).unfold(2, height, 1).unfold(3, width, 1)
    samples = torch.arange(len(pictures), device=pictures.device)[:, None]
    return windows.permute(0, 2, 3, 1, 4, 5)[samples, moves[..., 0], moves[..., 1]]
