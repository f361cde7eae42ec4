"""The site builds strictly, offline, and its reference has every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import infobatch

ROOT = Path(__file__).parents[1]
BUILD = ("-m", "mkdocs", "build", "--strict", "--site-dir")  # --quiet would undo --strict
ASSET = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']([^"']+)""")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link, or a page outside the navigation, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, *BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def public_names() -> list[str]:
    modules = [infobatch, infobatch.rules, infobatch.selection]
    names = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    return [name for name in names if name.removeprefix("infobatch.") not in MODULES] + [
        "infobatch.integrations.accelerate.PreparedLoader",
        "infobatch.integrations.lightning.InfoBatchCallback",
        "infobatch.integrations.transformers.InfoBatchTrainer",
        "infobatch.mixing.Mixed",
        "infobatch.mixing.from_timm",
        "infobatch.mixing.from_torchvision",
        "infobatch.schedule.Schedule",
    ]


MODULES = ("mixing", "rules", "schedule", "selection")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    assert [name for name in public_names() if f'id="{name}"' not in reference] == []


def test_a_public_name_has_its_parameters_and_its_example(site: Path) -> None:
    page = (site / "reference" / "training.html").read_text()
    text = re.sub(r"<[^>]+>", "", page)
    assert "How many epochs you train." in text  # a parameter of InfoBatch
    assert "&gt;&gt;&gt; train_data = InfoBatch(" in text  # its doctest


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    assets = {
        (page.name, asset)
        for page in site.rglob("*.html")
        for asset in ASSET.findall(page.read_text())
        if asset.startswith(("http", "//"))
    }
    assert assets == set()


def test_the_repository_s_own_files_are_part_of_the_site(site: Path) -> None:
    assert "Six lines" in (site / "index.html").read_text()  # the README
    assert (site / "results" / "RESULTS.html").exists()
    assert (site / "results" / "frontier-digits" / "frontier.png").exists()
    assert "import infobatch" in re.sub(
        r"<[^>]+>", "", (site / "examples" / "pytorch.py.html").read_text()
    )
