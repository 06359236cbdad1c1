"""Trains a run from a recipe: data, private training, evaluation, files.

    run = train(load_recipe("fashion-mnist-cnn"), "runs/first")
    print(run.summary()["accuracy"], run.summary()["epsilon"])

Guarantees:

- Training releases what `psac.make_private` releases.  The trainer adds evaluations: on public
  records they are marked `"public": true`.  Everything else that it writes about the data is marked
  `"private": false`.
- Every `PrivacyWarning` is written to the folder and noted in the ledger.
- A checkpoint is written before the first step, after every epoch and at least every minute, and
  the run goes on from it by `resume=True`.  With a seed, it then ends equal, bit by bit, to a run
  that was never interrupted, metrics included save for times; without one, steps that were lost
  with their process count as spent (`psac.checkpoint.saving`).
- One process trains in a folder at a time; a second one is refused.  Processes that share a group
  of `torch.distributed` train one run together, and worker 0 writes (workers.py).
- Ctrl-C stops it after the current step, saves, and raises `Interrupted`.
- Every `epsilon` is computed from the ledger by the accountant; lines for which that would take too
  long have none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from psac.accounting import PrivacyWarning
from psac.accounting.pricing import LARGE_EPSILON, quietly, with_warning
from psac.app.training.assembly import (
    autocast,
    device_of,
    follow_schedule,
    model_of,
    private_of,
    seed_of_training,
    seeded,
)
from psac.app.training.clock import Clock
from psac.app.training.environment import environment
from psac.app.training.evaluation import Evaluation, SeveralLabels, evaluate, loss_of
from psac.app.training.interruption import Interrupted, Interruption, LastingInterrupt
from psac.app.training.metrics import MetricsLog
from psac.app.training.observer import Observer, Silent
from psac.app.training.price import price
from psac.app.training.privacy_warnings import SEE_OWNER, PrivacyWarnings
from psac.app.training.recipe import Recipe
from psac.app.training.results import summary_of, write_mistakes, write_model
from psac.app.training.run import Run, write_json
from psac.app.training.splits import Splits, load_splits
from psac.app.training.step_statistics import StepStatistics
from psac.app.training.workers import folder_of
from psac.checkpoint.saving import load_checkpoint, save_checkpoint
from psac.clipping.rules import AdaptivePSAC
from psac.distributed import Group, join

STEP_LINES = 400
STEP_LINES_WITH_EPSILON = 20
SAVE_SECONDS = 60.0
SAVE, STOP = 1, 2  # what is due after a step


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Trains a recipe and returns the run in `folder`.

    Args:
        recipe: The settings of the run.
        folder: The folder of the run, which must not hold one unless `resume` is true.
        resume: Whether to continue the run in the folder.  A finished run is returned unchanged.
        observer: Gets every line of the log as it is written.

    Raises:
        RunError: The folder holds a run, or no run to resume, or one with another recipe.
        Interrupted: Training was stopped by a signal, and saved.
    """
    group = join()
    with folder_of(Run(folder), group) as run, group.together("psac.training.train"):
        train_in(run, recipe, group, resume=resume, observer=observer or Silent())
    return Run(folder)


def train_in(run: Run, recipe: Recipe, group: Group, *, resume: bool, observer: Observer) -> None:
    """Trains in the folder of this worker."""
    if run.started:
        with run.locked():  # refuses a folder that is in use before any data are read
            pass
    run.refuse(recipe, resume=resume)
    if run.finished:
        return
    run.refuse_lost_checkpoint()
    run.refuse_changed_model(recipe)
    device = device_of(recipe)
    with PrivacyWarnings() as privacy_warnings:
        with LastingInterrupt():
            splits = splits_of(recipe, run, group).to(device)
            trainer = Trainer(recipe, run, splits, observer, privacy_warnings)
        try:
            with run.locked(), seeded(seed_of_training(recipe), device):
                run.refuse(
                    recipe, resume=resume
                )  # another process may have started a run meanwhile
                run.refuse_lost_checkpoint()
                run.enter(recipe, environment(seed=recipe.seed, device=device), splits.released)
                trainer.train()
        finally:
            trainer.private.close()


def splits_of(recipe: Recipe, run: Run, group: Group) -> Splits:
    """The records; what is released of them while they are read, worker 0 releases."""
    splits = load_splits(recipe, run.released()) if group.rank == 0 else None
    released = group.of_first(lambda: None if splits is None else splits.released)
    return load_splits(recipe, released) if splits is None else splits


class Trainer:
    """One session of a run, from its checkpoint to its end."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        splits: Splits,
        observer: Observer,
        privacy_warnings: PrivacyWarnings,
    ) -> None:
        self.recipe, self.run, self.splits, self.observer = recipe, run, splits, observer
        self.privacy_warnings = privacy_warnings
        self.model = model_of(recipe, splits, run.model_source(recipe.model))
        self.private = private_of(recipe, splits, self.model)
        self.log = MetricsLog(run.metrics_path)
        self.clock = Clock()
        self._evaluated: Evaluation | SeveralLabels | None = None  # the model as it is
        self._prices: dict[int, float] = {}  # epsilon by the steps in the ledger
        every = max(1, self.private.planned_steps // STEP_LINES)
        lines = self.private.planned_steps // every
        self._logged_every = every
        self._priced_every = every * -(-lines // STEP_LINES_WITH_EPSILON)

    def train(self) -> None:
        self._start()
        with Interruption() as interruption:
            while self._steps_left() > 0:
                self._train_one_epoch(interruption)
                self._evaluate()
                self._save()
                if self._is_due(interruption) == STOP:
                    raise Interrupted(self.run.folder, interruption.number)
        self._finish()

    def _steps_left(self) -> int:
        return self.private.planned_steps - self.private.ledger.steps

    # Starting
    def _start(self) -> None:
        resumed = self.run.checkpoint_path.exists()
        if resumed:
            self._resume()
        facts = self._facts()
        for sentence in (*self.splits.unsafe, *doubts(facts)):
            self.private.ledger.note_warning(sentence)
        self._note_warnings()
        # Also when resumed, so that what load_checkpoint charged is on disk before the first step.
        self._save()
        follow_schedule(self.recipe, self.private)
        self.log.rewind(self.private.steps_taken)
        self.observer.started(self.log.write("start", **facts, resumed=resumed))

    def _resume(self) -> None:
        """Loads the checkpoint, and charges for later steps that other files record."""
        path, private = self.run.checkpoint_path, self.private
        in_ledger = self.run.steps_in_ledger()
        extra = load_checkpoint(path, private)
        self.clock.add(extra["seconds"])
        if self.run.ledger_path.exists():
            private.ledger.include_notes(self.run.ledger())
        if not private.ledger.secure:  # with a seed, it repeats the lost steps exactly
            return
        logged = max((line.get("step", 0) for line in self.run.metrics()), default=0)
        by_journal = private.ledger.steps - extra.get("spent", private.ledger.steps)
        lost = max(in_ledger - private.ledger.steps, logged - private.steps_taken - by_journal)
        if lost > 0:
            private.charge(lost)
            private.ledger.note_warning(
                f"{lost} steps are recorded only in the metrics of the run."
            )
            warnings.warn(
                f"ledger and metrics of {self.run.folder} record {lost} more steps than "
                f"{path.name} and its journal. They count as spent. If steps ran that were not "
                "recorded at all, more was spent than the ledger says.",
                PrivacyWarning,
                stacklevel=2,
            )

    def _facts(self) -> dict[str, Any]:
        """The public constants of the run."""
        private, plan = self.private, self.private.plan
        return {
            "step": private.steps_taken,
            "planned_steps": plan.steps,
            "num_records": plan.num_records,
            "expected_batch_size": plan.expected_batch_size,
            "noise_multiplier": plan.noise_multiplier,
            "delta": plan.delta,
            "planned_epsilon": self._planned_epsilon(),
            "sampling": plan.sampling.name,
            "relation": plan.sampling.relation,
            "rule": repr(private.clipping),
            "secure": private.ledger.secure,
        }

    def _planned_epsilon(self) -> float:
        """The planned epsilon; warns of a large one unless the calibration has done so."""
        with quietly():  # make_private has warned of a large delta
            epsilon = self.private.planned_epsilon()
        return epsilon if self.recipe.epsilon is not None else with_warning(epsilon)

    def _note_warnings(self) -> None:
        """Writes new warnings to the log, and notes in the ledger that there were some."""
        private = self.private
        for text in self.privacy_warnings.take():
            self.log.warn(text, step=private.steps_taken)
        if self.log.warnings and not private.ledger.warnings:
            private.ledger.note_warning(SEE_OWNER)

    # Training
    def _train_one_epoch(self, interruption: Interruption) -> None:
        private, statistics, self._evaluated = self.private, StepStatistics(), None
        end_of_epoch = private.plan.steps_of_epoch_with(private.steps_taken).stop
        last = min(end_of_epoch, private.steps_taken + self._steps_left())
        for batch in private.loader:
            step, scale = private.steps_taken, self._scale()
            with autocast(self.recipe, self.splits.training.labels.device):
                is_released = private.step(loss_of, batch)
            assert private.sensitive is not None
            self._note_warnings()
            self.clock.count(len(private.sensitive.losses) * private.workers.size)
            if (step + 1) % self._logged_every == 0:
                statistics.add(private.sensitive)
            if not is_released:  # the logical batch is not complete
                continue
            if statistics.samples:
                self._log_step(statistics, scale)
                statistics = StepStatistics()
            if private.steps_taken < last:  # the last step is saved after the evaluation
                due = self._is_due(interruption)
                if due:
                    self._save()
                if due == STOP:
                    raise Interrupted(self.run.folder, interruption.number)

    def _is_due(self, interruption: Interruption) -> int:
        """SAVE or STOP, if that is due on a worker; 0 otherwise."""
        is_late = self.clock.seconds_since_save() >= SAVE_SECONDS
        own = STOP if interruption.requested else SAVE if is_late else 0
        return self.private.workers.most(own)

    def _scale(self) -> float | None:
        """The scale that the next batch is clipped with; None if the rule has none."""
        clipping = self.private.clipping
        if isinstance(clipping, AdaptivePSAC):
            return self.private.scale
        return getattr(clipping, "scale", None)

    def _log_step(self, statistics: StepStatistics, scale: float | None) -> None:
        speed = self.clock.samples_per_second()  # before pricing, which may take a second
        priced = self.private.steps_taken % self._priced_every == 0
        line = self.log.write(
            "step",
            **self._place(),
            **({"epsilon": self._epsilon()} if priced else {}),
            **statistics.to_json(),
            seconds=self.clock.seconds(),
            samples_per_second=speed,
            scale=scale,
        )
        self.clock.new_lap()
        self.observer.stepped(line)

    def _epsilon(self) -> float:
        spent, delta = self.private.ledger.steps, self.private.plan.delta
        assert delta is not None  # assembly.py sets it
        if spent not in self._prices:
            self._prices[spent] = price(self.private.ledger, delta)
        return self._prices[spent]

    def _place(self) -> dict[str, Any]:
        step = self.private.steps_taken
        return {"step": step, "epoch": round(step * self.private.sampling_rate, 6)}

    # Evaluation and saving
    def _evaluate(self) -> None:
        result = self._evaluation()
        line = self.log.write(
            "evaluation",
            **self._place(),
            split=self.splits.split,
            accuracy=result.accuracy,
            loss=result.loss,
            epsilon=self._epsilon(),
            **self.splits.mark(),
        )
        self.clock.new_lap()
        self.observer.evaluated(line)

    def _evaluation(self) -> Evaluation | SeveralLabels:
        if self._evaluated is None:
            self._evaluated = self.private.workers.of_first(
                lambda: evaluate(
                    self.model,
                    self.splits.evaluation,
                    classes=len(self.splits.classes),
                    batch_size=self.recipe.physical_batch_size,
                )
            )
        return self._evaluated

    def _save(self) -> None:
        write_json(self.run.ledger_path, self.private.ledger.to_json())
        extra = {
            "seconds": self.clock.public_seconds(),
            "spent": self.private.ledger.steps,
        }
        save_checkpoint(self.run.checkpoint_path, self.private, extra=extra)
        self.clock.saved()

    # Finishing
    def _finish(self) -> None:
        result, seconds = self._evaluation(), self.clock.public_seconds()
        summary = summary_of(
            self.recipe, self.splits, self.private, result, self._epsilon(), seconds
        )
        write_model(self.run, self.recipe, self.splits, self.model, summary)
        write_mistakes(self.run, self.splits, result)
        line = self.log.write(
            "end",
            **self._place(),
            seconds=seconds,
            epsilon=summary["epsilon"],
            accuracy=summary["accuracy"],
            **self.splits.mark(),
        )
        write_json(self.run.summary_path, summary)  # written last, as it marks the run as finished
        self.observer.ended(line)


def doubts(facts: Mapping[str, Any]) -> list[str]:
    """What psac warns of when it prices such a plan, as sentences that may be published."""
    sentences = []
    if facts["planned_epsilon"] > LARGE_EPSILON:
        sentences.append(f"Epsilon is above {LARGE_EPSILON:g}: the guarantee means very little.")
    if facts["delta"] >= 1 / facts["num_records"]:
        sentences.append(
            "Delta is not below 1 / records: a mechanism that publishes a random record would "
            "satisfy it."
        )
    return sentences
