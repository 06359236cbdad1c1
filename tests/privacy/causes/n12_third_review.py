"""N12: what surrounds a batch, what holds the data, and what stands between two steps."""

from __future__ import annotations

import typing

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.privacy.case import case
from tests.privacy.world import FEATURES, Recording, World, cross_entropy, network


class Registered:
    def __init__(self, x: Tensor, y: Tensor, extra: object = None) -> None:
        self.x, self.y, self.extra = x, y, extra


register_pytree_node(Registered, lambda r: ([r.x, r.y], r.extra), lambda p, e: Registered(*p, e))


# What a collate_fn returns
def collated(world: World, arrange, loss) -> None:
    def collate(rows):
        return arrange(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))

    data = TensorDataset(*world.batch())
    loader = DataLoader(data, batch_size=len(data), collate_fn=collate)
    with world.training(network(), dataset=loader) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


def of_registered(model: nn.Module, batch: Registered) -> Tensor:
    return cross_entropy(model, batch.x, batch.y)


@case("N12", "a collate_fn that centres a batch of a registered class")
def centred(world: World) -> None:
    collated(world, lambda x, y: Registered(x - x.mean(0), y), of_registered)


@case("N12", "a collate_fn that centres a registered class in a dict")
def centred_in_a_dict(world: World) -> None:
    arrange = lambda x, y: {"batch": Registered(x - x.mean(0), y)}  # noqa: E731
    collated(world, arrange, lambda m, batch: of_registered(m, batch))


@case("N12", "a collate_fn that centres a registered class beside a tensor")
def centred_beside_a_tensor(world: World) -> None:
    arrange = lambda x, y: [Registered(x - x.mean(0), y), y]  # noqa: E731
    collated(world, arrange, lambda m, batch, y: of_registered(m, batch))


@case("N12", "a collate_fn that writes the number of records beside the tensors")
def number_in_the_context(world: World) -> None:
    def loss(m: nn.Module, batch: Registered) -> Tensor:
        return of_registered(m, batch) * (1 - 2 * (batch.extra % 2))

    collated(world, lambda x, y: Registered(x, y, len(x)), loss)


# How a batch is passed to step; physical batches differ as logical ones of a longer run do
def arranged(world: World, arrange, loss, *shape: int) -> None:
    x, y = world.inputs(*(shape or (FEATURES,))), world.labels()
    data = TensorDataset(x, y, torch.zeros(len(x)))
    with world.training(network(), dataset=data, physical_batch_size=4) as training:
        for batch in training.batches():
            training.private.step(loss, arrange(*batch))


def is_large(x: Tensor) -> bool:
    return bool(x.max() > 100)


def times(condition: bool, value: Tensor) -> Tensor:
    return -value if condition else value


@case("N12", "as many labels as records")
def repeated(world: World) -> None:
    loss = lambda m, x, ys: times(len(ys) % 2, cross_entropy(m, x, ys[0]))  # noqa: E731
    arranged(world, lambda x, y, z: (x, [y] * len(x)), loss)


@case("N12", "a mask that is passed for large values alone")
def an_optional_mask(world: World) -> None:
    loss = lambda m, x, y, z=None: times(z is not None, cross_entropy(m, x, y))  # noqa: E731
    arranged(world, lambda x, y, z: (x, y, z) if is_large(x) else (x, y), loss)


@case("N12", "a tuple, or a mapping for large values")
def a_tuple_or_a_mapping(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor, named: Tensor | None = None) -> Tensor:
        return times(named is not None, cross_entropy(m, x, y))

    arranged(world, lambda x, y, z: {"x": x, "y": y, "named": z} if is_large(x) else (x, y), loss)


@case("N12", "the order of keys")
def order_of_keys(world: World) -> None:
    def loss(m: nn.Module, **batch: Tensor) -> Tensor:
        return times(next(iter(batch)) == "x", cross_entropy(m, batch["x"], batch["y"]))

    arranged(world, lambda x, y, z: {"x": x, "y": y} if is_large(x) else {"y": y, "x": x}, loss)


@case("N12", "a key that names the number of records")
def a_key(world: World) -> None:
    def loss(m: nn.Module, y: Tensor, **named: Tensor) -> Tensor:
        ((name, x),) = named.items()
        return times(int(name[1:]) % 2, cross_entropy(m, x, y))

    arranged(world, lambda x, y, z: {f"x{len(x)}": x, "y": y}, loss)


@case("N12", "the mean of the batch beside the tensors of a registered class")
def a_context(world: World) -> None:
    loss = lambda m, b: cross_entropy(m, b.x - b.extra, b.y)  # noqa: E731
    arranged(world, lambda x, y, z: Registered(x, y, float(x.mean())), loss)


class Named(typing.NamedTuple):
    x: Tensor
    y: Tensor


class WithMean(Named):
    mean = 0.0


@case("N12", "the mean of the batch as an attribute of a named tuple's class", warned=True)
def an_attribute_of_a_class(world: World) -> None:
    def arrange(x: Tensor, y: Tensor, z: Tensor) -> WithMean:
        WithMean.mean = float(x.mean())
        return WithMean(x, y)

    arranged(world, arrange, lambda m, b: cross_entropy(m, b.x - b.mean, b.y))


class Marked(Tensor):
    pass


@case("N12", "a subclass of Tensor for large values")
def a_subclass(world: World) -> None:
    loss = lambda m, x, y: times(isinstance(x, Marked), cross_entropy(m, x, y))  # noqa: E731
    arranged(world, lambda x, y, z: (x.as_subclass(Marked) if is_large(x) else x, y), loss)


@case("N12", "channels last for large values")
def channels_last(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        is_last = x.is_contiguous(memory_format=torch.channels_last)
        return times(is_last, F.cross_entropy(m(x.mean((2, 3))), y))

    def arrange(x: Tensor, y: Tensor, z: Tensor):
        return x.to(memory_format=torch.channels_last) if is_large(x) else x, y

    arranged(world, arrange, loss, FEATURES, 3, 3)


@case("N12", "zeros exchanged for negative zeros")
def negative_zeros(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return cross_entropy(m, x, y) * (1 - 2 * torch.signbit(z).float()).sum()

    arranged(world, lambda x, y, z: (x, y, -z if is_large(x) else z), loss)


# Between two steps
def with_momentum(world: World, change) -> None:
    model = network()
    optimizer = Recording(model.parameters(), lr=0.0, momentum=0.9)
    with world.training(model, optimizer=optimizer) as training:
        for k, (x, y) in enumerate(training.batches()):
            if k:
                change(model, optimizer, x, y)
            training.private.step(cross_entropy, (x, y))


@case("N12", "a raw gradient is added to the momentum")
def raw_momentum(world: World) -> None:
    def change(model, optimizer, x, y) -> None:
        value = cross_entropy(model, x, y)
        gradients = torch.autograd.grad(value, list(model.parameters()))
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            optimizer.state[p]["momentum_buffer"].add_(gradient)

    with_momentum(world, change)


@case("N12", "a raw gradient is added to the momentum by .data")
def raw_momentum_by_data(world: World) -> None:
    def change(model, optimizer, x, y) -> None:
        for p in model.parameters():
            optimizer.state[p]["momentum_buffer"].data.add_(x.mean())

    with_momentum(world, change)


@case("N12", "the mean of the batch in the first entry of a large buffer, by .data")
def a_large_buffer(world: World) -> None:
    model = network()
    model.register_buffer("bank", torch.zeros(100_000))
    with world.training(model) as training:
        for x, y in training.batches():
            model.bank.data[0] = x.mean()
            training.private.step(lambda m, x, y: cross_entropy(m, x - m.bank[0], y), (x, y))


# What holds the data
class Rows(Dataset):
    """Keeps its records as `keep` says, and gives them by `get`."""

    def __init__(self, x: Tensor, y: Tensor, keep, get) -> None:
        self.length, self.kept, self.get = len(x), keep(x, y), get

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        return self.get(self.kept, number)


def mean_of(dataset) -> Tensor:
    return torch.stack([dataset[k][0] for k in range(len(dataset))]).mean(0)


def reading(world: World, dataset) -> None:
    data = dataset(*world.batch())
    with world.training(network(), dataset=data) as training:
        for batch in training.batches():
            loss = lambda m, x, y: cross_entropy(m, x - mean_of(data), y)  # noqa: E731
            training.private.step(loss, batch)


@case("N12", "the function reads a data set that holds a list of tensors")
def a_list_of_tensors(world: World) -> None:
    keep = lambda x, y: [(a.clone(), b.clone()) for a, b in zip(x, y, strict=True)]  # noqa: E731
    reading(world, lambda x, y: Rows(x, y, keep, lambda kept, k: kept[k]))


@case("N12", "the function reads a data set that is a list of pairs")
def a_list_of_pairs(world: World) -> None:
    reading(world, lambda x, y: [(a.clone(), b) for a, b in zip(x, y, strict=True)])


@case("N12", "the function reads a data set that holds a dict of tensors")
def a_dict_of_tensors(world: World) -> None:
    get = lambda kept, k: (kept["x"][k], kept["y"][k])  # noqa: E731
    reading(world, lambda x, y: Rows(x, y, lambda x, y: {"x": x, "y": y}, get))


@case("N12", "the function reads a data set that holds numpy arrays")
def arrays(world: World) -> None:
    get = lambda kept, k: (torch.from_numpy(kept[0][k]), int(kept[1][k]))  # noqa: E731
    reading(world, lambda x, y: Rows(x, y, lambda x, y: (x.numpy().copy(), y.numpy()), get))


def reading_tensor(world: World, function_of) -> None:
    data = TensorDataset(*world.batch())
    loss = function_of(data.tensors[0])
    with world.training(network(), dataset=data) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


@case("N12", "a tensor of the data set is read where torch functions are not seen")
def unseen(world: World) -> None:
    def function_of(data: Tensor):
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                mean = data.mean(0)
            return cross_entropy(m, x - mean, y)

        return loss

    reading_tensor(world, function_of)


@case("N12", "a tensor of the data set is read in a hook of the backward")
def in_a_hook(world: World) -> None:
    def function_of(data: Tensor):
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            outputs = m(x)
            outputs.register_hook(lambda gradient: gradient * data.mean())
            return F.cross_entropy(outputs, y)

        return loss

    reading_tensor(world, function_of)


@case("N12", "the numpy array that shares the memory of the data set is read")
def shared_memory(world: World) -> None:
    def function_of(data: Tensor):
        array = data.numpy()
        return lambda m, x, y: cross_entropy(m, x - float(array.mean()), y)

    reading_tensor(world, function_of)
