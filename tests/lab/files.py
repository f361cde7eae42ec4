"""Small data sets in the standard formats, and the command as a real process."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = [sys.executable, "-m", "infobatch"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TORCHRUN = [COMMAND[0], *LAUNCHER, *COMMAND[1:]]


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, num_train: int = 60, num_test: int = 20, *, gz: bool = True) -> None:
    rng = np.random.default_rng(0)
    for prefix, num in (("train", num_train), ("t10k", num_test)):
        end = ".gz" if gz else ""
        images, labels = rng.integers(0, 256, (num, 28, 28)), rng.integers(0, 10, num)
        write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", labels)


def cifar_records(num: int, *, num_labels: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (num, 3, 32, 32) and their classes."""
    rng = np.random.default_rng(num)
    return rng.integers(0, 256, (num, 3, 32, 32)), rng.integers(0, num_classes, num)


def write_cifar(path: Path, images: np.ndarray, labels: np.ndarray, num_labels: int) -> None:
    columns = [np.full((len(labels), 1), 7)] * (num_labels - 1) + [labels[:, None]]
    rows = np.concatenate([*columns, images.reshape(len(images), -1)], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rows.astype(np.uint8).tobytes())


def infobatch(
    *arguments: object, command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def started(
    *arguments: object, command: Sequence[str] = COMMAND
) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs, ended with the test; a group of its own, as in a terminal."""
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    """Wait until something has happened, as long as the process runs."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
