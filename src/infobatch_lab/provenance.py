"""Where a run comes from: command, commit, versions, machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch

import infobatch
import infobatch_lab
from infobatch_lab.processes import world_size

PACKAGES = (infobatch, infobatch_lab)


def provenance() -> dict[str, Any]:
    """The fields of a run's line that say where it comes from."""
    return {
        "command": shlex.join(["infobatch", *sys.argv[1:]]),
        "commit": commit(),
        "versions": {
            "infobatch": infobatch.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": world_size(),
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def load_average() -> float | None:
    """The processes that ran or waited in the last minute, on average; None where nobody knows."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
        return None


@lru_cache
def commit() -> str | None:
    """The commit of the source, marked where files differ; None if installed."""
    library, laboratory = (Path(package.__file__ or "").parent for package in PACKAGES)
    # Asked for a tracked file of ours: a clone of something else may lie around an installation.
    if git(library, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = git(library, "rev-parse", "HEAD")
    changed = git(
        library, "status", "--porcelain", "--untracked-files=no", "--", ".", str(laboratory)
    )
    return f"{revision}-dirty" if changed else revision


def git(folder: Path, *command: str) -> str | None:
    """Run git; None if it fails."""
    try:
        done = subprocess.run(
            # Without locks: a run that is killed here would leave one, and git would refuse.
            ["git", "--no-optional-locks", "-C", str(folder), *command],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


@lru_cache
def processor() -> str:
    """The name of the GPU, or of the CPU."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
