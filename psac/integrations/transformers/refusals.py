"""What transformers.Trainer does behind the user's back, and cannot do privately.

Each entry of SETTINGS says which setting, when it is refused, and why.  `dataloader_drop_last`,
`gradient_accumulation_steps`, `max_grad_norm` at its default, token counts of a batch and filters
of losses that are not finite need no refusal: `PrivateTrainer` says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from psac.errors import PrivacyError
from psac.integrations.transformers.arguments import PrivacyArguments
from psac.loading.dataset import held_by

Check = Callable[[Any], bool]
USUAL_GRAD_NORM = 1.0  # of TrainingArguments


def is_on(value: Any) -> bool:
    return bool(value)


def one_of(*values: str) -> Check:
    return lambda value: str(getattr(value, "value", value)) in values


def named_with(*parts: str) -> Check:
    return lambda value: any(part in str(getattr(value, "value", value)) for part in parts)


EVALUATED = "it decides by evaluations, which releases them"
SETTINGS: tuple[tuple[str, Check, str], ...] = (
    (
        "auto_find_batch_size",
        is_on,
        "a step that runs out of memory would be taken again, and tells how many records were "
        "drawn. Choose a smaller per_device_train_batch_size: it changes memory, not the result",
    ),
    (
        "train_sampling_strategy",
        lambda value: str(getattr(value, "value", value)) != "random",
        "records are drawn by the sampling that is accounted. Pass "
        "PrivacyArguments(lengths=(32, 64, 128)) to put records of one length together",
    ),
    (
        "group_by_length",
        is_on,
        "records are drawn by the sampling that is accounted. Pass "
        "PrivacyArguments(lengths=(32, 64, 128)) to put records of one length together",
    ),
    (
        "max_grad_norm",
        lambda value: value not in (None, 0, USUAL_GRAD_NORM),
        "psac clips the gradient of every record, and nothing may change the noisy sum. Set the "
        "bound by PrivacyArguments(clipping=psac.PSAC(bound)) and leave max_grad_norm out",
    ),
    ("fp16", is_on, "gradients of float16 need a scale that follows private values. Use bf16=True"),
    ("fp16_full_eval", is_on, "it changes the weights between steps. Evaluate after training"),
    ("bf16_full_eval", is_on, "it changes the weights between steps. Evaluate after training"),
    ("torch_compile", is_on, "psac runs compiled code as it was written. Leave it out"),
    ("use_liger_kernel", is_on, "its kernels see all records of a batch at once. Leave it out"),
    ("deepspeed", is_on, "it owns the backward pass, which psac has to see. Leave it out"),
    ("fsdp", is_on, "it owns the backward pass, which psac has to see. Leave it out"),
    (
        "optim",
        named_with("lomo", "layerwise", "schedule_free"),
        "it moves parameters outside of its step. Choose another one, such as adamw_torch",
    ),
    (
        "include_num_input_tokens_seen",
        lambda value: value not in (None, False, "no"),
        "it writes the exact number of private tokens to the logs. Leave it out",
    ),
    (
        "skip_memory_metrics",
        lambda value: value is False,
        "the memory of a step tells how many records were drawn. Leave it at True",
    ),
    ("debug", is_on, "it keeps activations of private records. Debug on public records"),
)
BY_EVALUATION: tuple[tuple[str, Check], ...] = (
    ("load_best_model_at_end", is_on),
    ("save_strategy", one_of("best")),
    ("lr_scheduler_type", one_of("reduce_lr_on_plateau", "greedy")),
)


def refuse_settings(args: TrainingArguments, privacy: PrivacyArguments) -> None:
    """Raises for settings of a Trainer that would not be private, or without effect."""
    for name, is_refused, reason in SETTINGS:
        value = getattr(args, name, None)
        if is_refused(value):
            raise PrivacyError(f"{name}={shown(value)} cannot be used in a private run: {reason}.")
    processes, devices = args.world_size, args.n_gpu
    if processes > 1 or devices > 1:
        raise PrivacyError(
            f"there are {processes} processes with {devices} devices each: PrivateTrainer runs in "
            "one process on one device. Set CUDA_VISIBLE_DEVICES to one of them, or use "
            "psac.make_private in a loop of your own."
        )
    for name, is_refused in BY_EVALUATION:
        value = getattr(args, name, None)
        if is_refused(value):
            refuse_private_decision(f"{name}={shown(value)}", privacy)


def refuse_callbacks(callbacks: Iterable[TrainerCallback], privacy: PrivacyArguments) -> None:
    """Raises for early stopping by what may be private."""
    for callback in callbacks:
        if isinstance(callback, EarlyStoppingCallback):
            refuse_private_decision(type(callback).__name__, privacy)


def refuse_loss_of_library(trainer: type, private: type, usual: type) -> None:
    """Raises if the loss is that of a Trainer of a library, which may keep what it measures.

    The one of TRL's SFTTrainer logs entropy, accuracy and the number of tokens of private records.
    """
    order = trainer.__mro__
    owner = next(kind for kind in order if "compute_loss" in vars(kind))
    if owner is not usual and order.index(owner) > order.index(private):
        raise PrivacyError(
            f"{owner.__name__}.compute_loss may log what it measures on private records. Write "
            "`compute_loss = transformers.Trainer.compute_loss` into your class, or a loss of "
            "your own."
        )


def refuse_private_decision(what: str, privacy: PrivacyArguments) -> None:
    if not privacy.public_evaluation:
        raise PrivacyError(
            f"{what}: {EVALUATED}. If the records of eval_dataset are public, say so by "
            "PrivacyArguments(public_evaluation=True); else leave it out, and train for a fixed "
            "number of steps."
        )


def refuse_training_records(evaluated: Any, trained: Any, privacy: PrivacyArguments) -> None:
    """Raises if evaluations that decide are made on the records of the training."""
    if not privacy.public_evaluation or evaluated is None or trained is None:
        return
    sets = evaluated.values() if isinstance(evaluated, dict) else [evaluated]
    known = {id(source) for source in held_by(trained).datasets} | {id(trained)}
    for one in sets:
        if known & ({id(source) for source in held_by(one).datasets} | {id(one)}):
            raise PrivacyError(
                "eval_dataset and train_dataset share records, so the evaluation is not public. "
                "Hold public records out, in a data set of their own."
            )


def shown(value: Any) -> str:
    return repr(getattr(value, "value", value))
