"""Must show: a table whose columns have any names becomes a verified release with exactly these names."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_names import HOSTILE_NAMES, NAMES
from deployment import Deployment
from inside import inside
from line_cases import NO_CHANCE, PEOPLE, SMALL, ledger_of, run_here, storage_of

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import datasets
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing import decisions, verification

pytestmark = pytest.mark.end_to_end

OWNER, KEY, DAY, LATER = "Full name", ("select", 'quo"te'), "日本", "a;b{}"
NUMBER, REAL, GROUP, TARGET, DROPPED, EMPTY = "a.b", "größe", "back`tick", "#", "x=1,y", " lead"
KINDS: dict[str, dict[str, Any]] = {
    OWNER: {"type": "identifier"},
    **{name: {"type": "identifier"} for name in KEY},
    DAY: {"type": "date", "min": "2025-01-01", "max": "2025-12-31"},
    LATER: {"type": "date", "min": "2025-01-01", "max": "2026-01-31"},
    NUMBER: {"type": "integer", "min": 0, "max": 9},
    REAL: {"type": "float", "min": 0, "max": 1},
    GROUP: {"type": "categorical", "values": ["east", "west"]},
    TARGET: {"type": "categorical", "values": ["no", "yes"]},
    DROPPED: {"type": "text", "pii": "drop"},
    EMPTY: {"type": "text", "pii": "replace"},
}
OTHERS = [name for name in NAMES if name not in KINDS]
ROWS = 900


def table() -> pa.Table:
    """Fictional people with one or two records each; the first other column follows from the target."""
    random = np.random.default_rng(5)
    score, yes = random.integers(0, 10, ROWS), random.integers(0, 2, ROWS)
    day = [dt.date(2025, 1, 1) + dt.timedelta(days=int(number)) for number in random.integers(0, 300, ROWS)]
    return pa.table(
        {
            OWNER: [f"P{number * 2 // 3:05d}" for number in range(ROWS)],
            KEY[0]: list(range(ROWS)),
            KEY[1]: [f"Q{number}" for number in range(ROWS)],
            DAY: day,
            LATER: [one + dt.timedelta(days=number % 20) for number, one in enumerate(day)],
            NUMBER: score,
            REAL: score / 10,
            GROUP: np.where(score > 4, "east", "west").tolist(),
            TARGET: np.where(yes, "yes", "no").tolist(),
            DROPPED: ["Marked"] * ROWS,
            EMPTY: ["Call Mark Marked."] * ROWS,
            **{name: pa.array(yes == place % 2) for place, name in enumerate(OTHERS)},
        }
    )


def contract() -> dict[str, Any]:
    other = OTHERS[0]
    return {
        **SMALL,
        "source": {**SMALL["source"], "key": [OWNER, *KEY]},
        "privacy": {**SMALL["privacy"], "owner_columns": [OWNER], "record_order": f"weight:{NUMBER}"},
        "columns": KINDS | {name: {"type": "boolean"} for name in OTHERS},
        "generate": {
            "method": "mst",
            "rows": 100,
            "constraints": [
                {"ascending": [DAY, LATER]},
                {"column": TARGET, "determines": other, "mapping": {"no": True, "yes": False}},
                {"forbid": {NUMBER: {"min": 8}, GROUP: ["west"]}},
            ],
        },
        "audit": {"canaries": 60, "max_epsilon_lower_bound": 1.0} | NO_CHANCE,
        "quality": {"target": TARGET, "protected": [GROUP, HOSTILE_NAMES[0]]},
        "release": {**SMALL["release"], "approvals": 0, "max_missing": {NUMBER: 0.5, GROUP: 0.9}},
    }


@dataclass(frozen=True)
class Done:
    deployment: Deployment
    release: Path
    told: str
    """What the steps said."""
    seen: dict[str, dict[str, Any]]
    """Metadata of the steps."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    deployment = Deployment(tmp_path_factory.mktemp("names"), contract=contract()).write().with_source(table())
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    published = run_here(deployment, "people_release")
    assert published.success, published.failures
    release = Path(storage_of(deployment).require(PEOPLE, "released").facts["path"])
    told = [*ran.said.values(), *published.said.values()]
    return Done(deployment, release, "\n".join(line for lines in told for line in lines), ran.materializations)


def expected_names() -> list[str]:
    """In the order of the contract's file, which is sorted."""
    return sorted(name for name in contract()["columns"] if name != DROPPED)


def released_table(done: Done) -> pa.Table:
    return pq.read_table(next((done.release / "data").glob("*.parquet")))


def test_the_release_has_exactly_the_sources_names_and_verifies(done: Done) -> None:
    assert released_table(done).column_names == [name for name in table().column_names if name != DROPPED]
    rows = released_table(done).to_pylist()
    assert len(rows) == 100
    for row in rows:
        assert row[DAY] <= row[LATER] and not (row[NUMBER] >= 8 and row[GROUP] == "west")
        assert row[OTHERS[0]] == (row[TARGET] == "no")
        assert row[EMPTY] is None or row[EMPTY] == ""
    assert verify_release(done.release).ok
    assert verification.verify(done.deployment.settings, done.release.name).ok
    assert ledger_of(done.deployment).verify(()).ok


def test_lineage_has_every_columns_origin(done: Done) -> None:
    events = [json.loads(line) for line in done.deployment.settings.lineage_file.read_text().splitlines()]
    outputs = [item for event in events for item in event["outputs"] if "columnLineage" in item["facets"]]
    published = outputs[-1]["facets"]["columnLineage"]["fields"]
    assert {name: item["inputFields"][0]["field"] for name, item in published.items()} == {
        name: name for name in expected_names()
    }


class Found(HTMLParser):
    """Elements of a page, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not any("javascript" in (value or "") or name.startswith("on") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_pages_and_cards_show_the_names_as_texts(done: Done) -> None:
    names = expected_names()
    page = Found((done.release / "dossier.html").read_text())
    assert "script" not in page.elements and set(names) <= set(page.texts)
    croissant = json.loads((done.release / "croissant.json").read_text())
    assert [item["name"] for item in croissant["recordSet"][0]["field"]] == names
    card = (done.release / "README.md").read_text()
    lines = [line for line in card.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(names)
    for line in lines:
        assert line.replace("\\|", "").count("|") == 4
    assert "<" not in card.split("---\n", 2)[2] and not re.search(r"(?<!\\)\]", card)
    view = datasets.dataset(done.deployment.settings, tuple(Action), "people")
    assert {name for name, _ in view.columns} == set(contract()["columns"])


def test_what_reviewers_see_shows_the_names_as_texts(done: Done) -> None:
    page = Path(decisions.review(done.deployment.settings, PEOPLE).dossier)
    assert not {"script", "img", "a"} & Found(page.read_text()).elements
    shown = done.seen["quality"]["quality"]
    assert "back\\`tick" in shown and not re.search(r"(?<!\\)\]", shown)


def test_croissant_readers_find_every_column(done: Done) -> None:
    import mlcroissant

    dataset = mlcroissant.Dataset(str(done.release / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    (record_set,) = dataset.metadata.record_sets
    names = {field.id: field.name for field in record_set.fields}
    record = next(iter(dataset.records("records")))
    row = released_table(done).to_pylist()[0]
    assert {names[key] for key in record} == set(expected_names())
    assert all(record[key] == row[name] for key, name in names.items() if isinstance(row[name], bool | int))


def test_messages_stay_on_their_lines(done: Done) -> None:
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in done.told)
