"""Keys in Google Cloud Secret Manager: against a server that speaks its protocol, over TLS and with its credentials."""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.secrets.vault import KEY_BYTES, Vault, key_id

types = pytest.importorskip(
    "google.cloud.secretmanager_v1", reason="the extra `google` is not installed (requirements/google.lock)"
)
SERVICE = "google.cloud.secretmanager.v1.SecretManagerService"
PROJECT = "projects/of-tests"


@dataclass
class Manager:
    """The part of the service that keys need: secrets with numbered versions, for whoever signs with the right key.

    Attributes:
        secrets: names to versions; None is a version that was destroyed.
        failure: what every call ends with instead of an answer.
        hold: every call waits for it, as long as a test may take.
    """

    signer: rsa.RSAPublicKey
    secrets: dict[str, list[bytes | None]] = field(default_factory=dict)
    replication: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    failure: grpc.StatusCode | None = None
    hold: threading.Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._let_in("create", context)
        name = f"{request.parent}/secrets/{request.secret_id}"
        with self.lock:
            if name in self.secrets:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "SECRET")
            self.secrets[name] = []
            self.replication.append(request.secret.replication)
        return types.Secret(name=name)

    def add(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._let_in("add", context)
        with self.lock:
            versions = self.secrets[request.parent]
            versions.append(request.payload.data)
            return types.SecretVersion(name=f"{request.parent}/versions/{len(versions)}")

    def access(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._let_in("access", context)
        name, _, number = request.name.partition("/versions/")
        versions = self.secrets.get(name, [])
        if not 1 <= int(number) <= len(versions):
            context.abort(grpc.StatusCode.NOT_FOUND, "SECRET")
        data = versions[int(number) - 1]
        if data is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "SECRET")
        return types.AccessSecretVersionResponse(name=request.name, payload=types.SecretPayload(data=data))

    def _let_in(self, call: str, context: grpc.ServicerContext) -> None:
        self.asked.append(call)
        if self.hold is not None:
            self.hold.wait(600)
        if self.failure is not None:
            context.abort(self.failure, "SECRET")
        given = dict(context.invocation_metadata()).get("authorization", "")
        signed, _, signature = given.removeprefix("Bearer ").rpartition(".")
        try:
            self.signer.verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "SECRET")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.fixture(scope="module")
def private_keys() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    """The account's, and somebody else's."""
    first, second = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    return first, second


@pytest.fixture(scope="module")
def certificate(
    private_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[bytes]:
    """Of the server; this process trusts it, as it does Google's."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name)
        .public_key(private_keys[0].public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost")]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private_keys[0], hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    file = tmp_path_factory.mktemp("roots") / "roots.pem"
    file.write_bytes(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(file))
        yield made


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def manager(private_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]) -> Manager:
    return Manager(private_keys[0].public_key())


@pytest.fixture
def address(
    manager: Manager, certificate: bytes, private_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]
) -> Iterator[str]:
    def unary(answer: Callable[..., Any], request: Any, response: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(answer, request.deserialize, response.serialize)

    calls = {
        "CreateSecret": unary(manager.create, types.CreateSecretRequest, types.Secret),
        "AddSecretVersion": unary(manager.add, types.AddSecretVersionRequest, types.SecretVersion),
        "AccessSecretVersion": unary(
            manager.access, types.AccessSecretVersionRequest, types.AccessSecretVersionResponse
        ),
    }
    server = grpc.server(ThreadPoolExecutor(8), handlers=[grpc.method_handlers_generic_handler(SERVICE, calls)])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(_pem(private_keys[0]), certificate)]))
    server.start()
    yield f"https://localhost:{port}"
    server.stop(0).wait()


@pytest.fixture
def credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]
) -> Callable[[int], None]:
    """Puts down the credentials of one of the accounts, where the library looks for them."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))

    def put(which: int) -> None:
        file = tmp_path / "account.json"
        said = {
            "type": "service_account",
            "project_id": "of-tests",
            "private_key_id": "one",
            "private_key": _pem(private_keys[which]).decode(),
            "client_email": "steps@of-tests.iam.gserviceaccount.com",
            "token_uri": "http://127.0.0.1:9/nobody-is-asked-for-a-token",
        }
        file.write_text(json.dumps(said))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))

    put(0)
    return put


@pytest.fixture
def vault_with(tmp_path: Path, address: str, credentials: Callable[[int], None]) -> Callable[..., Vault]:
    def made(**given: Any) -> Vault:
        directory = tmp_path / "vault"
        directory.mkdir(mode=0o700, exist_ok=True)
        said = {"manager": "google", "project": "of-tests", "endpoint": address} | given
        (directory / "manager.yaml").write_text(yaml.safe_dump(said))
        (directory / "manager.yaml").chmod(0o600)
        return Vault(directory)

    return made


@pytest.fixture
def vault(vault_with: Callable[..., Vault]) -> Vault:
    return vault_with()


def test_keys_are_made_once_kept_there_and_nowhere_here(vault: Vault, manager: Manager, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"key 'ordering' is missing from the vault \(Google Secret Manager"):
        vault.read("ordering")
    assert not vault.has("ordering")
    key = vault.create("ordering")
    assert len(key) == KEY_BYTES
    assert vault.create("ordering") == vault.read("ordering") == key
    further = vault.add("owner-rotated-person")
    assert vault.read(f"owner-rotated-person-{key_id(further)}") == further
    assert vault.signing_key().sign(b"x") == vault.signing_key().sign(b"x")
    assert manager.secrets[f"{PROJECT}/secrets/dpsynth-ordering"] == [key.hex().encode()]
    assert [path.name for path in (tmp_path / "vault").iterdir()] == ["manager.yaml"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if key in path.read_bytes() or key.hex().encode() in path.read_bytes()]


def test_keys_lie_where_the_deployment_says(vault_with: Callable[..., Vault], manager: Manager) -> None:
    vault_with().create("anywhere")
    vault_with(locations=["europe-west3", "europe-west4"]).create("somewhere")
    first, second = manager.replication
    assert "automatic" in first and "automatic" not in second
    assert [one.location for one in second.user_managed.replicas] == ["europe-west3", "europe-west4"]


def test_many_makers_agree_and_one_that_was_interrupted_is_made_good(vault: Vault, manager: Manager) -> None:
    manager.secrets[f"{PROJECT}/secrets/dpsynth-half"] = []  # made, and no version added
    assert len(vault.create("half")) == KEY_BYTES
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: vault.create("shared"), range(8)))) == 1


def test_a_rotation_there_changes_no_key(vault: Vault, manager: Manager) -> None:
    key = vault.create("owner-inner-person")
    versions = manager.secrets[f"{PROJECT}/secrets/dpsynth-owner-inner-person"]
    versions.append(b"ab" * 32)
    assert vault.read("owner-inner-person") == vault.create("owner-inner-person") == key
    versions[0] = None
    manager.asked.clear()
    with pytest.raises(ConfigurationError, match=r"its version 1, which is the key, is disabled or destroyed"):
        vault.create("owner-inner-person")
    assert manager.asked == ["access"]  # nothing is made in its place


@pytest.mark.parametrize("data", [b"SECRET", b"ab" * 31, b"\xff" * 64])
def test_a_damaged_key_is_told_by_its_length(vault: Vault, manager: Manager, data: bytes) -> None:
    manager.secrets[f"{PROJECT}/secrets/dpsynth-signing"] = [data]
    with pytest.raises(ConfigurationError, match=f"is damaged: .*wrote {len(data)} characters") as refused:
        vault.create("signing")
    assert "SECRET" not in str(refused.value)


def test_no_log_has_a_key_whatever_its_level(
    vault: Vault, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SDK_PYTHON_LOGGING_SCOPE", "google.cloud.secretmanager_v1")
    heard: list[logging.LogRecord] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = heard.append
    caplog.set_level(logging.DEBUG)
    for name in ("google", "google.cloud.secretmanager_v1"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    key = vault.create("signing")
    said = "\n".join(f"{record.getMessage()} {vars(record)}" for record in [*heard, *caplog.records])
    assert said
    assert key.hex() not in said and base64.b64encode(key.hex().encode()).decode() not in said


def test_another_account_is_denied(vault: Vault, manager: Manager, credentials: Callable[[int], None]) -> None:
    credentials(1)
    with pytest.raises(ConfigurationError, match=r"denied \(UNAUTHENTICATED\).*secretmanager.versions.access"):
        vault.create("signing")
    assert manager.asked == ["access"]


def test_without_credentials_it_says_so(vault: Vault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nobody.json"))
    with pytest.raises(ConfigurationError, match=r"no request was possible \(DefaultCredentialsError\)"):
        vault.create("signing")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, r"denied \(PERMISSION_DENIED\); accepted: credentials with the permission"),
        (grpc.StatusCode.INTERNAL, r"refused \(INTERNAL\)"),
        (grpc.StatusCode.INVALID_ARGUMENT, r"refused \(INVALID_ARGUMENT\)"),
    ],
)
def test_what_fails_is_told_by_its_status(vault: Vault, manager: Manager, status: grpc.StatusCode, told: str) -> None:
    manager.failure = status
    with pytest.raises(ConfigurationError, match=told) as refused:
        vault.create("signing")
    assert manager.asked == ["access"]  # nothing is made because reading fails
    assert "SECRET" not in str(refused.value)
    assert refused.value.__context__ is None


def test_who_does_not_answer_is_not_waited_for(vault: Vault, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.secrets.google.SECONDS", 1.0)
    begun = time.monotonic()
    manager.failure = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ConfigurationError, match="no answer within 1 seconds"):
        vault.read("signing")
    manager.hold = threading.Event()
    with pytest.raises(ConfigurationError, match="no answer within 1 seconds"):
        vault.read("signing")
    manager.hold.set()
    assert time.monotonic() - begun < 300


def test_a_server_that_cannot_prove_itself_gets_no_word(
    vault_with: Callable[..., Vault], manager: Manager, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsynth_platform.secrets.google.SECONDS", 1.0)
    with pytest.raises(ConfigurationError, match="no answer within 1 seconds"):
        vault_with(endpoint=address.replace("localhost", "127.0.0.1")).read("signing")
    assert manager.asked == []
