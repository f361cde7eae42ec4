from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infobatch_lab.errors import UserError
from infobatch_lab.tables import read_rows, read_splits

ROWS = [{"text": 'he said "no,', "label": "a"}, {"text": "it\u2028is", "label": "b"}]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    path.write_text(
        {
            ".csv": 'text,label\n"he said ""no,",a\nit\u2028is,b\n',
            ".tsv": 'text\tlabel\nhe said "no,\ta\nit\u2028is\tb\n',
            ".json": json.dumps(rows, indent=1),
            ".jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n",
        }[path.suffix],
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert read_rows(write(tmp_path / f"table.{kind}")) == ROWS


def test_a_file_without_splits_keeps_every_fifth_row_for_testing(tmp_path: Path) -> None:
    rows = [{"text": str(number)} for number in range(11)]
    train, test = read_splits(write(tmp_path / "t.jsonl", rows))
    assert [row["text"] for row in test] == ["0", "5", "10"]
    assert len(train) == 8


def test_a_column_says_the_split(tmp_path: Path) -> None:
    splits = ["train", "test", "validation", "train"]
    rows = [{"text": str(i), "split": split} for i, split in enumerate(splits)]
    train, test = read_splits(write(tmp_path / "t.parquet", rows))
    assert [row["text"] for row in train] == ["0", "3"]
    assert [row["text"] for row in test] == ["2"]


def test_a_folder_of_two_tables_as_glue_has_it(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv")
    write(tmp_path / "dev.tsv")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tno labels\n")
    assert read_splits(tmp_path) == (ROWS, ROWS)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.txt", "a", r"is no table, expected a file ending in .csv, .tsv"),
        ("t.jsonl", "{", "cannot be read as a table"),
        ("t.parquet", "PAR1", "cannot be read as a table"),
        ("t.json", "{}", "has no rows with named columns"),
        ("t.json", "[1]", "has no rows with named columns"),
        ("t.csv", "text,label\n", "has no rows with named columns"),
        ("t.csv", "text,label\na,b\n", "has 0 rows to train and 1 to test on"),
    ],
)
def test_what_is_no_table(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_splits(tmp_path / name)


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tables called train and dev, validation, val or test"):
        read_splits(tmp_path)
