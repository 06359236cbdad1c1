"""`psac predict`: what a trained model says of new records, as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from psac.cli.console import as_typed, errors

if TYPE_CHECKING:
    from psac.training.prediction import Prediction


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Pictures, folders of pictures, .csv, .parquet or .npz, as the run's data were; "
            "labels are not needed.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="The CSV file to write. Default: stdout.")
    ] = None,
) -> None:
    """Classify new records with a trained model: classes and probabilities, as CSV."""
    from psac.training import Run
    from psac.training.prediction import predictions

    trained = Run(run)
    classes = trained.model_facts()["classes"]
    found = list(predictions(trained, files))  # all or nothing: no half a table
    if output is None:
        _write(sys.stdout, classes, found)
        return
    with open(output, "w", newline="", encoding="utf-8") as file:
        _write(file, classes, found)
    errors.print(f"{len(found):,} records in [bold]{as_typed(output)}[/]", soft_wrap=True)


def _write(file: TextIO, classes: list[str], found: Iterable[Prediction]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", "record", "prediction", *classes])
    for row in found:
        shares = [f"{row.probabilities[name]:.6g}" for name in classes]
        writer.writerow([row.file, row.record, "|".join(row.labels), *shares])
