"""The dossier's page in a real browser: it renders, and what it says is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dpsynth_platform.release.publish import Published

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the chromium browser on this machine")


def browse(page: Path, profile: Path, *arguments: str) -> str:
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={profile}", *arguments, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_page_shows_what_a_reviewer_needs(released: Published, tmp_path: Path) -> None:
    shown = browse(released.path / "dossier.html", tmp_path / "profile", "--dump-dom")
    for words in (
        "What this means", "Not covered", "Audit by attack", "Before the mechanism", "Who approved it", "grace",
        "models/clinic-base", "How to verify", "sha256sum -c", "dossier.schema.json",
    ):  # fmt: skip
        assert words in shown
    assert "&lt;b&gt;made up&lt;/b&gt;" in shown, "text of the contract stays text"
    assert "<script" not in shown


def test_the_page_is_drawn(released: Published, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(released.path / "dossier.html", tmp_path / "profile", f"--screenshot={picture}", "--window-size=1100,1400")
    assert picture.stat().st_size > 30_000, "an empty page is a small picture"


def test_the_page_fits_a_telephone_and_hides_nothing(released: Published, tmp_path: Path) -> None:
    """At 390 pixels only tables may be wider than the window, and they scroll by themselves."""
    page = tmp_path / "measured.html"
    measure = "<script>document.title = 'width ' + document.documentElement.scrollWidth</script>"
    html = (released.path / "dossier.html").read_text().replace("default-src 'none'", "default-src 'unsafe-inline'")
    page.write_text(html.replace("</body>", f"{measure}</body>"))
    shown = browse(page, tmp_path / "profile", "--dump-dom", "--window-size=500,900")
    width = int(shown.partition("<title>width ")[2].partition("<")[0])
    assert width <= 500
