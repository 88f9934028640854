"""Downloads: tables that a spreadsheet computes nothing of, drawings that stand alone, and harmless file names."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pytest

from dpsynth_platform.console.pages.downloads import csv_text, download
from dpsynth_platform.console.pages.drawing import Arrow, Box, graph

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "  @x", "\uff1d1"])
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    ((read,),) = csv.reader(io.StringIO(csv_text([text], []), newline=""))
    assert read == f"'{text}"
    (_, (read, plain)) = csv.reader(io.StringIO(csv_text(["a", "b"], [[text, "a=1"]]), newline=""))
    assert (read, plain) == (f"'{text}", "a=1")


def test_numbers_stay_numbers_and_quotes_and_lines_come_back() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["a"], [[-2, True, False, 'x,"y"\nz']]), newline="")))
    assert rows[1] == ["-2", "yes", "no", 'x,"y"\nz']


@pytest.mark.parametrize(
    "name, safe",
    [
        ("lineage-visits/2026-01: scrubbed.csv", "lineage-visits-2026-01-scrubbed.csv"),
        ('a"; x="../../b\r\nSet-Cookie: c.svg', "a-x-..-..-b-Set-Cookie-c.svg"),
        ("é.csv", "csv"),
        (f"{'x' * 300}.csv", f"{'x' * 76}.csv"),
    ],
)
def test_a_file_name_has_letters_digits_dots_and_dashes(name: str, safe: str) -> None:
    answer = download("", "text/csv", name)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{safe}"'
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_drawing_that_stands_alone_has_no_links_and_says_what_hides_values() -> None:
    boxes = [Box(name, "dataset", name, "table", f"/lineage?node={name}", name) for name in ("a<", "b")]
    arrows = [Arrow("a<", "b", "hidden here", masking=True), Arrow("b", "a<", "passed", strong=True)]
    alone = ElementTree.fromstring(graph(boxes, arrows, "t", linked=False))
    assert not list(alone.iter(f"{SVG}a"))
    assert "/lineage" not in ElementTree.tostring(alone, encoding="unicode")
    assert [text.text for text in alone.iter(f"{SVG}text")].count("M") == 1
    linked = ElementTree.fromstring(graph(boxes, arrows, "t"))
    numbers = {link.get("data-box") for link in linked.iter(f"{SVG}a")}
    ends = {group.get(end) for group in linked.iter(f"{SVG}g") for end in ("data-from", "data-to")}
    assert numbers == ends == {"0", "1"}
