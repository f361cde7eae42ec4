"""What a measurement is, and how it is shown: a row with our figure, those beside it, an aim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Aim:
    """What a row should come to: its own value, or its ratio to one of the others."""

    bound: float
    against: str | None = None
    at_least: bool = False

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.bound:g}" + (f" x {self.against}" if self.against else "")


@dataclass(frozen=True)
class Row:
    what: str
    ours: float
    unit: str
    """s, B, MB, GB, %, or nothing; a count is an int."""
    others: dict[str, float] = field(default_factory=dict)
    """What it is compared with, in the same unit."""
    aim: Aim | None = None

    @property
    def is_met(self) -> bool | None:
        """None where there is no aim."""
        if self.aim is None:
            return None
        value = self.ours / self.others[self.aim.against] if self.aim.against else self.ours
        return value >= self.aim.bound if self.aim.at_least else value <= self.aim.bound

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.is_met]


@dataclass(frozen=True)
class Section:
    title: str
    note: str
    """How it was measured, and what the columns are."""
    rows: list[Row]

    @property
    def columns(self) -> list[str]:
        """The names of all that the rows are compared with."""
        return list(dict.fromkeys(name for row in self.rows for name in row.others))

    def cells(self) -> Iterator[list[str]]:
        """The table: a heading, then a line for each row, all of text."""
        has_aims = any(row.aim for row in self.rows)
        aim_heading = ["aim", ""] if has_aims else []
        yield ["", "ours", *(f"of {name}" for name in self.columns), *aim_heading]
        for row in self.rows:
            ratios = [
                f"{row.ours / row.others[name]:.2f} x" if name in row.others else ""
                for name in self.columns
            ]
            aim = [str(row.aim or ""), row.verdict] if has_aims else []
            yield [row.what, in_words(row.ours, row.unit), *ratios, *aim]

    @staticmethod
    def from_json(found: dict[str, Any]) -> Section:
        rows = []
        for row in found["rows"]:
            aim = Aim(**row["aim"]) if row["aim"] else None
            rows.append(Row(row["what"], row["ours"], row["unit"], row["others"], aim))
        return Section(found["title"], found["note"], rows)

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "met": row.is_met} for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}


def in_words(value: float, unit: str) -> str:
    """A figure as people write it.

    >>> in_words(0.0123, "s"), in_words(24.96, "B"), in_words(2, "")
    ('12.3 ms', '25.0 B', '2')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if unit == "s":
        scale, unit = next(
            (scale, unit)
            for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
            if value * scale >= 1 or unit == "us"
        )
        return (
            f"{value * scale:.3g} {unit}" if value * scale < 100 else f"{value * scale:.0f} {unit}"
        )
    return f"{value:.1f} {unit}" if unit else f"{value:.3f}"


def as_text(section: Section) -> str:
    """For a terminal."""
    cells = list(section.cells())
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    lines = (
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
    return "\n".join([section.title, *lines])


def as_markdown(section: Section) -> str:
    """For a page."""
    heading, *lines = section.cells()
    rule = ["---", *("--:" for _ in heading[1:])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [heading, rule, *lines])
    return f"## {section.title}\n\n{section.note}\n\n{table}\n"
