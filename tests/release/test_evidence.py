from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage, digest_directory
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent, Decision
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance, Finding
from dpsynth_platform.release.evidence import (
    Candidate,
    CheckedEvidence,
    candidate_of,
    candidate_runners,
    check_content,
    check_evidence,
    check_new_findings,
    check_unchanged,
    clearance_of,
)

PLACE = Place("visits")
RUN = "run-1"
ENTRY, PLAN = "entry-1", "9a" * 32
CANARIES = "ca" * 32
RUNNER = "ada"
CLEARED = Clearance("compose", "compose", "nothing is known", (), None, (), (), (), None)


@dataclass(frozen=True)
class Request:
    runner: str = "hopper"


@dataclass(frozen=True)
class Entry:
    state: str
    plan_digest: str
    model_digest: str | None
    request: Request = field(default_factory=Request)


@dataclass
class FakeLedger:
    """Holds one entry, and hands out decisions in the order in which they were made."""

    held: Entry
    decisions: list[Decision] = field(default_factory=list)
    events: list[ChainEvent] = field(default_factory=list)

    def entry(self, entry_id: str) -> Entry:
        if entry_id != ENTRY:
            raise LedgerError("there is no such entry")
        return self.held

    def approvals(self, candidate: str, entry_id: str) -> list[Decision]:
        return [item for item in self.decisions if item.candidate == candidate]

    def history(self, *, kinds: Any = None, subject: str | None = None) -> list[ChainEvent]:
        return [item for item in self.events if item.kind in kinds and item.subject == subject]

    def record(self, kind: str, subject: str, payload: dict[str, Any]) -> None:
        number = len(self.events) + 1
        self.events.append(ChainEvent(number, "2026-11-20T00:00:00+00:00", kind, subject, payload, "", ""))

    def decide(self, candidate: str, decision: Any, by: str) -> None:
        number = len(self.decisions) + 1
        at, release = f"2026-11-20T0{number}:00:00+00:00", "visits-1" if decision == "withdraw" else None
        self.decisions.append(Decision(candidate, decision, by, at, ENTRY, "", number, release))


def write(storage: Storage, step: str, content: str, inputs: list[StepRecord], facts: dict[str, Any]) -> StepRecord:
    name = "report.json" if step == "audit" else "content"
    with storage.new_output(PLACE, step) as directory:
        (directory / name).write_text(content)
        if step == "model":
            (directory / "claim.json").write_text(json.dumps({"canaries": CANARIES}))
        return storage.record(PLACE, step, run_key=RUN, directory=directory, inputs=inputs, facts=facts, runner=RUNNER)


@dataclass
class Line:
    """A line that could be released, with every part of its evidence in place."""

    storage: Storage
    contract: DataContract
    ledger: FakeLedger

    @classmethod
    def complete(cls, root: Path, contract: DataContract) -> Line:
        storage = Storage(root)
        raw = write(storage, "raw", "rows", [], {"method": "mst", "why_method": "it is declared"})
        names = {"entry_id": ENTRY, "plan_digest": PLAN}
        found = {CLEARANCE: CLEARED.to_json()}
        clearance = storage.record(PLACE, "clearance", run_key=RUN, facts=names | found, runner="charles")
        model = write(storage, "model", "model", [raw, clearance], names)
        write(storage, "synthetic", "synthetic", [model], {})
        line = cls(storage, contract, FakeLedger(Entry("spent", PLAN, model.content_hash)))
        line.write_audit(json.dumps({"verdict": "pass"} | contract.audit_terms))
        line.ledger.decide(line.candidate, "approve", "grace")
        return line

    @property
    def candidate(self) -> str:
        return candidate_of(self.storage, PLACE, self.contract, self.ledger).digest

    def record(self, step: str) -> StepRecord:
        return self.storage.require(PLACE, step)

    def check(self) -> CheckedEvidence:
        runners = candidate_runners(self.storage, PLACE)
        return check_evidence(self.storage, PLACE, self.contract, self.ledger, runners=runners)

    def write_audit(self, report: str, canaries: str = CANARIES) -> None:
        bait = StepRecord("canaries", "visits", None, RUN, None, canaries, "now")
        write(self.storage, "audit", report, [self.record("model"), self.record("synthetic"), bait], {})

    def audit(self, report: str, canaries: str = CANARIES) -> None:
        self.write_audit(report, canaries)
        self.ledger.decide(self.candidate, "approve", "grace")


@pytest.fixture
def line(tmp_path: Path, contract: DataContract) -> Line:
    return Line.complete(tmp_path / "restricted", contract)


def refused(line: Line, *words: str) -> None:
    with pytest.raises(ReleaseRefused) as caught:
        line.check()
    for word in words:
        assert word in str(caught.value)


def test_complete_evidence_holds(line: Line) -> None:
    checked = line.check()
    assert checked.candidate.digest == line.candidate
    assert checked.candidate.entry_id == ENTRY
    assert checked.audit_report["verdict"] == "pass"
    assert checked.records["synthetic"] == line.record("synthetic")
    assert [item.by for item in checked.approvals] == ["grace"]


def test_every_part_of_a_candidate_changes_its_digest(line: Line) -> None:
    candidate = candidate_of(line.storage, PLACE, line.contract, line.ledger)
    for name in Candidate.__dataclass_fields__:
        assert replace(candidate, **{name: "other"}).digest != candidate.digest


@pytest.mark.parametrize("step", ["raw", "clearance", "model", "synthetic", "audit"])
def test_a_missing_record_is_named(line: Line, step: str) -> None:
    (line.storage.root / "visits" / "all" / f"{step}.json").unlink()
    refused(line, "missing or stale", f"visits/{step}")


@pytest.mark.parametrize("step", ["clearance", "model", "synthetic", "audit"])
def test_a_record_of_another_run_is_stale(line: Line, step: str) -> None:
    edit(line, step, run_key="run-2")
    refused(line, "missing or stale", f"visits/{step}")


@pytest.mark.parametrize("step", ["model", "synthetic", "audit"])
def test_an_output_that_is_gone_or_changed_is_named(line: Line, step: str) -> None:
    directory = line.record(step).directory
    (directory / "more").write_text("x")
    refused(line, f"visits/{step}: its content is not what was recorded")
    shutil.rmtree(directory)
    refused(line, "missing or stale", f"visits/{step}")


def expire(line: Line, step: str = "model", **said: str) -> None:
    """As the sweep does; or otherwise."""
    directory = line.record(step).directory
    shutil.rmtree(directory)
    line.ledger.record(chain.PURGED, "visits", {"step": step, "output": directory.name, "reason": "expired"} | said)


def complete(line: Line) -> None:
    """Recorded as a candidate, as the step audit does."""
    line.ledger.record(chain.CANDIDATE, line.candidate, {"entry": ENTRY})


def test_the_ledgers_digest_stands_for_a_model_that_has_expired(line: Line) -> None:
    complete(line)
    before = line.check()
    expire(line)
    assert line.check() == before
    assert candidate_of(line.storage, PLACE, line.contract, line.ledger, read=False).digest == line.candidate
    line.ledger.held = replace(line.ledger.held, model_digest="0" * 64)
    refused(line, "pays for another model than the present one")


@pytest.mark.parametrize(
    "said",
    [{"reason": "superseded"}, {"reason": "erasure"}, {"output": "another"}, {"more": "of it"}],
)
def test_a_model_that_no_sweep_deleted_for_its_age_is_missing(line: Line, said: dict[str, str]) -> None:
    complete(line)
    expire(line, **said)
    refused(
        line, "missing or stale", "visits/model: its output is gone, and the ledger does not record that it expired"
    )
    with pytest.raises(ReleaseRefused, match="missing or stale"):
        candidate_of(line.storage, PLACE, line.contract, line.ledger, read=False)


def test_a_model_that_somebody_deleted_is_not_excused_by_the_age_of_another(line: Line) -> None:
    complete(line)
    line.ledger.record(chain.PURGED, "visits/2026-01", {"step": "model", "output": "m", "reason": "expired"})
    expire(line, output="m")
    refused(line, "missing or stale", "visits/model: its output is gone")


@pytest.mark.parametrize("step", ["synthetic", "audit", "clearance"])
def test_nothing_is_made_anew_in_the_absence_of_the_model(line: Line, step: str) -> None:
    """Though every record names the others."""
    complete(line)
    expire(line)
    model, found = line.record("model"), {CLEARANCE: CLEARED.to_json() | {"reason": "nothing at all"}}
    if step == "clearance":
        line.storage.record(PLACE, "clearance", run_key=RUN, facts=line.record("clearance").facts | found)
        edit(line, "model", inputs=model.inputs | {"clearance": line.record("clearance").content_hash})
    if step == "synthetic":
        write(line.storage, "synthetic", "what I like better", [model], {})
    if step != "clearance":
        line.write_audit(json.dumps({"verdict": "pass", "summary": "all is well"} | line.contract.audit_terms))
    refused(line, "visits/model has expired, and the present candidate was not complete before")


def test_a_candidate_that_was_recorded_after_its_model_expired_is_none(line: Line) -> None:
    digest = line.candidate
    expire(line)
    line.ledger.record(chain.CANDIDATE, digest, {"entry": ENTRY})
    refused(line, "not complete before")


def test_a_candidate_of_another_entry_is_none(line: Line) -> None:
    line.ledger.record(chain.CANDIDATE, line.candidate, {"entry": "entry-2"})
    expire(line)
    refused(line, "not complete before")


def test_other_evidence_has_to_be_there_as_before(line: Line) -> None:
    complete(line)
    expire(line)
    (line.record("synthetic").directory / "more").write_text("x")
    refused(line, "visits/synthetic: its content is not what was recorded")
    expire(line, "synthetic")
    refused(line, "visits/synthetic: its output is gone", "and so is the model", "a cost of its own")


def test_what_can_be_made_again_says_so(line: Line) -> None:
    expire(line, "synthetic")
    refused(line, "materialize visits/synthetic again")


def test_changed_facts_of_the_clearance_are_noticed(line: Line) -> None:
    edit(line, "clearance", facts={"entry_id": "entry-2", "plan_digest": PLAN})
    refused(line, "visits/clearance: its content is not what was recorded")


@pytest.mark.parametrize(("step", "upstream"), [("synthetic", "model"), ("audit", "model"), ("audit", "synthetic")])
def test_what_was_made_from_something_else_is_stale(line: Line, step: str, upstream: str) -> None:
    inputs = line.record(step).inputs
    edit(line, step, inputs=inputs | {upstream: "0" * 64})
    refused(line, f"visits/{step} was made from another {upstream}")
    edit(line, step, inputs={key: value for key, value in inputs.items() if key != upstream})
    refused(line, f"visits/{step}: its record does not name the {upstream}")


def test_a_new_model_makes_all_later_evidence_stale(line: Line) -> None:
    write(line.storage, "model", "another model", [line.record("clearance")], line.record("model").facts)
    refused(line, "was made from another model")


@pytest.mark.parametrize("fact", ["entry_id", "plan_digest"])
def test_model_and_clearance_must_name_the_same(line: Line, fact: str) -> None:
    facts = line.record("model").facts
    edit(line, "model", facts=facts | {fact: "other"})
    refused(line, f"do not name the same {fact}")
    edit(line, "model", facts={key: value for key, value in facts.items() if key != fact})
    refused(line, "visits/model", fact)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "started"}, "is started, not spent"),
        ({"state": "void"}, "is void, not spent"),
        ({"plan_digest": "0" * 64}, "another plan"),
        ({"model_digest": "0" * 64}, "another model"),
        ({"model_digest": None}, "another model"),
    ],
)
def test_the_ledger_entry_must_have_paid_for_this_model(line: Line, change: dict[str, Any], words: str) -> None:
    line.ledger.held = replace(line.ledger.held, **change)
    refused(line, f"ledger entry {ENTRY}", words)


def test_an_unknown_ledger_entry_is_refused(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(entry_id: str) -> Entry:
        raise LedgerError("there is no such entry")

    monkeypatch.setattr(line.ledger, "entry", unknown)
    refused(line, f"ledger entry {ENTRY} cannot be read", "no such entry")


@pytest.mark.parametrize("report", [{"verdict": "fail"}, {}, {"verdict": "inconclusive"}, {"verdict": None}])
def test_only_a_passed_audit_counts(line: Line, report: dict[str, Any]) -> None:
    line.audit(json.dumps(report | line.contract.audit_terms))
    refused(line, "visits/audit: the verdict is", "not 'pass'")


def test_an_inconclusive_audit_says_what_each_way_out_costs(line: Line) -> None:
    line.audit(json.dumps({"verdict": "inconclusive"} | line.contract.audit_terms))
    refused(line, "accept_inconclusive why that is acceptable, which spends nothing")
    refused(line, "dpsynth plan visits", "may estimate how many", "a new run with a cost of its own")
    refused(line, "the reasons: dpsynth audit show visits")


@pytest.mark.parametrize("term", ["claimed_epsilon", "delta", "threshold", "confidence"])
def test_an_audit_on_other_terms_is_no_evidence(line: Line, term: str) -> None:
    terms = line.contract.audit_terms
    line.audit(json.dumps({"verdict": "pass"} | terms | {term: terms[term] / 2}))
    refused(line, "visits/audit was made on other terms")


@pytest.mark.parametrize(
    "laxer",
    [
        {"gates": ["nearest rows"]},
        {"cumulative": "report"},
        {"rate_limits": [{"false_positive_rate": 0.1, "true_positive_rate": 0.9}]},
    ],
)
def test_an_audit_by_a_policy_that_is_declared_no_more_is_no_evidence(line: Line, laxer: dict[str, Any]) -> None:
    """The contract once named the attacks that decide, say, and names none now."""
    undeclared = {"gates": None, "rate_limits": [], "cumulative": "gate"}
    line.audit(json.dumps({"verdict": "pass"} | line.contract.audit_terms | undeclared | laxer))
    refused(line, "visits/audit was made on other terms")
    line.audit(json.dumps({"verdict": "pass"} | line.contract.audit_terms | undeclared))
    assert line.check().audit_report["verdict"] == "pass"


def test_an_audit_with_other_canaries_is_no_evidence(line: Line) -> None:
    line.write_audit(json.dumps({"verdict": "pass"} | line.contract.audit_terms), canaries="0b" * 32)
    refused(line, "visits/audit was made with other canaries than the model was trained with")


def test_a_model_without_a_claim_is_no_evidence(line: Line) -> None:
    model = line.record("model")
    (model.directory / "claim.json").unlink()
    edit(line, "model", content_hash=digest_directory(model.directory))
    line.ledger.held = replace(line.ledger.held, model_digest=line.record("model").content_hash)
    synthetic = write(line.storage, "synthetic", "synthetic", [line.record("model")], {})
    assert synthetic.inputs["model"] == line.record("model").content_hash
    line.write_audit(json.dumps({"verdict": "pass"} | line.contract.audit_terms))
    refused(line, "visits/model: the model has no readable claim")


@pytest.mark.parametrize("report", ["{", "[]", ""])
def test_an_audit_report_that_is_none_is_refused(line: Line, report: str) -> None:
    line.audit(report)
    refused(line, "visits/audit: its report")


def test_an_inconclusive_audit_counts_where_the_contract_accepts_it(line: Line) -> None:
    audit = line.contract.audit.model_copy(update={"accept_inconclusive": "too few people for power"})
    accepting = line.contract.model_copy(update={"audit": audit})
    assert accepting.mechanism_snapshot() == line.contract.mechanism_snapshot(), "no other run, and so no other spend"
    line.contract = accepting
    line.audit(json.dumps({"verdict": "inconclusive"} | line.contract.audit_terms))
    assert line.check().audit_report["verdict"] == "inconclusive"
    line.audit(json.dumps({"verdict": "fail"} | line.contract.audit_terms))
    refused(line, "'fail'")


Decisions = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("needed", "decisions", "counted"),
    [
        (0, [], []),
        (1, [("approve", "grace")], ["grace"]),
        (1, [("approve", "grace"), ("approve", "Grace ")], ["grace"]),
        (2, [("approve", "grace"), ("approve", "alan")], ["grace", "alan"]),
        (1, [("refuse", "alan"), ("approve", "alan")], ["alan"]),
        (1, [("approve", "ada"), ("approve", "grace")], ["grace"]),
        (1, [], None),
        (2, [("approve", "grace"), ("approve", " GRACE")], None),
        (1, [("approve", "ada")], None),
        (1, [("approve", "Charles")], None),
        (1, [("approve", "grace"), ("refuse", "alan")], None),
        (0, [("refuse", "alan")], None),
        (0, [("refuse", "alan"), ("approve", "ada")], None),
        (2, [("approve", "grace"), ("refuse", "alan"), ("approve", "alan")], None),
        (1, [("approve", "grace"), ("withdraw", "alan")], None),
        (1, [("approve", "grace"), ("withdraw", "alan"), ("approve", "ALAN ")], None),
        (1, [("approve", "grace"), ("withdraw", "alan"), ("approve", "ada")], None),
        (1, [("approve", "alan"), ("withdraw", "alan"), ("approve", "grace")], ["grace"]),
        (0, [("withdraw", "alan")], None),
        (0, [("withdraw", "alan"), ("approve", "grace")], ["grace"]),
        (2, [("withdraw", "alan"), ("approve", "grace")], None),
    ],
)
def test_approvals(line: Line, needed: int, decisions: Decisions, counted: list[str] | None) -> None:
    release = line.contract.release.model_copy(update={"approvals": needed})
    line.contract = line.contract.model_copy(update={"release": release})
    line.ledger.decisions.clear()
    for decision, by in decisions:
        line.ledger.decide(line.candidate, decision, by)
    if counted is None:
        refused(line, "visits: ")
    else:
        assert [item.by for item in line.check().approvals] == counted


def test_a_withdrawal_is_named_with_the_way_out(line: Line) -> None:
    assert line.check().edition == 1
    line.ledger.decide(line.candidate, "withdraw", "alan")
    refused(line, "withdrawn as release visits-1 at 2026", "dpsynth release approve visits --after-withdrawal")
    line.ledger.decide(line.candidate, "approve", "grace")
    assert line.check().edition == 2


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ([], None),
        ([("approve", "alan")], None),
        ([("refuse", "alan")], "refused by alan"),
        ([("withdraw", "alan")], "withdrawn as release visits-1"),
        ([("refuse", "alan"), ("approve", "kay")], "approvals changed"),
        ([("withdraw", "alan"), ("approve", "grace")], "approvals changed"),
    ],
)
def test_what_was_decided_meanwhile_counts(line: Line, later: Decisions, words: str | None) -> None:
    """The dossier that was made ready names approvals, which must still be the ones that count."""
    checked = line.check()
    for decision, by in later:
        line.ledger.decide(line.candidate, decision, by)
    decisions = line.ledger.approvals(line.candidate, ENTRY)
    if words is None:
        check_unchanged(PLACE, line.contract, checked, decisions)
    else:
        with pytest.raises(ReleaseRefused, match=words):
            check_unchanged(PLACE, line.contract, checked, decisions)


def test_the_content_is_checked_without_the_approvals(line: Line) -> None:
    line.ledger.decisions.clear()
    refused(line, "0 of 1 approvals")
    checked = check_content(line.storage, PLACE, line.contract, line.ledger)
    assert (checked.candidate.digest, checked.approvals) == (line.candidate, ())
    line.write_audit(json.dumps({"verdict": "fail"} | line.contract.audit_terms))
    with pytest.raises(ReleaseRefused, match="the verdict is 'fail'"):
        check_content(line.storage, PLACE, line.contract, line.ledger)


@pytest.mark.parametrize("change", ["synthetic", "audit", "contract"])
def test_an_approval_is_for_exact_content(line: Line, change: str) -> None:
    model = line.record("model")
    if change == "contract":
        line.contract = line.contract.model_copy(update={"description": "Another one."})
    else:
        if change == "synthetic":
            write(line.storage, "synthetic", "other rows", [model], {})
        line.write_audit(json.dumps({"verdict": "pass", "x": 1} | line.contract.audit_terms))
    refused(line, "0 of 1 approvals")


def test_everyone_who_ran_a_step_counts_as_a_runner(line: Line) -> None:
    assert candidate_runners(line.storage, PLACE) == ("ada", "charles")


def edit(line: Line, step: str, **changes: Any) -> None:
    """Alters a record in place, as someone with access to the restricted zone could."""
    path = line.storage.root / "visits" / "all" / f"{step}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_clearance_that_does_not_say_what_it_found_is_no_evidence(line: Line) -> None:
    edit(line, "clearance", facts={"entry_id": ENTRY, "plan_digest": PLAN})
    record = line.record("clearance")
    with pytest.raises(ReleaseRefused, match="does not contain its findings"):
        clearance_of(PLACE, record)


def test_what_was_found_is_part_of_what_is_approved(line: Line) -> None:
    before = line.candidate
    assert (
        candidate_of(line.storage, PLACE, line.contract, line.ledger).clearance_hash
        == line.record("clearance").content_hash
    )
    assert before == replace(candidate_of(line.storage, PLACE, line.contract, line.ledger)).digest
    assert line.check().clearance == CLEARED


def test_what_was_found_since_stops_a_release() -> None:
    finding = Finding("base-model", ("B", "base A", "paid-by e"), "e", "clinic", "visits")
    check_new_findings(PLACE, CLEARED, CLEARED)
    check_new_findings(PLACE, replace(CLEARED, findings=(finding,)), CLEARED)  # what is known no more is no news
    with pytest.raises(ReleaseRefused, match="found since its clearance: a mechanism upstream") as caught:
        check_new_findings(PLACE, CLEARED, replace(CLEARED, findings=(finding,)))
    assert "dpsynth run visits" in str(caught.value)
    with pytest.raises(ReleaseRefused, match="would not be cleared any more: somebody"):
        check_new_findings(PLACE, CLEARED, replace(CLEARED, decision="refuse", reason="somebody told"))
