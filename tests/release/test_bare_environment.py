"""A release verified where there is next to nothing: its directory, the public key, and a handful of wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cryptography
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import dpsynth_platform
from dpsynth_platform.foundation import signature
from dpsynth_platform.release.publish import Published

WHEELS = ("attr", "attrs", "cffi", "cryptography", "jsonschema", "jsonschema_specifications", "pyarrow", "referencing",
          "rpds", "typing_extensions.py")  # fmt: skip
"""cryptography, jsonschema and pyarrow, with what they import."""
PROGRAM = """
import runpy, sys
names = ("connect", "getaddrinfo", "gethostbyname", "gethostbyaddr", "sendto", "sendmsg")
def refuse(event, arguments):
    if event in {f"socket.{name}" for name in names}:  # a socket by itself reaches nothing
        raise SystemExit(f"the network was tried: {event}")
sys.addaudithook(refuse)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
MOST_SECONDS = 2.0
"""Of a processor, and not of a clock: those do not become more where others keep the machine busy."""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has the library, these wheels, and nothing else: no home, no deployment."""
    installed = Path(cryptography.__file__).parent.parent
    site, home = tmp_path / "site", tmp_path / "home"
    site.mkdir()
    home.mkdir()
    for name in (*WHEELS, *(path.name for path in installed.glob("_cffi_backend*"))):
        (site / name).symlink_to(installed / name)
    (site / "dpsynth_platform").symlink_to(Path(dpsynth_platform.__file__).parent)
    return {"HOME": str(home), "PYTHONPATH": str(site), "PATH": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}


def run(bare: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # -S: nothing of this environment's own packages.
        [sys.executable, "-S", "-c", PROGRAM, "dpsynth_platform.release.verify", *arguments],
        env=bare, cwd=bare["HOME"], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def processor_seconds() -> float:
    """What this process's children took until now."""
    times = os.times()
    return times.children_user + times.children_system


def test_the_environment_is_bare(bare: dict[str, str]) -> None:
    program = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    names = ["dagster", "torch", "presidio_analyzer", "sqlalchemy", "deltalake", "pydantic", "numpy", "cryptography"]
    done = subprocess.run([sys.executable, "-S", "-c", program, *names], env=bare, capture_output=True, text=True)
    assert done.stdout.strip() == "['cryptography']"


def test_every_kind_of_failure_is_told_in_a_bare_environment(
    bare: dict[str, str], released: Published, signing_key: Ed25519PrivateKey, tmp_path: Path
) -> None:
    key = tmp_path / "publisher.pem"
    key.write_bytes(signature.public_pem(signing_key.public_key()))
    chain = tmp_path / "ledger.json"
    chain.write_text(json.dumps({"events": [{"sequence": number, "hash": "c1" * 32} for number in range(1, 20)]}))
    other = tmp_path / "other.pem"
    other.write_bytes(signature.public_pem(Ed25519PrivateKey.generate().public_key()))
    changed, missing = tmp_path / "changed", tmp_path / "missing"
    for copy in (changed, missing):
        shutil.copytree(released.path, copy)
    (changed / "dossier.json").write_text("{}")
    next((missing / "data").glob("*.parquet")).unlink()

    before = processor_seconds()
    done = run(bare, str(released.path), "--public-key", str(key))
    took = processor_seconds() - before
    assert (done.returncode, done.stderr) == (0, "")
    assert "verified; " in done.stdout and ", 400 rows" in done.stdout
    assert took < MOST_SECONDS, f"{took:.2f} s"
    for path, arguments, kinds in (
        (released.path, ("--public-key", str(other)), ["signature"]),
        (released.path, ("--public-key", str(key), "--ledger", str(chain)), ["chain-head"]),
        (changed, ("--public-key", str(key)), ["hash"]),
        (missing, ("--public-key", str(key)), ["missing"]),
    ):
        done = run(bare, str(path), "--json", *arguments)
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)[0]["failures"] == kinds


def test_the_platforms_command_needs_no_deployment_either(
    bare: dict[str, str], released: Published, signing_key: Ed25519PrivateKey, tmp_path: Path
) -> None:
    key = tmp_path / "publisher.pem"
    key.write_bytes(signature.public_pem(signing_key.public_key()))
    whole = bare | {"PYTHONPATH": str(Path(dpsynth_platform.__file__).parent.parent)}
    arguments = ["release", "verify", str(released.path), "--public-key", str(key), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "dpsynth_platform", *arguments],
        env=whole, cwd=bare["HOME"], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ok"]
    assert list(Path(bare["HOME"]).iterdir()) == [], "looking leaves nothing"
