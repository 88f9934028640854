"""The dossier's page in a real browser: it renders, it can be read by everybody, and what it says is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
from axe_playwright_python.sync_playwright import Axe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser, Locator, sync_playwright

from dpsynth_platform.cli import main as cli
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.release import page
from dpsynth_platform.release.publish import Published

CHROMIUM = shutil.which("chromium")
DESK, PHONE = 1400, 390

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the chromium browser on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


def address(released: Published) -> str:
    return (released.path / layout.PAGE).as_uri()


def test_the_page_shows_what_a_reader_needs(released: Published, browser: Browser) -> None:
    shown = browser.new_page()
    shown.goto(address(released))
    html = shown.content()
    for words in (
        "What this means", "Not covered", "Audit by attack", "Before the mechanism", "Who approved it", "grace",
        "models/clinic-base", "Open and verify", "sha256sum -c", "dossier.schema.json", "Planning of staff.",
        "The clinic's planners", "Do not use it for", "sample.json", "Columns together", "This release: 40.0%",
    ):  # fmt: skip
        assert words in html or words in shown.inner_text("body"), words
    assert "&lt;b&gt;made up&lt;/b&gt;" in html, "text of the contract stays text"
    assert "<script" not in html


def test_every_entry_of_the_contents_leads_to_a_heading(released: Published, browser: Browser) -> None:
    shown = browser.new_page()
    shown.goto(address(released))
    targets = shown.eval_on_selector_all("nav a", "links => links.map(link => link.getAttribute('href'))")
    assert len(targets) == shown.locator("main > section > h2").count()
    for target in targets:
        assert shown.locator(f"h2{target}").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_page_is_for_everybody(released: Published, browser: Browser, width: int, scheme: str) -> None:
    """No breach of accessibility rules with all annexes open, and only tables may be wider than the window."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    shown = context.new_page()
    shown.goto(address(released))
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    found = Axe().run(shown).response["violations"]
    assert not found, [(breach["id"], breach["nodes"][0]["html"]) for breach in found]
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 26, 23)"
    assert dark == (scheme == "dark")
    context.close()


BROKEN_WORDS = """[...document.querySelectorAll('.scroll th, .scroll td')].filter(cell => {
  const text = cell.firstChild;
  if (!text || text.nodeType !== Node.TEXT_NODE || !/^[\\w.]+$/.test(text.data.trim())) return false;
  const range = document.createRange(); range.selectNodeContents(text);
  return !cell.classList.contains('mono') && range.getClientRects().length > 1; }).map(cell => cell.textContent)"""
HIDDEN_PARTS = """[...document.querySelectorAll('pre, .scroll, .charts figure')]
  .filter(it => it.scrollWidth > it.clientWidth).map(it => [it.className || it.tagName,
    getComputedStyle(it).backgroundImage + getComputedStyle(it, '::before').content])"""


def test_a_small_window_breaks_no_word_and_hides_nothing_unseen(released: Published, browser: Browser) -> None:
    """What is wider than the window shows it: a shadow at the edge, or words above a chart. Commands are wrapped."""
    shown = browser.new_page(viewport={"width": PHONE, "height": 900})
    shown.goto(address(released))
    shown.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert shown.evaluate(BROKEN_WORDS) == []
    wide = shown.evaluate(HIDDEN_PARTS)
    assert {kind for kind, _ in wide} == {"scroll", "FIGURE"}
    assert all("gradient" in hint if kind == "scroll" else "scroll sideways" in hint for kind, hint in wide)


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_long_value_stays_in_its_cell(released: Published, browser: Browser, width: int) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 900})
    shown.goto(address(released))
    words = shown.locator(".spark-text").first
    words.evaluate("words => words.textContent = 'most often ' + 'L'.repeat(300)")
    assert words.evaluate("words => words.scrollWidth <= words.clientWidth")


def test_sets_of_columns_that_were_counted_together_have_a_line_each(released: Published) -> None:
    """Of several tables the one that is off most; a set that a rule ties is named, and is no finding."""
    dossier = json.loads((released.path / layout.DOSSIER).read_text())
    tables, axes = dossier["fidelity"]["tables"], dossier["fidelity"]["axes"]
    joint = next(table for table in tables if table["order"])
    first, second = (axes[place]["column"] for place in joint["axes"])
    worse = joint | {"order": 2, "axes": joint["axes"][::-1], "difference": joint["difference"] + 0.25}
    dossier["fidelity"]["tables"] = [*tables, worse]
    html = page.render(dossier, "ab" * 32)
    assert "counted 1 set of several columns, some of them more than once: 2 tables" in html
    assert f"{second}, {first}<" in html and f"{first}, {second}<" not in html
    assert "the most off of 2 tables" in html
    dossier["contract"]["generate"]["constraints"] = [{"column": first, "determines": second}]
    html = page.render(dossier, "ab" * 32)
    assert f"The contract ties {second} and {first} by a rule" in html


def test_a_recipient_walks_from_the_contents_to_the_rows_in_pandas(
    released: Published,
    browser: Browser,
    signing_key: Ed25519PrivateKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Offline and without scripts: what the page says leads to the rows, and the rows are as it says."""
    key = tmp_path / "publisher.pem"
    key.write_bytes(signature.public_pem(signing_key.public_key()))
    context = browser.new_context(offline=True, java_script_enabled=False)
    shown = context.new_page()
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(address(released))

    def follow(words: str) -> Locator:
        """A link of the contents leads to its part of the page."""
        shown.get_by_role("navigation", name="Contents").get_by_role("link", name=words).click()
        part = shown.get_by_role("region", name=words)
        assert part.get_by_role("heading", level=2).bounding_box()["y"] < 900  # type: ignore[index]
        return part

    assert "Statements or decisions about one person" in follow("What to use it for").inner_text()
    columns = follow("The rows").get_by_role("table", name=None).first.locator("tbody tr")
    named = {row.locator("th").inner_text().split("\n")[0]: row.inner_text() for row in columns.all()}
    together = follow("Columns together").inner_text()
    assert "% of" in together and "noise" in together.lower()
    assert "together may cost" in follow("Budget").inner_text()
    opening = follow("Open and verify")
    code, fingerprint = (opening.locator("code").nth(number).inner_text() for number in (0, 1))
    command = opening.locator("pre").first.inner_text()
    assert asked == [address(released)], "the page loads nothing"

    # The key came by another way; the page's words, typed as they are, verify and read the release.
    assert fingerprint == signature.fingerprint(signing_key.public_key())
    words = command.replace("PATH-TO-THIS-DIRECTORY", str(released.path)).replace("PUBLISHERS-KEY", str(key)).split()
    assert words[0] == "dpsynth"
    with pytest.raises(SystemExit) as ended:
        cli.app(words[1:])
    assert not ended.value.code
    assert "verified" in capfd.readouterr().out
    monkeypatch.chdir(released.path)
    assert code == 'pandas.read_parquet("data")'
    rows = pandas.read_parquet("data")
    assert f"{len(rows):,} synthetic rows" in shown.inner_text("header")
    assert set(rows.columns) == set(named)
    commonest = {name: re.search(r"most often (.+) \((\d+)%\)", said) for name, said in named.items()}
    seen = {name: found for name, found in commonest.items() if found and " to " not in found[1]}  # no range of values
    assert {"department", "insured"} <= set(seen)
    for name, found in seen.items():
        shares = rows[name].map(str, na_action="ignore").fillna("missing").value_counts(normalize=True)
        assert (shares.index[0], f"{shares.iloc[0]:.0%}") == (found[1], f"{found[2]}%")
    context.close()


def test_at_most_four_pages_are_printed_before_the_annexes(
    released: Published, browser: Browser, tmp_path: Path
) -> None:
    """Also of twenty columns, and with the colours of paper whatever the system's."""
    dossier = json.loads((released.path / layout.DOSSIER).read_text())
    columns = dossier["synthetic"]["columns"]
    dossier["synthetic"]["columns"] = columns + [{**columns[5], "name": f"{columns[5]['name']}_{n}"} for n in range(12)]
    dossier["contract"]["columns"] |= {f"{columns[5]['name']}_{n}": {"nullable": False} for n in range(12)}
    many = tmp_path / "many.html"
    many.write_text(page.render(dossier, "ab" * 32))
    shown = browser.new_context(color_scheme="dark").new_page()
    for at in (address(released), many.as_uri()):
        shown.goto(at)
        shown.add_style_tag(content=".annexes { display: none; }")
        printed = shown.pdf(prefer_css_page_size=True)
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
