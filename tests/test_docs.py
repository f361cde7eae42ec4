"""Every code block of the README and the docs runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tests.vision  # noqa: F401  # so that the pages can import torchvision and timm
from tests.snippets import README, ROOT, a_users_namespace, blocks_of, code_of, run_the_readmes_loop

PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
WITHOUT_CODE = {"troubleshooting.md", "releasing.md"}
"""And the pages of the reference, whose examples are doctests."""
WITH_CODE = [
    page for page in PAGES if page.name not in WITHOUT_CODE and page.parent.name != "reference"
]
NUMBERS = {"Three": 3, "Four": 4, "Five": 5, "Six": 6}


# torch.compile hides this warning itself, but not where warnings are made errors, as they are here.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # what Lightning has to say
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    assert blocks, f"{page.name} shows no code"
    namespace = a_users_namespace()
    for kind, text in blocks:
        exec(compile(code_of(kind, text), page.name, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_diff_of_the_readme_saves() -> None:
    train_data = run_the_readmes_loop()
    assert train_data.epoch == 10
    assert train_data.savings.fraction > 0.2


def test_the_diff_of_the_readme_has_as_many_lines_as_the_text_says() -> None:
    text = README.read_text()
    _, diff = blocks_of(README)[0]
    added = [line for line in diff.splitlines() if line.startswith("+")]
    removed = [line for line in diff.splitlines() if line.startswith("-")]
    said = re.search(r"^(\w+) lines of .* change. (\w+) are new and (\w+) replace", text, re.M)
    assert said is not None
    assert NUMBERS[said[1]] == len(added)
    assert {"Two": 2, "One": 1}[said[2]] == len(added) - len(removed)
    assert NUMBERS[said[3].capitalize()] == len(removed)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_readme_names_every_page() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if page != README}
    assert pages - set(re.findall(r"\]\(([^)#]+)", README.read_text())) == set()
