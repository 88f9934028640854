from __future__ import annotations

import base64
import hashlib
import html
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_cases import one_table, pem, resign, rewrite

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.people import is_control
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.release.attestation import Envelope
from dpsynth_platform.release.dossier import Evidence
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.tombstone import Tombstone
from dpsynth_platform.release.verify import KIND_WORDS, main, verify_release, verify_releases
from dpsynth_platform.release.withdrawal import bury


def files(path: Path) -> list[str]:
    return sorted(layout.regular_files(path))


def kinds(path: Path, key: bytes | None = None) -> list[str]:
    return verify_release(path, key).to_json()["failures"]


def named(path: Path, key: bytes | None = None) -> set[str]:
    return {problem.file for problem in verify_release(path, key).problems}


def test_an_untouched_release_verifies(released: Published, signing_key: Ed25519PrivateKey) -> None:
    report = verify_release(released.path, pem(signing_key))
    assert report.ok
    assert report.key_trusted
    assert (report.release_id, report.rows, report.files) == (released.release_id, 400, len(files(released.path)) - 1)
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
                expected = layout.ATTESTATION if key is None and name == layout.PUBLIC_KEY else name
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
    assert any("is not a JSON object in line" in problem.message for problem in verify_release(released.path).problems)
    file.write_text("[]")
    assert "dossier.json" in named(released.path)


def test_another_signer_is_seen_with_a_trusted_key_only(released: Published, signing_key: Ed25519PrivateKey) -> None:
    resign(released.path, Ed25519PrivateKey.generate())
    assert verify_release(released.path).ok
    assert named(released.path, pem(signing_key)) == {layout.ATTESTATION, layout.PUBLIC_KEY}
    assert kinds(released.path, pem(signing_key)) == ["signature"]


def test_every_kind_of_failure_is_told_apart(released: Published, signing_key: Ed25519PrivateKey) -> None:
    """One failure of each kind by itself: it is told as that kind and as no other, and in its own words."""

    def table(path: Path) -> None:
        rewrite(path, signing_key, lambda dossier: dossier["synthetic"].update(rows=401))

    def withdraw(path: Path) -> None:
        bury(path, Tombstone(released.release_id, "2026-11-20", "why", ("a@example.org",)), signing_key)
        shutil.copytree(released.path / layout.DATA, path / layout.DATA)

    def change(path: Path) -> None:
        file = path / layout.CARD
        file.write_text(file.read_text() + " ")

    planted: dict[str, Callable[[Path], object]] = {
        "signature": lambda path: resign(path, Ed25519PrivateKey.generate()),
        "identity": lambda path: None,
        "missing": lambda path: (path / layout.PAGE).unlink(),
        "unlisted": lambda path: (path / "more.txt").write_text("x"),
        "hash": change,
        "schema": lambda path: rewrite(path, signing_key, lambda dossier: dossier["guarantee"].update(tier="best")),
        "chain-head": lambda path: resign(path, signing_key, ledgerHead={"sequence": 16, "hash": "c1" * 32}),
        "table": table,
        "withdrawn": withdraw,
    }
    assert planted.keys() == KIND_WORDS.keys()
    for kind, plant in planted.items():
        copy = released.path.parent / kind
        shutil.copytree(released.path, copy)
        plant(copy)
        expected = "clinic-0123456789abcdef" if kind == "identity" else released.release_id
        report = verify_release(copy, pem(signing_key), release=expected)
        assert report.to_json()["failures"] == [kind]
        assert f"{kind} failure ({KIND_WORDS[kind]})" in report.words


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda dossier: dossier.update(format="dpsynth-dossier/99"), "$.format"),
        (lambda dossier: dossier["ledger"].update(spent=3.5), "$.ledger"),
        (lambda dossier: dossier["release"].pop("owners"), "$.release"),
        (lambda dossier: dossier["commitments"].update(model="plain"), "$.commitments.model"),
        (lambda dossier: dossier["audit"]["report"].update(publishable=False), "$.audit.report.publishable"),
        (lambda dossier: dossier.update(synthetic=5), "$.synthetic"),
    ],
)
def test_a_signed_dossier_of_another_form_is_told_by_path_without_values(
    released: Published, signing_key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], None], where: str
) -> None:
    rewrite(released.path, signing_key, change)
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert (problem.kind, problem.file, problem.where) == ("schema", layout.DOSSIER, where)
    assert not {"3.5", "plain", "dpsynth-dossier/99"} & set(problem.message.split())


def test_parts_of_two_releases_do_not_mix(released: Published, signing_key: Ed25519PrivateKey) -> None:
    resign(released.path, signing_key, release="visits-other")
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert (problem.kind, problem.file, problem.where) == ("schema", layout.DOSSIER, "$.release.id")


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
    assert (problem.kind, problem.file) == ("table", "data")


def test_a_table_is_one_commit_of_its_own_files(released: Published, signing_key: Ed25519PrivateKey) -> None:
    """A log that names a file outside, another file, or removes one; and files that are no Parquet."""
    (log,) = (released.path / "data" / "_delta_log").glob("*.json")
    (parquet,) = (released.path / "data").glob("*.parquet")
    original, content = log.read_text(), parquet.read_bytes()
    for changed in (
        original.replace(parquet.name, f"../../{parquet.name}"),
        original.replace(parquet.name, f"%2E%2E/{parquet.name}"),
        original.replace(parquet.name, "other.parquet"),
        original + json.dumps({"remove": {"path": parquet.name}}) + "\n",
        original.replace('"partitionColumns":[]', '"partitionColumns":["department"]'),
        "[]\n",
        "{",
    ):
        log.write_text(changed)
        resign(released.path, signing_key)
        assert kinds(released.path, pem(signing_key)) == ["table"], changed
    log.write_text(original)
    parquet.write_bytes(content[:-9])
    resign(released.path, signing_key)
    assert kinds(released.path, pem(signing_key)) == ["table"]
    parquet.write_bytes(content)
    resign(released.path, signing_key)
    assert verify_release(released.path, pem(signing_key)).rows == 400


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "data/../x", "./dossier.json"])
def test_an_attestation_cannot_name_files_outside(
    released: Published, signing_key: Ed25519PrivateKey, path: str
) -> None:
    resign(released.path, signing_key, subject=[{"name": path, "digest": {"sha256": "0" * 64}}])
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert (problem.kind, problem.where) == ("schema", "$.subject")


@pytest.mark.parametrize("evil", ["\x1b[2Jx", "x\n/tmp/r: verified; 9 files, 9 rows", "\x9b2J", "\u202ex", "\udcffx"])
def test_what_is_found_cannot_steer_a_terminal(
    released: Published, evil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters, line feeds and what is no text, in names of files and inside the dossier."""
    (released.path / evil.replace("/", "-")).write_text("x")
    dossier = json.loads((released.path / layout.DOSSIER).read_text())
    (released.path / layout.DOSSIER).write_text(json.dumps(dossier | {evil: 1}))
    written = evil.encode("unicode_escape").decode()
    for arguments in ([], ["--json"]):
        assert main([str(released.path), *arguments]) == 1
        shown = capsys.readouterr().out
        assert not [item for item in shown if is_control(item) and item != "\n"]
        assert not [line for line in shown.splitlines() if line.startswith("/tmp/r")]
    told = {problem.file for problem in verify_release(released.path).problems}
    assert written.replace("/", "-") in told
    moved = released.path.rename(released.path.parent / evil.replace("/", "-"))
    main([str(moved)])
    assert not [item for item in capsys.readouterr().out if is_control(item) and item != "\n"]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xff", b'{"a":NaN}', b"[" * 100_000, b'{"payload":"e30=","signatures":[]}',
     b'{"payload":5,"payloadType":"x","signatures":[{"keyid":"a","sig":"e30="}]}\n'],
)  # fmt: skip
def test_an_attestation_that_is_none_is_a_problem_not_a_crash(released: Published, content: bytes) -> None:
    (released.path / layout.ATTESTATION).write_bytes(content)
    assert named(released.path) == {layout.ATTESTATION}
    assert kinds(released.path) == ["signature"]


@pytest.mark.parametrize("payload", [b"[]", b"{ }", b"no", b"\xff", b'{"_type": 1}'])
def test_a_signed_payload_that_is_no_statement_is_a_problem_not_a_crash(
    released: Published, signing_key: Ed25519PrivateKey, payload: bytes
) -> None:
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    envelope = Envelope(payload, signature.fingerprint(signing_key.public_key()), signature.sign(signing_key, signed))
    (released.path / layout.ATTESTATION).write_bytes(envelope.to_bytes())
    assert kinds(released.path, pem(signing_key)) == ["schema"]


def test_a_dossier_that_is_none_is_a_problem_not_a_crash(released: Published, signing_key: Ed25519PrivateKey) -> None:
    statement = Envelope.read((released.path / layout.ATTESTATION).read_bytes()).statement()
    for content in (b"", b"[]", b"5", b"\xff", b"[" * 100_000):
        (released.path / layout.DOSSIER).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        listed = [item for item in statement["subject"] if item["name"] != layout.DOSSIER]
        changed = statement | {"subject": [*listed, {"name": layout.DOSSIER, "digest": {"sha256": digest}}]}
        (released.path / layout.ATTESTATION).write_bytes(Envelope.seal(changed, signing_key).to_bytes())
        assert kinds(released.path, pem(signing_key)) == ["schema"], content[:10]


def test_there_must_be_a_release_and_a_key(released: Published, tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="no release directory"):
        verify_release(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(released.path)
    with pytest.raises(VerificationFailed, match="no release directory"):
        verify_release(tmp_path / "link")
    with pytest.raises(VerificationFailed, match="Ed25519"):
        verify_release(released.path, b"no key")
    for name in (layout.ATTESTATION, layout.PUBLIC_KEY):
        (released.path / name).unlink()
    report = verify_release(released.path)
    assert {problem.file for problem in report.problems} == {layout.ATTESTATION, layout.PUBLIC_KEY}
    assert "not checked" in report.key_note


def export(path: Path, hashes: dict[int, str]) -> Path:
    path.write_text(json.dumps({"events": [{"sequence": number, "hash": hashes[number]} for number in hashes]}))
    return path


def test_a_head_must_stand_in_the_chain_that_is_known(
    released: Published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {number: f"{number:064x}" for number in range(1, 21)} | {17: "c0" * 32}
    for hashes, words in (
        (whole, None),
        ({number: whole[number] for number in range(1, 15)}, "ends at 14: it was cut, or is older"),
        (whole | {17: "c1" * 32}, "is not link 17 of the chain in ledger.json: that chain was rewritten"),
    ):
        arguments = [str(released.path), "--json", "--ledger", str(export(tmp_path / "ledger.json", hashes))]
        assert main(arguments) == (0 if words is None else 1)
        (told,) = json.loads(capsys.readouterr().out)
        assert told["failures"] == ([] if words is None else ["chain-head"])
        assert all(words and words in problem["message"] for problem in told["problems"])
    (tmp_path / "ledger.json").write_text('{"events": [{"sequence": "x"}]}')
    assert main([str(released.path), "--ledger", str(tmp_path / "ledger.json")]) == 2
    assert "is not an export of a ledger" in capsys.readouterr().err


def test_the_heads_of_several_releases_are_of_one_chain(
    released: Published, evidence: Evidence, rows: list[pa.RecordBatch], signing_key: Ed25519PrivateKey
) -> None:
    def another(candidate: str, created_at: str, head: Head) -> Path:
        commitments = {"candidate": candidate * 32}
        changed = replace(evidence, commitments=commitments, created_at=created_at, ledger_head=head)
        return publish(changed, one_table(rows), released.path.parent, signing_key, announce=lambda: None).path

    later = another("a1", "2026-12-20T07:00:00+00:00", Head(40, "d0" * 32))
    at_once = another("a2", "2026-11-20T06:30:00+00:00", Head(17, "c0" * 32))
    reports = verify_releases([later, released.path, at_once], pem(signing_key))
    assert [report.to_json()["failures"] for report in reports] == [[], [], []]

    forked = another("a3", "2026-12-20T07:00:00+00:00", Head(40, "d1" * 32))
    cut = another("a4", "2027-01-20T07:00:00+00:00", Head(30, "e0" * 32))
    for other, words in ((forked, "like the head of"), (cut, "the chain was cut in between")):
        reports = verify_releases([later, released.path, other], pem(signing_key))
        told = [problem for report in reports for problem in report.problems]
        assert [(problem.kind, words in problem.message) for problem in told] == [("chain-head", True)]
    # What is not the publisher's own says nothing about the publisher's releases.
    resign(forked, Ed25519PrivateKey.generate())
    reports = verify_releases([later, forked], pem(signing_key))
    assert [report.to_json()["failures"] for report in reports] == [[], ["signature"]]


def test_the_command_of_its_own(
    released: Published, signing_key: Ed25519PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.pem").write_bytes(pem(signing_key))
    assert main([str(released.path), "--public-key", str(tmp_path / "key.pem")]) == 0
    assert "verified; " in capsys.readouterr().out
    (released.path / layout.PAGE).unlink()
    assert main([str(released.path), "--public-key", str(tmp_path / "key.pem")]) == 1
    assert "missing failure" in capsys.readouterr().out
    for arguments in ([str(tmp_path / "none")], [str(released.path), "--public-key", str(tmp_path / "none")]):
        assert main(arguments) == 2
        assert str(tmp_path / "none") in capsys.readouterr().err


def test_anyone_can_check_the_signature_without_this_library(released: Published) -> None:
    """The words of the page, with openssl and the standard library alone."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    envelope = json.loads((released.path / layout.ATTESTATION).read_text())
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    work = released.path.parent
    (work / "signed").write_bytes(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
    (work / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(released.path / layout.PUBLIC_KEY), "-rawin",
               "-in", str(work / "signed"), "-sigfile", str(work / "signature")]  # fmt: skip
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (work / "signed").write_bytes((work / "signed").read_bytes() + b" ")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    for item in json.loads(payload)["subject"]:
        content = (released.path / item["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == item["digest"]["sha256"]


def test_the_recipe_of_the_page_works_and_leaves_no_trace(released: Published) -> None:
    """The commands are run as they stand on the page."""
    if any(shutil.which(tool) is None for tool in ("bash", "jq", "openssl", "sha256sum")):
        pytest.skip("needs bash, jq, openssl and sha256sum")
    page = (released.path / layout.PAGE).read_text()
    (recipe,) = (
        html.unescape(block) for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL) if "jq" in block
    )
    command = ["bash", "-e", "-o", "pipefail", "-c", recipe]
    done = subprocess.run(command, cwd=released.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subjects = files(released.path)
    assert done.stdout.count(": OK") == len(subjects) - 1  # all but the attestation
    assert verify_release(released.path).ok
    (released.path / layout.DOSSIER).write_text("{}")
    assert subprocess.run(command, cwd=released.path, capture_output=True, check=False).returncode == 1
