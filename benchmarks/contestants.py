"""The contestants: ways to take one full training step on a batch.

Each is a function (workload, model, batch size) -> step, where step(batch) does forward, backward,
and, for the private ones, per-sample norms, weights, sums and noise for every trainable parameter,
then SGD. The ordinary step is the batched one, without vmap. Every step ends with zero_grad, so
that nothing of one contestant stays in memory while another is measured. To add one: write the
function and put it in CONTESTANTS.

The learning rate is so small that weights and gradients stay what they were at the start: all
contestants do the same arithmetic in every step. Noise is std 1 on the sum at sensitivity 1.
psac clips by PSAC, the others by the norm (Abadi): the weights cost nothing either way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import Batch, Workload

LEARNING_RATE = 1e-3
NOISE_MULTIPLIER = 1.0
BOUND = 1.0

Step = Callable[[Batch], None]
Contestant = Callable[[Workload, nn.Module, int], Step]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)


def ordinary(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """The step that nobody calls private: the line at 1.0."""
    optimizer = _sgd(model)

    def step(batch: Batch) -> None:
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def psac(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """This library as it is used: `make_private` and `private.step(loss, batch)`.

    Batches are handed out as its loader does it, without loading: that takes what it takes for all.
    """
    from psac import PSAC, make_private

    private = make_private(
        model,
        _sgd(model),
        range(batch_size),
        batch_size=batch_size,
        steps=10**9,
        noise_multiplier=NOISE_MULTIPLIER,
        clipping=PSAC(bound=BOUND),
    )

    def step(batch: Batch) -> None:
        private._hand_out(batch, last=True)
        private.step(workload.loss, batch)

    return step


def engine(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """The engine of this library alone: the weighted sums, without noise and bookkeeping."""
    from psac import PSAC
    from psac.gradients import ClippedSum, Evaluator

    optimizer = _sgd(model)
    total = ClippedSum(Evaluator(model), PSAC(bound=BOUND))
    parameters = dict(model.named_parameters())

    def step(batch: Batch) -> None:
        total.add(workload.loss, batch)
        for name, value in total.collect().items():
            parameters[name].grad = value.div_(batch_size)
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_hooks(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """Opacus with per-sample gradients by module hooks, its default mode."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model, loss_reduction="mean")
    optimizer = DPOptimizer(
        _sgd(model),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=BOUND,
        expected_batch_size=batch_size,
    )

    def step(batch: Batch) -> None:
        workload.loss(wrapped, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """Opacus with ghost clipping, wired as make_private(grad_sample_mode="ghost") does."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model,
        loss_reduction="mean",
        max_grad_norm=BOUND,  # pyright: ignore[reportArgumentType] - a float, said to be an int
        use_ghost_clipping=True,
    )
    optimizer = DPOptimizerFastGradientClipping(
        _sgd(model),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=BOUND,
        expected_batch_size=batch_size,
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step(batch: Batch) -> None:
        criterion(workload.logits(wrapped, batch.inputs), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def vmap(workload: Workload, model: nn.Module, batch_size: int) -> Step:
    """Plain torch.func: vmap over grad, then clip, sum and noise by hand."""
    from torch.func import functional_call
    from torch.func import grad as gradient_of
    from torch.func import vmap as vectorised

    optimizer = _sgd(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rest: dict[str, Tensor] = dict(model.named_buffers())
    rest.update((n, p) for n, p in model.named_parameters() if not p.requires_grad)

    def loss_of_one(weights: dict[str, Tensor], inputs: dict[str, Tensor], label: Tensor) -> Tensor:
        def call(*args: Tensor, **kwargs: Tensor) -> object:
            return functional_call(model, (weights, rest), args, kwargs)

        one = {name: value.unsqueeze(0) for name, value in inputs.items()}
        return F.cross_entropy(workload.logits(call, one), label.unsqueeze(0))

    per_sample = vectorised(gradient_of(loss_of_one), in_dims=(None, 0, 0))

    def step(batch: Batch) -> None:
        weights = {name: p.detach() for name, p in trained.items()}
        grads = per_sample(weights, batch.inputs, batch.labels)
        norms = [g.flatten(1).norm(dim=1) for g in grads.values()]
        clip = (BOUND / (torch.stack(norms).norm(dim=0) + 1e-6)).clamp(max=1.0)
        for name, parameter in trained.items():
            total = torch.einsum("n,n...->...", clip, grads.pop(name))
            noise = torch.randn_like(total).mul_(NOISE_MULTIPLIER * BOUND)
            parameter.grad = total.add_(noise).div_(batch_size)
        optimizer.step()
        optimizer.zero_grad()

    return step


CONTESTANTS: dict[str, Contestant] = {
    "ordinary": ordinary,
    "psac": psac,
    "engine": engine,
    "opacus_ghost": opacus_ghost,
    "opacus_hooks": opacus_hooks,
    "vmap": vmap,
}
TITLES = {
    "ordinary": "ordinary step",
    "psac": "psac",
    "engine": "psac, engine alone",
    "opacus_ghost": "Opacus ghost",
    "opacus_hooks": "Opacus hooks",
    "vmap": "torch.func vmap",
}
WITHOUT_NOISE = ("ordinary", "engine")


class ParameterNotUpdatedError(RuntimeError):
    """A private contestant left a trainable parameter as it was: it did not do the work."""


def check_every_parameter_moved(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Refuse a private step that left a trainable parameter without noise."""
    still = [n for n, p in model.named_parameters() if n in before and torch.equal(p, before[n])]
    if still:
        raise ParameterNotUpdatedError(
            f"{len(still)} of {len(before)} trainable parameters did not change in a step, "
            f"the first is '{still[0]}'"
        )


def warmed_up(name: str, workload: Workload, batch: Batch, *, seed: int, steps: int = 3) -> Step:
    """A contestant's step, warmed up and seen to do its work.

    psac takes other ways in its first two steps (memory.py).
    """
    model = workload.build(seed=seed)
    step = CONTESTANTS[name](workload, model, len(batch))
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    for _ in range(steps):
        step(batch)
    # Without noise a parameter may stay as it is: an attention's key bias has gradient zero.
    if name not in WITHOUT_NOISE:
        check_every_parameter_moved(model, before)
    return step


def silence_known_warnings() -> None:
    """Hide what the other contestants always warn of: it does not concern the figures."""
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    warnings.filterwarnings("ignore", message="There is a performance drop because")
