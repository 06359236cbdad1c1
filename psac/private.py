"""Algorithm 1 around the user's own model and optimizer.

    private = psac.make_private(model, optimizer, dataset, batch_size=512, epochs=10,
                                epsilon=3.0, delta=1e-5)

    def loss(model, x, y):               # ordinary code, given a batch of ONE record
        return F.cross_entropy(model(x), y)

    for batch in private.loader:
        private.step(loss, batch)
    print(private.epsilon())

One logical step releases

    (sum over the sampled records of weight * gradient  +  N(0, (noise_multiplier * bound)^2)) / B

where B is the expected batch size, a public constant: never the number that was drawn.  Guarantees:

- (epsilon, delta)-differential privacy of all that the optimizer sees, for the relation that the
  sampling states, as the ledger says.  A step is in the ledger before its gradient is handed on.
- No record sees another: `step` calls the function under `torch.vmap`, or one record at a time.
- What was released of the records before, while `psac.data` read them, is in the ledger from the
  beginning, and noise that is calibrated leaves room for it.
- Noise is added once per logical step, whatever the physical batches, and on an empty draw too.
- Each record drawn enters the sum once: another batch than the one that the loader handed out, a
  batch that was left out or altered, a backward or an optimizer step of the user's own, parameters
  and buffers that something else than the optimizer has changed raise, and nothing is released.
- Model and optimizer stay the user's own objects, and `close` gives them back without a trace.

Not covered: the number of records, the choice of settings (`psac.tuned_epsilon` prices tuning),
other uses of the data, and what the user shows of losses, norms and samples.
"""

# Private names of torch: the hooks of an optimizer, the stores of a module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from psac import accounting
from psac.accounting import Ledger
from psac.clipping import choice as clipping_choice
from psac.clipping.rules import PSAC, AdaptivePSAC, ClippingRule
from psac.errors import PrivacyError, PrivacyWarning
from psac.gradients import ClippedSum, Evaluator, Sensitive
from psac.gradients.isolation.checksums import Prints, checksums
from psac.gradients.isolation.eligibility import attach, attached, modules_of, refuse_modules
from psac.gradients.isolation.generators import own_draws_of_torch, own_generators
from psac.gradients.isolation.probe import Probe
from psac.gradients.isolation.state import State
from psac.gradients.vectorized.evaluate import LossFunction
from psac.loading.collation import refuse_padding_that_counts
from psac.loading.dataset import dataset_of, released_with, tensors_of
from psac.loading.handed import Handed
from psac.loading.loader import Loader
from psac.noise.gaussian import add_noise_
from psac.noise.generators import NoiseGenerator, SecureGenerator, SeededGenerator
from psac.plan import Plan, planned, positive
from psac.sampling import Poisson, Sampling

Clipping = ClippingRule | AdaptivePSAC | Mapping[str, ClippingRule]
VERSION = 1
OPTIMIZERS: Any = sys.modules["torch.optim.optimizer"]

# By module and run: what this process has spent. A later run on a module has its own ledger.
trained: weakref.WeakKeyDictionary[nn.Module, dict[str, Ledger]] = weakref.WeakKeyDictionary()
# By run: the steps that this process has released. States that were taken earlier know of fewer.
released: dict[str, int] = {}
TRAINED_BEFORE = "The model was trained before by another private run, which is not in this ledger."
SAVED = "the checkpoint that training went on from was saved"
FUNCTION_FORM = """\
    def loss(model, x, y):            # a batch of one record
        return F.cross_entropy(model(x), y)

    for batch in private.loader:
        private.step(loss, batch)"""


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
    lengths: Sequence[int] | None = None,
    seed: int | None = None,
) -> Private:
    """Makes training of `model` by `optimizer` on `dataset` private.

    Model and optimizer stay your own objects. The noise is either calibrated to a budget (`epsilon`
    at `delta`) or given (`noise_multiplier`). The length of training is `epochs` or `steps`.

    Args:
        model: The model. Its trainable parameters are those with `requires_grad` at this moment.
        optimizer: A `torch.optim.Optimizer` over parameters of the model.
        dataset: A map-style data set, or a DataLoader whose data set, `collate_fn` and workers are
            kept. Batches are drawn by psac.
        batch_size: Expected number of records in a batch, a public constant. The default is that
            of the DataLoader.
        epochs: Length of training in passes over the data.
        steps: Length of training in logical steps, in place of `epochs`.
        epsilon: Budget that the noise is calibrated to.
        delta: Probability that the guarantee fails: far below one over the number of records.
        noise_multiplier: Standard deviation of the noise over the bound, in place of `epsilon`.
        clipping: A clipping rule, `AdaptivePSAC`, or a mapping from patterns of parameter names to
            rules. The default is `PSAC()`.
        sampling: How batches are drawn: `Poisson()` (default), `BallsInBins()` or `FixedSize()`.
        physical_batch_size: Largest number of records computed at once. It limits memory and never
            changes the result.
        lengths: Public lengths that records are padded to, each to the smallest one that holds it,
            such as (32, 64, 128).
        seed: Makes the run repeatable, and NOT private.

    Returns:
        The run. Loop over its `loader`, pass each batch to `step`, and `close` it at the end.

    Raises:
        PrivacyError: The model, the optimizer or the data set cannot be trained privately.
        TypeError: An argument has the wrong type.
        ValueError: An argument is missing, out of range, or contradicts another one.

    Examples:
        >>> import torch, psac
        >>> data = torch.utils.data.TensorDataset(torch.randn(200, 3), torch.randn(200, 1))
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def loss(model, x, y):  # a batch of one record
        ...     return (model(x) - y).square().mean()
        >>> with psac.make_private(
        ...     model, optimizer, data, batch_size=50, steps=2, epsilon=3.0, delta=1e-4
        ... ) as private:
        ...     for batch in private.loader:
        ...         _ = private.step(loss, batch)
        ...     print(f"{private.steps_taken} steps, epsilon {private.epsilon():.2f}")
        2 steps, epsilon 3.00
    """
    rule: Clipping = PSAC() if clipping is None else clipping_choice.checked(clipping)
    records = dataset_of(dataset)
    scheme = Poisson() if sampling is None else sampling
    released_before = _released_before(dataset, scheme)
    plan = planned(
        num_records=len(records),
        expected_batch_size=_batch_size(dataset, batch_size),
        scheme=scheme,
        length=(epochs, steps),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        after=released_before,
    )
    generator = SecureGenerator() if seed is None else SeededGenerator(seed)
    return Private(
        model,
        optimizer,
        dataset,
        plan=plan,
        clipping=rule,
        physical_batch_size=physical_batch_size,
        lengths=lengths,
        generator=generator,
        released_before=released_before,
    )


def _released_before(data: Any, scheme: Sampling) -> Ledger:
    """What was released of the records while they were read, under the relation of the run.

    A record in place of another one is one less and one more, which the price covers.
    """
    ledgers = released_with(data)
    total = Ledger(secure=all(ledger.secure for ledger in ledgers))
    for ledger in ledgers:
        for entry in ledger.entries:
            total.record(**{**dataclasses.asdict(entry), "relation": scheme.relation})
        total.include_notes(ledger)
    return total


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
    """A private training run: what `make_private` returns.

    It is a context manager: leaving it closes the run.

    Attributes:
        model: The model, your own object.
        optimizer: The optimizer, your own object.
        loader: The batches. Pass each to `step` once.
        ledger: What was released, and at which price; public. See `psac.Ledger`.
        steps_taken: Logical steps that were released.
        sensitive: Losses, norms and weights of the last batch, and how they were evaluated. They
            are NOT private.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        plan: Plan,
        clipping: Clipping,
        physical_batch_size: int | None,
        lengths: Sequence[int] | None,
        generator: NoiseGenerator,
        released_before: Ledger,
    ) -> None:
        self.model, self.optimizer, self.plan, self.clipping = model, optimizer, plan, clipping
        self.ledger = Ledger(secure=generator.secure) + released_before
        self.steps_taken = 0  # logical steps that were released
        self.sensitive: Sensitive | None = None  # losses and norms of the last batch: NOT private
        self.id = secrets.token_hex(8)  # a resumed run keeps it
        self._noise, self._chance = generator.spawn("noise"), generator.spawn("chance")
        self._adaptive = clipping if isinstance(clipping, AdaptivePSAC) else None
        self._scale = self._adaptive.initial_scale if self._adaptive else 1.0
        self._below = 0.0  # samples of this logical batch below the scale, minus those above, / 2
        self._out: Handed | None = None  # the batch that awaits its step
        self._after_prints: Prints | None = None
        self._prints: Prints | None = None  # of all tensors of the model, after the last step
        self._stepping = self._closed = self._failed = False
        self._state: State | None = None  # before the first of several physical batches
        # Told how many steps are spent, before a gradient is handed on.
        self.on_release: Callable[[int], None] | None = None
        self.evaluator, self._probe = Evaluator(model), Probe(model)
        self.evaluator.outside.protect(tensors_of(data))
        self.evaluator.on_warning = lambda sentence: self.ledger.note_warning(sentence)
        rule = self._adaptive.rule(self._scale) if self._adaptive else clipping
        self._total = ClippedSum(self.evaluator, rule)  # type: ignore[arg-type]
        self.parameters = self.evaluator.parameters
        self._names = {id(p): name for name, p in self.parameters.items()}
        sampler = plan.sampling.sampler(
            num_records=plan.num_records,
            expected_batch_size=plan.expected_batch_size,
            generator=generator.spawn("sampling"),
        )
        self.loader = Loader(self, data, sampler, physical_batch_size, lengths)
        self._gradient_noise = self._noise_for_gradients()
        self._handles: list[Any] = []
        self._attach()

    # Life
    def _attach(self) -> None:
        optimizer: Any = self.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer is {type(self.optimizer).__name__}: pass a torch.optim.Optimizer."
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise PrivacyError(
                "LBFGS evaluates the loss several times within a step, and each time is a release. "
                "Use an optimizer that takes one gradient a step, such as SGD or Adam."
            )
        refuse_modules(self.model)
        self._refuse_strangers({id(p) for p in self.model.parameters()})
        attach(self.model, self.parameters, self)
        for parameter in [*self.parameters.values(), *self._optimized().values()]:
            parameter.grad = None  # computed without noise: the optimizer must not see it
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        self._handles += [
            p.register_post_accumulate_grad_hook(self._refuse_backward)
            for p in self.parameters.values()
        ]
        left_out = [name for name, p in self.parameters.items() if id(p) not in self._optimized()]
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
        self._total.discard()
        if attached.get(self.model) is self:
            del attached[self.model]

    def __enter__(self) -> Private:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Turns the model into a fixed function: gradients flow through it, and none reaches it.

        It is for training something else through the model, such as the generator of a GAN.
        """
        parameters = [p for p in self.parameters.values() if p.requires_grad]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    @contextlib.contextmanager
    def public_change(self) -> Iterator[None]:
        """Declares that what changes inside follows from public data or from the model itself.

        It covers parameters and buffers of the model, and tensors that the loss function reads from
        outside, such as the weights of a teacher.
        """
        self._refuse_changes()
        yield
        self._prints = None
        self._probe.forget()
        self.evaluator.outside.accept()

    # What was spent
    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the bound, as calibrated or given."""
        return self.plan.noise_multiplier

    @property
    def sampling_rate(self) -> float:
        """Probability that a record is in a step."""
        return self.plan.sampling_rate

    @property
    def expected_batch_size(self) -> int:
        """The public constant that sums are divided by."""
        return self.plan.expected_batch_size

    @property
    def planned_steps(self) -> int:
        """Logical steps that the budget is planned for; `extend` adds to them."""
        return self.plan.steps

    @property
    def epoch(self) -> int:
        """Number of complete epochs so far."""
        return self.plan.epoch_of(self.steps_taken)

    @property
    def scale(self) -> float:
        """The scale that `AdaptivePSAC` has learned, from noisy counts: you may show it."""
        return self._scale

    def epsilon(self, delta: float | None = None) -> float:
        """The privacy loss of all steps so far.

        Args:
            delta: At which delta. The default is that of `make_private`.

        Returns:
            An upper bound on epsilon: 0 before the first step, infinity without noise.

        Raises:
            ValueError: `delta` was given neither here nor to `make_private`.

        Examples:
            ```python
            print(f"epsilon {private.epsilon():.2f}, or {private.epsilon(1e-7):.2f} at 1e-7")
            ```
        """
        return self.ledger.epsilon(self._delta(delta))

    def planned_epsilon(self, delta: float | None = None) -> float:
        """The privacy loss when all planned steps are done; arguments as for `epsilon`."""
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
        """Plans more training with the same noise.

        Args:
            epochs: Further passes over the data.
            steps: Further logical steps, in place of `epochs`.

        Returns:
            The epsilon of all planned steps together, or NaN if no `delta` is known.

        Raises:
            ValueError: Both or neither were given.
        """
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
            runs = trained.setdefault(module, {})
            if self.ledger.secure and runs.keys() - {self.id}:
                self.ledger.note_warning(TRAINED_BEFORE)
            runs[self.id] = self.ledger

    def _trainable_modules(self) -> list[nn.Module]:
        """Those with parameters that are trained; an activation may serve many models."""
        return [
            module
            for module in self.model.modules()
            if any(id(p) in self._names for p in module.parameters(recurse=False))
        ]

    # A step
    def step(self, loss: LossFunction, batch: Any, *, batched: bool = False) -> bool:
        """Algorithm 1 on a batch of `private.loader`.

        Runs the loss function for each record on its own, clips, and adds up. At the end of a
        logical batch it writes the ledger, adds noise, and steps the optimizer.

        Args:
            loss: `loss(model, *batch)`, or `loss(model, **batch)` if the batch is a mapping. It is
                given a batch of ONE record, under `torch.vmap`, and returns the loss of that
                record, by any reduction. A record that has no gradient returns a constant.
            batch: The batch that the loader handed out, on any device.
            batched: For functions that must see the whole batch to be fast, such as packed
                sequences or routing by index. The function then returns one loss per record, a
                tensor [n]. That no record changes another is tested, not enforced: on the backward
                pass of every step, and, where the operations are new and at secret steps, with
                other records set to NaN, made huge, exchanged, or left out.

        Returns:
            True if a logical step was released, False if more physical batches of the same logical
            batch follow. Schedulers step when it is True.

        Raises:
            PrivacyError: The step would not be private: another batch than the one handed out, a
                model that something other than the optimizer changed, a spent budget. Nothing is
                released.
            NotIsolated: The function or the model would let one record change another.

        Examples:
            ```python
            for batch in private.loader:
                if private.step(loss, batch):
                    scheduler.step()
            ```
        """
        self._refuse_unless_handed_out(batch)
        self._refuse_changes()
        self.evaluator.is_suspicious = self._probe.has_changed(loss)
        assert self._out is not None
        is_last = self._out.is_last
        self._same_state_for_all_parts(loss, is_last)
        self._failed = True
        with self._own_randomness(batched):
            refuse_padding_that_counts(self.model, loss, batch, self._out.probe)
            # losses, norms, weights, sums
            self.sensitive = self._total.add(loss, batch, batched=batched)
        self.ledger.note_way("batched" if batched else self.sensitive.way)
        self._failed, self._out = False, None
        if self._adaptive:
            norms = self.sensitive.norms
            self._below += float((norms <= self._scale).sum()) - len(norms) / 2
        if is_last:
            self.release()
            self._probe.leave(loss, batch)
        else:
            self._prints = self._fingerprints()
        return is_last

    @contextlib.contextmanager
    def _own_randomness(self, batched: bool) -> Iterator[None]:
        """Dropout and the like draw from a secret stream, so that no place in a batch is known.

        A seed of the user's would fix which numbers the k-th record of a batch gets.  Records that
        are computed one at a time have generators of numpy and Python of their own (`OneByOne`).
        """
        if not self.ledger.secure:
            yield
            return
        own = own_generators if batched else own_draws_of_torch
        with own(int.from_bytes(self._chance.random_bytes(7), "big")):
            yield

    def _same_state_for_all_parts(self, loss: LossFunction, is_last: bool) -> None:
        """Physical batches start from the same state: how many there are must not show in it."""
        if self._state is not None:
            self._state.restore()
        elif not is_last:
            self._state = State({"model": self.model, "loss": loss})
        if is_last:
            self._state = None

    def release(self) -> None:
        """Ledger, noise, optimizer; for loaders, which call it on an empty draw."""
        sums, below = self._total.collect(), self._below
        self._probe.forget()
        self._below = 0.0
        self._spend(1)
        self.loader.advance()
        self.steps_taken += 1
        for bound, names in self._groups():
            add_noise_(
                [as_real(sums[name]) for name in names],
                std=self._gradient_noise * bound,
                generator=self._noise,
                scale=1 / self.plan.expected_batch_size,
            )
        if self._adaptive:
            self._adapt(below)
        self._optimize(sums)
        self._prints = self._fingerprints()

    def _optimize(self, gradients: Mapping[str, Tensor]) -> None:
        """The optimizer's step, on these gradients and no others."""
        for name, parameter in self.parameters.items():
            # rounded to half precision here, with its noise; the sum before it is not
            parameter.grad = gradients[name].to(parameter.dtype)
        self._last_of_the_hooks()
        self._handed = [p.grad for p in self.parameters.values() if p.grad is not None]
        self._handed_prints = (
            checksums([*self._handed, *self._tensors()]) if self._others_hook() else []
        )
        self._stepping = True
        try:
            self.optimizer.step()
            self._refuse_hooks_afterwards()
        finally:
            self._stepping, self._handed = False, []
            for parameter in self.parameters.values():
                parameter.grad = None

    def hand_out(self, batch: Any, *, last: bool, probe: Any = None) -> None:
        """This batch awaits its step; for loaders."""
        self._refuse_left_out()
        if self._prints is None:  # from here on the batch is known
            self._prints = self._fingerprints()
        self._out = Handed(batch, last, probe)

    def start_pass(self) -> None:
        """What was not released is forgotten; for loaders."""
        self._out, self._below, self._failed, self._state = None, 0.0, False, None
        self._total.discard()

    def _groups(self) -> Iterator[tuple[float, list[str]]]:
        """Bounds, and the parameters that are clipped together by them."""
        groups = self._total.groups
        for k, bound in enumerate(self._total.bounds):
            yield bound, [name for name in self.parameters if groups.of([name]) == k]

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

    def _adapt(self, below: float) -> None:
        """The scale follows the noisy count: a function of released values alone."""
        assert self._adaptive is not None
        batch, released = self.plan.expected_batch_size, torch.tensor([below], dtype=torch.float64)
        if self.plan.noise_multiplier > 0:
            # One sample moves the count by 1/2.
            std = self._adaptive.noise_multiplier(batch, self.plan.noise_multiplier) / 2
            add_noise_([released], std=std, generator=self._noise)
        self._scale = self._adaptive.next_scale(
            self._scale, float(released) / batch, self.steps_taken
        )
        self._total.clipping = self._adaptive.rule(self._scale)

    # Refusals
    def _optimized(self) -> dict[int, Tensor]:
        return {id(p): p for group in self.optimizer.param_groups for p in group["params"]}

    def _refuse_unless_handed_out(self, batch: Any) -> None:
        if self._closed:
            raise PrivacyError("this private run is closed; call make_private for a new one.")
        if self._out is None:
            raise PrivacyError(
                "no batch awaits a step: each batch of private.loader is given to private.step "
                "once, while the loop over private.loader is at it."
            )
        if self._failed:
            raise PrivacyError(
                "the loss function has failed on this batch. To try again with another function "
                "would let the records of the batch decide how they are trained on: mend the "
                "function, and begin a new pass over private.loader."
            )
        self._out.refuse_other(batch)
        trained = [t for t in self._tensors() if t.requires_grad and isinstance(t, nn.Parameter)]
        if self._names.keys() != set(map(id, trained)):
            changed = [name for name, p in self.parameters.items() if not p.requires_grad]
            changed += [
                f"a new one of shape {list(p.shape)}" for p in trained if id(p) not in self._names
            ]
            raise PrivacyError(
                f"{', '.join(changed[:5])}: which parameters are trained was changed after "
                "make_private. Close the run and make a new one, which costs its own privacy; both "
                "together cost (first.ledger + second.ledger).epsilon(delta)."
            )
        self._refuse_strangers(self._names)

    def _refuse_left_out(self) -> None:
        if self._out is not None:
            raise PrivacyError(
                "the batch before this one was not given to private.step. Every batch of "
                "private.loader must be, whatever is in it: which ones are left out would tell of "
                "their records."
            )

    def _fingerprints(self) -> Prints:
        return Prints(self._tensors())

    def _tensors(self) -> list[Tensor]:
        stores = [s for m in modules_of(self.model) for s in (m._parameters, m._buffers)]
        return [t for store in stores for t in store.values() if t is not None]

    def _names_of_tensors(self) -> list[str]:
        """In the order of the fingerprints."""
        return [
            f"{path}.{name}".lstrip(".")
            for path, module in self.model.named_modules()
            for store in (module._parameters, module._buffers)
            for name, tensor in store.items()
            if tensor is not None
        ]

    def _refuse_changes(self) -> None:
        """Raises if something else than the optimizer has written to the model."""
        if self._prints is None:
            return
        changed = self._prints.changed(self._tensors())
        if changed:
            names = [name for k, name in enumerate(self._names_of_tensors()) if k in changed]
            raise PrivacyError(
                f"{', '.join(names[:5]) or 'a tensor of the model'} was changed since the last "
                "step, and not by the optimizer: if it was computed from private records, it would "
                "be released without noise. If the change is public, make it within "
                "`with private.public_change():`."
            )

    def _refuse_backward(self, parameter: Tensor) -> None:
        """A backward of the user's own has reached a private parameter."""
        parameter.grad = None
        name = self._names.get(id(parameter), "a parameter")
        raise PrivacyError(
            f"backward() has reached '{name}' of the private {type(self.model).__name__}: that "
            "gradient is neither clipped nor noisy. psac runs the backward itself. Write\n"
            f"{FUNCTION_FORM}\nTo train something else through the model, call backward within "
            "`with private.paused():`."
        )

    def _before_step(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        """Whoever calls optimizer.step: only `private.step` may."""
        if not self._stepping:
            for parameter in self.parameters.values():
                parameter.grad = None
            raise PrivacyError(
                "optimizer.step() was called on a private model. psac calls it itself, when a "
                f"logical batch is complete. Write\n{FUNCTION_FORM}"
            )
        if not self._handed:
            return  # of a class whose step calls super().step(): the outer one has been here
        grads, handed = [p.grad for p in self.parameters.values()], self._handed
        self._handed = []
        if not all(a is b for a, b in zip(grads, handed, strict=True)) or (
            self._handed_prints and checksums([*handed, *self._tensors()]) != self._handed_prints
        ):
            raise PrivacyError(
                "a hook on optimizer.step has changed the private gradient, or the model, before "
                "the optimizer saw it. Remove the hook. What is computed from the released "
                "gradient alone belongs into a step of your own optimizer class."
            )

    def _others_hook(self) -> bool:
        """Whether somebody else has hooks around the optimizer's step."""
        return (
            len(self.optimizer._optimizer_step_pre_hooks) > 1
            or len(self.optimizer._optimizer_step_post_hooks) > 1
            or bool(OPTIMIZERS._global_optimizer_pre_hooks)
            or bool(OPTIMIZERS._global_optimizer_post_hooks)
        )

    def _after_step(self, *_: Any) -> None:
        """The first of the hooks after the optimizer's step."""
        self._after_prints = self._fingerprints() if self._others_hook() else None

    def _refuse_hooks_afterwards(self) -> None:
        if self._after_prints is not None and self._after_prints.changed(self._tensors()):
            raise PrivacyError(
                "a hook after optimizer.step has changed the model. If the change is public, make "
                "it after private.step, within `with private.public_change():`."
            )

    def _last_of_the_hooks(self) -> None:
        """Ours runs last before the step and first after it, so that it sees what others do."""
        before, after = self._handles[0].id, self._handles[1].id
        hooks: Any = self.optimizer
        hooks._optimizer_step_pre_hooks.move_to_end(before)
        hooks._optimizer_step_post_hooks.move_to_end(after, last=False)

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
            "step": self.steps_taken,
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
        self.id = state["id"]
        before, self.ledger = self.ledger, Ledger.from_json(state["ledger"])
        self.ledger.include_notes(before)
        for entry in before.releases:  # the records were read, and released of, once more
            if entry not in self.ledger.releases:
                self.ledger.record(**dataclasses.asdict(entry))
        self.steps_taken, self._scale = state["step"], state["scale"]
        self.plan = dataclasses.replace(self.plan, steps=state["planned_steps"])
        self.loader.load_state_dict(state["sampler"])
        if isinstance(self._noise, SeededGenerator):
            self._noise.load_state_dict(state["noise"])
        if self._adaptive:
            self._total.clipping = self._adaptive.rule(self._scale)
        self._prints = None
        self._enter()
        self.charge_lost(released[self.id], "this state")

    def charge_lost(self, spent: int, place: object) -> None:
        """Counts what `place` does not know of the `spent` steps, unless it is repeated by a seed.

        Wherever those were written down, they are: this adds to the ledger alone.
        """
        lost = spent - self.ledger.steps
        if lost > 0 and self.ledger.secure:
            self.ledger.record(**self.plan.event(), steps=self._skipped(lost))
            self.ledger.note_warning(f"{lost} steps ran after {SAVED} and count as spent.")
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
            f"Private(step {self.steps_taken} of {plan.steps}, noise_multiplier="
            f"{plan.noise_multiplier:.4g}, sampling={plan.sampling.name} at rate "
            f"{plan.sampling_rate:.4g}, clipping={self.clipping!r}{secure})"
        )


def as_real(values: Tensor) -> Tensor:
    """A view of complex numbers as pairs of real ones: noise goes to both."""
    return torch.view_as_real(values) if values.is_complex() else values
