"""Arrays of NumPy's own files, npy and npz. Nothing is unpickled, and no header is believed.

A header of a hundred bytes may declare terabytes, and a small archive may unpack to as much: sizes
are compared with what is there before memory is taken.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from infobatch_lab.errors import UserError
from infobatch_lab.files import check_file, check_size
from infobatch_lab.visible import visible

Array = NDArray[Any]
T = TypeVar("T")

DAMAGED = (
    EOFError, KeyError, MemoryError, NotImplementedError, OSError, RecursionError, RuntimeError,
    SyntaxError, TypeError, ValueError, TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What files fail with that are no arrays; RuntimeError is an archive with a password."""


def read_npy(path: Path) -> Array:
    """The array of an npy file."""
    check_file(path)
    with path.open("rb") as file:
        return _guarded(path, lambda: _read(file, path.stat().st_size, path))


class Archive:
    """The arrays of an npz file, read one by one: `Archive(Path("data.npz")).read("x")`."""

    def __init__(self, path: Path) -> None:
        check_file(path)
        self.path = path
        with _guarded(path, lambda: zipfile.ZipFile(path)) as archive:
            members = archive.infolist()
        self._members = {m.filename.removesuffix(".npy"): m for m in members}

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def read(self, name: str) -> Array:
        """The array of this name."""
        member = self._members[name]

        def read() -> Array:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as file:
                return _read(file, member.file_size, self.path)

        check_size(self.path, member.file_size)
        return _guarded(self.path, read)


def _read(file: IO[bytes], num_bytes: int, path: Path) -> Array:
    """An array of a stream that has so many bytes."""
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not read")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared > num_bytes:
        raise ValueError(f"its header declares {declared:,} bytes, and it has {num_bytes:,}")
    check_size(path, declared)
    content = file.read(declared)
    if len(content) < declared:
        raise ValueError("it is cut off")
    values = np.frombuffer(content, dtype, count=math.prod(shape))
    return values.reshape(shape, order="F" if by_columns else "C")


def _guarded(path: Path, read: Callable[[], T]) -> T:
    """What `read` returns, or `UserError`."""
    try:
        return read()
    except DAMAGED as error:
        reason = visible(str(error).split("\n")[0], most=200) or type(error).__name__
        raise UserError(f"{path} cannot be read as {path.suffix}: {reason}.") from error
