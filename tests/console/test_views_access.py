"""What each action shows: the read models are the one place where it is decided."""

import re

import pytest
from filled_cases import OWNERS, PRODUCT, RELEASED, SECOND, WAITING
from view_cases import json_of, others, readings, release_of

from dpsynth_platform.console.roles import ALLOWED, Action
from dpsynth_platform.console.views import candidates, datasets, families, lineage, overview, releases
from dpsynth_platform.foundation.errors import NotAllowed, NotFound
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore

pytestmark = pytest.mark.end_to_end
READ = frozenset({Action.READ})
ENGINEER, REVIEWER, AUDITOR = (ALLOWED[role] for role in ("engineer", "reviewer", "auditor"))
EVERYTHING = frozenset(Action)


def test_nothing_is_shown_to_who_may_do_nothing(filled):
    for name, show in readings(filled.settings).items():
        with pytest.raises(NotAllowed):
            show(frozenset())
        with pytest.raises(NotAllowed):
            show(EVERYTHING - READ), name


def test_each_view_asks_for_its_own_action(filled):
    for action, views in others(filled.settings).items():
        for show in views.values():
            with pytest.raises(NotAllowed, match=action.value):
                show(EVERYTHING - {action})
            assert show(READ | {action})


def test_who_may_read_sees_no_spend_no_count_and_no_comparison(filled):
    settings = filled.settings
    for row in families.budgets(settings, READ):
        assert row.left is None
        assert row.used is None
        assert row.left_words is None
    for name in ("tests", "clinic"):
        shown = families.family(settings, READ, name)
        assert (shown.spend, shown.owners, shown.remaining) == (None, None, None)
    for name in ("people", "visits"):
        steps = [step for period in datasets.dataset(settings, READ, name).periods for step in period.steps]
        assert steps
        assert all(step.counts is None for step in steps)
        shown = releases.release(settings, READ, release_of(settings, name))
        assert (shown.counts, shown.quality) == (None, None)
        assert shown.dossier is not None
    for place in (SECOND, WAITING):
        shown = candidates.candidate(settings, READ, place.dataset, place.period)
        assert (shown.counts, shown.quality) == (None, None)
        assert shown.audit.verdict == "inconclusive"
    assert all(row.left is None for row in overview.overview(settings, READ).budgets)


def test_an_engineer_sees_counts_and_spend_and_no_comparison(filled):
    settings = filled.settings
    assert candidates.candidate(settings, ENGINEER, "second").counts
    assert candidates.candidate(settings, ENGINEER, "second").quality is None
    assert releases.release(settings, ENGINEER, release_of(settings, "people")).quality is None
    shown = families.family(settings, ENGINEER, "tests")
    assert shown.spend
    assert shown.remaining
    assert all(0 < left.epsilon < shown.row.cap_epsilon for left in shown.row.left)
    assert 0 < shown.row.used < 1


def test_how_many_were_left_out_in_silence_is_for_those_who_see_the_reviewers_dossier(filled):
    """Where owners are left out in silence, counts after it would tell how many; so would what owners have left."""
    settings = filled.settings
    for may, seen in ((ENGINEER, False), (REVIEWER, True), (AUDITOR, True)):
        shown = families.family(settings, may, "clinic")
        assert (shown.owners is not None) == seen
        candidate = candidates.candidate(settings, may, WAITING.dataset, WAITING.period)
        release = releases.release(settings, may, release_of(settings, "visits"))
        for counts in (candidate.counts, release.counts):
            assert {"scrubbed", "synthetic"} <= {item.step for item in counts}
            assert ({"clearance", "bounded"} & {item.step for item in counts} != set()) == seen
        for period in datasets.dataset(settings, may, "visits").periods:
            told = {step.step for step in period.steps if step.counts is not None}
            assert ("bounded" in told) == seen
    # In the other family nobody is left out.
    assert "bounded" in {item.step for item in candidates.candidate(settings, ENGINEER, "second").counts}


def test_reviewers_and_auditors_see_the_comparison_with_real_rows(filled):
    for may in (REVIEWER, AUDITOR):
        assert candidates.candidate(filled.settings, may, "second").quality.rows
        assert releases.release(filled.settings, may, release_of(filled.settings, "visits")).quality.plots


def test_facets_are_shown_as_far_as_they_may_leave(changeable):
    """Of our own all of it may; what another producer counted may not."""
    settings = changeable.settings
    counted = {
        "dataQualityMetrics": {
            "_producer": "https://example.org",
            "_schemaURL": "x",
            "rowCount": 86420,
            "at": "pg://me:hunter2@db/x",
        }
    }
    table = {"namespace": "s3://theirs", "name": "copy", "facets": counted}
    event = {
        "eventType": "COMPLETE",
        "eventTime": "2026-01-01T00:00:00Z",
        "producer": "https://example.org",
        "run": {"runId": "01920000-0000-7000-8000-000000000000"},
        "job": {"namespace": "theirs", "name": "copy"},
        "inputs": [],
        "outputs": [table],
    }
    LineageStore(settings.ledger_url).record(event, origin="ingested", source="theirs")
    theirs = lineage.node(settings, REVIEWER, "s3://theirs:copy")
    assert (theirs.whole, theirs.node.notes) == (True, ("reported by other producers only",))
    assert lineage.node(settings, ENGINEER, "s3://theirs:copy").facets == ()
    assert [(item.name, "86420" in item.value, item.told_by) for item in theirs.facets] == [
        ("dataQualityMetrics", True, "another producer")
    ]
    assert lineage.node(settings, READ, "s3://theirs:copy").facets == ()
    assert "hunter2" not in theirs.facets[0].value
    for name in ("people/synthetic", "people/model", "people"):
        own = lineage.node(settings, ENGINEER, name).facets
        assert [item.name for item in lineage.node(settings, READ, name).facets] == [item.name for item in own] != []
        assert {item.told_by for item in own} == {"this platform"}


def test_what_lies_on_this_machine_is_called_by_its_name_and_not_by_its_path(filled):
    """Names stand in addresses, and so in logs; where something lies is the operator's."""
    settings, home = filled.settings, str(filled.settings.home)
    whole = lineage.graph(settings, EVERYTHING, release_of(settings, "people"), up=9, down=9, collapse=False)
    assert len(whole.nodes) > 10
    for shown in whole.nodes:
        assert home not in json_of(shown)
        assert lineage.node(settings, EVERYTHING, shown.key).node.title == shown.title
    found = {shown.title: shown.key for shown in whole.nodes}
    assert {"people", "people/model", release_of(settings, "people"), f"dpsynth:products:{PRODUCT}"} <= set(found)
    place = lineage.node(settings, ENGINEER, found["people/model"]).place
    assert place == f"file:{home}/restricted/people/all/model"
    # By its path it is found, too, and it is the same.
    assert lineage.node(settings, READ, place).node.key == found["people/model"]
    for name in found.values():
        assert home in json_of(lineage.node(settings, ENGINEER, name)) or not name.startswith("people")
        assert home not in json_of(lineage.node(settings, READ, name))
    with pytest.raises(NotFound, match="no such node"):
        lineage.node(settings, READ, found["people/model"].replace("model", "scrubbed"))


def test_no_view_tells_where_on_this_machine_the_deployment_is(filled):
    """But for the full names of lineage's nodes, which are the operator's (see above)."""
    settings = filled.settings
    wholes = readings(settings) | {name: show for views in others(settings).values() for name, show in views.items()}
    said = {name: json_of(show(EVERYTHING)) for name, show in wholes.items() if not name.endswith("node")}
    assert len(said) > 20
    places = [str(place) for place in (settings.home, settings.deploy, filled.settings.home.parent)]
    found = [
        (name, text[text.index(place) - 90 :][:200]) for name, text in said.items() for place in places if place in text
    ]
    assert found == []
    people = datasets.dataset(settings, READ, "people")
    assert people.file == "${DPSYNTH_DEPLOY}/contracts/people.yaml"
    assert dict(people.contract)["where"].startswith("${DPSYNTH_HOME}/public/people")
    release = release_of(settings, "people")
    assert releases.release(settings, READ, release).directory == f"${{DPSYNTH_HOME}}/public/people/{release}"


def test_no_row_no_fingerprint_no_owner_and_no_key_is_shown_to_anybody(filled):
    settings = filled.settings
    ledger, storage = Ledger(settings.ledger_url), Storage(settings.restricted)
    fingerprints = {
        value.hex()
        for entry in ledger.entries()
        for value in (bytes(item).ljust(16, b"\0") for item in ledger.participants(entry.entry_id)[:200].tolist())
    }
    keys = [path.read_bytes() for path in settings.vault.rglob("*") if path.is_file()]
    said = "".join(json_of(show(EVERYTHING)) for show in readings(settings).values())
    said += "".join(json_of(show(EVERYTHING)) for views in others(settings).values() for show in views.values())
    assert len(said) > 100_000
    assert len(fingerprints) > 500
    words = set(re.findall(r"\w+", said))
    assert not words & set(OWNERS)
    assert not words & fingerprints
    assert all(key.hex() not in said and key.decode("latin-1") not in said for key in keys if len(key) >= 16)
    assert storage.places()


def test_the_same_page_for_the_same_actions(filled):
    """Nothing of one reader's page stays for another."""
    settings, release = filled.settings, release_of(filled.settings, "visits")
    first = json_of(releases.release(settings, READ, release))
    assert json_of(releases.release(settings, REVIEWER, release)) != first
    assert json_of(releases.release(settings, READ, release)) == first
    assert RELEASED.label in first
