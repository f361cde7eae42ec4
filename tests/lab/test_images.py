from __future__ import annotations

import gzip
import hashlib
import io
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infobatch_lab import download, tasks
from infobatch_lab import images as image_files
from infobatch_lab.checkpoints import Checkpoint
from infobatch_lab.download import Fetching, Source, fetch
from infobatch_lab.errors import UserError
from infobatch_lab.images import ImageData
from infobatch_lab.settings import settings
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.training import train
from tests.lab.files import (
    cifar_records,
    environment,
    until,
    write_cifar,
    write_idx,
    write_mnist,
)
from tests.lab.pictures import write


def load(name: str, folder: Path, progress: Fetching = lambda *_: None) -> ImageData:
    """The images of a task."""
    task = tasks.load(name, folder, progress)
    assert isinstance(task, Classification)
    return task.data


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every home is a port that nobody listens on."""
    nowhere = "http://127.0.0.1:9/"
    monkeypatch.setattr(image_files, "MNIST", ((nowhere,), image_files.MNIST[1]))
    monkeypatch.setattr(image_files, "CIFAR10", Source((f"{nowhere}cifar-10-binary.tar.gz",), "0"))


# Good files ---------------------------------------------------------------------------------------


def test_digits_are_the_images_of_scikit_learn_each_once() -> None:
    from sklearn.datasets import load_digits

    task = load("digits", Path("unused"))
    assert (len(task.train), len(task.test), task.num_classes) == (1437, 360, 10)
    ours = np.concatenate([task.train.images.numpy(), task.test.images.numpy()]).reshape(-1, 64)
    labels = np.concatenate([task.train.labels.numpy(), task.test.labels.numpy()])
    rows = sorted((*row, label) for row, label in zip((ours // 15).tolist(), labels, strict=True))
    pixels, classes = load_digits(return_X_y=True)
    theirs = sorted((*r, c) for r, c in zip(pixels.astype(int).tolist(), classes, strict=True))
    assert rows == theirs


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_plain_and_gzipped(tmp_path: Path, name: str, gz: bool) -> None:
    write_mnist(tmp_path / name, gz=gz)
    task = load(name, tmp_path)
    assert task.train.images.shape == (60, 28, 28, 1)
    assert len(task.test) == 20
    suffix = ".gz" if gz else ""
    content = (tmp_path / name / f"train-images-idx3-ubyte{suffix}").read_bytes()
    content = gzip.decompress(content) if gz else content
    assert task.train.images.numpy().tobytes() == content[16:]


def test_cifar_planes_become_pixels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    parts = [cifar_records(3 + n, num_labels=1, num_classes=10) for n in range(6)]
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    for name, (images, labels) in zip(names, parts, strict=True):
        write_cifar(folder / name, images, labels, 1)
    task = load("cifar10", tmp_path)
    assert len(task.train) == 3 + 4 + 5 + 6 + 7
    red, green, blue = parts[0][0][2]
    assert np.array_equal(task.train.images[2].numpy(), np.stack([red, green, blue], axis=-1))
    assert task.train.labels[:3].tolist() == parts[0][1].tolist()
    assert task.test.labels.tolist() == parts[5][1].tolist()


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    for name, num in (("train.bin", 9), ("test.bin", 4)):
        images, labels = cifar_records(num, num_labels=2, num_classes=100)
        write_cifar(tmp_path / "cifar-100-binary" / name, images, labels, 2)
    task = load("cifar100", tmp_path)
    _, labels = cifar_records(9, num_labels=2, num_classes=100)
    assert task.train.labels.tolist() == labels.tolist()
    assert task.num_classes == 100


def test_a_batch_is_fetched_in_one_piece(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    train = load("mnist", tmp_path).train
    x, y = train.__getitems__([5, 2, 5])
    assert x.equal(train.images[[5, 2, 5]])
    assert y.tolist() == [int(train[i][1]) for i in (5, 2, 5)]


# A folder -----------------------------------------------------------------------------------------


def paint(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 20), colour).save(path)


def test_a_folder_per_class(tmp_path: Path) -> None:
    for number in range(10):
        paint(tmp_path / "red" / f"{number}.png", (255, 0, 0))
        paint(tmp_path / "blue" / f"{number}.bmp", (0, 0, 255))
    (tmp_path / "red" / "notes.txt").write_text("not an image")
    task = load(f"folder:{tmp_path}", Path("unused"))
    assert (len(task.train), len(task.test), task.num_classes) == (16, 4, 2)
    for split in (task.train, task.test):
        blue = split.images[:, 0, 0, 2] == 255
        assert blue.equal(split.labels == 0)  # classes are sorted: blue is 0


def test_a_folder_with_splits(tmp_path: Path) -> None:
    for split, num in (("train", 3), ("val", 2)):
        for name in ("a", "b"):
            for number in range(num):
                paint(tmp_path / split / name / f"{number}.png", (number, 0, 0))
    task = load(f"folder:{tmp_path}", Path("unused"))
    assert (len(task.train), len(task.test)) == (6, 4)
    paint(tmp_path / "val" / "c" / "0.png", (0, 0, 0))
    with pytest.raises(UserError, match="class 'c', which train has not"):
        load(f"folder:{tmp_path}", Path("unused"))


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda folder: None, "0 folders with images, expected one for each of at least two"),
        (lambda folder: paint(folder / "a" / "0.png", (0, 0, 0)), "1 folders with images"),
        (lambda folder: (folder / "train").mkdir(), "none called test or val"),
    ],
)
def test_a_folder_that_is_none(tmp_path: Path, prepare: object, sentence: str) -> None:
    assert callable(prepare)
    prepare(tmp_path)
    with pytest.raises(UserError, match=sentence):
        load(f"folder:{tmp_path}", Path("unused"))
    with pytest.raises(UserError, match="is no folder"):
        load(f"folder:{tmp_path}/nothing", Path("unused"))


def test_an_image_that_is_none_is_named(tmp_path: Path) -> None:
    for number in range(3):
        paint(tmp_path / "a" / f"{number}.png", (0, 0, 0))
        paint(tmp_path / "b" / f"{number}.png", (0, 0, 0))
    (tmp_path / "b" / "1.png").write_bytes(b"\x89PNG but cut")
    with pytest.raises(UserError, match=r"b/1\.png cannot be read as an image"):
        load(f"folder:{tmp_path}", Path("unused"))


# Damaged files ------------------------------------------------------------------------------------


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


def test_a_truncated_idx_file(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", gz=False)
    cut(tmp_path / "mnist" / "train-images-idx3-ubyte", 1)
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte has 47,055 bytes, expected 47,056"
    ):
        load("mnist", tmp_path)


def test_a_truncated_header(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", gz=False)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(UserError, match="damaged or not complete"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("num_bytes", [1, 30])
def test_a_truncated_gzip_file(tmp_path: Path, num_bytes: int) -> None:
    write_mnist(tmp_path / "mnist")
    cut(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", num_bytes)
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0\0\x0d\x01\0\0\0\x01xxxx", b"<html>not found</html>"])
def test_a_wrong_magic_number(tmp_path: Path, content: bytes) -> None:
    write_mnist(tmp_path / "mnist", gz=False)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(UserError, match="is no idx file of bytes"):
        load("mnist", tmp_path)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    write_idx(labels, np.zeros(59))
    with pytest.raises(UserError, match="expected one label per image"):
        load("mnist", tmp_path)
    write_idx(labels, np.full(60, 10))
    with pytest.raises(UserError, match="labels up to 10 for 60 images, expected 0 to 9"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("num_bytes", [1, 3073, 2 * 3073])
def test_a_truncated_cifar_file(tmp_path: Path, num_bytes: int) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    images, labels = cifar_records(2, num_labels=1, num_classes=10)
    for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
        write_cifar(folder / name, images, labels, 1)
    cut(folder / "data_batch_3.bin", num_bytes)
    if num_bytes == 3073:  # a whole image: nothing in the format tells
        assert len(load("cifar10", tmp_path).train) == 9
    else:
        with pytest.raises(UserError, match=r"data_batch_3\.bin has .* bytes, expected"):
            load("cifar10", tmp_path)


def test_nothing_is_unpickled() -> None:
    source = "".join(Path(module.__file__ or "").read_text() for module in (image_files, download))
    assert "import pickle" not in source
    assert "allow_pickle" not in source
    assert "torch.load" not in source


# Fetching -----------------------------------------------------------------------------------------


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(UserError) as missing:
        load("mnist", tmp_path)
    sentence = str(missing.value)
    assert str(tmp_path / "mnist" / "train-images-idx3-ubyte.gz") in sentence
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz" in sentence
    assert "--data-dir" in sentence
    with pytest.raises(UserError) as missing:
        load("cifar10", tmp_path)
    assert str(tmp_path / "cifar-10-batches-bin" / "test_batch.bin") in str(missing.value)
    assert "unpack it" in str(missing.value)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server of this machine, and the folder that it serves."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with serving(partial(Quiet, directory=str(folder))) as url:
        yield url, folder


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server while it runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/"
        http.shutdown()
        thread.join()


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def test_missing_idx_files_are_fetched_once(
    tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    write_mnist(served)
    sums = tuple(md5(served / f"{name}.gz") for name in image_files.IDX_FILES)
    monkeypatch.setattr(image_files, "MNIST", (("http://127.0.0.1:9/", url), sums))
    heard: list[tuple[str, int, int]] = []
    task = load("mnist", tmp_path / "cache", lambda *what: heard.append(what))
    assert len(task.train) == 60
    last = {file: (done, total) for file, done, total in heard}
    assert len(last) == 4
    assert all(done == total > 0 for done, total in last.values())
    heard.clear()
    load("mnist", tmp_path / "cache", lambda *what: heard.append(what))
    assert heard == []


def test_an_archive_gives_what_is_missing_and_nothing_else(
    tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    images, labels = cifar_records(2, num_labels=1, num_classes=10)
    write_cifar(tmp_path / "image.bin", images, labels, 1)
    with tarfile.open(served / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
            archive.add(tmp_path / "image.bin", f"cifar-10-batches-bin/{name}")
        stranger = tarfile.TarInfo("../escaped")
        archive.addfile(stranger, io.BytesIO())
    address = f"{url}cifar-10-binary.tar.gz"
    source = Source((address,), md5(served / "cifar-10-binary.tar.gz"))
    monkeypatch.setattr(image_files, "CIFAR10", source)
    kept = tmp_path / "cache" / "cifar-10-batches-bin" / "data_batch_1.bin"
    write_cifar(kept, images[:1], labels[:1], 1)
    assert len(load("cifar10", tmp_path / "cache").train) == 1 + 4 * 2
    assert sorted(p.name for p in kept.parent.iterdir()) == sorted(
        [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    )
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["cifar-10-batches-bin"]


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, served = server
    (served / "file.gz").write_bytes(b"something else")
    target = tmp_path / "cache" / "file.gz"
    with pytest.raises(UserError, match=f"its checksum is {md5(served / 'file.gz')}, expected 123"):
        fetch(Source((f"{url}file.gz",), "123"), target, lambda *what: None)
    assert list(target.parent.iterdir()) == []


def test_a_file_that_is_not_there(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, _ = server
    with pytest.raises(UserError, match="could not be fetched"):
        fetch(Source((f"{url}none.gz",), "123"), tmp_path / "c" / "none.gz", lambda *what: None)


class Halting(BaseHTTPRequestHandler):
    """Sends half of a file, and the rest when it may."""

    content = bytes(range(256)) * (1 << 12)
    go_on: threading.Event
    num_halted = 0
    breaks = False

    def do_GET(self) -> None:
        half = len(self.content) // 2
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[:half])
        if self.breaks:
            return
        type(self).num_halted += 1
        self.go_on.wait()
        with suppress(OSError):  # of a client that is gone
            self.wfile.write(self.content[half:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def halting() -> Iterator[tuple[type[Halting], Source]]:
    """A server that halts in the middle, and what it serves."""

    class Handler(Halting):
        go_on = threading.Event()

    with serving(Handler) as url:
        checksum = hashlib.md5(Handler.content, usedforsecurity=False).hexdigest()
        yield Handler, Source((f"{url}file.gz",), checksum)
        Handler.go_on.set()


def test_a_body_that_breaks_off_leaves_nothing_behind(
    tmp_path: Path, halting: tuple[type[Halting], Source]
) -> None:
    handler, source = halting
    handler.breaks = True
    target = tmp_path / "cache" / "file.gz"
    with pytest.raises(UserError, match="connection broke after 524,288 of 1,048,576 bytes"):
        fetch(source, target, lambda *what: None)
    assert list(target.parent.iterdir()) == []


FETCH = """
import sys
from pathlib import Path
from infobatch_lab.download import Source, fetch
fetch(Source((sys.argv[1],), sys.argv[2]), Path(sys.argv[3]), lambda *what: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_is_not_taken_for_whole(
    tmp_path: Path, halting: tuple[type[Halting], Source], number: signal.Signals
) -> None:
    handler, source = halting
    target = tmp_path / "cache" / "file.gz"
    command = [sys.executable, "-c", FETCH, source.urls[0], source.md5, str(target)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        until(lambda: any(part.stat().st_size for part in tmp_path.glob("cache/*")), process)
        process.send_signal(number)
    assert not target.exists()
    assert len(list(target.parent.iterdir())) == (number == signal.SIGKILL)
    handler.go_on.set()
    fetch(source, target, lambda *what: None)
    assert target.read_bytes() == handler.content


@pytest.mark.slow
def test_two_processes_may_fetch_the_same_at_once(
    tmp_path: Path, halting: tuple[type[Halting], Source]
) -> None:
    handler, source = halting
    target = tmp_path / "cache" / "file.gz"
    command = [sys.executable, "-c", FETCH, source.urls[0], source.md5, str(target)]
    processes = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) for _ in range(2)
    ]
    until(lambda: handler.num_halted == 2, processes[0])
    handler.go_on.set()
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert list(target.parent.iterdir()) == [target]
    assert target.read_bytes() == handler.content


def test_an_unknown_data_set() -> None:
    with pytest.raises(UserError, match="data is 'imagenet', expected one of digits"):
        load("imagenet", Path("unused"))


def write_tiny_imagenet(folder: Path, num_per_class: int) -> Path:
    """Its own folder, with a dark and a bright class."""
    home = folder / "tiny-imagenet-200"
    shades = {"n01": 10, "n02": 200}
    for name, shade in shades.items():
        for number in range(num_per_class):
            image = np.full((64, 64, 3), shade + number, dtype=np.uint8)
            write(home / "train" / name / "images" / f"{name}_{number}.png", image)
    lines = []
    for number, name in enumerate(["n02", "n01", "n02"]):
        image = np.full((64, 64, 3), shades[name], dtype=np.uint8)
        write(home / "val" / "images" / f"val_{number}.png", image)
        lines.append(f"val_{number}.png\t{name}\t0\t0\t63\t63\n")
    (home / "val" / "val_annotations.txt").write_text("".join(lines))
    return home


def test_tiny_imagenet_s_own_folder_is_read(tmp_path: Path) -> None:
    home = write_tiny_imagenet(tmp_path, 3)
    data = load("tiny-imagenet", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes) == (6, 3, 2)
    for split in (data.train, data.test):
        is_bright = split.images.float().mean((1, 2, 3)) > 100
        assert is_bright.long().equal(split.labels)

    (home / "val" / "val_annotations.txt").write_text("val_0.png\tn03\n")
    with pytest.raises(UserError, match="has the class 'n03', which train has not"):
        load("tiny-imagenet", tmp_path)
    with pytest.raises(UserError, match=r"tiny-imagenet-200 is missing: unpack"):
        load("tiny-imagenet", tmp_path / "nowhere")


@pytest.mark.slow
def test_tiny_imagenet_is_trained(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path, 8)
    chosen = settings("tiny-imagenet", model="tiny", epochs=1, batch_size=4)
    run = train(chosen, tasks.load(chosen.data, tmp_path), Checkpoint(tmp_path / "run.pt"))
    assert isinstance(run, dict)
    assert (run["num_samples"], run["num_trained"], run["num_test"]) == (16, 16, 3)
    assert run["accuracy"] == 1
