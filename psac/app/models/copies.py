"""A network that sees each image together with shifted copies of it.

    model = ShiftedCopies(network, copies=2, shift=1)
    scores = model(images)  # [n, copies, classes] in training mode, [n, classes] in evaluation mode

The loss of a sample is the mean over its copies, so its gradient is averaged before it is clipped
and the noise is added (augmentation multiplicity, De et al., arXiv:2204.13650).  Guarantees:

- A record stays one sample, with one norm and one weight: sensitivity, sampling and accounting are
  those of a run without copies.
- The first copy is the image itself.  The others are shifted by up to `shift` pixels in random
  directions, with zeros at the border.  Shifts come from torch's generator and depend on no image.
- Evaluation is deterministic: scores are the mean over the image and its four shifts by `shift`
  pixels up, down, left and right.

A step takes `copies` times the time and memory of one without copies, an evaluation five times.

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
    """Applies `network` to several copies of each image [n, channels, height, width]."""

    def __init__(self, network: nn.Module, *, copies: int, shift: int) -> None:
        super().__init__()
        if copies < 2 or shift < 1:
            raise ValueError(
                f"copies is {copies} and shift is {shift}: use 2 copies or more, which includes "
                "the image itself, and a shift of 1 pixel or more."
            )
        self.network, self.copies, self.shift = network, copies, shift

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            raise ValueError(
                f"inputs have the shape {list(images.shape)}: copies need images "
                "[n, channels, height, width]."
            )
        if not self.training:
            return torch.stack([self.network(one) for one in self._around(images)]).mean(0)
        moves = torch.randint(
            2 * self.shift + 1, (len(images), self.copies, 2), device=images.device
        )
        moves[:, 0] = self.shift  # not shifted
        seen = moved(images, moves, self.shift).flatten(0, 1)
        return self.network(seen).unflatten(0, (len(images), self.copies))

    def _around(self, images: Tensor) -> Iterator[Tensor]:
        height, width = images.shape[2:]
        padded, s = F.pad(images, [self.shift] * 4), self.shift
        for down, right in ((s, s), (0, s), (2 * s, s), (s, 0), (s, 2 * s)):
            yield padded[..., down : down + height, right : right + width]


def with_copies(network: nn.Module, *, copies: int, shift: int) -> nn.Module:
    """The network with copies; the network itself if there is only one copy."""
    return network if copies == 1 else ShiftedCopies(network, copies=copies, shift=shift)


def moved(images: Tensor, moves: Tensor, shift: int) -> Tensor:
    """[n, copies, channels, height, width]; `moves` [n, copies, 2] from 0 to 2 * shift."""
    height, width = images.shape[2:]
    windows = F.pad(images, [shift] * 4).unfold(2, height, 1).unfold(3, width, 1)
    samples = torch.arange(len(images), device=images.device)[:, None]
    return windows.permute(0, 2, 3, 1, 4, 5)[samples, moves[..., 0], moves[..., 1]]
