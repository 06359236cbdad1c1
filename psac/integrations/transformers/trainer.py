"""transformers.Trainer, whose training is private.

    args = TrainingArguments("run", per_device_train_batch_size=32, gradient_accumulation_steps=8)
    trainer = PrivateTrainer(model, args, train_dataset=data, processing_class=tokenizer,
                             privacy=PrivacyArguments(epsilon=3.0, delta=1e-6))
    trainer.train()

An update is one logical step of a private run (`psac.make_private`), which is made when training
begins.  What becomes of the settings of a Trainer:

- `per_device_train_batch_size * gradient_accumulation_steps` is the EXPECTED batch size; the first
  factor is the largest physical batch, which is memory only.
- Updates are as many as in a Trainer: `max_steps`, or `num_train_epochs` of as many as the data
  set has batches (`dataloader_drop_last` decides about the last).  All are priced, and the noise
  is calibrated to them.  Schedules of learning rates count them, and empty draws count.
- Records are drawn by Poisson sampling; `data_collator`, workers and choice of columns are kept.
- The loss of a record is `compute_loss` on that record alone: a mean over its own tokens.  A sum
  over all tokens of the batch divided by their number, as in Trainer, would not be private.
- Logs hold epsilon, and neither losses nor gradient norms nor counts of private records.
- Checkpoints hold `privacy.json` (saving.py), and no state of random generators unless seeded.

Guarantee: (epsilon, delta)-differential privacy of the weights in all checkpoints, for the relation
of the sampling, as `trainer.private.ledger` says.  What contradicts it raises `PrivacyError`
(refusals.py).  Left to others: callbacks of your own, evaluations on private records, and
`compute_metrics`.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from psac.errors import PrivacyError
from psac.integrations.transformers import saving
from psac.integrations.transformers.arguments import PrivacyArguments
from psac.integrations.transformers.card import section, written_into
from psac.integrations.transformers.refusals import (
    refuse_callbacks,
    refuse_loss_of_library,
    refuse_settings,
    refuse_training_records,
)
from psac.integrations.transformers.steps import Stepped, Steps, plain
from psac.loading.dataset import LOADER_SETTINGS
from psac.private import Private, make_private

OF_PRIVATE_RECORDS = ("loss", "train_loss")
SHOWN = "Training losses were shown: they are exact and not covered by epsilon."


class PrivateTrainer(Trainer):
    """A `transformers.Trainer` that trains privately.

    Attributes:
        privacy: The privacy settings.
        private: The private run, from the beginning of `train` on; `private.epsilon()` and
            `private.ledger` say what was spent.
    """

    private: Private | None = None

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *others: Any,
        privacy: PrivacyArguments,
        **settings: Any,
    ) -> None:
        """A trainer; nothing is trained or spent yet.

        Args:
            model: As for `Trainer`.
            args: As for `Trainer`. They are copied.
            *others: As for `Trainer`.
            privacy: The budget, and how it is kept.
            **settings: As for `Trainer`.

        Raises:
            PrivacyError: A setting cannot be used in a private run; the message says why.
        """
        args = TrainingArguments("tmp_trainer") if args is None else args
        refuse_settings(args, privacy)
        refuse_loss_of_library(type(self), PrivateTrainer, Trainer)
        self.privacy, self._physical_batch_size = privacy, args.per_device_train_batch_size
        self._resumed_from: str | None = None
        super().__init__(model, logical(args), *others, **settings)
        refuse_callbacks(self.callback_handler.callbacks, privacy)
        refuse_training_records(self.eval_dataset, self.train_dataset, privacy)

    # Training
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains as `Trainer.train` does; a resumed run goes on with its ledger.

        Args:
            resume_from_checkpoint: A folder, or True for the last one.
            trial: Must be None: trials cost privacy.
            ignore_keys_for_eval: As for `Trainer.train`.

        Returns:
            As `Trainer.train`; `training_loss` is NaN unless it is shown.
        """
        if trial is not None:
            refuse_search()
        refuse_callbacks(self.callback_handler.callbacks, self.privacy)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir))
            if resume_from_checkpoint is None:
                raise ValueError(f"there is no checkpoint in {self.args.output_dir}.")
        self._resumed_from = resume_from_checkpoint or None
        try:
            output = super().train(resume_from_checkpoint, None, ignore_keys_for_eval)
        finally:
            if self.private is not None:
                self.private.close()
        if self.privacy.show_training_loss:
            return output
        return output._replace(training_loss=math.nan)

    def get_train_dataloader(self) -> DataLoader:
        """The logical steps of the run that is made here; `train` asks for it first."""
        usual = super().get_train_dataloader()
        records: Any = usual.dataset
        per_epoch, rest = divmod(len(records), self._train_batch_size)
        steps = Steps(max(1, per_epoch + (rest > 0 and not self.args.dataloader_drop_last)))
        loader = steps.loader()
        *_, num_steps = self.set_initial_training_values(self.args, loader)
        self.private = self._private_run(usual, num_steps)
        steps.follow(self.private)
        if self._resumed_from is not None:
            saving.load(self._resumed_from, self.private)
        return loader

    def _private_run(self, usual: DataLoader, num_steps: int) -> Private:
        optimizer, privacy = plain(self.create_optimizer()), self.privacy
        model: Any = self.model
        self.optimizer = Stepped(optimizer)
        settings = {name: getattr(usual, name) for name in LOADER_SETTINGS if name != "generator"}
        private = make_private(
            model,
            optimizer,
            DataLoader(usual.dataset, **settings),
            batch_size=self._train_batch_size,
            physical_batch_size=self._physical_batch_size,
            steps=num_steps,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            noise_multiplier=privacy.noise_multiplier,
            clipping=privacy.clipping,
            sampling=privacy.sampling,
            lengths=privacy.lengths,
            seed=privacy.seed,
        )
        if privacy.show_training_loss:
            private.ledger.note_warning(SHOWN)
        return private

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, None]:
        """One logical step, or none if the budget is spent; tokens of a batch are not counted."""
        private = self._run()
        if private.ledger.steps >= private.planned_steps:
            self.control.should_training_stop = True
            return [], None
        return [next(epoch_iterator)], None

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """One logical step, released; returns zero, or the mean loss if it is to be shown."""
        private, losses = self._run(), []
        model.train()
        for batch in inputs:
            private.step(
                functools.partial(loss_of_record, self.compute_loss), self._prepare_inputs(batch)
            )
            assert private.sensitive is not None
            losses.append(private.sensitive.losses)
        if private.ledger.steps >= private.planned_steps:
            self.control.should_training_stop = True
        if not (losses and self.privacy.show_training_loss):
            return torch.zeros((), device=self.args.device)
        return torch.cat(losses).mean().to(self.args.device)

    def _run(self) -> Private:
        if self.private is None:
            raise PrivacyError("there is no private run yet: call train().")
        return self.private

    # What is written down
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs epsilon; what was measured on private records is left out."""
        logs.pop("grad_norm", None)
        if not self.privacy.show_training_loss:
            for name in OF_PRIVATE_RECORDS:
                logs.pop(name, None)
        if self.private is not None and self.private.plan.delta is not None:
            logs["epsilon"] = self.private.epsilon() if self.private.ledger.secure else math.inf
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: their number follows from the records that were drawn."""
        return 0

    def num_examples(self, dataloader: DataLoader) -> int:
        """Records of the data set."""
        is_training: Any = isinstance(dataloader.dataset, Steps)
        return len(self.train_dataset) if is_training else super().num_examples(dataloader)  # type: ignore[arg-type]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, and the state of the private run beside it."""
        model: Any = self.model
        with saving.configurations_kept(model):
            super().save_model(output_dir, _internal_call)
        if self.private is not None and self.args.should_save:
            saving.save(output_dir or str(self.args.output_dir), self.private)

    def _save_rng_state(self, output_dir: str) -> None:
        """How far a generator has advanced would tell how many records were drawn."""
        if self.privacy.seed is not None:
            super()._save_rng_state(output_dir)

    def create_model_card(self, *settings: Any, **named: Any) -> None:
        """The model card of a Trainer, with what the ledger says about privacy."""
        super().create_model_card(*settings, **named)
        if self.private is not None and self.is_world_process_zero():
            written_into(str(self.args.output_dir), section(self.private))

    def hyperparameter_search(self, *settings: Any, **named: Any) -> Any:
        """Raises `PrivacyError`: each trial would train on the same records."""
        refuse_search()


def logical(args: TrainingArguments) -> TrainingArguments:
    """A copy in which an update has one batch, the logical one."""
    args = copy.copy(args)
    args.per_device_train_batch_size *= args.gradient_accumulation_steps
    args.gradient_accumulation_steps = 1
    args.max_grad_norm = 0.0
    return args


def loss_of_record(compute_loss: Any, model: nn.Module, /, **inputs: Any) -> Tensor:
    return compute_loss(model, inputs)


def refuse_search() -> None:
    raise PrivacyError(
        "a search trains several times on the same records, and each trial costs privacy. Tune on "
        "public records, or choose a number of trials at random and price them by "
        "psac.tuned_epsilon."
    )
