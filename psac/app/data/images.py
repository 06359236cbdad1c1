"""Images as tensors, by Pillow (the extra `data`).

`decoded` gives float32 in [0, 1], channels x height x width, which is only divided by 255.  Colours
are converted to `channels`: 3 is RGB, 1 is grey.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psac.app.data.entry import DataNotFound
from psac.app.data.optional import needed
from psac.checks import positive

MODES = {1: "L", 3: "RGB"}
# What Pillow raises for damaged files, found by experiment, as it has no error class for them.
BROKEN = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, struct.error)


def decoded(image: Path | tuple[str, bytes], *, size: int | None, channels: int) -> Tensor:
    """One image, from a path or from (name, content)."""
    pillow = needed("PIL.Image", package="Pillow", purpose="Reading images")
    name, content = (image, image) if isinstance(image, Path) else (image[0], io.BytesIO(image[1]))
    try:
        with pillow.open(content) as opened:
            squared = opened.convert(MODES[channels])
    except FileNotFoundError as error:
        raise DataNotFound(f"{name} does not exist.") from error
    except (*BROKEN, pillow.DecompressionBombError) as error:
        raise DataNotFound(
            f"{name} cannot be read as an image ({error}). Replace or remove it."
        ) from error
    if size is not None:
        squared = _square(squared, size, pillow)
    return scaled(np.atleast_3d(np.asarray(squared)).transpose(2, 0, 1))


def _square(image: Any, size: int, pillow: Any) -> Any:
    """The square in the middle, after resizing the shorter side to `size`."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), pillow.Resampling.BILINEAR, box=box)


def scaled(pixels: np.ndarray, largest: int = 255) -> Tensor:
    """Whole numbers from 0 to `largest` as float32 in [0, 1]."""
    return torch.from_numpy(np.divide(pixels, np.float32(largest), dtype=np.float32, order="C"))


def checked_size(size: object) -> int | None:
    """The side of an image in pixels, or None to keep images as they are."""
    return None if size is None else positive("size", size)
