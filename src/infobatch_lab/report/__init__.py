"""A page and figures of runs: files of JSON lines in, HTML and PNG out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infobatch_lab.lines import Run

__all__ = ["check_margin", "frontier_results", "results", "write"]


def write(
    run_files: Sequence[Path],
    out: Path,
    *,
    margin: float | None = None,
    data: Sequence[str] | None = None,
) -> Path:
    """Write the report of these runs: `write([Path("results")], Path("report"))`.

    `run_files` are files of JSON lines, or folders that are searched for `*.jsonl`. `out` is a
    folder, or the path of the page if it ends in `.html`; the figures come beside it. A method is
    lossless if it loses less than `margin`, in the metric's unit (points for accuracy); without,
    each metric has its own margin. With `data`, only runs of these data sets are shown. Returns the
    path of the page.
    """
    try:
        from infobatch_lab.comparison import compare
        from infobatch_lab.files import check_target
        from infobatch_lab.frontier import find_frontiers, without_pieces
        from infobatch_lab.report.figures import draw
        from infobatch_lab.report.frontier_figure import draw_frontier
        from infobatch_lab.report.page import FrontierSection, Section, page
        from infobatch_lab.report.pictures import pictures
        from infobatch_lab.report.subsets_figure import draw_subsets
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    runs, notes = _read(run_files, data)
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
        drawings = [
            *pictures(comparison),
            *draw_subsets(comparison, edge),
            *draw(comparison, edge),
        ]
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


def results(
    run_files: Sequence[Path], *, margin: float | None = None, data: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The numbers of the report's tables, for a script: `results([Path("results")])`."""
    try:
        from infobatch_lab.comparison import compare
        from infobatch_lab.frontier import find_frontiers, without_pieces
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    runs, _ = _read(run_files, data)
    comparisons = without_pieces(compare(runs)[0], find_frontiers(runs))
    return [comparison.as_dict(margin) for comparison in comparisons]


def frontier_results(
    run_files: Sequence[Path], *, margin: float | None = None, data: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The numbers of the frontiers' tables, for a script."""
    try:
        from infobatch_lab.frontier import find_frontiers
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    check_margin(margin)
    return [frontier.as_dict(margin) for frontier in find_frontiers(_read(run_files, data)[0])]


def _read(run_files: Sequence[Path], data: Sequence[str] | None) -> tuple[list[Run], list[str]]:
    """The runs of these files, or those of some data sets alone, and notes on what is left out."""
    from infobatch_lab.runs import read

    runs, notes = read(run_files)
    if data is None:
        return runs, notes
    there = {str(dict(run.compared)["data"]) for run in runs}
    if unknown := [name for name in data if name not in there]:
        raise ValueError(
            f"data is {unknown[0]!r}, which no run has: expected one or more of "
            f"{', '.join(sorted(there))}."
        )
    return [run for run in runs if dict(run.compared)["data"] in data], notes


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
