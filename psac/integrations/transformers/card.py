"""The section about privacy in a model card."""

from __future__ import annotations

from pathlib import Path

from psac.private import Private

TITLE = "## Privacy"


def section(private: Private) -> str:
    """What was guaranteed, in words and numbers of the ledger; none of them is private."""
    ledger, delta = private.ledger, private.plan.delta
    if not ledger.secure:
        price = "The run was seeded, so it is NOT private."
    elif delta is None:
        price = "The ledger below gives an epsilon for each delta."
    else:
        price = (
            f"The weights are ({private.epsilon():.4g}, {delta:.4g})-differentially private with "
            "respect to the records of the training data."
        )
    return (
        f"{TITLE}\n\n{price} One record is one training example. Choices of settings by other "
        "runs on the same data, and evaluations on private records, are not included. Trained "
        f"with {private.clipping!r}.\n\n```\n{ledger}\n```\n"
    )


def written_into(folder: str, text: str) -> None:
    """At the end of the card in the folder, in the place of an earlier one."""
    path = Path(folder) / "README.md"
    card = path.read_text(encoding="utf-8")
    path.write_text(card.split(f"\n{TITLE}\n")[0].rstrip() + f"\n\n{text}", encoding="utf-8")
