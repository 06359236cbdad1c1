"""Algorithm 1 around the user's own model, optimizer and loop.

    private = psac.make_private(model, optimizer, dataset, batch_size=512, epochs=10,
                                epsilon=3.0, delta=1e-5)
    for inputs, labels in private.loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print(private.epsilon())

One logical step releases

    (sum over the sampled records of weight * gradient  +  N(0, (noise_multiplier * bound)^2)) / B

where B is the expected batch size, a public constant: never the number that was drawn.  Guarantees:

- (epsilon, delta)-differential privacy of all that the optimizer sees, for the relation that the
  sampling states, as the ledger says.  A step is in the ledger before its gradient is handed on.
- Noise is added once per logical step, whatever the physical batches, and on an empty draw too.
- Each record drawn enters the sum once: another number of samples in the forward, a second backward
  on a batch, a step that was left out, a gradient from elsewhere, parameters or losses that the
  engine cannot vouch for (see `psac.gradients`) raise, and nothing is released.
- Model and optimizer stay the user's own objects, and `close` gives them back without a trace.

Not covered: the number of records, the choice of settings (`psac.tuned_epsilon` prices tuning),
other uses of the data, and what the user shows of losses, norms and samples.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from psac import accounting, clipping_choice
from psac.accounting import Ledger, PrivacyWarning
from psac.batches import Loader
from psac.clipping import PSAC, AdaptivePSAC, ClippingRule
from psac.gradients import Engine, PrivacyError
from psac.loading import dataset_of
from psac.noise import add_noise_
from psac.plan import Plan, planned, positive
from psac.randomness import NoiseGenerator, SecureGenerator, SeededGenerator
from psac.sampling import Poisson, Sampling

Clipping = ClippingRule | AdaptivePSAC | Mapping[str, ClippingRule]
VERSION = 1

# By module and run: what this process has spent. A later run on a module has its own ledger.
trained: weakref.WeakKeyDictionary[nn.Module, dict[str, Ledger]] = weakref.WeakKeyDictionary()
# By run: the steps that this process has released. States that were taken earlier know of fewer.
released: dict[str, int] = {}
# What torch puts around the step of every optimizer class, to call the hooks.
HOOKED_STEP = torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    clipping: Clipping | None = None,
    sampling: Sampling | None = None,
    physical_batch_size: int | None = None,
    loss_reduction: Literal["mean", "sum"] = "mean",
    batch_dim: int = 0,
    seed: int | None = None,
) -> Private:
    """Makes training of `model` by `optimizer` on `dataset` private; see the module's page.

    `dataset` is a map-style data set, or a DataLoader whose data set, collate_fn and workers are
    kept.  `batch_size` is the expected size of a batch (default: the DataLoader's).  The length of
    training is `epochs` or `steps`; the noise is calibrated to `epsilon` at `delta`, or given as
    `noise_multiplier`.  `clipping` is a rule, `AdaptivePSAC`, or a mapping from patterns of
    parameter names to rules; the default is `PSAC()`.  `physical_batch_size` limits memory and
    never changes the result.  `seed` makes a run that can be repeated, and is NOT private.
    """
    rule: Clipping = PSAC() if clipping is None else clipping_choice.checked(clipping)
    records = dataset_of(dataset)
    plan = planned(
        num_records=len(records),
        expected_batch_size=_batch_size(dataset, batch_size),
        scheme=Poisson() if sampling is None else sampling,
        length=(epochs, steps),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
    )
    generator = SecureGenerator() if seed is None else SeededGenerator(seed)
    return Private(
        model,
        optimizer,
        dataset,
        plan=plan,
        clipping=rule,
        physical_batch_size=physical_batch_size,
        loss_reduction=loss_reduction,
        batch_dim=batch_dim,
        generator=generator,
    )


def _batch_size(dataset: Any, batch_size: int | None) -> int:
    if batch_size is None and isinstance(dataset, DataLoader):
        batch_size = dataset.batch_size
    if batch_size is None:
        raise ValueError(
            "batch_size is missing: give the expected number of records in a batch, a public "
            "constant such as 512."
        )
    return batch_size


class Private:
    """A private training run: what `make_private` returns.  Close it to get the model back."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        plan: Plan,
        clipping: Clipping,
        physical_batch_size: int | None,
        loss_reduction: Literal["mean", "sum"],
        batch_dim: int,
        generator: NoiseGenerator,
    ) -> None:
        self.model, self.optimizer, self.plan, self.clipping = model, optimizer, plan, clipping
        self.ledger = Ledger(secure=generator.secure)
        self.step = 0  # logical steps that were released
        self.id = secrets.token_hex(8)  # a resumed run keeps it
        self._noise = generator.spawn("noise")
        self._adaptive = clipping if isinstance(clipping, AdaptivePSAC) else None
        self._scale = self._adaptive.initial_scale if self._adaptive else 1.0
        self._below = 0.0  # samples of this logical batch below the scale, minus those above, / 2
        self._complete = False  # the physical batch that is out is the last of its logical batch
        self._unseen = 0  # samples of earlier parts of this logical batch that had no backward
        self._closed = False
        # Told how many steps are spent, before a gradient is handed on.
        self.on_release: Callable[[int], None] | None = None
        self.engine = Engine(
            model,
            clipping=self._adaptive.rule(self._scale) if self._adaptive else clipping,  # type: ignore[arg-type]
            loss_reduction=loss_reduction,
            batch_dim=batch_dim,
        )
        self.engine.after_backward = self._count
        self._bounds = self.engine.bounds
        sampler = plan.sampling.sampler(
            num_records=plan.num_records,
            expected_batch_size=plan.expected_batch_size,
            generator=generator.spawn("sampling"),
        )
        self.loader = Loader(self, data, sampler, physical_batch_size)
        self._gradient_noise = self._noise_for_gradients()
        self._handles: list[Any] = []
        self._attach()

    # Life
    def _attach(self) -> None:
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer is {type(self.optimizer).__name__}: pass a torch.optim.Optimizer."
            )
        self._refuse_strangers({id(p) for p in self.model.parameters()})
        self.engine.attach()
        self.engine.expect(0)
        for parameter in [*self.engine.parameters.values(), *self._optimized().values()]:
            parameter.grad = None  # computed without noise: the optimizer must not see it
        self._handles = [self.optimizer.register_step_pre_hook(self._before_step)]
        left_out = [
            name for name, p in self.engine.parameters.items() if id(p) not in self._optimized()
        ]
        if left_out:
            warnings.warn(
                f"the parameters {left_out} are trainable but not in the optimizer: they never "
                "change, yet their gradients count in the norms. Freeze them by "
                "requires_grad_(False).",
                stacklevel=4,
            )
        self._announce_earlier_runs()

    def _announce_earlier_runs(self) -> None:
        earlier: dict[str, Ledger] = {}
        for module in self._trainable_modules():
            earlier |= trained.get(module, {})
        if earlier and self.ledger.secure:
            steps = " and ".join(str(ledger.steps) for ledger in earlier.values())
            warnings.warn(
                f"{type(self.model).__name__} was trained before in this process, by {steps} "
                "private steps, and private.epsilon() counts this new run alone. If the records "
                "are the same, what all runs cost together is (earlier.ledger + private.ledger)"
                ".epsilon(delta); to go on with an earlier run of the same settings, call "
                "private.load_state_dict(earlier.state_dict()) and private.extend(...).",
                PrivacyWarning,
                stacklevel=5,
            )

    def close(self) -> None:
        """Gives model and optimizer back as they were; what was not released is forgotten."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._closed = [], True
        self.engine.detach()

    def __enter__(self) -> Private:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In here the model is a fixed function: gradients flow through it, none reaches it.

        For training something else with its help, such as the generator of a GAN.
        """
        parameters = [p for p in self.engine.parameters.values() if p.requires_grad]
        before, self.engine.silent = self.engine.silent, True
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
            self.engine.silent = before
            self.engine.look()

    # What was spent
    @property
    def noise_multiplier(self) -> float:
        return self.plan.noise_multiplier

    @property
    def sampling_rate(self) -> float:
        return self.plan.sampling_rate

    @property
    def expected_batch_size(self) -> int:
        return self.plan.expected_batch_size

    @property
    def planned_steps(self) -> int:
        return self.plan.steps

    @property
    def epoch(self) -> int:
        """Whole epochs that are done."""
        return self.plan.epoch_of(self.step)

    @property
    def scale(self) -> float:
        """The scale that `AdaptivePSAC` has learned: released, hence private."""
        return self._scale

    def epsilon(self, delta: float | None = None) -> float:
        """What was spent so far, at `delta` (default: that of `make_private`)."""
        return self.ledger.epsilon(self._delta(delta))

    def planned_epsilon(self, delta: float | None = None) -> float:
        """What will have been spent when all planned steps are done."""
        ledger = copy.deepcopy(self.ledger)
        left = self.plan.steps - ledger.steps
        if left > 0:
            ledger.record(**self.plan.event(), steps=left)
        return ledger.epsilon(self._delta(delta))

    def _delta(self, delta: float | None) -> float:
        delta = self.plan.delta if delta is None else delta
        if delta is None:
            raise ValueError("delta is missing: pass it here or to make_private, such as 1e-5.")
        return delta

    def extend(self, *, epochs: float | None = None, steps: int | None = None) -> float:
        """Plans this much more training with the same noise; returns the epsilon of it all."""
        if (epochs is None) == (steps is None):
            raise ValueError(f"give epochs or steps, one of them: epochs={epochs}, steps={steps}.")
        more = self.plan.steps_in(epochs) if epochs is not None else positive("steps", steps)
        self.plan = dataclasses.replace(self.plan, steps=self.plan.steps + more)
        return self.planned_epsilon() if self.plan.delta is not None else math.nan

    def charge(self, steps: int) -> None:
        """Counts steps as spent that a lost process took after this state was saved.

        With balls in bins their bins are over as well, and so is an epoch that only the lost
        process knew: no epoch may meet a record twice.
        """
        self._spend(self._skipped(positive("steps", steps)))

    def _skipped(self, steps: int) -> int:
        """How many steps are over when so many are lost."""
        bins = self.plan.sampling.bins(self.plan.num_records, self.plan.expected_batch_size)
        return self.loader.skip(steps, bins) if bins > 1 else steps

    def _spend(self, steps: int) -> None:
        """Written down, wherever it is: what comes next may be seen."""
        self.ledger.record(**self.plan.event(), steps=steps)
        if self.id not in released:
            self._enter()
        released[self.id] += steps
        if self.on_release is not None:
            self.on_release(steps)

    def _enter(self) -> None:
        """From here on this process knows of the run."""
        released.setdefault(self.id, 0)
        for module in self._trainable_modules():
            trained.setdefault(module, {})[self.id] = self.ledger

    def _trainable_modules(self) -> list[nn.Module]:
        """Those with parameters that are trained; an activation may serve many models."""
        return [
            module
            for module in self.model.modules()
            if any(id(p) in self.engine.names for p in module.parameters(recurse=False))
        ]

    # A step
    def hand_out(self, num_samples: int, *, last: bool) -> None:
        """A physical batch is out: one backward of so many samples is welcome; for loaders."""
        self._unseen += self._awaited()
        self.engine.expect(num_samples)
        self._complete = last

    def backward(self, losses: Tensor) -> None:
        """Backward from one loss per sample, shape [n]: nothing is left to a reduction."""
        expected = self.engine.expected
        if not isinstance(losses, Tensor) or tuple(losses.shape) != (expected,):
            given = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"losses are {given}, but private.loader handed out {expected} samples: pass one "
                f"loss per sample, a tensor of shape [{expected}] (reduction='none')."
            )
        (losses.mean() if self.engine.loss_reduction == "mean" else losses.sum()).backward()

    def _before_step(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        """The optimizer is about to step: it gets the private gradient, or none."""
        if any(argument is not None for argument in (*args[1:], kwargs.get("closure"))):
            raise PrivacyError(
                "optimizer.step(closure) computes gradients within the step. Call backward first, "
                "then optimizer.step()."
            )
        if not self._complete and within_own_step(optimizer):
            return  # of a class whose step calls super().step(): the outer one has been here
        self._refuse_without_backward()
        self._refuse_strangers(self.engine.names)
        parameters = self.engine.parameters
        for parameter in parameters.values():
            parameter.grad = None  # no optimizer of torch moves a parameter without a gradient
        if not self._complete:
            return
        self._complete = False
        for name, gradient in self._release().items():
            # rounded to half precision here, with its noise; the sum before it is not
            parameters[name].grad = gradient.to(parameters[name].dtype)
        self.engine.expect(0)  # a backward that comes too late is not of the next batch

    def _release(self) -> dict[str, Tensor]:
        """The noisy mean gradient; from here on it counts as seen."""
        below, self._below, self._unseen = self._below, 0.0, 0
        bounds, sums = self.engine.bounds, self.engine.collect()
        if bounds != self._bounds:
            raise PrivacyError(
                f"the rules of private.engine.clipping had the bounds {bounds} in this step, and "
                f"{self._bounds} in make_private: the noise would not fit the sum. Nothing was "
                "released. Other bounds need a new run; the scale of a rule may change."
            )
        self._spend(1)
        self.loader.advance()
        self.step += 1
        for bound, names in self._groups():
            add_noise_(
                [sums[name] for name in names],
                std=self._gradient_noise * bound,
                generator=self._noise,
                scale=1 / self.plan.expected_batch_size,
            )
        if self._adaptive:
            self._adapt(below)
        return sums

    def _groups(self) -> Iterator[tuple[float, list[str]]]:
        """Bounds, and the parameters that are clipped together by them."""
        groups = self.engine.groups
        for k, bound in enumerate(self._bounds):
            yield bound, [name for name in self.engine.parameters if groups.of([name]) == k]

    def _noise_for_gradients(self) -> float:
        """The noise of a group's sum, over the group's bound.

        K groups are K Gaussian queries on one batch, and the count of `AdaptivePSAC` is one more:
        together they are one query with the noise multiplier of the plan.
        """
        total = self.plan.noise_multiplier
        if total == 0:
            return 0.0
        if self._adaptive:
            side = self._adaptive.noise_multiplier(self.plan.expected_batch_size, total)
            return accounting.without_side_query(total, side)
        groups = len(self.clipping) if isinstance(self.clipping, Mapping) else 1
        return total * math.sqrt(groups)

    def _count(self) -> None:
        """How many of the samples of the last backward are below the scale."""
        norms = self.engine.norms
        if self._adaptive and norms is not None:
            self._below += float((norms <= self._scale).sum()) - len(norms) / 2

    def _adapt(self, below: float) -> None:
        """The scale follows the noisy count: a function of released values alone."""
        assert self._adaptive is not None
        batch, released = self.plan.expected_batch_size, torch.tensor([below], dtype=torch.float64)
        if self.plan.noise_multiplier > 0:
            # One sample moves the count by 1/2.
            std = self._adaptive.noise_multiplier(batch, self.plan.noise_multiplier) / 2
            add_noise_([released], std=std, generator=self._noise)
        self._scale = self._adaptive.next_scale(self._scale, float(released) / batch, self.step)
        self.engine.clipping = self._adaptive.rule(self._scale)

    # Refusals
    def _optimized(self) -> dict[int, Tensor]:
        return {id(p): p for group in self.optimizer.param_groups for p in group["params"]}

    def _awaited(self) -> int:
        """Samples that are out and whose backward has not come."""
        return (self.engine.expected or 0) if self.engine._backward_is_welcome() else 0

    def _refuse_without_backward(self) -> None:
        """Raises for a step that would spend privacy on noise alone, or leave samples out."""
        if missing := self._unseen + self._awaited():
            raise PrivacyError(
                f"optimizer.step() was called, but {missing} of the samples that private.loader "
                "handed out had no backward through the private model: the step would spend "
                "privacy on noise. Nothing was spent. Call loss.backward(), or "
                "private.backward(losses), on every batch before optimizer.step()."
            )

    def _refuse_strangers(self, known: Container[int]) -> None:
        """Raises for what the optimizer would train that is not known, by its id."""
        strange = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in known:
                    if p.requires_grad:
                        strange.append(list(p.shape))
                    else:
                        p.grad = None  # it would move all the same
        if strange:
            raise PrivacyError(
                f"the optimizer has {len(strange)} parameters that are not the model's, or were "
                f"not when make_private was called (of shapes {strange[:3]}): their gradients "
                "would be neither clipped nor noisy. Give them to the model before that, or to an "
                "optimizer of their own if no private data reaches them."
            )

    # Nothing lost
    def state_dict(self) -> dict[str, Any]:
        """Ledger, step, sampler, learned scale and, unless secure, the generator: plain JSON.

        Model and optimizer have a state_dict of their own; `psac.save_checkpoint` saves all.
        """
        return {
            "version": VERSION,
            "id": self.id,
            "run": self._identity(),
            "step": self.step,
            "planned_steps": self.plan.steps,
            "ledger": self.ledger.to_json(),
            "sampler": self.loader.state_dict(),
            "noise": self._noise.state_dict() if isinstance(self._noise, SeededGenerator) else None,
            "scale": self._scale,
        }

    def _identity(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {
            "num_records": self.plan.num_records,
            "expected_batch_size": self.plan.expected_batch_size,
            "sampling": self.plan.sampling.name,
            "noise_multiplier": self.plan.noise_multiplier,
            "delta": self.plan.delta,
            "clipping": repr(self.clipping),
            "loss_reduction": self.engine.loss_reduction,
            "seed": self._noise.seed if isinstance(self._noise, SeededGenerator) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken; only for a run that has spent nothing yet.

        What this process has released of the run since then counts as spent.
        """
        if state.get("version") != VERSION:
            raise ValueError(f"this state has version {state.get('version')}, not {VERSION}.")
        if self.ledger.steps:
            raise PrivacyError(
                f"this run has released {self.ledger.steps} steps that the state does not know of: "
                "they would be forgotten. Load it into a new run, before its first step."
            )
        saved, own = state["run"], self._identity()
        changed = [f"{k}: {saved.get(k)!r} -> {own[k]!r}" for k in own if saved.get(k) != own[k]]
        if changed:
            raise ValueError(
                f"the run was started with other settings ({'; '.join(changed)}). Call "
                "make_private as it was called then; a changed run needs a budget of its own."
            )
        self.id = state.get("id", self.id)  # states of psac 0.1 have none
        self.ledger = Ledger.from_json(state["ledger"])
        self.step, self._scale = state["step"], state["scale"]
        self.plan = dataclasses.replace(self.plan, steps=state["planned_steps"])
        self.loader.load_state_dict(state["sampler"])
        if isinstance(self._noise, SeededGenerator):
            self._noise.load_state_dict(state["noise"])
        if self._adaptive:
            self.engine.clipping = self._adaptive.rule(self._scale)
        self._enter()
        self.charge_lost(released[self.id], "this state")

    def charge_lost(self, spent: int, place: object) -> None:
        """Counts what `place` does not know of the `spent` steps, unless it is repeated by a seed.

        Wherever those were written down, they are: this adds to the ledger alone.
        """
        lost = spent - self.ledger.steps
        if lost > 0 and self.ledger.secure:
            self.ledger.record(**self.plan.event(), steps=self._skipped(lost))
            warnings.warn(
                f"{lost} steps ran after {place} was saved and are not in it. What they released "
                f"may have been seen, so they count as spent: {lost} steps fewer are left of the "
                "plan. Save more often to lose fewer.",
                PrivacyWarning,
                stacklevel=4,
            )
        released[self.id] = max(released[self.id], self.ledger.steps)

    def __repr__(self) -> str:
        plan = self.plan
        secure = "" if self.ledger.secure else ", seeded: NOT private"
        return (
            f"Private(step {self.step} of {plan.steps}, noise_multiplier="
            f"{plan.noise_multiplier:.4g}, sampling={plan.sampling.name} at rate "
            f"{plan.sampling_rate:.4g}, clipping={self.clipping!r}{secure})"
        )


def within_own_step(optimizer: Any) -> bool:
    """Whether a step of this optimizer was called by another one, such as by super().step().

    A class that inherits from SGD has a step with hooks, and so has SGD, as soon as there was an
    optimizer of each: the hooks run in both.
    """
    frame, steps = sys._getframe(1), 0
    while frame is not None and steps < 2:
        if frame.f_code is HOOKED_STEP and frame.f_locals["args"][0] is optimizer:
            steps += 1
        frame = frame.f_back
    return steps == 2
