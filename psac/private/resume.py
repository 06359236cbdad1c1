"""The state of a run, and going on from it.

Guarantees: a resumed run equals an uninterrupted one; it has the settings that it was started with;
what this process has released of it since the state was taken counts as spent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from psac.accounting import Ledger
from psac.errors import PrivacyError
from psac.noise.generators import SeededGenerator

if TYPE_CHECKING:
    from psac.private.run import Private

VERSION = 1


def state_of(private: Private) -> dict[str, Any]:
    noise = private.noise
    return {
        "version": VERSION,
        "id": private.account.id,
        "run": identity(private),
        "step": private.steps_taken,
        "planned_steps": private.plan.steps,
        "ledger": private.ledger.to_json(),
        "sampler": private.loader.state_dict(),
        "noise": noise.state_dict() if isinstance(noise, SeededGenerator) else None,
        "scale": private.scale,
    }


def identity(private: Private) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    plan, noise = private.plan, private.noise
    return {
        "num_records": plan.num_records,
        "expected_batch_size": plan.expected_batch_size,
        "sampling": plan.sampling.name,
        "noise_multiplier": plan.noise_multiplier,
        "delta": plan.delta,
        "clipping": repr(private.clipping),
        "seed": noise.seed if isinstance(noise, SeededGenerator) else None,
    }


def restore(private: Private, state: Mapping[str, Any]) -> None:
    """Everything but what was released since: `Private.load_state_dict` charges that."""
    refuse_other_run(private, state)
    account = private.account
    account.id = state["id"]
    before, account.ledger = account.ledger, Ledger.from_json(state["ledger"])
    account.ledger.include_notes(before)
    for entry in before.releases:  # the records were read, and released of, once more
        if entry not in account.ledger.releases:
            account.ledger.record(**dataclasses.asdict(entry))
    account.plan = dataclasses.replace(account.plan, steps=state["planned_steps"])
    private.steps_taken = state["step"]
    private.loader.load_state_dict(state["sampler"])
    if isinstance(private.noise, SeededGenerator):
        private.noise.load_state_dict(state["noise"])
    private.set_scale(state["scale"])
    private.guard.forget()
    account.enter()


def refuse_other_run(private: Private, state: Mapping[str, Any]) -> None:
    if state.get("version") != VERSION:
        raise ValueError(f"this state has version {state.get('version')}, not {VERSION}.")
    if private.ledger.steps:
        raise PrivacyError(
            f"this run has released {private.ledger.steps} steps that the state does not know of: "
            "they would be forgotten. Load it into a new run, before its first step."
        )
    saved, own = state["run"], identity(private)
    changed = [f"{k}: {saved.get(k)!r} -> {own[k]!r}" for k in own if saved.get(k) != own[k]]
    if changed:
        raise ValueError(
            f"the run was started with other settings ({'; '.join(changed)}). Call "
            "make_private as it was called then; a changed run needs a budget of its own."
        )
