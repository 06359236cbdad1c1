"""`psac predict`: what a trained model says of new records, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from psac.app.cli.console import as_typed, errors
from psac.checkpoint.atomic import write_atomically

if TYPE_CHECKING:
    from psac.app.training.prediction import Prediction


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
    force: Annotated[
        bool, typer.Option("--force", help="Write the file even if there is one.")
    ] = False,
) -> None:
    """Classify new records with a trained model: classes and probabilities, as CSV.

    Records are numbered from 1 in each file; columns that the model does not read are kept.
    """
    from psac.app.training import Run
    from psac.app.training.prediction import predictions

    if output is not None and output.exists() and not force:
        raise typer.BadParameter(f"{output} exists. Give another --output, or --force.")
    trained = Run(run)
    classes = trained.model_facts()["classes"]
    found = list(predictions(trained, files))  # all or nothing: no half a table
    table = io.StringIO()
    _write(table, classes, found)
    if output is None:
        print(table.getvalue(), end="")
        return
    write_atomically(output, table.getvalue().encode())
    errors.print(f"{len(found):,} records in [bold]{as_typed(output)}[/]", soft_wrap=True)


def _write(file: TextIO, classes: list[str], found: Sequence[Prediction]) -> None:
    others = list(dict.fromkeys(name for row in found for name in row.others))
    own = ["file", "record", "prediction", *classes]
    kept = [f"input {name}" if name in own else name for name in others]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", "record", *kept, "prediction", *classes])
    for row in found:
        cells = [row.others.get(name, "") for name in others]
        shares = [f"{row.probabilities[name]:.6g}" for name in classes]
        writer.writerow([row.file, row.record, *cells, "|".join(row.labels), *shares])
