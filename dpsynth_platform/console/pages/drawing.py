"""The lineage graph as an SVG of links.

What belongs here: boxes, arrows, marks and text for screen readers. What does not: positions (`layout`), and which
nodes exist. All text is escaped. Kinds differ by shape and word, not by colour alone.

Colours are attributes, so that a downloaded drawing has them; classes let the style sheet choose others on a page.
`data-box`, `data-from` and `data-to` number boxes and the ends of arrows for the page's script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from dpsynth_platform.console.pages.layout import Layout, layout

_WIDE, _TALL, _GAP, _ROW, _EDGE = 196, 50, 78, 68, 26
_LONGEST, _LONGEST_BOLD, _LONGEST_DETAIL = 23, 20, 30
_END = 8
_INK, _QUIET, _LINE, _RED = "#1f2a25", "#56625b", "#7c877f", "#9c2b23"
_FILLS = {
    "dataset": "#f4f1ea",
    "release": "#dff0e4",
    "model": "#e3eff5",
    "checkpoint": "#efe9f4",
    "mechanism": "#fbf1dc",
    "run": "#ffffff",
}
KINDS = tuple(_FILLS)
_CLASSES = {_INK: "ink", _QUIET: "quiet-ink", _LINE: "line-ink", _RED: "red-ink", "#ffffff": "on-red"}


@dataclass(frozen=True)
class Box:
    """One node as it is drawn.

    Attributes:
        key: its name in the arrows.
        label: its short name; a long one is shortened further.
        detail: its kind and state, in a few words.
        address: target of its link.
        marks: short words of findings, such as `E2`; drawn in red.
        here: it is the requested node.
        beyond_left, beyond_right: how many neighbours upstream and downstream are not drawn.
    """

    key: str
    kind: str
    label: str
    detail: str
    address: str
    title: str
    marks: tuple[str, ...] = ()
    here: bool = False
    beyond_left: int = 0
    beyond_right: int = 0


@dataclass(frozen=True)
class Arrow:
    """A relation from the parent to the child.

    Attributes:
        broken: it is no flow of data, or of columns: values only depend on it.
        marked: it is a false claim; drawn in red.
        strong: original values pass; a thick line.
        masking: it hides the original values; a mark in its middle.
    """

    parent: str
    child: str
    title: str
    broken: bool = False
    marked: bool = False
    strong: bool = False
    masking: bool = False


def graph(boxes: Sequence[Box], arrows: Sequence[Arrow], title: str, *, linked: bool = True) -> Markup:
    """The whole drawing, in its natural size. Boxes are links, in reading order from left to right.

    Args:
        linked: False for a drawing that stands alone: without links, and on white.
    """
    places = layout([box.key for box in boxes], [(arrow.parent, arrow.child) for arrow in arrows])
    width = 2 * _EDGE + places.ranks * (_WIDE + _GAP) - _GAP
    height = 24 + max(places.rows, 1.0) * _ROW
    in_order = sorted(boxes, key=lambda box: (places.rank[box.key], places.row[box.key]))
    numbers = {box.key: number for number, box in enumerate(in_order)}
    white = Markup("") if linked else Markup('<rect width="100%" height="100%" fill="#ffffff"/>')
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="{title}" viewBox="0 0 {width} {height:.0f}" '
        'width="{width}" height="{height:.0f}" font-family="system-ui, sans-serif">{white}{arrows}{boxes}</svg>'
    ).format(
        title=title,
        width=width,
        height=height,
        white=white,
        arrows=Markup("").join(_arrow(arrow, places, numbers) for arrow in arrows if arrow.parent != arrow.child),
        boxes=Markup("").join(
            _box(box, *_corner(places, box.key), number, linked=linked) for number, box in enumerate(in_order)
        ),
    )


def legend() -> list[tuple[str, Markup]]:
    """A small drawing of each kind, for the legend."""
    frame = Markup('<svg width="26" height="16" viewBox="0 0 26 16" aria-hidden="true">{}</svg>')
    return [(kind, frame.format(_shape(kind, 1, 1, 24, 14, _LINE, 1.2))) for kind in KINDS]


def _corner(places: Layout, name: str) -> tuple[float, float]:
    return _EDGE + places.rank[name] * (_WIDE + _GAP), 12 + places.row[name] * _ROW - _TALL / 2


def _box(box: Box, x: float, y: float, number: int, *, linked: bool) -> Markup:
    stroke, width = (_RED, 2.4) if box.marks else (_INK, 2.4) if box.here else (_LINE, 1.2)
    words = ", ".join(filter(None, (box.title, box.detail, *(f"finding {mark}" for mark in box.marks))))
    parts = [_shape(box.kind, x, y, _WIDE, _TALL, stroke, width)]
    middle, (longest, weight) = x + _WIDE / 2, (_LONGEST_BOLD, "700") if box.here else (_LONGEST, "500")
    parts.append(_text(middle, y + 22, _shortened(box.label, longest), 13, _INK, weight=weight))
    parts.append(_text(middle, y + 39, _shortened(box.detail, _LONGEST_DETAIL), 11, _QUIET))
    for index, mark in enumerate(box.marks):
        parts.append(_mark(x + _WIDE - 12 - 32 * index, y, mark))
    if box.beyond_left:
        parts.append(_text(x - 3, y - 3, f"‹ {box.beyond_left} more", 10.5, _QUIET, anchor="start"))
    if box.beyond_right:
        parts.append(_text(x + _WIDE + 3, y - 3, f"{box.beyond_right} more ›", 10.5, _QUIET, anchor="end"))
    current = Markup(' aria-current="true"') if box.here else ""
    inside = Markup("").join(parts)
    if not linked:
        return Markup("<g><title>{}</title>{}</g>").format(words, inside)
    return Markup('<a href="{}" aria-label="{}" data-box="{}"{}><title>{}</title>{}</a>').format(
        box.address, words, number, current, words, inside
    )


def _shortened(label: str, longest: int) -> str:
    """A long name without its middle, since ids differ at their end."""
    return label if len(label) <= longest else f"{label[: longest - _END - 1]}…{label[-_END:]}"


def _shape(kind: str, x: float, y: float, wide: float, tall: float, stroke: str, width: float) -> Markup:
    """A box by kind: models have cut corners, ledger entries are round, what others made has a broken border."""
    fill = _FILLS.get(kind, _FILLS["run"])
    look = Markup('class="fill-{} {}" fill="{}" stroke="{}" stroke-width="{}"').format(
        kind, _CLASSES[stroke], fill, stroke, width
    )
    if kind == "model":
        cut = tall / 4
        points = [
            (x + cut, y), (x + wide - cut, y), (x + wide, y + cut), (x + wide, y + tall - cut),
            (x + wide - cut, y + tall), (x + cut, y + tall), (x, y + tall - cut), (x, y + cut),
        ]  # fmt: skip
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        return Markup('<polygon points="{}" {}/>').format(path, look)
    round_corner = {"mechanism": tall / 2, "run": 2}.get(kind, tall / 8)
    dashes = Markup(' stroke-dasharray="5 3"') if kind in ("checkpoint", "run") else ""
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{}" height="{}" rx="{:.1f}" {}{}/>').format(
        x, y, wide, tall, round_corner, look, dashes
    )


def _mark(x: float, y: float, word: str) -> Markup:
    return Markup('<rect class="red-fill" x="{:.1f}" y="{:.1f}" width="30" height="17" rx="8" fill="{}"/>{}').format(
        x - 18, y - 9, _RED, _text(x - 3, y + 3.5, word, 11, "#ffffff", weight="700")
    )


def _text(
    x: float, y: float, words: str, size: float, colour: str, *, weight: str = "400", anchor: str = "middle"
) -> Markup:
    return Markup(
        '<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" font-weight="{}" fill="{}">{}</text>'
    ).format(_CLASSES[colour], x, y, anchor, size, weight, colour, words)


def _arrow(arrow: Arrow, places: Layout, numbers: Mapping[str, int]) -> Markup:
    """A smooth line through the free places of the layout, with a head at its end."""
    x1, y1 = _corner(places, arrow.parent)
    x2, y2 = _corner(places, arrow.child)
    back = places.rank[arrow.parent] >= places.rank[arrow.child]
    start, end = (x1, x2 + _WIDE) if back else (x1 + _WIDE, x2)
    y1, y2 = y1 + _TALL / 2, y2 + _TALL / 2
    points = [(start, y1)]
    step = -1 if back else 1
    for number, row in enumerate(places.ways.get((arrow.parent, arrow.child), ()), 1):
        left, y = _EDGE + (places.rank[arrow.parent] + step * number) * (_WIDE + _GAP), 12 + row * _ROW
        points += [(left + _WIDE, y), (left, y)] if back else [(left, y), (left + _WIDE, y)]
    points.append((end, y2))
    path = [f"M{start:.1f} {y1:.1f}"]
    for (ax, ay), (bx, by) in pairwise(points):
        half = ax + (bx - ax) / 2
        bend = f"C{half:.1f} {ay:.1f} {half:.1f} {by:.1f} {bx:.1f} {by:.1f}"
        path.append(f"L{bx:.1f} {by:.1f}" if ay == by else bend)
    colour = _RED if arrow.marked else _INK if arrow.strong else _LINE
    head = f"M{end - step * 8:.1f} {y2 - 4:.1f}L{end:.1f} {y2:.1f}L{end - step * 8:.1f} {y2 + 4:.1f}Z"
    dashes = Markup(' stroke-dasharray="4 4"') if arrow.broken else ""
    middle = len(points) // 2
    (ax, ay), (bx, by) = points[middle - 1], points[middle]
    return Markup(
        '<g data-from="{}" data-to="{}"><title>{}</title><path class="{}" d="{}" fill="none" stroke="{}" '
        'stroke-width="{}"{}/><path class="{}-fill" d="{}" fill="{}"/>{}</g>'
    ).format(
        numbers[arrow.parent],
        numbers[arrow.child],
        arrow.title,
        _CLASSES[colour],
        " ".join(path),
        colour,
        2.6 if arrow.strong else 1.4,
        dashes,
        _CLASSES[colour],
        head,
        colour,
        masking_mark((ax + bx) / 2, (ay + by) / 2) if arrow.masking else "",
    )


def masking_mark(x: float, y: float) -> Markup:
    """The mark of a step that hides original values: an M in a circle."""
    return Markup('<circle class="fill-run ink" cx="{:.1f}" cy="{:.1f}" r="8" fill="#ffffff" stroke="{}"/>{}').format(
        x, y, _INK, _text(x, y + 3.5, "M", 10, _INK, weight="700")
    )
