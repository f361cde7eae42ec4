"""Encoded images: decoded from files or from the bytes of a table, and written as a grid."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import check_file, check_target

Bytes = NDArray[np.uint8]

ARROW_ERRORS = (OSError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError)
"""The classes of pyarrow's own errors."""


def read_table(path: Path, columns: Sequence[str], remedy: str) -> dict[str, list[Any]]:
    """Columns of a parquet file; `remedy` says what to do if there is none."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {remedy}")
    try:
        table = optional("pyarrow.parquet").read_table(path)
    except ARROW_ERRORS as error:
        raise UserError(f"{path} cannot be read as a parquet file ({error}): {remedy}") from error
    if missing := sorted(set(columns) - set(table.column_names)):
        raise UserError(f"{path} has no column {missing[0]!r}: {remedy}")
    return {name: table[name].to_pylist() for name in columns}


def decode(source: Path | bytes, size: tuple[int, int] | None = None) -> Bytes:
    """An image in colour, (height, width, 3), brought to `size` (height, width) where given."""
    return _opened(source, "RGB", size)


def decode_mask(source: Path | bytes, size: tuple[int, int] | None = None) -> Bytes:
    """A mask, (height, width): a class per pixel. The nearest pixel decides where it is resized."""
    return _opened(source, None, size)


def _opened(source: Path | bytes, mode: str | None, size: tuple[int, int] | None) -> Bytes:
    resampling = optional("PIL.Image").Resampling
    with picture(source) as image:
        # A mask keeps its mode: a palette's indices are the classes, its colours are not.
        found = image.convert(mode) if mode else image
        if size is not None and found.size != (size[1], size[0]):
            how = resampling.BILINEAR if mode else resampling.NEAREST
            found = found.resize((size[1], size[0]), how)
        pixels = np.asarray(found)
    if mode is None and (pixels.ndim != 2 or pixels.max(initial=0) > 255):
        raise UserError(
            f"{_name(source)} has pixels of shape {pixels.shape} up to {pixels.max(initial=0)}, "
            "expected a mask with one number from 0 to 255 per pixel."
        )
    return pixels.astype(np.uint8)


@contextmanager
def picture(source: Path | bytes) -> Iterator[Any]:
    """An image of Pillow, while it is worked on; raise `UserError` where that fails.

    Pillow refuses images of more than 179 million pixels, and warns of half as many: a few
    kilobytes unpack to gigabytes. Here a warning is an error too.
    """
    pillow = optional("PIL.Image")
    if isinstance(source, Path):
        check_file(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                yield image
    except UserError:
        raise
    except Exception as error:  # a damaged file makes Pillow's readers fail in many ways
        raise UserError(
            f"{_name(source)} cannot be read as an image ({error}): remove it."
        ) from error


def _name(source: Path | bytes) -> str:
    return f"{source}" if isinstance(source, Path) else "an image of the table"


def write_grid(path: Path, images: Tensor) -> None:
    """Write images in uint8, (rows, columns, height, width, 3), as one image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, columns, height, width, _ = images.shape
    check_target(path)
    grid = images.transpose(1, 2).reshape(rows * height, columns * width, 3)
    optional("PIL.Image").fromarray(grid.numpy()).save(path)
