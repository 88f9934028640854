"""The file `console.yaml`, and the console's own address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsynth_platform.console.configuration import ConsoleSettings, console_settings
from dpsynth_platform.console.roles import ROLES
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import Settings

SECRET = "a secret of forty characters, or of a few more"
GROUPS = {"reviewer": ["privacy-board"], "auditor": ["internal-audit"]}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def whole(secret: Path) -> dict[str, Any]:
    return {
        "local": False,
        "sessions": {"idle_minutes": 5, "longest_hours": 2},
        "oidc": {
            "name": "Example ID",
            "issuer": "https://id.example.org/realms/g",
            "client_id": "console",
            "client_secret_file": str(secret),
            "roles_claim": "groups",
            "roles": GROUPS,
        },
        "proxy": {"addresses": ["10.20.0.7", "fd00::/64"], "secret_file": str(secret)},
    }


def settings_of(tmp_path: Path, document: Any = None, **variables: str) -> Settings:
    if document is not None:
        (tmp_path / "console.yaml").write_text(yaml.safe_dump(document))
    home = {"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_DEPLOY": str(tmp_path)}
    return Settings.from_environment(home | variables)


def read(tmp_path: Path, document: Any = None, host: str = "127.0.0.1", **variables: str) -> ConsoleSettings:
    return console_settings(settings_of(tmp_path, document, **variables), host, 3900)


def test_without_a_file_local_users_sign_in(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.url, found.local, found.oidc, found.proxy) == ("http://127.0.0.1:3900", True, None, None)
    assert (found.sessions.idle, found.sessions.longest) == (30 * 60, 10 * 3600)
    assert not found.secure
    assert found.hosts == {"127.0.0.1:3900", "localhost:3900", "[::1]:3900"}
    assert read(tmp_path, host="::1").url == "http://[::1]:3900"


def test_the_whole_file(tmp_path: Path, whole: dict[str, Any]) -> None:
    found = read(tmp_path, whole)
    assert found.oidc is not None and found.proxy is not None
    assert (found.local, found.sessions.idle, found.sessions.longest) == (False, 300, 7200)
    assert found.oidc.metadata_url == "https://id.example.org/realms/g/.well-known/openid-configuration"
    assert found.oidc_secret == found.proxy_secret == SECRET
    assert found.oidc.roles_of(["privacy-board", "staff"]) == {"reviewer"}
    assert found.oidc.roles_of(["reviewer"]) == set()
    assert found.proxy.roles_of(ROLES) == set(ROLES)
    assert SECRET not in repr(found)


def test_elsewhere_than_here_it_has_an_encrypted_address(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "console.example.org"):
        with pytest.raises(ConfigurationError, match=r"--host .*DPSYNTH_CONSOLE_URL"):
            read(tmp_path, host=host)
    found = read(tmp_path, host="0.0.0.0", DPSYNTH_CONSOLE_URL="https://console.example.org")
    assert (found.secure, found.hosts) == (True, {"console.example.org"})
    assert read(tmp_path, DPSYNTH_CONSOLE_URL="https://h:443").hosts == {"h"}
    assert read(tmp_path, DPSYNTH_CONSOLE_URL="http://localhost:80").url == "http://localhost"


WRONG = {
    "loca: true": "loca: unknown key",
    "sessions: {idle_minutes: 0}": "sessions.idle_minutes",
    "sessions: {longest_hours: 1000}": "sessions.longest_hours",
    "local: false": "one way to sign in",
    "oidc: {issuer: 'https://i', client_id: x}": "roles",
    "oidc: {issuer: 'http://i.example', client_id: x, roles: {reviewer: [a]}}": "oidc.issuer.*https",
    "oidc: {issuer: 'https://i', client_id: x, roles: {owner: [a]}}": "oidc.roles",
    "oidc: {issuer: 'https://i', client_id: x, roles: {reviewer: [a]}, scopes: [email]}": "openid",
    "oidc: {issuer: 'https://i', client_id: x, roles: {reviewer: [a]}, metadata: 'ftp://i'}": "oidc.metadata",
    "proxy: {addresses: [], secret_file: /x}": "proxy.addresses",
    "proxy: {addresses: ['0.0.0.0/0'], secret_file: /x}": "every address",
    "proxy: {addresses: [proxy.example], secret_file: /x}": "proxy.example.*10.20.0.7",
    "proxy: {addresses: [10.0.0.1], secret_file: /x, name_header: Host}": "three different",
    "proxy: {addresses: [10.0.0.1], secret_file: /x, name_header: X-A, roles_header: x-a}": "three different",
    "proxy: {addresses: [10.0.0.1], secret_file: /x, name_header: 'X A'}": "proxy.name_header",
    "proxy: {addresses: [10.0.0.1]}": "proxy.secret_file",
    "[]": "mapping",
    "oidc: {": "YAML",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_not_accepted_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "console.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=WRONG[text]) as caught:
        read(tmp_path)
    assert "console.yaml" in str(caught.value)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        read(tmp_path, DPSYNTH_CONSOLE=str(tmp_path / "other.yaml"))


def test_secrets_are_this_users_alone(tmp_path: Path, whole: dict[str, Any], secret: Path) -> None:
    secret.chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"oidc.client_secret_file: .*mode 0600") as caught:
        read(tmp_path, whole)
    assert SECRET not in str(caught.value)
    secret.chmod(0o600)
    del whole["oidc"]
    for text in ("", "short", "ü" * 40, f"{SECRET}\n{SECRET}"):
        secret.write_text(text)
        with pytest.raises(ConfigurationError, match=r"proxy.secret_file: .*one line of at least 32"):
            read(tmp_path, whole)
    secret.unlink()
    with pytest.raises(ConfigurationError, match=r"proxy.secret_file: .*no such file"):
        read(tmp_path, whole)
