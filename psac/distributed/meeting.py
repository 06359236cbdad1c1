"""The one way to agree: a small vector, of which all workers take the maximum.

    place, -place, refused, news, fact, -fact, fact, -fact, ...

Where the maximum of x and that of -x do not cancel, workers differ.  Every exchange between workers
begins with this one, so it does not matter where they are: one that saves while another steps, one
that has refused, one that begins a pass too early all meet, and learn of it.

Guarantees: `meet` returns on all workers or raises on all; what they raise names the workers, and
what differs between them.  Differences of secrets are named, not shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from psac.errors import PrivacyError

FACTS = 16  # at most, at one place
LONGEST = 300  # characters of a fact in a message
SECRET = "secret: "  # a fact whose name begins so is not shown


class WorkersDiffer(PrivacyError):
    """Raised on all workers alike."""


class Meeting:
    """One worker at one place, with what it knows."""

    def __init__(
        self, place: str, facts: Mapping[str, Any], *, error: Exception | None, news: bool
    ) -> None:
        if len(facts) > FACTS:
            raise ValueError(f"{len(facts)} facts at {place!r}: at most {FACTS} are compared.")
        self.place, self.facts, self.error, self.news = place, facts, error, news

    def vector(self) -> torch.Tensor:
        """What is compared, of the same length at all places."""
        digests = [digest(value) for value in self.facts.values()]
        digests += [0] * (FACTS - len(digests))
        pairs = [sign * x for x in [digest(self.place), *digests] for sign in (1, -1)]
        return torch.tensor([self.error is not None, self.news, *pairs], dtype=torch.int64)

    def account(self) -> tuple[str, str | None, list[str]]:
        """What the others are told if something is wrong."""
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return self.place, error, [shown(name, value) for name, value in self.facts.items()]

    def finding(self, largest: torch.Tensor) -> str | None:
        """What is wrong by the maximum over all workers: "refused", "places", "facts", or None."""
        refused, _, *pairs = largest.tolist()
        differ = [high != -low for high, low in zip(pairs[::2], pairs[1::2], strict=True)]
        if refused:
            return "refused"
        if differ[0]:
            return "places"
        return "facts" if any(differ[1:]) else None

    def problem(self, finding: str, accounts: list[tuple[str, str | None, list[str]]]) -> Exception:
        """What is raised, on every worker, from the accounts of all of them."""
        if finding == "refused":
            refusals = [(k, a[1]) for k, a in enumerate(accounts) if a[1] is not None]
            rank, text = refusals[0]
            return WorkersDiffer(
                f"worker {rank} of {len(accounts)} has refused, so all do, and nothing of this "
                f"step was released: {text}"
            )
        if finding == "places":
            places = [f"worker {k}: {a[0]}" for k, a in enumerate(accounts)]
            return WorkersDiffer(
                f"the workers are at different places ({'; '.join(places)}). All of them must make "
                "the same calls in one order; psac.save_checkpoint, too, is called on every "
                "worker, and only worker 0 writes."
            )
        return WorkersDiffer(
            f"the workers differ at {self.place}, in {differences(accounts)}. Start all of them "
            "with the same script, data and settings, and change nothing on one of them alone."
        )


def differences(accounts: list[tuple[str, str | None, list[str]]]) -> str:
    """The facts that are not the same on all workers, with who says what."""
    texts = []
    for k, fact in enumerate(accounts[0][2]):
        for rank, (_, _, facts) in enumerate(accounts):
            if facts[k] != fact:
                texts.append(f"{fact} (worker 0), {facts[k]} (worker {rank})")
                break
    return "; ".join(texts)


def shown(name: str, value: Any) -> str:
    """A fact in a message; of a secret and of a long one, a number that tells them apart."""
    text = f"{value!r}"
    if name.startswith(SECRET):
        return f"{name.removeprefix(SECRET)} {digest(value) % 10**6:06}"
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({digest(value) % 10**6:06})"
    return f"{name} {cut}"


def digest(value: Any) -> int:
    """A number below 2^62 for what a value says."""
    data = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(data, "big") >> 2
