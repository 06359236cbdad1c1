"""The settings of privacy that a `PrivateTrainer` has beside its TrainingArguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psac.private.run import Clipping
from psac.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class PrivacyArguments:
    """What `psac.make_private` takes, and two questions that only you can answer.

    The expected batch size, its physical parts and the number of steps follow from the
    TrainingArguments, see `PrivateTrainer`.

    Attributes:
        epsilon: Budget that the noise is calibrated to.
        delta: Probability that the guarantee fails: far below one over the number of records.
        noise_multiplier: Standard deviation of the noise over the bound, in place of `epsilon`.
        clipping: A clipping rule, or a mapping from patterns of parameter names to rules. The
            default is `psac.PSAC()`.
        sampling: How batches are drawn. The default is `psac.Poisson()`.
        lengths: Public lengths that records are padded to, each to the smallest that holds it.
        seed: Makes the run repeatable, and NOT private.
        public_evaluation: Says that the records of `eval_dataset` are public, or protected by
            nobody. Early stopping, the choice of the best checkpoint and schedules that follow an
            evaluation need it, because they release what they measure.
        show_training_loss: Puts the loss on private records into the logs, which is exact and NOT
            private: keep logs, checkpoints and model cards with the data. The ledger says so.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    clipping: Clipping | None = None
    sampling: Sampling | None = None
    lengths: Sequence[int] | None = None
    seed: int | None = None
    public_evaluation: bool = False
    show_training_loss: bool = False
