"""`psac predict`: a trained model classifies new records."""

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
            help="Images, folders of images, .csv, .tsv, .parquet or .npz files, like the training "
            "data; for text, also .txt files with one text in each line. Labels are not needed.",
            show_default=False,
        ),
    ],
    output: Annotated[Path | None, typer.Option(help="CSV file to write. Default: stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
) -> None:
    """Classify new records with a trained model and write the result as CSV.

    Each row has the predicted class and the probability of every class. Records are numbered from 1
    in each file. Columns that the model does not use are copied, so that results can be joined.
    """
    from psac.app.training import Run
    from psac.app.training.prediction import predictions

    if output is not None and output.exists() and not force:
        raise typer.BadParameter(
            f"{output} already exists. Choose another --output, or overwrite it with --force."
        )
    trained = Run(run)
    classes = trained.model_facts()["classes"]
    rows = list(predictions(trained, files))  # a file that fails leaves no partial table
    table = io.StringIO()
    _write(table, classes, rows)
    if output is None:
        print(table.getvalue(), end="")
        return
    write_atomically(output, table.getvalue().encode())
    errors.print(f"{len(rows):,} predictions: [bold]{as_typed(output)}[/]", soft_wrap=True)


def _write(file: TextIO, classes: list[str], rows: Sequence[Prediction]) -> None:
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    own = ["file", "record", "prediction", *classes]
    copied = [f"input {name}" if name in own else name for name in others]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", "record", *copied, "prediction", *classes])
    for row in rows:
        cells = [row.others.get(name, "") for name in others]
        shares = [f"{row.probabilities[name]:.6g}" for name in classes]
        writer.writerow([row.file, row.record, *cells, "|".join(row.labels), *shares])
