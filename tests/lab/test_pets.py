"""The heads of cats and dogs in Oxford-IIIT Pet's own files: what is cut, and what is fetched."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infobatch_lab import pets
from infobatch_lab.download import Fetching, Source
from infobatch_lab.errors import UserError
from infobatch_lab.pets import read_heads
from infobatch_lab.pictures import decode
from tests.lab.pictures import encoded, write_pet

NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every home is a port that nobody listens on."""
    monkeypatch.setattr(pets, "IMAGES", Source((f"{NOWHERE}images.tar.gz",), "0"))
    monkeypatch.setattr(pets, "ANNOTATIONS", Source((f"{NOWHERE}annotations.tar.gz",), "0"))


def heads(home: Path, side: int = 64, progress: Fetching = lambda *_: None) -> list[np.ndarray]:
    return read_heads(home, side, progress)[0]


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def plain(colour: int, width: int = 20, height: int = 10) -> np.ndarray:
    return np.full((height, width, 3), colour, dtype=np.uint8)


WHOLE = (1, 1, 20, 10)
"""The box of all that `plain` shows."""


# Good files ---------------------------------------------------------------------------------------


def test_a_head_is_what_its_box_shows_with_pixels_counted_from_1(tmp_path: Path) -> None:
    pixels = noise(width=120, height=90)
    write_pet(tmp_path, "pug_1", (1, 11, 64, 74), pixels)
    write_pet(tmp_path, "pug_2", (57, 27, 120, 90), pixels)
    upper_left, lower_right = heads(tmp_path)
    assert np.array_equal(upper_left, pixels[10:74, :64])
    assert np.array_equal(lower_right, pixels[26:, 56:])


def test_a_head_of_any_shape_becomes_a_square(tmp_path: Path) -> None:
    pixels = plain(0, width=300, height=200)
    pixels[20:60, 100:200], pixels[20:60, 200:300] = (250, 0, 0), (0, 0, 250)
    write_pet(tmp_path, "pug_1", (101, 21, 300, 60), pixels)
    (found,) = heads(tmp_path)
    assert found.shape == (64, 64, 3)
    assert found.dtype == np.uint8
    assert (found[:, :30] == (250, 0, 0)).all()
    assert (found[:, 34:] == (0, 0, 250)).all()


def test_smaller_heads_are_as_sharp_as_those_of_the_table(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", (1, 1, 200, 200), noise(width=200, height=200))
    (of_the_table,) = heads(tmp_path)
    (found,) = heads(tmp_path, side=32)
    assert np.array_equal(found, decode(encoded(of_the_table), (32, 32)))


def test_heads_come_by_file_name_and_breeds_are_numbered_in_any_case(tmp_path: Path) -> None:
    names = ["american_pit_bull_terrier_1", "Bengal_2", "american_bulldog_9", "Bengal_10"]
    for name in names:
        write_pet(tmp_path, name, WHOLE, plain(len(name)))
    found, labels = read_heads(tmp_path, 64, lambda *_: None)
    ordered = ["Bengal_10", "Bengal_2", "american_bulldog_9", "american_pit_bull_terrier_1"]
    assert [int(image[0, 0, 0]) for image in found] == [len(name) for name in ordered]
    assert labels == [2, 2, 0, 1]


def test_a_jpeg_is_read_and_a_grey_one_becomes_coloured(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", WHOLE, plain(0))
    Image.new("L", (20, 10), 128).save(tmp_path / "images" / "pug_1.jpg", "JPEG")
    (found,) = heads(tmp_path)
    assert found.shape == (64, 64, 3)
    assert (abs(found.astype(int) - 128) < 3).all()


def test_photographs_without_a_box_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", WHOLE, plain(1))
    write_pet(tmp_path, "pug_2", WHOLE, plain(2))
    (tmp_path / "annotations" / "xmls" / "pug_2.xml").unlink()
    (tmp_path / "annotations" / "xmls" / "._pug_1.xml").write_bytes(b"\0\x05\x16\x07")
    assert len(heads(tmp_path)) == 1


def test_what_a_box_shows_beyond_the_photograph_is_left_out(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", (-5, 0, 30, 11), plain(200))
    (found,) = heads(tmp_path)
    assert (found == 200).all()


# Files that cannot be used ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "sentence"),
    [
        ((12, 1, 11, 9), r"the box \(12, 1, 11, 9\) in a photograph of 20 x 10 pixels, expected"),
        ((1, 9, 12, 8), r"the box \(1, 9, 12, 8\) in a photograph"),
        ((21, 1, 30, 9), r"the box \(21, 1, 30, 9\) in a photograph"),
        ((1, 11, 5, 12), r"the box \(1, 11, 5, 12\) in a photograph"),
        ((1, 1, -3, 9), r"the box \(1, 1, -3, 9\) in a photograph"),
        ((1, 1, "wide", 9), r"the box \['1', '1', 'wide', '9'\], expected whole numbers as xmin"),
        ((1, 1, "", 9), r"the box \['1', '1', '', '9'\], expected whole numbers"),
        ((1, 1, "9" * 5000, 9), r"the box \['1', '1', '9+\.\.\.9+', '9'\], expected whole"),
    ],
)
def test_a_wrong_box_is_one_sentence(
    tmp_path: Path, box: tuple[object, ...], sentence: str
) -> None:
    write_pet(tmp_path, "pug_1", box, plain(0))
    with pytest.raises(UserError, match=rf"pug_1\.xml has {sentence}.*: replace the file, or"):
        heads(tmp_path)


BOMB = (
    '<!DOCTYPE a [<!ENTITY b0 "bbbbbbbbbb">'
    + "".join(f'<!ENTITY b{n} "{10 * f"&b{n - 1};"}">' for n in range(1, 10))
    + "]><annotation><name>&b9;</name></annotation>"
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read as XML"),
        (b"<annotation><object>", "cannot be read as XML"),
        (b"\xff\xfe<\0a\0/\0>\0", "cannot be read as XML"),
        (BOMB.encode(), "cannot be read as XML .it declares a document type"),
        (b"<annotation/>", r"has the box \[None, None, None, None\], expected whole numbers"),
        (b"<a>" + b" " * (1 << 20) + b"</a>", "has more than 1,048,576 bytes, expected an annot"),
    ],
)
def test_an_annotation_that_is_none_is_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    write_pet(tmp_path, "pug_1", WHOLE, plain(0))
    (tmp_path / "annotations" / "xmls" / "pug_1.xml").write_bytes(content)
    with pytest.raises(UserError, match=rf"pug_1\.xml {sentence}.*: replace the file, or delete"):
        heads(tmp_path)


def test_a_photograph_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", WHOLE, plain(0))
    photograph = tmp_path / "images" / "pug_1.jpg"
    photograph.write_bytes(b"\xff\xd8\xff but cut")
    with pytest.raises(UserError, match=r"pug_1\.jpg cannot be read as an image"):
        heads(tmp_path)
    photograph.unlink()
    with pytest.raises(UserError, match=r"pug_1\.jpg is missing, the photograph of .*pug_1\.xml"):
        heads(tmp_path)


def test_a_folder_without_boxes(tmp_path: Path) -> None:
    write_pet(tmp_path, "pug_1", WHOLE, plain(0))
    (tmp_path / "annotations" / "xmls" / "pug_1.xml").unlink()
    with pytest.raises(UserError, match="xmls has no XML files: delete this folder"):
        heads(tmp_path)


# Fetching -----------------------------------------------------------------------------------------


def archive(path: Path, folder: Path) -> Source:
    """The folder as the authors pack it, beside files that nobody asked for."""
    with tarfile.open(path, "w:gz") as packed:
        packed.add(folder, folder.name)
        for name in ("README", f"{folder.name}/deeper/x.xml", f"{folder.name}/../../escaped"):
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    return Source((path.as_uri(),), md5)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which both archives and what they were made of are."""
    folder = tmp_path / "published"
    for number in range(3):
        write_pet(folder, f"pug_{number}", WHOLE, plain(number))
    for name in ("images", "annotations"):
        source = archive(folder / f"{name}.tar.gz", folder / name)
        monkeypatch.setattr(pets, name.upper(), source)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_what_is_missing_is_fetched_once(tmp_path: Path, published: Path) -> None:
    home, heard = tmp_path / "data" / "oxford-iiit-pet", list[Any]()
    found = heads(home, progress=lambda *what: heard.append(what))
    assert [int(image[0, 0, 0]) for image in found] == [0, 1, 2]
    assert {what[0] for what in heard} == {"images.tar.gz", "annotations.tar.gz"}
    assert files_in(home / "images") == files_in(published / "images")
    assert files_in(home / "annotations") == files_in(published / "annotations")
    assert sorted(path.name for path in home.iterdir()) == ["annotations", "images"]
    assert not list(tmp_path.rglob("escaped"))
    heard.clear()
    heads(home, progress=lambda *what: heard.append(what))
    assert heard == []


@pytest.mark.parametrize("there", ["images", "annotations/xmls"])
def test_only_the_folder_that_is_missing_is_fetched(
    tmp_path: Path, published: Path, there: str
) -> None:
    home, heard = tmp_path / "oxford-iiit-pet", list[str]()
    shutil.copytree(published / there, home / there)
    assert len(heads(home, progress=lambda name, *_: heard.append(name))) == 3
    assert set(heard) == {"images.tar.gz" if "xmls" in there else "annotations.tar.gz"}


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path) -> None:
    for missing, url in (("annotations/xmls", "annotations"), ("images", "images")):
        with pytest.raises(UserError) as error:
            heads(tmp_path)
        sentence = str(error.value)
        assert sentence.startswith(f"{tmp_path / missing} is missing and could not be fetched")
        assert f"get {NOWHERE}{url}.tar.gz where there is a network, unpack it and put" in sentence
        assert "--data-dir" in sentence
        assert files_in(tmp_path) == {}
        (tmp_path / missing).mkdir(parents=True)


def test_another_archive_than_the_known_one_is_refused(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pets, "IMAGES", Source(pets.IMAGES.urls, "123"))
    with pytest.raises(UserError, match=r"images is missing .*its checksum is .*, expected 123"):
        heads(tmp_path / "data")
    assert not (tmp_path / "data" / "images").exists()


def test_a_folder_is_unpacked_whole_or_not_at_all(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, num_copied = shutil.copyfileobj, 0

    def full_disk(*files: Any) -> None:
        nonlocal num_copied
        num_copied += 1
        if num_copied == 2:
            raise OSError("no space left on device")
        copy(*files)

    monkeypatch.setattr(shutil, "copyfileobj", full_disk)
    with pytest.raises(UserError, match="no space left on device"):
        heads(tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["annotations"]


def test_of_two_processes_the_first_one_s_folder_stays(tmp_path: Path, published: Path) -> None:
    home = tmp_path / "data"

    def another_process(name: str, *_: int) -> None:
        if name == "images.tar.gz":
            shutil.copytree(published / "images", home / "images", dirs_exist_ok=True)
            (home / "images" / "first").touch()

    assert len(heads(home, progress=another_process)) == 3
    assert (home / "images" / "first").exists()
    assert sorted(path.name for path in home.iterdir()) == ["annotations", "images"]
