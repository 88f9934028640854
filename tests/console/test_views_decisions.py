"""What waits, and deciding on it: by those who may, on exactly what they saw."""

import datetime as dt
from dataclasses import replace

import pytest
from filled_cases import PEOPLE, REFUSED, RELEASED, SECOND, WAITING, WHY_REFUSED
from line_cases import ledger_of, run_here, storage_of
from view_cases import release_of

from dpsynth_platform.console.roles import ALLOWED, Action
from dpsynth_platform.console.views import candidates, families, overview, releases
from dpsynth_platform.foundation.errors import ConfigurationError, NotAllowed, NotFound, ReleaseRefused
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.reviewing.withdrawing import withdraw
from dpsynth_platform.watching.metrics import of_deployment

pytestmark = pytest.mark.end_to_end
ENGINEER, REVIEWER, AUDITOR = (ALLOWED[role] for role in ("engineer", "reviewer", "auditor"))


def waiting(settings):
    return {(item.kind, item.title) for item in overview.overview(settings, REVIEWER).waiting}


def test_what_waits_is_what_a_person_can_do_something_about(filled):
    shown = overview.overview(filled.settings, REVIEWER)
    assert {(item.kind, item.title) for item in shown.waiting} == {
        ("candidate", "second"),
        ("candidate", WAITING.label),
        ("raise", "tests"),
    }
    assert [item.since for item in shown.waiting] == sorted(item.since for item in shown.waiting)
    by_title = {item.title: item for item in shown.waiting}
    assert by_title["second"].why.startswith("0 of 1 approval by people who did not run it; it can be approved until 2")
    assert by_title["tests"].why == "engineer asks for 2.5 -> 3, delta 1e-05; another person must approve it"
    assert (shown.datasets, shown.releases, shown.faults) == (3, 2, ())
    assert [row.place for row in shown.recent] == [RELEASED.label, "people"]


def test_a_candidate_says_where_it_stands_and_why(filled):
    settings = filled.settings
    states = {
        place: candidates.candidate(settings, REVIEWER, place.dataset, place.period)
        for place in (SECOND, REFUSED, RELEASED, WAITING)
    }
    assert [shown.state for shown in states.values()] == ["waiting", "refused", "published", "waiting"]
    (refusal,) = states[REFUSED].decisions
    assert (refusal.decision, refusal.by, refusal.reason) == ("refused", "second reader", WHY_REFUSED)
    assert states[RELEASED].release == release_of(settings, "visits")
    assert states[SECOND].runners == ("runner",)
    assert (states[SECOND].approvals, states[SECOND].approvals_needed) == (0, 1)
    standing, until = states[SECOND].standing.split("; it can be approved until ")
    assert standing == "the evidence holds; 0 of 1 approval by people who did not run it"
    assert until.endswith(" UTC, when its rows expire")
    none = candidates.candidate(settings, REVIEWER, "visits", "2025-11")
    assert (none.state, none.candidate, none.description) == ("none", None, "Visits, month by month.")
    with pytest.raises(NotFound, match="no contract declares it"):
        candidates.candidate(settings, REVIEWER, "nothing")


def test_a_candidate_stands_beside_the_release_before(filled):
    shown = candidates.candidate(filled.settings, REVIEWER, WAITING.dataset, WAITING.period).comparison
    assert (shown.previous, shown.previous_place) == (release_of(filled.settings, "visits"), RELEASED.label)
    found = {item.what: item for item in shown.differences}
    assert found["epsilon"].same
    assert found["contract"].now == "the same"
    assert found["rows"].same
    assert "approvals" not in found, "it has none yet, which is no difference"
    # The first release has none before it.
    assert releases.release(filled.settings, REVIEWER, shown.previous).comparison is None
    assert candidates.candidate(filled.settings, REVIEWER, "second").comparison is None


@pytest.mark.parametrize("may", [ENGINEER, AUDITOR, frozenset(Action) - {Action.DECIDE}])
def test_who_may_not_decide_decides_nothing(filled, may):
    settings, seen = filled.settings, candidates.candidate(filled.settings, REVIEWER, "second").seen
    before = ledger_of(filled).head()
    with pytest.raises(NotAllowed, match="decide"):
        candidates.approve(settings, may, "engineer", "second", seen=seen)
    with pytest.raises(NotAllowed, match="decide"):
        candidates.refuse(settings, may, "engineer", "second", seen=seen, reason="no")
    assert ledger_of(filled).head() == before


def test_the_librarys_rules_about_persons_and_words_hold(filled):
    settings, seen = filled.settings, candidates.candidate(filled.settings, REVIEWER, "second").seen
    before = ledger_of(filled).head()
    with pytest.raises(ReleaseRefused, match="ran this release"):
        candidates.approve(settings, REVIEWER, " Runner ", "second", seen=seen)
    with pytest.raises(ConfigurationError, match="is empty"):
        candidates.refuse(settings, REVIEWER, "reviewer", "second", seen=seen, reason="  ")
    with pytest.raises(ConfigurationError, match="control characters"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=seen, reason="two\nlines")
    with pytest.raises(ConfigurationError, match="is empty"):
        candidates.approve(settings, REVIEWER, "\u3164", "second", seen=seen)
    assert ledger_of(filled).head() == before


def test_nobody_decides_on_other_content_than_they_saw(changeable):
    """Between the page and the click, somebody draws other rows."""
    settings = changeable.settings
    seen = candidates.candidate(settings, REVIEWER, "second").seen
    storage_of(changeable).record_path(SECOND, "synthetic").unlink()
    ran = run_here(changeable, "second_candidate", steps=("synthetic", "audit"))
    assert ran.success, ran.failures
    now = candidates.candidate(settings, REVIEWER, "second").seen
    assert now not in (None, seen)
    with pytest.raises(ReleaseRefused, match="not the one that you looked at"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=seen)
    with pytest.raises(ReleaseRefused, match="not the one that you looked at"):
        candidates.refuse(settings, REVIEWER, "reviewer", "second", seen=seen, reason="no")


def test_nobody_approves_past_what_others_said_meanwhile(changeable):
    settings, before = changeable.settings, candidates.candidate(changeable.settings, REVIEWER, "second").seen
    decisions.refuse(settings, SECOND, "second reader", WHY_REFUSED)
    with pytest.raises(ReleaseRefused, match="somebody has decided on this since"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=before)
    assert candidates.candidate(settings, REVIEWER, "second").state == "refused"
    # A refusal harms nobody, and counts whoever said what meanwhile.
    candidates.refuse(settings, REVIEWER, "reviewer", "second", seen=before, reason="the same")


def test_nobody_approves_another_promise_than_they_saw(changeable):
    """The statement counts what was run of the dataset, and names the family's cap, so that it may change by itself."""
    settings, seen = changeable.settings, candidates.candidate(changeable.settings, REVIEWER, "second").seen
    ledger_of(changeable).approve_raise("tests", _asked(settings), by="reviewer")
    family = settings.deploy / "families" / "tests.yaml"
    family.write_text(family.read_text().replace("2.5", "3.0"))
    with pytest.raises(ReleaseRefused, match="the promise or the quality report"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=seen)
    with pytest.raises(ReleaseRefused, match="from the candidate's page"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=seen[:64])


def test_a_changed_quality_report_is_not_shown_and_stops_the_approval(changeable):
    settings = changeable.settings
    file = storage_of(changeable).require(SECOND, "quality").directory / "rows.json"
    file.chmod(0o600)
    file.write_text(file.read_text().replace("0.", "1.", 1))
    shown = candidates.candidate(settings, REVIEWER, "second")
    assert (shown.state, shown.quality) == ("not-releasable", None)
    assert "the quality report is not what its step recorded" in shown.standing
    with pytest.raises(ReleaseRefused, match="quality report"):
        candidates.approve(settings, REVIEWER, "reviewer", "second", seen=shown.seen)
    assert decisions.review(settings, SECOND).quality_rows == []


def _asked(settings):
    (asked,) = families.family(settings, REVIEWER, "tests").row.raises
    return asked.event


def test_a_refusal_shows_everywhere_at_once(changeable):
    settings = changeable.settings
    seen = candidates.candidate(settings, REVIEWER, "second").seen
    assert ("candidate", "second") in waiting(settings)
    done = candidates.refuse(settings, REVIEWER, "reviewer", "second", seen=seen, reason="too few canaries")
    assert (done.decision, done.by, done.release) == ("refused", "reviewer", None)
    assert ("candidate", "second") not in waiting(settings)
    shown = candidates.candidate(settings, REVIEWER, "second")
    assert (shown.state, shown.decisions[-1].reason) == ("refused", "too few canaries")


def test_nobody_is_asked_about_what_was_withdrawn_until_somebody_approves_it_again(changeable):
    settings, release = changeable.settings, release_of(changeable.settings, "people")
    done = releases.withdraw(settings, REVIEWER, "reviewer", release, reason="a column too many")
    assert (done.release, done.by, done.reason, done.left) == (release, "reviewer", "a column too many", 0)
    assert releases.release(settings, REVIEWER, release).row.state == "withdrawn"
    assert "people" not in {title for _, title in waiting(settings)}
    assert _waiting_metric(settings) == 2
    shown = candidates.candidate(settings, REVIEWER, "people")
    assert shown.state == "withdrawn"
    assert shown.standing.startswith(f"release {release} of this content was withdrawn by reviewer at ")
    decisions.approve(settings, PEOPLE, "third reader", "", after_withdrawal=True)
    assert ("publication", "people") in waiting(settings)


def _waiting_metric(settings):
    found = of_deployment(settings, dt.datetime.now(dt.UTC))
    return next(sum(item.samples.values()) for item in found if item.name == "dpsynth_candidates_waiting")


@pytest.mark.parametrize("may", [ENGINEER, AUDITOR])
def test_who_may_not_decide_withdraws_nothing(filled, may):
    settings, before = filled.settings, ledger_of(filled).head()
    with pytest.raises(NotAllowed, match="decide"):
        releases.withdraw(settings, may, "engineer", release_of(settings, "people"), reason="no")
    with pytest.raises(NotFound):
        releases.withdraw(settings, REVIEWER, "reviewer", "none-such", reason="no")
    with pytest.raises(ConfigurationError, match="is empty"):
        releases.withdraw(settings, REVIEWER, "reviewer", release_of(settings, "people"), reason=" ")
    assert ledger_of(filled).head() == before


def test_people_talk_about_a_candidate_and_say_who_looks_at_it(changeable):
    settings, before = changeable.settings, ledger_of(changeable).head()
    seen = candidates.candidate(settings, REVIEWER, "second").seen
    candidates.comment(settings, ENGINEER, "engineer", "second", text="the bins are those of last year")
    candidates.assign(settings, REVIEWER, "reviewer", "second", to="third reader")
    shown = candidates.candidate(settings, AUDITOR, "second")
    assert [(item.kind, item.by, item.text) for item in shown.remarks] == [
        ("comment", "engineer", "the bins are those of last year"),
        ("assignment", "reviewer", "third reader"),
    ]
    assert shown.assigned == "third reader"
    assert [item.assigned for item in overview.overview(settings, REVIEWER).waiting if item.title == "second"] == [
        "third reader"
    ]
    # It decides nothing: an approval of what was seen before still counts, and nothing of it is in the ledger.
    assert (shown.seen, ledger_of(changeable).head()) == (seen, before)
    with pytest.raises(NotAllowed, match="comment"):
        candidates.comment(settings, AUDITOR, "auditor", "second", text="no")
    with pytest.raises(NotAllowed, match="decide"):
        candidates.assign(settings, ENGINEER, "engineer", "second", to="engineer")
    with pytest.raises(ConfigurationError, match="is empty"):
        candidates.comment(settings, ENGINEER, "engineer", "second", text=" ")
    with pytest.raises(NotFound):
        candidates.comment(settings, ENGINEER, "engineer", "visits", "2025-11", text="where is it?")


def test_a_candidate_has_a_checklist_and_its_drift(filled):
    settings = filled.settings
    shown = candidates.candidate(settings, REVIEWER, WAITING.dataset, WAITING.period)
    points = {item.point: item.state for item in shown.checks}
    assert (points["contract"], points["evidence"], points["guarantee"]) == ("good", "good", "good")
    assert points["purpose"] == "care", "the contract declares none"
    assert (shown.rows, shown.units, shown.purpose, shown.recipients) == (200, 3000, None, ())
    assert shown.budget.per_owner and "would fit" in shown.budget.left_words
    drift = shown.quality.drift
    assert drift.previous == release_of(settings, "visits")
    assert {"columns", "pairs"} <= {row.key for row in drift.rows}
    assert all(row.change in ("better", "worse", "same", "other") for row in drift.rows)
    assert "this candidate" in drift.plot
    assert candidates.candidate(settings, REVIEWER, "second").quality.drift is None, "it is the first"
    engineer = candidates.candidate(settings, ENGINEER, WAITING.dataset, WAITING.period)
    assert engineer.quality is None
    assert not {"quality", "copies"} & {item.point for item in engineer.checks}


def test_what_is_approved_waits_for_publication(changeable):
    decisions.approve(changeable.settings, SECOND, "reviewer", "")
    assert ("publication", "second") in waiting(changeable.settings)
    assert candidates.candidate(changeable.settings, REVIEWER, "second").state == "approved"


@pytest.mark.slow
def test_the_last_approval_publishes(changeable):
    settings, said = changeable.settings, []
    seen = candidates.candidate(settings, REVIEWER, "second").seen
    done = candidates.approve(settings, REVIEWER, "reviewer", "second", seen=seen, reason="fine", say=said.append)
    assert (done.decision, done.failures) == ("approved", ())
    assert done.release == release_of(settings, "second")
    assert said
    shown = releases.release(settings, REVIEWER, done.release)
    assert (shown.row.state, shown.row.approved_by) == ("published", ("reviewer",))
    assert [item.reason for item in shown.decisions] == ["fine"]
    assert ("candidate", "second") not in waiting(settings)


def test_a_raise_is_shown_until_somebody_approves_it(changeable):
    settings = changeable.settings
    (asked,) = families.family(settings, REVIEWER, "tests").row.raises
    assert (asked.by, asked.words, asked.epsilon) == ("engineer", "2.5 -> 3, delta 1e-05", 3.0)
    ledger_of(changeable).approve_raise("tests", asked.event, by="reviewer")
    shown = families.family(settings, REVIEWER, "tests")
    assert (shown.row.raises, shown.row.cap_epsilon) == ((), 3.0)
    assert shown.spend[-1].kind == "raised"
    assert "declare cap.epsilon" in shown.file_fault
    assert len(shown.raises_done) == 1


# No answer says that something was done where nothing was


@pytest.mark.parametrize("what", ["approve", "refuse"])
def test_what_is_public_is_neither_refused_nor_approved(filled, what):
    settings, before = filled.settings, ledger_of(filled).head()
    release = release_of(settings, "people")
    seen = candidates.candidate(settings, REVIEWER, "people").seen
    with pytest.raises(ReleaseRefused, match=f"is public.* {release}.*Nothing was changed") as caught:
        getattr(candidates, what)(settings, REVIEWER, "third reader", "people", seen=seen, reason="no")
    assert what == "approve" or f"dpsynth release withdraw {release} --reason" in str(caught.value)
    assert ledger_of(filled).head() == before
    assert candidates.candidate(settings, REVIEWER, "people").state == "published"


def test_what_was_withdrawn_is_refused_and_approved_again(changeable):
    settings, release = changeable.settings, release_of(changeable.settings, "people")
    withdraw(settings, release, by="reviewer", reason="a column too many")
    seen = candidates.candidate(settings, REVIEWER, "people").seen
    done = candidates.refuse(settings, REVIEWER, "third reader", "people", seen=seen, reason="never again")
    assert (done.decision, done.next_steps) == ("refused", ())
    first = withdraw(settings, release, by="third reader", reason="once more")
    assert (first.by, first.reason, first.deleted) == ("reviewer", "a column too many", False)


def test_the_same_word_of_the_same_person_changes_nothing(changeable):
    settings = changeable.settings
    decisions.refuse(settings, SECOND, "Third Reader", WHY_REFUSED)
    before = ledger_of(changeable).head()
    with pytest.raises(ReleaseRefused, match=r"'Third Reader' has refused this content already.*Nothing was changed"):
        decisions.refuse(settings, SECOND, "third reader", "again")
    assert ledger_of(changeable).head() == before
    decisions.refuse(settings, SECOND, "reviewer", "for another reason")
    given = decisions.approve(settings, SECOND, "Third Reader", "talked about it")
    before = ledger_of(changeable).head()
    assert decisions.approve(settings, SECOND, "third reader", "again") == given, "only publishing is left"
    assert ledger_of(changeable).head() == before
    decisions.refuse(settings, SECOND, "third reader", "after all")


def test_an_approval_that_waits_for_others_is_given_once(changeable, monkeypatch):
    """Nothing of the evidence changes by how many approvals are asked for."""
    settings, real = changeable.settings, decisions.gather
    decisions.approve(settings, SECOND, "reviewer", "")
    monkeypatch.setattr(decisions, "gather", lambda *given: replace(real(*given), approved=False))
    with pytest.raises(ReleaseRefused, match="another person must approve it, too"):
        decisions.approve(settings, SECOND, "reviewer", "")


def test_a_refusal_of_what_is_being_published_says_so(changeable):
    """Recorded, and not shown yet: the refusal is recorded, and stops it if it can still be stopped."""
    settings, ledger = changeable.settings, ledger_of(changeable)
    decisions.approve(settings, SECOND, "reviewer", "")
    found = decisions.gather(settings, SECOND).candidate
    ledger.release("second-1", candidate=found.digest, entry_id=found.entry_id, check=lambda _: None)
    seen = candidates.candidate(settings, REVIEWER, "second").seen
    done = candidates.refuse(settings, REVIEWER, "third reader", "second", seen=seen, reason="stop")
    (said,) = done.next_steps
    assert "its publication as second-1 had begun" in said
    assert "dpsynth release withdraw second-1" in said
