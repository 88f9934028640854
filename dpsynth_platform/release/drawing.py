"""The small drawings of the dossier page: the lineage graph and a column's histogram.

What belongs here: turning a few numbers or steps into inline SVG. What does not: charts with axes (`svg`) and anything
that computes. All text is escaped; colours come from the page's palette.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_BOX, _HEIGHT, _GAP, _ROW = 104, 38, 26, 66
_LONGEST = 14
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_BARS = 176, 34, 48
_PUBLIC, _RESTRICTED, _INK, _LINE = "#dff0e4", "#f4f1ea", "#26332c", "#8a958e"


def lineage_graph(steps: Sequence[Mapping[str, Any]], upstream: Sequence[Mapping[str, Any]] = ()) -> str:
    """The steps as boxes from left to right, each right of everything that it read.

    What lineage found further up (`{"kind", "name", "into", "own"}`) stands left of what it went into.
    """
    above = {found["name"]: found for found in upstream}
    steps = _with_upstream(steps, upstream)
    ranks = _ranks(steps)
    rows: dict[str, int] = {}
    for rank in sorted(set(ranks.values())):
        for row, name in enumerate(name for name in ranks if ranks[name] == rank):
            rows[name] = row
    at = {name: (4 + ranks[name] * (_BOX + _GAP), 4 + rows[name] * _ROW) for name in ranks}
    width = 8 + (max(ranks.values(), default=0) + 1) * (_BOX + _GAP) - _GAP
    height = 8 + max(rows.values(), default=0) * _ROW + _HEIGHT
    edges = [_edge(at[source], at[step["step"]]) for step in steps for source in step["inputs"] if source in at]
    boxes = [_box(name, above.get(name), *place) for name, place in at.items()]
    order = ", ".join(_words(name, above.get(name)) for name in at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" class="lineage" '
        f'style="max-width:{width}px"><title>Steps from the source to the release</title>'
        f"<desc>{escape(order)}</desc>{''.join(edges)}{''.join(boxes)}</svg>"
    )


def sparkline(histogram: Mapping[str, Any]) -> str:
    """A histogram as bars without axes; more categories than fit are left out, the largest stay."""
    counts = list(histogram["counts"])
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
    """A histogram in words, for the drawing's title and for readers who do not see it."""
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


def _with_upstream(
    steps: Sequence[Mapping[str, Any]], upstream: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Steps and what lies above them as one graph, the farthest first. What leads nowhere stands by itself."""
    sources: dict[str, list[str]] = {}
    for found in upstream:
        sources.setdefault(found["into"], []).append(found["name"])
    layer, seen = {step["step"] for step in steps}, {step["step"] for step in steps}
    above: list[str] = []
    while layer:  # a cycle is walked once
        layer = {name for into in layer for name in sources.get(into, [])} - seen
        seen |= layer
        above = [*sorted(layer), *above]
    above = [*sorted({found["name"] for found in upstream} - seen), *above]
    whole = [{"step": name, "inputs": sources.get(name, [])} for name in above]
    return [
        *whole,
        *(step | {"inputs": [*step["inputs"], *sources.get(step["step"], [])]} for step in map(dict, steps)),
    ]


def _words(name: str, found: Mapping[str, Any] | None) -> str:
    """What a box stands for; a name of others, which may be any words, in quotes that it cannot end."""
    if found is None:
        return name
    if found["own"]:
        return f"{found['kind']} {name}"
    return f"{found['kind']} {json.dumps(name, ensure_ascii=False)} (name reported by others)"


def _ranks(steps: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many steps lie before each, along the longest way. Steps come after what they read."""
    ranks: dict[str, int] = {}
    for step in steps:
        ranks[step["step"]] = 1 + max((ranks[name] for name in step["inputs"] if name in ranks), default=-1)
    return ranks


def _box(name: str, found: Mapping[str, Any] | None, x: int, y: int) -> str:
    """A box; something from above the line has a broken border and says below its name what it is."""
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
        f"<g><title>{escape(_words(name, found))}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="{_LINE}"{border}/>'
        f'<text x="{middle}" y="{centre + (0 if kind else 4.5)}" text-anchor="middle" font-size="13" '
        f'fill="{_INK}">{escape(label)}</text>{below}</g>'
    )


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _BOX, source[1] + _HEIGHT / 2
    x2, y2 = target[0], target[1] + _HEIGHT / 2
    if x2 - x1 > _BOX and y1 == y2:  # boxes lie between: pass below them
        low, left, right = y1 + _ROW / 2, x1 + _GAP, x2 - _GAP
        way = f"C{left} {y1} {x1} {low} {left + 10} {low} L{right - 10} {low} C{x2} {low} {right} {y2} {x2} {y2}"
    elif x2 - x1 > _BOX:  # along the own row, then up to the target's
        left = x2 - 2 * _GAP
        way = f"L{left} {y1} C{left + _GAP} {y1} {left + _GAP} {y2} {x2} {y2}"
    else:
        middle = (x1 + x2) / 2
        way = f"C{middle} {y1} {middle} {y2} {x2} {y2}"
    return (
        f'<path d="M{x1} {y1} {way}" fill="none" stroke="{_LINE}" stroke-width="1.3"/>'
        f'<circle cx="{x2}" cy="{y2}" r="2.6" fill="{_LINE}"/>'
    )
