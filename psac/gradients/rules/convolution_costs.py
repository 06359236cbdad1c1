"""What each way to the norms of a convolution costs, in nanoseconds a sample.

By rates measured on one core, until norms and weighted sum are both there. Ways that do not keep
gradients pay for the sum besides: an ordinary weight gradient, or the compiled loop that forms
gradients one by one, which is often faster. Where there are compiled loops, operations of torch
come near them for depthwise kernels alone. What is chosen depends on shapes only, so it is chosen
once for each.

Letters: p output position of a frame, q pixel, c input channel of a group, r output channel of a
group, k kernel offset, l = c x k.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from psac.gradients.kernels.loops import CHUNKS, Geometry

SMALL_PRODUCTS = 4000.0  # what the Gram products of a sample take, however small
ONE_PRODUCT = 100.0  # of a batch, if its matrices have one row
FAST_DEPTHWISE = 9  # entries of a kernel for which torch has a weight gradient of its own
CACHED = 2**16  # numbers of a weight that the compiled sum keeps near
PANEL = 48  # places that the compiled Gram of pixels copies at a time
# Gradients are kept if that takes so much less time than the best way without them: where they are
# no larger than the inputs and output gradients that they replace, and where they are.
WORTH_KEEPING = 0.95
WORTH_MORE_MEMORY = 0.6


class Sizes(NamedTuple):
    """Of one group of a convolution."""

    c: int
    r: int
    k: int
    p: int  # of a frame
    frames: int = 1
    groups: int = 1
    samples: int = 16

    @property
    def all(self) -> int:
        """Output positions of a sample."""
        return self.p * self.frames

    @property
    def lines(self) -> int:
        return self.c * self.k

    @property
    def ordinary(self) -> float:
        return self.all * self.lines * self.r / 160

    @property
    def is_depthwise(self) -> bool:
        return self.c == self.r == 1

    def once(self, nanoseconds: float) -> float:
        """The share of one group of a sample in what a call takes, however small the batch."""
        return nanoseconds / (self.samples * self.groups)

    @property
    def weight_gradient(self) -> float:
        """The ordinary one of a whole batch."""
        if self.is_depthwise and self.k > FAST_DEPTHWISE:
            return 0.9 * self.all * self.k + self.once(60_000)
        products = self.all * self.lines * self.r / 90
        return products + self.all * (self.r / 5 + self.lines / 20) + self.once(60_000)

    def padded(self, lanes: int) -> int:
        """Output channels of the compiled loops."""
        return -(-self.r // lanes) * lanes

    def direct(self, lanes: int) -> float:
        """Gradients by the compiled loop."""
        padded = self.padded(lanes)
        rate = 115 if padded > lanes else 70
        products = (self.all + 13) * self.lines * padded / rate
        return self.all * padded / 5 + products + self.once(15_000)

    def direct_sum(self, lanes: int) -> float:
        """Their weighted sum by it: in `CHUNKS` parts, each of the size of the weight."""
        parts = 2.5 * CHUNKS * max(0, self.lines * self.padded(lanes) - CACHED)
        return self.direct(lanes) + parts / self.samples


def sums_directly(sizes: Sizes, lanes: int) -> bool:
    """Whether the compiled loop is the faster one to the weighted sum."""
    return sizes.direct_sum(lanes) < sizes.weight_gradient


@functools.lru_cache(maxsize=4096)
def cheapest(
    sizes: Sizes, plane: Geometry | None, compiled_lanes: int | None
) -> tuple[str, str | None]:
    """The cheapest way without keeping gradients, and with it if that is cheaper.

    `plane` where `Plane` serves, and the lanes of compiled loops where those do.
    """
    c, r, k, p, frames = sizes[:5]
    forming: dict[str, float] = {}
    keeping: dict[str, float] = {}
    summing = sizes.weight_gradient
    if plane is not None and compiled_lanes is not None:
        _add_compiled(sizes, plane, compiled_lanes, forming, keeping)
        summing = min(summing, sizes.direct_sum(compiled_lanes))
    elif plane is not None and frames == 1:
        _add_products(sizes, plane, forming, keeping)
    if sizes.is_depthwise:  # torch's operation comes near the loops
        grouped = 400 + 0.57 * p * k if k > FAST_DEPTHWISE else 60 + 0.7 * p
    else:  # fast for large images of several channels
        grouped = sizes.ordinary * max(1.5, 800 / p) * (1 + 3 / c)
    if sizes.is_depthwise or not forming:
        keeping["grouped"] = grouped + frames * sizes.lines * r / 3
        forming["formed in slices"] = grouped + frames * sizes.lines * r / 4
    forming = {way: cost + summing for way, cost in forming.items()}
    best, kept = min(forming, key=forming.__getitem__), min(keeping, key=keeping.__getitem__)
    inputs = plane.height * plane.width * frames if plane is not None else sizes.all
    is_small = sizes.lines * r <= inputs * c + sizes.all * r
    worth = WORTH_KEEPING if is_small else WORTH_MORE_MEMORY
    return best, kept if keeping[kept] < worth * forming[best] else None


def _add_products(
    sizes: Sizes, plane: Geometry, forming: dict[str, float], keeping: dict[str, float]
) -> None:
    """By torch operations."""
    (c, r, k, p), l = sizes[:4], sizes.lines
    forming["gram of patches"] = p * p * (l + r) / 100 + p * l / 3
    keeping["unfolded products"] = p * l / 2 + p * l * r / 130 + l * r / 5
    if plane.shifts_line_up():
        q, planes = math.prod(plane.sizes()), math.prod(plane.stride)
        products = q * q * c * planes / 100 + p * p * r / 100 + SMALL_PRODUCTS
        forming["gram of pixels"] = products + k / planes * p * p / 8
        if planes == 1:
            small = 1 + 8 / min(c, r)  # narrow products run at a fraction of the rate
            keeping["shifted products"] = (
                q * l * r / 130 * small + l * r / 5 + k * ONE_PRODUCT / min(c, r)
            )


def _add_compiled(
    sizes: Sizes, plane: Geometry, lanes: int, forming: dict[str, float], keeping: dict[str, float]
) -> None:
    (c, r, k, p, frames), l = sizes[:5], sizes.lines
    forming["direct norms"] = sizes.direct(lanes)
    keeping["direct products"] = sizes.direct(lanes) + l * sizes.padded(lanes) / 7
    if c == 1:
        vectors = plane.out_height * -(-plane.out_width // lanes)
        images = frames * (plane.height * plane.width + r * vectors)
        products = r * k * (frames * vectors / 2 + 10)
        keeping["depthwise products"] = 0.75 * (images + products) + sizes.once(40_000)
    if plane.stride == (1, 1) and frames == 1:
        q = plane.height * plane.width
        products = (q * q * c + p * p * r) / 150 + k * p * p / 35
        copies = (max(q, PANEL) * c + max(p, PANEL) * r) / 4
        forming["gram of pixels"] = products + copies + sizes.once(80_000)
