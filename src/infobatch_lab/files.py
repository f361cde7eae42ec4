"""Checks of files before they are opened: nothing hangs, fills the memory, or is written elsewhere.

A named pipe is opened for ever, a few kilobytes may unpack to terabytes, and a symbolic link leads
out of the folder that the user named.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from infobatch_lab.errors import UserError

MOST_BYTES = 4 * 2**30
"""The most that one file, or one array in it, may take in memory: 4 GiB."""


def check_file(path: Path) -> None:
    """Raise `UserError` if a file to be read is none, or is too large."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise UserError(f"{path} is {kind}, expected a file.")
    check_size(path, found.st_size)


def check_size(path: Path, num_bytes: int) -> None:
    """Raise `UserError` if so many bytes of a file, perhaps unpacked, are too many."""
    if num_bytes > MOST_BYTES:
        raise UserError(
            f"{path} would take {num_bytes:,} bytes of memory, expected at most {MOST_BYTES:,}: "
            "replace it, or make it smaller."
        )


def lock(file: IO[Any]) -> bool | None:
    """Lock an open file until it is closed.

    False if another process has locked it, None on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def check_target(path: Path) -> None:
    """Raise `UserError` if a file to be written is a symbolic link, or no file.

    The folder that a user names may be a link. What lies in it may be somebody else's.
    """
    if path.is_symlink():
        raise UserError(
            f"{path} is a symbolic link, and nothing is written through one: delete the link, or "
            "name another folder with --out."
        )
    if path.exists() and not path.is_file():
        raise UserError(
            f"{path} is no file, so nothing can be written to it: delete it, or name another "
            "folder with --out."
        )


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file to read, unzipped if its name ends in .gz; raise `UserError` where it fails.

    Read as much of it as its header promises, never all: a bomb goes on for days.
    """
    check_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it to fetch it anew, or replace it."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """The error for a file that cannot be read at all."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UserError(f"{path} cannot be read: {reason}.")


def same_file(path: Path) -> str:
    """A name that is the same for all ways to a file; a loop of links has one too."""
    return os.path.realpath(path)
