"""What is shown of public mistakes."""

from __future__ import annotations

import torch

from psac.app.training.results import pixels_of


def test_small_images_are_shown_by_their_pixels():
    grey = torch.tensor([[[0.0, 1.0], [0.5, 2.0]]])
    assert pixels_of(grey) == {"pixels": [[0, 255], [128, 255]]}
    coloured = torch.zeros(3, 2, 2, dtype=torch.uint8)
    coloured[0] = 200
    assert pixels_of(coloured) == {"pixels": [[[200, 0, 0]] * 2] * 2}


def test_what_is_no_small_image_is_not_shown():
    for other in (torch.zeros(5), torch.zeros(2, 4, 4), torch.zeros(1, 160, 160)):
        assert pixels_of(other) == {}
