"""S14: what stands around the sum: rules, optimizers, hooks, schedules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import psac
from tests.privacy.case import case
from tests.privacy.world import Recording, World, cross_entropy, network

OF_THE_DATA = "a record is what the data set returns for a number; that is the user's to keep apart"
BEHIND = "optimizer, its hooks and learning rate are the user's code, behind the noise"


class Remembering:
    """Weighs by the largest norm that it has met."""

    bound = 0.5

    def __init__(self, every: int = 1) -> None:
        self.largest, self.calls, self.every = 1e-3, 0, every

    def weights(self, norms: Tensor) -> Tensor:
        self.calls += 1
        weights = self.bound / norms.clamp(min=self.largest)
        if self.calls % self.every == 0:
            self.largest = max(self.largest, float(norms.max()))
        return weights


def with_rule(world: World, rule) -> None:
    with world.training(network(), clipping=rule) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)


@case("S14", "a clipping rule with a memory of norms")
def a_rule_with_memory(world: World) -> None:
    with_rule(world, Remembering())


@case("S14", "a clipping rule that remembers one call in 97")
def a_rule_with_a_rare_memory(world: World) -> None:
    with_rule(world, Remembering(97))


@case("S14", "a clipping rule whose scale the loop sets from the norms of the last batch")
def a_rule_set_by_the_loop(world: World) -> None:
    rule = Remembering(10**9)
    with world.training(network(), clipping=rule) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)
            rule.largest = float(training.private.sensitive.norms.max())


@case("S14", "a clipping rule that divides by the largest norm of the batch")
def a_rule_that_looks_around(world: World) -> None:
    with_rule(world, psac.Custom(lambda norms: 0.5 / norms.max().expand_as(norms), bound=0.5))


@case("S14", "a clipping rule that clips at a quantile of the batch")
def a_rule_by_quantile(world: World) -> None:
    rule = psac.Custom(lambda norms: 0.5 / norms.clamp(min=norms.median()), bound=0.5)
    with_rule(world, rule)


def hooked(world: World, register) -> None:
    """`register(optimizer, batches)` puts a hook there; `batches["x"]` is the batch of the step."""
    model, batches = network(), {}
    optimizer = Recording(model.parameters(), lr=0.0)
    with world.training(model, optimizer=optimizer) as training:
        register(optimizer, batches)
        for x, y in training.batches():
            batches["x"] = x
            training.private.step(cross_entropy, (x, y))


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


@case("S14", "a hook before the optimizer's step adds the batch's mean to the gradient")
def a_hook_on_gradients(world: World) -> None:
    def register(optimizer, batches):
        def add(*_):
            for p in parameters(optimizer):
                p.grad.add_(batches["x"].mean())

        optimizer.register_step_pre_hook(add)

    hooked(world, register)


@case("S14", "a hook before the optimizer's step moves the parameters themselves")
def a_hook_on_parameters(world: World) -> None:
    def register(optimizer, batches):
        def add(*_):
            for p in parameters(optimizer):
                p.data.add_(batches["x"].mean())

        optimizer.register_step_pre_hook(add)

    hooked(world, register)


@case("S14", "a hook after the optimizer's step moves the parameters", beyond=BEHIND)
def a_hook_afterwards(world: World) -> None:
    def register(optimizer, batches):
        def add(*_):
            for p in parameters(optimizer):
                p.data.add_(batches["x"].mean())

        optimizer.register_step_post_hook(add)

    hooked(world, register)


@case("S14", "a hook on all optimizers adds to the gradient")
def a_global_hook(world: World) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    batches: dict[str, Tensor] = {}

    def add(optimizer, *_):
        for p in parameters(optimizer):
            p.grad.add_(batches["x"].mean())

    handle = register_optimizer_step_pre_hook(add)
    try:
        model = network()
        optimizer = Recording(model.parameters(), lr=0.0)
        with world.training(model, optimizer=optimizer) as training:
            for x, y in training.batches():
                batches["x"] = x
                training.private.step(cross_entropy, (x, y))
    finally:
        handle.remove()


@case("S14", "an optimizer whose own step reads the batch", beyond=BEHIND)
def an_optimizer_that_reads(world: World) -> None:
    model, batches = network(), {}

    class Reading(Recording):
        def step(self, closure=None):
            super().step(closure)
            for p in parameters(self):
                p.data.add_(batches["x"].mean())

    with world.training(model, optimizer=Reading(model.parameters(), lr=0.0)) as training:
        for x, y in training.batches():
            batches["x"] = x
            training.private.step(cross_entropy, (x, y))


@case("S14", "a learning rate that follows the size of the batch", beyond=BEHIND)
def a_learning_rate_by_size(world: World) -> None:
    model = network()
    optimizer = Recording(model.parameters(), lr=0.0)
    with world.training(model, optimizer=optimizer) as training:
        for x, y in training.batches():
            optimizer.param_groups[0]["lr"] = float(len(x) % 2)
            training.private.step(cross_entropy, (x, y))


@case("S14", "a learning rate that follows private.sensitive.losses", beyond=BEHIND)
def a_plateau(world: World) -> None:
    model = network()
    optimizer = Recording(model.parameters(), lr=0.0)
    with world.training(model, optimizer=optimizer) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)
            optimizer.param_groups[0]["lr"] = float(training.private.sensitive.losses.max())


@case("S14", "a parametrization that reads the batch")
def a_parametrization(world: World) -> None:
    model, batches = network(), {}

    class Shifted(nn.Module):
        def forward(self, weight):
            return weight + batches["x"].mean() if batches else weight

    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Shifted())
    for x, y in world.batches(model):
        batches["x"] = x
        world.step(cross_entropy, (x, y))


@case("S14", "model.center.copy_(x.mean(0)) in the loop")
def a_buffer_in_the_loop(world: World) -> None:
    model = network()
    model.register_buffer("center", torch.zeros(4))
    with world.training(model) as training:
        for x, y in training.batches():
            model.center.copy_(x.mean(0))
            training.private.step(lambda m, x, y: cross_entropy(m, x - m.center, y), (x, y))


@case("S14", "a buffer that holds an order of the features, set in the loop")
def a_permutation_in_the_loop(world: World) -> None:
    model = network()
    model.register_buffer("order", torch.arange(4))
    with world.training(model) as training:
        for number, (x, y) in enumerate(training.batches()):
            if number:  # before the first step nothing is compared
                order = torch.arange(4)
                model.order.copy_(order.flip(0) if x.abs().max() > 100 else order)
            training.private.step(lambda m, x, y: cross_entropy(m, x[:, m.order], y), (x, y))


@case("S14", "weights shifted in the loop by the mean of the batch")
def weights_in_the_loop(world: World) -> None:
    model = network()
    with world.training(model) as training:
        for x, y in training.batches():
            with torch.no_grad():
                model[0].bias.add_(x.mean())
            training.private.step(cross_entropy, (x, y))


class Blending:
    """Each record is blended with the one that was read before it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.last = x, y, torch.zeros(x.shape[1])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int):
        before, self.last = self.last, self.x[k]
        return self.x[k] + before, self.y[k]


@case("S14", "a data set that blends a record with the one before", beyond=OF_THE_DATA)
def a_data_set(world: World) -> None:
    with world.training(network(), dataset=Blending(*world.batch())) as training:
        for batch in training.batches():
            training.private.step(cross_entropy, batch)
