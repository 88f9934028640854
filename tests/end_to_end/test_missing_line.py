"""A column of which hardly a value is as declared: said wherever it is seen, and refused where a contract asks."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deployment import Deployment
from inside import inside, worker_inside
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates, releases
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.release.evidence import check_content
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing import accounts, decisions
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.synth.tabular.missing import FILE

pytestmark = pytest.mark.end_to_end

SPELLING = "MARKEDSPELLING"


def misspelt() -> pa.Table:
    """The small table, whose regions are none of the declared ones, as they are spelt; but of a few owners.

    It has 6,000 people, so that these few are below a tenth of its held-out rows, too, whoever is held out.
    """
    table = small_table(9000)
    few = set(table["person"].unique().to_pylist()[: LEAST_OWNERS + 5])  # with fewer, the run would stop unpaid
    pairs = zip(table["person"].to_pylist(), table["region"].to_pylist(), strict=True)
    region = [value if person in few else f"{SPELLING}-{value}" for person, value in pairs]
    return table.set_column(table.schema.get_field_index("region"), "region", pa.array(region))


def deployed(root: Path, **release: object) -> Deployment:
    deployment = Deployment(root, contract=copy.deepcopy(SMALL))
    deployment.contract["release"].update(release)
    return deployment.write().with_source(misspelt())


def spent(deployment: Deployment) -> list[str]:
    return [entry.entry_id for entry in ledger_of(deployment).entries() if entry.state == "spent"]


def test_it_is_said_in_every_place_and_stops_nothing_by_itself(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    settings = deployment.settings
    assert forecast(settings, "people", None).mostly_missing == ()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    (said,) = [words for words in ran.said["synthetic"] if "region" in words]
    assert said.startswith("Column region: about ")
    assert SPELLING not in said
    assert "compare the declared values" in said
    assert ran.materializations["synthetic"]["mostly missing or unlisted"] == said
    assert ("the last run", said) in forecast(settings, "people", None).rows()
    assert decisions.review(settings, PEOPLE).mostly_missing == (said,)
    rows = json.loads((storage_of(deployment).require(PEOPLE, "quality").directory / "rows.json").read_text())
    (row,) = [row for row in rows if row[0] == "share missing or unlisted, region"]
    assert row[1] == "0.000"
    assert float(row[2]) > 0.9  # all but the few, who have two rows each at most
    assert candidates.candidate(settings, frozenset(Action), "people").mostly_missing == (said,)

    again = run_here(deployment, accelerator=inside(deployment))
    assert said in again.said["synthetic"]
    assert again.materializations["synthetic"]["mostly missing or unlisted"] == said

    release = released(deployment)
    dossier = json.loads((release / "dossier.json").read_text())
    columns = {column["name"]: column.get("missing_or_unlisted") for column in dossier["synthetic"]["columns"]}
    assert columns["region"]["at_least"] > 0.5
    assert columns["score"]["share"] < 0.3
    assert columns["person"] is None
    (public,) = dossier["synthetic"]["mostly_missing"]
    assert public.startswith("Column region")
    assert "compare" not in public
    assert public in (release / "dossier.html").read_text()
    assert verify_release(release).ok
    assert releases.release(settings, frozenset(Action), release.name).dossier.mostly_missing == (public,)
    # The counts say how many are unlisted, and never which.
    drawn = storage_of(deployment).require(PEOPLE, "synthetic").directory
    files = [path for path in (*release.rglob("*"), *drawn.rglob("*")) if path.is_file()]
    assert not [path for path in files if SPELLING.encode() in path.read_bytes()]


def test_a_contract_may_refuse_them_and_another_limit_spends_nothing(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, max_missing={"region": 0.5})
    deployment.contract["columns"]["region"] = {"type": "categorical", "values": "learned"}
    deployment.write()  # of so few made-up rows no value can be learned, which says nothing of the source
    with worker_inside():
        assert rehearse(deployment.settings, build_definitions, "people", None, 400, lambda _: None)["success"]
    deployment.contract["columns"]["region"] = SMALL["columns"]["region"]
    deployment.write()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert not ran.success
    refusal = ran.failures["synthetic"]
    assert "region" in refusal
    assert "score" not in refusal
    assert "release.max_missing" in refusal
    assert SPELLING not in refusal
    entries = spent(deployment)
    assert len(entries) == 1
    assert storage_of(deployment).read(PEOPLE, "synthetic") is None

    deployment.contract["release"]["max_missing"] = {"score": 0.9}
    deployment.write()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert spent(deployment) == entries

    # What was drawn under one limit is no candidate under another, also where nobody runs the step again.
    deployment.contract["release"]["max_missing"] = 0.5
    deployment.write()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert "region" in ran.failures["synthetic"]
    contract = decisions.sealed_contract(storage_of(deployment), PEOPLE)
    with pytest.raises(ReleaseRefused, match=r"release\.max_missing"):
        check_content(storage_of(deployment), PEOPLE, contract, accounts.ledger(deployment.settings))
    assert spent(deployment) == entries


def test_rows_of_before_there_was_a_limit_are_drawn_again_where_one_is_set(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    assert run_here(deployment, accelerator=inside(deployment)).success
    record = storage_of(deployment).require(PEOPLE, "synthetic")
    (record.directory / FILE).unlink()  # as an earlier version of the platform left it
    deployment.contract["release"]["max_missing"] = 0.5
    deployment.write()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert "region" in ran.failures["synthetic"]
    assert len(spent(deployment)) == 1
