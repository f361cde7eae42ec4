"""The site holds the repository's own files: the README, results, examples, source.

Pages link to such files by relative paths, which work wherever the repository is browsed. Here the
same links are made to work on the site: a file that a page links to becomes part of the site at its
own path, and links that lead into or out of `docs/` are rewritten. Python files are shown as pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the pages of the navigation as the site has them, and list folders."""
    config.nav = _translated(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, what the navigation names, and what all these pages link to."""
    waiting = {_in_repository(file.src_uri) for file in files.documentation_pages()}
    waiting |= {_in_repository(uri) for uri in _pages_of(config.nav)} | {"README.md"}
    done: set[str] = set()
    while waiting - done:
        path = min(waiting - done)
        done.add(path)
        if not (ROOT / path).is_file():
            continue  # mkdocs says so, as of every broken link
        if files.get_file_from_path(_on_site(path)) is None:
            files.append(_file(path, config))
        if path.endswith(".md"):
            waiting |= {_target(path, link) for _, link in LINK.findall((ROOT / path).read_text())}
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from the repository's layout to the site's."""
    path = _in_repository(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        target = _on_site(_target(path, match[2]))
        return match[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    if not path.endswith(".md"):
        return markdown
    parts, begin = [], 0
    for fence in FENCE.finditer(markdown):  # code is left as it is
        parts += [LINK.sub(on_site, markdown[begin : fence.start()]), fence[0]]
        begin = fence.end()
    return "".join([*parts, LINK.sub(on_site, markdown[begin:])])


def _on_site(path: str) -> str:
    """A path of the repository as a path of the site: `docs/rules.md` is `rules.md`."""
    if path == "README.md":
        return "index.md"
    if path.endswith(".py"):
        return path + ".md"
    return path.removeprefix("docs/")


def _in_repository(uri: str) -> str:
    """The reverse of `_on_site`."""
    if uri in ("index.md", "README.md"):
        return "README.md"
    if uri.endswith((".py", ".py.md")):
        return uri.removesuffix(".md")
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri


def _target(path: str, link: str) -> str:
    """The file of the repository that a link on the page `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _file(path: str, config: MkDocsConfig) -> File:
    if path.endswith(".py"):
        text = f"# {path}\n\n````python\n{(ROOT / path).read_text()}````\n"
        return File.generated(config, _on_site(path), content=text)
    return File.generated(config, _on_site(path), abs_src_path=str(ROOT / path))


def _pages_of(nav: object) -> list[str]:
    if isinstance(nav, dict):
        return [page for value in nav.values() for page in _pages_of(value)]
    if isinstance(nav, list):
        return [page for value in nav for page in _pages_of(value)]
    return [str(nav)]


def _translated(nav: object) -> object:
    if isinstance(nav, dict):
        return {title: _translated(value) for title, value in nav.items()}
    if isinstance(nav, list):
        return [_translated(value) for value in nav]
    path = str(nav)
    if path.endswith("/"):
        return [
            {file.name: _on_site(path + file.name)} for file in sorted(ROOT.glob(f"{path}*.py"))
        ]
    return _on_site(path)
