"""Architectures of the transformers library, tiny, by their real classes: does psac train each?

    model, data = ARCHITECTURES["LlamaForCausalLM"].build()

An architecture is a line of its family's file: the class, what its records are, and the settings
that make it small where `sizes.SMALL` does not.  Records of text have lengths of their own, and
batches are padded to their longest record.
"""

from __future__ import annotations

from . import decoders, encoders, experts, pictures, recurrent, several, sounds, translators
from .sizes import Architecture

__all__ = ["ARCHITECTURES", "FAMILIES", "Architecture"]

FAMILIES = {
    "Encoders": encoders.LINES,
    "Decoders": decoders.LINES,
    "Mixtures of experts": experts.LINES,
    "State spaces, linear attention, hybrids": recurrent.LINES,
    "Encoder and decoder": translators.LINES,
    "Pictures": pictures.LINES,
    "Sounds": sounds.LINES,
    "Pictures with text, layouts, tables, time series": several.LINES,
}
ARCHITECTURES = {line.name: line for lines in FAMILIES.values() for line in lines}
