"""One HTML page that needs nothing else: no script, no network, images and style inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from infobatch_lab.report.comparisons import Comparison, Method, in_words
from infobatch_lab.report.figures import Drawing
from infobatch_lab.report.rows import row
from infobatch_lab.report.runs import Run
from infobatch_lab.report.statistics import MOST_SEEDS, Difference

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
SIGNS = {"lossless": "✓", "worse": "✕", "not shown": "?"}


@dataclass(frozen=True)
class Section:
    """A comparison, judged and drawn."""

    comparison: Comparison
    differences: Mapping[Method, Difference]
    drawings: Sequence[Drawing]


def page(sections: Sequence[Section], notes: Sequence[str], margin: float) -> str:
    """The whole page."""
    style = files("infobatch_lab.report").joinpath("page.css").read_text(encoding="utf-8")
    num_runs = sum(len(m.runs) for s in sections for m in s.comparison.methods)
    contents = "".join(
        f'<li><a href="#{section.comparison.slug}">{escape(section.comparison.title)}</a></li>'
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Pruned and full training compared</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>Pruned and full training compared</h1>
<p>{_count(num_runs, "run")} in {_count(len(sections), "comparison")}. A method is called
<b>lossless</b> if it loses less than {_points(margin)} points of accuracy with 95&nbsp;%
confidence.</p>
{f"<nav aria-label='Comparisons'><ol>{contents}</ol></nav>" if len(sections) > 1 else ""}
</header>
<main>
{"".join(_section(section, margin) for section in sections)}
{_method(margin)}
{_provenance(sections)}
{_notes(notes)}
</main>
</body>
</html>
"""


def _section(section: Section, margin: float) -> str:
    comparison = section.comparison
    settings = [
        part
        for name, value in comparison.settings.items()
        if name not in ("data", "model", "optimizer", "epochs")
        and not (name in ("label_smoothing", "mixup", "cutmix", "amp", "compile") and not value)
        and (part := in_words(name, value))
    ]
    others = [method for method in comparison.methods if not method.is_main]
    folded = ""
    if others:
        folded = f"""<details><summary>Other values of r and δ ({len(others)})</summary>
{_table(section, others, margin)}</details>"""
    machines = ""
    if len(comparison.machines) > 1:
        machines = (
            "<p>These runs come from several machines, or used several numbers of threads: times "
            "are compared where they agree.</p>"
        )
    return f"""<section id="{comparison.slug}" aria-labelledby="{comparison.slug}-title">
<h2 id="{comparison.slug}-title">{escape(comparison.title)}</h2>
<p class="settings">{escape(", ".join(settings))}</p>
{_summary(section, margin)}
{_table(section, comparison.main_methods, margin)}
{folded}{machines}{_dagger(comparison)}
<div class="figures">{"".join(_figure(d) for d in section.drawings if d.light)}</div>
{_missing(section.drawings)}
</section>
"""


def _summary(section: Section, margin: float) -> str:
    """The answer, in one sentence."""
    comparison = section.comparison
    if comparison.full is None:
        return (
            '<p class="answer">There are no runs of full training with these settings, so nothing '
            "can be said about losses. Run the same command with the rule <code>full</code>.</p>"
        )
    items = []
    for verdict in SIGNS:
        names = [
            f"<b>{escape(method.name)}</b> ({_percent(comparison.samples_saved(method), 1)} saved)"
            for method in comparison.main_methods
            if method is not comparison.full
            and section.differences[method].verdict(margin) == verdict
        ]
        if names:
            items.append(f"<li>{_badge(verdict, '')} {', '.join(names)}</li>")
    return f'<ul class="answer">{"".join(items)}</ul>' if items else ""


# The table ----------------------------------------------------------------------------------------

COLUMNS = (
    "Method",
    "Seeds",
    "Accuracy, %",
    "Samples saved",
    "Time saved",
    "Overhead",
    "Difference to full, points",
    "Verdict",
)


def _table(section: Section, methods: Sequence[Method], margin: float) -> str:
    judged = [section.differences[method] for method in methods if method in section.differences]
    scale = _scale(judged, margin)
    # The roles keep it a table where the style lays rows out as cards.
    heads = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in COLUMNS)
    rows = "".join(_row(section, method, margin, scale) for method in methods)
    return f"""<table role="table"><caption>{escape(section.comparison.title)}: each method
against full training</caption>
<thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup">{rows}</tbody></table>"""


def _row(section: Section, method: Method, margin: float, scale: tuple[float, float]) -> str:
    comparison = section.comparison
    found = row(comparison, method, section.differences.get(method), margin)
    spread = "" if found["spread"] is None else f"± {100 * found['spread']:.2f}"
    is_full = method is comparison.full
    cells = (
        str(len(method.runs)),
        f'{100 * found["accuracy"]:.2f} <span class="soft">{spread}</span>',
        NONE if is_full else _percent(found["samples_saved"], 1),
        NONE if is_full else _percent(found["time_saved"], 1),
        _percent(found["overhead"], 2),
        *_judgement(section, method, margin, scale),
    )
    settings = ""
    if method.is_main and method.settings and not method.match_forwards:
        settings = f'<span class="soft">{", ".join(method.settings)}</span>'
    return (
        f'<tr role="row"><th role="rowheader" scope="row">{escape(method.name)} {settings}</th>'
        + "".join(
            f'<td role="cell" data-label="{label}"{" class=none" * (cell == NONE)}>{cell}</td>'
            for label, cell in zip(COLUMNS[1:], cells, strict=True)
        )
        + "</tr>"
    )


def _judgement(
    section: Section, method: Method, margin: float, scale: tuple[float, float]
) -> tuple[str, str]:
    """The cells of the difference and the verdict."""
    if method is section.comparison.full:
        return NONE, "reference"
    difference = section.differences.get(method)
    if difference is None:
        return NONE, _badge("not shown", "needs runs of full training")
    verdict = difference.verdict(margin)
    interval = f"{_signed(difference.mean)}"
    if difference.low is None:
        reason = "needs at least 2 seeds of both"
    else:
        kind = "" if difference.is_paired else ", unpaired"
        interval = (
            f'<span class="nowrap">{interval} '
            f'<span class="soft">{_interval(difference)}{kind}</span></span>'
            f"{_bar(difference, margin, scale)}"
        )
        needed = difference.num_needed
        reason = f"needs about {needed:,} seeds" if needed else f"needs over {MOST_SEEDS:,} seeds"
    return interval, _badge(verdict, reason if verdict == "not shown" else "")


def _badge(verdict: str, reason: str) -> str:
    sign = f'<span aria-hidden="true">{SIGNS[verdict]}</span>'
    note = f' <span class="soft">{reason}</span>' if reason else ""
    kind = verdict.replace(" ", "-")
    return f'<span class="badge {kind}">{sign} {verdict}</span>{note}'


def _scale(differences: Iterable[Difference], margin: float) -> tuple[float, float]:
    """What the bars of a table range over."""
    ends = [end for d in differences for end in (d.low, d.high) if end is not None]
    return min([*ends, -2 * margin]), max([*ends, margin])


def _bar(difference: Difference, margin: float, scale: tuple[float, float]) -> str:
    """The interval as a picture: the shaded part is the margin, the line is no difference."""
    assert difference.low is not None
    assert difference.high is not None
    low, mean, high, edge, zero = (
        6 + 188 * (value - scale[0]) / (scale[1] - scale[0])
        for value in (difference.low, difference.mean, difference.high, -margin, 0.0)
    )
    return (
        '<svg class="bar" viewBox="0 0 200 16" aria-hidden="true">'
        f'<rect class="margin" x="{edge:.1f}" y="0" width="{zero - edge:.1f}" height="16"/>'
        f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="16"/>'
        f'<line class="span" x1="{low:.1f}" x2="{high:.1f}" y1="8" y2="8"/>'
        f'<circle class="mean" cx="{mean:.1f}" cy="8" r="4.5"/></svg>'
    )


def _dagger(comparison: Comparison) -> str:
    if not any(method.match_forwards for method in comparison.methods):
        return ""
    return (
        '<p class="soft">† Full training with fewer epochs, cut to as many forward passes as that '
        "rule had: what one could have had for the same price.</p>"
    )


# Figures ------------------------------------------------------------------------------------------


def _figure(drawing: Drawing) -> str:
    return f"""<figure><h3>{drawing.title}</h3>
<picture><source media="(prefers-color-scheme: dark)" srcset="{_data(drawing.dark)}">
<img src="{_data(drawing.light)}" alt="{escape(drawing.alt)}"></picture>
<figcaption>{drawing.text}</figcaption></figure>
"""


def _missing(drawings: Sequence[Drawing]) -> str:
    items = "".join(f"<li><b>{d.title}.</b> {d.text}</li>" for d in drawings if not d.light)
    return f'<div class="soft"><p>Not drawn:</p><ul>{items}</ul></div>' if items else ""


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


# The end of the page ------------------------------------------------------------------------------


def _method(margin: float) -> str:
    return f"""<section aria-labelledby="reading">
<h2 id="reading">How to read this</h2>
<ul>
<li><b>Accuracy</b> is that on the test split after the last epoch: mean ± standard deviation over
the seeds.</li>
<li><b>Samples saved</b> and <b>time saved</b> are parts of full training. Time is that of training,
without evaluation. <b>Overhead</b> is the part of a method's own training time that went into
deciding what to prune and keeping book.</li>
<li><b>Difference</b> is the mean accuracy less that of full training, with its 95&nbsp;% confidence
interval: Student's, of the differences seed by seed where both were run with at least two common
seeds, else Welch's (&ldquo;unpaired&rdquo;). It says how the outcome varies with the seed, on this
test split. Accuracies are whole test samples, so a spread below that of rounding to them is not
believed. In the picture the line is no difference and the shaded part the margin.</li>
<li><b>Verdict</b>: <i>lossless</i> if the whole interval is above {MINUS}{_points(margin)} points,
<i>worse</i> if it is below 0, else <i>not shown</i>, with the number of seeds at which the interval
would decide if mean and spread stayed as they are; they will not stay exactly, so take a few more.
Each verdict stands for itself: of twenty, one may be wrong.</li>
</ul>
</section>
"""


def _provenance(sections: Sequence[Section]) -> str:
    environments: dict[tuple[tuple[str, str], ...], list[tuple[str, Run]]] = {}
    for section in sections:
        for method in section.comparison.methods:
            for run in method.runs:
                name = f"{section.comparison.title} · {method.name} · seed {run.seed}"
                environments.setdefault(run.environment, []).append((name, run))
    blocks = "".join(
        f"<details><summary>{_count(len(runs), 'run')}: {escape(_short(environment))}</summary>"
        f'<dl class="environment">{_terms(environment)}</dl>'
        f'<ul class="runs">{"".join(_source(name, run) for name, run in runs)}</ul></details>'
        for environment, runs in environments.items()
    )
    return f"""<section aria-labelledby="provenance">
<h2 id="provenance">Where the numbers come from</h2>
{blocks}</section>
"""


def _short(environment: Iterable[tuple[str, str]]) -> str:
    shown = [f"{k} {v}" for k, v in environment if k in ("infobatch", "torch", "commit")]
    return ", ".join(shown)


def _terms(environment: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in environment
    )


def _source(name: str, run: Run) -> str:
    return (
        f"<li>{escape(name)}<br><code>{escape(run.command)}</code><br>"
        f'<span class="soft">{escape(run.place)}</span></li>'
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"""<section aria-labelledby="notes"><h2 id="notes">Left out</h2>
<details><summary>{_count(len(notes), "line")}</summary><ul class="runs">{items}</ul></details>
</section>"""


# Numbers in words ---------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _points(fraction: float) -> str:
    return f"{100 * fraction:g}"


def _signed(fraction: float) -> str:
    """In points, with a sign that is as wide as a plus: `_signed(-0.001)` has one."""
    return f"{100 * fraction:+.2f}".replace("-", MINUS)


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return ""
    return f"[{_signed(difference.low)}, {_signed(difference.high)}]"


def _percent(fraction: float | None, decimals: int) -> str:
    if fraction is None:
        return NONE
    return f"{100 * fraction:.{decimals}f}\N{NO-BREAK SPACE}%".replace("-", MINUS)
