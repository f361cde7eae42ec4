"""Heads of cats and dogs, cut from the photographs of Oxford-IIIT Pet (Parkhi et al., 2012).

`finetune` and `pet-faces` read a table of such heads, with which the published results were made.
That table has no home of its own. Whoever does not have it reads what the authors publish: their
photographs, and the box of the head in each of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from infobatch_lab.download import Fetching, Source, fetch
from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import opened
from infobatch_lab.pictures import Bytes, picture
from infobatch_lab.visible import short

TABLE = "pet_faces_64.parquet"
FOLDER = "oxford-iiit-pet"
FILES = f"{TABLE}`, or `{FOLDER}/{{images,annotations/xmls}}"

REMEDY = "replace it, or delete it to cut the heads from the photographs of Oxford-IIIT Pet."
"""What to do about a table that cannot be read."""

HOME = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
IMAGES = Source((f"{HOME}images.tar.gz",), "5c4f3ee8e5d25df40f4fd59a7f44e54c")
ANNOTATIONS = Source((f"{HOME}annotations.tar.gz",), "95a8c909bbe2e81eed6a22bccdf3f68f")

HEAD_SIZE = 64
"""The side of a head in the table. All are brought to it first, to be as sharp as those."""

CORNERS = ("xmin", "ymin", "xmax", "ymax")
Box = tuple[int, int, int, int]

MOST_XML = 1 << 20
"""The most bytes of a file with a box; one of the data set has about a thousand."""


def read_heads(home: Path, side: int, progress: Fetching) -> tuple[list[Bytes], list[int]]:
    """All heads as squares of this side, in the order of their files' names, and their breeds.

    Breeds are numbered by their names, in whatever case, as the data set numbers them.
    """
    images, boxes = home / "images", home / "annotations" / "xmls"
    if not boxes.is_dir():
        fetch(ANNOTATIONS, boxes, progress, inside="annotations/xmls")
    if not images.is_dir():
        fetch(IMAGES, images, progress, inside="images")
    files = sorted(file for file in boxes.glob("*.xml") if not file.name.startswith("."))
    if not files:
        raise UserError(f"{boxes} has no XML files: delete this folder to fetch it anew.")
    photographs = [images / f"{file.stem}.jpg" for file in files]
    for file, photograph in zip(files, photographs, strict=True):
        if not photograph.is_file():
            raise UserError(
                f"{photograph} is missing, the photograph of {file}: put it there, delete the "
                f"folder {images} to fetch it anew, or delete {file.name}."
            )
    breeds = [re.sub(r"_\d+$", "", file.stem) for file in files]
    classes = sorted(set(breeds), key=lambda name: (name.lower(), name))
    heads = [head(*pair, side) for pair in zip(photographs, files, strict=True)]
    return heads, [classes.index(breed) for breed in breeds]


def head(photograph: Path, file: Path, side: int) -> Bytes:
    """What the box in `file` shows of the photograph, without what lies beyond its edges."""
    box = box_in(file)
    bilinear = optional("PIL.Image").Resampling.BILINEAR
    with picture(photograph) as image:
        # A box names its first and its last pixels, counted from 1.
        left, top = max(box[0] - 1, 0), max(box[1] - 1, 0)
        right, bottom = min(box[2], image.width), min(box[3], image.height)
        if left >= right or top >= bottom:
            raise UserError(
                f"{file} has the box {short(box)} in a photograph of {image.width} x "
                f"{image.height} pixels, expected {', '.join(CORNERS)} of a part of it: replace "
                "the file, or delete it."
            )
        cut = image.convert("RGB").crop((left, top, right, bottom))
        found = cut.resize((HEAD_SIZE, HEAD_SIZE), bilinear).resize((side, side), bilinear)
        return np.asarray(found)


def box_in(file: Path) -> Box:
    """The corners of a head, from an annotation of Pascal VOC: left, top, right, bottom."""
    with opened(file) as stream:
        content = stream.read(MOST_XML + 1)
    if len(content) > MOST_XML:
        raise UserError(
            f"{file} has more than {MOST_XML:,} bytes, expected an annotation of one photograph: "
            "replace the file, or delete it."
        )
    try:
        text = content.decode()
        if "<!DOCTYPE" in text:  # whose entities may unpack to gigabytes
            raise ValueError("it declares a document type")
        root = ElementTree.fromstring(text)
    except (ValueError, ElementTree.ParseError) as error:
        raise UserError(
            f"{file} cannot be read as XML ({error}): replace the file, or delete it."
        ) from error
    found = [root.findtext(f"object/bndbox/{corner}") for corner in CORNERS]
    try:
        left, top, right, bottom = (int(corner or "") for corner in found)
    except ValueError:
        raise UserError(
            f"{file} has the box {short(found)}, expected whole numbers as {', '.join(CORNERS)} in "
            "<bndbox>: replace the file, or delete it."
        ) from None
    return left, top, right, bottom
