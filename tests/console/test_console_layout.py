"""Where the boxes of the lineage graph go."""

import random
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from dpsynth_platform.console.pages.drawing import KINDS, Arrow, Box, graph
from dpsynth_platform.console.pages.layout import layout


def random_graph(seed: int, size: int) -> tuple[list[str], list[tuple[str, str]]]:
    choose = random.Random(seed)
    nodes = [f"n{number}" for number in range(size)]
    arrows = [(nodes[choose.randrange(number)], nodes[number]) for number in range(1, size) for _ in range(2)]
    return nodes, arrows


@pytest.mark.parametrize("seed", range(5))
def test_what_was_made_stands_right_of_what_it_was_made_from_and_nothing_overlaps(seed: int) -> None:
    nodes, arrows = random_graph(seed, 40)
    places = layout(nodes, arrows)
    assert all(places.rank[parent] < places.rank[child] for parent, child in arrows)
    for one, other in combinations(nodes, 2):
        if places.rank[one] == places.rank[other]:
            assert abs(places.row[one] - places.row[other]) >= 1 - 1e-9
    assert all(0.5 - 1e-9 <= places.row[node] <= places.rows - 0.5 + 1e-9 for node in nodes)
    assert layout(nodes, arrows) == places


def test_an_arrow_over_ranks_has_a_way_past_the_boxes_between() -> None:
    places = layout(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])
    assert (places.rank["a"], places.rank["b"], places.rank["c"]) == (0, 1, 2)
    (way,) = places.ways["a", "c"]
    assert abs(way - places.row["b"]) >= 0.7
    assert places.ways["a", "b"] == ()


def test_a_chain_is_one_row() -> None:
    nodes = [f"n{number}" for number in range(6)]
    places = layout(nodes, list(pairwise(nodes)))
    assert len(set(places.row.values())) == 1
    assert [places.rank[node] for node in nodes] == list(range(6))


def test_what_came_of_nothing_stands_beside_what_came_of_it() -> None:
    places = layout(["a", "b", "c", "entry"], [("a", "b"), ("b", "c"), ("entry", "c")])
    assert places.rank["entry"] == places.rank["b"]


def test_cycles_loops_and_strangers_do_no_harm() -> None:
    places = layout(["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "a"), ("a", "a"), ("a", "elsewhere")])
    assert sorted(places.rank.values()) == [0, 1, 2]
    assert set(places.ways) == {("a", "b"), ("b", "c"), ("c", "a")}
    assert len(places.ways["c", "a"]) == 1
    assert layout([], []).rows == 0


def box(name: str, **more: object) -> Box:
    values: dict[str, object] = {
        "kind": "dataset",
        "label": name,
        "detail": "a dataset",
        "address": "/x",
        "title": name,
    }
    return Box(key=name, **(values | more))  # type: ignore[arg-type]


def test_every_box_is_a_link_with_words_and_names_are_text() -> None:
    nasty = '"><script>alert(1)</script>'
    drawn = graph(
        [
            box("a", kind="model", marks=("E2",), here=True),
            box(nasty, beyond_right=3),
            *(box(k, kind=k) for k in KINDS),
        ],
        [Arrow("a", nasty, f"{nasty} came of a", broken=True), Arrow("a", "a", "itself")],
        "Lineage",
    )
    assert "<script" not in drawn
    root = ElementTree.fromstring(drawn)
    links = [element for element in root if element.tag.endswith("}a")]
    assert len(links) == 2 + len(KINDS)
    assert {link.get("aria-label") for link in links} >= {"a, a dataset, finding E2", f"{nasty}, a dataset"}
    assert [link.get("aria-label") for link in links if link.get("aria-current")] == ["a, a dataset, finding E2"]
    assert "3 more" in drawn
    (arrow,) = [element for element in root if element.tag.endswith("}g")]
    assert "stroke-dasharray" in ElementTree.tostring(arrow, encoding="unicode")
