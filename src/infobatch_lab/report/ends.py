"""Figures of where runs end: by samples trained, by r, by delta; losses and seconds."""

from __future__ import annotations

from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    StrMethodFormatter,
)

from infobatch_lab.comparison import Comparison
from infobatch_lab.display import duration
from infobatch_lab.report.canvas import (
    Sketch,
    Theme,
    canvas,
    dash,
    draw_reference,
    full_colour,
    metric_axis,
    short_name,
    style,
)
from infobatch_lab.report.labels import label_ends, label_points


def metric_by_samples(comparison: Comparison, theme: Theme, margin: float) -> Sketch:
    """The metric at the end, by samples trained."""
    if len(comparison.methods) < 2:
        return None
    metric = comparison.metric
    figure, (axes,) = canvas(3.6)
    words, labels = [], []
    # Subsets have a figure of their own; beside little else they are shown here too.
    on_all = [method for method in comparison.methods if not method.key.chosen]
    shown = on_all if len(on_all) > 1 else comparison.methods
    for method in reversed(shown):  # the main ones on top
        colour = theme.colour(method, comparison)
        value = method.mean
        bar = (method.spread or 0.0) if method.is_main else 0.0
        samples = comparison.num_full * (1 - comparison.samples_saved(method))
        axes.errorbar(
            samples,
            value,
            yerr=bar or None,
            fmt=style(method, comparison).marker,
            markersize=8 if method.is_main else 5,
            markerfacecolor=colour if method.is_main and not method.match_forwards else theme.paper,
            color=colour,
            ecolor=(colour, 0.45),
            elinewidth=1.4,
            zorder=3 if method.is_main else 2,
        )
        labels.append((samples, value, bar, method.short_name if method.is_main else ""))
        if method.is_main:
            words.append(f"{method.name}: {metric.full_text(value)} with {samples:,.0f} samples")
    level = draw_reference(axes, comparison, theme, margin)
    axes.set(xlabel="samples trained", ylabel=short_name(metric.words))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.margins(0.16, 0.16)
    metric_axis(axes, metric)
    label_points(figure, axes, labels, level=level)
    return figure, "; ".join(reversed(words)) + "."


def loss_histograms(comparison: Comparison, theme: Theme) -> Sketch:
    """The losses of one epoch: all, kept, and kept with their weights."""
    pruned = (
        (method, run, run.losses)
        for method in comparison.main_methods
        for run in method.runs
        if run.losses is not None and sum(run.losses.after) < sum(run.losses.before)
    )
    method, run, losses = next(pruned, (None, None, None))
    if method is None or run is None or losses is None:
        return None
    figure, axes = canvas(4.8, rows=3)
    colour = theme.colour(method, comparison)
    panels = (
        ("before pruning", losses.before, "samples"),
        ("after pruning", losses.after, "samples kept"),
        ("rescaled", losses.rescaled, "samples by weight"),
    )
    positive = [count for _, counts, _ in panels for count in counts if count > 0]
    for panel, (name, counts, unit) in zip(axes, panels, strict=True):
        panel.stairs(counts, losses.edges, fill=True, color=colour, alpha=0.85)
        panel.stairs(losses.before, losses.edges, color=theme.ink, linewidth=1)
        panel.set_title(f"{name}: {sum(counts):,.0f} {unit}")
        panel.set_yscale("log")
        panel.set_ylim(0.7 * min(positive, default=1), 2 * max(positive, default=1))
        panel.yaxis.set_major_locator(LogLocator(numticks=6))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.minorticks_off()
        panel.grid(axis="x", visible=False)
    if losses.edges[0] > 0 and losses.edges[-1] > 100 * losses.edges[0]:
        axes[-1].set_xscale("log")
        axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    else:
        axes[-1].xaxis.set_major_locator(MaxNLocator(6))
    axes[-1].set_xlabel(
        f"loss, {short_name(method.name)}, seed {run.seed}, epoch {losses.epoch + 1}"
    )
    figure.supylabel("samples (log scale)", fontsize=10)
    totals = "; ".join(f"{name}: {sum(counts):,.0f} {unit}" for name, counts, unit in panels)
    return figure, f"Histograms of the losses, {totals}."


def variation(comparison: Comparison, theme: Theme, margin: float, *, of_delta: bool) -> Sketch:
    """The metric by r at the main delta of each rule, or by delta at its main r."""
    metric = comparison.metric
    figure, (axes,) = canvas(3.4)
    words, ends = [], []
    for main in comparison.main_methods:
        same = [
            m
            for m in comparison.methods
            if m.family == main.rule
            and m.match_forwards is None
            and m.key.shrink == main.key.shrink
            and (
                m.key.prune_ratio == main.key.prune_ratio
                if of_delta
                else m.key.delta == main.key.delta
            )
        ]
        by_value = {m.key.delta if of_delta else m.key.prune_ratio: m for m in same}
        points = sorted((value, m) for value, m in by_value.items() if value is not None)
        if len(points) < 2:
            continue
        colour = theme.colour(main, comparison)
        values = [value for value, _ in points]
        means = [m.mean for _, m in points]
        spreads = [m.spread or 0.0 for _, m in points]
        axes.errorbar(
            values,
            means,
            yerr=spreads,
            color=colour,
            marker=style(main, comparison).marker,
            linestyle=dash(main, comparison),
            markersize=6,
            elinewidth=1.2,
        )
        ends.append((values[-1], means[-1], main.rule, colour))
        words += [
            f"{main.rule} at {v:g}: {metric.full_text(a)}"
            for v, a in zip(values, means, strict=True)
        ]
    if not ends:
        return None
    full = draw_reference(axes, comparison, theme, margin)
    axes.margins(0.06, 0.12)
    axes.set(xlabel="δ" if of_delta else "r", ylabel=short_name(metric.words))
    metric_axis(axes, metric)
    if full is not None:
        ends.append((axes.get_xlim()[1], full, "full", full_colour(theme)))
    label_ends(axes, ends)
    return figure, "; ".join(words) + "."


def overhead_and_saving(comparison: Comparison, theme: Theme) -> Sketch:
    """The seconds that a run saves, and those that pruning costs."""
    rows = []
    for method in comparison.main_methods:
        seconds = comparison.seconds_saved(method)
        overhead = method.mean_of("pruning_seconds")
        if method.rule != "full" and seconds is not None and overhead is not None:
            rows.append((method, seconds[1], overhead))
    if not rows:
        return None
    figure, (axes,) = canvas(1.0 + 0.55 * len(rows))
    for place, (method, saved, overhead) in enumerate(rows):
        colour = theme.colour(method, comparison)
        axes.barh(place - 0.16, saved, height=0.3, color=colour)
        axes.barh(place + 0.16, overhead, height=0.3, facecolor=theme.paper, edgecolor=theme.ink)
        for offset, value, verb in (
            (-0.16, saved, "saves" if saved >= 0 else "loses"),
            (0.16, overhead, "costs"),
        ):
            axes.annotate(
                f"{verb} {duration(abs(value))}",
                (max(value, 0), place + offset),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    axes.set_yticks(range(len(rows)), [short_name(method.name) for method, _, _ in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.axvline(0, color=theme.ink, linewidth=0.8)
    longest = max(max(saved, overhead) for _, saved, overhead in rows)
    axes.set_xlim(min(0, *(1.1 * saved for _, saved, _ in rows)), 1.38 * longest)
    axes.set_xlabel("seconds per run")
    words = (f"{m.name} saves {s:.3g} s and costs {c:.3g} s" for m, s, c in rows)
    return figure, "; ".join(words) + "."
