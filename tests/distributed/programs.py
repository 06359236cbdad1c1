"""What the workers of a test do; one process does the same without a group."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac
import psac.checkpoint.saving
from psac.private.making import make_private
from tests.distributed.world import Raised
from tests.private_runs import loss, network, private_run, records, sgd, weights

ADAM = {"lr": 0.01}


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def trained(settings: dict[str, Any], epochs: int = 1) -> dict[str, Any]:
    """Everything that training by the README's loop leaves, as plain numbers."""
    private = private_run(**settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(private.optimizer, 0.9)
    seen, counted = [], []
    for _ in range(epochs):
        for batch in private.loader:
            if private.step(loss, batch):
                scheduler.step()
            seen += batch[-1].tolist() if len(private.sensitive.losses) else []
            counted.append(len(private.sensitive.losses))
    return {
        "weights": weights(private.model).tolist(),
        "lr": private.optimizer.param_groups[0]["lr"],
        "seen": seen,
        "counted": counted,
        "steps": private.steps_taken,
        "ledger": private.ledger.to_json(),
        "id": private.account.id,
        "scale": private.scale,
    }


def noise_alone(size: int, steps: int) -> list[list[float]]:
    """What is released of gradients that are zero: the noise, step by step, over z C / B."""
    model = nn.Linear(size, 1, bias=False)
    data = TensorDataset(torch.zeros(64, size))
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        data,
        batch_size=16,
        steps=steps,
        noise_multiplier=2.0,
        clipping=psac.Abadi(bound=0.5),
    )
    releases, before = [], model.weight.detach().clone()
    for batch in private.loader:
        private.step(lambda model, x: model(x).sum(), batch)
        releases.append(((before - model.weight.detach()) * 16).flatten().tolist())
        before = model.weight.detach().clone()
    return releases


def other_weights_at_first() -> list[float]:
    """Each worker begins with weights and a buffer of its own."""
    model = network()
    model.register_buffer("table", torch.full((3,), float(rank())))
    with torch.no_grad():
        model[0].weight += rank()
    private_run(model)
    return [*weights(model).tolist(), *model.table.tolist()]


def numbers_drawn(seed: int | None) -> tuple[list[float], float, float]:
    """Norms that show which dropout masks records had; one number each of numpy and Python."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
    drawn = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        drawn.append((np.random.rand(), random.random()))
        return model(x).sum()

    torch.manual_seed(0)  # as users do, on all workers alike
    private = private_run(
        model,
        data=TensorDataset(torch.ones(64, 64)),
        batch_size=32,
        noise_multiplier=1.0,
        seed=seed,
    )
    batch = next(iter(private.loader))
    private.step(loss, batch)
    return private.sensitive.norms.tolist(), *drawn[-1]


def with_a_difference(name: str) -> None:
    """One thing is not the same on worker 1."""
    model, data, odd = network(), records(), rank() == 1
    optimizer = sgd(model)
    settings: dict[str, Any] = {"seed": None, "noise_multiplier": 1.0}
    if name == "noise":
        settings["noise_multiplier"] += odd
    elif name == "seed":
        settings["seed"] = 0 if odd else None
    elif name == "model":
        model = nn.Sequential(nn.Linear(4, 6 + odd), nn.Tanh(), nn.Linear(6 + odd, 3))
        optimizer = sgd(model)
    elif name == "records":
        order = torch.randperm(40, generator=torch.Generator().manual_seed(rank()))
        data = torch.utils.data.Subset(data, order.tolist())
    elif name == "contents":
        data = TensorDataset(*(t + odd for t in data.tensors))
    elif name == "rate":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + odd)
    elif name == "refusal" and odd:
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    private = private_run(model, optimizer, data, **settings)
    for batch in private.loader:
        if name == "step" and odd:
            private.steps_taken += 1
        if name == "ledger" and odd:
            private.ledger.record(**private.plan.event())
        if name == "later rate" and odd:
            optimizer.param_groups[0]["lr"] = 0.2
        if name == "draw" and odd:
            private.loader.fingerprint += 1
        if name == "noise stream" and odd:
            private.noise.random_bytes(1)
        private.step(loss, batch)
    if name == "parameters" and odd:
        with private.public_change(), torch.no_grad():
            model[0].weight += 1
    if name == "a pass too many" and odd:
        return
    next(iter(private.loader))


def with_differences(names: list[str]) -> list[Raised]:
    """One after the other: workers that have all raised go on together."""
    raised = []
    for name in names:
        try:
            with_a_difference(name)
        except Exception as error:  # noqa: BLE001 - the test judges it
            raised.append(Raised(type(error).__name__, str(error)))
        else:
            raised.append(Raised("nothing", ""))
    return raised


def one_saves(folder: str) -> None:
    """As one does with DistributedDataParallel."""
    private = private_run(seed=None, noise_multiplier=1.0)
    for batch in private.loader:
        if rank() == 0:
            psac.save_checkpoint(Path(folder, "run.safetensors"), private)
        private.step(loss, batch)


def refused_by_one(epochs: int) -> tuple[str, int, int, list[float]]:
    """Worker 1 fails in the second of its physical batches; all go on with a new pass."""
    private = private_run(physical_batch_size=2, batch_size=20, seed=None, noise_multiplier=1.0)
    raised = ""

    def failing(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        raise ValueError("the function of worker 1 fails")

    try:
        for k, batch in enumerate(private.loader):
            private.step(failing if rank() == k == 1 else loss, batch)
    except (ValueError, psac.PrivacyError) as error:
        raised = f"{type(error).__name__}: {error}"
    spent = private.ledger.steps
    for _ in range(epochs):
        for batch in private.loader:
            private.step(loss, batch)
    return raised, spent, private.ledger.steps, weights(private.model).tolist()


def full_disk() -> tuple[str, int, bool]:
    """Worker 0 cannot write down the second step."""
    private, raised = private_run(seed=None, noise_multiplier=1.0), ""

    def write(steps: int) -> None:
        raise OSError("the disk is full")

    for k, batch in enumerate(private.loader):
        before = weights(private.model)
        if k == 1 and rank() == 0:
            private.account.on_release = write
        try:
            private.step(loss, batch)
        except (OSError, psac.PrivacyError) as error:
            raised = str(error)
            break
    return raised, private.steps_taken, torch.equal(before, weights(private.model))


def one_is_gone() -> str:
    """Worker 1 ends in the middle of the second step."""
    private = private_run(seed=None, noise_multiplier=1.0, delta=1e-3)
    for k, batch in enumerate(private.loader):
        if k == 1 and rank() == 1:
            os._exit(1)
        try:
            private.step(loss, batch)
        except psac.PrivacyError as error:
            return str(error)
    return "nobody was missed"


def talking(alone: bool) -> None:
    """The loss function adds up over workers, by a call or by an operator."""
    private = private_run(seed=None, noise_multiplier=1.0)

    def talks(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        total = x.detach().clone()
        dist.all_reduce(total)
        return loss(model, x + total, y, number)

    def talks_by_operator(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import all_reduce

        return loss(model, x + all_reduce(x, "sum", dist.group.WORLD), y, number)

    for batch in private.loader:
        private.step(talks if alone else talks_by_operator, batch)


def saved(folder: str, settings: dict[str, Any], until: int, sizes: bool = True) -> dict[str, Any]:
    """Goes on from the checkpoint, if there is one, up to a step, and saves."""
    path = Path(folder, "run.safetensors")
    private = private_run(**settings)
    if path.exists():
        psac.load_checkpoint(path, private)
    while private.steps_taken < until:
        for batch in private.loader:
            private.step(loss, batch)
            if private.steps_taken >= until:
                break
    psac.save_checkpoint(path, private)
    return {
        "weights": weights(private.model).tolist(),
        "steps": private.steps_taken,
        "spent": private.ledger.steps,
        "id": private.account.id,
    }


def lost_and_found(folder: str, until: int) -> tuple[int, int]:
    """Steps after the save are lost: another run loads the checkpoint, and counts them."""
    path = Path(folder, "run.safetensors")
    private = private_run(seed=None, noise_multiplier=1.0)
    psac.save_checkpoint(path, private)
    for k, batch in enumerate(private.loader):
        private.step(loss, batch)
        if k + 1 == until:
            break
    return private.steps_taken, private.ledger.steps


def found(folder: str) -> tuple[int, int, list[str]]:
    import warnings

    private = private_run(seed=None, noise_multiplier=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        psac.load_checkpoint(Path(folder, "run.safetensors"), private)
    return private.steps_taken, private.ledger.steps, [str(w.message) for w in caught]


def wrapped(kind: str) -> tuple[list[float], list[str]]:
    """Of DistributedDataParallel."""
    import warnings

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(network())
    if kind == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private = private_run(model, sgd(model))
    for batch in private.loader:
        private.step(loss, batch)
    return weights(private.model).tolist(), [str(w.message) for w in caught]


def trained_on_disk(folder: str, stops: bool, resume: bool) -> str:
    """A run of the trainer; worker 1 is told to stop after the first epoch."""
    from psac.app.training import Interrupted, train, trainer
    from psac.app.training.observer import Silent
    from tests.app.training.small import recipe, splits

    class Stopping(Silent):
        def evaluated(self, info: dict[str, Any]) -> None:
            if stops and rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer.load_splits = lambda *_: splits(public=True)  # type: ignore[assignment]
    try:
        run = train(recipe(), Path(folder), resume=resume, observer=Stopping())
    except Interrupted:
        return "interrupted"
    return str(run.folder)


def split(kind: str) -> None:
    """A model that no worker holds as a whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FullyShardedDataParallel,
        MixedPrecisionPolicy,
        fully_shard,
    )
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model: nn.Module = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "mixed precision":
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    elif kind == "offload":
        fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    elif kind == "hsdp":
        size = (1, dist.get_world_size())
        fully_shard(model, mesh=init_device_mesh("cpu", size, mesh_dim_names=("a", "b")))
    elif kind == "several":
        fully_shard([model[0], model[2]], mesh=mesh)
    elif kind == "lengths":
        fully_shard(model, mesh=mesh)
        private_run(model, sgd(model), lengths=(4,))
    elif kind == "engine":
        fully_shard(model, mesh=mesh)
        psac.per_sample_norms(model, loss, tuple(t[:2] for t in records().tensors))
    elif kind == "fsdp1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif kind == "tensor parallel":
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
    private_run(model, sgd(model))


def loaded_by_processes(workers: int) -> list[int]:
    """The records of one epoch, which DataLoader workers have read, and numbers that they drew."""
    data = torch.utils.data.DataLoader(Augmented(), batch_size=8, num_workers=workers)
    private = private_run(data=data, physical_batch_size=3)
    seen = []
    for x, y, number in private.loader:
        private.step(loss, (x, y, number))
        if len(private.sensitive.losses):
            seen += number.tolist()
    return seen


class Augmented(torch.utils.data.Dataset):
    """Plain records, augmented at random in the training loop only by what torch draws."""

    def __init__(self) -> None:
        self.data = records()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        x, y, number = self.data[k]
        return x + 0.1 * torch.randn(4), y, number


def sharded(settings: dict[str, Any], kind: str, path: str | None = None) -> list[float]:
    """Weights after training a small transformer under fully_shard; plain, in one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Transformer()
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model.layer, mesh=mesh)
        if kind == "whole":
            fully_shard(model, mesh=mesh)
    # The bias of keys has a gradient of zero: a small eps would make steps of its rounding.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    private = private_run(model, optimizer, **settings)
    if path is not None and Path(path).exists():
        psac.load_checkpoint(path, private)
    for batch in private.loader:
        private.step(loss, batch)
        if path is not None and private.steps_taken == 3:
            psac.save_checkpoint(path, private)
            break
    state = psac.checkpoint.saving.whole_state(model.state_dict())
    return torch.cat([value.flatten() for value in state.values()]).tolist()


class Transformer(nn.Module):
    """Of sequences that are made of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.up(x[..., None])).mean(1))


def noise_on_shards(size: int) -> list[float]:
    """One release of gradients that are zero, of all shards, over z C / B."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(1, size, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        TensorDataset(torch.zeros(64, 1)),
        batch_size=16,
        steps=1,
        noise_multiplier=2.0,
        clipping=psac.Abadi(bound=0.5),
    )
    before = model.weight.full_tensor()
    for batch in private.loader:
        private.step(lambda model, x: model(x).sum(), batch)
    return ((before - model.weight.full_tensor()) * 16).flatten().tolist()


def changed_shards() -> str:
    """One writes to the shards between two steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    private = private_run(model, sgd(model, momentum=0.9))
    with private.paused():
        model(torch.ones(1, 4, requires_grad=True)).sum().backward()
    for k, batch in enumerate(private.loader):
        if k == 2:
            with torch.no_grad():
                model[0].weight.mul_(1.5)
        try:
            private.step(loss, batch)
        except psac.PrivacyError as error:
            return f"{k}: {error}"
    return "nothing was noticed"


def rival_class() -> list[str]:
    """Between steps the model is FSDP's, with its hooks; within the function it is the user's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, within = network(), []
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    hooks = [len(model._forward_pre_hooks), len(model._forward_hooks)]
    private = private_run(model, sgd(model))

    def telling(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        within[:] = [type(model).__name__, len(model._forward_pre_hooks)]
        return loss(model, x, y, number)

    with private.public_change():
        private.step(telling, next(iter(private.loader)))
    assert [len(model._forward_pre_hooks), len(model._forward_hooks)] == hooks
    return [type(model).__name__, *map(str, within)]
