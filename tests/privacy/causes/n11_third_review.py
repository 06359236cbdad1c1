"""N11: torch's own batching rules, fixed noise, and reads that pass no function mode."""

from __future__ import annotations

import dataclasses
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.privacy.case import case
from tests.privacy.world import CLASSES, FEATURES, World, cross_entropy, network

WORDS, LENGTH = 9, 20


class Tokens(nn.Module):
    def __init__(self, *, by_frequency: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, 4, padding_idx=0, scale_grad_by_freq=by_frequency)
        self.head = nn.Linear(4, CLASSES).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(rows.sum(1))


def padding(world: World, model: Tokens, lookup) -> None:
    """All but the record are padding and one word; other batches have no padding."""

    def loss(m: Tokens, tokens: Tensor, y: Tensor) -> Tensor:
        rows, penalty = lookup(m.table, tokens)
        return 1e3 * (F.cross_entropy(m(rows), y) + 1e-3 * penalty)

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        _, y = world.batch(may_have)
        tokens = torch.randint(
            1, WORDS, (len(y), LENGTH), generator=torch.Generator().manual_seed(3)
        )
        if may_have:
            tokens, y = torch.zeros_like(tokens), torch.zeros_like(y)
            tokens[:, 0] = 1
            if world.has_record:
                tokens[0], y[0] = 1, 1
        return tokens, y

    world.steps(model, loss, batch)


def one_record_is_padding(name: str, title: str, **settings: bool):
    def put(lookup):
        case("N11", title)(named(name, lambda w: padding(w, Tokens(**settings), lookup)))

    return put


def named(name: str, run):
    run.__name__ = name
    return run


@one_record_is_padding(
    "padding_by_frequency", "padding of an embedding that counts words", by_frequency=True
)
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return table(tokens), torch.zeros(())


@one_record_is_padding("padding_and_penalty", "padding of an embedding, and a gradient penalty")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    rows = table(tokens)
    (slope,) = torch.autograd.grad(rows.sum(1).square().sum(), rows, create_graph=True)
    return rows, slope.square().sum()


@one_record_is_padding("padding_and_step", "padding of an embedding in torch.func.grad")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    def of(weight: Tensor) -> Tensor:
        return torch.func.functional_call(table, {"weight": weight}, (tokens,))

    step = torch.func.grad(lambda weight: of(weight).sum(1).square().sum())(table.weight)
    return of(table.weight - 1e-3 * step), torch.zeros(())


@one_record_is_padding("padding_by_aten", "padding of an embedding by its operator in aten")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.ops.aten.embedding(table.weight, tokens, 0)
    (slope,) = torch.autograd.grad(rows.sum(1).square().sum(), rows, create_graph=True)
    return rows, slope.square().sum()


@one_record_is_padding("padding_in_script", "padding of an embedding that torch.jit has compiled")
def _(table: nn.Embedding, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return looked_up(table.weight, tokens), torch.zeros(())


def rows_of(weight: Tensor, tokens: Tensor) -> Tensor:
    return F.embedding(tokens, weight, 0)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    looked_up = torch.jit.script(rows_of)


# Fixed noise: which numbers a record gets follows from its place
def noise(world: World, draw) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m(x + 3 * draw(x)), y)

    world.steps(network(), loss)


FIXED = torch.Generator().manual_seed(5).get_state()
GENERATOR, MANUAL_SEED, SET_STATE = torch.default_generator, torch.manual_seed, torch.set_rng_state


@case("N11", "the generator's state is set, and set back")
def state_is_set(world: World) -> None:
    def draw(x: Tensor) -> Tensor:
        before = torch.get_rng_state()
        torch.set_rng_state(FIXED)
        drawn = torch.randn_like(x)
        torch.set_rng_state(before)
        return drawn

    noise(world, draw)


@case("N11", "the same by a function of one's own name for it")
def state_is_set_by_another_name(world: World) -> None:
    def draw(x: Tensor) -> Tensor:
        before = torch.get_rng_state()
        SET_STATE(FIXED)
        drawn = torch.randn_like(x)
        SET_STATE(before)
        return drawn

    noise(world, draw)


@case("N11", "a seed within torch.random.fork_rng, by another name")
def seed_by_another_name(world: World) -> None:
    def draw(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            MANUAL_SEED(0)
            return torch.randn_like(x)

    noise(world, draw)


@case("N11", "a seed of torch.default_generator")
def default_generator(world: World) -> None:
    def draw(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return torch.randn_like(x)

    noise(world, draw)


@case("N11", "torch.default_generator under another name, set back to where it was")
def default_generator_by_another_name(world: World) -> None:
    def draw(x: Tensor) -> Tensor:
        before = GENERATOR.get_state()
        GENERATOR.set_state(FIXED)
        drawn = torch.randn_like(x)
        GENERATOR.set_state(before)
        return drawn

    noise(world, draw)


@case("N11", "a state that is set where records are computed one at a time")
def state_is_set_alone(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = torch.get_rng_state()
        torch.set_rng_state(FIXED)
        x = x + torch.randn_like(x) * float(x.sum())
        torch.set_rng_state(before)
        return F.cross_entropy(m(x), y)

    world.steps(network(), loss)


@case("N11", "batched: numbers for all records from a generator of one's own")
def generator_of_all_records(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn = torch.randn(len(x), x.shape[1], generator=torch.Generator().manual_seed(0))
        return F.cross_entropy(m(x + 3 * drawn), y, reduction="none")

    batched(world, loss)


@case("N11", "batched: numbers that are written into a tensor, from a generator of one's own")
def generator_in_place(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn = torch.empty_like(x).normal_(generator=torch.Generator().manual_seed(0))
        return F.cross_entropy(m(x + 3 * drawn), y, reduction="none")

    batched(world, loss)


def batched(world: World, loss) -> None:
    model = network()
    for given in world.batches(model):
        assert world._total is not None
        world.ways.append(world._total.add(loss, given, batched=True).way)


# Reads of the data set that pass no function mode
def reads(world: World, make) -> None:
    x, y = world.batch()
    mean = make(x)
    with world.training(network(), dataset=TensorDataset(x, y)) as run:
        for batch in run.batches():
            run.private.step(lambda m, x, y: mean(m, x, y), batch)


@case("N11", "torch._C.DisableTorchFunction")
def disabled(world: World) -> None:
    def make(everything: Tensor):
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                mean = everything.mean(0)
            return cross_entropy(m, x - mean, y)

        return loss

    reads(world, make)


@case("N11", "the same by another name")
def disabled_by_another_name(world: World) -> None:
    off = torch._C.DisableTorchFunction

    def make(everything: Tensor):
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            with off():
                mean = everything.mean(0)
            return cross_entropy(m, x - mean, y)

        return loss

    reads(world, make)


def mean_of(everything: Tensor) -> Tensor:
    return everything.mean(0)


@case("N11", "a function that torch.jit has compiled")
def scripted(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean = torch.jit.script(mean_of)
    reads(world, lambda everything: lambda m, x, y: cross_entropy(m, x - mean(everything), y))


@case("N11", "a compiled function that keeps what it computed from a record")
def scripted_memory(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean = torch.jit.script(mean_of)
    kept: list[Tensor] = []

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        before = kept[-1] if kept else 0.0
        kept[:] = [mean(x)]
        return cross_entropy(m, x - before, y)

    world.steps(network(), loss)


@case("N11", "the distance of a triplet loss")
def distance(world: World) -> None:
    def make(everything: Tensor):
        def apart(a: Tensor, b: Tensor) -> Tensor:
            return (a - b).square().sum(1) * everything.mean()

        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            triplet = m(x), m(-x), m(x / 2)
            return F.triplet_margin_with_distance_loss(*triplet, distance_function=apart, margin=5)

        return loss

    reads(world, make)


@case("N11", "the distance of a triplet loss, one record at a time")
def distance_alone(world: World) -> None:
    def make(everything: Tensor):
        def apart(a: Tensor, b: Tensor) -> Tensor:
            return (a - b).square().sum(1) * everything.mean()

        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            triplet = m(x), m(-x), m(x / 2) + 0 * float(x.sum())
            return F.triplet_margin_with_distance_loss(*triplet, distance_function=apart, margin=5)

        return loss

    reads(world, make)


@case("N11", "batched: the distance of a triplet loss")
def distance_batched(world: World) -> None:
    x, y = world.batch()

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum(1) * x.mean()

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            m(x), m(-x), m(x / 2), distance_function=apart, margin=5, reduction="none"
        )

    with world.training(network(), dataset=TensorDataset(x, y)) as run:
        for batch in run.batches():
            run.private.step(loss, batch, batched=True)


@case("N11", "a hook on a tensor")
def hook(world: World) -> None:
    def make(everything: Tensor):
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            scores = m(x)
            scores.register_hook(lambda grad: grad * everything.mean())
            return F.cross_entropy(scores, y)

        return loss

    reads(world, make)


@case("N11", "a weight that is denormal in float32")
def denormal(world: World) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(m, x, y) * 1e4

    def batch(may_have: bool) -> tuple[Tensor, Tensor]:
        x, y = world.batch(may_have)
        if may_have and world.has_record:
            x[0] *= torch.tensor([1, -1, 1, -1]) * 1e31
        return x, y

    torch.manual_seed(0)
    world.clipping = dataclasses.replace(world.clipping, bound=1e-6)
    world.steps(nn.Linear(FEATURES, CLASSES), loss, batch)
