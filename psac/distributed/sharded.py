"""Models whose parameters lie in shards on all workers: `fully_shard`, torch's FSDP2.

Between steps every worker has its shard of each parameter, and of the optimizer's state.

    whole       while a batch is computed, parameters are gathered, and FSDP's hooks are set aside:
                the engine sees plain tensors and the user's own module classes
    norms       of whole gradients, by each worker for its own records
    sums        are added up and split at once (reduce-scatter): each worker has the sum's shard
    noise       on each shard by its worker, from a generator of its own, of the same size
    optimizer   on shards

Guarantees: the norms and sums are those of the whole model; entries of noise are independent, as no
two workers have the same entry; parameters that are not split have the same noise on all workers.

What a worker holds: shards between steps; within a step the whole parameters and one whole sum
beside activations and output gradients.  So the memory for the optimizer's state and for what lies
between steps is divided by the number of workers, and that of a step is not.

Left to others: HSDP and other meshes of several dimensions, mixed precision and offloading policies
are refused (`refuse_unsupported`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from psac.distributed.group import Group
from psac.errors import PrivacyError
from psac.noise.generators import NoiseGenerator

Sums = dict[str, Tensor]


class Whole:
    """A model that each worker holds as a whole."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.is_split = False

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """In here the model is plain."""
        return contextlib.nullcontext()

    def add_up(self, sums: Sums, counts: list[Tensor]) -> Sums:
        """The sums over all workers, as far as this one holds them."""
        self.group.add_up([*sums.values(), *counts])
        return sums

    def by_generator(
        self, sums: Sums, noise: NoiseGenerator, step: int
    ) -> Iterator[tuple[list[Tensor], NoiseGenerator]]:
        """Tensors, and where their noise comes from."""
        yield list(sums.values()), noise


class Sharded(Whole):
    """A model under `fully_shard`."""

    def __init__(self, group: Group, model: nn.Module) -> None:
        super().__init__(group)
        self.is_split = True
        self._modules: list[Any] = [m for m in model.modules() if is_sharded(m)]
        self._placements = {n: p for n, p in model.named_parameters() if is_split(p)}

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        self.group.meet("the parameters")
        with contextlib.ExitStack() as stack:
            for module in self._modules:
                module.unshard()
                stack.callback(module.reshard)
            for module in self._modules:
                stack.enter_context(plain(module))
            yield

    def add_up(self, sums: Sums, counts: list[Tensor]) -> Sums:
        whole = [total for name, total in sums.items() if name not in self._placements]
        super().add_up({str(k): t for k, t in enumerate(whole)}, counts)
        return {
            name: scattered(total, self._placements[name]) if name in self._placements else total
            for name, total in sums.items()
        }

    def by_generator(
        self, sums: Sums, noise: NoiseGenerator, step: int
    ) -> Iterator[tuple[list[Tensor], NoiseGenerator]]:
        whole = [total for total in sums.values() if not is_split(total)]
        if whole:
            yield whole, noise
        shards = {name: local(total) for name, total in sums.items() if is_split(total)}
        if shards:
            purpose = f"shards of {next(iter(shards))} and others in step {step}"
            yield list(shards.values()), self.group.own(noise.spawn(purpose))


def shards_of(model: nn.Module, group: Group) -> Whole:
    """How the workers hold this model."""
    if any(map(is_sharded, model.modules())):
        refuse_unsupported(model, group)
        return Sharded(group, model)
    return Whole(group)


def is_sharded(module: nn.Module) -> bool:
    """Whether it is under `fully_shard`."""
    return any(
        base.__name__ == "FSDPModule" and base.__module__.startswith("torch.distributed")
        for base in type(module).__mro__
    )


def is_split(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Any) -> Any:
    """What of it is on this worker."""
    return tensor._local_tensor if is_split(tensor) else tensor


@torch.no_grad()
def scattered(total: Tensor, like: Any) -> Any:
    """This worker's shard of the sum over workers, split as `like` is."""
    from torch.distributed.tensor import DTensor, Partial

    parts = DTensor.from_local(total, like.device_mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=like.placements)


@contextlib.contextmanager
def plain(module: Any) -> Iterator[None]:
    """The module is of its own class, and FSDP's hooks are set aside."""
    kind, before, after = type(module), module._forward_pre_hooks, module._forward_hooks
    state = module._get_fsdp_state()
    hooks, results = dict(before), dict(after)
    for handle, store in (
        (state._pre_forward_hook_handle, before),
        (state._post_forward_hook_handle, after),
    ):
        store.pop(handle.id, None)
    with_kwargs = module._forward_pre_hooks_with_kwargs.copy()
    module._forward_pre_hooks_with_kwargs.pop(state._pre_forward_hook_handle.id, None)
    module.__class__ = kind.__mro__[2]  # after the class that FSDP made, and FSDPModule
    try:
        yield
    finally:
        module.__class__ = kind
        for store, content in (
            (before, hooks),
            (after, results),
            (module._forward_pre_hooks_with_kwargs, with_kwargs),
        ):
            store.clear()
            store.update(content)


def whole_state(tree: Any) -> Any:
    """A state with whole tensors in place of shards; all workers call it."""
    if is_split(tree):
        return tree.full_tensor()
    if isinstance(tree, Mapping):
        return {key: whole_state(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(whole_state(value) for value in tree)
    return tree


def split_state(tree: Any, like: Any) -> Any:
    """A state with shards in place of whole tensors, where `like` has them."""
    from torch.distributed.tensor import distribute_tensor

    if is_split(like):
        # Every worker has the whole tensor: nothing travels.
        return distribute_tensor(
            tree.to(local(like).device), like.device_mesh, like.placements, src_data_rank=None
        )
    if isinstance(tree, Mapping) and isinstance(like, Mapping):
        return {key: split_state(value, like.get(key)) for key, value in tree.items()}
    return tree


def refuse_unsupported(model: nn.Module, group: Group) -> None:
    """Raises for policies and meshes that psac does not serve."""
    for path, module in model.named_modules():
        if not is_sharded(module):
            continue
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        faults = [unsupported(each, group.size) for each in groups if each is not None]
        if not hasattr(state._pre_forward_hook_handle, "id"):
            faults.append("was given several modules at once: call it for one after the other.")
        for fault in filter(None, faults):
            raise PrivacyError(f"fully_shard at '{path}' {fault}")


def unsupported(each: Any, workers: int) -> str | None:
    """Why this group of parameters is not served, and what to do."""
    policy, mesh = each.mp_policy, each.mesh_info.mesh
    if policy.param_dtype or policy.reduce_dtype or policy.output_dtype:
        return (
            "has a MixedPrecisionPolicy: norms and sums would be of rounded gradients. Leave it "
            "out, and open torch.autocast around private.step."
        )
    if type(each.offload_policy).__name__ != "OffloadPolicy":
        return "offloads parameters, which psac does not serve: leave offload_policy out."
    if mesh.ndim != 1 or mesh.size() != workers:
        return (
            f"has a mesh of shape {tuple(mesh.shape)}, and the run has {workers} workers: psac "
            "serves one dimension over all workers of the run. Use init_device_mesh(device, "
            f"({workers},)), or pass process_group."
        )
    return None
