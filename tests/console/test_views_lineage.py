"""What the lineage pages are told: columns, what is drawn from them, search, and years of months."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_cases import event, own
from filled_cases import MONTHS
from line_cases import small_deployment
from view_cases import json_of, release_of

from dpsynth_platform.console.roles import ALLOWED, Action
from dpsynth_platform.console.views import lineage
from dpsynth_platform.console.views.lineage import around, finding
from dpsynth_platform.console.views.lineage.around import FEW
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage.naming import without_secrets
from dpsynth_platform.lineage.store import LineageStore

READ = frozenset({Action.READ})
EVERYTHING = frozenset(Action)
YEAR = [f"2025-{month:02}" for month in range(1, 13)]
LINE = ("scrubbed", "bounded", "model", "synthetic", "released")


def parts(shown: lineage.TraceView) -> dict[tuple[str, str | None], tuple[bool, bool | None]]:
    return {(part.label, part.column): (part.direct, part.masked) for part in (*shown.upstream, *shown.downstream)}


@pytest.mark.end_to_end
def test_nothing_released_holds_an_owner_column_and_its_rows_depend_on_it_masked(filled: Any) -> None:
    shown = lineage.trace(filled.settings, READ, "people", "person")
    release = release_of(filled.settings, "people")
    found = parts(shown)
    assert found["people: scrubbed", "_owner"] == found["people: bounded", "_owner"] == (True, True)
    assert found["people: synthetic", None] == found[release, None] == (False, True)
    assert not [part for part in shown.downstream if part.column and part.zone == "public"]
    assert shown.released == (release,)
    assert ("ranker", None) in found
    assert found["people: model", None] == (False, None)
    keys = {part.key for part in (shown.start, *shown.downstream)}
    assert all({step.source, step.target} <= keys for step in shown.steps)
    tags = {column.name: column.tags for column in lineage.columns(filled.settings, READ, "people").columns}
    assert (tags["person"], tags["visit"]) == (("owner", "identifier"), ("identifier",))
    assert {item.column for item in lineage.search(filled.settings, READ, "owner").columns} == {"person", "_owner"}


@pytest.mark.end_to_end
def test_a_released_column_leads_back_to_its_source_with_what_hid_it(filled: Any) -> None:
    shown = lineage.trace(filled.settings, READ, release_of(filled.settings, "people"), "score")
    assert [(part.label, part.masked) for part in shown.upstream] == [
        ("people: synthetic", False),
        ("people: bounded", True),
        ("people: scrubbed", True),
        ("people: canaries", True),
        ("people: source", True),
    ]
    assert shown.downstream[-1].label == "ranker"
    assert any("Records without an owner are left out." in words for words in shown.rows)
    for column in ("no such", "person "):
        with pytest.raises(NotFound, match="no such column"):
            lineage.trace(filled.settings, READ, "people", column)


@pytest.mark.end_to_end
def test_months_in_which_the_same_happens_are_one_part(filled: Any) -> None:
    joined = lineage.trace(filled.settings, READ, "visits", "score")
    apart = lineage.trace(filled.settings, READ, "visits", "score", collapse=False)
    (scrubbed,) = [part for part in joined.downstream if part.label == "visits: scrubbed"]
    assert scrubbed.periods == MONTHS
    assert len([part for part in apart.downstream if part.label.endswith(": scrubbed")]) == len(MONTHS)
    assert joined.released == apart.released == (release_of(filled.settings, "visits"),)


@pytest.mark.end_to_end
def test_columns_say_where_they_come_from_or_why_nowhere(filled: Any) -> None:
    shown = {column.name: column for column in lineage.columns(filled.settings, READ, "people/synthetic").columns}
    assert shown["score"].tags == ("treatment: modelled",)
    assert [(item.label, item.column, item.masked) for item in shown["score"].origins] == [
        ("people: bounded", "score", True)
    ]
    assert shown["person"].origins == ()
    assert shown["person"].reason == "Fresh ids that are linked to nobody."
    assert lineage.columns(filled.settings, READ, "people/model").columns == ()


@pytest.mark.end_to_end
def test_search_finds_columns_tags_and_jobs(filled: Any) -> None:
    def found(text: str) -> lineage.SearchView:
        return lineage.search(filled.settings, READ, text)

    columns = {(item.column, item.label): item for item in found("SCORE").columns}
    assert columns["score", "visits: synthetic"].tables == len(MONTHS)
    assert lineage.node(filled.settings, READ, columns["score", "visits: synthetic"].key).node.period == MONTHS[-1]
    assert {item.column for item in found("identifier").columns} == {"person", "visit"}
    assert {item.column for item in found("pseudonym").columns} == {"_owner", "_record"}
    assert found("treatment:regenerated").columns == found("Treatment: regenerated").columns != ()
    assert {item.kind for item in found("zone: public").nodes} == {"release"}
    (job,) = [item for item in found("people.mod").jobs if item.own]
    assert (job.name, [label for _, label in job.outputs]) == ("people.model", ["people: model"])
    nothing = found("no such thing")
    assert (nothing.nodes, nothing.columns, nothing.jobs, nothing.more) == ((), (), (), False)
    for wild in ("%", "_", "\\", '"', "é"):
        assert not lineage.search(filled.settings, READ, wild * 3).columns


@pytest.mark.end_to_end
def test_what_others_report_of_columns_is_for_those_who_may_see_it(changeable: Any) -> None:
    settings = changeable.settings
    store = LineageStore(settings.ledger_url)
    release = store.release(release_of(settings, "people")).name
    origin = {"namespace": release.namespace, "name": release.name, "field": "score"}
    step = {"type": "DIRECT", "subtype": "IDENTITY", "description": "as Mrs Miller, 86420, said"}
    facets = {
        "schema": {"fields": [{"name": "hidden_points", "type": "int"}]},
        "columnLineage": {"fields": {"hidden_points": {"inputFields": [origin | {"transformations": [step]}]}}},
    }
    table = {"namespace": "s3://theirs", "name": "copy", "facets": facets}
    read = {"namespace": release.namespace, "name": release.name}
    store.record(event(inputs=[read], outputs=[table]), origin="ingested", source="theirs")

    whole = lineage.trace(settings, EVERYTHING, "people", "score")
    assert parts(whole)["copy", "hidden_points"] == (True, True)
    for may in (READ, READ | {Action.READ_SPEND}):
        assert lineage.columns(settings, may, "s3://theirs:copy").columns == ()
        assert lineage.search(settings, may, "hidden").columns == ()
        shown = lineage.trace(settings, may, "people", "score")
        assert {part.column for part in shown.downstream if part.label == "copy"} == {None}
        assert "Miller" not in json_of(shown)
    assert [item.column for item in lineage.search(settings, EVERYTHING, "hidden").columns] == ["hidden_points"]


LOADER = "jdbc:postgresql://loader:hunter2@db.internal/patients?password=hunter3"


def test_no_secret_or_path_in_the_names_of_others_is_shown_or_found(tmp_path: Path) -> None:
    settings = small_deployment(tmp_path).settings
    store = LineageStore(settings.ledger_url)
    table = {"namespace": LOADER, "name": "load", "facets": {"version": {}}}
    job = "load.execute_insert_into_/home/jane/restricted/patients"
    read = {"namespace": "file", "name": "/srv/loading/patients", "facets": {"version": {}}}
    store.record(event(inputs=[read], outputs=[table], job=job, namespace=LOADER), origin="ingested", source="theirs")
    store.record(event(outputs=["s3://lake/copied"], job="copy"), origin="ingested", source="theirs")

    for may in (READ, *ALLOWED.values()):
        found = lineage.search(settings, may, "patients")
        (seen,) = found.jobs
        path = "/home/jane/restricted" if Action.READ_QUALITY in may else "\N{HORIZONTAL ELLIPSIS}"
        assert seen.name == f"load.execute_insert_into_{path}/patients"
        assert seen.namespace == "jdbc:postgresql://db.internal/patients"
        node, file = sorted(found.nodes, key=lambda item: item.key.startswith("file:"))
        assert (node.label, node.title) == ("patients", "jdbc:postgresql://db.internal:patients")
        assert node.key == seen.outputs[0][0]
        key = node.key
        drawn = lineage.graph(settings, may, key)
        shown = (
            found,
            drawn,
            lineage.node(settings, may, key),
            lineage.columns(settings, may, key),
            lineage.trace(settings, may, key),
            lineage.path(settings, may, file.key, key),
        )
        assert drawn is not None and drawn.start == key
        for view in shown:
            assert "hunter" not in json_of(view) and "password" not in json_of(view)
        for text in ("hunter", "hunter3", "password", "loader:", "patients?password=hunter3/load", LOADER):
            nothing = lineage.search(settings, may, text)
            assert (nothing.nodes, nothing.jobs, nothing.more) == ((), (), False), text
        assert bool(lineage.search(settings, may, "jane").jobs) == (Action.READ_QUALITY in may)
        assert bool(lineage.search(settings, may, "srv/load").nodes) == (Action.READ_SPEND in may)
        for name in (f"{LOADER}/load", "jdbc:postgresql://db.internal:patients?password=hunter3/load"):
            with pytest.raises(NotFound, match="no such node"):
                lineage.node(settings, may, name)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("see https://u:p@[::1]:9/x?sig=1#y for it", "see https://[::1]:9/x for it"),
        ("jdbc:sqlserver://h;user=u;password=p", "jdbc:sqlserver://h"),
        ("abfss://container@account/x?sig=1", "abfss://container@account/x"),
        ("abfss://u:p@account/x", "abfss://account/x"),
        ("people.model", "people.model"),
    ],
)
def test_addresses_of_others_are_shown_without_what_may_be_a_password(address: str, shown: str) -> None:
    assert without_secrets([{"a": address}]) == [{"a": shown}]


def test_what_is_hidden_takes_no_place_among_what_a_search_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "MOST_FOUND", 2)
    settings = small_deployment(tmp_path).settings
    store = LineageStore(settings.ledger_url)
    for number in range(4):
        shown = number < 2
        job = f"hunter {number}" if shown else f"copy {number} of https://hunter@db/x"
        place = f"s3://lake/hunter{number}" if shown else f"s3://lake/{number}?hunter"
        table = {"namespace": "s3://lake", "name": place.removeprefix("s3://lake/"), "facets": {"version": {}}}
        store.record(event(outputs=[table], job=job), origin="ingested", source="theirs")
    found = lineage.search(settings, EVERYTHING, "hunter")
    assert [item.name for item in found.jobs] == ["hunter 1", "hunter 0"]
    assert [item.label for item in found.nodes] == ["hunter1", "hunter0"]
    assert not found.more


@pytest.fixture
def year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two datasets with a year of months each, and a product that was trained on all their releases."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(tmp_path / "deploy"))
    settings = Settings.from_environment()
    store = LineageStore(settings.ledger_url)
    releases = []
    for dataset in ("visits", "stays"):
        for period in YEAR:
            before = {"namespace": "file", "name": f"/sources/{dataset}"}
            for step in LINE:
                after = _output(dataset, period, step)
                store.record(own(inputs=[before], outputs=[after], job=f"{dataset}.{step}"))
                before = {"namespace": "file", "name": after["name"]}
            releases.append(before)
    ranker = {"namespace": "s3://theirs", "name": "ranker"}
    store.record(event(inputs=releases, outputs=[ranker]), origin="ingested", source="theirs")
    return settings


def _output(dataset: str, period: str, step: str) -> dict[str, Any]:
    facets: dict[str, Any] = {
        "version": {"datasetVersion": f"{dataset}-{period}-0123456789abcdef"},
        "symlinks": {"identifiers": [{"namespace": "dpsynth", "name": f"{dataset}/{period}/{step}", "type": "TABLE"}]},
    }
    if step == "model":
        facets["datasetType"] = {"datasetType": "MODEL"}
    if step == "released":
        facets["dpsynth_release"] = {"releaseId": f"{dataset}-{period}"}
    return {"namespace": "file", "name": f"/restricted/{dataset}/{period}/{step}", "facets": facets}


def test_a_year_of_months_is_a_few_boxes(year: Settings) -> None:
    shown = lineage.graph(year, READ, "s3://theirs:ranker", up=4)
    assert shown is not None
    assert {node.label for node in shown.nodes} == {
        "ranker",
        "visits",
        "stays",
        *(f"{dataset}: 12 {what}" for dataset in ("visits", "stays") for what in ("runs", "releases")),
    }
    assert shown.left_out == 0
    (runs,) = [node for node in shown.nodes if node.label == "visits: 12 runs"]
    assert runs.kind == "run"
    # Its link opens the newest month, in full.
    month = lineage.graph(year, READ, runs.members[-1], up=9, down=9)
    assert month is not None
    assert {f"visits/{YEAR[-1]}: {step}" for step in LINE[:-1]} < {node.label for node in month.nodes}
    apart = lineage.graph(year, READ, "s3://theirs:ranker", up=4, periods=False)
    assert apart is not None
    assert len([node for node in apart.nodes if node.kind == "run"]) == 24
    steps = lineage.graph(year, READ, "s3://theirs:ranker", up=9, collapse=False)
    assert steps is not None
    assert {node.label for node in steps.nodes if node.dataset == "visits"} == {
        "visits: 12 releases",
        *(f"visits: 12 times {step}" for step in LINE[:-1]),
    }


def test_what_is_far_is_left_out_and_counted(year: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around, "MOST_NODES", 3)
    shown = lineage.graph(year, READ, "s3://theirs:ranker", up=4)
    assert shown is not None
    # Above the ranker: both boxes of releases and one of runs; the other runs (48 nodes) and both sources are left out.
    assert sorted(node.label.split()[-1] for node in shown.nodes) == ["ranker", "releases", "releases", "runs"]
    assert shown.left_out == 48 + 2
    keys = {node.key for node in shown.nodes}
    assert all({edge.source, edge.target} <= keys for edge in shown.edges)


def test_few_months_stay_apart(year: Settings) -> None:
    store = LineageStore(year.ledger_url)
    for period in YEAR[:FEW]:
        store.record(own(inputs=[], outputs=[_output("rare", period, "scrubbed")]))
        read = {"namespace": "file", "name": f"/restricted/rare/{period}/scrubbed"}
        store.record(event(inputs=[read], outputs=["rare-copy"]), origin="ingested", source="theirs")
    shown = lineage.graph(year, READ, "s3://lake:rare-copy")
    assert shown is not None
    assert {node.label for node in shown.nodes} == {"rare-copy", *(f"rare/{period}: scrubbed" for period in YEAR[:FEW])}
