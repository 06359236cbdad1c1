"""A whole run from a recipe: data, private training, evaluation, files.

    run = train(load_recipe("fashion-mnist-cnn"), "runs/first")
    print(run.summary()["accuracy"], run.summary()["epsilon"])

Guarantees:

- What is released is what `psac.make_private` releases; the trainer adds evaluations, those on
  public records marked `"public": true`, and marks all else that it writes of the data with
  `"private": false`.
- Every `PrivacyWarning` is written into the folder; from then on the ledger says so, too.
- A checkpoint is written before the first step, after every epoch and at least every minute, and
  the run goes on from it by `resume=True`.  With a seed, it then ends equal, bit by bit, to a run
  that was never interrupted, metrics included save for times; without one, steps that were lost
  with their process count as spent (`psac.checkpoint.saving`).
- One process trains in a folder at a time; a second one is refused.
- Ctrl-C ends it after the step at hand, saves, and raises `Interrupted`.
- Every `epsilon` that is written was computed by the accountant from the ledger; lines where that
  would take too long have none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Mapping
from typing import Any

from psac.accounting import Entry, PrivacyWarning, pricing
from psac.accounting.pricing import LARGE_EPSILON, quietly
from psac.app.training.assembly import (
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
from psac.app.training.interruption import Interrupted, Interruption
from psac.app.training.metrics import MetricsLog
from psac.app.training.observer import Observer, Silent
from psac.app.training.recipe import Recipe
from psac.app.training.results import summary_of, write_mistakes, write_model
from psac.app.training.run import Run, write_json
from psac.app.training.splits import Splits, load_splits
from psac.app.training.statistics import StepStatistics
from psac.app.training.warned import Heard
from psac.checkpoint.saving import load_checkpoint, save_checkpoint
from psac.clipping.rules import AdaptivePSAC

STEP_LINES = 400
STEP_LINES_WITH_EPSILON = 20
SAVE_SECONDS = 60.0
WARNED = "psac warned about privacy during this run; the owner's page says of what."


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Trains as the recipe says and returns the run in `folder`, which is new unless resumed.

    A finished run that is resumed is returned as it is.
    """
    run = Run(folder)
    if run.started:
        with run.locked():  # a folder that is in use is refused before any data are read
            pass
    run.refuse(recipe, resume=resume)
    if run.finished:
        return run
    run.refuse_lost_checkpoint()
    run.refuse_changed_model(recipe)
    device = device_of(recipe)
    with Heard() as heard:
        splits = load_splits(recipe, run.released()).to(device)
        trainer = Trainer(recipe, run, splits, observer or Silent(), heard)
        try:
            with run.locked(), seeded(seed_of_training(recipe), device):
                run.refuse(recipe, resume=resume)  # another process may have been here meanwhile
                run.refuse_lost_checkpoint()
                run.enter(recipe, environment(seed=recipe.seed, device=device), splits.released)
                trainer.train()
        finally:
            trainer.private.close()
    return run


class Trainer:
    """One session of a run, from where its checkpoint is to the end."""

    def __init__(
        self, recipe: Recipe, run: Run, splits: Splits, observer: Observer, heard: Heard
    ) -> None:
        self.recipe, self.run, self.splits, self.observer = recipe, run, splits, observer
        self.heard = heard
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
                if interruption.requested:
                    raise Interrupted(self.run.folder, interruption.number)
        self._finish()

    def _steps_left(self) -> int:
        return self.private.planned_steps - self.private.ledger.steps

    # Beginning
    def _start(self) -> None:
        resumed = self.run.checkpoint_path.exists()
        if resumed:
            self._go_on()
        facts = self._facts()
        for sentence in (*self.splits.unsafe, *doubts(facts)):
            self.private.ledger.note_warning(sentence)
        self._note_warnings()
        # Also when resumed: what load_checkpoint has charged is on disk before anything is added.
        self._save()
        follow_schedule(self.recipe, self.private)
        self.log.rewind(self.private.steps_taken)
        self.observer.started(self.log.write("start", **facts, resumed=resumed))

    def _go_on(self) -> None:
        """From the checkpoint.  What the other files say was spent since then is spent."""
        path, private = self.run.checkpoint_path, self.private
        in_ledger = self.run.steps_in_ledger()
        extra = load_checkpoint(path, private)
        self.clock.add(extra["seconds"])
        if self.run.ledger_path.exists():
            private.ledger.include_notes(self.run.ledger())
        if not private.ledger.secure:  # it repeats what was lost, which costs nothing
            return
        told = max((line.get("step", 0) for line in self.run.metrics()), default=0)
        by_journal = private.ledger.steps - extra.get("spent", private.ledger.steps)
        lost = max(in_ledger - private.ledger.steps, told - private.steps_taken - by_journal)
        if lost > 0:
            private.charge(lost)
            private.ledger.note_warning(f"{lost} steps were found in the metrics of the run alone.")
            warnings.warn(
                f"ledger and metrics of {self.run.folder} tell of {lost} more steps than "
                f"{path.name} and its journal: these count as spent. If others ran that were not "
                "written down, more was spent than the ledger says.",
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
        """The one place that warns of a large epsilon or delta, unless the calibration has."""
        warned = self.recipe.epsilon is not None
        with quietly() if warned else contextlib.nullcontext():
            return self.private.planned_epsilon()

    def _note_warnings(self) -> None:
        """What was warned of goes into the folder, and the ledger says that there was something."""
        private = self.private
        for text in self.heard.take():
            self.log.warn(text, step=private.steps_taken)
        if self.log.warnings and not private.ledger.warnings:
            private.ledger.note_warning(WARNED)

    # Training
    def _train_one_epoch(self, interruption: Interruption) -> None:
        private, statistics, self._evaluated = self.private, StepStatistics(), None
        end_of_epoch = private.plan.steps_of_epoch_with(private.steps_taken).stop
        last = min(end_of_epoch, private.steps_taken + self._steps_left())
        for batch in private.loader:
            step, scale = private.steps_taken, self._scale()
            is_released = private.step(loss_of, batch)
            assert private.sensitive is not None
            self._note_warnings()
            self.clock.count(len(private.sensitive.losses))
            if (step + 1) % self._logged_every == 0:
                statistics.add(private.sensitive)
            if not is_released:  # more of this logical batch is to come
                continue
            if statistics.samples:
                self._log_step(statistics, scale)
                statistics = StepStatistics()
            if private.steps_taken < last:  # the last one is saved when it is evaluated
                if interruption.requested or self.clock.seconds_since_save() >= SAVE_SECONDS:
                    self._save()
                if interruption.requested:
                    raise Interrupted(self.run.folder, interruption.number)

    def _scale(self) -> float | None:
        """The one that the next batch is clipped with, if the rule has any."""
        clipping = self.private.clipping
        if isinstance(clipping, AdaptivePSAC):
            return self.private.scale
        return getattr(clipping, "scale", None)

    def _log_step(self, statistics: StepStatistics, scale: float | None) -> None:
        speed = self.clock.samples_per_second()  # before epsilon, which may take a second
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
        spent = self.private.ledger.steps
        if spent not in self._prices:
            ledger = self.private.ledger
            self._prices[spent] = _price(ledger.entries, self.private.plan.delta)
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
            self._evaluated = evaluate(
                self.model,
                self.splits.evaluation,
                classes=len(self.splits.classes),
                batch_size=self.recipe.physical_batch_size,
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

    # The end
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
        write_json(self.run.summary_path, summary)  # last: from here on the run is finished
        self.observer.ended(line)


@functools.lru_cache(maxsize=256)  # runs that differ in their seed have equal ledgers
def _price(entries: tuple[Entry, ...], delta: float) -> float:
    return pricing.price(entries, delta, "pld")  # without warnings: the plan was warned of


def doubts(facts: Mapping[str, Any]) -> list[str]:
    """What psac warns of when it prices such a plan, in words that may be published."""
    said = []
    if facts["planned_epsilon"] > LARGE_EPSILON:
        said.append(f"Epsilon is above {LARGE_EPSILON:g}: the guarantee says next to nothing.")
    if facts["delta"] >= 1 / facts["num_records"]:
        said.append(
            "Delta is not below 1 / records: a mechanism that publishes a random record would pass."
        )
    return said
