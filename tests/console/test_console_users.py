"""Local users, how often a password may be tried, and the commands."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from gate_cases import PHRASE, Clock, quick_hashes

from dpsynth_platform.cli import main as cli
from dpsynth_platform.console import attempts, users
from dpsynth_platform.console.attempts import MOST_FROM_ADDRESS, MOST_OF_NAME, MOST_OF_NAME_HERE, WINDOW, Attempts
from dpsynth_platform.console.configuration import SessionLimits
from dpsynth_platform.console.sessions import Sessions, handle_of
from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import PASSWORD, Users
from dpsynth_platform.foundation.errors import ConfigurationError, SignedOut

HERE = "192.0.2.1"
Dpsynth = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_hashes(monkeypatch)


@pytest.fixture
def local(tmp_path: Path) -> Users:
    return Users(Store(tmp_path / "console"))


def test_a_user_is_who_knows_the_password(local: Users) -> None:
    local.add("Rita", ["reviewer", "engineer"], PHRASE)
    found = local.verified("Rita", PHRASE)
    assert found is not None
    who = found.identity
    assert (who.name, who.roles, who.how) == ("Rita", {"reviewer", "engineer"}, "password")
    assert local.verified("rita", PHRASE) == found
    for name, password in (("Rita", PHRASE + " "), ("Rita", ""), ("Aud", PHRASE), ("Rita", "x" * 5000)):
        assert local.verified(name, password) is None
    local.change_password("Rita", PHRASE + " indeed")
    assert local.verified("Rita", PHRASE) is None
    again = local.verified("Rita", PHRASE + " indeed")
    assert again is not None
    assert (again.identity, again.changed > found.changed) == (who, True)


@pytest.mark.parametrize("change", ["password", "roles", "removed", "another of that name"])
def test_no_session_begins_as_of_before_a_change(local: Users, change: str) -> None:
    """Such as when the password is changed while a sign-in is looking at the old one."""
    sessions = Sessions(local._store, SessionLimits(), [PASSWORD])
    local.add("Rita", ["reviewer"], PHRASE)
    found = local.verified("Rita", PHRASE)
    assert found is not None
    assert sessions.find(handle_of(sessions.begin(found.identity, found.changed))) == found.identity
    match change:
        case "password":
            local.change_password("Rita", PHRASE + " indeed")
        case "roles":
            local.change_roles("Rita", ["auditor"])
        case _:
            local.remove("Rita")
    if change == "another of that name":
        local.add("Rita", ["reviewer"], PHRASE + " indeed")
    for changed in (found.changed, None):
        with pytest.raises(SignedOut, match="changed during the sign-in"):
            sessions.begin(found.identity, changed)
    with local._store.read() as connection:
        assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)


def test_one_person_is_one_user(local: Users) -> None:
    local.add("Rita", ["reviewer"], PHRASE)
    for name in ("Rita", "RITA", " r i t a", "\N{FULLWIDTH LATIN CAPITAL LETTER R}ita", "Ri\N{HAIR SPACE}ta"):
        with pytest.raises(ConfigurationError, match="there is a user of that name"):
            local.add(name, ["auditor"], PHRASE)
    assert [(user.name, user.roles) for user in local.all()] == [("Rita", {"reviewer"})]


@pytest.mark.parametrize("name", ["", " ", "Ri\nta", "\N{RIGHT-TO-LEFT OVERRIDE}atiR", "R" * 201])
def test_a_name_can_stand_in_the_ledger(local: Users, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^NAME: "):
        local.add(name, ["auditor"], PHRASE)


@pytest.mark.parametrize(
    "name",
    [
        "R\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}ta",
        "Rita Revi\N{CYRILLIC SMALL LETTER IE}wer",
        "R\N{HAIR SPACE}\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}\N{HAIR SPACE}ta",
        "Rit\N{GREEK SMALL LETTER ALPHA}",
        "\N{MATHEMATICAL BOLD CAPITAL R}it\N{MATHEMATICAL BOLD SMALL ALPHA}",
        "\N{CYRILLIC CAPITAL LETTER A}\N{GREEK SMALL LETTER OMICRON}",
        "Rita Рита",
    ],
)
def test_a_name_does_not_borrow_letters_that_look_alike(local: Users, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^NAME: .* mixes (Cyrillic|Greek) and "):
        local.add(name, ["auditor"], PHRASE)


@pytest.mark.parametrize("name", ["Рита", "Ρίτα", "Renée Łuczak-Ørsted", "山田Taro", "rita@example.org"])
def test_a_name_is_written_in_any_script(local: Users, name: str) -> None:
    assert local.add(name, ["auditor"], PHRASE).name == name


def test_a_name_that_looks_like_a_users_is_nobody_elses(local: Users) -> None:
    local.add("aca", ["auditor"], PHRASE)
    with pytest.raises(ConfigurationError, match="looks like the user 'aca'; accepted: another name"):
        local.add("аса", ["reviewer"], PHRASE)
    with pytest.raises(ConfigurationError, match="there is a user of that name"):
        local.add("ACA", ["reviewer"], PHRASE)
    assert [item.name for item in local.all()] == ["aca"]


@pytest.mark.parametrize("password", ["", "fourteen chars", "abababababababab", "x" * 1001, "my name is Rita, so"])
def test_a_password_is_not_guessed_soon(local: Users, password: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^password: .*accepted: 15 to 1000") as caught:
        local.add("Rita", ["auditor"], password)
    assert not password or password not in str(caught.value)
    local.add("Rita", ["auditor"], PHRASE)
    with pytest.raises(ConfigurationError, match=r"^password: "):
        local.change_password("Rita", password)


def test_a_password_is_the_same_on_every_keyboard(local: Users) -> None:
    local.add("Rita", ["auditor"], "pass phrase with \u00e9 and \ufb01ve")
    assert local.verified("Rita", "pass phrase with e\u0301 and five")


@pytest.mark.parametrize("roles", [[], ["owner"], ["reviewer", "Auditor"]])
def test_roles_are_known_ones(local: Users, roles: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"--role: .*accepted: engineer, reviewer, auditor"):
        local.add("Rita", roles, PHRASE)


def test_nobody_can_be_changed(local: Users) -> None:
    changes = (lambda: local.remove("Rita"), lambda: local.change_password("Rita", PHRASE))
    for change in (*changes, lambda: local.change_roles("Rita", ["auditor"])):
        with pytest.raises(ConfigurationError, match="there is no such user"):
            change()


def test_a_weak_hash_is_replaced_when_its_password_comes(local: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    local.add("Rita", ["reviewer"], PHRASE)
    stronger = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)
    monkeypatch.setattr(users, "_hasher", stronger)
    assert local.verified("Rita", PHRASE)
    with local._store.read() as connection:
        (kept,) = connection.execute("SELECT password FROM user").fetchone()
    assert not stronger.check_needs_rehash(kept)
    assert local.verified("Rita", PHRASE)


def test_what_is_kept_is_argon2id_of_the_librarys_cost(local: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    local.add("Rita", ["reviewer"], PHRASE)
    with local._store.read() as connection:
        (kept,) = connection.execute("SELECT password FROM user").fetchone()
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")


def test_the_database_is_this_users_alone(tmp_path: Path) -> None:
    (tmp_path / "console").mkdir(mode=0o755)
    Store(tmp_path / "console")
    assert (tmp_path / "console").stat().st_mode & 0o777 == 0o700
    (tmp_path / "console" / "console.db").write_bytes(b"no database, but longer than a header" * 100)
    with pytest.raises(ConfigurationError, match="console's database cannot be used: DatabaseError"):
        Store(tmp_path / "console")


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    with Store(tmp_path).write() as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="made by a newer version"):
        Store(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tried(counting: Attempts, name: str, address: str, times: int) -> list[float]:
    return [counting.begin(name, address) for _ in range(times)]


def test_tries_are_counted_by_name_and_address(clock: Clock) -> None:
    counting = Attempts(clock)
    assert not any(tried(counting, "rita", HERE, MOST_OF_NAME_HERE))
    assert counting.begin("rita", HERE) == WINDOW
    assert counting.begin("aud", HERE) == 0
    assert counting.begin("rita", "192.0.2.2") == 0
    clock.now += WINDOW
    assert counting.begin("rita", HERE) == 0


def test_tries_are_counted_by_name_from_everywhere(clock: Clock) -> None:
    counting = Attempts(clock)
    assert not any(counting.begin("rita", f"192.0.2.{number}") for number in range(MOST_OF_NAME))
    assert counting.begin("rita", "198.51.100.1") == WINDOW


def test_tries_are_counted_by_address_for_everybody(clock: Clock) -> None:
    counting = Attempts(clock)
    assert not any(counting.begin(f"name {number}", HERE) for number in range(MOST_FROM_ADDRESS))
    assert counting.begin("rita", HERE) == WINDOW
    counting = Attempts(clock)
    assert not any(counting.begin(f"name {number}", f"2001:db8::{number:x}") for number in range(MOST_FROM_ADDRESS))
    assert counting.begin("rita", "2001:db8:0:0:ffff::1") == WINDOW
    assert counting.begin("rita", "2001:db8:0:1::1") == 0


def test_a_right_password_takes_back_its_own_tries(clock: Clock) -> None:
    counting = Attempts(clock)
    for _ in range(MOST_FROM_ADDRESS * 2):
        assert counting.begin("rita", HERE) == 0
        counting.succeeded("rita", HERE)
    tried(counting, "rita", HERE, MOST_OF_NAME_HERE - 1)
    assert counting.begin("rita", HERE) == 0
    counting.succeeded("rita", HERE)
    assert counting.begin("rita", HERE) == 0


def test_many_names_fill_no_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_KEPT", 30)
    counting = Attempts(clock)
    for number in range(200):
        counting.begin(f"name {number}", f"192.0.2.{number}")
    assert len(counting._tries) <= 33
    clock.now += WINDOW
    counting.begin("rita", HERE)
    assert len(counting._tries) == 3


def test_a_long_name_fills_no_memory(clock: Clock) -> None:
    counting = Attempts(clock)
    for name in ("r" * 1_000_000, "s" * 1_000_000, "\ud800"):
        assert counting.begin(name, HERE) == 0
    assert len(counting._tries) == 7
    assert max(len(part) for key in counting._tries for part in key) <= 64


@pytest.fixture
def dpsynth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dpsynth:
    """Runs `dpsynth console user`; returns status, standard output and standard error."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(tmp_path))

    def run(*arguments: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.app(["console", "user", *arguments])
        out, err = capfd.readouterr()
        assert PHRASE not in out + err
        return int(ended.value.code or 0), out, err

    return run


def test_users_are_kept_by_commands(dpsynth: Dpsynth, tmp_path: Path) -> None:
    status, out, _ = dpsynth("add", "Rita", "--role", "reviewer,engineer", "--password-stdin", given=f"{PHRASE}\n")
    assert (status, out.strip()) == (0, "Rita can sign in now, as engineer, reviewer")
    local = Users(Store(tmp_path / "home" / "console"))
    assert local.verified("Rita", PHRASE)
    status, out, _ = dpsynth("list", "--json")
    (told,) = json.loads(out)
    assert (told["name"], told["roles"], status) == ("Rita", ["engineer", "reviewer"], 0)
    assert "argon2" not in out
    told = json.loads(dpsynth("roles", "Rita", "--role", "auditor", "--json")[1])
    assert told == {"name": "Rita", "roles": ["auditor"]}
    assert local.all()[0].roles == {"auditor"}
    assert dpsynth("password", "Rita", "--password-stdin", given=f"{PHRASE}, changed\n")[0] == 0
    assert local.verified("Rita", PHRASE) is None
    assert local.verified("Rita", f"{PHRASE}, changed")
    assert dpsynth("remove", "Rita")[0] == 0
    assert local.all() == []
    assert "no local user" in dpsynth("list")[1]


def test_commands_say_what_is_accepted(dpsynth: Dpsynth) -> None:
    for arguments, given, words in (
        (("add", "Rita", "--role", "owner", "--password-stdin"), PHRASE, "--role: 'owner'; accepted: engineer"),
        (("add", "Rita", "--password-stdin"), PHRASE, "--role: none; accepted: engineer"),
        (("add", "Rita", "--role", "auditor", "--password-stdin"), "short", "password: 5 characters; accepted: 15"),
        (("add", "Rita", "--role", "auditor", "--password-stdin"), "x" * 9000, "--password-stdin: the line has"),
        (("remove", "Rita"), "", "'Rita': there is no such user"),
    ):
        status, out, err = dpsynth(*arguments, given=given)
        assert (status, out) == (1, "")
        assert words in err


def test_a_password_is_typed_twice(dpsynth: Dpsynth, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([PHRASE, PHRASE])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(typed))
    monkeypatch.setattr("typer._click.termui.hidden_prompt_func", lambda _: next(typed), raising=False)
    assert dpsynth("add", "Rita", "--role", "auditor")[0] == 0
    assert next(typed, None) is None
