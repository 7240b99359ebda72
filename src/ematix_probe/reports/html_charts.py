"""Charts of a load probe's report as inline SVG: latency and rate over time, distribution of latency.

Colours come from the page's style sheet. Every chart is a text; nothing in it is fetched or executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 30  # the room around the plot
BARS = 60  # of the distribution, at most

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """One line of a chart; ``style`` is its class in the style sheet. None leaves a gap."""

    label: str
    style: str
    values: Sequence[float | None]


def latency_chart(load: Mapping[str, Any]) -> str:
    """Percentiles of each second, on a logarithmic scale."""
    lines = [
        Line(label, style, [row.get(key) for row in load["series"]])
        for key, label, style in (
            ("max_ms", "max", "line-4"),
            ("p99_ms", "p99", "line-3"),
            ("p90_ms", "p90", "line-2"),
            ("p50_ms", "p50", "line-1"),
        )
    ]
    known = [value for line in lines for value in line.values if value]
    if not known:
        return ""
    y, marks = _log_scale(min(known), max(known))
    ticks = [(mark, f"{mark:,g} ms") for mark in marks]
    return _time_chart("Latency over time", load, lines, y, ticks)


def rate_chart(load: Mapping[str, Any]) -> str:
    """Requests a second: intended in the open model, started, answered, and failed."""
    rows = load["series"]
    widths = [_seconds_of(row, load) for row in rows]

    def rate(key: str) -> list[float | None]:
        return [row[key] / width if width else None for row, width in zip(rows, widths, strict=True)]

    lines = [
        Line("started", "line-1", rate("started")),
        Line("answered", "line-2", rate("completed")),
        Line("failed", "line-4", rate("errors")),
    ]
    if load["model"] == "open":
        lines.insert(0, Line("intended", "line-0", rate("attempts")))
    highest = max((value for line in lines for value in line.values if value is not None), default=0.0)
    if not highest:
        return ""
    step = _round_step(highest / 4)
    top = math.ceil(highest / step) * step
    ticks = [(step * n, f"{step * n:,g} /s") for n in range(round(top / step) + 1)]
    return _time_chart("Rate over time", load, lines, lambda value: _up(value / top), ticks)


def distribution_chart(load: Mapping[str, Any]) -> str:
    """How many good answers took how long, on a logarithmic scale, with marks at p50 and p99."""
    cells = [(max(float(end), 1e-3), int(count)) for end, count in load["histogram"]]
    if not cells:
        return ""
    low, high = math.log10(cells[0][0]), math.log10(cells[-1][0])
    width = max(high - low, 1e-9) / BARS
    bars = [0] * BARS
    for end, count in cells:
        bars[min(int((math.log10(end) - low) / width), BARS - 1)] += count
    most, plot = max(bars), WIDTH - LEFT - RIGHT
    if len(cells) == 1:
        bars, width = [most], 0.0
    parts = []
    for number, count in enumerate(bars):
        if count:
            begin, end = 10 ** (low + number * width), 10 ** (low + (number + 1) * width)
            top, left, wide = _up(count / most), LEFT + plot * number / len(bars), plot / len(bars)
            parts.append(
                f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(wide - 1, 1):.1f}" '
                f'height="{HEIGHT - BOTTOM - top:.1f}"><title>{count:,} from {begin:,.4g} to {end:,.4g} ms'
                "</title></rect>"
            )

    def across(value: float) -> float:
        share = (math.log10(max(value, 1e-3)) - low) / (high - low) if high > low else 0.5
        return LEFT + plot * min(max(share, 0.0), 1.0)

    for mark in _log_marks(10**low, 10**high):
        if low <= math.log10(mark) <= high:
            parts.append(_text(across(mark), HEIGHT - 10, f"{mark:,g} ms", "middle"))
    for name in ("p50", "p99"):
        value = load["summary"].get(f"latency_ms.{name}")
        if value is not None:
            x = across(value)
            parts.append(
                f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                + _text(x, TOP - 4, name, "middle")
            )
    ticks = [(0, "0"), (most, f"{most:,}")]
    return _figure("Distribution of latency", "".join(parts), _grid(ticks, lambda v: _up(v / most)), "")


def _time_chart(
    title: str,
    load: Mapping[str, Any],
    lines: Sequence[Line],
    y: Scale,
    ticks: Sequence[tuple[float, str]],
) -> str:
    rows, duration = load["series"], float(load["duration_seconds"])

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(seconds / duration, 1.0)

    middles = [x(row["second"] + _seconds_of(row, load) / 2) for row in rows]
    parts = []
    if load["warmup_seconds"]:
        end = x(load["warmup_seconds"])
        parts.append(
            f'<rect class="warmup" x="{LEFT}" y="{TOP}" width="{end - LEFT:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>warm-up, not measured</title></rect>'
        )
    for line in lines:
        for stretch in _stretches(middles, line.values, y):
            parts.append(f'<polyline class="line {line.style}" points="{stretch}"/>')
    wide = (WIDTH - LEFT - RIGHT) / max(len(rows), 1)
    for number, (row, middle) in enumerate(zip(rows, middles, strict=True)):
        figures = [
            f"{line.label} {value:,.4g}" for line in lines if (value := line.values[number]) is not None
        ]
        parts.append(_hover(f"{row['second']} s: {', '.join(figures)}", middle, wide))
    step = _round_step(duration / 6)
    for n in range(int(duration / step) + 1):
        parts.append(_text(x(n * step), HEIGHT - 10, f"{n * step:g} s", "middle"))
    legend = "".join(
        f'<span><i class="key {line.style}"></i>{escape(line.label)}</span>' for line in reversed(lines)
    )
    return _figure(title, "".join(parts), _grid(ticks, y), legend)


def _hover(text: str, middle: float, wide: float) -> str:
    """An invisible column over a row of the series, which shows its figures under the mouse."""
    return (
        f'<rect class="hover" x="{middle - wide / 2:.1f}" y="{TOP}" width="{wide:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(text)}</title></rect>'
    )


def _stretches(xs: Sequence[float], values: Sequence[float | None], y: Scale) -> list[str]:
    """The points of a line, broken where a value is missing. A single point becomes a short dash."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, values, strict=True):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((x, y(value)))
    texts = []
    for points in stretches:
        if len(points) == 1:
            points = [(points[0][0] - 2, points[0][1]), (points[0][0] + 2, points[0][1])]
        if points:
            texts.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    return texts


def _figure(title: str, plot: str, grid: str, legend: str) -> str:
    caption = f'<figcaption>{escape(title)}<span class="legend">{legend}</span></figcaption>'
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{grid}{plot}</svg>'
    )
    return f"<figure>{caption}{drawing}</figure>"


def _grid(ticks: Sequence[tuple[float, str]], y: Scale) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        + _text(LEFT - 6, y(value) + 4, label, "end")
        for value, label in ticks
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _up(share: float) -> float:
    """The height of a share of the plot, counted from above as SVG does."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _log_scale(low: float, high: float) -> tuple[Scale, list[float]]:
    marks = _log_marks(low, high)
    first, last = math.log10(marks[0]), math.log10(marks[-1])
    return lambda value: _up((math.log10(max(value, marks[0])) - first) / (last - first)), marks


def _log_marks(low: float, high: float) -> list[float]:
    """Round values around a range: 1, 2, 5, 10 …, or only powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    marks = [factor * 10.0**power for power in powers for factor in factors]
    begin = max((n for n, mark in enumerate(marks) if mark <= low), default=0)
    end = next((n for n, mark in enumerate(marks) if mark >= high), len(marks) - 1)
    return marks[begin : end + 1] if end > begin else [marks[begin], marks[begin] * 10]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10 … times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _seconds_of(row: Mapping[str, Any], load: Mapping[str, Any]) -> float:
    """How long a row of the series is: the last one ends with the load."""
    left = float(load["duration_seconds"]) - float(row["second"])
    return max(min(float(row["seconds"]), left), 0.0)
