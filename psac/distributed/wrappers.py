"""What other libraries wrap a model in to train it on several devices.

`DistributedDataParallel` is taken off with a word: psac adds up the sums itself.  What splits
parameters between processes, or steps on its own, is refused before anything is spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from psac.distributed.sharded import is_sharded, is_split
from psac.errors import PrivacyError, warn

REMEDY = (
    "Give make_private the plain model, after torch.distributed.init_process_group(): each worker "
    "holds all of it, and psac adds up the sums of all workers (docs/guides/several-workers.md)."
)
# By module and class, so that nothing is imported: what each is called.
SPLITTING = {
    ("torch.distributed.fsdp", "FullyShardedDataParallel"): "FullyShardedDataParallel (FSDP1)",
    ("deepspeed", "DeepSpeedEngine"): "a DeepSpeed engine",
    ("deepspeed", "PipelineEngine"): "a DeepSpeed pipeline",
    ("fairscale", "FullyShardedDataParallel"): "fairscale's FullyShardedDataParallel",
    ("megatron", "DistributedDataParallel"): "Megatron's DistributedDataParallel",
}
# Settings of DistributedDataParallel that change the gradient or the buffers.
CHANGING = ("mixed_precision", "_comm_hooks", "_delay_all_reduce_params")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself.

    Raises:
        PrivacyError: Its parameters are split between processes, or its wrapper would change the
            result; the message names the remedy.
    """
    if isinstance(model, DistributedDataParallel):
        refuse_changes(model)
        inner: nn.Module = model.module
        refuse_split(inner)
        warn(
            "the model is wrapped in DistributedDataParallel, which psac takes off: private.model "
            "is its `module`, and psac adds up the sums of all workers itself. Pass the plain "
            "model.",
            UserWarning,
        )
        return inner
    refuse_split(model)
    return model


def refuse_changes(model: DistributedDataParallel) -> None:
    """Raises for settings of the wrapper by which training would be another."""
    names = [name.strip("_") for name in CHANGING if getattr(model, name, None)]
    if names:
        raise PrivacyError(
            f"DistributedDataParallel was made with {', '.join(names)}, which psac would leave "
            f"out, so that training is another. {REMEDY} For mixed precision, open torch.autocast "
            "around private.step."
        )


def refuse_split(model: nn.Module) -> None:
    """Raises for a model that no worker holds as a whole."""
    for path, module in model.named_modules():
        place = f" at '{path}'" if path else ""
        if isinstance(module, (DistributedDataParallel, DataParallel)):
            raise PrivacyError(f"there is a {type(module).__name__}{place} in the model. {REMEDY}")
        name = next(names_of_wrappers(type(module)), None)
        if name is not None:
            raise PrivacyError(f"the model is wrapped in {name}{place}. {REMEDY}")
    sharded = {id(p) for m in model.modules() if is_sharded(m) for p in m.parameters()}
    for path, parameter in cast(Iterable[tuple[str, Any]], model.named_parameters()):
        if is_split(parameter) and (id(parameter) not in sharded or len(parameter.placements) > 1):
            raise PrivacyError(
                f"'{path}' is a DTensor, a parameter that is split between processes (by tensor "
                "or pipeline parallelism, or over a mesh of several dimensions): psac would see a "
                f"part of each gradient. {REMEDY}"
            )
        if getattr(parameter, "tensor_model_parallel", False) or hasattr(parameter, "ds_id"):
            raise PrivacyError(
                f"'{path}' is split between processes (Megatron's tensor parallel, or DeepSpeed's "
                f"ZeRO): psac would see a part of each gradient. {REMEDY}"
            )


def names_of_wrappers(kind: type[Any]) -> Iterator[str]:
    """What the classes are called that it derives from, of those that split a model."""
    for base in kind.__mro__:
        for (place, name), called in SPLITTING.items():
            if base.__name__ == name and base.__module__.startswith(place):
                yield called
