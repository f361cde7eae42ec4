"""Names in figures, placed so that none covers another: matplotlib has nothing for that."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from infobatch_lab.visible import visible


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names right of the picture, each joined to the end of its line and none on another."""
    low, high = axes.get_ylim()
    heights = spread_out([(y - low) / (high - low) for _, y, _, _ in ends], gap=0.075)
    for (x, y, name, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            visible(name, most=28),
            (x, y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 2},
        )


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1, at least a gap apart and as near to the wanted ones as that allows.

    >>> [round(place, 3) for place in spread_out([0.5, 0.1, 0.5], gap=0.2)]
    [0.4, 0.1, 0.6]
    """
    # Neighbours that are too close become one block around their mean, which may touch the next.
    blocks: list[list[int]] = []
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        blocks.append([index])
        while len(blocks) > 1 and _start(blocks[-1], places, gap) < (
            _start(blocks[-2], places, gap) + gap * len(blocks[-2]) - 1e-9
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    spread = [0.0] * len(places)
    for block in blocks:
        for rank, index in enumerate(block):
            spread[index] = _start(block, places, gap) + gap * rank
    return spread


def _start(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    length = gap * (len(block) - 1)
    wanted = sum(places[index] for index in block) / len(block) - length / 2
    return max(0.0, min(wanted, 1 - length))


def label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[tuple[float, float, float, str]],
    *,
    level: float | None,
) -> None:
    """A name beside each point, where it covers the least of points, bars, names and the line."""
    figure.draw_without_rendering()  # so that the extents are known
    figure.set_layout_engine("none")
    frame = axes.get_window_extent()
    taken = []
    if level is not None:
        _, height = axes.transData.transform((0, level))
        taken.append(Bbox.from_extents(frame.x0, height - 2, frame.x1, height + 2))
    for x, y, bar, _ in points:
        (left, low), (_, high) = axes.transData.transform([(x, y - bar), (x, y + bar)])
        _, middle = axes.transData.transform((x, y))
        taken.append(Bbox.from_extents(left - 8, middle - 8, left + 8, middle + 8))
        taken.append(Bbox.from_extents(left - 2, low, left + 2, high))
    pixels = figure.dpi / 72
    for x, y, name in ((x, y, name) for x, y, _, name in points if name):
        text = axes.annotate(
            visible(name, most=28), (x, y), (0, 0), textcoords="offset points", va="center", size=9
        )
        at_mark = text.get_window_extent()
        options = []
        for rank, (dx, dy) in enumerate(PLACES):
            left = pixels * dx - (at_mark.width if dx < 0 else 0)
            box = at_mark.translated(left, pixels * dy)
            cost = sum(_overlap(box, other) for other in taken)
            cost += 10 * (box.width * box.height - _overlap(box, frame))
            options.append((cost, rank, box))
        _, rank, box = min(options, key=lambda option: option[:2])
        taken.append(box)
        text.set(position=PLACES[rank], ha="left" if PLACES[rank][0] > 0 else "right")
        if abs(PLACES[rank][1]) > 9:  # too far to be told whose it is
            axes.annotate(
                "",
                (x, y),
                PLACES[rank],
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": text.get_color()},
            )


PLACES = [
    (side * dx, dy)
    for dx in (10, 22, 34)
    for dy in (0, 9, -9, 18, -18, 27, -27, 40, -40, 55, -55)
    for side in (1, -1)
]
"""Where a name may stand, in points from its mark; the first that covers nothing wins."""


def _overlap(one: Bbox, other: Bbox) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0.0) * max(height, 0.0))
