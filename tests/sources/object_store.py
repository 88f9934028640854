"""Local servers that answer as AWS and as Google's storage do, for tests; `tests/conftest.py` offers the fixtures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as fs
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

SECRET = "zq-secret-Quillmarker-904"
PREFIXES = ("AWS_", "GOOGLE_", "CLOUDSDK_", "CLOUD_STORAGE_")


@dataclass(frozen=True)
class Store:
    """An object store with an empty bucket of the test's name."""

    files: fs.FileSystem
    scheme: str
    bucket: str

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.bucket}"


@contextmanager
def answering(program: str, log: Path) -> Iterator[str]:
    """The address of a server of its own process, a program that gets a port."""
    with socket.socket() as held:  # bound and not listening: no other process gets the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with log.open("w") as out:
            process = subprocess.Popen([sys.executable, "-c", program, str(port)], stdout=out, stderr=out)
        try:
            for _ in range(3000):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def aws_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that keeps objects and secrets in memory."""
    pytest.importorskip("moto", reason="nothing that answers as AWS does is installed (requirements/clouds.lock)")
    program = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
    with answering(program, tmp_path_factory.mktemp("moto") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def google_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that keeps objects in memory. It answers Google's JSON protocol, which Arrow speaks."""
    pytest.importorskip("gcp_storage_emulator", reason="nothing that answers as Google's storage does is installed")
    program = (
        "import sys; from gcp_storage_emulator.__main__ import main; "
        "main(['start', '-H', '127.0.0.1', '-M', '--port', sys.argv[1]])"
    )
    with answering(program, tmp_path_factory.mktemp("google") / "log") as address:
        yield address


@pytest.fixture
def no_clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without credentials of clouds."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


@pytest.fixture
def s3_store(aws_address: str, no_clouds: None, monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    """The store, by credentials from the environment alone."""
    given = {
        "AWS_ACCESS_KEY_ID": "AKIATESTS",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": aws_address,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return fs.S3FileSystem(
        endpoint_override=aws_address.removeprefix("http://"), scheme="http", allow_bucket_creation=True
    )


@pytest.fixture(scope="session")
def service_account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key of an account, which nobody knows: a token of it is signed without asking anybody."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "tests",
        "private_key_id": SECRET,
        "private_key": key.decode(),
        "client_email": "tests@tests.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "http://127.0.0.1:1/none",
    }
    path = tmp_path_factory.mktemp("account") / "account.json"
    path.write_text(json.dumps(account))
    return path


@pytest.fixture
def gs_store(
    google_address: str, service_account: Path, no_clouds: None, monkeypatch: pytest.MonkeyPatch
) -> fs.FileSystem:
    """The store, by credentials from the environment alone."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account))
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", google_address)
    return fs.GcsFileSystem(project_id="tests")


@pytest.fixture
def bucket(s3_store: fs.FileSystem, tmp_path: Path) -> str:
    """An empty bucket of the test's name in S3."""
    return made(s3_store, tmp_path)


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    files = request.getfixturevalue(f"{request.param}_store")
    return Store(files, request.param, made(files, tmp_path))


def made(files: fs.FileSystem, tmp_path: Path) -> str:
    name = tmp_path.name.replace("_", "-").strip("-").lower()
    files.create_dir(name)
    return name
