"""The REST API: held against its own description, and each action against each role."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from gate_cases import PEOPLE, PHRASE, URL, Browser, Gate, gate_of, problem, quick_hashes
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    status_code_conformance,
)

from dpsynth_platform.console.access import CSRF_HEADER
from dpsynth_platform.console.roles import ALLOWED, Action
from dpsynth_platform.console.views import datasets, ledger, releases
from dpsynth_platform.foundation.errors import NotAllowed
from dpsynth_platform.foundation.settings import Settings

NEEDED = {
    ("get", "/session"): Action.READ,
    ("get", "/overview"): Action.READ,
    ("get", "/families"): Action.READ,
    ("get", "/families/{family}"): Action.READ,
    ("post", "/families/{family}/raises"): Action.RAISE,
    ("post", "/families/{family}/raises/{event}/approve"): Action.RAISE,
    ("get", "/datasets"): Action.READ,
    ("get", "/datasets/{dataset}"): Action.READ,
    ("post", "/datasets/{dataset}/plan"): Action.READ_SPEND,
    ("get", "/candidates/{dataset}"): Action.READ,
    ("get", "/candidates/{dataset}/dossier"): Action.READ_QUALITY,
    ("post", "/candidates/{dataset}/approve"): Action.DECIDE,
    ("post", "/candidates/{dataset}/refuse"): Action.DECIDE,
    ("post", "/candidates/{dataset}/comments"): Action.COMMENT,
    ("post", "/candidates/{dataset}/assign"): Action.DECIDE,
    ("get", "/releases"): Action.READ,
    ("get", "/releases/{release}"): Action.READ,
    ("post", "/releases/{release}/verify"): Action.VERIFY,
    ("post", "/releases/{release}/withdraw"): Action.DECIDE,
    ("get", "/lineage"): Action.READ,
    ("get", "/lineage/path"): Action.READ,
    ("get", "/lineage/search"): Action.READ,
    ("get", "/lineage/node"): Action.READ,
    ("get", "/lineage/columns"): Action.READ,
    ("get", "/lineage/trace"): Action.READ,
    ("get", "/ledger"): Action.READ,
    ("get", "/ledger/entries/{entry}"): Action.READ,
    ("post", "/ledger/verify"): Action.VERIFY,
    ("get", "/ledger/export"): Action.EXPORT,
}
"""What each address needs. One that is added needs a line here."""

SEEN = f"{'0' * 64}.{'0' * 64}.0"
BODIES: dict[str, dict[str, Any]] = {
    "/datasets/{dataset}/plan": {},
    "/families/{family}/raises": {
        "seen": {"epsilon": 2.5, "delta": 1e-6},
        "epsilon": 3.0,
        "delta": 1e-6,
        "reason": "More months.",
    },
    "/families/{family}/raises/{event}/approve": {},
    "/candidates/{dataset}/approve": {"seen": SEEN},
    "/candidates/{dataset}/refuse": {"seen": SEEN, "reason": "No."},
    "/candidates/{dataset}/comments": {"text": "Ready."},
    "/candidates/{dataset}/assign": {"to": "Rita"},
    "/releases/{release}/verify": {},
    "/releases/{release}/withdraw": {"reason": "No."},
    "/ledger/verify": {},
}
NAMES = {"family": "people", "dataset": "people", "event": "1", "release": "none-such", "entry": "none-such"}
QUERIES = {
    "/lineage/path": "?one=a&other=b",
    "/lineage/search": "?text=a",
    "/lineage/node": "?name=a",
    "/lineage/columns": "?node=a",
    "/lineage/trace": "?node=a&column=b",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_hashes(monkeypatch)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A deployment in which nothing was ever run."""
    return gate_of(Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "h"), "DPSYNTH_DEPLOY": str(tmp_path)}))


def document(gate: Gate) -> dict[str, Any]:
    found: dict[str, Any] = gate.signed_in("Erik").get("/api/v1/openapi.json").json()
    return found


def operations(gate: Gate) -> Iterator[tuple[str, str]]:
    for path, methods in document(gate)["paths"].items():
        for method in methods:
            yield method, path.removeprefix("/api/v1")


def asked(browser: Browser, method: str, path: str, **headers: str) -> Any:
    address = "/api/v1" + path.format(**NAMES) + QUERIES.get(path, "")
    return browser.get(address, **headers) if method == "get" else browser.change(address, BODIES[path], **headers)


def test_no_action_without_its_role(gate: Gate, tmp_path: Path) -> None:
    assert set(operations(gate)) == set(NEEDED)
    for name, role in PEOPLE.items():
        browser = gate.signed_in(name)
        for (method, path), action in NEEDED.items():
            answer = asked(browser, method, path)
            refused = answer.status_code == 403
            assert refused == (action not in ALLOWED[role]), (role, path, answer.text)
            if refused:
                assert problem(answer) == (403, "not-allowed")
            assert answer.status_code < 500, (role, path)
            assert str(tmp_path) not in answer.text, (role, path)


def test_nothing_for_nobody(gate: Gate) -> None:
    nobody = gate.browser()
    for method, path in NEEDED:
        address = "/api/v1" + path.format(**NAMES)
        answer = nobody.get(address) if method == "get" else nobody.post(address, json={})
        assert problem(answer) == (401, "signed-out")
    assert nobody.get("/api/v1/openapi.json").status_code == 401


def test_no_change_from_elsewhere(gate: Gate) -> None:
    rita = gate.signed_in("Rita")
    for (method, path), action in NEEDED.items():
        if method == "post" and action in ALLOWED["reviewer"]:
            assert problem(asked(rita, method, path, Origin="https://evil.example")) == (403, "origin")
            assert problem(asked(rita, method, path, Origin="")) == (403, "origin")
            assert problem(asked(rita, method, path, **{CSRF_HEADER: "0" * 64})) == (403, "csrf")


def test_what_takes_long_is_done_one_at_a_time(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    rita = gate.signed_in("Rita")
    headers = {"Origin": URL, CSRF_HEADER: rita.csrf(), "Cookie": f"dpsynth={rita.client.cookies['dpsynth']}"}
    paths = ("datasets/people/plan", "releases/none-such/verify", "ledger/verify")
    at_work, most = 0, []

    def long(*_: Any) -> None:
        nonlocal at_work
        at_work += 1
        most.append(at_work)
        time.sleep(0.05)
        at_work -= 1
        raise NotAllowed("done")

    for where, name in ((datasets, "plan"), (releases, "verify"), (ledger, "verify")):
        monkeypatch.setattr(where, name, long)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate.app), base_url=URL, headers=headers) as client:
            answers = await asyncio.gather(*(client.post(f"/api/v1/{path}") for path in paths * 2))
        assert {answer.status_code for answer in answers} == {403}

    asyncio.run(ask())
    assert most == [1] * 6


def test_a_role_that_was_taken_away_decides_nothing(gate: Gate) -> None:
    rita = gate.signed_in("Rita")
    csrf = rita.csrf()
    gate.services.users.change_roles("Rita", ["auditor"])
    answer = rita.post(
        "/api/v1/candidates/people/refuse", json=BODIES["/candidates/{dataset}/refuse"], X_CSRF_Token=csrf
    )
    assert problem(answer) == (401, "signed-out")
    again = gate.signed_in("Rita")
    answer = again.change("/api/v1/candidates/people/refuse", BODIES["/candidates/{dataset}/refuse"])
    assert problem(answer) == (403, "not-allowed")


@pytest.mark.parametrize("name", ["..", "../x", "%2e%2e", "..%2f..%2fvault", "a%00b", "a b", "Ä", "a" * 100, "a%0a"])
def test_names_lead_nowhere_else(gate: Gate, name: str) -> None:
    rita = gate.signed_in("Rita")
    for path in ("datasets/{}", "candidates/{}", "families/{}", "candidates/{}/dossier", "datasets/{}/plan"):
        address = "/api/v1/" + path.format(name)
        answer = rita.change(address, {}) if path.endswith("/plan") else rita.client.get(address)
        assert answer.status_code in (404, 422), (path, answer.text)
        assert problem(answer)[1] in ("not-found", "not-acceptable")
    for period in ("..", "../..", "2026-13", "2026-01%0a", "2026-1"):
        answer = rita.client.get(f"/api/v1/candidates/people?period={period}")
        assert problem(answer) == (422, "not-acceptable")


def test_a_body_is_as_described_or_refused(gate: Gate) -> None:
    rita = gate.signed_in("Rita")
    refusal = {"seen": SEEN, "reason": "No."}
    for wrong in (
        {},
        refusal | {"by": "Somebody Else"},
        refusal | {"reason": 5},
        refusal | {"reason": "x" * 1001},
        refusal | {"period": "../.."},
        [refusal],
        "text",
        None,
    ):
        answer = rita.change("/api/v1/candidates/people/refuse", wrong)
        assert problem(answer) == (422, "not-acceptable")
    broken = {"Content-Type": "application/json", "Origin": URL, CSRF_HEADER: rita.csrf()}
    for body in (b"{", b"\xff\xfe", b"NaN", b"[" * 5000):
        answer = rita.client.post("/api/v1/candidates/people/refuse", content=body, headers=broken)
        assert problem(answer)[0] in (400, 422)
        assert "jane" not in answer.text
    for cap in (float("nan"), float("inf"), -1, 0, 1e9):
        text = json.dumps(BODIES["/families/{family}/raises"] | {"epsilon": cap})
        answer = rita.client.post("/api/v1/families/people/raises", content=text, headers=broken)
        assert problem(answer) == (422, "not-acceptable")


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


def check_content(described: dict[str, Any], operation: Any, answer: Any) -> None:
    """Holds an answer against its description. Schemathesis would, but for its treatment of `prefixItems`."""
    told = described["paths"][operation.path][operation.method]["responses"][str(answer.status_code)]["content"]
    schema = told[answer.headers["content-type"][0].partition(";")[0]]["schema"]
    Draft202012Validator(schema | {"components": described["components"]}).validate(answer.json())


def try_all(
    gate: Gate, roles: list[str], examples: int, known: Mapping[str, st.SearchStrategy[str | None]] = {}
) -> set[int]:
    """Calls every operation with what its description allows; returns the statuses seen.

    Args:
        known: for parameters of paths names that there are, or None for any name.
    """
    gate.services.users.add("Somebody", roles, PHRASE)
    somebody = gate.signed_in("Somebody")
    token, csrf = somebody.client.cookies["dpsynth"], somebody.csrf()
    described = document(gate)
    schema = schemathesis.openapi.from_dict(described)
    schema.app = gate.app
    seen: set[int] = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis_settings(
            max_examples=examples,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), names=st.fixed_dictionaries(dict(known)))
        def attempt(case: Any, names: dict[str, str | None]) -> None:
            there = {name: value for name, value in names.items() if value and name in case.path_parameters}
            case.path_parameters = dict(case.path_parameters) | there
            headers = {"Origin": URL, CSRF_HEADER: csrf}
            answer = case.call(base_url=URL, headers=headers, cookies={"dpsynth": token})
            seen.add(answer.status_code)
            assert answer.status_code != 401
            case.validate_response(answer, checks=CHECKS)
            check_content(described, case.operation, answer)

        attempt()
    return seen


def test_the_api_is_as_it_describes_itself_where_nothing_is(gate: Gate) -> None:
    assert {200, 404} <= try_all(gate, ["reviewer", "auditor"], 5)
