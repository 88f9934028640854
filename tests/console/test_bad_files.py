"""A bad contract or family file is its own fault: all that a deployment shows, keeps and decides goes on beside it."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from bad_files import add_bad_files
from deployment import Deployment
from line_cases import small_table
from view_cases import readings, release_of

from dpsynth_platform.console.pages import markup
from dpsynth_platform.console.roles import ALLOWED, Action
from dpsynth_platform.console.views import datasets, families, overview
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import ContractError, NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lifecycle.purging import due_and_held
from dpsynth_platform.reviewing import catalogue
from dpsynth_platform.reviewing.releases import listing
from dpsynth_platform.synth.planning import load_all
from dpsynth_platform.watching import health, metrics

pytestmark = pytest.mark.end_to_end
REVIEWER = ALLOWED["reviewer"]


def due(settings: Settings) -> set[tuple[str, str]]:
    """What retention would delete in a year: the datasets' own times decide."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=365)
    return {(item.label, item.step) for item, _ in due_and_held(settings, [c for c, _ in load_all(settings)[0]], later)}


def shown(settings: Settings) -> dict[str, Any]:
    """All that looks around."""
    return {
        "contracts": [contract.dataset for contract, _ in load_all(settings)[0]],
        "releases": listing(settings),
        "families": [row.family for row in families.families(settings, REVIEWER).rows],
        "recent": overview.overview(settings, REVIEWER).recent,
        "datasets": [row.dataset for row in datasets.datasets(settings, REVIEWER).rows],
        "due": due(settings),
        "health": [(check.name, check.ok) for check in health.checks(settings)],
        "metrics": {metric.name for metric in metrics.of_deployment(settings, dt.datetime.now(dt.UTC))},
        "jobs": {job.name for job in build_definitions(settings).jobs or ()},
    }


def test_bad_files_stop_nothing_but_themselves(changeable: Deployment) -> None:
    settings = changeable.settings
    before, release = shown(settings), release_of(settings, "people")
    assert before["contracts"] == ["people", "second", "visits"]
    assert before["due"]
    contract, family = (settings.contracts / "people.yaml").read_text(), (settings.families / "tests.yaml").read_text()
    bad = add_bad_files(settings.contracts, contract)
    bad_families = add_bad_files(settings.families, family)
    (settings.contracts / "orphan.yaml").write_text(
        contract.replace("dataset: people", "dataset: orphan").replace("family: tests", "family: date")
    )
    assert shown(settings) == before
    faults = load_all(settings)[1]
    assert len(faults) == bad + 1
    seen = overview.overview(settings, REVIEWER).faults
    assert len(seen) == bad + 1 + bad_families
    for fault in (*map(str, faults), *seen):
        assert "cannot be used (" not in fault
        assert fault.encode()
    for show in readings(settings).values():
        show(REVIEWER)
    listed = changeable.json("release", "list")
    assert release in json.dumps(listed)
    assert changeable.json("plan", "people")
    assert {row["dataset"] for row in changeable.json("purge", "--dry-run")["deleted"]} <= {
        "people",
        "second",
        "visits",
    }
    done = changeable.dpsynth("plan", "date")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "date.yaml" in done.stderr


def test_a_deployment_of_bad_files_alone_keeps_its_sweep(changeable: Deployment) -> None:
    for file in changeable.settings.contracts.glob("*.yaml"):
        file.write_text("columns: {x: 2026-02-30")
    sensors = {sensor.name for sensor in build_definitions(changeable.settings).sensors or ()}
    assert {"retention", "contract_faults"} <= sensors
    assert due(changeable.settings)


def test_a_file_that_goes_between_listing_and_reading(changeable: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, glob = changeable.settings, Path.glob

    def with_one_more(self: Path, pattern: str) -> list[Path]:
        return [*glob(self, pattern), self / "gone.yaml"]

    monkeypatch.setattr(Path, "glob", with_one_more)
    loaded, faults = load_all(settings)
    assert [contract.dataset for contract, _ in loaded] == ["people", "second", "visits"]
    assert len(faults) == 1
    assert "'gone' has no contract" in str(faults[0])


def test_a_contract_of_a_dataset_with_outputs_is_no_draft(changeable: Deployment) -> None:
    """Its schedules and its own retention stop, and that must not pass unseen."""
    settings = changeable.settings
    contract = settings.contracts / "people.yaml"
    contract.write_text(re.sub(r"(?m)^description:.*$", "description:", contract.read_text()))
    seen, listed = overview.overview(settings, REVIEWER), datasets.datasets(settings, REVIEWER)
    assert seen.drafts == listed.drafts == ()
    assert len(seen.faults) == len(listed.faults) == 1 and "description: not filled in" in seen.faults[0]
    assert "contract_faults" in {sensor.name for sensor in build_definitions(settings).sensors or ()}


def test_a_dataset_without_a_contract_keeps_its_page(changeable: Deployment) -> None:
    """Releases, entries and lineage link to it."""
    settings = changeable.settings
    assert datasets.gone(settings, REVIEWER, "people") is None
    made = datasets.dataset(settings, REVIEWER, "people")
    (settings.contracts / "people.yaml").unlink()
    left = datasets.gone(settings, REVIEWER, "people")
    assert left is not None and (left.entries, left.releases) == (made.entries, made.releases)
    assert left.releases and left.entries
    assert datasets.gone(settings, REVIEWER, "none_such") is None
    page = markup.render("gone.html.j2", view=left, may=lambda _: True, Action=Action)
    assert "No contract declares this dataset any more" in page and left.releases[0].id in page


def test_errors_that_are_kept_hold_no_frames(changeable: Deployment) -> None:
    """Frames keep what their callers work at, such as a request."""
    settings = changeable.settings
    add_bad_files(settings.contracts, (settings.contracts / "people.yaml").read_text())
    add_bad_files(settings.families, (settings.families / "tests.yaml").read_text())
    catalogue.catalogue(settings)
    kept = [*catalogue._CONTRACTS._values.values(), *catalogue._FAMILIES._values.values()]
    errors = [error for _, error in kept if isinstance(error, ContractError)]
    assert len(errors) > 2
    assert not [item for item in errors if item.__traceback__ or item.__context__ or item.__cause__]


def test_a_draft_is_a_state_and_no_fault(changeable: Deployment) -> None:
    """Nobody is alarmed by work that goes on; the draft's own command says what is missing."""
    settings = changeable.settings
    before = overview.overview(settings, REVIEWER)
    assert (before.faults, before.drafts) == ((), ())
    pq.write_table(small_table(), settings.home / "visits.parquet")
    made = changeable.here(
        "contract",
        "init",
        str(settings.home / "visits.parquet"),
        "--out",
        str(settings.contracts / "new.yaml"),
        "--family",
        "newcomers",
    )
    assert made.returncode == 0, made.stderr
    (settings.contracts / "broken.yaml").write_text("columns: {x: 2026-02-30")
    seen, listed = overview.overview(settings, REVIEWER), datasets.datasets(settings, REVIEWER)
    assert seen.drafts == ("new", "newcomers (a family)") and listed.drafts == ("new",)
    assert len(seen.faults) == len(listed.faults) == 1 and "broken" in seen.faults[0]
    assert len(load_all(settings)[1]) == 2
    with pytest.raises(NotFound, match=r"columns\.region\.type: not filled in"):
        datasets.dataset(settings, REVIEWER, "new")
    shown = datasets.draft(settings, REVIEWER, "new")
    assert shown is not None and shown.draft
    assert {"columns.region.type", "privacy.unit"} <= set(shown.empty)
    assert shown.faults == ()
    page = markup.render("draft.html.j2", view=shown)
    assert page.count("not filled in") == 1 and all(f"<code>{key}</code>" in page for key in shown.empty)
    broken = datasets.draft(settings, REVIEWER, "broken")
    assert broken is not None and not broken.draft and len(broken.faults) == 1
    assert datasets.draft(settings, REVIEWER, "people") is datasets.draft(settings, REVIEWER, "none_such") is None

    (settings.contracts / "broken.yaml").unlink()
    assert "contract_faults" not in {sensor.name for sensor in build_definitions(settings).sensors or ()}
    checked = changeable.dpsynth("contract", "check", "new")
    assert checked.returncode == 1 and "privacy.unit: not filled in" in checked.stderr


def test_a_candidate_without_a_contract_waits_for_it(changeable: Deployment) -> None:
    settings, why = changeable.settings, "nobody can decide until its contract"

    def stuck() -> set[str | None]:
        return {item.dataset for item in overview.overview(settings, REVIEWER).waiting if why in item.why}

    assert stuck() == set()
    (settings.contracts / "second.yaml").unlink()
    assert stuck() == {"second"}
