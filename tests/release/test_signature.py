from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.errors import VerificationFailed


def test_a_signature_is_for_one_key_and_exact_bytes() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    signed = signature.sign(key, b"content")
    assert signature.is_valid(key.public_key(), b"content", signed)
    assert not signature.is_valid(key.public_key(), b"Content", signed)
    assert not signature.is_valid(other.public_key(), b"content", signed)
    assert not signature.is_valid(key.public_key(), b"content", signed[:-1])


def test_public_keys_are_read_as_text_or_bytes_and_nothing_else() -> None:
    public = Ed25519PrivateKey.generate().public_key()
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    prints = {signature.fingerprint(signature.read_public_key(form)) for form in (raw, signature.public_pem(public))}
    assert prints == {signature.fingerprint(public)}
    elliptic = generate_private_key(SECP256R1()).public_key()
    pem = elliptic.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for content in (b"", b"no key", pem):
        with pytest.raises(VerificationFailed, match="Ed25519"):
            signature.read_public_key(content)


@pytest.mark.skipif(which("openssl") is None, reason="needs openssl")
def test_the_command_in_the_dossier_works(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "manifest.json").write_bytes(b"content")
    (tmp_path / "manifest.sig").write_bytes(signature.sign(key, b"content"))
    (tmp_path / "public_key.pem").write_bytes(signature.public_pem(key.public_key()))
    command = "openssl pkeyutl -verify -pubin -inkey public_key.pem -rawin -in manifest.json -sigfile manifest.sig"
    assert subprocess.run(command.split(), cwd=tmp_path, check=False, capture_output=True).returncode == 0
    (tmp_path / "manifest.json").write_bytes(b"Content")
    assert subprocess.run(command.split(), cwd=tmp_path, check=False, capture_output=True).returncode != 0
