"""Settings: the environment's variables, their defaults, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.ledger.store import Ledger


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({})
    assert settings.home == tmp_path / ".dpsynth"
    assert settings.deploy == PACKAGE_ROOT / "deploy"
    assert settings.ledger_url == f"sqlite:///{tmp_path / '.dpsynth' / 'ledger' / 'ledger.db'}"
    assert settings.device == "auto"
    assert settings.compute == PACKAGE_ROOT / "deploy" / "compute.yaml"
    assert settings.worker == PACKAGE_ROOT / "deploy" / "worker.yaml"
    assert settings.user
    assert not settings.ledger_url_is_configured


def test_the_ledger_is_in_the_home_whatever_that_is_called(tmp_path: Path) -> None:
    home = tmp_path / "b% #1?x=y"
    settings = Settings.from_environment({"DPSYNTH_HOME": str(home)})
    (home / "ledger").mkdir(parents=True)
    assert Ledger(settings.ledger_url).entries() == []
    assert (home / "ledger" / "ledger.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [home.name]


def test_every_variable_counts(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "DPSYNTH_HOME": str(tmp_path / "home"),
            "DPSYNTH_DEPLOY": str(tmp_path / "deploy"),
            "DPSYNTH_LEDGER_URL": "postgresql+psycopg://host/ledger",
            "DPSYNTH_USER": "somebody",
            "DPSYNTH_DEVICE": "cpu",
            "DPSYNTH_COMPUTE": str(tmp_path / "engines.yaml"),
            "DPSYNTH_WORKER": str(tmp_path / "workers.yaml"),
            "DPSYNTH_FEDERATION": str(tmp_path / "relays.yaml"),
            "DPSYNTH_NOTIFY": "mail -s 'a release' team@example.org",
            "DPSYNTH_NOTIFY_URL": "https://chat.example.org/hook/1",
            "DPSYNTH_LINEAGE_TOKENS": str(tmp_path / "tokens"),
            "DPSYNTH_TEXT_ENDPOINTS": "https://Models.example.org:443/, http://127.0.0.1:8080,",
        }
    )
    assert settings.text_endpoints == ("https://models.example.org", "http://127.0.0.1:8080")
    assert settings.lineage_tokens == tmp_path / "tokens"
    assert settings.notify == ("mail", "-s", "a release", "team@example.org")
    assert settings.notify_url == "https://chat.example.org/hook/1"
    assert (settings.user, settings.device) == ("somebody", "cpu")
    assert settings.compute == tmp_path / "engines.yaml"
    assert settings.worker == tmp_path / "workers.yaml"
    assert settings.ledger_url == "postgresql+psycopg://host/ledger"
    assert settings.ledger_url_is_configured
    assert settings.contracts == tmp_path / "deploy" / "contracts"
    assert settings.families == tmp_path / "deploy" / "families"
    assert settings.variables == {"DPSYNTH_HOME": str(tmp_path / "home")}


def test_empty_variables_are_as_if_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = (
        "DPSYNTH_HOME",
        "DPSYNTH_DEPLOY",
        "DPSYNTH_LEDGER_URL",
        "DPSYNTH_USER",
        "DPSYNTH_DEVICE",
        "DPSYNTH_COMPUTE",
        "DPSYNTH_WORKER",
        "DPSYNTH_FEDERATION",
        "DPSYNTH_NOTIFY",
        "DPSYNTH_NOTIFY_URL",
        "DPSYNTH_NOTIFY_MAIL",
        "DPSYNTH_TEXT_ENDPOINTS",
    )
    assert Settings.from_environment(dict.fromkeys(names, "")) == Settings.from_environment({})


@pytest.mark.parametrize("name", ["compute", "worker"])
def test_a_deployment_may_say_nothing_of_engines_and_workers(tmp_path: Path, name: str) -> None:
    assert getattr(Settings.from_environment({"DPSYNTH_DEPLOY": str(tmp_path)}), name) is None
    (tmp_path / f"{name}.yaml").write_text("datasets: {}")
    assert getattr(Settings.from_environment({"DPSYNTH_DEPLOY": str(tmp_path)}), name) == tmp_path / f"{name}.yaml"


@pytest.mark.parametrize(("said", "meant"), [("", "no"), ("no", "no"), ("yes", "yes"), ("declared", "declared")])
def test_encryption_is_required_on_request(said: str, meant: str) -> None:
    assert Settings.from_environment({"DPSYNTH_REQUIRE_ENCRYPTED": said}).require_encrypted == meant


def test_a_requirement_is_never_taken_for_none() -> None:
    with pytest.raises(ConfigurationError, match="DPSYNTH_REQUIRE_ENCRYPTED: 'true'; accepted: no, yes, declared"):
        Settings.from_environment({"DPSYNTH_REQUIRE_ENCRYPTED": "true"})


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="DPSYNTH_DEVICE: 'tpu'; accepted: auto, cpu, cuda"):
        Settings.from_environment({"DPSYNTH_DEVICE": "tpu"})


def test_zones_lie_apart(tmp_path: Path) -> None:
    settings = Settings.from_environment({"DPSYNTH_HOME": str(tmp_path)})
    zones = [settings.vault, settings.restricted, settings.lineage_file.parent, settings.dagster_home]
    for zone in zones:
        assert [other for other in zones if other.is_relative_to(zone)] == [zone]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/dpsynth/public/census: no such file", "${DPSYNTH_HOME}/public/census: no such file"),
        ("in '/srv/dpsynth', and /srv/dpsynth.", "in '${DPSYNTH_HOME}', and ${DPSYNTH_HOME}."),
        ("/srv/dpsynth/deploy/contracts/a.yaml", "${DPSYNTH_DEPLOY}/contracts/a.yaml"),
        ("file:///srv/dpsynth/x", "file://${DPSYNTH_HOME}/x"),
        (
            "/srv/dpsynth-old/x, /mnt/srv/dpsynth/x, /srv/dpsynth.d",
            "/srv/dpsynth-old/x, /mnt/srv/dpsynth/x, /srv/dpsynth.d",
        ),
    ],
)
def test_places_are_shown_by_their_variables(text: str, shown: str) -> None:
    env = {"DPSYNTH_HOME": "/srv/dpsynth", "DPSYNTH_DEPLOY": "/srv/dpsynth/deploy"}
    assert Settings.from_environment(env).shown(text) == shown


def test_export_hands_everything_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"DPSYNTH_HOME": str(tmp_path), "DPSYNTH_USER": "somebody", "DPSYNTH_DEVICE": "cpu"}
    environment["DPSYNTH_COMPUTE"] = str(tmp_path / "engines.yaml")
    environment |= {"DPSYNTH_NOTIFY": "mail -s 'a b'", "DPSYNTH_NOTIFY_URL": "http://localhost:8000/"}
    environment["DPSYNTH_NOTIFY_MAIL"] = "smtps://user:secret@mail.example.org?from=a@example.org&to=b@example.org"
    environment["DPSYNTH_LINEAGE_TOKENS"] = str(tmp_path / "tokens")
    environment["DPSYNTH_TEXT_ENDPOINTS"] = "https://a.example, https://b.example:8443"
    settings = Settings.from_environment(environment)
    for name in (
        "DPSYNTH_HOME",
        "DPSYNTH_DEPLOY",
        "DPSYNTH_LEDGER_URL",
        "DPSYNTH_USER",
        "DPSYNTH_DEVICE",
        "DPSYNTH_COMPUTE",
        "DPSYNTH_NOTIFY",
        "DPSYNTH_NOTIFY_URL",
        "DPSYNTH_NOTIFY_MAIL",
        "DPSYNTH_LINEAGE_TOKENS",
        "DPSYNTH_TEXT_ENDPOINTS",
    ):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("DAGSTER_HOME", "")
    settings.export()
    assert Settings.from_environment() == settings
    assert os.environ["DAGSTER_HOME"] == str(tmp_path / "dagster")


@pytest.mark.parametrize(
    "url",
    [
        "http://chat.example.org/secret",
        "https://user:secret@chat.example.org/",
        "https:///secret",
        "file:///secret",
        "secret",
        "https://chat.example.org/secret more",
        "https://[secret",
        "https://chat.example.org:secret/",
        "http://localhost.example.org/secret",
    ],
)
def test_a_webhook_is_encrypted_and_never_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^DPSYNTH_NOTIFY_URL: accepted: https://HOST/") as told:
        Settings.from_environment({"DPSYNTH_NOTIFY_URL": url})
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["http://localhost/x", "http://127.0.0.1:8000/x", "http://[::1]/x", "https://a.example"]
)
def test_this_machine_needs_no_encryption(url: str) -> None:
    assert Settings.from_environment({"DPSYNTH_NOTIFY_URL": url}).notify_url == url


def test_a_command_is_quoted_as_for_a_shell() -> None:
    with pytest.raises(ConfigurationError, match="DPSYNTH_NOTIFY: an open quotation") as told:
        Settings.from_environment({"DPSYNTH_NOTIFY": "mail -s 'secret"})
    assert "secret" not in str(told.value)


def test_memory_is_a_number_with_a_unit() -> None:
    assert Settings.from_environment({}).memory is None
    assert Settings.from_environment({"DPSYNTH_MEMORY": "8GB"}).memory == 8 * 10**9
    assert Settings.from_environment({"DPSYNTH_MEMORY": "800MB"}).memory == 8 * 10**8
    with pytest.raises(ConfigurationError, match="DPSYNTH_MEMORY: '8'; accepted: such as 800MB or 8GB"):
        Settings.from_environment({"DPSYNTH_MEMORY": "8"})


def test_the_consoles_addresses(tmp_path: Path) -> None:
    def settings(**variables: str) -> Settings:
        return Settings.from_environment({"DPSYNTH_DEPLOY": str(tmp_path)} | variables)

    assert (settings().console, settings().console_url, settings().dagster_url) == (None, "", "")
    (tmp_path / "console.yaml").touch()
    assert settings().console == tmp_path / "console.yaml"
    for url in ("https://Console.example.org/", "http://127.0.0.1:3900", "http://localhost"):
        assert settings(DPSYNTH_CONSOLE_URL=url).console_url == url.lower().removesuffix("/")
    refused = ("http://console.example.org", "https://h/path", "https://u:p@h", "ftp://h", "https://h?x")
    for url in refused:
        with pytest.raises(ConfigurationError, match=r"^DPSYNTH_CONSOLE_URL: accepted") as caught:
            settings(DPSYNTH_CONSOLE_URL=url)
        assert url not in str(caught.value)
    assert (
        settings(DPSYNTH_DAGSTER_URL="http://dagster.internal:3000/ui/").dagster_url
        == "http://dagster.internal:3000/ui"
    )
    for url in ("javascript:alert(1)", 'https://h/"><script>', "https://u@h"):
        with pytest.raises(ConfigurationError, match=r"^DPSYNTH_DAGSTER_URL"):
            settings(DPSYNTH_DAGSTER_URL=url)


@pytest.mark.parametrize(
    "said",
    [
        "https://a.example/v1",
        "http://a.example",
        "a.example",
        "*",
        "https://*.example",
        "https://a.example, https://b.example\\.c.example",
        "https://user@a.example",
        "https://a.example:0",
        "https://300.1.1.1",
    ],
)
def test_endpoints_that_may_be_asked_are_named_one_by_one(said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^DPSYNTH_TEXT_ENDPOINTS: .*accepted: https://HOST\[:PORT\]") as told:
        Settings.from_environment({"DPSYNTH_TEXT_ENDPOINTS": said})
    assert "user@" not in str(told.value)
