"""The gate of the console: who gets in, how, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_cases import PHRASE, Browser, Gate, gate_of, problem

from dpsynth_platform.settings import Settings

NEXT = "/sign-in?next="


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_DEPLOY": str(tmp_path)})


@pytest.fixture
def gate(settings: Settings) -> Gate:
    return gate_of(settings)


def is_in(browser: Browser) -> bool:
    return browser.get("/api/v1/session").status_code == 200


def test_nobody_is_sent_to_the_sign_in(gate: Gate) -> None:
    nobody = gate.browser()
    for path, then in (("/", "%2F"), ("/releases?page=2", "%2Freleases%3Fpage%3D2"), ("/a b", "%2Fa%2520b")):
        answer = nobody.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, NEXT + then)
    assert problem(nobody.get("/api/v1/session")) == (401, "signed-out")
    assert problem(nobody.get("/api/v1/nothing")) == (401, "signed-out")
    assert nobody.get("/health").json() == {"state": "ok"}


def test_somebody_signs_in_and_out(gate: Gate) -> None:
    rita = gate.browser()
    answer = rita.sign_in("Rita", PHRASE, "/releases?page=2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/releases?page=2")
    told = rita.get("/api/v1/session").json()
    assert (told["name"], told["roles"], told["how"]) == ("Rita", ["reviewer"], "password")
    assert "decide" in told["actions"] and "export" not in told["actions"]
    cookie = rita.client.cookies["dpsynth"]
    assert rita.get("/sign-in?next=/ledger").headers["location"] == "/ledger"
    assert rita.post("/sign-out", form={"csrf": "0" * 64}).status_code == 403
    assert is_in(rita)
    out = rita.post("/sign-out", form={"csrf": told["csrf"]})
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert not is_in(rita)
    rita.client.cookies.set("dpsynth", cookie)
    assert not is_in(rita)
