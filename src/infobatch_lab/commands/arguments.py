"""Arguments that several commands have, and the end of a command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infobatch_lab import tasks
from infobatch_lab.errors import UserError
from infobatch_lab.options import in_words

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets' files [default: a cache directory]"),
]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Epochs between checkpoints; 0: only after Ctrl-C")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script")]
Out = Annotated[Path, typer.Option("--out", help="Folder for runs.jsonl and checkpoints")]


Data = Annotated[str, typer.Option(help=f"Data set: {in_words(list(tasks.RECIPES))}")]


def examples(*lines: str) -> str:
    """The end of a command's help, with its lines kept apart."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def split(option: str, text: str) -> list[str]:
    """Split a text at its commas: `split("rules", "full,mean")`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} is {text!r}, expected one or more, separated by commas.")
    return names


def numbers(option: str, text: str) -> list[float]:
    """Split a text at its commas into numbers."""
    try:
        return [float(number) for number in split(option, text)]
    except ValueError:
        raise UserError(f"{option} is {text!r}, expected numbers separated by commas.") from None
