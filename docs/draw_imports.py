"""Draws which package imports which: `python docs/draw_imports.py` writes `docs/images/imports.svg`.

What belongs here: the levels of the packages, and the drawing. What does not: the rules (import-linter, in
`pyproject.toml`).

A package stands one level above the highest package that it imports from. An arrow that follows from two others is
left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

import grimp

ROOTS = ("dpsynth", "dpsynth_platform", "assets", "resources", "sensors")
TARGET = Path(__file__).parent / "images" / "imports.svg"
_WIDE, _TALL, _GAP, _STEP, _LEFT = 110, 26, 22, 58, 64
_NOT_DRAWN = frozenset({"__init__", "__main__"})


def packages() -> dict[str, set[str]]:
    """Each package of the library, and each of orchestration, with the packages that it imports from."""
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    found: dict[str, set[str]] = defaultdict(set)
    for module in sorted(graph.modules):
        importer = _package(module)
        for imported in map(_package, graph.find_modules_directly_imported_by(module)):
            if importer and imported and importer != imported:
                found[importer].add(imported)
                found.setdefault(imported, set())
    return dict(found)


def levels(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """The level of each package, from 1. Raises `RecursionError` where imports form a circle."""

    @cache
    def level(name: str) -> int:
        return 1 + max(map(level, imports[name]), default=0)

    return {name: level(name) for name in imports}


def drawing() -> str:
    """The SVG, the highest level at the top. The same imports give the same text."""
    imports = packages()
    level = levels(imports)
    rows = [sorted(name for name in level if level[name] == number) for number in range(max(level.values()), 0, -1)]
    width = _LEFT + max(len(row) for row in rows) * (_WIDE + _GAP)
    place = {
        name: (_LEFT + (width - _LEFT - len(row) * (_WIDE + _GAP)) / 2 + at * (_WIDE + _GAP), 12 + line * _STEP)
        for line, row in enumerate(rows)
        for at, name in enumerate(row)
    }
    height = 12 + len(rows) * _STEP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13" '
        'font-family="system-ui, sans-serif"><title>Imports between packages</title>',
        f'<desc>{len(level)} packages on {len(rows)} levels.</desc><rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for line in range(len(rows)):
        parts.append(f'<text x="10" y="{12 + line * _STEP + 18}" fill="#57606a">{len(rows) - line}</text>')
    for name, others in sorted(imports.items()):
        for other in sorted(others - _through(imports, others)):
            (x1, y1), (x2, y2) = place[name], place[other]
            parts.append(
                f'<line x1="{x1 + _WIDE / 2:g}" y1="{y1 + _TALL}" x2="{x2 + _WIDE / 2:g}" y2="{y2}" stroke="#8c959f" '
                'stroke-width="1"/>'
            )
    for name, (x, y) in sorted(place.items()):
        parts.append(
            f'<rect x="{x:g}" y="{y}" width="{_WIDE}" height="{_TALL}" rx="4" fill="#ddf4ff" stroke="#0969da"/>'
            f'<text x="{x + _WIDE / 2:g}" y="{y + 18}" text-anchor="middle" fill="#24292f">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _package(module: str) -> str | None:
    """The package of the library that a module belongs to, or its root of orchestration."""
    root, _, rest = module.partition(".")
    name = rest.partition(".")[0] if root == "dpsynth_platform" else root
    return name if name and name not in _NOT_DRAWN else None


def _through(imports: Mapping[str, set[str]], names: set[str]) -> set[str]:
    """All that some packages import from, at any distance."""
    seen: set[str] = set()
    waiting = [other for name in names for other in imports[name]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports[name]
    return seen


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(drawing(), encoding="utf-8")
    print(f"{TARGET}: {max(levels(packages()).values())} levels", file=sys.stderr)
