"""From the user's arguments to a private run: settings are checked, and noise is calibrated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from psac.accounting import Ledger
from psac.checks import positive
from psac.clipping import choice
from psac.clipping.rules import PSAC
from psac.distributed import join, unwrapped
from psac.loading.dataset import dataset_of, released_with
from psac.plan import plan_run
from psac.private import facts
from psac.private.run import Clipping, Private
from psac.sampling import Poisson, Sampling


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
    process_group: Any = None,
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
        process_group: The workers that train together, each with the whole model and data set. The
            default is the group of `torch.distributed.init_process_group`, if there is one.

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
    workers = join(process_group)
    with workers.together("make_private"):
        model = unwrapped(model)
        rule: Clipping = PSAC() if clipping is None else choice.checked(clipping)
        records = dataset_of(dataset)
        scheme = Poisson() if sampling is None else sampling
        released_before = _released_before(dataset, scheme)
        plan = plan_run(
            num_records=len(records),
            expected_batch_size=_batch_size(dataset, batch_size, len(records)),
            scheme=scheme,
            length=(epochs, steps),
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            after=released_before,
        )
        private = Private(
            model,
            optimizer,
            dataset,
            plan=plan,
            clipping=rule,
            physical_batch_size=physical_batch_size,
            lengths=lengths,
            generator=workers.generator(seed),
            released_before=released_before,
            workers=workers,
        )
        workers.meet("make_private", lambda: facts.of_settings(private))
        private.begin_alike()
    return private


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


def _batch_size(dataset: Any, batch_size: int | None, num_records: int) -> int:
    if batch_size is None and isinstance(dataset, DataLoader):
        batch_size = dataset.batch_size
    if batch_size is None:
        raise ValueError(
            "batch_size is missing: give the expected number of records in a batch, a public "
            "constant such as 512."
        )
    if positive("batch_size", batch_size) > num_records:
        raise ValueError(
            f"batch_size is {batch_size}, but there are only {num_records} records: choose a "
            "smaller one."
        )
    return batch_size
