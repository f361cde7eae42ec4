"""A page and figures of runs: files of JSON lines in, HTML and PNG out.

The files in the order in which a run passes through them: `runs` reads lines, `comparisons` puts
together what may be compared, `statistics` judges, `rows` lists, `figures` draws, `page` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["results", "write"]


def write(run_files: Sequence[Path], out: Path, *, margin: float = 0.005) -> Path:
    """Write the report of these runs: `write([Path("results")], Path("report"))`.

    `run_files` are files of JSON lines, or folders that are searched for `*.jsonl`. `out` is a
    folder, or the path of the page if it ends in `.html`; the figures come beside it. A method is
    lossless if it loses less than `margin`, a fraction of 1. Returns the path of the page.
    """
    try:
        from infobatch_lab.report.comparisons import compare
        from infobatch_lab.report.figures import draw
        from infobatch_lab.report.page import Section, page
        from infobatch_lab.report.runs import read
        from infobatch_lab.report.statistics import judge
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    _check(margin)
    runs, notes = read(run_files)
    comparisons, doubles = compare(runs)
    notes += doubles
    for note in notes:
        print(note, file=sys.stderr)
    target = out if out.suffix == ".html" else out / "index.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    sections = []
    for comparison in comparisons:
        drawings = draw(comparison, margin)
        for drawing in drawings:
            if drawing.light:
                (target.parent / f"{comparison.slug}-{drawing.name}.png").write_bytes(drawing.light)
        sections.append(Section(comparison, judge(comparison, margin), drawings))
    target.write_text(page(sections, notes, margin), encoding="utf-8")
    return target


def results(run_files: Sequence[Path], *, margin: float = 0.005) -> list[dict[str, Any]]:
    """What the report's tables say, for a script: `results([Path("results")])`."""
    try:
        from infobatch_lab.report.comparisons import compare
        from infobatch_lab.report.rows import results_of
        from infobatch_lab.report.runs import read
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    _check(margin)
    comparisons, _ = compare(read(run_files)[0])
    return [results_of(comparison, margin) for comparison in comparisons]


def _check(margin: float) -> None:
    if not 0 < margin < 1:
        raise ValueError(f"margin is {margin!r}, expected a fraction of 1 with 0 < margin < 1.")


def _missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same, with the remedy where it is a package of the extra."""
    if error.name is None or error.name.split(".")[0] not in ("matplotlib", "scipy"):
        return error
    return ModuleNotFoundError(
        f"a report needs {error.name}: pip install infobatch[experiments].", name=error.name
    )
