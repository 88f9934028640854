"""Keys in AWS Secrets Manager: against a server that answers as AWS does, and against ones that fail."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.secrets.vault import KEY_BYTES, Vault, key_id

boto3 = pytest.importorskip("boto3", reason="the extra `aws` is not installed (requirements/aws.lock)")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": "of-tests"}


@pytest.fixture
def vault_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Vault]:
    """Makes a vault of this machine whose keys are at an address; nothing of the user's own AWS is looked at."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("dpsynth_platform.secrets.aws.READ_SECONDS", 300.0)  # however busy the machine is
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    def made(address: str, **given: str) -> Vault:
        directory = tmp_path / "vault"
        directory.mkdir(mode=0o700, exist_ok=True)
        said = {"manager": "aws", "region": "eu-central-1", "prefix": f"{tmp_path.name}/", "endpoint": address} | given
        (directory / "manager.yaml").write_text(yaml.safe_dump(said))
        (directory / "manager.yaml").chmod(0o600)
        return Vault(directory)

    return made


@pytest.fixture
def vault(aws_address: str, vault_at: Callable[..., Vault]) -> Vault:
    return vault_at(aws_address)


@pytest.fixture
def client(aws_address: str, vault: Vault) -> Any:
    """The manager as its administrator has it."""
    return boto3.client("secretsmanager", region_name="eu-central-1", endpoint_url=aws_address)


def test_keys_are_made_once_kept_there_and_nowhere_here(vault: Vault, client: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"key 'ordering' is missing from the vault \(AWS Secrets Manager, eu-"
    ):
        vault.read("ordering")
    assert not vault.has("ordering")
    key = vault.create("ordering")
    assert len(key) == KEY_BYTES
    assert vault.create("ordering") == vault.read("ordering") == key
    further = vault.add("owner-rotated-person")
    assert vault.read(f"owner-rotated-person-{key_id(further)}") == further
    assert vault.signing_key().sign(b"x") == vault.signing_key().sign(b"x")
    assert client.get_secret_value(SecretId=f"{tmp_path.name}/ordering")["SecretString"] == key.hex()
    assert [path.name for path in (tmp_path / "vault").iterdir()] == ["manager.yaml"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if key in path.read_bytes() or key.hex().encode() in path.read_bytes()]


def test_many_makers_agree(vault: Vault) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: vault.create("shared"), range(8)))) == 1


def test_a_rotation_there_changes_no_key(vault: Vault, client: Any, tmp_path: Path) -> None:
    key = vault.create("owner-inner-person")
    for number in range(3):
        client.put_secret_value(SecretId=f"{tmp_path.name}/owner-inner-person", SecretString=f"{number:064x}")
    assert vault.read("owner-inner-person") == vault.create("owner-inner-person") == key


def test_a_secret_of_somebody_else_s_making_is_no_key_and_stays(vault: Vault, client: Any, tmp_path: Path) -> None:
    client.create_secret(Name=f"{tmp_path.name}/signing", SecretString="ab" * 32)
    for use in (vault.create, vault.read, vault.has):
        with pytest.raises(ConfigurationError, match="it exists, but without its version 'dpsynth-first-") as refused:
            use("signing")
        assert "abab" not in str(refused.value)
    client.put_secret_value(
        SecretId=f"{tmp_path.name}/signing",
        SecretString="cd" * 32,
        ClientRequestToken="dpsynth-first-version-of-this-key",
        VersionStages=["DPSYNTH"],
    )
    assert vault.read("signing") == bytes.fromhex("cd" * 32)


def test_a_deleted_key_is_not_made_anew(vault: Vault, client: Any, tmp_path: Path) -> None:
    key = vault.create("signing")
    client.delete_secret(SecretId=f"{tmp_path.name}/signing")
    with pytest.raises(ConfigurationError, match=r"marked for deletion, .*; restore it"):
        vault.create("signing")
    client.restore_secret(SecretId=f"{tmp_path.name}/signing")
    assert vault.read("signing") == key


@pytest.mark.parametrize("text", ["SECRET", "ab" * 31, "zz" * 32])
def test_a_damaged_key_is_told_by_its_length(vault: Vault, client: Any, tmp_path: Path, text: str) -> None:
    token = "dpsynth-first-version-of-this-key"
    client.create_secret(Name=f"{tmp_path.name}/signing", SecretString=text, ClientRequestToken=token)
    with pytest.raises(ConfigurationError, match=f"is damaged: .*/signing' wrote {len(text)} characters") as refused:
        vault.create("signing")
    assert text not in str(refused.value)


def test_no_log_has_a_key_whatever_its_level(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = vault.create("signing")
    said = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "urllib3" in said  # others are heard
    assert key.hex() not in said


def test_without_credentials_it_says_so(
    aws_address: str, vault_at: Callable[..., Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=r"no request was possible \(NoCredentialsError\)"):
        vault_at(aws_address).create("signing")


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """The address of a server with one answer to everything, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(str(self.headers["X-Amz-Target"]))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "told", "calls"),
    [
        (400, b'{"__type": "AccessDeniedException", "Message": "SECRET"}', r"denied \(AccessDeniedException\)", 1),
        (400, b'{"__type": "DecryptionFailure", "Message": "SECRET"}', r"denied \(DecryptionFailure\).*its KMS key", 1),
        (400, b'{"__type": "SECRET 123", "Message": ""}', r"refused \(a code of another form\)", 1),
        (500, b'{"__type": "InternalServiceError", "Message": "SECRET"}', r"refused \(InternalServiceError\)", 2),
        (200, b"<html>SECRET</html>", "is damaged: .* wrote 0 characters", 1),
        (200, b'{"SecretString": 7}', "is damaged: .* wrote 0 characters", 1),
        (200, b'["SECRET"]', "the answer is not from Secrets Manager", 1),
    ],
)
def test_what_fails_is_told_by_its_code_and_not_tried_for_ever(
    vault_at: Callable[..., Vault], status: int, body: bytes, told: str, calls: int
) -> None:
    with answering(status, body) as (address, asked), pytest.raises(ConfigurationError, match=told) as refused:
        vault_at(address).create("signing")
    assert asked == ["secretsmanager.GetSecretValue"] * calls  # nothing is made because reading fails
    assert "key 'signing'" in str(refused.value) and "SECRET" not in str(refused.value)
    assert refused.value.__context__ is None


def test_who_does_not_answer_is_not_waited_for(vault_at: Callable[..., Vault], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.secrets.aws.READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"no answer within 5 and 0.2 seconds \(ReadTimeoutError\)"):
            vault_at(f"http://127.0.0.1:{silent.getsockname()[1]}").read("signing")
        assert time.monotonic() - begun < 300
    with socket.socket() as held:  # bound and not listening, so that connections are refused
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigurationError, match=r"no answer .*\(EndpointConnectionError\)"):
            vault_at(f"http://127.0.0.1:{held.getsockname()[1]}").read("signing")
