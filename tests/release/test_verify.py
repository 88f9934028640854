from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.errors import VerificationFailed
from dpsynth_platform.release import manifest as manifests
from dpsynth_platform.release import signature
from dpsynth_platform.release.publish import Published
from dpsynth_platform.release.verify import verify_release


def pem(key: Ed25519PrivateKey) -> bytes:
    return signature.public_pem(key.public_key())


def resign(path: Path, key: Ed25519PrivateKey, **changes: Any) -> None:
    """What someone with a key of their own can do: sign whatever is there now."""
    dossier = json.loads((path / "dossier.json").read_text())
    fingerprint = signature.fingerprint(key.public_key())
    content = manifests.to_bytes(manifests.build(path, dossier, fingerprint) | changes)
    (path / "manifest.json").write_bytes(content)
    (path / "manifest.sig").write_bytes(signature.sign(key, content))
    (path / "public_key.pem").write_bytes(pem(key))


def files(path: Path) -> list[str]:
    return sorted(manifests.regular_files(path))


def named(path: Path, key: bytes | None = None) -> set[str]:
    return {problem.file for problem in verify_release(path, key).problems}


def test_an_untouched_release_verifies(released: Published, signing_key: Ed25519PrivateKey) -> None:
    report = verify_release(released.path, pem(signing_key))
    assert report.ok
    assert report.key_trusted
    assert (report.release_id, report.rows, report.files) == (released.release_id, 400, len(files(released.path)) - 3)
    report.raise_for_problems()
    assert "that you gave" in report.key_note
    moved = released.path.rename(released.path.parent / "downloaded")
    assert verify_release(moved).ok


def test_without_a_trusted_key_the_report_says_so(released: Published, signing_key: Ed25519PrivateKey) -> None:
    report = verify_release(released.path)
    assert report.ok
    assert not report.key_trusted
    assert "came from the release itself" in report.key_note
    assert signature.fingerprint(signing_key.public_key()) in report.key_note


def test_every_file_is_covered_byte_by_byte(released: Published, signing_key: Ed25519PrivateKey) -> None:
    """Every byte of the small files, and a sample of the others: changed, it is found and its file is named."""
    sample = random.Random(5)
    for name in files(released.path):
        file = released.path / name
        content = file.read_bytes()
        positions = range(len(content)) if len(content) < 120 else sample.sample(range(len(content)), 12)
        for position in positions:
            changed = bytearray(content)
            changed[position] ^= 1 << sample.randrange(8)
            file.write_bytes(changed)
            for key in (pem(signing_key), None):
                found = named(released.path, key)
                expected = "manifest.sig" if key is None and name == "public_key.pem" else name
                assert found & {name, expected}, (name, position)
        file.write_bytes(content)
    assert verify_release(released.path, pem(signing_key)).ok


_changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "truncate", "append", "delete", "add", "swap", "link", "directory"]),
        st.integers(0, 2**32),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_changes)
def test_no_combination_of_changes_goes_unseen(
    released: Published, signing_key: Ed25519PrivateKey, changes: list[tuple[str, int]]
) -> None:
    copy = released.path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(released.path, copy)
    touched: set[str] = set()
    for kind, seed in changes:
        touched |= change(copy, kind, random.Random(seed))
    before, now = contents(released.path), contents(copy)
    report = verify_release(copy, pem(signing_key))
    if before == now:
        assert report.ok
        return
    assert {problem.file for problem in report.problems} & touched
    with pytest.raises(VerificationFailed):
        report.raise_for_problems()


def contents(path: Path) -> dict[str, Any]:
    return {
        item.relative_to(path).as_posix(): "link"
        if item.is_symlink()
        else item.read_bytes()
        if item.is_file()
        else None
        for item in path.rglob("*")
    }


def change(path: Path, kind: str, chance: random.Random) -> set[str]:
    there = files(path)
    if not there:
        return set()
    name = chance.choice(there)
    file = path / name
    content = file.read_bytes()
    if kind == "flip" and content:
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
    elif kind == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif kind == "append":
        file.write_bytes(content + b" ")
    elif kind == "delete":
        file.unlink()
    elif kind == "add":
        name = f"{chance.choice(['', 'data/', 'data/_delta_log/'])}extra{chance.randrange(100)}.json"
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    elif kind == "swap":
        other = chance.choice(there)
        other_content = (path / other).read_bytes()
        (path / other).write_bytes(content)
        file.write_bytes(other_content)
        return {name, other}
    elif kind == "link":
        file.rename(path.parent / "elsewhere")
        file.symlink_to(path.parent / "elsewhere")
    elif kind == "directory":
        name = f"empty{chance.randrange(100)}"
        (path / name).mkdir(exist_ok=True)
    return {name}


def test_a_change_in_the_dossier_is_told_by_its_path(released: Published) -> None:
    file = released.path / "dossier.json"
    original = file.read_text()
    dossier = json.loads(original)
    dossier["guarantee"]["epsilon"] = 0.1
    file.write_text(json.dumps(dossier, indent=2))
    report = verify_release(released.path)
    assert [str(problem).split(":")[0] for problem in report.problems] == [
        "dossier.json", "dossier.json at $.guarantee",
    ]  # fmt: skip
    file.write_text(original.replace('"rows": 400', '"rows": 401'))
    assert any(problem.where == "$.synthetic" for problem in verify_release(released.path).problems)
    file.write_text(original[:-20])
    assert any("is no JSON object in line" in problem.message for problem in verify_release(released.path).problems)
    file.write_text("[]")
    assert "dossier.json" in named(released.path)


def test_another_signer_is_seen_with_a_trusted_key_only(released: Published, signing_key: Ed25519PrivateKey) -> None:
    resign(released.path, Ed25519PrivateKey.generate())
    assert verify_release(released.path).ok
    assert named(released.path, pem(signing_key)) == {"manifest.sig", "public_key.pem", "manifest.json"}


def test_parts_of_two_releases_do_not_mix(released: Published, signing_key: Ed25519PrivateKey) -> None:
    resign(released.path, signing_key, release_id="visits-other")
    problems = verify_release(released.path, pem(signing_key)).problems
    assert [(problem.file, problem.where) for problem in problems] == [("dossier.json", "$.release.id")]


def test_the_table_is_held_against_the_dossier(released: Published, signing_key: Ed25519PrivateKey) -> None:
    """Even the holder of the key cannot put other data beside an old dossier unnoticed."""
    shutil.rmtree(released.path / "data")
    write_deltalake(str(released.path / "data"), pa.table({"patient_id": ["a"], "minutes": pa.array([1], pa.int64())}))
    resign(released.path, signing_key)
    messages = [str(problem) for problem in verify_release(released.path, pem(signing_key)).problems]
    assert "data: has 1 rows, the dossier says 400" in messages
    assert "data at $.synthetic.columns: column minutes is of type int64 in the table only" in messages
    shutil.rmtree(released.path / "data")
    (released.path / "data").mkdir()
    (released.path / "data" / "x").write_text("x")
    resign(released.path, signing_key)
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert "cannot be opened as a Delta table" in problem.message


def test_a_table_that_points_outside_is_not_opened(released: Published, signing_key: Ed25519PrivateKey) -> None:
    (log,) = (released.path / "data" / "_delta_log").glob("*.json")
    (parquet,) = (released.path / "data").glob("*.parquet")
    outside = parquet.rename(released.path.parent / "outside.parquet")
    log.write_text(log.read_text().replace(parquet.name, f"../../{outside.name}"))
    resign(released.path, signing_key)
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert problem.file == "data"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "data/../x", "./dossier.json"])
def test_a_manifest_cannot_name_files_outside(released: Published, signing_key: Ed25519PrivateKey, path: str) -> None:
    resign(released.path, signing_key, files=[{"path": path, "sha256": "0" * 64, "size": 1}])
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert problem.where == "$.files[0]"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format":"dpsynth-release/1"}\n', b"\xff", b'{"a":NaN}'])
def test_a_manifest_that_is_none_is_a_problem_not_a_crash(released: Published, content: bytes) -> None:
    (released.path / "manifest.json").write_bytes(content)
    assert {"manifest.json", "manifest.sig"} <= named(released.path)


def test_a_dossier_of_other_make_is_a_problem_not_a_crash(released: Published, signing_key: Ed25519PrivateKey) -> None:
    dossier = json.loads((released.path / "dossier.json").read_text())
    odd = {key: dossier[key] for key in ("release", "commitments", "ledger")} | {"synthetic": 5}
    (released.path / "dossier.json").write_text(json.dumps(odd))
    resign(released.path, signing_key)
    assert named(released.path, pem(signing_key)) == {"dossier.json"}


def test_there_must_be_a_release_and_a_key(released: Published, tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="no release directory"):
        verify_release(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(released.path)
    with pytest.raises(VerificationFailed, match="no release directory"):
        verify_release(tmp_path / "link")
    with pytest.raises(VerificationFailed, match="Ed25519"):
        verify_release(released.path, b"no key")
    for name in ("manifest.json", "manifest.sig", "public_key.pem"):
        (released.path / name).unlink()
    report = verify_release(released.path)
    assert {problem.file for problem in report.problems} == {"manifest.json", "public_key.pem"}
    assert "not checked" in report.key_note
