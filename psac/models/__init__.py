"""Networks for private training, by name: none mixes the samples of a batch."""

from psac.models.registry import build, names
from psac.models.copies import ShiftedCopies

__all__ = ["build", "names", "ShiftedCopies"]
