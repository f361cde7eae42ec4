"""Small images with something to learn in them, as files and as tables."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image


def scene(seed: int, size: tuple[int, int] = (24, 32)) -> tuple[np.ndarray, np.ndarray]:
    """An image in three colours, and the class of each pixel: above and below a line, and void."""
    rng = np.random.default_rng(seed)
    height, width = size
    mask = np.zeros(size, dtype=np.uint8)
    mask[rng.integers(height // 4, height) :] = 1
    mask[:, : width // 8] = 2
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])
    image = colours[mask] + rng.integers(-50, 50, (*size, 3))
    return image.astype(np.uint8), mask


def encoded(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_table(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_pet(home: Path, name: str, box: tuple[object, ...], pixels: np.ndarray) -> None:
    """A photograph with the box of its head, in the layout of Oxford-IIIT Pet.

    It is a PNG that ends in .jpg, as a few of the data set's own are: no pixel changes.
    """
    (home / "images").mkdir(parents=True, exist_ok=True)
    (home / "images" / f"{name}.jpg").write_bytes(encoded(pixels))
    corners = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    head = "".join(f"<{corner}>{value}</{corner}>" for corner, value in corners)
    path = home / "annotations" / "xmls" / f"{name}.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<annotation>\n\t<filename>{name}.jpg</filename>\n\t<object>\n\t\t<name>cat</name>\n"
        f"\t\t<bndbox>{head}</bndbox>\n\t</object>\n</annotation>\n"
    )
