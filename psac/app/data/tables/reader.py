"""One reader for all tables: CSV, TSV, Parquet, and frames of pandas, polars or pyarrow.

    table_of("patients.csv")        commas; UTF-8, the first line names the columns
    table_of("patients.tsv")        tabs (.tsv, .tab)
    table_of("patients.parquet")    by pyarrow (the extra `data`)
    table_of(frame)                 any frame that pyarrow can convert, without its index
    table_of({"age": [31, 40]})     columns by name

CSV is read by pyarrow if it is installed, a million rows in about a second, and otherwise by the
standard library, which takes several.  Guarantees: both give the same cells, and every cell of a
text file is exactly the text in the file.  If pyarrow refuses a file, the standard library reads it
again, for a message that counts records.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psac.app.data.entry import DataNotFound
from psac.app.data.optional import needed
from psac.app.data.tables.cells import Cells, CellsBuilder

TABS = (".tsv", ".tab")
PARQUET = ".parquet"
ROWS = 10_000  # read at a time, as only distinct values are kept
SHOWN = 3  # record numbers in a message


class Table(NamedTuple):
    """`place` is its name in messages, `stem` a short name."""

    place: str
    stem: str
    columns: dict[str, Cells]

    @property
    def num_records(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def table_of(source: Any) -> Table:
    """The table in a file or a frame; a table is returned as it is."""
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, os.PathLike)):
        file = Path(source).expanduser()
        if file.is_dir():
            raise DataNotFound(f"{file} is a folder. Pass a table in it, such as {file}/train.csv.")
        if not file.is_file():
            raise DataNotFound(f"{file} does not exist.")
        return _parquet(file) if file.suffix.lower() == PARQUET else _text(file)
    if isinstance(source, Mapping):
        columns = {str(name): Cells.of(list(cells)) for name, cells in source.items()}
        if len(lengths := {len(cells) for cells in columns.values()}) > 1:
            raise ValueError(f"the columns have different lengths: {sorted(lengths)}.")
        return Table("the table", "table", columns)
    return _frame(source)


def record_numbers(numbers: list[int], count: int) -> str:
    """Records in words, counted from 1.

    >>> record_numbers([0, 16], 5)
    'records 1, 17, ...'
    """
    shown = ", ".join(str(number + 1) for number in numbers[:SHOWN])
    return f"record{'s' if count > 1 else ''} {shown}{', ...' if count > SHOWN else ''}"


# ---- Text


def _text(file: Path) -> Table:
    separator = "\t" if file.suffix.lower() in TABS else ","
    header = _header(file, separator)
    columns = _by_arrow(file, separator, header)
    if columns is None:
        columns = _by_standard_library(file, separator, header)
    return Table(str(file), file.stem, columns)


def _header(file: Path, separator: str) -> list[str]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            header = next((row for row in csv.reader(lines, delimiter=separator) if row), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(file, error) from error
    if not header:
        raise DataNotFound(f"{file} is empty: it has neither records nor a header.")
    _refuse_other_separators(file, header)
    _refuse_twice(header, str(file))
    return header


def _unreadable(file: Path, error: Exception) -> DataNotFound:
    # Python's own message would quote a byte of a cell, at a place in a buffer.
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return DataNotFound(f"{file} cannot be read as CSV in UTF-8 ({reason}). Save it as that.")


def _refuse_other_separators(file: Path, header: list[str]) -> None:
    """Separators are not guessed: files with semicolons often have commas in their numbers."""
    for mark, what in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
        if len(header) == 1 and mark in header[0]:
            advice = "Name it .tsv." if mark == "\t" else "Name it .csv."
            if mark == ";":
                advice = "Save it with commas between columns and points in numbers."
            raise ValueError(f"{file} has {what} between its columns: {header[0]!r}. {advice}")


def _by_arrow(file: Path, separator: str, header: list[str]) -> dict[str, Cells] | None:
    """None if pyarrow is not installed or cannot read the file."""
    try:
        pyarrow, arrow_csv = _arrow(), _arrow(".csv")
    except ImportError:
        return None
    as_text = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pyarrow.large_string()), strings_can_be_null=False
    )
    layout = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        table = arrow_csv.read_csv(file, parse_options=layout, convert_options=as_text)
    except (pyarrow.ArrowException, OSError):
        return None
    if table.column_names != header:
        return None
    return {name: _from_arrow(table[name]) for name in header}


def _by_standard_library(file: Path, separator: str, header: list[str]) -> dict[str, Cells]:
    columns = [CellsBuilder() for _ in header]
    wrong: dict[int, int] = {}  # the fields of records with another number of them
    count = 0
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = (row for row in csv.reader(lines, delimiter=separator) if row)
            next(rows)
            while part := list(itertools.islice(rows, ROWS)):
                sizes = enumerate(map(len, part), start=count)
                wrong |= {number: size for number, size in sizes if size != len(header)}
                if not wrong:
                    for column, cells in zip(columns, zip(*part, strict=True), strict=True):
                        column.add(cells)
                count += len(part)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(file, error) from error
    if wrong:
        raise ValueError(
            f"{file}: {len(wrong)} of {count} records do not have as many fields as the header: "
            f"{record_numbers(list(wrong), len(wrong))}. The first of them has "
            f"{next(iter(wrong.values()))}, the header {len(header)}. Correct or remove them."
        )
    return {name: column.cells() for name, column in zip(header, columns, strict=True)}


# ---- Arrow


def _arrow(module: str = "") -> Any:
    return needed(f"pyarrow{module}", package="pyarrow", purpose="Reading Parquet or a frame")


def _parquet(file: Path) -> Table:
    parquet = _arrow(".parquet")
    try:
        with parquet.ParquetFile(file) as opened:  # read_table imports pandas
            table = opened.read()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataNotFound(f"{file} cannot be read as Parquet ({error}).") from error
    return _of_arrow(table, str(file), file.stem)


def _frame(frame: Any) -> Table:
    arrow = _arrow()
    is_pandas = hasattr(frame, "reset_index") and hasattr(frame, "columns")
    if is_pandas:  # its index would become a column
        frame = frame.reset_index(drop=True)
        _refuse_twice([str(name) for name in frame.columns], "the frame")
    try:
        table = arrow.table(frame)
    except (TypeError, ValueError, NotImplementedError) as error:
        if is_pandas:  # a column has cells of several types, such as a mistyped number
            return _of_objects(frame)
        advice = " Call its collect() first." if hasattr(frame, "collect") else ""
        raise TypeError(
            f"a {type(frame).__name__} cannot be read as a table.{advice} Pass the path of a "
            "CSV, TSV or Parquet file, or a frame of pandas, polars or pyarrow."
        ) from error
    return _of_arrow(table, "the frame", "frame")


def _of_objects(frame: Any) -> Table:
    """A frame of pandas, cell by cell."""
    cells = frame.astype(object).where(frame.notna(), None)
    columns = {str(name): Cells.of(cells[name].tolist()) for name in frame.columns}
    return Table("the frame", "frame", columns)


def _refuse_twice(names: list[str], place: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"{place} names a column twice: {', '.join(names)}. Rename one.")


def _of_arrow(table: Any, place: str, stem: str) -> Table:
    names = [str(name) for name in table.column_names]
    _refuse_twice(names, place)
    columns = {}
    for name, column in zip(names, table.columns, strict=True):
        try:
            columns[name] = _from_arrow(column)
        except (NotImplementedError, TypeError) as error:
            raise ValueError(
                f"{place}, column {name!r} has the type {column.type}, but cells must be numbers, "
                "text or dates. Remove the column."
            ) from error
    return Table(place, stem, columns)


def _from_arrow(column: Any) -> Cells:
    pyarrow = _arrow()
    if pyarrow.types.is_dictionary(column.type):
        chunks = [_decoded(chunk) for chunk in column.chunks]
        column = pyarrow.chunked_array(chunks, None if chunks else column.type.value_type)
    if _is_text(column):
        column = column.cast(pyarrow.large_string())
    # In one piece first, as unifying the dictionaries of many pieces takes a minute.
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return Cells(encoded.dictionary.to_pylist(), _codes(encoded.indices))


def _codes(indices: Any) -> np.ndarray:
    """The codes, as `indices.to_numpy()` imports pandas, in which Ctrl-C is lost."""
    kind = indices.type.to_pandas_dtype()
    codes = np.frombuffer(indices.buffers()[1], kind, indices.offset + len(indices))
    return codes[indices.offset :].astype(np.int64)


def _decoded(chunk: Any) -> Any:
    """The cells of a chunk of categories."""
    values = chunk.dictionary
    if _is_text(values):
        values = values.cast(_arrow().large_string())
    return _arrow().DictionaryArray.from_arrays(chunk.indices, values).dictionary_decode()


def _is_text(column: Any) -> bool:
    """Whether it is text of a type that is limited to 2 GB, or for which pyarrow lacks kernels."""
    return str(column.type) in ("string", "string_view")
