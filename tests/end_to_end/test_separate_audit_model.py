"""A second model for the audit: paid for, trained before the released one, attacked in its place, never released."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import InProcessAccelerator, inside
from line_cases import PEOPLE, add_dataset, ledger_of, lineage_of, released, run_here, small_deployment, small_table
from line_cases import storage_of as storage

from assets.line import WITH_AUDIT_MODEL
from dpsynth_platform.audit.canaries import is_canary, read_canaries
from dpsynth_platform.console.roles import ALLOWED
from dpsynth_platform.console.views import datasets, families, releases
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.storage import MODELS, digest_directory, read_table, steps_of
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.lifecycle.retention import due
from dpsynth_platform.lineage.records import SyntheticRecord
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json, twice
from dpsynth_platform.release.evidence import candidate_of
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.planning import audited_key, load_dataset
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_canaries
from dpsynth_platform.worker.job import WorkerJob

pytestmark = pytest.mark.end_to_end


def apart(root: Path, *, cap: float = 6.0, **privacy: Any) -> Deployment:
    """The small contract with a second model, and the quickest of methods."""
    deployment = small_deployment(root, **privacy)
    deployment.contract["audit"]["model"] = "separate"
    deployment.contract["audit"]["canary_rows"] = ["random", "plausible"]
    deployment.contract["generate"] |= {
        "method": "independent",
        "constraints": [{"forbid": {"region": "north", "outcome": "yes"}}],
    }
    deployment.family["cap"]["epsilon"] = cap
    return deployment.write()


def stopping(deployment: Deployment, at: str) -> InProcessAccelerator:
    """A worker that is killed in one step's mechanism."""

    class Stopping(InProcessAccelerator):
        def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
            work = super().runner(context)

            def run(job: WorkerJob) -> None:
                if Path(job.model).parent.name == at:
                    raise MechanismFailed("the worker was killed")
                work(job)

            return run

    return Stopping(device="cpu", logs=str(deployment.settings.restricted / "logs"))


def entries(deployment: Deployment) -> dict[str, list[Entry]]:
    """All attempts at each mechanism of the present run, by the step."""
    key = storage(deployment).require(PEOPLE, "raw").run_key
    ledger = ledger_of(deployment)
    return {"audited": ledger.attempts(audited_key(key)), "model": ledger.attempts(key)}


def states(deployment: Deployment) -> dict[str, list[str]]:
    return {step: [entry.state for entry in attempts] for step, attempts in entries(deployment).items()}


def owners_in(table: Path) -> list[str]:
    return sorted(pa.Table.from_batches(read_table(table, columns=["_owner"]))["_owner"].to_pylist())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Deployment, Path]:
    """A whole line after two mechanisms were cut short one after the other, and its release."""
    deployment = apart(tmp_path_factory.mktemp("apart"))

    # Killed in the first: the other one waits, and its people's budget is not touched.
    ran = run_here(deployment, accelerator=stopping(deployment, "audited"))
    assert ran.failures.keys() == {"audited"}
    assert states(deployment) == {"audited": ["started"], "model": ["reserved"]}
    assert "--spend-again" in run_here(deployment, accelerator=inside(deployment)).failures["clearance"]
    lost = entries(deployment)["audited"][0].entry_id

    # Killed between: the first one is spent once and for all.
    ran = run_here(deployment, spend_again=lost, accelerator=stopping(deployment, "model"))
    assert ran.failures.keys() == {"model"}
    assert states(deployment) == {"audited": ["started", "spent"], "model": ["void", "started"]}
    failed = run_here(deployment, accelerator=inside(deployment)).failures["clearance"]
    stopped = entries(deployment)["model"][1].entry_id
    assert f"--spend-again {stopped}" in failed

    ran = run_here(deployment, spend_again=stopped, accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert states(deployment) == {"audited": ["started", "spent"], "model": ["void", "started", "spent"]}
    assert set(ran.materializations) == set(steps_of(separate_audit_model=True)) - {"released"}
    return deployment, released(deployment)


def test_the_line_has_one_more_asset(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    definitions = build_definitions(deployment.settings)
    specs = {spec.key.path[-1]: spec for spec in definitions.resolve_all_asset_specs()}
    before = {step: {dep.asset_key.path[-1] for dep in spec.deps} for step, spec in specs.items()}
    assert tuple(step.name for step in WITH_AUDIT_MODEL) == steps_of(separate_audit_model=True)
    assert set(specs) == set(steps_of(separate_audit_model=True))
    assert before["audited"] == {"clearance", "canaries", "bounded"}
    assert before["model"] == {"clearance", "bounded", "audited"}
    assert before["audit"] == {"canaries", "model", "synthetic", "audited"}
    assert {asset.key.path[-1] for asset in definitions.assets if asset.op.pool == "accelerator"} == set(MODELS)
    assert specs["audited"].tags["dpsynth/zone"] == "restricted"


def test_both_are_spent_and_neither_again(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    ledger = ledger_of(deployment)
    head, live = ledger.head(), [item for item in ledger.entries() if item.live]
    assert len(live) == 4
    order = [event.subject for event in ledger.history(kinds=[chain.RESERVED])]
    paid = {step: attempts[-1] for step, attempts in entries(deployment).items()}
    assert order.index(paid["audited"].entry_id) < order.index(paid["model"].entry_id)
    assert str(paid["audited"].finished_at) < str(paid["model"].started_at)
    assert paid["audited"].plan_digest == paid["model"].plan_digest
    for steps in (None, ["audited"], ["model"], ["clearance", "bounded", "audited", "model"], ["audit"]):
        ran = run_here(deployment, steps=steps, accelerator=stopping(deployment, "model"))
        assert ran.success, ran.failures
    assert ledger.head() == head
    assert ledger.verify().ok


def test_the_same_people_are_in_both_and_canaries_in_one(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    bounded, canaries = (storage(deployment).require(PEOPLE, step).directory for step in ("bounded", "canaries"))
    plain, baited = owners_in(bounded / "table"), owners_in(bounded / "audited")
    bait = [owner for owner in baited if is_canary(owner)]
    assert not any(map(is_canary, plain))
    assert plain == [owner for owner in baited if not is_canary(owner)]
    assert bait == sorted(read_canaries(canaries / "table").joining["_owner"].to_pylist())
    assert len(bait) > 0
    ledger, paid = ledger_of(deployment), entries(deployment)
    one, other = (ledger.participants(paid[step][-1].entry_id) for step in ("audited", "model"))
    assert one.tolist() == other.tolist()


def test_what_each_was_trained_with_is_claimed(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    audited, model, canaries = (storage(deployment).require(PEOPLE, step) for step in ("audited", "model", "canaries"))
    assert claimed_canaries(audited.directory) == canaries.content_hash
    assert claimed_canaries(model.directory) == NO_CANARIES
    assert set(model.inputs) == {"bounded", "clearance"}


def test_the_dossier_promises_both_together(done: tuple[Deployment, Path]) -> None:
    deployment, path = done
    dossier = json.loads((path / "dossier.json").read_text(encoding="utf-8"))
    paid = entries(deployment)
    event = event_from_json(paid["model"][-1].request.event)
    both = epsilon(twice(event), 1e-6)
    assert dossier["guarantee"]["epsilon"] == both.epsilon > 1.2 * epsilon(event, 1e-6).epsilon
    assert dossier["statement"]["accounting"]["epsilon_by_renyi"] == both.renyi
    assert dossier["audit"]["report"]["apart"] == {
        "entry": paid["audited"][-1].entry_id,
        "plan_digest": paid["model"][-1].plan_digest,
        "together": both.epsilon,
    }
    assert dossier["ledger"]["entry"] == paid["model"][-1].entry_id
    started = [entry for entry in ledger_of(deployment).entries() if entry.started_at is not None]
    assert dossier["ledger"]["budget"]["mechanisms_before"] == len(started) - 2, "both mechanisms are the release's own"
    assert dossier["audit"]["report"]["cost"] is None
    assert "the release holds none of them" in dossier["audit"]["report"]["summary"]
    assert "audited" in dossier["commitments"]
    steps = {item["step"]: item["inputs"] for item in dossier["lineage"]["steps"]}
    assert steps["audit"] == ["canaries", "model", "synthetic", "audited"]
    assert steps["model"] == ["clearance", "bounded"]
    # The other started entries: neither is a choice by results, both failed attempts are told.
    assert dossier["statement"]["tuning"]["runs"] == 0
    assert any("2 earlier attempts" in said for said in dossier["statement"]["not_covered"])
    # What was known before: the failed attempts and the second model, which are composed with it.
    assert len(dossier["clearance"]["findings"]) == 3
    assert dossier["clearance"]["together"]["mechanisms"] == 4
    assert verify_release(path).ok


def test_the_record_of_the_release_is_of_both(done: tuple[Deployment, Path]) -> None:
    deployment, path = done
    dossier = json.loads((path / "dossier.json").read_text(encoding="utf-8"))
    store = LineageStore(deployment.settings.ledger_url)
    record = SyntheticRecord.of(store, ledger_of(deployment), path.name)
    assert record.dp.epsilon == dossier["guarantee"]["epsilon"]
    assert record.dp.event == dossier["statement"]["event"]
    assert list(record.dp.covered) == dossier["statement"]["covered"]
    paid, checks = entries(deployment), record.further_checks
    assert (checks.ledger_entry, checks.commitment) == (paid["model"][-1].entry_id, paid["model"][-1].commitment)
    assert checks.audited is not None
    audited = paid["audited"][-1]
    assert (checks.audited.ledger_entry, checks.audited.commitment) == (audited.entry_id, audited.commitment)


def test_each_set_of_canaries_has_results_of_its_own(done: tuple[Deployment, Path]) -> None:
    deployment, path = done
    bait = read_canaries(storage(deployment).require(PEOPLE, "canaries").directory / "table")
    of_kinds = dict(zip(bait.owners, bait.kinds, strict=True))
    assert sorted(of_kinds.values()) == ["plausible"] * 30 + ["random"] * 30
    impossible = {
        of_kinds[row["_owner"]] for row in bait.table.to_pylist() if (row["region"], row["outcome"]) == ("north", "yes")
    }
    assert "plausible" not in impossible
    report = json.loads((path / "dossier.json").read_text(encoding="utf-8"))["audit"]["report"]
    assert {item["kind"] for item in report["of_kinds"]} == {"random", "plausible"}
    assert "By kind of canary" in report["summary"]


def test_the_audit_says_that_the_release_promises_more_than_the_claim_which_it_tested(
    done: tuple[Deployment, Path],
) -> None:
    _, path = done
    dossier = json.loads((path / "dossier.json").read_text(encoding="utf-8"))
    report, both = dossier["audit"]["report"], dossier["guarantee"]["epsilon"]
    assert report["claimed_epsilon"] == 1.0 < both
    assert report["apart"]["together"] == pytest.approx(both)
    assert f"guarantee is for both models together, epsilon {upper_bound(both, 4)}" in report["summary"]


def test_the_second_model_has_a_place_in_the_lineage(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    graph = lineage_of(deployment)
    made = {node.job: node for node in graph.runs.values() if node.state == "COMPLETE"}
    assert {"people.audited", "people.model"} <= set(made)


def test_the_forecast_tells_the_cost_of_both(done: tuple[Deployment, Path]) -> None:
    deployment, path = done
    found = forecast(deployment.settings, "people", None)
    dossier = json.loads((path / "dossier.json").read_text(encoding="utf-8"))
    assert found.claimed == pytest.approx(dossier["guarantee"]["epsilon"])
    assert "second, equal model" in dict(found.rows())["canaries"]
    assert found.standing == entries(deployment)["model"][-1].entry_id


def test_the_console_shows_both_and_counts_releases(done: tuple[Deployment, Path]) -> None:
    deployment, path = done
    allowed, ledger = ALLOWED["engineer"], ledger_of(deployment)
    (row,) = families.family(deployment.settings, allowed, "tests").remaining or ()
    mechanisms = ledger.remaining("tests", entries(deployment)["model"][-1].request, most=1000)
    assert row.releases == mechanisms // 2 < mechanisms
    shown = datasets.dataset(deployment.settings, allowed, "people")
    assert (shown.row.guarantee.epsilon, shown.row.guarantee.tier) == (1.0, None)
    assert "each of two mechanisms" in shown.row.guarantee.words
    (period,) = shown.periods
    assert tuple(step.step for step in period.steps if step.current) == steps_of(separate_audit_model=True)
    assert period.candidate
    record = storage(deployment).record_path(PEOPLE, "audited")
    kept = record.read_bytes()
    record.unlink()
    (lacking,) = datasets.dataset(deployment.settings, allowed, "people").periods
    record.write_bytes(kept)
    assert not lacking.candidate
    release = releases.release(deployment.settings, allowed, path.name)
    assert release.dossier is not None
    assert release.row.guarantee == release.dossier.guarantee
    assert release.dossier.guarantee.tier == "reasonable"


def test_both_models_expire_together(done: tuple[Deployment, Path]) -> None:
    deployment, _ = done
    contract, _ = load_dataset(deployment.settings, "people")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=8)
    expired = {item.step for item in due(storage(deployment), [contract], later)}
    assert {"audited", "model", "canaries", "scores"} <= expired
    soon = {item.step for item in due(storage(deployment), [contract], later - dt.timedelta(days=6))}
    assert not {"audited", "model", "canaries"} & soon


@pytest.mark.parametrize("how", ["files", "record", "model", "entry", "report"])
def test_an_exchanged_audited_model_is_no_evidence(done: tuple[Deployment, Path], tmp_path: Path, how: str) -> None:
    """Last in the file: each case mends what it breaks."""
    deployment, _ = done
    place, kept = storage(deployment), {}
    for step in ("audited", "model", "audit", "clearance"):
        path = place.record_path(PEOPLE, step)
        kept[path] = path.read_bytes()
    audited, model = place.require(PEOPLE, "audited"), place.require(PEOPLE, "model")
    files, safe = audited.directory, tmp_path / "safe"
    shutil.copytree(files, safe)
    path = place.record_path(PEOPLE, "audited")
    document = json.loads(kept[path])
    if how == "files":
        (files / "more").write_text("x", encoding="utf-8")
        words = "people/audited: its content is not what was recorded"
    elif how == "record":
        (files / "more").write_text("x", encoding="utf-8")
        document["content_hash"] = digest_directory(files)
        words = "people/audit was made from another audited than the present one"
    elif how == "model":
        document |= {"path": str(model.directory), "content_hash": model.content_hash}
        words = "people/audit was made from another audited than the present one"
    elif how == "entry":
        document["facts"]["entry_id"] = model.facts["entry_id"]
        words = "audited names another entry than clearance"
    else:
        report = place.require(PEOPLE, "audit").directory / "report.json"
        kept[report] = report.read_bytes()
        said = json.loads(kept[report])
        said["apart"] = None
        report.write_text(json.dumps(said), encoding="utf-8")
        audit = place.record_path(PEOPLE, "audit")
        changed = json.loads(kept[audit]) | {"content_hash": digest_directory(report.parent)}
        audit.write_text(json.dumps(changed), encoding="utf-8")
        words = "/audit attacked another model"
    path.write_text(json.dumps(document), encoding="utf-8")
    try:
        assert words in run_here(deployment, "people_release").failures["released"]
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
        shutil.rmtree(files)
        shutil.copytree(safe, files)
    contract, _ = load_dataset(deployment.settings, "people")
    assert candidate_of(place, PEOPLE, contract, ledger_of(deployment)).audited_hash == audited.content_hash


def test_a_cap_for_one_of_two_spends_nothing(tmp_path: Path) -> None:
    deployment = apart(tmp_path, cap=1.25)
    ran = run_here(deployment, accelerator=inside(deployment))
    assert "2 times over) does not fit" in ran.failures["raw"]
    assert ledger_of(deployment).entries() == []
    found = forecast(deployment.settings, "people", None)
    assert not found.fits
    assert "2 times over" in str(found.refusal)


def test_what_is_spent_meanwhile_leaves_neither(tmp_path: Path) -> None:
    deployment = apart(tmp_path, cap=1.6)
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries"]).success
    deployment.contract["audit"]["model"] = "shared"
    add_dataset(deployment, "others", small_table())
    assert run_here(deployment, "others_candidate", steps=["raw", "scrubbed", "canaries", "clearance"]).success
    refused = run_here(deployment, steps=["clearance"]).failures["clearance"]
    assert "2 times over) does not fit" in refused
    assert [entry.request.dataset for entry in ledger_of(deployment).entries()] == ["others"]


def test_a_reservation_that_expires_between_is_refused_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = apart(tmp_path)
    assert run_here(
        deployment,
        steps=["raw", "scrubbed", "canaries", "clearance", "bounded", "audited"],
        accelerator=inside(deployment),
    ).success
    spent = entries(deployment)["audited"][0]
    assert (spent.state, states(deployment)["model"]) == ("spent", ["reserved"])
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=25)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "now", lambda: later)
        failed = run_here(deployment, steps=["model"], accelerator=inside(deployment)).failures["model"]
    assert "has expired; materialize clearance again" in failed
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert states(deployment) == {"audited": ["spent"], "model": ["void", "spent"]}
    assert entries(deployment)["audited"] == [spent]


def test_the_released_models_mechanism_waits_for_the_other_one(tmp_path: Path) -> None:
    deployment = apart(tmp_path)
    steps = ["raw", "scrubbed", "canaries", "clearance", "bounded"]
    assert run_here(deployment, steps=steps, accelerator=inside(deployment)).success
    failed = run_here(deployment, steps=["model"], accelerator=inside(deployment)).failures["model"]
    assert "people/audited has not completed" in failed
    assert states(deployment) == {"audited": ["reserved"], "model": ["reserved"]}


def test_other_constraints_are_other_plausible_canaries(tmp_path: Path) -> None:
    """Canaries of an earlier list might be a handful of rows, of which nobody could tell who was in."""
    deployment = apart(tmp_path)
    assert run_here(deployment, steps=["raw", "canaries"], accelerator=inside(deployment)).success
    before = storage(deployment).require(PEOPLE, "canaries")
    deployment.contract["generate"]["constraints"] = [{"forbid": {"region": "south", "outcome": "no"}}]
    deployment.write()
    assert run_here(deployment, steps=["raw", "canaries"], accelerator=inside(deployment)).success
    after = storage(deployment).require(PEOPLE, "canaries")
    assert after.run_key != before.run_key and after.content_hash != before.content_hash
    rows_now = read_canaries(after.directory / "table").values.to_pylist()
    assert any(row["region"] == "north" and row["outcome"] == "yes" for row in rows_now)
    # Constraints that leave next to nothing are refused, before anything is reserved.
    deployment.contract["generate"]["constraints"] = [{"only": [{"region": "south", "outcome": "no", "score": 1}]}]
    deployment.write()
    ran = run_here(deployment, steps=["raw", "canaries"], accelerator=inside(deployment))
    assert "only 1 differ" in ran.failures["canaries"]
    assert ledger_of(deployment).entries() == []


def test_no_second_mechanism_starts_once_nothing_can_be_audited(tmp_path: Path) -> None:
    deployment = apart(tmp_path)
    steps = ["raw", "scrubbed", "canaries", "clearance", "bounded", "audited"]
    assert run_here(deployment, steps=steps, accelerator=inside(deployment)).success
    table = storage(deployment).require(PEOPLE, "canaries").directory / "table"
    (table / "more").write_text("")
    ran = run_here(deployment, steps=["model"], accelerator=inside(deployment))
    assert "there could be no audit" in ran.failures["model"]
    (table / "more").unlink()
    shutil.rmtree(storage(deployment).require(PEOPLE, "audited").directory)
    ran = run_here(deployment, steps=["model"], accelerator=inside(deployment))
    assert "people/audited: its output is gone" in ran.failures["model"]
    assert states(deployment) == {"audited": ["spent"], "model": ["reserved"]}


def test_a_word_that_was_taken_may_be_said_again(tmp_path: Path) -> None:
    deployment = apart(tmp_path)
    run_here(deployment, accelerator=stopping(deployment, "audited"))
    (lost,) = entries(deployment)["audited"]
    run_here(deployment, spend_again=lost.entry_id, accelerator=stopping(deployment, "model"))
    assert states(deployment) == {"audited": ["started", "spent"], "model": ["void", "started"]}
    ran = run_here(deployment, spend_again=lost.entry_id, accelerator=inside(deployment))
    assert "--spend-again" in ran.failures["clearance"]  # the word is for the other mechanism, and taken
    assert states(deployment) == {"audited": ["started", "spent"], "model": ["void", "started"]}
    again = apart(tmp_path / "again")
    run_here(again, accelerator=stopping(again, "audited"))
    (lost,) = entries(again)["audited"]
    steps = ["clearance", "bounded", "audited"]
    assert run_here(again, spend_again=lost.entry_id, steps=steps, accelerator=inside(again)).success
    ledger_of(again).void(entries(again)["model"][-1].entry_id, "given back")
    ran = run_here(again, spend_again=lost.entry_id, accelerator=inside(again))
    assert ran.success, ran.failures
    assert states(again)["audited"] == ["started", "spent"]
