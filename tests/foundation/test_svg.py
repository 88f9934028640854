from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from dpsynth_platform.foundation.svg import Line, bar_chart, histogram, line_chart

SPACE = "{http://www.w3.org/2000/svg}"


def charts(title: str = "T", description: str = "D") -> dict[str, str]:
    words = {"title": title, "description": description, "x_label": "x axis", "y_label": "y axis"}
    return {
        "line": line_chart([Line("a", [0, 1, 2], [0, 5, 3]), Line("b", [0, 2], [1, 1], dashed=True)], **words),
        "log": line_chart([Line("a", [0, 0.01, 1], [0, 0.1, 1])], **words, log=True, x_mark=(0.1, "mark")),
        "bar": bar_chart(["one", "two"], {"real": [0.2, 0.8], "synthetic": [0.3, 0.7]}, **words),
        "histogram": histogram({"in": [1.0, 2.0, 2.5], "out": [0.0, -math.inf, 1.0]}, **words),
    }


@pytest.mark.parametrize("kind", ["line", "log", "bar", "histogram"])
def test_charts_are_complete_self_contained_and_described(kind: str) -> None:
    svg = charts("Cost & <benefit>", 'A "description"')[kind]
    root = ElementTree.fromstring(svg)
    assert root.find(f"{SPACE}title").text == "Cost & <benefit>"
    assert root.find(f"{SPACE}desc").text == 'A "description"'
    assert root.get("role") == "img"
    labelled = root.get("aria-labelledby").split()
    assert labelled == [root.find(f"{SPACE}title").get("id"), root.find(f"{SPACE}desc").get("id")]
    texts = [element.text for element in root.iter(f"{SPACE}text")]
    assert {"x axis", "y axis"} <= set(texts)
    assert not re.search(r"<script|href|url\(|@import|style=|nan|inf\b", svg)


def test_a_character_that_xml_forbids_does_not_hide_the_chart() -> None:
    """A declared or learned value may hold any."""
    words = {"title": "a\x08b", "description": "a\uffffb", "x_label": "x", "y_label": "y"}
    svg = bar_chart(["one\x00", "\U0001f600\ud800"], {"noisy\x1b": [0.2, 0.8]}, **words)
    root = ElementTree.fromstring(svg.encode())
    assert root.find(f"{SPACE}title").text == root.find(f"{SPACE}desc").text == "a\ufffdb"
    assert {"one\ufffd", "\U0001f600\ufffd", "noisy\ufffd"} <= {element.text for element in root.iter(f"{SPACE}text")}


@pytest.mark.parametrize("kind", ["line", "log", "bar", "histogram"])
def test_everything_lies_inside_the_picture(kind: str) -> None:
    root = ElementTree.fromstring(charts()[kind])
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        for attribute, limit in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height)):
            if element.get(attribute) is not None:
                assert -0.1 <= float(element.get(attribute)) <= limit + 0.1
        for pair in (element.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_the_same_numbers_give_the_same_text_and_other_ones_other_ids() -> None:
    assert charts() == charts()
    ids = [re.search(r'id="(t\w+)"', svg).group(1) for svg in charts().values()]
    assert len(set(ids)) == len(ids)


def test_bars_are_as_high_as_their_values() -> None:
    root = ElementTree.fromstring(charts()["bar"])
    heights = [float(bar.get("height")) for bar in root.iter(f"{SPACE}rect") if bar.get("fill-opacity")]
    assert len(heights) == 4
    assert heights[1] / heights[0] == pytest.approx(4.0, rel=0.01)
    assert heights[3] / heights[2] == pytest.approx(7 / 3, rel=0.01)


def test_the_shares_of_a_histogram_sum_to_one() -> None:
    svg = histogram({"a": [0.0, 0.1, 0.9]}, title="", description="", x_label="", y_label="", bins=2)
    heights = [float(number) for number in re.findall(r'height="([\d.]+)" fill="#\w+" fill-opacity="0.55"', svg)]
    assert heights[0] / heights[1] == pytest.approx(2.0, rel=0.01)


def test_many_long_labels_make_a_wider_chart_with_short_slanted_labels() -> None:
    labels = [f"a very long label number {number}" for number in range(60)]
    svg = bar_chart(labels, {"s": [1.0] * 60}, title="", description="", x_label="", y_label="")
    assert float(ElementTree.fromstring(svg).get("width")) > 1000
    assert svg.count("rotate(-40") == 60
    assert "…" in svg


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.0], [0.0], [math.inf]])
def test_few_equal_or_no_values_still_give_a_chart(values: list[float]) -> None:
    words = {"title": "", "description": "", "x_label": "", "y_label": ""}
    places = [float(position) for position in range(len(values))]
    for svg in (
        line_chart([Line("a", places, values)], **words),
        line_chart([Line("a", values, values)], **words, log=True),
        histogram({"a": values}, **words),
    ):
        ElementTree.fromstring(svg)
        assert "nan" not in svg


def test_lines_of_a_colour_of_their_own_leave_the_palette_to_the_others() -> None:
    words = {"title": "T", "description": "D", "x_label": "x", "y_label": "y"}
    plain = line_chart([Line("a", [0, 1], [0, 1]), Line("b", [0, 1], [1, 0])], **words)
    beside = line_chart(
        [Line("guide", [0, 1], [0, 1], colour="#123456"), Line("a", [0, 1], [0, 1]), Line("b", [0, 1], [1, 0])], **words
    )
    strokes = [re.findall(r'<polyline[^>]*stroke="(#\w+)"', svg) for svg in (plain, beside)]
    assert strokes[1] == ["#123456", *strokes[0]]


def test_a_long_legend_goes_on_in_a_second_row() -> None:
    words = {"title": "T", "description": "D", "x_label": "x", "y_label": "y"}
    names = [f"an attack of number {number}" for number in range(6)]
    root = ElementTree.fromstring(line_chart([Line(name, [0, 1], [0, 1]) for name in names], **words))
    placed = [element for element in root.iter(f"{SPACE}text") if element.text in names]
    assert len({element.get("y") for element in placed}) == 2
    assert all(float(element.get("x")) + 7 * len(element.text) <= float(root.get("width")) for element in placed)


def test_positions_can_have_words() -> None:
    chart = line_chart(
        [Line("a", [0.0, 10.0], [0.0, 1.0])],
        title="Days",
        description="Two days.",
        x_label="day",
        y_label="n",
        x_words=lambda day: f"day {day:.0f}",
    )
    assert ">day 10<" in chart and ">10<" not in chart
