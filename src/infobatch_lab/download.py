"""Fetch a data set from its own home: checked, and never left half-written.

Written by hand because torchvision's functions for this import only beside a torch of the same
build, and take no second address.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO

from infobatch_lab.errors import UserError

TIMEOUT = 30
"""Seconds without an answer after which a server counts as out of reach."""

Fetching = Callable[[str, int, int], None]
"""Is called while a file is fetched, with its name, the bytes so far and the bytes in all."""


@dataclass(frozen=True)
class Source:
    """Where a file is fetched from, in the order of trying, and the checksum it must have."""

    urls: tuple[str, ...]
    md5: str


def fetch(
    source: Source,
    target: Path,
    progress: Fetching,
    *,
    missing: Sequence[str] = (),
    inside: str = "",
) -> None:
    """Fetch a file to `target`; with `missing`, those members of an archive into that folder.

    With `inside`, `target` becomes that folder of an archive, with all of its files.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in source.urls:
        part = part_of(target.parent / url.rsplit("/", 1)[1])
        try:
            md5 = copy_to(part, url, progress)
            if md5 != source.md5:
                raise ValueError(f"its checksum is {md5}, expected {source.md5}")
            if missing:
                unpack(part, target, missing)
            elif inside:
                unpack_folder(part, target, inside)
            else:
                os.replace(part, target)
            return
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
        finally:
            part.unlink(missing_ok=True)
    wanted = ", ".join(str(target / name) for name in missing) or str(target)
    raise UserError(
        f"{wanted} {'are' if len(missing) > 1 else 'is'} missing and could not be fetched "
        f"({'; '.join(failures)}): get {source.urls[0]} where there is a network"
        f"{', unpack it' if missing or inside else ''} and put it there, or name another folder "
        "with --data-dir."
    )


def part_of(path: Path) -> Path:
    """Where a file is written until it is whole; the processes of torchrun each have their own."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def copy_to(part: Path, url: str, progress: Fetching) -> str:
    """Write what a server sends to `part`; returns its checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, part.open("wb") as out:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while block := answer.read(1 << 18):
            out.write(block)
            digest.update(block)
            done += len(block)
            progress(url.rsplit("/", 1)[1], done, total)
    if done < total:
        raise OSError(f"the connection broke after {done:,} of {total:,} bytes")
    return digest.hexdigest()


def unpack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Take these files out of an archive, by name: what else it holds is not touched."""
    folder.mkdir(parents=True, exist_ok=True)
    with opened_archive(archive) as open_member:
        for name in names:
            part = part_of(folder / name)
            with open_member(f"{folder.name}/{name}") as content, part.open("wb") as out:
                shutil.copyfileobj(content, out)
            os.replace(part, folder / name)


@contextmanager
def opened_archive(archive: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Open a zip or a tar archive, and yield what opens a file in it by name."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            yield members.open
        return

    with tarfile.open(archive) as tar:

        def open_member(name: str) -> IO[bytes]:
            content = tar.extractfile(name)
            assert content is not None  # the checksum says what the archive holds
            return content

        yield open_member


def unpack_folder(archive: Path, folder: Path, inside: str) -> None:
    """Take all files of one folder out of an archive, so that `folder` is whole or not there."""
    part = part_of(folder)
    part.mkdir(exist_ok=True)
    try:
        with tarfile.open(archive) as members:
            for member in members:  # in their order: to go back is to unzip all of it again
                path = PurePosixPath(member.name)
                content = members.extractfile(member) if path.parent.as_posix() == inside else None
                if content is not None:
                    with content, (part / path.name).open("wb") as out:
                        shutil.copyfileobj(content, out)
        os.replace(part, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
