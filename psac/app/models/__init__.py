"""Networks for private training, by name: none mixes the samples of a batch."""

from psac.app.models.registry import build, names
from psac.app.models.copies import ShiftedCopies

__all__ = ["build", "names", "ShiftedCopies"]
