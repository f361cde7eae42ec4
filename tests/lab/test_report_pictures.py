"""The report shows the pictures that tasks made of their runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from infobatch_lab.report import write
from infobatch_lab.report.page import data_uri
from infobatch_lab.report.pictures import MOST_BYTES
from infobatch_lab.settings import Settings, settings
from tests.lab.lines import line_of, save

CELLS = [settings("digits", rule=rule, seed=seed) for rule in ("full", "mean") for seed in (0, 1)]


def picture_of(out: Path, cell: Settings, name: str = "segmentation.png") -> Path:
    """A picture of a run, in a colour of its own, where `compare` lets tasks put it."""
    path = out / "figures" / cell.name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (cell.seed, len(cell.rule), 0)).save(path, "PNG")
    return path


def shown(out: Path) -> dict[str, str]:
    """The images of the page that are no drawings of ours, by their titles."""
    save(out / "runs.jsonl", *(line_of(cell) for cell in CELLS))
    text = write([out], out / "report").read_text("utf-8")
    figures = re.findall(r'<h3>([^<]*)</h3>.*?<img src="([^"]*)"[^>]*>.*?last epoch', text, re.S)
    return dict(figures)


def test_the_first_seed_of_each_method_is_shown_inside_of_the_page(tmp_path: Path) -> None:
    contents = [picture_of(tmp_path, cell).read_bytes() for cell in CELLS]
    assert {title: image for title, image in shown(tmp_path).items() if "·" in title} == {
        "Segmentation · full": data_uri(contents[0]),
        "Segmentation · mean": data_uri(contents[2]),
    }
    files = list((tmp_path / "report").glob("*-mean-segmentation.png"))
    assert [file.read_bytes() for file in files] == [contents[2]]


@pytest.mark.parametrize("fault", ["no picture", "a link", "too large", "missing"])
def test_what_is_no_picture_of_ours_is_left_out(tmp_path: Path, fault: str) -> None:
    path = picture_of(tmp_path, CELLS[0])
    content = path.read_bytes()
    path.unlink()
    if fault == "no picture":
        path.write_text("<script>")
    elif fault == "a link":
        (tmp_path / "elsewhere.png").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere.png")
    elif fault == "too large":
        path.write_bytes(content.ljust(MOST_BYTES + 1, b"\0"))
    assert "Segmentation · full" not in shown(tmp_path)
