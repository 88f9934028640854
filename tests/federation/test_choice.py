"""Where relays connect, as a deployment's file says, and the start of Flower by a run."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dpsynth_platform.federation import choice
from dpsynth_platform.federation.choice import FlowerChoice, RelayChoice, relay_choice
from dpsynth_platform.foundation.errors import ConfigurationError


def program(directory: Path, body: str) -> Path:
    """A program in place of `flwr`, which writes how it was called."""
    path = directory / "flwr"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {directory}/arguments\nenv > {directory}/environment\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_file_says_where_relays_connect(tmp_path: Path) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(
        "default: {socket: /srv/one.sock}\n"
        "datasets: {visits: {socket: /srv/two.sock, seconds: 90, flower: {program: /opt/flwr, superlink: far}}}\n"
    )
    assert relay_choice(path, "meals") == RelayChoice(socket="/srv/one.sock")
    found = relay_choice(path, "visits")
    assert (found.seconds, found.flower and found.flower.superlink) == (90, "far")
    assert found.flower is not None and (Path(found.flower.app) / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("datasets: {visits: {socket: /srv/s}}", "default: missing; accepted: a file such as federation.yaml"),
        ("default: {socket: here}", "'here'; accepted: an absolute path"),
        ("default: {}", "default: socket: missing"),
        (f"default: {{socket: /{107 * 's'}}}", "at most 107"),
        ("default: {socket: /s, seconds: 0}", "seconds"),
        ("default: {socket: /s, flower: {program: /f, superlink: 'a b'}}", "superlink"),
        ("default: {socket: /s, relay: /f}", "relay"),
    ],
)
def test_faults_of_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        relay_choice(path, "meals")
    assert words in str(refused.value)
    with pytest.raises(ConfigurationError, match="DPSYNTH_FEDERATION: no file"):
        relay_choice(None, "meals")


def test_flower_gets_the_socket_and_nothing_of_the_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", "postgresql://keeper:secret@ledger/ledger")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    flower = FlowerChoice(program=str(program(tmp_path, "echo handed over")), home="/etc/flwr")
    flower.start(tmp_path / "s", 30.0, tmp_path / "log")
    asked = (tmp_path / "arguments").read_text().splitlines()
    assert asked == ["run", flower.app, "local", "--run-config", f'socket="{tmp_path / "s"}" timeout=30']
    known = dict(line.partition("=")[::2] for line in (tmp_path / "environment").read_text().splitlines())
    assert known["FLWR_HOME"] == "/etc/flwr" and known["FLWR_TELEMETRY_ENABLED"] == "0"
    assert known["PATH"].split(os.pathsep)[0] == str(tmp_path) and "secret" not in json.dumps(known)
    assert (tmp_path / "log").read_text() == "handed over\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo no; exit 3", "it has ended with status 3"),
        ("sleep 60", "it has not ended in 0.2 seconds"),
        (None, "there is no such file"),
    ],
)
def test_a_flower_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, words: str
) -> None:
    monkeypatch.setattr(choice, "START_SECONDS", 0.2 if body == "sleep 60" else 60.0)
    path = tmp_path / "flwr" if body is None else program(tmp_path, body)
    with pytest.raises(ConfigurationError) as refused:
        FlowerChoice(program=str(path)).start(tmp_path / "s", 30.0, tmp_path / "log")
    assert words in str(refused.value) and "restricted log log" in str(refused.value)
