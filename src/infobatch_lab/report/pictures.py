"""The pictures that a task makes of a finished run: masks, reconstructions, samples."""

from __future__ import annotations

from pathlib import Path

from infobatch_lab.comparison import Comparison, slug_of
from infobatch_lab.lines import Run
from infobatch_lab.report.canvas import Drawing

PNG = b"\x89PNG"
MOST_BYTES = 8 << 20
"""A larger picture is left out: all of them are inside of the page."""


def pictures(comparison: Comparison) -> list[Drawing]:
    """Those of the first seed of each main method, if they still lie beside the runs."""
    drawings = []
    for method in comparison.methods:
        run = method.runs[0]
        for file, content in files_of(run) if method.is_main else ():
            title = f"{file.stem.replace('-', ' ').capitalize()} · {method.name}"
            text = f"Made by the task after the last epoch, seed {run.seed}."
            name = f"{slug_of(method.name)}-{slug_of(file.stem)}"
            # Dark pages show the same image: it has no colours of ours.
            alt = f"{title}, {comparison.title}. {text}"
            drawings.append(Drawing(name, title, text, alt, content, content))
    return drawings


def files_of(run: Run) -> list[tuple[Path, bytes]]:
    """The PNG files in the run's folder of figures, sorted by name."""
    if run.settings is None:
        return []
    runs_file, _, _ = run.place.rpartition(":")
    folder = Path(runs_file).parent / "figures" / run.settings.name
    files = [
        file
        for file in sorted(folder.glob("*.png"))
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= MOST_BYTES
    ]
    contents = [(file, file.read_bytes()) for file in files]
    return [(file, content) for file, content in contents if content.startswith(PNG)]
