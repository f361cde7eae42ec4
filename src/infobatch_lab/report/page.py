"""One HTML page that needs nothing else: no script, no network, images and style inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jinja2 import Environment, PackageLoader, StrictUndefined

from infobatch_lab.comparison import (
    ALWAYS_IN_TITLE,
    CROWD_MARK,
    CROWDED,
    SEVERAL_MACHINES,
    Comparison,
    Row,
    said,
)
from infobatch_lab.display import duration
from infobatch_lab.fields import Value
from infobatch_lab.frontier import ABOVE, BELOW, Frontier, FrontierRow, cells, columns
from infobatch_lab.lines import Run
from infobatch_lab.metrics import MINUS, Metric
from infobatch_lab.report.canvas import Drawing
from infobatch_lab.statistics import LOSSLESS, UNDECIDED, WORSE
from infobatch_lab.visible import NO_BREAK_SPACE

NONE = "\N{EN DASH}"
SIGNS = {LOSSLESS: "✓", WORSE: "✕", UNDECIDED: "?"}


@dataclass(frozen=True)
class Section:
    """A comparison, drawn, as the template shows it."""

    comparison: Comparison
    drawings: Sequence[Drawing]
    margin: float | None = None
    """As it is shown; None for the metric's own."""

    @property
    def slug(self) -> str:
        return self.comparison.slug

    @cached_property
    def rows(self) -> list[ShownRow]:
        return [ShownRow(row) for row in self.comparison.rows(self.margin)]

    @property
    def shown_margin(self) -> str:
        return margin_in_words(self.comparison.metric, self.margin)

    @property
    def tables(self) -> list[tuple[str, list[ShownRow]]]:
        """The main methods, then the others under headings, which are folded."""
        main = [row for row in self.rows if row.row.method.is_main]
        others = [row for row in self.rows if not row.row.method.is_main]
        chosen = [row for row in others if row.row.method.key.chosen]
        varied = [row for row in others if row not in chosen]
        folded = [("Chosen once, before training", chosen), ("Other variants", varied)]
        return [("", main), *((f"{head} ({len(rows)})", rows) for head, rows in folded if rows)]

    @property
    def settings(self) -> str:
        return in_words(self.comparison.settings)

    @property
    def answers(self) -> list[tuple[str, list[ShownRow]]]:
        """For each verdict, the main methods that have it."""
        main = self.tables[0][1]
        found = [(v, [row for row in main if row.row.verdict == v]) for v in SIGNS]
        return [(verdict, rows) for verdict, rows in found if rows]


@dataclass(frozen=True)
class FrontierSection:
    """A frontier, drawn, as the template shows it."""

    frontier: Frontier
    drawings: Sequence[Drawing]
    margin: float | None = None
    """As it is shown; None for the metric's own."""

    @property
    def slug(self) -> str:
        return self.frontier.slug

    @property
    def shown_margin(self) -> str:
        return margin_in_words(self.frontier.metric, self.margin)

    @property
    def settings(self) -> str:
        return in_words(self.frontier.settings)

    @cached_property
    def rows(self) -> list[FrontierRow]:
        return self.frontier.rows(self.margin)

    @property
    def heads(self) -> list[str]:
        return [head[0].upper() + head[1:] for head in columns(self.frontier.metric)]

    @property
    def table(self) -> list[list[str]]:
        """The spread stays beside its mean."""
        spread = f"{NO_BREAK_SPACE}±{NO_BREAK_SPACE}"
        return [
            [text.replace("-", MINUS).replace(" ± ", spread) or NONE for text in cells(row)]
            for row in self.rows
        ]

    @property
    def answers(self) -> list[tuple[str, list[FrontierRow]]]:
        """For each place, the methods that are there."""
        found = [(p, [row for row in self.rows if row.place == p]) for p in PLACES]
        return [(place, rows) for place, rows in found if rows]


PLACES = {ABOVE: LOSSLESS, BELOW: WORSE, UNDECIDED: UNDECIDED}
"""Places beside the line, and the verdicts whose signs and colours they have."""


def margin_in_words(metric: Metric, margin: float | None) -> str:
    """The margin with its unit: `0.5 points of accuracy`, but `1 point`."""
    value = metric.margin if margin is None else margin
    unit = f" {metric.difference_unit}" if metric.difference_unit else ""
    if value == 1 and unit == " points":
        unit = " point"
    return f"{value:g}{unit} of {metric.words}"


def in_words(settings: Mapping[str, Value]) -> str:
    """The settings that no title says; what is off is not mentioned."""
    return ", ".join(
        part
        for name, value in settings.items()
        if name not in (*ALWAYS_IN_TITLE, "metric")
        and (value or name in ("num_samples", "num_test"))
        and (part := said(name, value))
    )


@dataclass(frozen=True)
class ShownRow:
    """A row as text."""

    row: Row

    @property
    def metric(self) -> Metric:
        return self.row.comparison.metric

    @property
    def name(self) -> str:
        return self.row.method.name

    @property
    def settings(self) -> str:
        """The values of r and delta where the name does not have them, or the time of choosing."""
        method = self.row.method
        collecting, selecting = (
            method.mean_of(f"{name}_seconds") for name in ("collecting", "selecting")
        )
        if collecting is not None and selecting is not None:
            return f"chosen in {duration(collecting)} + {duration(selecting)}"
        hidden = method.match_forwards or not method.is_main
        return "" if hidden else ", ".join(method.key.settings)

    @property
    def seeds(self) -> int:
        return len(self.row.method.runs)

    @property
    def value(self) -> str:
        return self.metric.text(self.row.method.mean)

    @property
    def spread(self) -> str:
        spread = self.row.method.spread
        return "" if spread is None else f"± {self.metric.text(spread)}"

    @property
    def percentages(self) -> list[tuple[str, str]]:
        """The columns that are parts of something."""
        row = self.row
        crowded = row.is_crowded and row.time_saved is not None
        mark = f"{NO_BREAK_SPACE}{CROWD_MARK}" if crowded else ""
        return [
            ("Samples saved", NONE if row.is_reference else percent(row.samples_saved, 1)),
            ("Time saved", NONE if row.is_reference else percent(row.time_saved, 1) + mark),
            ("Overhead", percent(row.method.overhead, 2)),
        ]

    @property
    def difference(self) -> str:
        found = self.row.difference
        return NONE if found is None else self.signed(found.mean)

    @property
    def interval(self) -> str:
        found = self.row.difference
        if found is None or found.low is None or found.high is None:
            return ""
        kind = "" if found.is_paired else ", unpaired"
        return f"[{self.signed(found.low)}, {self.signed(found.high)}]{kind}"

    def signed(self, difference: float) -> str:
        """With a minus that is as wide as a plus."""
        return self.metric.signed(difference).replace("-", MINUS)

    @property
    def reason(self) -> str:
        """Why a verdict is undecided: the runs that it needs."""
        found = self.row.difference
        if self.row.verdict != UNDECIDED or found is None:
            return ""
        return found.need

    def bar(self, rows: Sequence[ShownRow]) -> dict[str, str] | None:
        """Where the interval's picture has its parts, on a scale that all rows share."""
        found = self.row.difference
        if found is None or found.low is None or found.high is None:
            return None
        edge = -self.metric.sign * self.row.margin
        judged = [row.row.difference for row in rows if row.row.difference is not None]
        ends = [end for d in judged for end in (d.low, d.high) if end is not None]
        left, right = min(*ends, 2 * edge, -edge), max(*ends, 2 * edge, -edge)
        places = {"low": found.low, "mean": found.mean, "high": found.high, "zero": 0.0}
        places |= {"margin_left": min(edge, 0.0), "margin_right": max(edge, 0.0)}
        x = {name: 6 + 188 * (at - left) / (right - left) for name, at in places.items()}
        x["margin_width"] = x["margin_right"] - x["margin_left"]
        return {name: f"{at:.1f}" for name, at in x.items()}


def page(
    sections: Sequence[Section],
    notes: Sequence[str],
    frontiers: Sequence[FrontierSection] = (),
) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("infobatch_lab", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "data_uri": data_uri, "percent": percent}
    named = named_runs(sections, frontiers)
    shown: list[FrontierSection | Section] = [*frontiers, *sections]
    return environment.get_template("page.html").render(
        sections=sections,
        frontiers=frontiers,
        notes=notes,
        num_runs=len(named),
        heading=heading(sections, frontiers, len(named)),
        crowd_mark=CROWD_MARK,
        crowded=CROWDED,
        several_machines=SEVERAL_MACHINES,
        margins=list(dict.fromkeys(section.shown_margin for section in shown)),
        environments=environments(named.values()),
        signs=SIGNS,
        places=PLACES,
        none=NONE,
    )


def heading(
    sections: Sequence[Section], frontiers: Sequence[FrontierSection], num_runs: int
) -> str:
    """What the page shows: a single run is compared with nothing."""
    if frontiers or any(s.comparison.full and len(s.comparison.methods) > 1 for s in sections):
        return "Pruned and full training compared"
    return "One training run" if num_runs == 1 else "Training runs"


NamedRun = tuple[str, Run]


def named_runs(
    sections: Sequence[Section], frontiers: Sequence[FrontierSection]
) -> dict[int, NamedRun]:
    """All runs with their names; one that is in a frontier and in a comparison counts once."""
    found: dict[int, NamedRun] = {}
    for section in frontiers:
        for row in section.rows:
            for run in row.point.method.runs:
                name = f"{section.frontier.title} · {row.name} · seed {run.seed}"
                found.setdefault(id(run), (name, run))
    for comparison in (section.comparison for section in sections):
        for method in comparison.methods:
            for run in method.runs:
                name = f"{comparison.title} · {method.name} · seed {run.seed}"
                found.setdefault(id(run), (name, run))
    return found


def environments(named: Iterable[NamedRun]) -> dict[tuple[tuple[str, str], ...], list[NamedRun]]:
    """Where the runs were made, and the runs with their names."""
    found: dict[tuple[tuple[str, str], ...], list[NamedRun]] = {}
    for name, run in named:
        found.setdefault(run.environment, []).append((name, run))
    return found


def count(number: int, noun: str) -> str:
    """`count(2, "run")` is "2 runs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def percent(fraction: float | None, decimals: int) -> str:
    """`percent(0.25, 1)` is "25.0 %"."""
    if fraction is None:
        return NONE
    return f"{100 * fraction:.{decimals}f}{NO_BREAK_SPACE}%".replace("-", MINUS)


def data_uri(png: bytes) -> str:
    """An image inside of the page."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
