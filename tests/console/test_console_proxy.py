"""Being signed in by the trusted proxy, and claiming to be it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from gate_cases import Browser, Gate, gate_of, problem, quick_hashes

from dpsynth_platform.console.access import CSRF_HEADER
from dpsynth_platform.console.configuration import Proxy
from dpsynth_platform.foundation.settings import Settings

SECRET = "the-proxy-and-the-console-know-this"
WHERE = "10.20.0.7"
ELSEWHERE = "10.21.0.7"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_DEPLOY": str(tmp_path)})


@pytest.fixture
def gate(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Gate:
    quick_hashes(monkeypatch)
    roles = {"reviewer": ["privacy-board", "dpo"], "auditor": ["internal-audit"]}
    proxy = Proxy.model_validate({"addresses": ["10.20.0.0/16"], "secret_file": "/nowhere", "roles": roles})
    return gate_of(settings, proxy=proxy, proxy_secret=SECRET)


def headers(name: str = "Petra", groups: str = "staff, privacy-board", secret: str = SECRET) -> dict[str, str]:
    return {"X-Dpsynth-User": name, "X-Dpsynth-Roles": groups, "X-Dpsynth-Proxy-Secret": secret}


def test_the_proxy_says_who_it_is(gate: Gate) -> None:
    petra = gate.browser(WHERE)
    told = petra.get("/api/v1/session", **headers()).json()
    assert (told["name"], told["roles"], told["how"]) == ("Petra", ["reviewer"], "proxy")
    assert petra.get("/sign-in", **headers()).headers["location"] == "/"
    first = petra.client.cookies["dpsynth"]
    assert petra.get("/api/v1/session", **headers()).json() == told
    assert petra.client.cookies["dpsynth"] == first
    assert problem(petra.post("/api/v1/nothing", json={}, **headers())) == (403, "csrf")
    sent = headers() | {CSRF_HEADER: petra.get("/api/v1/session", **headers()).json()["csrf"]}
    assert problem(petra.post("/api/v1/nothing", json={}, **sent)) == (404, "not-found")


def test_its_session_is_worth_nothing_without_it(gate: Gate) -> None:
    petra = gate.browser(WHERE)
    petra.get("/api/v1/session", **headers())
    assert petra.client.cookies["dpsynth"]
    assert problem(petra.get("/api/v1/session")) == (401, "signed-out")
    stolen = gate.browser(ELSEWHERE)
    stolen.client.cookies.set("dpsynth", petra.client.cookies["dpsynth"])
    assert problem(stolen.get("/api/v1/session")) == (401, "signed-out")


def test_other_roles_and_other_people_have_another_session(gate: Gate) -> None:
    browser = gate.browser(WHERE)
    browser.get("/api/v1/session", **headers())
    first = browser.client.cookies["dpsynth"]
    now = browser.get("/api/v1/session", **headers(groups="internal-audit")).json()
    assert now["roles"] == ["auditor"]
    second = browser.client.cookies["dpsynth"]
    assert browser.get("/api/v1/session", **headers("Paul")).json()["name"] == "Paul"
    assert len({first, second, browser.client.cookies["dpsynth"]}) == 3
    for old in (first, second):
        browser.client.cookies.set("dpsynth", old, domain="127.0.0.1")
        assert gate.services.sessions.find(old) is None


CLAIMS = {
    "a role alone": {"X-Dpsynth-Roles": "reviewer"},
    "a name alone": {"X-Dpsynth-User": "Petra"},
    "no secret": {"X-Dpsynth-User": "Petra", "X-Dpsynth-Roles": "privacy-board"},
    "a wrong secret": headers(secret="x" * len(SECRET)),
    "an empty secret": headers(secret=""),
    "no name": {"X-Dpsynth-Roles": "privacy-board", "X-Dpsynth-Proxy-Secret": SECRET},
    "an empty name": headers(""),
    "a name of blanks": headers("\N{NO-BREAK SPACE}"),
    "a name that is too long": headers("a" * 500),
    "an escape": headers("Petra\x1b[1m"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_forged_claim_is_refused_and_not_passed_over(
    gate: Gate, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for browser in (gate.browser(WHERE), gate.signed_in("Rita")):
        for path in ("/api/v1/session", "/sign-in", "/", "/releases"):
            answer = browser.get(path, **CLAIMS[claim])
            assert answer.status_code == 401, path
            assert SECRET not in answer.text
    assert "refused: 401" in caplog.text
    assert SECRET not in caplog.text


def test_the_right_secret_from_elsewhere_is_refused(gate: Gate) -> None:
    for address in (ELSEWHERE, "127.0.0.1", "::1", "not an address", ""):
        assert problem(gate.browser(address).get("/api/v1/session", **headers())) == (401, "forged-header")
    assert gate.browser(f"::ffff:{WHERE}").get("/api/v1/session", **headers()).status_code == 200


def test_a_header_twice_is_refused(gate: Gate) -> None:
    browser = gate.browser(WHERE)
    for name in headers():
        twice = [*headers().items(), (name, headers()[name])]
        assert browser.client.get("/api/v1/session", headers=twice).status_code == 401


def test_without_a_proxy_nobody_may_claim_anything(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_hashes(monkeypatch)
    rita: Browser = gate_of(settings).signed_in("Rita")
    assert rita.get("/api/v1/session").status_code == 200
    for name in headers():
        assert problem(rita.get("/api/v1/session", **{name: "auditor"})) == (401, "forged-header")


def test_other_headers_and_the_usual_ones(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_hashes(monkeypatch)
    own = {"name_header": "X-Forwarded-User", "roles_header": "X-Forwarded-Groups", "secret_header": "X-From-Proxy"}
    proxy = Proxy.model_validate({"addresses": [WHERE], "secret_file": "/nowhere"} | own)
    browser = gate_of(settings, proxy=proxy, proxy_secret=SECRET).browser(WHERE)
    right = {
        "X-Forwarded-User": "Jürgen",
        "X-Forwarded-Groups": "auditor, x",
        "X-From-Proxy": SECRET,
    }
    told = browser.get("/api/v1/session", **right).json()
    assert (told["name"], told["roles"]) == ("Jürgen", ["auditor"])
    assert problem(browser.get("/api/v1/session", **right, **{"X-Dpsynth-Roles": "reviewer"})) == (401, "forged-header")


def test_whoever_has_no_role_stays_outside(gate: Gate) -> None:
    for groups in ("", "staff", "reviewer", "privacy-board2"):
        assert problem(gate.browser(WHERE).get("/api/v1/session", **headers(groups=groups))) == (403, "no-role")
