"""The small drawings of the dossier page: the lineage graph, a column's histogram, and shares of a budget.

What belongs here: turning steps or counts into inline SVG. What does not: charts with axes (`svg`). All text is
escaped; colours come from the page's palette.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dpsynth_platform.release.fidelity import is_possible

_BOX, _HEIGHT, _GAP, _ROW = 104, 38, 26, 66
_LONGEST = 14
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_BARS = 176, 34, 48
_CHART_HEIGHT, _BAR_WIDTH = 44, 600
_PUBLIC, _RESTRICTED, _INK, _LINE = "#dff0e4", "#f4f1ea", "#26332c", "#8a958e"


def lineage_graph(steps: Sequence[Mapping[str, Any]], upstream: Sequence[Mapping[str, Any]] = ()) -> str:
    """The steps as boxes from left to right, each right of its inputs.

    Steps are `{"step", "inputs"}`, inputs first; inputs from outside the line `{"kind", "name", "into", "own"}`.
    """
    outside = {found["name"]: found for found in upstream}
    steps = _with_upstream(steps, upstream)
    ranks: dict[str, int] = {}  # length of the longest path to each step
    for step in steps:
        ranks[step["step"]] = 1 + max((ranks[name] for name in step["inputs"] if name in ranks), default=-1)
    rows: dict[str, int] = {}
    for rank in sorted(set(ranks.values())):
        for row, name in enumerate(name for name in ranks if ranks[name] == rank):
            rows[name] = row
    at = {name: (4 + ranks[name] * (_BOX + _GAP), 4 + rows[name] * _ROW) for name in ranks}
    width = 8 + (max(ranks.values(), default=0) + 1) * (_BOX + _GAP) - _GAP
    height = 8 + max(rows.values(), default=0) * _ROW + _HEIGHT
    edges = [_edge(at[source], at[step["step"]]) for step in steps for source in step["inputs"] if source in at]
    boxes = [_box(name, outside.get(name), *place) for name, place in at.items()]
    order = ", ".join(_title(name, outside.get(name)) for name in at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" class="lineage" '
        f'style="max-width:{width}px"><title>Steps from the source to the release</title>'
        f"<desc>{escape(order)}</desc>{''.join(edges)}{''.join(boxes)}</svg>"
    )


def sparkline(histogram: Mapping[str, Any]) -> str:
    """A histogram as bars without axes; of too many categories only the largest are drawn."""
    counts = histogram["counts"]
    if histogram["kind"] == "categories" and len(counts) > _SPARK_BARS:
        counts = sorted(counts, reverse=True)[:_SPARK_BARS]
    top = max([*counts, 1])
    slot = _SPARK_WIDTH / max(1, len(counts))
    bars = [
        f'<rect x="{index * slot:.1f}" y="{_SPARK_HEIGHT * (1 - count / top):.1f}" width="{max(1.0, slot - 1):.1f}" '
        f'height="{max(0.6, _SPARK_HEIGHT * count / top):.1f}"/>'
        for index, count in enumerate(counts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" class="spark" '
        f'role="img" preserveAspectRatio="none"><title>{escape(sparkline_text(histogram))}</title>{"".join(bars)}</svg>'
    )


def sparkline_text(histogram: Mapping[str, Any]) -> str:
    """A histogram in words, for its title and for screen readers."""
    counts = histogram["counts"]
    total = sum(counts)
    if not total:
        return "no values"
    top = max(range(len(counts)), key=counts.__getitem__)
    share = f"{counts[top] / total:.0%}"
    if histogram["kind"] == "categories":
        return f"{len(counts)} values; most often {histogram['labels'][top]} ({share})"
    edges = histogram["edges"]
    return f"{edges[0]} to {edges[-1]}; most in {edges[top]} to {edges[top + 1]} ({share})"


def compared(table: Mapping[str, Any], axis: Mapping[str, Any]) -> str:
    """A table of one column (`fidelity`): bars of the rows, scaled to the noisy total, and the noise bars as lines."""
    scale = table["total"] / sum(table["synthetic"])
    # Lines end at zero: a count is never below.
    shown = [
        (count * scale, max(0.0, measured - bar), max(0.0, measured + bar))
        for count, measured, bar in _possible(table, axis)
    ]
    if len(shown) > _SPARK_BARS:
        shown = sorted(shown, reverse=True)[:_SPARK_BARS]
    top = max(max(each) for each in shown) or 1.0
    slot = _SPARK_WIDTH / len(shown)
    shapes = []
    for index, each in enumerate(shown):
        bar, low, high = (_CHART_HEIGHT * (1 - count / top) for count in each)
        shapes.append(
            f'<rect x="{index * slot:.1f}" y="{bar:.1f}" width="{max(1.0, slot - 1):.1f}" '
            f'height="{max(0.6, _CHART_HEIGHT - bar):.1f}"/>'
            f'<path class="noise" d="M{(index + 0.5) * slot:.1f} {high:.1f}V{low:.1f}"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SPARK_WIDTH} {_CHART_HEIGHT}" class="spark compared" '
        f'role="img" preserveAspectRatio="none"><title>{escape(compared_text(table, axis))}</title>{"".join(shapes)}'
        "</svg>"
    )


def compared_text(table: Mapping[str, Any], axis: Mapping[str, Any]) -> str:
    """The same in words, for its title and for screen readers."""
    counts = table["synthetic"]
    top = max(range(len(counts)), key=counts.__getitem__)
    share = f"{counts[top] / sum(counts):.0%}"
    return f"most often {axis['labels'][top]} ({share}); {table['within']} of {table['cells']} bars within the noise"


def _possible(table: Mapping[str, Any], axis: Mapping[str, Any]) -> list[tuple[float, ...]]:
    """Counts of rows, noisy counts and bars of the groups that rows can be in."""
    every = zip(table["synthetic"], table["measured"], table["bars"], strict=True)
    return [each for group, each in enumerate(every) if is_possible(axis, group)]


def budget_bar(shares: Mapping[str, float]) -> str:
    """Shares of a budget, by the name of their class, from left to right; together at most one."""
    parts, at = [], 0.0
    for name, share in shares.items():
        width = min(share, 1 - at) * _BAR_WIDTH
        parts.append(f'<rect class="{escape(name)}" x="{at * _BAR_WIDTH:.1f}" y="0" width="{width:.1f}" height="24"/>')
        at = min(1.0, at + share)
    title = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in shares.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_BAR_WIDTH} 24" class="budget" role="img" '
        f'preserveAspectRatio="none"><title>{escape(title)} of the cap</title>{"".join(parts)}</svg>'
    )


def _with_upstream(
    steps: Sequence[Mapping[str, Any]], upstream: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Steps and upstream inputs as one graph, the farthest first. Unconnected inputs come before all others."""
    sources: dict[str, list[str]] = {}
    for found in upstream:
        sources.setdefault(found["into"], []).append(found["name"])
    layer = seen = {step["step"] for step in steps}
    outside: list[str] = []
    while layer:  # `seen` ends cycles
        layer = {name for into in layer for name in sources.get(into, [])} - seen
        seen = seen | layer
        outside = [*sorted(layer), *outside]
    outside = [*sorted({found["name"] for found in upstream} - seen), *outside]
    return [
        *({"step": name, "inputs": sources.get(name, [])} for name in outside),
        *({**step, "inputs": [*step["inputs"], *sources.get(step["step"], [])]} for step in steps),
    ]


def _title(name: str, found: Mapping[str, Any] | None) -> str:
    """A box's title. A name from another producer may be any text, so it is quoted as JSON."""
    if found is None:
        return name
    if found["own"]:
        return f"{found['kind']} {name}"
    return f"{found['kind']} {json.dumps(name, ensure_ascii=False)} (name reported by others)"


def _box(name: str, found: Mapping[str, Any] | None, x: int, y: int) -> str:
    """A box; an input from outside the line has a broken border, and its kind below the name."""
    kind = found and found["kind"]
    fill = _PUBLIC if name == "released" or kind == "release" else _RESTRICTED
    label = name.rpartition("/")[2]
    label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    middle, centre = x + _BOX / 2, y + _HEIGHT / 2
    border = ' stroke-dasharray="4 3"' if kind else ""
    below = (
        f'<text x="{middle}" y="{centre + 13}" text-anchor="middle" font-size="10" fill="{_LINE}">{escape(kind)}</text>'
        if kind
        else ""
    )
    return (
        f"<g><title>{escape(_title(name, found))}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="{_LINE}"{border}/>'
        f'<text x="{middle}" y="{centre + (0 if kind else 4.5)}" text-anchor="middle" font-size="13" '
        f'fill="{_INK}">{escape(label)}</text>{below}</g>'
    )


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _BOX, source[1] + _HEIGHT / 2
    x2, y2 = target[0], target[1] + _HEIGHT / 2
    if x2 - x1 > _BOX and y1 == y2:  # boxes lie between: pass below them
        low, left, right = y1 + _ROW / 2, x1 + _GAP, x2 - _GAP
        path = f"C{left} {y1} {x1} {low} {left + 10} {low} L{right - 10} {low} C{x2} {low} {right} {y2} {x2} {y2}"
    elif x2 - x1 > _BOX:  # along its own row, then up to the target's
        left = x2 - 2 * _GAP
        path = f"L{left} {y1} C{left + _GAP} {y1} {left + _GAP} {y2} {x2} {y2}"
    else:
        middle = (x1 + x2) / 2
        path = f"C{middle} {y1} {middle} {y2} {x2} {y2}"
    return (
        f'<path d="M{x1} {y1} {path}" fill="none" stroke="{_LINE}" stroke-width="1.3"/>'
        f'<circle cx="{x2}" cy="{y2}" r="2.6" fill="{_LINE}"/>'
    )
