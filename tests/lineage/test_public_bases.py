"""Clearance of a run that starts from something public other than a checkpoint: what lineage knows of it decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clearance_cases import contract_of, guarantee, independent, line, reported, spend, trained, verdict
from event_cases import dataset, event, model, name, own
from ledger_cases import people

from dpsynth_platform.contracts.bases import bases_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage import graph_rows
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.lineage.naming import DatasetName, canonical, dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import KnownBase, model_name
from dpsynth_platform.lineage.walks import exposed
from dpsynth_platform.privacy.statement import RelatedMechanisms

WHY = "drawn by ourselves and published"


def pictured(image: dict[str, Any], *, method: str = "image_pe", policy: str = "compose") -> DataContract:
    """A contract of pictures, of the family `archive`, with `generate.image`."""
    document = contract_of("reviews", family="archive", policy=policy).model_dump(mode="json", exclude_unset=True)
    document["columns"]["photo"] = {"type": "image", "size": [12, 12], "accept_unscrubbed": "they show no people"}
    document["generate"] = {"method": method, "rows": 100, "image": image}
    return parse_contract(document, where="test", variables={})


def table(place: str) -> dict[str, Any]:
    return {"evolution": {"foundation": "table", "table": {"directory": place, "public": WHY}}}


def encoder(place: str) -> dict[str, Any]:
    return {"evolution": {"foundation": "shapes", "encoder": place}}


def fonts(place: str) -> dict[str, Any]:
    return {"evolution": {"foundation": "fonts", "fonts": {"directory": place}}}


def endpoint(called: str, host: str = "models.example.org") -> dict[str, Any]:
    asked = {"url": f"https://{host}/v1", "model": called}
    return {"evolution": {"foundation": "endpoint", "endpoint": asked}}


DATA = [table, encoder, fonts]


@pytest.mark.parametrize("kind", DATA)
def test_data_that_lineage_does_not_know_are_public_by_the_contract(
    ledger: Ledger, store: LineageStore, starting: None, kind: Any
) -> None:
    found = verdict(ledger, store, pictured(kind("s3://lake/strokes")))
    assert (found.decision, found.findings, found.base_model) == ("compose", (), ())
    (base,) = found.bases
    assert (base.name, base.step, base.known_by) == (name("strokes"), "model", "contract")
    assert base.why == (WHY if kind is table else base.why)
    assert Clearance.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("kind", [*DATA, endpoint])
def test_a_base_that_a_sensitive_line_released_adds_to_that_line(
    ledger: Ledger, store: LineageStore, starting: None, kind: Any
) -> None:
    first = spend(ledger, "shops", "orders", people(1, 2))
    line(store, "orders", first)
    found = verdict(ledger, store, pictured(kind("s3://lake/orders/release")))
    (finding,) = found.adding
    assert (found.decision, finding.kind, finding.entry) == ("compose", "base-model", first.entry_id)
    assert finding.path == ("s3://lake:orders/release", f"paid-by dpsynth:ledger:{first.entry_id}")
    assert found.resulting is not None and found.resulting.epsilon == pytest.approx(independent(2), rel=2e-3)
    assert found.bases[0].known_by == "lineage"
    excluded = verdict(ledger, store, pictured(kind("s3://lake/orders/release"), policy="exclude"))
    assert excluded.decision == "refuse", "people of another namespace cannot be compared"
    second = spend(ledger, "clinic", "visits")
    line(store, "visits", second)
    alike = verdict(ledger, store, pictured(kind("s3://lake/visits/release"), policy="exclude"))
    assert (alike.decision, alike.related) == ("exclude", (second.entry_id,))


@pytest.mark.parametrize("kind", [*DATA, endpoint])
@pytest.mark.parametrize("place", ["visits", "visits/rows", "copy"])
def test_a_base_that_holds_or_has_seen_guarded_rows_is_refused(
    ledger: Ledger, store: LineageStore, starting: None, kind: Any, place: str
) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    reported(store, event("COMPLETE", ["visits"], ["copy"]))
    found = verdict(ledger, store, pictured(kind(f"s3://lake/{place}")))
    assert found.decision == "refuse"
    assert "unprotected" in {item.kind for item in found.findings}
    assert "start from another" in found.reason


@pytest.mark.parametrize("place", ["s3a://lake", "s3a://lake/", "s3://lake/visits/", "s3a://lake//visits/rows"])
def test_a_bucket_is_around_its_keys_however_it_is_spelled(
    ledger: Ledger, store: LineageStore, starting: None, place: str
) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    assert verdict(ledger, store, pictured(table(place))).decision == "refuse"
    assert verdict(ledger, store, pictured(table("s3://lakes"))).decision == "compose"


def test_only_nodes_of_the_same_namespace_are_read(store: LineageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph may have very many others; a namespace counts however it is spelled."""
    others = [DatasetName(f"kafka://broker-{number % 3}", f"topic-{number}") for number in range(90)]
    here = [DatasetName("s3a://lake", "visits"), DatasetName("s3://lake/visits", "rows")]
    store.database.write(lambda at: graph_rows.insert_nodes(at, dict.fromkeys([*others, *here], "dataset")), guards=())
    read: list[DatasetName] = []

    def canonical_and_noted(given: DatasetName) -> DatasetName:
        read.append(given)
        return canonical(given)

    monkeypatch.setattr(graph_rows, "canonical", canonical_and_noted)
    found = store.database.read(lambda at: graph_rows.nodes_at(at, name("visits")))
    assert sorted(node.name for node in found) == sorted(here)
    assert not [given for given in read if given in others]


@pytest.mark.parametrize("place", ["/srv", "/srv/visits", "/srv/visits/rows", "/srv/visits/rows/2026"])
def test_a_directory_around_or_inside_guarded_rows_is_refused(
    ledger: Ledger, store: LineageStore, starting: None, place: str
) -> None:
    rows = {"namespace": "file", "name": "/srv/visits/rows", "facets": guarded_facets()}
    assert store.record(own("COMPLETE", ["visits"], [rows], job="visits.bounded")).new
    assert verdict(ledger, store, pictured(table(place))).decision == "refuse"
    assert verdict(ledger, store, pictured(table("/srv/visits/rows-of-others"))).decision == "compose"


def guarded_facets() -> dict[str, Any]:
    return {"tags": {"tags": [{"key": "zone", "value": "restricted"}]}}


@pytest.mark.parametrize("inside", ["", "/visits-1", "/visits-1/data", "/visits-1/pictures", "/visits-1/pictures/dots"])
def test_any_directory_of_a_release_is_the_release(
    ledger: Ledger, store: LineageStore, starting: None, tmp_path: Path, inside: str
) -> None:
    """Also behind a symbolic link: a release's pictures lie beside the table that lineage names."""
    public, entry = tmp_path / "public", spend(ledger, "shops", "visits")
    (public / "visits-1" / "data").mkdir(parents=True)
    facets = guarantee(entry) | {"version": {"datasetVersion": "visits-1"}}
    released = {"namespace": "file", "name": str(public / "visits-1" / "data"), "facets": facets}
    assert store.record(own("COMPLETE", ["visits/model"], [released], job="visits.released")).new
    (tmp_path / "strokes").symlink_to(public)
    for place in (public, tmp_path / "strokes"):
        found = verdict(ledger, store, pictured(table(f"{place}{inside}")))
        assert [item.entry for item in found.adding] == [entry.entry_id]
        (base,) = found.bases
        assert (base.name, base.known_by) == (dataset_name(f"{place}{inside}"), "lineage")
    beside = verdict(ledger, store, pictured(table(str(tmp_path / "public-pictures"))))
    assert (beside.adding, beside.bases[0].known_by) == ((), "contract")


def test_a_place_is_read_as_the_path_that_a_step_opens(
    ledger: Ledger, store: LineageStore, starting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step opens `s3://lake/strokes` as a URI: on disk it is a directory, which may be a link to guarded rows."""
    rows = {"namespace": "file", "name": str(tmp_path / "visits"), "facets": guarded_facets()}
    assert store.record(own("COMPLETE", ["visits"], [rows], job="visits.bounded")).new
    (tmp_path / "visits").mkdir()
    (tmp_path / "s3:" / "lake").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert verdict(ledger, store, pictured(table("s3://lake/strokes"))).decision == "compose"
    (tmp_path / "s3:" / "lake" / "strokes").symlink_to(tmp_path / "visits")
    assert verdict(ledger, store, pictured(table("s3://lake/strokes"))).decision == "refuse"


@pytest.mark.parametrize("inside", ["", "/1f", "/1f/weights"])
@pytest.mark.parametrize("linked", [False, True])
def test_no_declaration_hides_that_a_checkpoint_is_part_of_what_we_wrote(
    ledger: Ledger, store: LineageStore, starting: None, tmp_path: Path, inside: str, linked: bool
) -> None:
    entry = spend(ledger, "clinic", "visits")
    made = {"namespace": "file", "name": str(tmp_path / "model"), "facets": guarantee(entry)}
    made["facets"]["datasetType"] = {"datasetType": "MODEL"}
    rows = {"namespace": "file", "name": str(tmp_path / "rows"), "facets": guarded_facets()}
    assert store.record(own("COMPLETE", ["visits"], [made], job="visits.model")).new
    assert store.record(own("COMPLETE", ["visits"], [rows], job="visits.bounded")).new
    for step in ("model", "rows"):
        (tmp_path / step / "1f" / "weights").mkdir(parents=True)
        (tmp_path / f"{step}-link").symlink_to(tmp_path / step)
        place = f"{tmp_path}/{step}{'-link' if linked else ''}{inside}"
        if linked or inside:
            store.declare_public(dataset_name(place), by="Ada", reason="its makers list what it learned from")
        found = verdict(ledger, store, contract_of("reviews", family="archive", base_model=place))
        if step == "model":
            assert [item.entry for item in found.adding if item.kind == "base-model"] == [entry.entry_id]
        else:
            assert (found.decision, "unprotected" in {item.kind for item in found.findings}) == ("refuse", True)


@pytest.mark.parametrize("place", ["./model", "~/model", "model/../model"])
def test_a_relative_place_of_a_checkpoint_is_a_place(
    ledger: Ledger, store: LineageStore, starting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As `text.base_models` opens it; what is neither absolute nor so spelled is a product's name."""
    rows = {"namespace": "file", "name": str(tmp_path / "model"), "facets": guarded_facets()}
    assert store.record(own("COMPLETE", ["visits"], [rows], job="visits.bounded")).new
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store.declare_public(model_name(place), by="Ada", reason="its makers list what it learned from")
    decision = verdict(ledger, store, contract_of("reviews", family="archive", base_model=place)).decision
    assert decision == ("compose" if place.startswith("model") else "refuse")


def test_a_contract_reason_for_data_beside_a_checkpoint_is_no_origin_of_it(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    reported(store, event("COMPLETE", [model("mystery")], [model("tuned")]))
    for place in ("s3://lake/other/net.bin", "s3://lake/mystery/net.bin", "s3://lake/mystery"):
        found = verdict(ledger, store, pictured(encoder(place)), base_model="s3://lake/tuned")
        assert found.decision == "refuse"
        assert ("unknown", "s3://lake:mystery") in {(item.kind, item.path[-1].split()[-1]) for item in found.findings}


def test_a_model_that_draws_needs_an_origin_or_a_declaration(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    contract = pictured(endpoint("painter"))
    found = verdict(ledger, store, contract)
    assert (found.decision, [item.kind for item in found.findings]) == ("refuse", ["unknown"])
    assert (found.bases[0].known_by, found.base_model) == (None, ())
    store.declare_public(model_name("painter"), by="Ada", reason="its makers list what it learned from")
    cleared = verdict(ledger, store, contract)
    assert (cleared.decision, cleared.findings) == ("compose", ())
    assert cleared.bases[0].known_by == "declaration"
    assert cleared.declared == (
        "dpsynth:products:painter was declared public by Ada: its makers list what it learned from",
    )


def test_the_same_model_at_another_host_is_the_same_base(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """It is declared once, by its name: the declaration says what the model learned from, not who serves it."""
    store.declare_public(model_name("painter"), by="Ada", reason="its makers list what it learned from")
    hosts = ("models.example.org", "localhost:8000", "another.example.org")
    seen = [verdict(ledger, store, pictured(endpoint("painter", host))) for host in hosts]
    assert [found.decision for found in seen] == ["compose"] * 3 and len({found.bases for found in seen}) == 1
    assert verdict(ledger, store, pictured(endpoint("painter-2"))).decision == "refuse"
    texts = [
        bases_of(Generate.model_validate({
            "method": "aug_pe", "rows": 10, "base_model": "writer",
            "text": {"evolution": {"endpoint": {"url": f"https://{host}/v1"}}},
        }))
        for host in hosts[::2]
    ]  # fmt: skip
    assert texts[0] == texts[1] and texts[0][0].name == "writer"


def test_a_contract_reason_is_no_origin_of_a_diffusion_model(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    finetune = {"finetune": {"checkpoint": "/srv/models/strokes", "public": WHY}}
    found = verdict(ledger, store, pictured(finetune, method="image_finetune"))
    assert (found.decision, found.base_model) == ("refuse", (DatasetName("file", "/srv/models/strokes"),))
    assert (found.bases[0].why, found.bases[0].known_by) == (WHY, None)


def test_a_public_table_that_a_model_of_unknown_origin_made_is_refused(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    reported(store, event("COMPLETE", [model("mystery")], ["strokes"]))
    found = verdict(ledger, store, pictured(table("s3://lake/strokes")))
    assert (found.decision, found.findings[0].path) == ("refuse", ("s3://lake:strokes", "derived s3://lake:mystery"))


def test_all_bases_count_and_a_checkpoint_keeps_its_place(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Evolution's table and encoder are two bases; each leads to its own entries."""
    first, second = spend(ledger, "clinic", "visits"), spend(ledger, "shops", "orders")
    line(store, "visits", first)
    line(store, "orders", second)
    image = table("s3://lake/visits/release")
    image["evolution"]["encoder"] = "s3://lake/weights"
    reported(store, trained("weights", "orders/release"))
    found = verdict(ledger, store, pictured(image))
    assert {item.entry for item in found.adding if item.kind == "base-model"} == {first.entry_id, second.entry_id}
    assert [base.kind for base in found.bases] == ["pictures", "encoder"]
    other = verdict(ledger, store, pictured(image), base_model="s3://lake/visits/release")
    assert [base.kind for base in other.bases] == ["checkpoint", "pictures", "encoder"]


def test_a_table_that_is_no_base_changes_nothing(ledger: Ledger, store: LineageStore, starting: None) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    assert contract_of().bases == ()
    found = verdict(ledger, store, contract_of("reviews", family="archive"))
    assert (found.bases, found.base_model) == ((), ())


def test_a_clearance_of_an_earlier_version_has_its_checkpoint_as_its_only_base(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    store.declare_public(model_name("known"), by="Ada", reason="weights from before there were people")
    document = verdict(ledger, store, contract_of(base_model="known")).to_json()
    del document["bases"]
    (base,) = Clearance.from_json(document).bases
    assert base == KnownBase("checkpoint", model_name("known"), None, "model")
    document["base_model"] = []
    assert Clearance.from_json(document).bases == ()


def test_what_is_reported_later_about_a_base_is_a_new_finding(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    contract = pictured(table("s3://lake/strokes"))
    before = verdict(ledger, store, contract)
    reported(store, event("COMPLETE", ["web"], ["strokes"]))
    again = verdict(ledger, store, contract)
    assert (again.bases[0].known_by, again.kept(before)) == ("lineage", before), "an origin that adds nothing"
    line(store, "visits", spend(ledger, "clinic", "visits"))
    reported(store, event("COMPLETE", ["visits/release"], ["strokes"]))
    assert verdict(ledger, store, contract).new_findings(before)
    assert verdict(ledger, store, pictured(table("s3://lake/other"))).kept(before) != before


def test_a_public_table_stays_a_table_and_reaches_what_starts_from_the_model(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    """A later run starts from a model whose public table turns out to be guarded rows: it is refused."""
    entry = spend(ledger, "clinic", "visits")
    strokes = dataset("strokes", datasetType={"datasetType": "FILE"})
    bases: dict[str, Any] = {
        "dpsynth_baseModel": {"baseModels": [{"namespace": "s3://lake", "name": "strokes", "version": "unknown"}]}
    }
    made = model("visits/model", **guarantee(entry), **bases)
    assert store.record(own("COMPLETE", [strokes], [made], job="visits.model")).new
    node = store.node(name("strokes"))
    assert node is not None and node.kind == "dataset"
    assert {(edge.parent.name, edge.relation) for edge in store.edges(name("visits/model"))} >= {("strokes", "base")}
    contract = contract_of("reviews", family="archive", base_model="s3://lake/visits/model")
    assert verdict(ledger, store, contract).decision == "compose"
    reported(store, event("COMPLETE", ["orders"], ["strokes"]))
    line(store, "orders", spend(ledger, "shops", "orders"))
    assert verdict(ledger, store, contract).decision == "refuse"
    reached = store.database.read(lambda connection: exposed(connection, [name("visits/model")], upward=True))
    assert name("strokes") in {item.node.name for item in reached}


def test_the_statement_names_what_the_bases_are_by_number_alone() -> None:
    (said,) = RelatedMechanisms(other_bases=True, upstream=2).accesses()
    assert said.startswith("What the public bases are and have seen") and "2 mechanisms made them" in said
    assert not list(RelatedMechanisms(upstream=2).accesses())
