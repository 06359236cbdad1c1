"""The sampling schemes side by side, each at its own price.

The same records, batch size and number of steps cost another epsilon under another scheme: an
accountant for one scheme says nothing about another one.  Every row is an upper bound, by privacy
loss distributions, under the relation it names.  Epsilons under different relations are different
guarantees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

import psac
from psac.accounting.pricing import quietly
from psac.app.cli.plan_options import PlanOptions
from psac.app.reporting import numerals
from psac.sampling import REFUSED

METHODS = {
    ("poisson", "add-or-remove-one"): "the subsampled Gaussian itself, arXiv:2106.08567",
    ("poisson", "replace-one"): "the subsampled Gaussian itself, dp-accounting",
    ("fixed-size-without-replacement", "add-or-remove-one"): "as Poisson with half the noise, "
    "arXiv:2106.08567",
    ("fixed-size-with-replacement", "replace-one"): "an upper bound, arXiv:1807.01647 theorem 10",
    ("balls-in-bins", "add-or-remove-one"): "by the epoch, arXiv:2412.16802, arXiv:2502.08202",
}


def compared(options: PlanOptions, noise_multiplier: float, epsilon: float) -> list[dict[str, Any]]:
    """For each scheme, what this noise costs, and which noise would keep this epsilon."""
    rows = []
    with quietly():  # a large epsilon is part of the comparison
        for (sampling, relation), method in METHODS.items():
            row: dict[str, Any] = {"sampling": sampling, "relation": relation, "method": method}
            plan = options.plan(sampling=sampling, relation=relation)
            if plan["num_records"] is None and sampling == "fixed-size-with-replacement":
                row["missing"] = "needs --records"
            else:
                row["epsilon"] = psac.epsilon(noise_multiplier=noise_multiplier, **plan)
                row["noise_multiplier"] = psac.calibrate(epsilon=epsilon, **plan)
            rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]], noise_multiplier: float, epsilon: float) -> Table:
    drawn = Table("sampling", box=box.SIMPLE_HEAD, caption=_caption(), caption_justify="left")
    drawn.add_column(f"epsilon at\nnoise {noise_multiplier:.4g}", justify="right")
    drawn.add_column(f"noise for\nepsilon {epsilon:.4g}", justify="right")
    for row in rows:
        drawn.add_row(
            f"[bold]{row['sampling']}[/], {row['relation']}\n[dim]{row['method']}[/]",
            row.get("missing") or numerals.epsilon(row["epsilon"]),
            "" if "missing" in row else f"{row['noise_multiplier']:.4f}",
        )
    return drawn


def _caption() -> str:
    return f"Shuffled epochs are not in the table: {REFUSED['shuffle']}."
