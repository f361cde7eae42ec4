from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from infobatch_lab.errors import UserError
from infobatch_lab.pictures import decode, decode_mask, read_table, write_grid
from tests.lab.pictures import encoded, scene, write, write_table


def test_a_grid_has_its_images_in_rows(tmp_path: Path) -> None:
    images = torch.arange(6, dtype=torch.uint8).reshape(2, 3, 1, 1, 1).expand(-1, -1, 4, 5, 3)
    write_grid(tmp_path / "new" / "grid.png", images)
    with Image.open(tmp_path / "new" / "grid.png") as written:
        pixels = np.asarray(written)
    assert pixels.shape == (8, 15, 3)
    assert pixels[::4, ::5, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_files_and_bytes_are_decoded_alike(tmp_path: Path) -> None:
    image, mask = scene(0)
    write(tmp_path / "image.png", image)
    assert (decode(tmp_path / "image.png") == image).all()
    assert (decode(encoded(image)) == image).all()
    assert (decode_mask(encoded(mask)) == mask).all()


def test_a_resized_mask_has_no_new_classes() -> None:
    mask = np.array([[0, 200], [200, 0]], dtype=np.uint8)
    found = decode_mask(encoded(mask), (7, 9))
    assert found.shape == (7, 9)
    assert set(np.unique(found)) == {0, 200}
    assert decode(encoded(mask), (7, 9)).shape == (7, 9, 3)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken.png cannot be read as an image"):
        decode(tmp_path / "broken.png")
    with pytest.raises(UserError, match="an image of the table cannot be read"):
        decode(b"no image")
    with pytest.raises(UserError, match=r"table.parquet is missing: put it there"):
        read_table(tmp_path / "table.parquet", ("image",), "put it there.")
    write_table(tmp_path / "table.parquet", {"picture": [b""]})
    with pytest.raises(UserError, match="table.parquet has no column 'image': replace it"):
        read_table(tmp_path / "table.parquet", ("image",), "replace it.")
