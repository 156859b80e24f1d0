"""Figures of a report as inline SVG: mean returns with their intervals, histograms, and lines such as learning curves.

Pure functions from numbers to text. Colours and fonts come from the page's style sheet by class name, so that a
figure follows the page from light to dark. Widths suit a phone; wider screens put figures side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from env_servers.scores import Interval

WIDTH = 440.0  # of the drawing; the page scales it
RIGHT, LEFT_MEANS, LEFT_COUNTS = 14.0, 4.0, 44.0  # margins of the axes
ROW, PANEL, PANEL_GAP, AXIS = 46.0, 84.0, 60.0, 44.0
EDGE = 14.0  # nearer to it, a text that stands in the middle is cut
MAX_BINS = 30
NAME_LENGTH = 46
LINES_TOP, LINES_HEIGHT, LEGEND = 14.0, 190.0, 20.0
COLOURS = 6  # that the style sheet has; further lines are dashed


class MeanReturn(NamedTuple):
    """A point of the first figure."""

    name: str
    mean: float
    interval: Interval


class Values(NamedTuple):
    """A panel of a histogram: one number per episode of a run."""

    name: str
    values: Sequence[float]


class Line(NamedTuple):
    """A line of a figure: x and y of its points, and the interval of each y where there is one."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[Interval] = ()


class Bins(NamedTuple):
    """Edges of the bins, which all panels share: bin i is [start + i * width, start + (i + 1) * width)."""

    start: float
    width: float
    number: int

    def bin_of(self, value: float) -> int:
        """The bin of a value; the last bin holds its upper edge, too."""
        return min(max(int((value - self.start) / self.width), 0), self.number - 1)


def mean_figure(points: Sequence[MeanReturn]) -> str:
    """Mean returns as points, their 95 % intervals as bars, one below the other."""
    ends = [value for p in points for value in (p.mean, *p.interval) if math.isfinite(value)]
    low, high = _padded(min(ends), max(ends))
    height = ROW * len(points) + AXIS
    x = _Scale(low, high, LEFT_MEANS)
    parts = [_x_axis(x, 0, ROW * len(points), "Mean return with 95 % interval")]
    for number, point in enumerate(points):
        middle = ROW * number + 31
        parts.append(_name(point.name, LEFT_MEANS, ROW * number + 16))
        if all(math.isfinite(end) for end in point.interval):
            a, b = x(point.interval.low), x(point.interval.high)
            parts.append(
                f'<path class="bar" d="M{a:.1f} {middle}H{b:.1f}M{a:.1f} {middle - 5}v10M{b:.1f} {middle - 5}v10"/>'
            )
        parts.append(f'<circle class="point" cx="{x(point.mean):.1f}" cy="{middle}" r="4.5"/>')
    told = "; ".join(f"{p.name}: {p.mean:.2f}" for p in points)
    return _svg(height, f"Mean return by model. {told}", parts)


def histogram_figure(runs: Sequence[Values], what: str = "Return of an episode") -> str:
    """One histogram of the episodes' returns (or `what` else) per run; all share their bins and their x axis."""
    bins = choose_bins([value for run in runs for value in run.values])
    low, high = bins.start, bins.start + bins.width * bins.number
    x, step = _Scale(low, high, LEFT_COUNTS), PANEL + PANEL_GAP
    parts = []
    for number, run in enumerate(runs):
        top = step * number + 26
        floor = top + PANEL
        counts = [0] * bins.number
        for value in run.values:
            counts[bins.bin_of(value)] += 1
        most = max(counts)
        last = number == len(runs) - 1
        parts.append(_name(run.name, LEFT_COUNTS, top - 10))
        parts.append(_x_axis(x, top, floor, what if last else ""))
        parts.append(f'<text class="tick" x="{LEFT_COUNTS - 8}" y="{top + 4}" text-anchor="end">{most}</text>')
        parts.append(f'<text class="tick" x="{LEFT_COUNTS - 8}" y="{floor}" text-anchor="end">0</text>')
        middle = (top + floor) / 2
        parts.append(
            f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
            "Episodes</text>"
        )
        for index, count in enumerate(counts):
            if count:
                a, b = x(low + index * bins.width), x(low + (index + 1) * bins.width)
                tall = max(PANEL * count / most, 1.0)
                parts.append(
                    f'<rect class="column" x="{a + 0.5:.1f}" y="{floor - tall:.1f}" width="{max(b - a - 1, 1):.1f}" '
                    f'height="{tall:.1f}"><title>{_bin_text(bins, index)}: {count}</title></rect>'
                )
    names = ", ".join(run.name for run in runs)
    return _svg(step * len(runs) + 8, f"Histograms. {what}: {names}", parts)


def line_figure(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Lines over a common x, with a legend below. Points are marked where they are few."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    ys += [end for line in lines for interval in line.intervals for end in interval if math.isfinite(end)]
    low, high = _padded(min(ys), max(ys)) if min(ys) < 0 or max(ys) <= 0 else (0.0, max(ys) * 1.06)
    x = _Scale(*((min(xs), max(xs)) if min(xs) < max(xs) else _padded(min(xs), max(xs))), LEFT_COUNTS + 8)
    floor = LINES_TOP + LINES_HEIGHT

    def y(value: float) -> float:
        return floor - LINES_HEIGHT * (value - low) / (high - low)

    parts = [_x_axis(x, LINES_TOP, floor, x_label)]
    for tick in ticks(low, high):
        text = f"{tick:g}".replace("-", "\N{MINUS SIGN}")
        parts.append(f'<path class="grid" d="M{x.left} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{x.left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    middle = LINES_TOP + LINES_HEIGHT / 2
    parts.append(
        f'<text class="axis" x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">'
        f"{escape(y_label)}</text>"
    )
    few = all(len(line.points) <= MAX_BINS for line in lines)
    for number, line in enumerate(lines):
        kind = f"line c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line.points)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
        for (a, _), interval in zip(line.points, line.intervals, strict=False):
            if all(math.isfinite(end) for end in interval):
                parts.append(
                    f'<path class="{kind} bound" d="M{x(a):.1f} {y(interval.low):.1f}V{y(interval.high):.1f}"/>'
                )
        if few:
            parts += [
                f'<circle class="mark c{number % COLOURS}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3">'
                f"<title>{escape(line.name)}: {b:.4g} at {a:g}</title></circle>"
                for a, b in line.points
            ]
        row = floor + AXIS + LEGEND * number + 10
        parts.append(f'<path class="{kind}" d="M{x.left} {row - 4}h22"/>')
        parts.append(_name(line.name, x.left + 30, row))
    names = ", ".join(line.name for line in lines)
    return _svg(floor + AXIS + LEGEND * len(lines) + 4, f"{y_label} over {x_label.lower()}: {names}", parts)


def choose_bins(values: Sequence[float]) -> Bins:
    """Bins for a non-empty set of returns: one per integer where returns are few integers, else equal widths."""
    low, high = min(values), max(values)
    if all(float(value).is_integer() for value in values):
        width = float(math.ceil((high - low + 1) / MAX_BINS))
        return Bins(low - 0.5, width, math.ceil((high - low + 1) / width))
    return Bins(low, (high - low) / MAX_BINS or 1.0, MAX_BINS)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers that span [low, high]."""
    rough = (high - low) / (most - 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _x_axis(x: _Scale, top: float, floor: float, label: str) -> str:
    parts = []
    for tick in ticks(x.low, x.high):
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {top}V{floor}"/>')
        text = f"{tick:g}".replace("-", "\N{MINUS SIGN}")
        anchor = "start" if x(tick) < EDGE else "end" if x(tick) > WIDTH - EDGE else "middle"
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{floor + 16}" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<path class="base" d="M{x.left} {floor}H{WIDTH - RIGHT}"/>')
    if label:
        middle = (x.left + WIDTH - RIGHT) / 2
        parts.append(f'<text class="axis" x="{middle}" y="{floor + 36}" text-anchor="middle">{label}</text>')
    return "".join(parts)


class _Scale(NamedTuple):
    """The x axis: from `low` at `left` to `high` at the right margin."""

    low: float
    high: float
    left: float

    def __call__(self, value: float) -> float:
        return self.left + (WIDTH - self.left - RIGHT) * (value - self.low) / (self.high - self.low)


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = (high - low) * 0.06 or max(abs(high) * 0.05, 0.5)
    return low - pad, high + pad


def _name(name: str, x: float, y: float) -> str:
    short = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 18]}…{name[-17:]}"
    return f'<text class="name" x="{x}" y="{y}">{escape(short)}<title>{escape(name)}</title></text>'


def _bin_text(bins: Bins, index: int) -> str:
    a = bins.start + index * bins.width
    text = f"{a + 0.5:g}" if bins.width == 1 and a % 1 == 0.5 else f"{a:g} to {a + bins.width:g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
