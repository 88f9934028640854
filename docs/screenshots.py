"""Makes the pictures of the console in `images/`: a small deployment, filled by real runs, in Chromium.

What belongs here: which pages are shown, and at which size. What does not: the deployment and the browser, which are
those of the console's tests. Run it after a change of a page that a picture shows; it takes two minutes.

    .venv/bin/python docs/screenshots.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
SIZE = {"width": 1100, "height": 1050}


def draw(wanted: Collection[str], images: Path = HERE / "images") -> list[Path]:
    """Writes the wanted pictures, or all; returns their files."""
    from browser_cases import chromium, console, visitor
    from filled_cases import PRODUCT, WAITING, fill
    from view_cases import release_of

    made = []
    with tempfile.TemporaryDirectory() as directory, chromium() as browser:
        deployment = fill(Path(directory) / "here")
        release = release_of(deployment.settings, "people")
        pages = {
            "overview": "/",
            "candidate": f"/candidates/{WAITING.dataset}/{WAITING.period}",
            "release": f"/releases/{release}",
            "family": "/families/clinic",
            "lineage": f"/lineage?node={PRODUCT}&up=4",
        }
        with console(deployment) as served, visitor(served, browser) as here:
            here.page.set_viewport_size(SIZE)  # type: ignore[arg-type]
            for name, address in pages.items():
                if not wanted or name in wanted:
                    here.open(address)
                    made.append(images / f"console-{name}.png")
                    here.page.screenshot(path=made[-1])
    return made


if __name__ == "__main__":
    sys.path[:0] = [str(path) for path in (TESTS, *(each for each in TESTS.iterdir() if each.is_dir()))]
    for file in draw(sys.argv[1:]):
        print(f"written: {file}")
