"""One private run: Algorithm 1 of DP-PSAC is `Private.step`, ended by `Private.release`.

    draw         `loader` draws a batch by Poisson sampling (psac/loading, psac/sampling.py)
    losses       the function runs for each record on its own (psac/gradients)
    norms        of each record's gradient, over all parameters of a group
    weights      the clipping rule's, held to weight * norm <= bound (psac/clipping)
    sums         of weight * gradient
    ledger       the step is written down, before anything is handed on (account.py)
    noise        once per logical step, of the size that the bound says (psac/noise)
    optimizer    steps on the noisy sum over the EXPECTED batch size (guard.py)

Guarantees:

- (epsilon, delta)-differential privacy of all that the optimizer sees, for the relation that the
  sampling states, as the ledger says.
- No record sees another: `step` calls the function under `torch.vmap`, or one record at a time.
- What was released of the records before, while `psac.data` read them, is in the ledger from the
  beginning, and noise that is calibrated leaves room for it.
- Noise is added once per logical step, whatever the physical batches, and on an empty draw too.
- Each record drawn enters the sum once: another batch than the one that the loader handed out, a
  batch that was left out or altered, a backward or an optimizer step of the user's own, parameters
  and buffers that something other than the optimizer has changed raise, and nothing is released.
- Model and optimizer stay the user's own objects, and `close` gives them back without a trace.
- Of several workers all take the same steps: the sum is that of all of them, and they have the same
  noise, ledger and parameters (psac/distributed).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from psac.accounting import Ledger
from psac.checks import positive
from psac.clipping.rules import AdaptivePSAC, ClippingRule
from psac.distributed import Group, shards_of
from psac.distributed.sharded import is_split
from psac.errors import PrivacyError, warn
from psac.gradients import ClippedSum, Evaluator, Sensitive, trees
from psac.gradients.isolation.eligibility import trainable
from psac.gradients.isolation.generators import own_draws_of_torch, own_generators, own_numbers
from psac.gradients.isolation.probe import FIRST_STEPS, Probe
from psac.gradients.isolation.state import State
from psac.gradients.trees import LossFunction
from psac.loading.collation import refuse_padding_that_counts
from psac.loading.dataset import held_by
from psac.loading.loader import Loader
from psac.noise.gaussian import add_noise_
from psac.noise.generators import NoiseGenerator
from psac.plan import Plan
from psac.private import facts, resume
from psac.private.account import Account
from psac.private.guard import Guard
from psac.private.handed import Arrangements, Handed
from psac.private.scale import LearnedScale
from psac.sampling import Sampler

Clipping = ClippingRule | AdaptivePSAC | Mapping[str, ClippingRule]
NOBODY = Sensitive(losses=torch.zeros(0), norms=torch.zeros(0), weights=torch.zeros(0), way="")


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
            are NOT private. Of several workers, each has those of its own records.
        workers: The processes that train this run together. See `psac.distributed`.
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
        workers: Group,
    ) -> None:
        self.workers, self._generator = workers, generator
        self.model, self.optimizer, self.clipping = model, optimizer, clipping
        self.steps_taken = 0
        self.sensitive: Sensitive | None = None
        self.noise, self._chance = generator.spawn("noise"), generator.spawn("chance")
        self._scale = LearnedScale(clipping, plan) if isinstance(clipping, AdaptivePSAC) else None
        self.shards, self.parameters = shards_of(model, workers), trainable(model)
        if self.shards.is_split and lengths:
            raise ValueError(
                "lengths= gives workers different numbers of batches, but those of a model under "
                "fully_shard gather its parameters together for each. Leave one of them out."
            )
        with self.shards.gathered():
            self.evaluator, self._probe = Evaluator(model), Probe(model)
        rule = self._scale.rule() if self._scale else clipping
        self._sums = ClippedSum(self.evaluator, rule)  # type: ignore[arg-type]
        self.guard = Guard(model, optimizer, self.parameters)
        ledger = Ledger(secure=generator.secure) + released_before
        self.account = Account(plan, ledger, self.guard.trainable_modules())
        self.evaluator.outside.protect(*held_by(data))
        self.evaluator.on_warning = lambda sentence: self.ledger.note_warning(sentence)
        sampler = Sampler(
            plan.sampling, plan.num_records, plan.expected_batch_size, generator.spawn("sampling")
        )
        self.loader = Loader(
            self, self._hand_out, data, sampler, physical_batch_size, lengths, workers
        )
        self._handed: Handed | None = None  # the batch that awaits its step
        self._arrangements = Arrangements()
        self.evaluator.outside.beside = self._arrangements.classes
        self._has_failed = self._closed = False
        self._is_due = False  # a logical batch is in the sums, and must be released before the next
        self._state: State | None = None  # before the first of several physical batches
        self._has_told_of_unreached = False
        self._seed: int | None = None  # of numpy's and Python's numbers in this logical step
        self._torch_numbers = self._chance  # where those of torch come from in this logical step
        self.guard.attach(self)
        self.account.announce_earlier_runs(type(model).__name__)
        workers.follow(self)

    # Algorithm 1
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
        with self.workers.together("private.step"):
            handed, batch = self._accept(loss, batch), trees.of_plain_tensors(batch)
            with self.shards.gathered(), self.workers.silence():
                self._prepare(handed, loss)
                with self._own_randomness(batched):
                    self.sensitive = self._evaluate(handed, loss, batch, batched)
                self._complete(batched)
                if not handed.is_last:
                    # Physical batches start from one state: how many there are must not show in it.
                    assert self._state is not None
                    self._state.restore()
                    self.evaluator.outside.remember(loss)
            if handed.is_last:
                unreached = [] if handed.stands_in else self._sums.unreached()
                self.release()
                self._tell_of_unreached(unreached)
                self._leave(loss, batch)
                self._state = None
            else:
                self.guard.remember()
            return handed.is_last

    def _evaluate(self, handed: Handed, loss: LossFunction, batch: Any, batched: bool) -> Sensitive:
        """Losses, norms, weights, sums."""
        if handed.stands_in:
            self.evaluator(loss, batch, batched=batched)
            return NOBODY
        if handed.probe is not None:
            refuse_padding_that_counts(self.model, loss, batch, handed.probe)
        return self._sums.add(loss, batch, batched=batched)

    def release(self) -> None:
        """Ledger, noise, optimizer; for loaders, which call it on an empty draw."""
        with self.workers.together("the release of a step"):
            sums, self._is_due = self._sums.collect(), False
            counts = [self._scale.collect()] if self._scale else []
            self.workers.meet("the release of a step", lambda: facts.of_step(self))
            self._probe.forget()
            self.account.spend(1)
            self.workers.meet("the ledger")  # before anybody has the sum
            self._hand_on(self.shards.add_up(sums, counts), counts)

    def _hand_on(self, sums: dict[str, Tensor], counts: list[Tensor]) -> None:
        """Noise, optimizer."""
        self.loader.advance()
        self.steps_taken += 1
        for bound, names in self._groups():
            group = {name: sums[name] for name in names}
            for tensors, noise in self.shards.by_generator(group, self.noise, self.steps_taken):
                add_noise_(
                    [as_real(tensor) for tensor in tensors],
                    std=self._noise_over_bound() * bound,
                    generator=noise,
                    scale=1 / self.plan.expected_batch_size,
                )
        if self._scale:
            self._scale.release(self.steps_taken, counts[0], self.noise)
            self._sums.clipping = self._scale.rule()
        self.guard.step(sums)
        self.guard.remember()

    def _noise_over_bound(self) -> float:
        """Standard deviation of the noise on a group's sum, over the group's bound."""
        if self.noise_multiplier == 0:
            return 0.0
        if self._scale:
            return self._scale.noise_for_gradients()
        groups = len(self._sums.bounds)  # as many queries on one batch
        return self.noise_multiplier * math.sqrt(groups)

    def _groups(self) -> Iterator[tuple[float, list[str]]]:
        """Bounds, and the parameters that are clipped together by them."""
        groups = self._sums.groups
        for k, bound in enumerate(self._sums.bounds):
            yield bound, [name for name in self.parameters if groups.of([name]) == k]

    # Before and after the sums
    def _accept(self, loss: LossFunction, batch: Any) -> Handed:
        """The batch that awaits its step, if the step may be taken; raises otherwise."""
        handed = self._awaited()
        handed.refuse_other(batch, loss, self._arrangements)
        self.guard.refuse_changes()
        self._has_failed = True  # until the batch is in the sums
        return handed

    def _prepare(self, handed: Handed, loss: LossFunction) -> None:
        """What is remembered of before the function runs."""
        self.evaluator.is_suspicious = self._probe.has_changed(loss)
        if self._state is None and not handed.is_last:
            self._state = State({"model": self.model, "loss": loss})

    def _leave(self, loss: LossFunction, batch: Any) -> None:
        """A few records for the next step to compare; of a split model, in the first steps."""
        if self.shards.is_split and self.steps_taken > FIRST_STEPS:
            return  # secret steps are each worker's own, but all must gather the parameters
        with self.shards.gathered(), self.workers.silence():
            self._probe.leave(loss, batch)

    def _complete(self, batched: bool) -> None:
        """The batch is in the sums: it is done with."""
        assert self._handed is not None
        assert self.sensitive is not None
        if not self._handed.stands_in:
            self.ledger.note_way("batched" if batched else self.sensitive.way)
        if self._handed.is_last:
            self._seed, self._is_due = None, True
        self._has_failed, self._handed = False, None
        if self._scale:
            self._scale.count(self.sensitive.norms)

    def _tell_of_unreached(self, names: list[str]) -> None:
        """After the first step, names the parameters that learn nothing but noise."""
        is_first, self._has_told_of_unreached = not self._has_told_of_unreached, True
        if is_first and names:
            some = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            warn(
                f"the loss depends on {len(self.parameters) - len(names)} of "
                f"{len(self.parameters)} trainable parameters in the first step. Noise alone would "
                f"move the others: {some}. Is an adapter not active, or an output detached? Freeze "
                "what is not to be trained by requires_grad_(False) before make_private.",
                UserWarning,
            )

    def _awaited(self) -> Handed:
        self.refuse_closed()
        if self._handed is None:
            raise PrivacyError(
                "private.step was called without a batch to train on. Call it once for each "
                "batch of private.loader, inside the loop over private.loader."
            )
        if self._has_failed:
            raise PrivacyError(
                "the loss function has failed on this batch. Trying another function on it would "
                "let the records of the batch decide how they are trained on. Fix the function, "
                "and begin a new pass over private.loader."
            )
        return self._handed

    @contextlib.contextmanager
    def _own_randomness(self, batched: bool) -> Iterator[None]:
        """Dropout and the like draw from a secret stream, so that no place in a batch is known.

        A seed of the user's would fix which numbers the k-th record of a batch gets.  What numpy
        and Python draw is the same in each physical batch of a logical step: their number does not
        show in it, nor does that of workers.  Each worker draws torch's numbers from a stream of
        its own.  Records that are computed one at a time have numbers of their own (`OneByOne`).
        """
        is_secret = self.ledger.secure
        if self._seed is None:
            chance = self._chance if is_secret else self._chance.spawn(str(self.steps_taken))
            self._seed = int.from_bytes(chance.random_bytes(15), "big") >> 63
            self._torch_numbers = self.workers.own(chance)
        with own_numbers(self._seed):
            if not is_secret and self.workers.size == 1:
                yield
                return
            bits = int.from_bytes(self._torch_numbers.random_bytes(15), "big")
            with (own_generators if batched else own_draws_of_torch)(bits):
                yield

    # For the loader
    def start_pass(self) -> None:
        """What was not released is forgotten."""
        self.workers.meet("a pass over private.loader", lambda: facts.of_run(self))
        self.workers.renew(self._generator)
        self._handed, self._has_failed, self._state, self._seed = None, False, None, None
        self._is_due = False
        self._sums.discard()
        if self._scale:
            self._scale.forget()

    def _hand_out(
        self, batch: Any, *, last: bool, probe: Any = None, stands_in: bool = False
    ) -> None:
        """This batch awaits its step.  Called for others, it would train on them at this price."""
        self.refuse_left_out()
        if self._is_due:
            raise PrivacyError(
                "the last step was interrupted before it was released: the next one would count "
                "records twice. Begin a new pass over private.loader."
            )
        self.guard.begin()
        self._handed = Handed(batch, last, probe, stands_in=stands_in)

    def refuse_left_out(self) -> None:
        """Raises if the last batch was not given to `step`."""
        if self._handed is not None:
            raise PrivacyError(
                "the previous batch was not passed to private.step. Pass every batch of "
                "private.loader, whatever it contains: the choice of skipped batches would reveal "
                "information about their records."
            )

    def refuse_closed(self) -> None:
        if self._closed:
            raise PrivacyError("this private run is closed; call make_private for a new one.")

    # Life
    def begin_alike(self) -> None:
        """All workers have the model and the name of the run that worker 0 has."""
        self.account.id = self.workers.of_first(lambda: self.account.id)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        self.workers.spread([tensor for tensor in tensors if not is_split(tensor)])

    def close(self) -> None:
        """Gives model and optimizer back as they were; what was not released is forgotten."""
        self.guard.detach()
        self._closed = True
        self._sums.discard()

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

        It covers parameters and buffers of the model, tensors that the loss function reads from
        outside, such as the weights of a teacher, and how batches are arranged for `step`.
        """
        self.guard.refuse_changes()
        yield
        self.guard.forget()
        self._arrangements.forget()
        self._probe.forget()
        self.evaluator.outside.accept()

    # What was spent
    @property
    def plan(self) -> Plan:
        """The public constants of the run."""
        return self.account.plan

    @property
    def ledger(self) -> Ledger:
        """What was released, and at which price; public."""
        return self.account.ledger

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
        return self._scale.value if self._scale else 1.0

    def set_scale(self, scale: float) -> None:
        """As it was when a state was taken."""
        if self._scale:
            self._scale.value = scale
            self._sums.clipping = self._scale.rule()

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
        return self.ledger.epsilon(self.account.delta(delta))

    def planned_epsilon(self, delta: float | None = None) -> float:
        """The privacy loss when all planned steps are done; arguments as for `epsilon`."""
        return self.account.planned_epsilon(delta)

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
        return self.account.extend(epochs, steps)

    # Nothing lost
    def state_dict(self) -> dict[str, Any]:
        """Ledger, step, sampler, learned scale and, unless secure, the generator: plain JSON.

        Model and optimizer have a state_dict of their own; `psac.save_checkpoint` saves all.
        """
        return resume.state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken; only for a run that has spent nothing yet.

        What this process has released of the run since then counts as spent.
        """
        resume.restore(self, state)
        self.charge_lost(self.account.known(), "this state")

    def charge(self, steps: int) -> None:
        """Counts steps as spent that a lost process took after this state was saved.

        With balls in bins their bins are over as well, and so is an epoch that only the lost
        process knew: no epoch may meet a record twice.
        """
        self.account.spend(self._skipped(positive("steps", steps)))

    def charge_lost(self, spent: int, place: object) -> None:
        """Counts what `place` does not know of the `spent` steps, unless it is repeated by a seed.

        Wherever those were written down, they are: this adds to the ledger alone.
        """
        lost = self.account.lost(spent)
        if lost:
            self.account.charge_lost(lost, self._skipped(lost), place)
        self.account.settle()

    def _skipped(self, steps: int) -> int:
        """How many steps are over when so many are lost."""
        bins = self.plan.sampling.bins(self.plan.num_records, self.plan.expected_batch_size)
        return self.loader.skip(steps, bins) if bins > 1 else steps

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
