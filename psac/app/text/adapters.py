"""LoRA (arXiv:2106.09685) by `peft`: matrices of low rank beside frozen weights, and the head.

Guarantees: nothing but adapters and head is trained, and every adapter is; a layer that the model
does not have is refused.  Frozen weights need no gradient and no noise.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from psac.app.data.optional import needed


def adapted(network: nn.Module, *, rank: int, layers: Sequence[str], head: str) -> nn.Module:
    """The network with adapters of this rank at the layers of these names, and a trained head."""
    library = needed("peft", package="peft", purpose="LoRA", extra="hf")
    names = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    if missing := sorted(set(layers) - names):
        linear = {
            name.rpartition(".")[2]
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear)
        }
        raise ValueError(
            f"lora_layers lists {', '.join(missing)}, but the model has no such layer. Its linear "
            f"layers are named {', '.join(sorted(linear))}."
        )
    settings = library.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules=list(layers),
        modules_to_save=[head],
    )
    return library.get_peft_model(network, settings)


def merged(network: nn.Module) -> nn.Module:
    """A copy without adapters, which gives the same scores; the network itself if it has none."""
    if not hasattr(network, "merge_and_unload"):
        return network
    return copy.deepcopy(network).merge_and_unload()  # type: ignore[operator]
