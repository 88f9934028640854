"""Signing in through a provider: a real one on this machine, that errs as each test asks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from gate_cases import Browser, Gate, gate_of, quick_hashes
from provider_cases import CLIENT, SECRET, Provider, nothing, running

from dpsynth_platform.console.configuration import Oidc
from dpsynth_platform.foundation.settings import Settings

ROLES = {"reviewer": ["privacy-board"], "auditor": ["internal-audit", "dpo"]}
OLGA = {"email": "olga@example.org", "email_verified": True, "groups": ["staff", "privacy-board", "dpo"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    provider = Provider()
    with running(provider):
        yield provider


@pytest.fixture
def provider(server: Provider) -> Provider:
    """As if nothing had happened to it."""
    server.person, server.change, server.sign, server.metadata = OLGA, nothing, "RS256", {}
    server.exchanged.clear()
    server.codes.clear()
    return server


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    quick_hashes(monkeypatch)
    monkeypatch.setattr("dpsynth_platform.console.oidc._ANSWER_SECONDS", 300.0)  # however busy the machine is
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_DEPLOY": str(tmp_path)})


@pytest.fixture
def gate(settings: Settings, provider: Provider) -> Gate:
    gate = gate_of(settings, oidc=oidc(provider), oidc_secret=SECRET)
    gate.clock.now = time.time()
    return gate


def oidc(provider: Provider, **changes: Any) -> Oidc:
    told = {"issuer": provider.url, "client_id": CLIENT, "roles": ROLES}
    return Oidc.model_validate(told | changes)


def sent_back(browser: Browser, onward: str = "/releases") -> str:
    """Goes to the provider; returns the address to which it sends back, without following it."""
    leaving = browser.get(f"/sign-in/oidc?next={onward}")
    assert leaving.status_code == 303
    return httpx.get(leaving.headers["location"], timeout=300).headers["location"].removeprefix(browser.url)


def name_of(browser: Browser) -> str | None:
    answer = browser.get("/api/v1/session")
    return answer.json()["name"] if answer.status_code == 200 else None


def test_somebody_signs_in_through_the_provider(gate: Gate, provider: Provider) -> None:
    olga = gate.browser()
    assert 'href="/sign-in/oidc?next=%2Fledger"' in olga.get("/sign-in?next=/ledger").text
    back = sent_back(olga)
    came = olga.get(back)
    assert (came.status_code, came.headers["location"]) == (303, "/releases")
    told = olga.get("/api/v1/session").json()
    assert (told["name"], told["roles"], told["how"]) == ("olga@example.org", ["reviewer", "auditor"], "oidc")
    asked = provider.asked
    assert (asked["response_type"], asked["client_id"], asked["scope"]) == ("code", CLIENT, "openid email")
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == "http://127.0.0.1:3900/sign-in/oidc/back"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    (form,) = provider.exchanged
    assert form["code_verifier"] not in str(asked)
    assert olga.post("/sign-out", form={"csrf": told["csrf"]}).status_code == 303
    assert name_of(olga) is None


def test_an_answer_counts_once_and_for_its_browser(gate: Gate, provider: Provider) -> None:
    olga, other = gate.browser(), gate.browser()
    back = sent_back(olga)
    sent_back(other)
    assert other.get(back).status_code == 403  # somebody else's answer: nobody is signed in as another
    assert olga.get(back).status_code == 403  # and it is used up
    assert name_of(olga) is name_of(other) is None
    back = sent_back(olga)
    assert olga.get(back).status_code == 303
    again = gate.browser()
    sent_back(again)
    assert again.get(back).status_code == 403
    assert not provider.exchanged[1:]


def test_an_answer_comes_in_time(gate: Gate) -> None:
    olga = gate.browser()
    back = sent_back(olga)
    gate.clock.now += 601
    assert olga.get(back).status_code == 403
    assert name_of(olga) is None


def altered(back: str, **changes: str | None) -> str:
    given = dict(parse_qsl(urlsplit(back).query)) | changes
    return f"/sign-in/oidc/back?{urlencode({name: value for name, value in given.items() if value is not None})}"


@pytest.mark.parametrize(
    "change",
    [
        lambda back: altered(back, state="x" * 64),
        lambda back: altered(back, state=None),
        lambda back: altered(back, code=None),
        lambda back: altered(back, code="x"),
        lambda back: altered(back, code=None, error="access_denied", error_description="jane.doe@example.org"),
        lambda back: altered(back, iss="https://another.example"),
        lambda back: back + "&code=another",
        lambda back: "/sign-in/oidc/back",
    ],
)
def test_another_answer_signs_nobody_in(gate: Gate, change: Callable[[str], str]) -> None:
    olga = gate.browser()
    answer = olga.get(change(sent_back(olga)))
    assert answer.status_code in (403, 502)
    assert "jane.doe" not in answer.text
    assert name_of(olga) is None


CLAIMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another issuer": lambda claims: claims | {"iss": "https://another.example"},
    "no issuer": lambda claims: {name: value for name, value in claims.items() if name != "iss"},
    "another client": lambda claims: claims | {"aud": "another"},
    "two clients": lambda claims: claims | {"aud": ["another", CLIENT], "azp": "another"},
    "expired": lambda claims: claims | {"exp": claims["iat"] - 120, "iat": claims["iat"] - 600},
    "not yet": lambda claims: claims | {"nbf": claims["iat"] + 600},
    "no end": lambda claims: {name: value for name, value in claims.items() if name != "exp"},
    "another nonce": lambda claims: claims | {"nonce": "x"},
    "no nonce": lambda claims: {name: value for name, value in claims.items() if name != "nonce"},
    "an address that is not theirs": lambda claims: claims | {"email_verified": False},
    "an address nobody looked at": lambda claims: claims | {"email_verified": "true"},
    "no name": lambda claims: claims | {"email": None},
    "a name that is no text": lambda claims: claims | {"email": ["olga@example.org"]},
    "a name of controls": lambda claims: claims | {"email": "olga\n@example.org"},
    "no groups": lambda claims: claims | {"groups": None},
    "groups of elsewhere": lambda claims: claims | {"groups": ["staff", "reviewer", "admin"]},
    "groups that are no texts": lambda claims: claims | {"groups": [["privacy-board"], {"privacy-board": 1}, 5]},
}


@pytest.mark.parametrize("change", CLAIMS)
def test_other_claims_sign_nobody_in(gate: Gate, provider: Provider, change: str) -> None:
    provider.change = CLAIMS[change]
    olga = gate.browser()
    assert olga.get(sent_back(olga)).status_code in (403, 502)
    assert name_of(olga) is None


@pytest.mark.parametrize("sign", ["none", "HS256", "strange", "unknown", "damaged", "nothing"])
def test_other_signatures_sign_nobody_in(gate: Gate, provider: Provider, sign: str) -> None:
    provider.sign = sign
    olga = gate.browser()
    assert olga.get(sent_back(olga)).status_code == 502
    assert name_of(olga) is None


def test_one_group_may_be_a_text(gate: Gate, provider: Provider) -> None:
    provider.person = OLGA | {"groups": "dpo"}
    olga = gate.browser()
    assert olga.get(sent_back(olga)).status_code == 303
    assert olga.get("/api/v1/session").json()["roles"] == ["auditor"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://another.example"},
        {"issuer": None},
        {"token_endpoint": "http://provider.example/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
def test_a_provider_that_says_otherwise_is_not_asked(gate: Gate, provider: Provider, metadata: dict[str, Any]) -> None:
    provider.metadata = metadata
    answer = gate.browser().get("/sign-in/oidc")
    assert answer.status_code == 502
    assert "another.example" not in answer.text


def test_a_provider_that_names_itself_must_do_so(gate: Gate, provider: Provider) -> None:
    """RFC 9207: whose answer it is stands in it, so that another's is not taken for it."""
    provider.metadata = {"authorization_response_iss_parameter_supported": True}
    olga = gate.browser()
    assert olga.get(sent_back(olga)).status_code == 502
    assert olga.get(altered(sent_back(olga), iss=provider.url)).status_code == 303


def test_a_provider_that_is_away_is_told(settings: Settings, provider: Provider) -> None:
    with socket.socket() as held:  # bound and not listening, so that connections are refused
        held.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{held.getsockname()[1]}"
        away = gate_of(settings, oidc=oidc(provider, issuer=nowhere), oidc_secret=SECRET)
        assert away.browser().get("/sign-in/oidc").status_code == 502
    assert gate_of(settings).browser().get("/sign-in/oidc").status_code == 404
    assert gate_of(settings).browser().get("/sign-in/oidc/back?state=x&code=y").status_code == 404


def test_a_client_that_the_provider_does_not_know(settings: Settings, provider: Provider) -> None:
    gate = gate_of(settings, oidc=oidc(provider), oidc_secret="another secret")
    gate.clock.now = time.time()
    olga = gate.browser()
    answer = olga.get(sent_back(olga))
    assert (answer.status_code, name_of(olga)) == (403, None)
    assert "jane.doe" not in answer.text


@pytest.mark.parametrize("onward", ["https://evil.example", "//evil.example", "/%5Cevil.example", "/sign-out"])
def test_the_way_on_stays_within(gate: Gate, onward: str) -> None:
    olga = gate.browser()
    assert olga.get(sent_back(olga, onward)).headers["location"] == "/"


def test_many_departures_fill_no_disk(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.console.oidc._MOST_AWAY", 5)
    for _ in range(12):
        gate.browser().get("/sign-in/oidc")
    with gate.services.users._store.read() as connection:
        (count,) = connection.execute("SELECT count(*) FROM departure").fetchone()
    assert count <= 6
