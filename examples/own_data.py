"""Train on your own CSV file and write a report page: `python examples/own_data.py`.

The script makes up the table.  Ranges and categories are stated, not computed from the records.
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

import psac

WARDS = ["surgery", "cardiology", "maternity", "geriatrics"]


def write_patients(path: Path, count: int, seed: int) -> None:
    """Older patients and patients of geriatrics return more often."""
    draw = random.Random(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["age", "days", "ward", "back"])
        for _ in range(count):
            age, days, ward = draw.randint(18, 95), draw.randint(1, 30), draw.choice(WARDS)
            risk = age / 50 + days / 20 + (ward == "geriatrics") + draw.gauss(0, 0.5)
            table.writerow([age, days, ward, "yes" if risk > 2.3 else "no"])


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "patients").mkdir()
    write_patients(folder / "patients" / "train.csv", 6_000, seed=1)
    write_patients(folder / "patients" / "test.csv", 1_000, seed=2)
    recipe = psac.training.Recipe(
        data=str(folder / "patients"),
        data_settings={
            "label": "back",
            "classes": ["no", "yes"],
            "ranges": {"age": (18, 100), "days": (0, 60)},  # known before looking at the data
            "categories": {"ward": WARDS},
        },
        model="mlp",
        model_settings={"hidden": [32]},
        epsilon=2.0,  # delta defaults to 1 / (10 * records)
        batch_size=512,
        epochs=5,
        learning_rate=1.0,
        momentum=0.9,
    )
    run = psac.training.train(recipe, folder / "run")
    result = run.summary()
    print(f"accuracy {result['accuracy']:.1%} at epsilon {result['epsilon']:.3f}")
    print(run.ledger())
    print(f"Report for others: {psac.reporting.report(run.folder, publish=True)}")


if __name__ == "__main__":
    main()
