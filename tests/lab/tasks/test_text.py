from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from infobatch_lab import tasks
from infobatch_lab.download import Source
from infobatch_lab.errors import UserError
from infobatch_lab.settings import settings
from infobatch_lab.tasks import text
from infobatch_lab.tasks.text import ByLength, TextClassification
from tests.lab.pretrained import WORDS, put
from tests.lab.tasks.contract import check_contract


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path / "cache")


def sentences(num: int, first: int = 0) -> list[dict[str, Any]]:
    """Of different lengths; those with a positive word in them are of class 1."""
    rows = []
    for number in range(first, first + num):
        words = [WORDS[(7 * number + 3 * place) % len(WORDS)] for place in range(1 + number % 9)]
        rows.append({"sentence": " ".join(words), "label": int("good" in words or "warm" in words)})
    return rows


def write_sst2(folder: Path, num_train: int = 41, num_test: int = 10) -> None:
    rows = [{"split": "train", **row} for row in sentences(num_train)]
    rows += [{"split": "validation", **row} for row in sentences(num_test, first=num_train)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "sst2.parquet")


def no_progress(name: str, done: int, total: int) -> None:
    pass


def load(data: str, folder: Path) -> TextClassification:
    task = tasks.load(data, folder)
    assert isinstance(task, TextClassification)
    return task


def test_the_contract(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    chosen = settings("sst2", epochs=3, batch_size=8)
    check_contract(load("sst2", tmp_path), chosen, tmp_path)


def test_the_network_is_the_pretrained_one_with_a_new_head(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    task, chosen = load("sst2", tmp_path), settings("sst2")
    torch.manual_seed(0)
    first = task.network(chosen).state_dict()
    torch.manual_seed(1)
    second = task.network(chosen).state_dict()
    different = [name for name in first if not first[name].equal(second[name])]
    assert different == ["network.classifier.weight"]


def test_padding_changes_no_loss(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    task, chosen = load("sst2", tmp_path), settings("sst2")
    network = task.network(chosen).eval()

    def losses(places: range) -> torch.Tensor:
        batch = task.collate([task.train[place] for place in places])
        return task.batch_losses(network, batch, chosen, torch.Generator()).losses

    alone = torch.cat([losses(range(place, place + 1)) for place in range(9)])
    torch.testing.assert_close(losses(range(9)), alone)


def test_chunks_of_similar_length_have_the_gradient_of_the_padded_batch(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    task, chosen = load("sst2", tmp_path), settings("sst2")
    torch.manual_seed(3)
    network = task.network(chosen).eval()
    assert isinstance(network, ByLength)
    inputs, _ = task.collate([task.train[place] for place in range(21)])  # three chunks

    def gradients(logits: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(logits.square().sum(), list(network.parameters())))

    padded = network.network(**inputs).logits
    torch.testing.assert_close(network(**inputs), padded)
    torch.testing.assert_close(gradients(network(**inputs)), gradients(padded))


def test_the_accuracy_is_that_of_sentence_by_sentence(tmp_path: Path) -> None:
    write_sst2(tmp_path, num_test=70)  # more than one batch
    task, chosen = load("sst2", tmp_path), settings("sst2")
    torch.manual_seed(3)
    network = task.network(chosen).eval()
    assert isinstance(network, ByLength)
    plain = network.network  # transformers' own, one sentence at a time
    right = 0
    for tokens, label in (task.test[place] for place in range(70)):
        right += int(plain(input_ids=tokens[None]).logits.argmax()) == int(label)
    assert 0 < right < 70
    assert task.evaluate(network, chosen, final=True) == {"accuracy": right / 70}


def test_sst2_is_a_fixed_part_and_sst2_all_the_whole(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    data = text.read_sst2(tmp_path, no_progress, 6)
    whole = text.read_sst2(tmp_path, no_progress)
    assert data.train[0] == text.read_sst2(tmp_path, no_progress, 6).train[0]
    assert data.train[0] == whole.train[0][:6]
    assert sorted(whole.train[0]) == sorted(row["sentence"] for row in sentences(41))
    of_text = {row["sentence"]: row["label"] for row in sentences(41)}
    assert whole.train[1].tolist() == [of_text[sentence] for sentence in whole.train[0]]
    assert (len(load("sst2-all", tmp_path).train), load("sst2", tmp_path).num_test) == (41, 10)


def test_the_files_of_glue(tmp_path: Path) -> None:
    (tmp_path / "SST-2").mkdir()
    for name, rows in (("train", sentences(12)), ("dev", sentences(5, first=12))):
        lines = ["sentence\tlabel", *(f"{row['sentence']} \t{row['label']}" for row in rows)]
        (tmp_path / "SST-2" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    task = load("sst2", tmp_path)
    assert (len(task.train), task.num_test) == (12, 5)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    kinds = ["praise", "blame", "neither"]
    rows = [f"{row['sentence']},{kinds[i % 3]}" for i, row in enumerate(sentences(20))]
    table.write_text("\n".join(["text,label", *rows]))
    data = f"text:{table}"
    task = load(data, tmp_path)
    assert (len(task.train), task.num_test) == (16, 4)
    network, tokens = task.network(settings(data)), torch.tensor([[2, 3]])
    assert network(tokens, torch.ones_like(tokens)).shape == (1, 3)
    check_contract(task, replace(settings(data), epochs=2, batch_size=4), tmp_path)


def write_tsv(folder: Path) -> None:
    """As GLUE has it, with a space after each sentence."""
    folder.mkdir()
    for name, rows in (("train", sentences(41)), ("dev", sentences(10, first=41))):
        lines = [f"{row['sentence']} \t{row['label']}" for row in rows]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))


def test_glue_s_files_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tsv(tmp_path / "SST-2")
    published, folder = tmp_path / "SST-2.zip", tmp_path / "data"
    with zipfile.ZipFile(published, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (tmp_path / "SST-2").iterdir():
            archive.write(file, f"SST-2/{file.name}")
        for stranger in ("SST-2/test.tsv", "SST-2/../../escaped", "../escaped", "/escaped"):
            archive.writestr(stranger, "nobody asked for it")
    md5 = hashlib.md5(published.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(text, "GLUE", Source((published.as_uri(),), md5))
    heard = list[str]()
    tasks.load("sst2", folder, lambda name, *_: heard.append(name))
    assert set(heard) == {"SST-2.zip"}
    fetched = sorted(file for file in folder.rglob("*") if file.is_file())
    assert fetched == [folder / "SST-2" / "dev.tsv", folder / "SST-2" / "train.tsv"]
    assert not list(tmp_path.glob("**/escaped"))
    heard.clear()
    found = load("sst2", folder)
    assert heard == []
    write_sst2(tmp_path)
    beside = load("sst2", tmp_path)
    for one, other in ((found.train, beside.train), (found.test, beside.test)):
        assert one.labels.equal(other.labels)
        assert all(a.equal(b) for a, b in zip(one.tokens, other.tokens, strict=True))
    (folder / "SST-2" / "dev.tsv").unlink()
    tasks.load("sst2", folder, lambda name, *_: heard.append(name))
    assert set(heard) == {"SST-2.zip"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("text,label\na,1\nb,1\nc,1", r"has the labels \['1'\] to train on, expected"),
        ("text,kind\na,1\nb,1\nc,1", "has no column label, expected one beside the text"),
        ("text,label\na,3\nb,1\nc,2", "the label '3' in a row to test on, which is in none"),
        ("words,label\na,1\nb,1\nc,2", "row without a text in the column text or sentence"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=sentence):
        tasks.load(f"text:{tmp_path / 't.csv'}", tmp_path)


def test_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text.GLUE.urls[0].endswith("/glue/data/SST-2.zip")
    monkeypatch.setattr(text, "GLUE", Source(("http://127.0.0.1:9/SST-2.zip",), "0"))
    with pytest.raises(UserError) as missing:
        tasks.load("sst2", tmp_path)
    sentence, home = str(missing.value), tmp_path / "SST-2"
    assert sentence.startswith(f"{home / 'train.tsv'}, {home / 'dev.tsv'} are missing and could")
    assert "get http://127.0.0.1:9/SST-2.zip where there is a network, unpack it and" in sentence
    assert sentence.endswith("--data-dir.")
