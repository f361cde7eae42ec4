"""Data that cannot be skipped is refused, with what to do instead."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import datasets
import pytest
import webdataset

from infobatch import InfoBatch


def shards(folder: Path) -> Any:
    """A real webdataset, of one shard."""
    with tarfile.open(folder / "0.tar", "w") as tar:
        for index in range(4):
            info = tarfile.TarInfo(f"{index}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    return webdataset.WebDataset(str(folder / "0.tar"), shardshuffle=False)


def test_a_webdataset_is_to_be_unpacked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unpack the shards of a webdataset into files"):
        InfoBatch(shards(tmp_path), num_epochs=3)


def test_streamed_hugging_face_data_are_to_be_loaded() -> None:
    stream = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset()
    with pytest.raises(TypeError, match="without streaming=True"):
        InfoBatch(stream, num_epochs=3)
