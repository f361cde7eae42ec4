"""A page and figures of runs: files of JSON lines in, HTML and PNG out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["check_margin", "frontier_results", "results", "write"]


def write(run_files: Sequence[Path], out: Path, *, margin: float | None = None) -> Path:
    """Write the report of these runs: `write([Path("results")], Path("report"))`.

    `run_files` are files of JSON lines, or folders that are searched for `*.jsonl`. `out` is a
    folder, or the path of the page if it ends in `.html`; the figures come beside it. A method is
    lossless if it loses less than `margin`, in the metric's unit (points for accuracy); without,
    each metric has its own margin. Returns the path of the page.
    """
    try:
        from infobatch_lab.comparison import compare
        from infobatch_lab.files import check_target
        from infobatch_lab.frontier import find_frontiers, without_pieces
        from infobatch_lab.report.figures import draw
        from infobatch_lab.report.frontier_figure import draw_frontier
        from infobatch_lab.report.page import FrontierSection, Section, page
        from infobatch_lab.report.subsets_figure import draw_subsets
        from infobatch_lab.runs import read
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    runs, notes = read(run_files)
    found, doubles = compare(runs)
    notes += doubles
    for note in notes:
        print(note, file=sys.stderr)
    target = out if out.suffix == ".html" else out / "index.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    check_target(target)
    frontiers = find_frontiers(runs)
    frontier_sections = [
        FrontierSection(frontier, [draw_frontier(frontier, margin)], margin)
        for frontier in frontiers
    ]
    sections = []
    for comparison in without_pieces(found, frontiers):
        edge = comparison.margin(margin)
        drawings = [*draw_subsets(comparison, edge), *draw(comparison, edge)]
        sections.append(Section(comparison, drawings, margin))
    drawn: list[FrontierSection | Section] = [*frontier_sections, *sections]
    images = {
        target.parent / f"{section.slug}-{drawing.name}.png": drawing.light
        for section in drawn
        for drawing in section.drawings
        if drawing.light
    }
    for file in images:  # all, before one is written
        check_target(file)
    for file, content in images.items():
        file.write_bytes(content)
    target.write_text(page(sections, notes, frontier_sections), encoding="utf-8")
    return target


def results(run_files: Sequence[Path], *, margin: float | None = None) -> list[dict[str, Any]]:
    """The numbers of the report's tables, for a script: `results([Path("results")])`."""
    try:
        from infobatch_lab.comparison import compare
        from infobatch_lab.frontier import find_frontiers, without_pieces
        from infobatch_lab.runs import read
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    runs, _ = read(run_files)
    comparisons = without_pieces(compare(runs)[0], find_frontiers(runs))
    return [comparison.as_dict(margin) for comparison in comparisons]


def frontier_results(
    run_files: Sequence[Path], *, margin: float | None = None
) -> list[dict[str, Any]]:
    """The numbers of the frontiers' tables, for a script."""
    try:
        from infobatch_lab.frontier import find_frontiers
        from infobatch_lab.runs import read
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    return [frontier.as_dict(margin) for frontier in find_frontiers(read(run_files)[0])]


def check_margin(margin: float | None) -> None:
    """Raise `ValueError` if it is no margin."""
    if margin is not None and not 0 < margin < float("inf"):
        raise ValueError(
            f"margin is {margin:g}, expected a number above 0 in the metric's unit, say points of "
            "accuracy."
        )


def _missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, with the remedy where it is a package of the extra."""
    if error.name is None or error.name.split(".")[0] not in ("jinja2", "matplotlib", "scipy"):
        return error
    return ModuleNotFoundError(
        f"a report needs {error.name}: pip install infobatch[experiments].", name=error.name
    )
