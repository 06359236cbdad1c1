"""Networks for private training, by name: none mixes the samples of a batch."""

from psac.app.models.registry import build, names, takes_text
from psac.app.models.copies import ShiftedCopies

__all__ = ["build", "names", "takes_text", "ShiftedCopies"]
