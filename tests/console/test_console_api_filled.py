"""The REST API on a deployment that real runs filled: what it tells whom, and what comes of a decision."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filled_cases import OWNERS, PEOPLE, REFUSED, SECOND, WAITING
from gate_cases import PHRASE, Gate, gate_of, problem, quick_hashes
from hypothesis import strategies as st
from test_console_api import try_all
from view_cases import entry_of, release_of

from dpsynth_platform.console.roles import ALLOWED
from dpsynth_platform.console.views import candidates, datasets, families, ledger, overview, releases
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.reviewing.chronicle import chronicle

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def gate_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Settings], Gate]:
    """A console on a deployment, whose users are elsewhere than there."""
    quick_hashes(monkeypatch)
    return lambda settings: gate_of(settings, home=tmp_path / "users")


def plain(view: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(view)))


@pytest.mark.parametrize("name", ["Erik", "Rita", "Aud"])
def test_it_tells_what_the_views_say(filled: Any, gate_at: Any, name: str) -> None:
    settings, gate = filled.settings, gate_at(filled.settings)
    role = {"Erik": "engineer", "Rita": "reviewer", "Aud": "auditor"}[name]
    allowed, browser, people = ALLOWED[role], gate.signed_in(name), release_of(filled.settings, "people")
    for path, view in (
        ("overview", overview.overview(settings, allowed)),
        ("families?page=1", families.families(settings, allowed)),
        ("datasets?text=s&page=1", datasets.datasets(settings, allowed, "s")),
        ("families/clinic", families.family(settings, allowed, "clinic")),
        ("releases?text=people", releases.releases(settings, allowed, "people")),
        (f"releases/{people}", releases.release(settings, allowed, people)),
        (f"candidates/{SECOND.dataset}", candidates.candidate(settings, allowed, SECOND.dataset)),
        (
            f"candidates/{WAITING.dataset}?period={WAITING.period}",
            candidates.candidate(settings, allowed, WAITING.dataset, WAITING.period),
        ),
        (
            f"ledger/entries/{entry_of(settings, 'people')}",
            ledger.entry(settings, allowed, entry_of(settings, "people")),
        ),
    ):
        answer = browser.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()) == (200, plain(view)), path


def test_an_engineer_is_told_no_comparison_with_real_data(filled: Any, gate_at: Any) -> None:
    gate, people = gate_at(filled.settings), release_of(filled.settings, "people")
    erik, rita = gate.signed_in("Erik"), gate.signed_in("Rita")
    for path in (f"releases/{people}", f"candidates/{SECOND.dataset}"):
        assert erik.get(f"/api/v1/{path}").json()["quality"] is None
        assert rita.get(f"/api/v1/{path}").json()["quality"]["rows"]
    assert problem(erik.get(f"/api/v1/candidates/{SECOND.dataset}/dossier")) == (403, "not-allowed")
    dossier = rita.get(f"/api/v1/candidates/{SECOND.dataset}/dossier")
    assert dossier.status_code == 200
    assert not any(owner in dossier.text for owner in OWNERS)


def test_an_auditor_takes_the_ledger_away(filled: Any, gate_at: Any) -> None:
    answer = gate_at(filled.settings).signed_in("Aud").get("/api/v1/ledger/export")
    assert answer.headers["content-disposition"] == 'attachment; filename="ledger.json"'
    assert len(answer.json()["events"]) == len(chronicle(filled.settings).events)


def test_everybody_may_verify(filled: Any, gate_at: Any) -> None:
    gate, people = gate_at(filled.settings), release_of(filled.settings, "people")
    for name in ("Erik", "Rita", "Aud"):
        browser = gate.signed_in(name)
        assert browser.change(f"/api/v1/releases/{people}/verify", {}).json()["ok"]
        assert browser.change("/api/v1/ledger/verify", {}).json()["ok"]


def test_a_refusal_is_of_what_was_seen_and_by_who_is_signed_in(changeable: Any, gate_at: Any) -> None:
    settings, address = changeable.settings, f"/api/v1/candidates/{SECOND.dataset}/refuse"
    rita = gate_at(settings).signed_in("Rita")
    seen = rita.get(f"/api/v1/candidates/{SECOND.dataset}").json()
    before = len(Ledger(settings.ledger_url).history())
    for wrong in ("0" * 64, "", rita.get(f"/api/v1/candidates/{PEOPLE.dataset}").json()["seen"]):
        assert problem(rita.change(address, {"seen": wrong, "reason": "No."})) == (409, "release")
    for reason in ("", " ", "two\nlines", "\N{RIGHT-TO-LEFT OVERRIDE}x"):
        assert problem(rita.change(address, {"seen": seen["seen"], "reason": reason})) == (
            422,
            "configuration",
        )
    assert len(Ledger(settings.ledger_url).history()) == before
    reason = "<script>alert(1)</script> is no reason"
    answer = rita.change(address, {"seen": seen["seen"], "reason": reason})
    assert (answer.status_code, answer.json()["decision"], answer.json()["by"]) == (200, "refused", "Rita")
    (event,) = Ledger(settings.ledger_url).history()[before:]
    assert (event.payload["by"], event.payload["reason"]) == ("Rita", reason)
    now = rita.get(f"/api/v1/candidates/{SECOND.dataset}").json()
    assert (now["state"], now["decisions"][-1]["reason"]) == ("refused", reason)


def test_an_approval_publishes_and_not_by_who_ran_it(changeable: Any, gate_at: Any) -> None:
    gate = gate_at(changeable.settings)
    rita = gate.signed_in("Rita")
    seen = rita.get(f"/api/v1/candidates/{SECOND.dataset}").json()
    address, said = f"/api/v1/candidates/{SECOND.dataset}/approve", {"seen": seen["seen"]}
    (runner,) = seen["runners"]
    gate.services.users.add(runner.upper(), ["reviewer"], PHRASE)
    assert problem(gate.signed_in(runner.upper()).change(address, said)) == (409, "release")
    answer = rita.change(address, said)
    assert (answer.status_code, answer.json()["failures"]) == (200, [])
    released = rita.get(f"/api/v1/releases/{answer.json()['release']}").json()
    assert (released["row"]["state"], released["row"]["approved_by"]) == ("published", ["Rita"])
    refused = f"/api/v1/candidates/{REFUSED.dataset}?period={REFUSED.period}"
    assert rita.get(refused).json()["state"] == "refused"


def test_a_larger_cap_needs_two(changeable: Any, gate_at: Any) -> None:
    gate = gate_at(changeable.settings)
    gate.services.users.add("Rob", ["reviewer"], PHRASE)
    rita, rob = gate.signed_in("Rita"), gate.signed_in("Rob")
    shown = rita.get("/api/v1/families/clinic").json()["row"]
    seen = {"epsilon": shown["cap_epsilon"], "delta": shown["cap_delta"]}
    weak = {"seen": seen, "epsilon": 40.0, "delta": 1e-5, "reason": "More months."}
    assert problem(rita.change("/api/v1/families/clinic/raises", weak)) == (409, "ledger")
    asked = rita.change("/api/v1/families/clinic/raises", weak | {"accept_weak_guarantee": "fictional people"})
    assert (asked.status_code, asked.json()["by"]) == (201, "Rita")
    before = len(Ledger(changeable.settings.ledger_url).history())
    other = weak | {"accept_weak_guarantee": "fictional people", "seen": seen | {"epsilon": 1.0}}
    assert problem(rita.change("/api/v1/families/clinic/raises", other)) == (409, "ledger")
    assert len(Ledger(changeable.settings.ledger_url).history()) == before
    address = f"/api/v1/families/clinic/raises/{asked.json()['event']}/approve"
    assert problem(rita.change(address, {})) == (409, "ledger")
    assert rob.change(address, {"reason": "agreed"}).json()["epsilon"] == 40.0
    assert problem(rob.change(address, {})) == (409, "ledger")


def test_comments_and_assignments_are_for_those_who_may(changeable: Any, gate_at: Any) -> None:
    gate, address = gate_at(changeable.settings), f"/api/v1/candidates/{SECOND.dataset}"
    erik, rita, aud = (gate.signed_in(name) for name in ("Erik", "Rita", "Aud"))
    said = erik.change(f"{address}/comments", {"text": "ready"})
    assert (said.status_code, said.json()["by"], said.json()["text"]) == (201, "Erik", "ready")
    assert rita.change(f"{address}/assign", {"to": "Rita"}).json()["kind"] == "assignment"
    assert problem(erik.change(f"{address}/assign", {"to": "Erik"})) == (403, "not-allowed")
    assert problem(aud.change(f"{address}/comments", {"text": "no"})) == (403, "not-allowed")
    assert problem(erik.change(f"{address}/comments", {"text": "two\nlines"})) == (422, "configuration")
    shown = aud.get(address).json()
    assert (shown["assigned"], [item["text"] for item in shown["remarks"]]) == ("Rita", ["ready", "Rita"])


def test_a_withdrawal_is_for_reviewers_and_final(changeable: Any, gate_at: Any) -> None:
    gate, release = gate_at(changeable.settings), release_of(changeable.settings, "people")
    address = f"/api/v1/releases/{release}"
    assert problem(gate.signed_in("Erik").change(f"{address}/withdraw", {"reason": "no"})) == (403, "not-allowed")
    rita = gate.signed_in("Rita")
    done = rita.change(f"{address}/withdraw", {"reason": "a column too many"})
    assert (done.status_code, done.json()["by"], done.json()["left"]) == (200, "Rita", 0)
    assert str(changeable.settings.home) not in done.text
    assert rita.get(address).json()["row"]["state"] == "withdrawn"
    assert problem(rita.change("/api/v1/releases/none-such/withdraw", {"reason": "no"})) == (404, "not-found")


@pytest.mark.slow
def test_the_api_is_as_it_describes_itself(changeable: Any, gate_at: Any) -> None:
    settings = changeable.settings
    names = {
        "family": ["tests", "clinic"],
        "dataset": ["people", "second", "visits"],
        "event": [str(event.sequence) for event in chronicle(settings).events],
        "release": [release_of(settings, "people"), release_of(settings, "visits")],
        "entry": [entry_of(settings, "people"), entry_of(settings, "visits")],
    }
    known = {name: st.none() | st.sampled_from(values) for name, values in names.items()}
    assert {200, 404, 409} <= try_all(gate_at(settings), ["reviewer", "auditor"], 4, known)


def test_the_refusal_of_what_is_public_is_a_conflict_that_names_the_way_out(filled: Any, gate_at: Any) -> None:
    settings = filled.settings
    rita, before = gate_at(settings).signed_in("Rita"), Ledger(settings.ledger_url).head()
    seen = rita.get(f"/api/v1/candidates/{PEOPLE.dataset}").json()["seen"]
    for what in ("refuse", "approve"):
        answer = rita.change(f"/api/v1/candidates/{PEOPLE.dataset}/{what}", {"seen": seen, "reason": "No."})
        assert problem(answer) == (409, "release")
        assert release_of(settings, "people") in answer.json()["detail"]
        assert what == "approve" or "dpsynth release withdraw" in answer.json()["detail"]
    assert Ledger(settings.ledger_url).head() == before


def test_what_is_unknown_is_neither_decided_nor_raised(filled: Any, gate_at: Any) -> None:
    settings = filled.settings
    rita, before = gate_at(settings).signed_in("Rita"), Ledger(settings.ledger_url).head()
    seen = rita.get(f"/api/v1/candidates/{SECOND.dataset}").json()["seen"]
    for address, body in {
        "candidates/nothing/refuse": {"seen": seen, "reason": "No."},
        "candidates/nothing/approve": {"seen": seen},
        "candidates/visits/refuse": {"seen": seen, "reason": "No.", "period": "2025-11"},
        "candidates/visits/approve": {"seen": seen, "period": "2025-11"},
        "families/tests/raises/99999/approve": {"reason": "Yes."},
        "families/nothing/raises/1/approve": {"reason": "Yes."},
    }.items():
        status, _ = problem(rita.change(f"/api/v1/{address}", body))
        assert status in (404, 409, 422), address
    assert Ledger(settings.ledger_url).head() == before
