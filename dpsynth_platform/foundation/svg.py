"""Small static charts as SVG text: lines, bars and histograms.

What belongs here: drawing numbers that were computed elsewhere, for readers without scripts (a dossier that is opened
offline, Dagster metadata). What does not: computing anything from data, or interactive charts. A chart is
self-contained: no script, no external resource, and a title and description that a screen reader finds. The same
numbers give the same text, so a chart can stand in signed content.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WIDTH = 640
HEIGHT = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 18, 62, 54
_COLOURS = ("#0b6e99", "#c4622d", "#5a7d2a", "#7a4e9c", "#8a6d00")
_STYLE = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12" fill="#24292f"'
_MAX_LABEL = 18
_SLANT = 92
_HALF_LETTER = 3.4
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, also not escaped: one of them would hide the whole picture."""


@dataclass(frozen=True)
class Line:
    """One line of a line chart.

    Attributes:
        name: for the legend.
        x: positions, any length n.
        y: values, length n.
        dashed: drawn as a thin dashed line, for references such as a diagonal.
        colour: of the line; None: the next of the palette.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    colour: str | None = None


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    x_mark: tuple[float, str] | None = None,
    x_words: Callable[[float], str] | None = None,
) -> str:
    """A line chart; `log` puts both axes on logarithmic scales, `x_mark` draws a labelled vertical line.

    `x_words` says what stands at a position of the horizontal axis where that is no number, such as a day.

    On logarithmic scales, values that are not positive have no place and are left out.
    """
    points = [_drawable(line.x, line.y, log) for line in lines]
    marks = [x_mark[0]] if x_mark else []
    x_axis = _Axis.over([x for xs, _ in points for x in xs] + marks, _LEFT, WIDTH - _RIGHT, log)
    y_axis = _Axis.over([y for _, ys in points for y in ys], HEIGHT - _BOTTOM, _TOP, log)
    body = [_grid(x_axis, y_axis, x_label, y_label, WIDTH, x_words)]
    if x_mark:
        at = x_axis.place(x_mark[0])
        body.append(
            f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{HEIGHT - _BOTTOM}" stroke="#6e7781" '
            'stroke-dasharray="2 3"/>' + _text(at + 4, _TOP + 12, x_mark[1], colour="#57606a")
        )
    colours = _line_colours(lines)
    for line, colour, (xs, ys) in zip(lines, colours, points, strict=True):
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in zip(xs, ys, strict=True))
        stroke = 'stroke-width="1.2" stroke-dasharray="5 4"' if line.dashed else 'stroke-width="2"'
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" {stroke}/>')
    legend = _legend([line.name for line in lines], colours)
    return _chart(body, legend, title, description, WIDTH, HEIGHT)


def bar_chart(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
) -> str:
    """Vertical bars: for each label one bar a series, side by side, on a scale that starts at zero.

    Many labels make the chart wider; labels that would overlap are drawn at an angle.
    """
    slot = max(20.0, (WIDTH - _LEFT - _RIGHT) / max(1, len(labels)))
    width = math.ceil(_LEFT + _RIGHT + slot * max(1, len(labels)))
    slanted = any(len(label) * 6.5 > slot for label in labels)
    height = HEIGHT + (_SLANT if slanted else 0)
    bottom = height - _BOTTOM - (_SLANT if slanted else 0)
    values = [value for heights in series.values() for value in heights]
    y_axis = _Axis.over([0.0, *values], bottom, _TOP, log=False)
    body = [_horizontal_grid(y_axis, y_label, width), _x_title(x_label, width, height)]
    bar = 0.8 * slot / max(1, len(series))
    for index, heights in enumerate(series.values()):
        for position, value in enumerate(heights):
            left = _LEFT + slot * position + 0.1 * slot + bar * index
            body.append(_bar(left, bar, y_axis.place(0), y_axis.place(value), _colour(index), 1.0))
    for position, label in enumerate(labels):
        centre = _LEFT + slot * (position + 0.5)
        short = label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + "…"
        turn = f' transform="rotate(-40 {centre:.1f} {bottom + 14:.1f})"' if slanted else ""
        body.append(_text(centre, bottom + 16, short, anchor="end" if slanted else "middle", extra=turn))
    return _chart(body, _legend(list(series)), title, description, width, height)


def histogram(
    groups: Mapping[str, Sequence[float]],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str = "share of the group",
    bins: int = 30,
) -> str:
    """Overlaid histograms of several groups on common bins, each group's bars summing to one.

    Values that are not finite are left out.
    """
    finite = {name: np.asarray(values, float)[np.isfinite(values)] for name, values in groups.items()}
    together = np.concatenate([*finite.values(), np.empty(0)])
    low, high = (float(together.min()), float(together.max())) if together.size else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    shares = {name: np.histogram(values, edges)[0] / max(1, values.size) for name, values in finite.items()}
    x_axis = _Axis.over([float(edges[0]), float(edges[-1])], _LEFT, WIDTH - _RIGHT, log=False)
    y_axis = _Axis.over([0.0, *(float(s) for share in shares.values() for s in share)], HEIGHT - _BOTTOM, _TOP, False)
    body = [_grid(x_axis, y_axis, x_label, y_label, WIDTH)]
    for index, share in enumerate(shares.values()):
        for left, right, value in zip(edges[:-1], edges[1:], share, strict=True):
            start = x_axis.place(float(left))
            step = x_axis.place(float(right)) - start
            body.append(_bar(start, step, y_axis.place(0), y_axis.place(float(value)), _colour(index), 0.55))
    return _chart(body, _legend(list(groups)), title, description, WIDTH, HEIGHT)


@dataclass(frozen=True)
class _Axis:
    """A scale from values [low, high] to positions [start, end] in pixels, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, log: bool) -> _Axis:
        """The axis that holds all values, with round ends."""
        low, high = (min(values), max(values)) if values else (0.1, 1.0)
        if log:
            first = math.floor(math.log10(low) + 1e-9)
            last = max(first + 1, math.ceil(math.log10(high) - 1e-9))
            ticks = tuple(10.0**power for power in range(first, last + 1))
            return cls(ticks[0], ticks[-1], start, end, True, ticks)
        step = _round_step((high - low) or abs(high) or 1.0)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(step * index for index in range(first, max(first + 1, last) + 1))
        return cls(ticks[0], ticks[-1], start, end, False, ticks)

    def place(self, value: float) -> float:
        """Position of a value."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _round_step(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides the span into about five."""
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _drawable(xs: Sequence[float], ys: Sequence[float], log: bool) -> tuple[list[float], list[float]]:
    floor = 0.0 if log else -math.inf
    kept = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if floor < x < math.inf and floor < y < math.inf]
    return [x for x, _ in kept], [y for _, y in kept]


def _grid(
    x_axis: _Axis,
    y_axis: _Axis,
    x_label: str,
    y_label: str,
    width: int,
    x_words: Callable[[float], str] | None = None,
) -> str:
    words = [(x_words or "{:,.10g}".format)(tick) for tick in x_axis.ticks]
    places = [
        min(x_axis.place(tick), width - _HALF_LETTER * len(word))
        for tick, word in zip(x_axis.ticks, words, strict=True)
    ]
    marks = [_text(at, y_axis.start + 18, word, anchor="middle") for at, word in zip(places, words, strict=True)]
    return _horizontal_grid(y_axis, y_label, width) + "".join(marks) + _x_title(x_label, width, HEIGHT)


def _horizontal_grid(y_axis: _Axis, y_label: str, width: int) -> str:
    parts = []
    for tick in y_axis.ticks:
        at = y_axis.place(tick)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{width - _RIGHT}" y2="{at:.1f}" stroke="#d8dee4"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{tick:,.10g}", anchor="end"))
    middle = (y_axis.start + y_axis.end) / 2
    turn = f' transform="rotate(-90 16 {middle:.1f})"'
    return "".join(parts) + _text(16, middle, y_label, anchor="middle", extra=turn)


def _x_title(label: str, width: int, height: int) -> str:
    return _text((_LEFT + width - _RIGHT) / 2, height - 12, label, anchor="middle")


def _bar(left: float, width: float, base: float, top: float, colour: str, opacity: float) -> str:
    upper, size = min(base, top), abs(base - top)
    return (
        f'<rect x="{left:.1f}" y="{upper:.1f}" width="{width:.1f}" height="{size:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity:g}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#24292f", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{extra}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return html.escape(_NO_XML.sub("\ufffd", text))


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _line_colours(lines: Sequence[Line]) -> list[str]:
    """Each line's own colour, or the next of the palette."""
    palette = (_colour(index) for index in range(len(lines)))
    return [line.colour or next(palette) for line in lines]


def _legend(names: Sequence[str], colours: Sequence[str] | None = None) -> str:
    """Names with their colours, in a second row where one is too short for them."""
    places, at, row = [], float(_LEFT), 0
    for name in names:
        width = 17 + 7 * len(name) + 18
        if at + width > WIDTH and at > _LEFT:
            at, row = float(_LEFT), row + 1
        places.append((at, row))
        at += width
    first = 36 if row == 0 else 29
    parts = []
    for index, (name, (left, line)) in enumerate(zip(names, places, strict=True)):
        colour, top = colours[index] if colours else _colour(index), first + 15 * line
        parts.append(f'<rect x="{left:.1f}" y="{top}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 17, top + 10, name))
    return "".join(parts)


def _chart(body: Sequence[str], legend: str, title: str, description: str, width: int, height: int) -> str:
    """Puts the parts together. Ids follow from the content, so that several charts can stand in one page."""
    content = "".join(body) + legend
    mark = hashlib.sha256((title + description + content).encode()).hexdigest()[:12]
    heading = f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600" fill="#24292f">{_escaped(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="t{mark} d{mark}" {_STYLE}>'
        f'<title id="t{mark}">{_escaped(title)}</title><desc id="d{mark}">{_escaped(description)}</desc>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{heading}{content}</svg>'
    )
