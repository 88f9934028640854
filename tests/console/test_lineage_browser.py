"""The lineage page in a browser: search, a column's way, the drawing's tools by mouse and keyboard, and downloads."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser_cases import chromium, console, visitor
from view_cases import release_of

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
WIDTHS = (1400, 700, 390)
"""A desk, the same at twice the size (the browser's zoom of 200%), and a phone."""
IN_VIEW = """() => {
  const box = document.querySelector(".graph [aria-current]").getBoundingClientRect();
  const view = document.querySelector(".graph").getBoundingClientRect();
  const across = box.left >= view.left - 1 && box.right <= view.right + 1;
  return across && box.top >= view.top - 1 && box.bottom <= view.bottom + 1;
}"""


@pytest.fixture(scope="module")
def browser() -> Any:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(filled: Any) -> Any:
    with console(filled) as running:
        yield running


@pytest.fixture(scope="module")
def release(filled: Any) -> str:
    return release_of(filled.settings, "people")


def test_every_state_of_the_page_is_accessible_and_fits(served: Any, browser: Any, release: str) -> None:
    with visitor(served, browser, width=WIDTHS[0]) as here:
        for address in (
            "/lineage?text=identifier",
            "/lineage?text=people.model",
            "/lineage?node=people/scrubbed",
            "/lineage?node=people&column=person",
            f"/lineage?node={release}&column=score",
            "/lineage?node=visits&drawn=yes",
        ):
            here.open(address)
            for width in WIDTHS:
                here.resize(width)
                assert here.violations() == [], (address, width)
                assert not here.too_wide(), (address, width)
        assert here.complaints == []


def test_from_a_search_to_all_that_is_drawn_from_an_owner_column(served: Any, browser: Any, release: str) -> None:
    with visitor(served, browser) as here:
        here.open("/lineage")
        here.page.get_by_role("searchbox").fill("identifier")
        here.page.keyboard.press("Enter")
        here.page.wait_for_url("**text=identifier**")
        here.settle()
        here.follow("person of people: source")
        here.page.wait_for_url("**column=person**")
        table = here.page.get_by_role("region", name="Everything below, nearest first")
        row = table.get_by_role("row").filter(has_text=release)
        assert row.locator("th").inner_text() == "the whole"
        assert "hidden" in row.inner_text()
        pseudonym = table.get_by_role("row").filter(has_text="_owner").first
        assert "keyed fingerprints" in pseudonym.inner_text()
        here.page.locator("#trace ~ p").get_by_role("link", name=release).click()
        here.page.wait_for_url(f"**/releases/{release}")


def test_columns_lead_to_their_origins_and_nothing_is_shown_as_json(served: Any, browser: Any) -> None:
    with visitor(served, browser) as here:
        here.open("/lineage?node=people/synthetic")
        columns = here.page.get_by_role("region", name="Columns")
        assert (
            "Fresh ids that are linked to nobody." in columns.get_by_role("row").filter(has_text="person").inner_text()
        )
        columns.get_by_role("link", name="score of people: bounded").click()
        here.page.wait_for_url("**column=score**")
        here.settle()
        assert here.page.locator("#trace").inner_text() == "Column score of people: bounded"
        here.open("/lineage?node=people/synthetic")
        for record in here.page.locator("main details").all():
            record.evaluate("element => { element.open = true }")
        assert "strong" in here.text
        assert not {"{", "}", '"'} & set(here.page.locator("main").inner_text())


def test_zoom_by_button_and_by_key_and_the_start_in_view(served: Any, browser: Any) -> None:
    with visitor(served, browser, width=390) as here:
        here.open("/lineage?node=people/synthetic&up=5&down=5&sent=yes")
        page, graph = here.page, here.page.locator(".graph")
        page.wait_for_function(IN_VIEW)
        width = graph.locator("svg").evaluate("it => it.getBoundingClientRect().width")
        page.get_by_role("button", name="Fit").click()
        assert graph.evaluate("it => it.scrollWidth <= it.clientWidth + 1")
        page.get_by_role("button", name="Actual size").click()
        assert graph.locator("svg").evaluate("it => it.getBoundingClientRect().width") == width
        graph.focus()
        page.keyboard.press("+")
        assert page.locator(".zoom output").inner_text() == "125 %"
        assert graph.locator("svg").evaluate("it => it.getBoundingClientRect().width") == pytest.approx(1.25 * width)
        page.keyboard.press("-")
        page.keyboard.press("-")
        assert page.locator(".zoom output").inner_text() == "80 %"
        graph.evaluate("it => { it.scrollLeft = 1e6 }")
        page.keyboard.press("h")
        page.wait_for_function(IN_VIEW)
        # Keys elsewhere stay the browser's and the form's own.
        page.get_by_role("searchbox").fill("")
        page.keyboard.type("+1h")
        assert page.get_by_role("searchbox").input_value() == "+1h"
        assert page.locator(".zoom output").inner_text() == "80 %"
        assert here.complaints == []


def test_a_box_in_focus_shows_the_ways_through_it(served: Any, browser: Any) -> None:
    with visitor(served, browser) as here:
        here.open("/lineage?node=people&column=person")
        lit = here.page.locator(".graph [data-box].on")
        here.page.get_by_role("link", name="_record of people: bounded").first.focus()
        assert here.page.locator(".graph svg.lit").count() == 1
        on = {item.get_attribute("aria-label") for item in lit.all()}
        assert any(words.startswith("person of people: source") for words in on if words)
        assert not any(words.startswith("_owner") for words in on if words)
        here.page.get_by_role("searchbox").focus()
        assert here.page.locator(".graph svg.lit").count() == 0


def test_downloads_hold_what_is_shown_and_no_path(served: Any, browser: Any, release: str) -> None:
    home = str(served.deployment.settings.home)
    with visitor(served, browser) as here:
        for address, name in (
            ("/lineage?node=people&column=person", "lineage-people-source-person"),
            ("/lineage?node=people/scrubbed&up=4&down=4&sent=yes", "lineage-people-scrubbed"),
            ("/lineage?node=ranker&path=people", "lineage-dpsynth-products-ranker-to-people"),
        ):
            here.open(address)
            files = {}
            for kind, label in (("csv", "the table (CSV)"), ("svg", "the drawing (SVG)")):
                with here.page.expect_download() as download:
                    here.page.get_by_role("link", name=label).click()
                assert download.value.suggested_filename == f"{name}.{kind}"
                files[kind] = Path(download.value.path()).read_text(encoding="utf-8")
                assert home not in files[kind]
            header, *rows = csv.reader(files["csv"].splitlines())
            assert rows
            assert all(len(row) == len(header) for row in rows)
            drawn = ElementTree.fromstring(files["svg"])
            boxes = here.page.locator(".graph [data-box]").count()
            shown = [item for item in drawn.iter("{http://www.w3.org/2000/svg}text") if item.get("font-size") == "13"]
            assert len(shown) == boxes
        here.open("/lineage?node=people&column=person")
        answer = here.page.request.get(f"{served.url}/lineage/drawing.svg?text=people")
        assert answer.status == 404


def test_downloads_are_for_those_who_are_signed_in(served: Any, browser: Any) -> None:
    with visitor(served, browser, None) as here:
        for file in ("drawing.svg", "table.csv"):
            answer = here.page.request.get(f"{served.url}/lineage/{file}?node=people", max_redirects=0)
            assert answer.status in (303, 307, 401), answer.status
            assert "people: source" not in answer.text()
