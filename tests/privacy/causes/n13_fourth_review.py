"""N13: operations of other ranks than usual, reads of many records, and what ends a step."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.privacy.case import case
from tests.privacy.world import FEATURES, World, cross_entropy, network

POSITIONS = 5


# Operations of another rank than in the step before.  What was compared with plain autograd in the
# first step tells nothing of them.
class Attending(nn.Module):
    """Learned queries over the positions of a record, whose keys have as many axes at first."""

    def __init__(self, attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(1, 1, 3, FEATURES))
        self.head, self.attend, self.calls = nn.Linear(FEATURES, 3), attend, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        keys = x.unsqueeze(1)
        attend = self.attend if self.calls > 2 else F.scaled_dot_product_attention
        return self.head(attend(self.queries, keys, keys).mean((0, 1, 2)))


def attended(world: World, attend) -> None:
    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        positions = world.inputs(POSITIONS, FEATURES, may_have=may_have)
        return positions, world.labels(may_have=may_have)

    world.steps(Attending(attend), lambda m, x, y: F.cross_entropy(m(x), y[0]), batch)


@case("N13", "attention whose keys have an axis less than its queries")
def keys_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q, k[:, 0], v[:, 0]))


@case("N13", "attention whose queries have an axis less than its keys")
def queries_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k, v))


@case("N13", "attention whose values have an axis less than its keys")
def values_of_fewer_axes(world: World) -> None:
    attended(world, lambda q, k, v: F.scaled_dot_product_attention(q, k, v[:, 0]))


# Errors that one record causes, and the function catches
def caught(world: World, tried, instead, **settings) -> None:
    """The function tries something, and does something else where that raises."""

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        try:
            factor = tried(x, y)
        except Exception:  # noqa: BLE001 - as people write it
            factor = instead
        return cross_entropy(m, x.clamp(-5, 5), y % 3) * factor

    world.steps(network(), loss, **settings)


@case("N13", "linalg.cholesky in try and except, as Gaussian processes have it")
def caught_cholesky(world: World) -> None:
    eye = 10 * torch.eye(FEATURES)
    caught(world, lambda x, y: torch.linalg.cholesky(eye - x.mT @ x / 50).sum() * 0 + 1, -1.0)


@case("N13", "a look-up in try and except, a label that is out of range")
def caught_look_up(world: World) -> None:
    table = torch.ones(20)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x = world.inputs(FEATURES, may_have=may_have)
        return x, x[:, 0].clamp(0, 100).long()

    caught(world, lambda x, y: table[y].sum(), -1.0, batch=batch)


@case("N13", "an autograd.Function that raises, in try and except")
def caught_in_a_function(world: World) -> None:
    eye = 10 * torch.eye(FEATURES)

    class Root(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return torch.linalg.cholesky(eye - x.mT @ x / 50).sum() * 0 + 1

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            pass

        @staticmethod
        def backward(ctx, *grads: Tensor) -> None:
            return None

    caught(world, lambda x, y: Root.apply(x), -1.0)


@case("N13", "a refusal of psac's in try and except: the second read of the batch")
def caught_refusal(world: World) -> None:
    kept: list[Future] = [Future()]  # a library's object, into which the walk does not look

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, y = world.batch(may_have)
        kept[0] = Future()
        kept[0].set_result(x)
        return x, y

    def read(x: Tensor, y: Tensor) -> Tensor:
        everything = kept[0].result()
        try:
            return everything.mean().sign()
        except Exception:  # noqa: BLE001
            return everything.mean().sign()

    caught(world, read, 1.0, batch=batch)


# What a tensor of a record tells of all records
def told(world: World, number) -> None:
    """The loss is turned around where a number is odd."""
    world.steps(network(), lambda m, x, y: cross_entropy(m, x, y) * (1 - 2 * (number(m(x), x) % 2)))


@case("N13", "the text of a tensor: 'e+' in str(x)")
def text_of_a_tensor(world: World) -> None:
    told(world, lambda out, x: int("e+" in str(x)))


@case("N13", "a tensor that is formatted: '%s' % x")
def text_with_a_large_number(world: World) -> None:
    told(world, lambda out, x: int("e+" in "%s" % (x * 2)))


@case("N13", "the text of a tensor within an autograd.Function")
def text_in_a_function(world: World) -> None:
    class Printing(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * (1 - 2 * ("e+" in str(x)))

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            pass

        @staticmethod
        def backward(ctx, *grads: Tensor) -> Tensor:
            return grads[0] * (1 - 2 * ("e+" in str(grads[0])))

    world.steps(network(), lambda m, x, y: cross_entropy(m, Printing.apply(x), y))


@case("N13", "the strides of a convolution by a record's own filters")
def strides(world: World) -> None:
    def number(out: Tensor, x: Tensor) -> int:
        image = x.view(1, 1, 2, 2)
        return F.conv2d(image, image).stride(0)

    told(world, number)


@case("N13", "where a part of a tensor begins in memory")
def storage_offset(world: World) -> None:
    def number(out: Tensor, x: Tensor) -> int:
        image = x.view(1, 2, 2)
        return F.conv1d(image, image.mT.flip(0), padding=1)[:, 1:].storage_offset()

    told(world, number)


@case("N13", "torch.func.debug_unwrap")
def unwrapped_to_debug(world: World) -> None:
    told(world, lambda out, x: len(torch.func.debug_unwrap(out)))


# A data set that is asked for many records at once
class Centred(TensorDataset):
    def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, ...]]:
        x, y = (tensor[numbers] for tensor in self.tensors)
        return list(zip(x - x.mean(0), y, strict=True))


def read_together(world: World, wrapped) -> None:
    with world.training(network(), dataset=wrapped(Centred(*world.batch()))) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)


@case("N13", "a data set whose __getitems__ centres the batch")
def centred_by_getitems(world: World) -> None:
    read_together(world, lambda data: data)


@case("N13", "the same within a Subset, in a DataLoader")
def centred_in_a_subset(world: World) -> None:
    read_together(world, lambda data: DataLoader(Subset(data, range(len(data))), batch_size=4))


# Classes of records, whose constructors torch's default_collate calls with the whole batch
class Standardised(NamedTuple):
    x: Tensor
    y: Tensor


class StandardisedRow(Standardised):
    def __new__(cls, x: Tensor, y: Tensor) -> StandardisedRow:
        return super().__new__(cls, x - x.mean(0) / 2, y)


class StandardisedDict(dict):
    def __init__(self, columns: dict[str, Tensor]) -> None:
        super().__init__(columns, x=columns["x"] - columns["x"].mean(0))


class StandardisedUpdate(dict):
    def update(self, columns: dict[str, Tensor]) -> None:  # type: ignore[override]
        super().update(columns)
        self["x"] = self["x"] - self["x"].mean(0)


class StandardisedTensor(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result - result.mean(0) if func is torch.stack else result


class OfClass(Dataset):
    def __init__(self, x: Tensor, y: Tensor, of) -> None:
        self.x, self.y, self.of = x, y, of

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int):
        return self.of(self.x[number], self.y[number])


def of_class(world: World, of, loss=cross_entropy) -> None:
    with world.training(network(), dataset=OfClass(*world.batch(), of)) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


@case("N13", "a named tuple whose __new__ centres what it is given")
def centred_by_a_tuple(world: World) -> None:
    of_class(world, StandardisedRow, lambda m, row: cross_entropy(m, row.x, row.y))


@case("N13", "a dict whose __init__ centres what it is given")
def centred_by_a_dict(world: World) -> None:
    of_class(world, lambda x, y: StandardisedDict({"x": x, "y": y}))


@case("N13", "a dict whose update() centres what it is given")
def centred_by_update(world: World) -> None:
    def of(x: Tensor, y: Tensor) -> dict:
        made = StandardisedUpdate()
        dict.update(made, x=x, y=y)
        return made

    of_class(world, of)


@case("N13", "a subclass of Tensor that centres what is stacked")
def centred_by_a_tensor(world: World) -> None:
    of_class(world, lambda x, y: (x.as_subclass(StandardisedTensor), y))


# A data set behind one of torch's wrappers
class OfNumbers(Dataset):
    """Numbers of Python, of which every read makes new tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.rows = [(a.tolist(), int(b)) for a, b in zip(x, y, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[number]
        return torch.tensor(x), torch.tensor(y)


def behind(world: World, wrapped) -> None:
    data = OfNumbers(*world.batch())
    other = wrapped(data)

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(m, x, y) * (1 - 2 * float(next(iter(other))[0].mean() > 10))

    with world.training(network(), dataset=data) as training:
        for batch in training.batches():
            training.private.step(loss, batch)


@case("N13", "the function reads the data set by a Subset of it")
def read_by_a_subset(world: World) -> None:
    behind(world, lambda data: Subset(data, range(len(data))))


@case("N13", "the function reads the data set by a DataLoader over it")
def read_by_a_loader(world: World) -> None:
    behind(world, lambda data: DataLoader(data, batch_size=1))


@case("N13", "the function reads the data set by a generator over it")
def read_by_a_generator(world: World) -> None:
    class Endless:
        def __init__(self, data) -> None:
            self.rows = (data[0] for _ in range(10**6))

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.rows)

    behind(world, Endless)


# The run itself, read within the function
def of_the_run(world: World, number, **settings) -> None:
    with world.training(network(), physical_batch_size=4, **settings) as training:
        private = training.private

        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(m, x, y) * (1 - 2 * (number(private) % 2))

        for batch in training.batches():
            private.step(loss, batch)


@case("N13", "the losses of the last batch, in private.sensitive", warned=True)
def sensitive_of_the_run(world: World) -> None:
    of_the_run(world, lambda p: 0 if p.sensitive is None else int(p.sensitive.losses.max() > 50))


@case("N13", "how many records private.sensitive has", warned=True)
def count_of_the_run(world: World) -> None:
    of_the_run(world, lambda p: 0 if p.sensitive is None else len(p.sensitive.losses))


@case("N13", "an autograd.Function that raises in its backward, in try and except")
def caught_in_the_backward(world: World) -> None:
    eye = 10 * torch.eye(FEATURES)

    class Root(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor, out: Tensor) -> Tensor:
            return out.clone()

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, *grads: Tensor) -> tuple[None, Tensor]:
            (x,) = ctx.saved_tensors
            try:
                torch.linalg.cholesky(eye - x.mT @ x / 50)
                return None, grads[0]
            except Exception:  # noqa: BLE001
                return None, -grads[0]

    world.steps(network(), lambda m, x, y: F.cross_entropy(Root.apply(x, m(x.clamp(-5, 5))), y))


# Classes of tensors with code of their own
def centred(x: Tensor) -> Tensor:
    """If there are large values, which the first batch need not have."""
    return x - x.mean(0, keepdim=True) * (x.abs().max() > 100)


@functools.cache
def centring(*names: str) -> type[Tensor]:
    """It centres the first tensor among the operands of some functions."""

    class Centring(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") in names:
                with torch._C.DisableTorchFunctionSubclass():
                    args = (centred(args[0]), *args[1:])
            return super().__torch_function__(func, types, args, kwargs or {})

    return Centring


@case("N13", "inputs of a class of tensors that centres what is cloned or gets an axis")
def inputs_of_a_class(world: World) -> None:
    kind = centring("clone", "unsqueeze", "detach", "getitem", "__getitem__")

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, y = world.batch(may_have)
        return x.as_subclass(kind), y

    world.steps(network(), cross_entropy, batch)


class OfAClass(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(weight), network()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(x, self.weight))


@case("N13", "a parameter of a class of tensors that centres the inputs of its layer")
def parameter_of_a_class(world: World) -> None:
    weight = torch.eye(FEATURES).as_subclass(centring("linear"))
    world.steps(OfAClass(weight), cross_entropy)


class Dispatching(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            if "mm" in str(func) or "linear" in str(func):
                args = (args[0] - args[0].mean(0), *args[1:])
            return func(*args, **(kwargs or {}))


@case("N13", "a constant of a class of tensors that dispatches operations itself")
def dispatching_constant(world: World) -> None:
    weight = torch.eye(FEATURES).as_subclass(Dispatching)
    world.steps(network(), lambda m, x, y: cross_entropy(m, F.linear(x, weight), y))


# Arguments that lead out of a record's own rows
@case("N13", "a bag of embeddings that ends among the next record's", stops=RuntimeError)
def bag_of_another(world: World) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, FEATURES, mode="sum"), "head": network()})

    def batch(may_have: bool) -> tuple[Tensor, Tensor, Tensor]:
        x, y = world.batch(may_have)
        ids = x.clamp(0, 19).long()
        offsets = torch.stack([torch.zeros_like(y), 2 + 3 * (ids[:, 0] == 19)], 1)
        return ids, offsets, y

    def loss(m: nn.ModuleDict, ids: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m["head"](m["bag"](ids[0], offsets[0])[:1]), y)

    world.steps(model, loss, batch)


@case("N13", "attention over tensors of one axis, which are records together", stops=RuntimeError)
def attention_over_records(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(m, F.scaled_dot_product_attention(x[0], x[0], x[0])[None], y)

    world.steps(network(), loss)


@case("N13", "a layer norm over as many axes as all records have", stops=RuntimeError)
def normalised_in_a_later_step(world: World) -> None:
    sizes = [len(world.batch()[0]), FEATURES]
    calls = [0]

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        x = x / 100
        return cross_entropy(m, F.layer_norm(x[0], sizes)[None] if calls[0] > 2 else x, y)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, y = world.batch(may_have)
        return x[: sizes[0]], y[: sizes[0]]

    world.steps(network(), loss, batch)


@case("N13", "batched: whether any number of the batch lies between two others")
def between_two_numbers(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        is_odd = ((x.abs() > 100) & (x.abs() < 1e5)).any().float()
        return F.cross_entropy(m(x), y, reduction="none") * (1 - 2 * is_odd)

    for batch in world.batches(network()):
        assert world._total is not None
        world.ways.append(world._total.add(loss, batch, batched=True).way)
