"""Networks for private training, by name: none mixes the samples of a batch."""

from psac.models.registry import build, names

__all__ = ["build", "names"]
