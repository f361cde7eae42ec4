"""Hostile files: each is one sentence, nothing hangs, and nothing is written elsewhere.

Every case goes through the program's own entry, in this process.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from infobatch_lab import cli
from infobatch_lab.errors import UserError
from infobatch_lab.fields import UnreadableError
from infobatch_lab.lines import run_of
from infobatch_lab.metrics import ACCURACY
from infobatch_lab.queue import QueueFile, QueueState, status_of
from infobatch_lab.runs import read_file
from infobatch_lab.settings import settings
from infobatch_lab.tables import read_rows
from tests.lab.files import write_mnist
from tests.lab.lines import line_of, save

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program with these arguments, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["infobatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.run()
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    return run


def sentence(done: tuple[int, str, str]) -> str:
    """The one sentence of a failure."""
    code, out, err = done
    assert (code, out) == (1, ""), err
    assert err.startswith("infobatch: ")
    assert re.fullmatch(r"[^\n]{1,1100}\.\n", err), err
    assert err.rstrip("\n").isprintable()
    return err


LINE = line_of(settings("digits"), history=[{"kept_fraction": 1.0, "accuracy": 0.9}])


def with_value(name: str, text: str) -> str:
    """A good line with a member written as JSON does not mean it."""
    return json.dumps({**LINE, name: "HERE"}).replace('"HERE"', text)


# infobatch report ---------------------------------------------------------------------------------

LINES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "hold no run"),
    "binary junk": (b"\x00\xff\x89PNG\r\n\x1a\n" * 50, "no complete JSON"),
    "half of a line": (json.dumps(LINE)[:60], "no complete JSON"),
    "nested": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "nested in a line": (with_value("lr", '{"a":' * 100_000 + "1" + "}" * 100_000), "nested"),
    "thousands of digits": (with_value("seed", "9" * 5000), "thousands of digits"),
    "a huge integer": (with_value("num_samples", "1" + "0" * 400), "num_samples is 1000"),
    "a huge number": (with_value("train_seconds", "1e300"), "train_seconds is 1e+300"),
    "NaN": (with_value("accuracy", "NaN"), "accuracy is nan"),
    "infinity": (with_value("num_trained", "Infinity"), "num_trained is inf"),
    "a key twice": (with_value("lr", '1, "rule": "full"'), "has 'rule' twice"),
    "a long name": (with_value("model", '"' + "x" * 100_000 + '"'), "has 100,000 characters"),
    "a long option": (
        json.dumps({**LINE, "data": "mine", "options": {"o" * 100_000: 1}}),
        "has 100,000 characters",
    ),
    "an escape in a name": (with_value("seed", '"\\u001b[31mred"'), r"seed is '\x1b[31mred'"),
    "a list of text": (b'["a"]', "no JSON object"),
    "decimals": (with_value("metric", '{"name": "accuracy", "decimals": 9999999}'), "decimals"),
    "scale": (with_value("metric", '{"name": "accuracy", "scale": 0}'), "scale"),
    "no name of a metric": (with_value("metric", '{"name": ""}'), "name is ''"),
    "bins": (
        json.dumps({**LINE, "loss_distribution": {"epoch": 0, "edges": [1], "before": []}}),
        "edges",
    ),
    "seconds": (with_value("train_seconds", "-1"), "at least 0"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_file_without_a_run_is_one_sentence(run: Run, name: str) -> None:
    content, reason = LINES[name]
    Path("runs.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reason in sentence(run("report", "runs.jsonl"))
    assert not Path("report").exists()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def failing(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # may be opened, and cannot be read


NO_FILES = {"pipe": pipe, "loop": loop, "folder": folder, "device": device, "failing": failing}


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_does_not_hang_and_hides_no_other_run(run: Run, name: str) -> None:
    """Each is found beside a good file, and named alone."""
    Path("runs").mkdir()
    NO_FILES[name](Path("runs/a.jsonl"))
    NO_FILES[name](Path("scores.npy"))
    sentence(run("report", "runs/a.jsonl"))
    sentence(run("plan", "scores.npy"))
    save(Path("runs/b.jsonl"), LINE)
    code, out, _ = run("report", "runs", "--json")
    assert code == 0
    assert [len(of["methods"]) for of in json.loads(out)["comparisons"]] == [1]


JUNK: tuple[Any, ...] = (
    None, True, -1, 0.5, 10**400, 10**30, float("nan"), float("inf"), "", " ", "x", "\ud800",
    "\x00", "$x", [], [1], [[]], {}, {"name": "x"}, {"a": {"b": []}},
)  # fmt: skip


FIELDS = [*LINE, "metric", "loss_distribution", "machine", "versions", "load", "commit", "command"]


@pytest.mark.parametrize("name", FIELDS)
def test_any_value_in_any_field_is_a_run_or_a_reason(name: str) -> None:
    for value in JUNK:
        for line in ({**LINE, name: value}, {**LINE, "data": "mine", name: value}):
            texts = shown_of(line)
            assert all(text.isprintable() for text in texts)
            assert sum(map(len, texts)) < 2000


def shown_of(line: dict[str, Any]) -> list[str]:
    """What is shown of a line, or why it is none."""
    try:
        read = run_of(line)
    except UnreadableError as error:
        return [str(error)]
    hash(read.settings)
    return [read.rule, read.command, read.machine, *map(str, read.compared)]


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_are_text_wherever_they_are_shown(run: Run) -> None:
    """TeX in figures, markup in tables, tags on the page, folders in names of files."""
    metric = {**asdict(ACCURACY), "name": "../../$\\frac{", "label": "[/b] $x_{ <b>"}
    names = {
        "data": "<script>alert(1)</script>",
        "model": "$\\undefined{",
        "command": "\x1b[2J\x1b]0;title\x07",
        "options": {"</style>": "\ud800 \u202e 字", "$^": "long " * 50},
    }
    losses = {"epoch": 1, "edges": [0.001, 0.1, 10.0], "before": [9, 5], "after": [4, 5],
              "rescaled": [9, 5]}  # fmt: skip
    lines = [
        {**LINE, **names, "rule": rule, "seed": seed, "metric": metric, metric["name"]: 0.9,
         "loss_distribution": losses, "history": [{"kept_fraction": kept, metric["name"]: 0.5}] * 2}
        for rule, kept in (("full", 1), ("[/red]$_$" + "n" * 280, 0.5)) for seed in (0, 1)
    ]  # fmt: skip
    save(Path("runs.jsonl"), *map(json.dumps, lines))
    code, out, err = run("report", "runs.jsonl", "--out", "pages/here")
    assert (code, err) == (0, "")
    written = [path for path in Path().rglob("*") if path.is_file()]
    assert all(path.parent == Path("pages/here") for path in written if path.suffix != ".jsonl")
    assert len(written) > 4
    page = Tags()
    page.feed(Path(out.strip()).read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert r"\ud800 \u202e 字" in page.text
    assert "\x1b" not in page.text


# infobatch plan -----------------------------------------------------------------------------------


def npy(header: str, content: bytes = b"") -> bytes:
    """An npy file with any header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def npy_of(shape: str, kind: str = "<f8", content: bytes = b"") -> bytes:
    return npy(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}", content)


def npz(members: dict[str, bytes], *, declared: int | None = None) -> bytes:
    """An npz archive; with `declared`, its directory says that members unpack to so many bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
        if declared is not None:
            for info in archive.infolist():
                info.file_size = declared
    return file.getvalue()


def npy_bytes(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), file)
    return file.getvalue()


SCORES = {
    "empty.npy": (b"", "cannot be read as .npy"),
    "junk.npy": (os.urandom(500), "cannot be read as .npy"),
    "terabytes.npy": (npy_of("(1000000000000,)"), "declares 8,000,000,000,000 bytes"),
    "overflow.npy": (npy_of("(4611686018427387904, 4)"), "declares"),
    "negative.npy": (npy_of("(-5,)"), "declares"),
    "dimensions.npy": (npy_of("(" + "1," * 200 + ")", content=bytes(8)), "cannot be read"),
    "nested.npy": (npy("(" * 5000), "cannot be read as .npy"),
    "objects.npy": (npy_bytes(np.array([{}], dtype=object)), "pickled objects"),
    "text.npy": (npy_bytes(np.array(["a", "b"])), "expected one number per sample"),
    "short.npy": (npy_of("(5,)", content=bytes(8)), "it is cut off"),
    "junk.npz": (b"PK\x03\x04" + os.urandom(200), "cannot be read as .npz"),
    "objects.npz": (npz({"a": npy_bytes(np.array([{}], dtype=object))}), "pickled objects"),
    "bomb.npz": (
        npz({"a": npy_of("(9,)")}, declared=10**13),
        "would take 10,000,000,000,000 bytes",
    ),
    "terabytes.npz": (npz({"a": npy_of("(1000000000000,)")}), "declares"),
    "names.npz": (npz({"x" * 9_000: b"", "y": b""}), "has no column 'score'"),
    "none.npz": (npz({}), "has no column 'score'"),
    "nul.csv": (b"score\n1\0\n", "cannot be read as .csv"),
    "long.csv": (b"score\n" + b"1" * 200_000 + b"\n", "field larger than field limit"),
    "words.csv": (b"score\n" + b"x" * 100_000 + b"\n", "could not convert string to float"),
    "columns.csv": (b",".join([b"c"] * 100_000) + b"\n", "has no column 'score'"),
    "escape.csv": (b"\x1b[31m,b\n1,2\n", r"name one of \x1b[31m, b"),
    "latin.csv": (b"\xff\xfe1\n", "cannot be read as .csv"),
    "cut.parquet": (parquet(score=[1.0, 2.0])[:-20], "cannot be read as .parquet"),
    "text.parquet": (parquet(score=["a", "b"]), "holds string in 'score'"),
    "nested.parquet": (parquet(score=[[1.0], [2.0]]), "expected one number per sample"),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_that_are_none_are_one_sentence(run: Run, name: str) -> None:
    content, reason = SCORES[name]
    Path(name).write_bytes(content)
    assert reason in sentence(run("plan", name))


def test_scores_of_any_size_are_planned_without_a_warning(run: Run) -> None:
    Path("a.csv").write_text("score\n1e400\n1e300\n-1e300\n1\n2\n")
    code, out, err = run("plan", "a.csv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["num_unseen"] == 3


# infobatch train ----------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """A PNG file that declares a size, and holds no pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def gz_bomb(header: bytes) -> bytes:
    """A few megabytes that unpack to 5 GiB: a gzip file may have many parts."""
    return gzip.compress(header) + gzip.compress(bytes(2**20)) * 5_000


GOOD = {"x": npy_bytes(np.zeros((9, 8, 8), np.uint8)), "y": npy_bytes(np.arange(9) % 3)}


def archive(**changed: Any) -> bytes:
    """A good archive but for these arrays."""
    return npz({**GOOD, **{name: npy_bytes(values) for name, values in changed.items()}})


ARCHIVES = {
    "bomb": (npz(GOOD, declared=10**13), "would take 10,000,000,000,000 bytes"),
    "terabytes": (npz({**GOOD, "x": npy_of("(1000000,1000,1000)")}), "declares 8,000,000,000,000"),
    "objects": (archive(x=np.array([{}], dtype=object)), "pickled objects"),
    "names": (npz({"a": GOOD["x"]}), "has the arrays a, expected x_train and y_train, "),
    "shape": (archive(x=np.zeros((9, 64))), "has the shape (9, 64)"),
    "channels": (archive(x=np.zeros((9, 8, 8, 4))), "one or three channels"),
    "values": (archive(x=np.full((9, 8, 8), 300)), "expected whole numbers"),
    "NaN": (archive(x=np.full((9, 8, 8), np.nan)), "from nan to nan"),
    "labels": (archive(y=np.zeros(8, int)), "for 9 images"),
    "one class": (archive(y=np.zeros(9, int)), "expected at least two"),
    "no image": (archive(x=np.zeros((0, 8, 8)), y=np.zeros(0, int)), "has the shape (0, 8"),
    "other classes": (
        archive(x_test=np.zeros((9, 8, 8)), y_test=np.full(9, 7)),
        "tests the class 7",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_is_no_data_set_is_one_sentence(run: Run, name: str) -> None:
    content, reason = ARCHIVES[name]
    Path("a.npz").write_bytes(content)
    assert reason in sentence(run("train", "--data", "npz:a.npz"))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\0\0\x08\xff" + b"\1" * 2000, "has 255 dimensions"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "would take 79,2"),
        (b"\0\0\x08\x03" + bytes(8), "damaged or not complete"),
        (b"", "begins with nothing"),
        (b"\x89PNG", "is no idx file"),
        (gz_bomb(b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 4)), "or more, expected 40"),
        (gz_bomb(b""), "is no idx file"),
    ],
    ids=["dimensions", "sizes", "short", "empty", "image", "bomb", "zeros"],
)
def test_an_idx_file_that_is_none_is_one_sentence(run: Run, content: bytes, reason: str) -> None:
    write_mnist(Path("data/mnist"), 4, 4)
    zipped = content if content[:2] == b"\x1f\x8b" else gzip.compress(content)
    Path("data/mnist/train-images-idx3-ubyte.gz").write_bytes(zipped)
    assert reason in sentence(run("train", "--data", "mnist", "--data-dir", "data"))


def test_images_that_are_none_are_one_sentence(run: Run) -> None:
    for path in ("a/0.png", "b/0.png", "a/1.png", "b/1.png"):
        Path("images", path).parent.mkdir(parents=True, exist_ok=True)
        Path("images", path).write_bytes(png(8, 8))
    target = Path("images/a/1.png")
    for content in (png(60_000, 60_000), png(12_000, 12_000), png(2**31 - 1, 2**31 - 1), png(0, 0),
                    b"", b"GIF89a" + bytes(20), b"\x89PNG\r\n\x1a\n", png(8, 8)):  # fmt: skip
        target.write_bytes(content)
        assert "cannot be read as an image" in sentence(run("train", "--data", "folder:images"))
    for make in (pipe, loop, device):
        target.unlink()
        make(target)
        assert "images/a/1.png " in sentence(run("train", "--data", "folder:images"))
    assert "File name too long" in sentence(run("train", "--data", "folder:" + "x" * 100_000))


SAVED = {
    "nothing": ({}, "cannot be read: No such file"),
    "junk": ({"state.json": "\0"}, "is no saved data set"),
    "nested": ({"state.json": "[" * 100_000}, "is no saved data set"),
    "a list": ({"state.json": "[]"}, "is no saved data set"),
    "no files": ({"state.json": '{"_data_files": []}'}, "is no saved data set"),
    "outside": ({"state.json": '{"_data_files": [{"filename": "../../a.arrow"}]}'}, "a.arrow"),
    "indices": ({"state.json": '{"_indices_files": [1]}'}, "keeps its order in a file"),
    "splits": ({"dataset_dict.json": '{"splits": ["train"]}'}, "has the splits ['train']"),
    "no splits": ({"dataset_dict.json": "{}"}, "is no saved data set"),
    "junk data": (
        {"state.json": '{"_data_files": [{"filename": "a"}]}', "a": "junk" * 99},
        "is no saved data set",
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_folder_that_is_no_saved_data_set_is_one_sentence(run: Run, name: str) -> None:
    files, reason = SAVED[name]
    Path("saved").mkdir()
    for file, content in files.items():
        Path("saved", file).write_text(content)
    assert reason in sentence(run("train", "--data", "hf:saved"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"[" * 100_000),
        ("a.jsonl", b'{"a":' * 100_000),
        ("a.csv", b"text\n" + b"x" * 200_000),
        ("a.parquet", b"PAR1junkPAR1"),
        ("a.json", b"\xff"),
    ],
)
def test_a_table_that_is_none_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_rows(tmp_path / name)


# The queue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "x"}, {"kind": []},
        {"at_work": {"a": "half"}}, {"at_work": [1]}, {"jobs": "x"}, {"jobs": -3}, {"matching": 3},
        {"cells": [1, None, [], {"data": []}]}, {"cells": {}}, {"process": 10**30}, {"process": {}},
        {"cells": [{**LINE, "epochs": -1}]}, {"cells": [{**LINE, "model": [1]}]},
        {"checkpoint_every": 10**400},
    ],
)  # fmt: skip
def test_a_strange_queue_is_an_empty_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = QueueFile(tmp_path / "runs.jsonl")
    file.write([QueueState(())])
    (record,) = json.loads(file.path.read_text())
    strange = {**record, **changes}
    for content in (json.dumps(strange), json.dumps([strange, [], None])):
        file.path.write_text(content)
        assert status_of(file)["runs"] == []
    file.path.write_text("[" * 100_000)
    assert status_of(file)["runs"] == []
    file.path.unlink()
    pipe(file.path)
    assert status_of(file)["runs"] == []


# Links --------------------------------------------------------------------------------------------


def test_nothing_is_written_through_a_link(run: Run) -> None:
    outside = Path("outside")
    outside.write_text("a user's file")
    Path("out/checkpoints").mkdir(parents=True)
    save(Path("runs.jsonl"), LINE)
    short = ["--epochs", 1, "--batch-size", 256, "--out", "out"]
    commands: dict[str, list[object]] = {
        "out/runs.jsonl": ["train", *short],
        "out/queue.paused": ["queue", "pause", "--out", "out"],
        "out/index.html": ["report", "runs.jsonl", "--out", "out"],
        "page.html": ["report", "runs.jsonl", "--out", "page.html"],
        "out/demo.jsonl": ["demo", "--seeds", 1, "--out", "out"],
    }
    for link, command in commands.items():
        Path(link).symlink_to(outside.absolute())
        assert f"{link} is a symbolic link" in sentence(run(*command))
        Path(link).unlink()
        Path(link).symlink_to("nowhere/yet")  # would be made by writing to it
        assert f"{link} is a symbolic link" in sentence(run(*command))
        Path(link).unlink()
    assert outside.read_text() == "a user's file"
    assert not list(Path("out").glob("*.*"))


def test_the_folder_itself_may_be_a_link(run: Run) -> None:
    Path("disk").mkdir()
    Path("out").symlink_to("disk")
    assert run("queue", "pause", "--out", "out")[0] == 0
    assert Path("disk/queue.paused").exists()


def test_runs_are_not_added_to_a_pipe(run: Run) -> None:
    Path("runs").mkdir()
    pipe(Path("runs/runs.jsonl"))
    assert "runs.jsonl is no file" in sentence(run("train", "--epochs", 1))


def test_a_full_disk_is_one_sentence_and_costs_one_line(run: Run) -> None:
    short = ["train", "--epochs", 1, "--batch-size", 256]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        told = sentence(run(*short))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in told
    assert run(*short)[0] == 0
    notes: list[str] = []
    assert len(read_file(Path("runs/runs.jsonl"), notes.append)) == 1
    assert "runs.jsonl:1 is left out" in notes[0]


@pytest.mark.parametrize(
    ("indices", "facts"),
    [
        ([-1, 2], None),
        (np.array([2**64 - 1, 1], dtype=np.uint64), None),
        ([0.5], None),
        ([1, 1], None),
        ([0, 1], "[" * 100_000),
        ([0, 1], '{"weights": {}, "num_samples": 2, "data": 3}'),
        ([0, 1], '{"weights": [1' + "0" * 400 + '], "num_samples": 2}'),
        ([0, 1], "[]"),
    ],
)
def test_a_subset_that_is_none_is_one_sentence(run: Run, indices: Any, facts: str | None) -> None:
    np.save("a.npy", np.asarray(indices))
    if facts is not None:
        Path("a.json").write_text(facts)
    reason = "different indices" if facts is None else "does not belong to a.npy"
    assert reason in sentence(run("train", "--subset", "a.npy"))
