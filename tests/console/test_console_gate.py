"""The gate of the console: who gets in, how, and what becomes of it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import httpx
import pytest
from argon2 import PasswordHasher
from gate_cases import PHRASE, Browser, Gate, gate_of, problem, quick_hashes

from dpsynth_platform.console import users
from dpsynth_platform.console.access import CSRF_HEADER, MOST_BYTES
from dpsynth_platform.console.attempts import MOST_OF_NAME_HERE, WINDOW
from dpsynth_platform.console.configuration import Proxy
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.sessions import handle_of
from dpsynth_platform.console.store import Store
from dpsynth_platform.foundation.errors import SignedOut
from dpsynth_platform.foundation.restricted_log import without_words
from dpsynth_platform.foundation.settings import Settings

NEXT = "/sign-in?next="


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_DEPLOY": str(tmp_path)})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_hashes(monkeypatch)


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


@pytest.mark.parametrize(
    "onward",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "releases",
        "",
        "/api/v1/session",
        "/sign-out",
        "/sign-in?next=/",
        "/ä",
        "/x\r\nSet-Cookie: a=b",
        "/" + "a" * 3000,
    ],
)
def test_the_way_on_stays_within(gate: Gate, onward: str) -> None:
    rita = gate.browser()
    assert rita.sign_in("Rita", PHRASE, onward).headers["location"] == "/"
    assert rita.client.get("/sign-in", params={"next": onward}).headers["location"] == "/"


def with_cookie(gate: Gate, token: str) -> Browser:
    browser = gate.browser()
    browser.client.cookies.set("dpsynth", token)
    return browser


def test_a_session_cannot_be_prepared_for_somebody(gate: Gate) -> None:
    """Whatever cookie was there before the sign-in, the one after it is new, and the old one opens nothing."""
    prepared = "chosen-by-somebody-else"
    rita = with_cookie(gate, prepared)
    answer = rita.sign_in("Rita", PHRASE)
    assert answer.status_code == 303
    assert token_of(answer) != prepared
    assert not is_in(with_cookie(gate, prepared))
    assert is_in(with_cookie(gate, token_of(answer)))
    # Signing in once more ends the session of before.
    twice = with_cookie(gate, token_of(answer))
    twice.client.cookies.set("dpsynth-start", "x" * 43)
    again = twice.post("/sign-in", form={"name": "Rita", "password": PHRASE, "csrf": "x" * 43, "next": "/"})
    assert not is_in(with_cookie(gate, token_of(answer)))
    assert is_in(with_cookie(gate, token_of(again)))


def token_of(answer: httpx.Response) -> str:
    (cookie,) = [item for item in answer.headers.get_list("set-cookie") if item.startswith("dpsynth=")]
    assert "; HttpOnly; Path=/; SameSite=lax" in cookie
    return cookie.partition("=")[2].partition(";")[0]


def test_tokens_are_kept_as_hashes_alone(gate: Gate, settings: Settings) -> None:
    answer = gate.browser().sign_in("Rita", PHRASE)
    kept = b"".join(path.read_bytes() for path in settings.console_home.iterdir())
    assert token_of(answer).encode() not in kept
    assert handle_of(token_of(answer)).encode() in kept
    assert PHRASE.encode() not in kept
    assert b"$argon2id$" in kept
    assert {path.stat().st_mode & 0o777 for path in settings.console_home.iterdir()} == {0o600}
    assert settings.console_home.stat().st_mode & 0o777 == 0o700


def test_sessions_end_by_themselves(gate: Gate) -> None:
    limits = gate.services.console.sessions
    rita = gate.signed_in("Rita")
    for _ in range(3):
        gate.clock.now += limits.idle - 1
        assert is_in(rita)
    gate.clock.now += limits.idle + 1
    assert not is_in(rita)
    gate.clock.now -= 2  # it does not come back with the clock
    assert not is_in(rita)
    rita = gate.signed_in("Rita")
    gate.clock.now -= 5  # a clock that is put right ends nothing
    assert is_in(rita)
    gate.clock.now -= 3600  # one that is put wrong prolongs nothing
    assert not is_in(rita)
    rita = gate.signed_in("Rita")
    for _ in range(int(limits.longest / (limits.idle / 2)) - 1):
        gate.clock.now += limits.idle / 2
        assert is_in(rita)
    gate.clock.now += limits.idle / 2 + 1
    assert not is_in(rita)


@pytest.mark.parametrize("change", ["roles", "password", "removed"])
def test_sessions_end_with_a_change_of_their_user(gate: Gate, change: str) -> None:
    rita, aud = gate.signed_in("Rita"), gate.signed_in("Aud")
    here = gate.services.signed_in(
        rita.client.cookies["dpsynth"], Identity("Rita", frozenset({"reviewer"}), "password")
    )
    assert here.again().name == "Rita"
    match change:
        case "roles":
            gate.services.users.change_roles("rita", ["auditor"])
        case "password":
            gate.services.users.change_password("Rita", PHRASE + " and more")
        case "removed":
            gate.services.users.remove("Rita")
    assert not is_in(rita)
    assert is_in(aud)
    with pytest.raises(SignedOut):
        here.again()


def test_the_roles_are_those_of_now(gate: Gate, settings: Settings) -> None:
    """Should a change of roles ever leave a session alive, that has the new ones."""
    rita = gate.signed_in("Rita")
    with Store(settings.console_home).write() as connection:
        connection.execute("UPDATE user SET roles = 'engineer' WHERE name = 'Rita'")
    assert rita.get("/api/v1/session").json()["roles"] == ["engineer"]
    with Store(settings.console_home).write() as connection:
        connection.execute("UPDATE user SET roles = 'owner' WHERE name = 'Rita'")
    assert not is_in(rita)


def test_a_way_that_is_closed_ends_its_sessions(gate: Gate, settings: Settings) -> None:
    token = token_of(gate.browser().sign_in("Rita", PHRASE))
    proxy = Proxy(addresses=["10.0.0.1"], secret_file=Path("/nowhere"))
    closed = gate_of(settings, local=False, proxy=proxy, proxy_secret="s" * 40)
    assert not is_in(with_cookie(closed, token))
    page = closed.browser().get("/sign-in").text
    assert 'type="password"' not in page
    form = {"name": "Rita", "password": PHRASE, "csrf": "x", "next": "/"}
    assert closed.browser().post("/sign-in", form=form).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:3901"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "https://127.0.0.1:3900"},
        {"Origin": "http://localhost:3900"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_pages_form_signs_nobody_in_or_out(gate: Gate, headers: dict[str, str]) -> None:
    rita = gate.signed_in("Rita")
    assert rita.post("/sign-out", form={"csrf": rita.csrf()}, **headers).status_code == 403
    assert problem(rita.change("/api/v1/nothing", {}, **headers)) == (403, "origin")
    assert is_in(rita)
    assert gate.browser().sign_in("Rita", PHRASE, **headers).status_code == 403


def test_the_sign_in_needs_its_own_page(gate: Gate) -> None:
    """Or another site could sign somebody in as somebody else, and read what they do there."""
    nobody = gate.browser()
    form = {"name": "Rita", "password": PHRASE, "next": "/"}
    for csrf in ({}, {"csrf": ""}, {"csrf": "x" * 43}):
        answer = nobody.post("/sign-in", form=form | csrf)
        assert (answer.status_code, "open for too long" in answer.text) == (403, True)
    other = gate.browser().get("/sign-in").text.partition('name="csrf" value="')[2][:43]
    assert nobody.post("/sign-in", form=form | {"csrf": other}).status_code == 403
    assert nobody.post("/sign-in", json=form).status_code == 415


def test_a_change_needs_the_sessions_token(gate: Gate) -> None:
    rita, aud = gate.signed_in("Rita"), gate.signed_in("Aud")
    for token in ("", "x", "é", aud.csrf(), rita.client.cookies["dpsynth"]):
        assert problem(rita.change("/api/v1/nothing", {}, **{CSRF_HEADER: token})) == (403, "csrf")
    assert problem(rita.change("/api/v1/nothing", {})) == (404, "not-found")
    assert problem(gate.browser().post("/api/v1/nothing", json={})) == (401, "signed-out")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:3901", "localhost.evil.example:3900", ""])
def test_another_name_for_the_console_gets_nothing(gate: Gate, host: str) -> None:
    rita = gate.signed_in("Rita")
    for path in ("/api/v1/session", "/sign-in", "/releases"):
        answer = rita.get(path, Host=host)
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers
    assert rita.get("/health", Host=host).status_code == 200


def test_this_machine_has_several_names(gate: Gate) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]"):
        browser = gate.browser()
        host = f"{name}:3900"
        answer = browser.client.get("/sign-in", headers={"Host": host})
        csrf = answer.text.partition('name="csrf" value="')[2][:43]
        form = {"name": "Rita", "password": PHRASE, "csrf": csrf, "next": "/"}
        assert browser.post("/sign-in", form=form, Host=host, Origin=f"http://{host}").status_code == 303


def test_only_the_api_and_forms_take_anything(gate: Gate) -> None:
    """NiceGUI has addresses for uploads; nobody uploads anything here."""
    rita = gate.signed_in("Rita")
    for path in ("/", "/releases", "/_nicegui/client/x/upload/1", "/health/"):
        answer = rita.post(path, form={})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert rita.get("/_nicegui_ws/socket.io/?transport=polling").status_code == 400


def test_what_is_too_large_or_too_slow_is_not_read(gate: Gate) -> None:
    rita = gate.signed_in("Rita")
    assert rita.post("/sign-out", form={"csrf": "x" * MOST_BYTES}).status_code == 413
    assert rita.post("/sign-out", form={f"f{number}": "x" for number in range(50)}).status_code == 400
    assert is_in(rita)


def test_every_answer_is_guarded(gate: Gate) -> None:
    rita, nobody = gate.signed_in("Rita"), gate.browser()
    answers = [nobody.get(path) for path in ("/", "/sign-in", "/health", "/api/v1/session")]
    answers += [rita.get("/api/v1/session"), rita.get("/api/v1/openapi.json"), nobody.get("/", Host="evil.example")]
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "http" not in policy and "*" not in policy
        assert "access-control-allow-origin" not in answer.headers
        assert "strict-transport-security" not in answer.headers


def test_behind_https_the_cookie_is_the_hosts_alone(settings: Settings) -> None:
    secure = gate_of(settings, url="https://console.example.org")
    answer = secure.browser().sign_in("Rita", PHRASE)
    (cookie,) = [item for item in answer.headers.get_list("set-cookie") if item.startswith("__Host-dpsynth=")]
    assert "; HttpOnly; Path=/; SameSite=lax; Secure" in cookie
    assert "domain" not in cookie.lower()
    assert answer.headers["strict-transport-security"]
    assert secure.browser().get("/sign-in", Host="127.0.0.1:3900").status_code == 421


def test_names_are_shown_as_text(gate: Gate) -> None:
    bait = "<img src=x onerror=alert(1)>"
    gate.services.users.add(bait, ["reviewer"], PHRASE)
    browser = gate.browser()
    assert browser.sign_in(bait, PHRASE).status_code == 303
    assert browser.get("/api/v1/session").headers["content-type"] == "application/json"
    for answer in (browser.get(f"/sign-in?next=/{bait}"), gate.browser().sign_in(bait, bait, f"/{bait}")):
        assert bait not in answer.text


def test_passwords_cannot_be_tried_for_long(gate: Gate) -> None:
    browser = gate.browser()
    for _ in range(MOST_OF_NAME_HERE):
        assert browser.sign_in("Rita", "wrong " + PHRASE).status_code == 403
    answer = browser.sign_in("RITA ", PHRASE)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(int(WINDOW)))
    assert gate.browser().sign_in("Aud", PHRASE).status_code == 303
    assert gate.browser("192.0.2.7").sign_in("Rita", PHRASE).status_code == 303
    gate.clock.now += WINDOW
    assert browser.sign_in("Rita", PHRASE).status_code == 303


def test_who_is_unknown_is_told_and_takes_what_a_wrong_password_does(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    class Counting(PasswordHasher):
        def verify(self, kept: str, password: str) -> bool:
            checked.append(kept.rpartition("$")[0].rpartition("$")[0])  # the parameters, without salt and hash
            return super().verify(kept, password)

    monkeypatch.setattr(users, "_hasher", Counting(time_cost=1, memory_cost=8, parallelism=1))
    answers = [gate.browser().sign_in(name, "wrong " + PHRASE) for name in ("Rita", "Nobody", "", "x" * 5000, "\x00")]
    assert len(checked) == 5
    assert len(set(checked)) == 1
    assert {answer.status_code for answer in answers} == {403}
    assert len({re.sub(r'value="[^"]*"', "", answer.text) for answer in answers}) == 1


def test_the_log_names_nobody_and_nothing(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dpsynth_platform")
    secret = "jane.doe@example.org"
    browser = gate.browser()
    browser.sign_in(secret, secret)
    browser.sign_in("Rita", PHRASE, f"/{secret}")
    browser.get(f"/{secret}?q={secret}", Cookie=f"x={secret}")
    browser.get(f"/api/v1/{secret}")
    browser.get(f"/{secret}", Host=secret)
    browser.post(f"/{secret}", form={secret: secret}, Origin=secret)
    told = caplog.text + browser.get(f"/api/v1/{secret}").text + browser.get("/", Host=secret).text
    assert "sign-in: by password" in told
    assert "sign-in: refused" in told
    for word in (secret, "jane", "Rita", PHRASE, browser.client.cookies["dpsynth"], browser.csrf()):
        assert word not in told


def test_a_librarys_line_of_the_log_quotes_nothing() -> None:
    secret = "jane.doe@example.org"
    record = logging.LogRecord("nicegui", logging.WARNING, "element.py", 5, secret, (secret,), None, sinfo=secret)
    assert without_words(record)
    assert logging.Formatter().format(record) == "nicegui, element 5: a line of its own"


def test_an_unexpected_error_is_told_by_its_type(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    secret = "jane.doe@example.org"

    @gate.app.get("/api/v1/broken")
    def broken() -> None:
        raise ValueError(secret)

    rita = gate.signed_in("Rita")
    answer = rita.get("/api/v1/broken")
    assert problem(answer) == (500, "unexpected")
    assert "ValueError" in caplog.text
    assert secret not in caplog.text + answer.text
