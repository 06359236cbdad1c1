"""Your own table, from a CSV file to a report page: `python examples/own_data.py`.

It is made up here.  Ranges and categories are public: only training learns from the records.
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

from psac.app.reporting import report
from psac.app.training import Recipe, train

WARDS = ["surgery", "cardiology", "maternity", "geriatrics"]


def write_patients(path: Path, count: int, seed: int) -> None:
    """Older patients, and those of geriatrics, come back more often."""
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
    recipe = Recipe(
        data=str(folder / "patients"),
        data_settings={
            "label": "back",
            "classes": ["no", "yes"],
            "ranges": {"age": (18, 100), "days": (0, 60)},  # round bounds, known beforehand
            "categories": {"ward": WARDS},
        },
        model="mlp",
        model_settings={"hidden": [32]},
        epsilon=2.0,  # delta is 1 / (10 * records) unless it is given
        batch_size=512,
        epochs=5,
        learning_rate=1.0,
        momentum=0.9,
    )
    run = train(recipe, folder / "run")
    result = run.summary()
    print(f"accuracy {result['accuracy']:.1%} at epsilon {result['epsilon']:.3f}")
    print(run.ledger())
    print(f"To publish: {report(run.folder, publish=True)}")


if __name__ == "__main__":
    main()
