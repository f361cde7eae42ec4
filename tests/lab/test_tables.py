from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infobatch_lab.errors import UserError
from infobatch_lab.tables import read_rows, read_splits, text_of
from infobatch_lab.tasks.text import read_texts

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


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl"])
def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"table.{kind}")
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert read_rows(path) == ROWS


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


# What is missing in a row -------------------------------------------------------------------------

WHOLE = [{"text": f"t{number}", "label": "ab"[number % 2]} for number in range(7)]
NO_TEXT, NO_LABEL = "a row without a text in the column text or sentence", "a row without a label"


def table(path: Path, third: dict[str, Any] | str) -> Path:
    """Seven rows, of which the third is given: as cells, or as the line of a CSV or TSV file."""
    if isinstance(third, dict):
        return write(path, [*WHOLE[:2], third, *WHOLE[3:]])
    comma = "\t" if path.suffix == ".tsv" else ","
    lines = [comma.join(row.values()) for row in WHOLE]
    path.write_text("\n".join([f"text{comma}label", *lines[:2], third, *lines[3:]]))
    return path


@pytest.mark.parametrize(
    ("name", "third", "sentence"),
    [
        ("t.json", {"text": "a", "label": None}, NO_LABEL),
        ("t.json", {"text": "a", "label": float("nan")}, NO_LABEL),
        ("t.json", {"text": "a", "label": " "}, NO_LABEL),
        ("t.jsonl", {"text": "a", "label": None}, NO_LABEL),
        ("t.jsonl", {"text": "a"}, NO_LABEL),
        ("t.parquet", {"text": "a", "label": None}, NO_LABEL),
        ("t.csv", "a,", NO_LABEL),
        ("t.csv", "a", NO_LABEL),
        ("t.tsv", "a\t", NO_LABEL),
        ("t.json", {"text": None, "label": "a"}, NO_TEXT),
        ("t.jsonl", {"label": "a"}, NO_TEXT),
        ("t.parquet", {"text": None, "label": "a"}, NO_TEXT),
        ("t.csv", ",a", NO_TEXT),
        ("t.tsv", " \ta", NO_TEXT),
    ],
)
def test_a_text_or_a_label_that_is_missing_is_one_sentence_with_the_rows_number(
    tmp_path: Path, name: str, third: dict[str, Any] | str, sentence: str
) -> None:
    path = table(tmp_path / name, third)
    with pytest.raises(UserError, match=f"{path} has {sentence}: .*delete row 3 of {name}"):
        read_texts(path)


def test_of_two_tables_the_one_with_the_gap_is_named(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", "a,b")
    table(tmp_path / "dev.csv", "a,")
    with pytest.raises(UserError, match="without a label: fill in or delete row 3 of dev.csv"):
        read_texts(tmp_path)
    (tmp_path / "dev.csv").write_text("text\na\n")
    with pytest.raises(UserError, match="without a label: fill in or delete row 1 of dev.csv"):
        read_texts(tmp_path)


def test_a_split_that_is_not_used_needs_no_labels(tmp_path: Path) -> None:
    splits = ["train", "train", "validation", "test"]
    rows = [{"text": "a", "label": i % 2, "split": split} for i, split in enumerate(splits)]
    rows[3]["label"] = None
    train, test = read_splits(write(tmp_path / "t.json", rows))
    assert [row["label"] for row in (*train, *test)] == [0, 1, 0]


def test_a_row_without_a_split_is_not_for_testing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label,split\na,x,train\nb,y,\n")
    with pytest.raises(UserError, match="has 1 rows to train and 0 to test on"):
        read_splits(tmp_path / "t.csv")


def test_a_word_that_looks_like_nothing_is_a_label(tmp_path: Path) -> None:
    data = read_texts(table(tmp_path / "t.csv", "c,None"))
    assert data.num_classes == 3


def test_an_answer_may_be_empty_but_not_missing(tmp_path: Path) -> None:
    """28 of Alpaca's are empty. CSV cannot tell the two apart."""
    path = tmp_path / "t.json"
    path.write_text('[{"instruction": "a", "output": ""}, {"instruction": "b", "output": null}]')
    empty, missing = read_rows(path)
    assert text_of(empty, ["output"], path) == ""
    with pytest.raises(UserError, match="in the column output: fill in or delete row 2 of t.json"):
        text_of(missing, ["output"], path)
    (tmp_path / "t.csv").write_text("instruction,output\na,b\nc,\n")
    _, missing = read_rows(tmp_path / "t.csv")
    with pytest.raises(UserError, match="in the column output: fill in or delete row 2 of t.csv"):
        text_of(missing, ["output"], path)
