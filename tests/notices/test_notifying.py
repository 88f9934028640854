"""Notices: what is told, to a real command and a real HTTP receiver, once each and in order, whatever fails."""

import datetime as dt
import errno
import json
import os
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import dagster as dg
import pytest
from typer.testing import CliRunner

from dpsynth_platform.cli import main as cli
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import BudgetExceeded, ConfigurationError, LedgerError, NotificationFailed
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter, Status
from dpsynth_platform.notices import notifying, receivers
from dpsynth_platform.notices.notifying import STUCK_AFTER, StreamEvent, deliver, notify
from dpsynth_platform.notices.receivers import Command, Notice, Webhook
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from sensors.notices import notification_sensor

SECRET = "whsec-1234"
CANDIDATE = "c" * 64
REASON = "rows of Ann Lee look odd"
TAKES = """
import pathlib, sys
notice = sys.stdin.read()
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write(notice)
"""


class Receiver:
    """A real HTTP server that keeps what it is sent, and answers as it is told."""

    def __init__(self):
        self.status, self.bodies, self.headers = 204, [], {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if owner.status < 300:
                    owner.bodies.append(json.loads(body))
                self.send_response(owner.status)
                for name, value in owner.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def told(tmp_path):
    """The file that the command writes; the command itself is `told.command`."""
    (tmp_path / "takes.py").write_text(TAKES)

    class Told:
        file = tmp_path / "told.jsonl"
        command = (sys.executable, str(tmp_path / "takes.py"), str(file))

        def notices(self):
            return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    return Told()


@pytest.fixture
def settings(tmp_path, told, receiver, monkeypatch):
    monkeypatch.setattr(receivers, "_SECONDS", 300.0)  # however busy the machine is
    monkeypatch.setattr(notifying, "_PASS_SECONDS", 600.0)
    home = tmp_path / "home"
    return Settings(
        home=home,
        deploy=tmp_path / "deploy",
        ledger_url=f"sqlite:///{home / 'ledger' / 'ledger.db'}",
        user="runner",
        notify=told.command,
        notify_url=receiver.url,
    )


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = dt.datetime.now(dt.UTC)

        def wait(self, **time):
            self.now += dt.timedelta(**time)

    made = Clock()
    monkeypatch.setattr(notifying, "_now", lambda: made.now)
    return made


def asked(scale=20.0):
    event = DiscreteGaussianCountsEvent(scale, "add-or-remove", 1)
    return CostRequest.of(
        event,
        dataset="visits",
        period="2026-01",
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
        plan_digest="9" * 64,
        runner="Ada",
    )


@pytest.fixture
def ledger(settings):
    """A ledger with one of every event that is told."""
    store = Ledger(settings.ledger_url)
    store.open_account(
        FamilyBudget(
            family="clinic", unit="user", namespace="patient", mode="family", cap={"epsilon": 2.0, "delta": 1e-5}
        ),
        ("k1", "k2"),
    )
    entry = store.reserve("clinic", "key", asked(), None, "compose").entry_id
    store.start(entry)
    store.complete(entry, "5" * 64)
    store.record("candidate", CANDIDATE, {"entry": entry})
    store.refuse(CANDIDATE, by="Grace", entry_id=entry, reason=REASON)
    store.approve(CANDIDATE, by="Grace", entry_id=entry, reason=REASON)
    store.release("visits-2026-01-0123456789abcdef", candidate=CANDIDATE, entry_id=entry, check=list)
    store.withdraw("visits-2026-01-0123456789abcdef", by="Cy", reason=REASON)
    with pytest.raises(BudgetExceeded):
        store.admit("clinic", asked(scale=0.4))
    return store


EVENTS = ["candidate-ready", "refused", "approved", "released", "withdrawn", "blocked"]


def events(notices):
    return [notice["event"] for notice in notices]


def test_each_is_told_once_and_in_order(settings, ledger, told, receiver):
    report = notify(settings)
    assert report.sent == {"command": 6, "webhook": 6}
    assert report.waiting == {"command": (), "webhook": ()}
    assert events(told.notices()) == events(receiver.bodies) == EVENTS
    assert told.notices() == receiver.bodies
    assert [notice["id"] for notice in receiver.bodies] == sorted({notice["id"] for notice in receiver.bodies})
    assert notify(settings).sent == {"command": 0, "webhook": 0}
    assert len(told.notices()) == len(receiver.bodies) == 6
    ledger.refuse(CANDIDATE, by="Bo", entry_id=ledger.entries()[0].entry_id, reason="why")
    assert notify(settings).sent == {"command": 1, "webhook": 1}
    assert events(receiver.bodies) == [*EVENTS, "refused"]


def test_only_public_facts_are_told(settings, ledger, receiver):
    """No person, no free word, no hash of restricted content, no entry and no amount."""
    notify(settings)
    fields = {"id", "event", "at", "dataset", "period", "release", "text", "link"}
    assert all(notice.keys() == fields for notice in receiver.bodies)
    said = json.dumps(receiver.bodies)
    entry = ledger.entries()[0]
    for word in ("Grace", "Cy", "Ada", "Ann Lee", "odd", CANDIDATE[:16], entry.entry_id, "9" * 16, "5" * 16, "epsilon"):
        assert word not in said
    by_event = {notice["event"]: notice for notice in receiver.bodies}
    assert by_event["released"]["release"] == "visits-2026-01-0123456789abcdef"
    assert by_event["candidate-ready"]["release"] is None
    assert by_event["candidate-ready"]["text"].endswith("dpsynth release show visits --period 2026-01")
    assert {(notice["dataset"], notice["period"]) for notice in receiver.bodies} == {("visits", "2026-01")}


def test_notices_lead_to_the_console(settings, ledger, receiver):
    notify(replace(settings, console_url="https://console.example.org"))
    candidate, release = "candidates/visits/2026-01", "releases/visits-2026-01-0123456789abcdef"
    paths = [candidate, candidate, candidate, release, release, "datasets/visits"]
    assert [notice["link"] for notice in receiver.bodies] == [f"https://console.example.org/{path}" for path in paths]


def test_slack_and_teams_get_their_forms_and_are_shown_nowhere(settings, ledger, receiver, monkeypatch):
    notice = Notice(
        7, "released", "2026-11-20T00:00:00+00:00", "visits", None, "visits-0", "a <b> & *c*", "https://c/r"
    )
    Webhook(receiver.url, "slack").send(notice)
    Webhook(receiver.url, "teams").send(notice)
    Webhook(receiver.url, "teams").send(replace(notice, link=None))
    slack, teams, without = receiver.bodies
    assert slack == {"text": "dpsynth, released: a &lt;b&gt; &amp; *c*\n<https://c/r>", "unfurl_links": False}
    (attachment,) = teams["attachments"]
    assert (teams["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    assert (card["type"], card["body"][1]["inlines"][0]["text"]) == ("AdaptiveCard", "a <b> & *c*")
    assert [action["url"] for action in card["actions"]] == ["https://c/r"]
    assert without["attachments"][0]["content"]["actions"] == []

    environment = {"DPSYNTH_NOTIFY_SLACK": receiver.url, "DPSYNTH_NOTIFY_TEAMS": receiver.url}
    found = receivers.receivers_of(Settings.from_environment(environment))
    assert [item.name for item in found] == ["slack", "teams"]
    assert SECRET not in repr(found)
    for name in environment:
        with pytest.raises(ConfigurationError, match=rf"^{name}: accepted: https") as refused:
            Settings.from_environment({name: f"http://hooks.example.org/{SECRET}"})
        assert SECRET not in str(refused.value)


def test_a_test_reaches_every_receiver_and_says_which_failed(settings, told, receiver, monkeypatch, capfd):
    changed = replace(settings, notify_slack=f"http://127.0.0.1:9/{SECRET}")
    monkeypatch.setattr(cli.Settings, "from_environment", lambda: changed)
    done = CliRunner().invoke(cli.app, ["notify", "--test", "--json"])
    said = capfd.readouterr()
    assert done.exit_code == 1
    away = {"ok": False, "why": "it cannot be reached (URLError)"}
    assert json.loads(said.out) == {
        "command": {"ok": True, "why": ""},
        "webhook": {"ok": True, "why": ""},
        "slack": away,
    }
    assert [notice["event"] for notice in (*told.notices(), *receiver.bodies)] == ["test", "test"]
    assert "this is a test" in receiver.bodies[0]["text"]
    assert SECRET not in done.output + said.out + said.err
    assert not settings.has_ledger


def test_a_verdict_that_looked_at_the_data_is_not_told(settings, ledger, receiver):
    notify(settings)
    facts = {"dataset": "visits", "period": None, "epsilon": 1.0, "delta": 1e-6, "plan_digest": "9", "runner": "Ada"}
    for reason in ("overlap", "another", "cap"):
        payload = facts | {"reason": reason}
        ledger._database.write(
            lambda connection, payload=payload: chain.append(
                connection, dt.datetime.now(dt.UTC).isoformat(), chain.BLOCKED, "clinic", payload
            )
        )
    report = notify(settings)
    assert report.sent == {"command": 1, "webhook": 1}
    assert report.waiting == {"command": (), "webhook": ()}


def test_lineage_that_does_not_arrive_is_told_once_a_day(settings, ledger, receiver, clock, monkeypatch):
    notify(settings)
    assert "lineage-alert" not in events(receiver.bodies)
    stuck = Status(targets=(), spooled=0, unrecorded=3)
    monkeypatch.setattr(LineageEmitter, "status", lambda self: stuck)
    for _ in range(2):
        notify(settings)
    (alert,) = [notice for notice in receiver.bodies if notice["event"] == "lineage-alert"]
    assert (alert["dataset"], alert["release"]) == (None, None)
    assert "dpsynth lineage status" in alert["text"]
    clock.wait(days=1, minutes=1)
    notify(settings)
    assert events(receiver.bodies).count("lineage-alert") == 2
    assert ledger.verify().ok


def test_a_receiver_that_is_away_loses_nothing_and_holds_up_nobody(settings, ledger, told, receiver, clock):
    receiver.status = 503
    report = notify(settings)
    assert report.sent == {"command": 6, "webhook": 0}
    assert events(told.notices()) == EVENTS
    assert [notice.event for notice in report.waiting["webhook"]] == EVENTS
    (cursor,) = [item for item in report.cursors if item.receiver == "webhook"]
    assert (cursor.attempts, cursor.problem) == (1, "it answered with status 503")
    assert notify(settings).cursors[1].attempts == 1  # not before its time
    waits = []
    for attempt in range(1, 9):
        due = dt.datetime.fromisoformat(notify(settings).cursors[1].not_before)
        waits.append((due - clock.now).total_seconds())
        clock.now = due - dt.timedelta(seconds=1)
        assert notify(settings).cursors[1].attempts == attempt
        clock.now = due
        assert notify(settings).cursors[1].attempts == attempt + 1
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600]
    receiver.status = 200
    clock.wait(hours=1)
    assert notify(settings).sent == {"command": 0, "webhook": 6}
    assert events(receiver.bodies) == EVENTS
    assert notify(settings).cursors[1].problem == ""


def test_a_clock_that_is_set_back_an_hour_makes_nobody_wait_longer_and_tells_nothing_twice(
    settings, ledger, told, receiver, clock
):
    receiver.status = 503
    for _ in range(8):
        notify(settings)
        clock.wait(hours=1)
    receiver.status = 200
    notify(settings)
    receiver.status = 503
    ledger.refuse(CANDIDATE, by="Bo", entry_id=ledger.entries()[0].entry_id, reason="why")
    assert notify(settings).cursors[1].attempts == 1
    receiver.status = 200
    assert notify(settings).sent["webhook"] == 0, "not before its time"
    clock.wait(hours=-1)
    assert notify(settings).sent == {"command": 0, "webhook": 1}, "an hour and a half is no wait"
    assert events(receiver.bodies) == events(told.notices()) == [*EVENTS, "refused"]


def test_where_the_disk_is_full_nothing_is_told_again_and_again(settings, ledger, told, receiver, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(notifying, "write_durably", full)
        for _ in range(3):
            with pytest.raises(NotificationFailed, match=r"command\.json cannot be written \(no space left"):
                notify(settings)
    assert told.notices() == receiver.bodies == []
    assert notify(settings).sent == {"command": 6, "webhook": 6}
    assert events(told.notices()) == EVENTS


def test_each_stream_has_its_own_cursors(settings, ledger, receiver):
    """A stream that is told of fully, and one whose source is away, hold up no other."""

    def runs(after):
        at = dt.datetime.now(dt.UTC).isoformat()
        return [StreamEvent(number, at, replace(NOTICE, id=f"run-{number}")) for number in range(after + 1, 4)]

    def away(after):
        raise LedgerError("the ledger's database cannot be reached")

    assert deliver(settings, runs, name="runs").sent == {"command": 3, "webhook": 3}
    with pytest.raises(LedgerError):
        deliver(settings, away)
    assert deliver(settings, runs, name="runs").sent == {"command": 0, "webhook": 0}
    assert notify(settings).sent == {"command": 6, "webhook": 6}
    assert [notice["id"] for notice in receiver.bodies][:3] == ["run-1", "run-2", "run-3"]


def test_a_receiver_that_takes_some_is_told_the_rest_later(settings, ledger, told, clock, monkeypatch):
    sent, send = [], Command.send

    def third_fails(receiver, notice):
        sent.append(notice.id)
        if len(sent) == 3:
            raise NotificationFailed("it ended with status 1")
        send(receiver, notice)

    monkeypatch.setattr(Command, "send", third_fails)
    assert notify(settings).sent["command"] == 2
    clock.wait(minutes=1)
    assert notify(settings).sent["command"] == 4
    assert events(told.notices()) == EVENTS


def test_a_crash_after_delivery_tells_it_again_under_the_same_number(settings, ledger, receiver, monkeypatch):
    write = notifying._write
    with monkeypatch.context() as patch:
        patch.setattr(notifying, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            notify(settings)
    assert notifying._write is write
    notify(settings)
    numbers = [notice["id"] for notice in receiver.bodies]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 6


def test_the_sensor_sends_and_fails_visibly_once_a_receiver_is_stuck(settings, ledger, receiver, clock):
    sensor = notification_sensor(settings)
    receiver.status = 500

    def tick():
        with dg.DagsterInstance.ephemeral() as instance:
            return sensor(dg.build_sensor_context(instance=instance)).skip_message

    assert tick() == "6 notices sent, 6 wait"
    for _ in range(STUCK_AFTER - 2):
        clock.wait(hours=1)
        assert tick() == "0 notices sent, 6 wait"
    clock.wait(hours=1)
    for _ in range(2):
        with pytest.raises(NotificationFailed, match="webhook was tried 5 times without success: it answered") as told:
            tick()
        assert SECRET not in str(told.value)
    receiver.status = 200
    clock.wait(hours=1)
    assert tick() == "6 notices sent, 0 wait"


def test_what_is_older_than_a_day_is_not_told_to_a_new_receiver(settings, ledger, receiver, clock):
    clock.wait(days=2)
    assert notify(settings).sent == {"command": 0, "webhook": 0}
    clock.wait(days=-2)
    ledger.refuse(CANDIDATE, by="Bo", entry_id=ledger.entries()[0].entry_id, reason="why")
    assert notify(settings).sent == {"command": 0, "webhook": 0}, "the reach is that of the first look"


def test_without_a_ledger_or_a_receiver_there_is_nothing_to_do(settings, tmp_path):
    assert notify(settings).sent == {}
    assert not (settings.home / "ledger").exists()


def test_two_at_once_do_not_tell_twice(settings, ledger, told):
    (settings.home / "notify").mkdir()
    with notifying._locked(settings.home / "notify" / ".lock") as locked:
        assert locked
        report = notify(settings)
        assert report.sent == {"command": 0, "webhook": 0}
        assert len(report.waiting["command"]) == 6
    assert told.notices() == []
    assert notify(settings).sent == {"command": 6, "webhook": 6}


NOTICE = Notice(1, "released", "2026-11-20T00:00:00+00:00", "visits", None, "visits-0", "text")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_for_this_machine_goes_by_no_proxy(receiver, monkeypatch, host):
    proxy = Receiver()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    try:
        Webhook(receiver.url.replace("127.0.0.1", host)).send(NOTICE)
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
    assert (events(receiver.bodies), proxy.bodies) == (["released"], [])


def test_a_notice_is_one_line(told):
    for _ in range(2):
        Command(told.command).send(NOTICE)
    text = told.file.read_text()
    assert (text.count("\n"), text.endswith("\n")) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("false",), "it ended with status 1"),
        (("/nowhere/at/all",), "it cannot be started (FileNotFoundError)"),
        (("bad\0name",), "it cannot be started (ValueError)"),
    ],
)
def test_a_command_that_fails_is_told_safely(arguments, words):
    with pytest.raises(NotificationFailed) as told:
        Command(arguments).send(NOTICE)
    assert str(told.value) == words


def test_a_command_that_does_not_end_is_ended_with_its_children(monkeypatch):
    monkeypatch.setattr(receivers, "_SECONDS", 0.5)
    with pytest.raises(NotificationFailed, match=r"did not end within 0\.5 seconds"):
        Command(("sh", "-c", "sleep 60 & sleep 60")).send(NOTICE)


def test_a_command_that_reads_nothing_is_no_failure():
    Command(("true",)).send(NOTICE)


def test_a_command_does_not_see_the_platforms_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", "postgresql://user:password@host/ledger")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "key")
    Command(("sh", "-c", f"env > {tmp_path}/env")).send(NOTICE)
    seen = (tmp_path / "env").read_text()
    assert "PATH=" in seen
    assert "password" not in seen
    assert "OPENLINEAGE" not in seen


def test_a_redirection_is_not_followed(receiver):
    receiver.status, receiver.headers = 302, {"Location": receiver.url}
    with pytest.raises(NotificationFailed, match="it answered with status 302"):
        Webhook(receiver.url).send(NOTICE)
    assert receiver.bodies == []


def test_nobody_there(receiver):
    receiver.server.shutdown()
    receiver.server.server_close()
    with pytest.raises(NotificationFailed, match=r"^it cannot be reached \((URLError|ConnectionResetError)\)$"):
        Webhook(receiver.url).send(NOTICE)


def test_a_damaged_cursor_is_told(settings, ledger):
    notify(settings)
    (settings.home / "notify" / "command.json").write_text("{")
    with pytest.raises(NotificationFailed, match=r"command\.json cannot be read"):
        notify(settings)


def test_the_command_line(settings, ledger, receiver, monkeypatch, capfd):
    monkeypatch.setattr(Settings, "from_environment", lambda: settings)

    def use(*words):
        status = CliRunner().invoke(cli.app, ["notify", *words]).exit_code
        return status, capfd.readouterr().out

    status, said = use("--dry-run")
    assert (status, receiver.bodies) == (0, [])
    assert "webhook: 0 notices sent, 6 wait" in said
    assert "released: visits/2026-01: release visits-2026-01-0123456789abcdef was published" in said
    receiver.status = 410
    status, said = use("--json")
    assert status == 1
    command, webhook = json.loads(said)
    assert (command["sent"], webhook["sent"], len(webhook["waiting"])) == (6, 0, 6)
    assert (webhook["stuck"], webhook["problem"]) == (False, "it answered with status 410")
    assert SECRET not in said
