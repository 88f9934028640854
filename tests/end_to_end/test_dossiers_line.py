"""Both dossiers of a real release: what reviewers are shown, and that none of it can be read off what is public."""

import json
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inside import inside
from leak_cases import found_in
from line_cases import PEOPLE, Deployment, ledger_of, released, run_here, small_deployment, small_table, storage_of

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.storage import STEPS
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release import schema
from dpsynth_platform.release.reviewers import NOTICE
from dpsynth_platform.reviewing import decisions, verification

pytestmark = pytest.mark.end_to_end

ROWS = 2917
"""Of the source: a number that is no round one, so that it and what follows from it can be looked for."""


@dataclass(frozen=True)
class Done:
    """A release of a family whose owners are charged one by one, with its reviewers' dossier."""

    deployment: Deployment
    release: Path
    page: Path

    @property
    def reviewers(self) -> dict:
        return json.loads(self.page.with_name("reviewers.json").read_text())


def drawn_by_others(source, name, run):
    """Another producer's event: the source was drawn from a model of theirs."""
    model = {"datasetType": {"datasetType": "MODEL"}}
    return {
        "eventType": "COMPLETE",
        "eventTime": "2026-03-01T00:00:00Z",
        "producer": "https://example.org/others",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": run, "facets": {}},
        "job": {"namespace": "others", "name": "draw"},
        "inputs": [{"namespace": "s3://others", "name": name, "facets": model}],
        "outputs": [{"namespace": source.namespace, "name": source.name, "facets": {}}],
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    deployment = small_deployment(tmp_path_factory.mktemp("dossiers"))
    deployment.contract["quality"] = {"target": "outcome", "holdout": 0.13}
    deployment.family["mode"] = "per-owner"
    shutil.rmtree(deployment.settings.home / "sources")
    deployment.write().with_source(small_table(ROWS))
    source = dataset_name(
        deployment.contract["source"]["uri"].replace("${DPSYNTH_HOME}", str(deployment.settings.home))
    )
    graph = LineageStore(deployment.settings.ledger_url)
    known, later = (
        drawn_by_others(source, name, str(uuid.uuid4())) for name in ("models/people", "told after the clearance")
    )
    graph.record(known, origin="ingested", source="others")
    assert run_here(deployment, accelerator=inside(deployment)).success
    graph.record(later, origin="ingested", source="others")
    before = decisions.review(deployment.settings, PEOPLE)
    release = released(deployment)
    after = decisions.review(deployment.settings, PEOPLE)
    assert before.dossier == after.dossier
    return Done(deployment, release, Path(after.dossier))


def test_reviewers_are_shown_exact_counts_quality_spend_and_decisions(done):
    document, storage, ledger = done.reviewers, storage_of(done.deployment), ledger_of(done.deployment)
    (entry,) = ledger.entries()
    counts = {(row["step"], row["what"]): row["count"] for row in document["counts"]}
    bounded = storage.require(PEOPLE, "bounded").facts
    participants = ledger.participants(entry.entry_id).size
    owners = len(set(small_table(ROWS).column("person").to_pylist()))
    assert counts[("scrubbed", "records with an owner")] == ROWS
    assert counts[("scrubbed", "owners")] == owners
    assert counts[("clearance", "owners cleared for the mechanism")] == participants
    assert counts[("clearance", "owners held out for tests, or left out")] == owners - participants > 100
    assert counts[("bounded", "records that the mechanism read")] == bounded["rows"]
    assert document["scrubbing"]["rows_read"] == ROWS
    assert document["spend"]["entry"]["entry_id"] == entry.entry_id
    assert document["spend"]["owners"]["owners"] == participants
    assert document["spend"]["account"]["epsilon_left"] == ledger.left_for("tests", entry.request)
    assert [item["by"] for item in document["decisions"]] == ["reviewer"]
    assert document["quality"]["report"]["restricted"] is True
    assert len(document["quality"]["plots"]) == 6
    assert document["quality"]["report"]["records"]["synthetic"]["detection_auc"] > 0
    assert {step["step"] for step in document["steps"]} >= {"raw", "scrubbed", "model", "synthetic", "quality"}
    assert schema.breaches(document, schema.REVIEWERS) == []


def test_the_reviewers_page_says_the_same_and_stays_restricted(done):
    page = done.page.read_text()
    assert NOTICE in page.replace("&#39;", "'")
    for words in ("Exact counts", f"{ROWS:,}", "Quality, compared with real rows", "Spend", "Clearance", "reviewer"):
        assert words in page
    assert page.count("<svg") == 8
    public = "".join(texts(done.release).values())
    for words in ("beta-recall", "authenticity", "detection of synthetic rows", "workload: distance", "KS distance"):
        assert words in page and words not in public
    assert "<script" not in page
    assert done.page.is_relative_to(done.deployment.settings.restricted)
    assert done.page.stat().st_mode & 0o077 == done.page.parent.stat().st_mode & 0o077 == 0


def test_counts_outlive_the_rows_behind_them(done, monkeypatch):
    """What was recorded is still told when the rows have expired."""
    before = done.reviewers["counts"]
    for step in ("scrubbed", "bounded"):
        for directory in storage_of(done.deployment).outputs(PEOPLE, step):
            directory.rename(directory.with_name(f".{directory.name}"))
    try:
        decisions.review(done.deployment.settings, PEOPLE)
        assert done.reviewers["counts"] == before
        gone = {step["step"] for step in done.reviewers["steps"] if not step["output_is_there"]}
        assert gone == {"scrubbed", "bounded"}
    finally:
        for step in ("scrubbed", "bounded"):
            place = storage_of(done.deployment).location(PEOPLE, step)
            for directory in place.glob(".*"):
                directory.rename(directory.with_name(directory.name[1:]))


def test_what_others_told_of_the_source_before_its_clearance_stands_in_the_lineage(done):
    dossier = json.loads((done.release / "dossier.json").read_text())
    assert dossier["lineage"]["upstream"] == [
        {
            "kind": "checkpoint",
            "namespace": "s3://others",
            "name": "models/people",
            "relation": "derived",
            "into": "raw",
            "own": False,
        }
    ]
    drawn = "<title>checkpoint &quot;models/people&quot; (name reported by others)</title>"
    assert drawn in (done.release / "dossier.html").read_text()
    assert str(done.deployment.settings.home) not in "".join(texts(done.release).values()), "no place is told"


def test_the_head_stands_in_the_ledgers_export_and_in_no_shorter_one(done, tmp_path):
    document = ledger_of(done.deployment).export()
    file = tmp_path / "export.json"
    for events, failures in ((document["events"], []), (document["events"][:3], ["chain-head"])):
        file.write_text(json.dumps(document | {"events": events}))
        (report,) = verification.verify_all(done.deployment.settings, ["people"], None, file)
        assert report.to_json()["failures"] == failures
    assert verification.verify(done.deployment.settings, done.release.name).ok, "its own ledger"


def texts(release: Path) -> dict[str, str]:
    """Every public file as text; of tables, the footer's own words and every value."""
    found = {}
    for path in sorted(release.rglob("*")):
        if path.suffix == ".parquet":
            found[path.name] = str(without_places(pq.read_metadata(path).to_dict())) + str(
                pq.read_table(path).to_pylist()
            )
        elif path.is_file():
            found[path.name] = path.read_text()
    return found


def without_places(node):
    """A footer without places and sizes in bytes: functions of public rows, and one in 200 runs equals a count."""
    if isinstance(node, list | tuple):
        return [without_places(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: without_places(item) for key, item in node.items() if not key.endswith(("_offset", "_size"))}


NUMBER = re.compile(r"(?<![\w.-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w-])")
"""Dates, versions and parts of identifiers are none."""


def numbers_in(text: str) -> set[float]:
    """Every number that stands by itself, however it is grouped."""
    return {float(word.replace(",", "")) for word in NUMBER.findall(text)}


def numbers_of(node) -> set[float]:
    """Every number of a JSON value that tells something: from a thousand on, or with four digits behind the point."""
    if isinstance(node, dict | list):
        return set().union(*map(numbers_of, node.values() if isinstance(node, dict) else node))
    if isinstance(node, bool) or not isinstance(node, int | float):
        return set()
    return {float(node)} if abs(node) >= 1000 or round(node, 3) != node else set()


def test_nothing_public_is_an_exact_function_of_restricted_content(done):
    """Every count, figure, hash and name that reviewers see, and every hash in the zone, searched in all files."""
    storage, ledger, public = storage_of(done.deployment), ledger_of(done.deployment), texts(done.release)
    (entry,) = ledger.entries()
    restricted = done.reviewers
    everything = "\n".join(public.values())
    # Noisy counts are near exact ones, and equal one now and then.
    dossier = json.loads(public["dossier.json"])
    assert dossier["fidelity"]["tables"]
    without_noisy = json.dumps(dossier | {"fidelity": None})
    searched = "\n".join([without_noisy, *(text for name, text in public.items() if name != "dossier.json")])

    hashes = {digest_file(path) for path in storage.root.rglob("*") if path.is_file()}
    for record in filter(None, (storage.read(PEOPLE, step) for step in STEPS if step != "released")):
        hashes |= {record.content_hash, record.run_key, canonical_digest(record.facts)}
    # The synthetic rows themselves are public, and written again they are the same bytes.
    hashes -= {digest_file(path) for path in done.release.rglob("*.parquet")}
    hashes |= {restricted["candidate"]["digest"], restricted["candidate"]["audit_hash"], entry.commitment}
    fingerprints = [item.hex() for item in ledger.participants(entry.entry_id).tolist()]
    people = sorted(set(small_table(ROWS).column("person").to_pylist()))
    needles = (*hashes, *fingerprints[:200], *people[:200])
    assert len(needles) > 430
    assert found_in(needles, everything.encode()) == []
    assert found_in((restricted["candidate"]["plan_digest"],), everything.encode()), "the search finds no hash at all"

    told = numbers_of({part: restricted[part] for part in ("counts", "scrubbing", "quality")})
    told |= numbers_of(restricted["clearance"]["people"])  # the findings themselves are public
    told |= numbers_of(restricted["spend"]["owners"]) | numbers_of(restricted["spend"]["account"]["epsilon_left"])
    told -= numbers_of(dossier["contract"]) | numbers_of(dossier["ledger"]["cap"])
    assert {float(ROWS), float(len(people))} <= told
    assert len(told) > 30
    there = numbers_in(searched)
    assert {200.0, 0.13} <= there, "the search sees numbers"
    # Counts are far from every whole number that stands in a release, figures have sixteen digits: none fits by chance.
    assert told & there == set()

    names = {"epsilon_left", "worst_epsilon_left", "exhausted", "rows_without_owner", "rows_before"}
    assert {name for name in names if name in everything} == set()
    # The contract, which is public, says by the same name of which kinds they are; reviewers, how many there are.
    assert "canary_rows" in everything and not re.search(r"canary_rows\W{1,4}\d", everything)
    names.add("canary_rows")
    assert names <= set(re.findall(r"\w+", json.dumps(restricted)))


def test_the_search_sees_numbers_however_they_are_written():
    assert numbers_in("of 2,917 rows; (0.12345), x=1e-05 v1.2.3 a77 77b 2026-11-20") == {2917.0, 0.12345, 1e-05}
