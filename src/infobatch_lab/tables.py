"""Tables of a user's own: rows of CSV, TSV, JSON, JSON lines or Parquet, as dicts.

Not by pandas, which reads words such as "None" and "NA" as missing values: they may be labels.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import check_file
from infobatch_lab.options import in_words
from infobatch_lab.pictures import ARROW_ERRORS

TYPES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")

HELD_OUT = ("dev", "validation", "val", "test")
"""What a split for testing is called; the first that is there is taken. GLUE's `test` comes last,
since it has no labels."""

ENCODING = "utf-8-sig"
"""UTF-8; the mark that spreadsheets put before it is no part of the first column's name."""


class Row(dict[str, Any]):
    """The cells of a row by their columns, and where it stands: "row 3 of train.csv"."""

    def __init__(self, cells: Mapping[str, Any], place: str) -> None:
        super().__init__(cells)
        self.place = place


def read_splits(path: Path) -> tuple[list[Row], list[Row]]:
    """Rows to train and to test on: of a folder with `train.csv` and `test.csv`, or of a file.

    A file's column `split` says which is which; without one, every fifth row is for testing.
    """
    return tables_of(path) if path.is_dir() else parts_of(path)


def tables_of(folder: Path) -> tuple[list[Row], list[Row]]:
    """The rows of two tables in a folder."""
    held_out = [found for name in HELD_OUT if (found := table_in(folder, name))]
    train = table_in(folder, "train")
    if train is None or not held_out:
        raise UserError(
            f"{folder} has no tables called train and {in_words(HELD_OUT)}, expected one of "
            f"each ({in_words(TYPES)})."
        )
    return read_rows(train), read_rows(held_out[0])


def parts_of(path: Path) -> tuple[list[Row], list[Row]]:
    """Two parts of the rows of one table."""
    rows = read_rows(path)
    if all("split" in row for row in rows):
        train_rows = [row for row in rows if row["split"] == "train"]
        names = {row["split"] for row in rows}
        name = next((name for name in HELD_OUT if name in names), None)
        test_rows = [row for row in rows if name and row["split"] == name]
    else:
        train_rows, test_rows = [row for i, row in enumerate(rows) if i % 5], rows[::5]
    if not train_rows or not test_rows:
        raise UserError(
            f"{path} has {len(train_rows)} rows to train and {len(test_rows)} to test on, "
            f"expected some of both: its column split says train or {in_words(HELD_OUT)}."
        )
    return train_rows, test_rows


def is_missing(cell: Any) -> bool:
    """Whether a cell says nothing: null, not a number, or spaces alone."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def incomplete(row: Row, what: str, path: Path) -> UserError:
    """The error for a row in which something is missing."""
    return UserError(
        f"{path} has a row without {what}: fill in or delete {row.place} (the first row of data is "
        "row 1)."
    )


def table_in(folder: Path, name: str) -> Path | None:
    """The table of this name in a folder."""
    return next((p for kind in TYPES if (p := folder / f"{name}{kind}").is_file()), None)


def read_rows(path: Path) -> list[Row]:
    """All rows of a table, by the end of its name."""
    if path.suffix not in TYPES or not path.is_file():
        raise UserError(f"{path} is no table, expected a file ending in {in_words(TYPES)}.")
    check_file(path)
    try:
        rows = READERS[path.suffix](path)
    except (*ARROW_ERRORS, csv.Error, RecursionError) as error:
        raise UserError(f"{path} cannot be read as a table: {error}.") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} has no rows with named columns, expected at least one.")
    return [Row(cells, f"row {number} of {path.name}") for number, cells in enumerate(rows, 1)]


def text_of(row: Row, columns: Sequence[str], path: Path) -> str:
    """The text in the first of these columns that the row has."""
    for column in columns:
        if isinstance(row.get(column), str):
            return str(row[column])
    raise incomplete(row, f"a text in the column {in_words(columns)}", path)


def read_csv(path: Path) -> list[Any]:
    """The first line names the columns."""
    with path.open(encoding=ENCODING, newline="") as file:
        return [filled(cells) for cells in csv.DictReader(file)]


def read_tsv(path: Path) -> list[Any]:
    """As GLUE writes it: a quotation mark is a character like any other."""
    with path.open(encoding=ENCODING, newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [filled(cells) for cells in rows]


def filled(cells: Mapping[str, Any]) -> dict[str, Any]:
    """An empty cell of CSV is a missing one: the format has no other."""
    return {column: None if is_missing(cell) else cell for column, cell in cells.items()}


def read_json(path: Path) -> list[Any]:
    """One list of objects."""
    rows = json.loads(path.read_text(encoding=ENCODING))
    return rows if isinstance(rows, list) else []


def read_json_lines(path: Path) -> list[Any]:
    """An object on each line."""
    lines = path.read_text(encoding=ENCODING).split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def read_parquet(path: Path) -> list[Any]:
    """With whatever compression pyarrow knows."""
    rows: list[Any] = optional("pyarrow.parquet").read_table(path).to_pylist()
    return rows


READERS = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_json,
    ".jsonl": read_json_lines,
    ".parquet": read_parquet,
}
