"""The tombstone, and what is left of a release's directory: no rows, everything else as it was signed."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from table_cases import one_table

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import ReleaseRefused, VerificationFailed
from dpsynth_platform.foundation.release_layout import has_rows
from dpsynth_platform.foundation.signature import public_pem
from dpsynth_platform.foundation.storage import digest_directory
from dpsynth_platform.release import withdrawal
from dpsynth_platform.release.attestation import Envelope
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.release.publish import publish
from dpsynth_platform.release.tombstone import (
    ATTESTATION,
    TOMBSTONE,
    Tombstone,
    is_withdrawn,
    read_tombstone,
)
from dpsynth_platform.release.verify import WITHDRAWN, exit_status, verify_release
from dpsynth_platform.release.withdrawal import bury


@pytest.fixture
def tombstone(released):
    return Tombstone(released.release_id, "2026-11-20T08:00:00.000000+00:00", "A wrong column", ("a@example.org",))


TOLD = {("withdrawn", "data/"), ("withdrawn", "sample.json")}


def others(directory):
    """Name and content of everything that stays."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
        and path.name not in (TOMBSTONE, ATTESTATION)
        and not layout.holds_rows(path.relative_to(directory).as_posix())
    }


def test_rows_go_and_everything_else_stays(released, tombstone, signing_key):
    before = others(released.path)
    assert has_rows(released.path)
    assert read_tombstone(released.path) is None
    assert bury(released.path, tombstone, signing_key)
    assert not has_rows(released.path)
    assert not list(released.path.rglob("*.parquet"))
    assert others(released.path) == before
    signed = read_tombstone(released.path)
    assert signed.tombstone == tombstone
    assert signed.is_signed_by(signing_key.public_key())
    assert not signed.is_signed_by(Ed25519PrivateKey.generate().public_key())
    assert {oct(path.stat().st_mode & 0o777) for path in released.path.glob("tombstone.*")} == {"0o644"}
    assert "withdrawn on 2026-11-20: A wrong column." in tombstone.words


def test_no_value_of_a_row_stays(evidence, rows, tmp_path, signing_key):
    """Fresh ids and texts, which are in no histogram: in the released files before, and in none of them after."""
    told = [row | {"remark": f"A text about {row['patient_id']}, with more words."} for row in rows[0].to_pylist()]
    marked = pa.RecordBatch.from_pylist(told, rows[0].schema)
    made = publish(evidence, one_table([marked]), tmp_path / "other", signing_key, announce=lambda: None)
    values = {row[name] for row in told[:5] for name in ("patient_id", "remark")}
    assert files_with(made.path, values) == {layout.SAMPLE}
    tombstone = Tombstone(made.release_id, "2026-11-20T08:00:00.000000+00:00", "A name is in it", ("a@example.org",))
    assert bury(made.path, tombstone, signing_key)
    assert files_with(made.path, values) == set()
    assert "counts of them stay in its dossier" in verify_release(made.path).words


def files_with(directory, values):
    """Files that are text and have one of the values. Parquet's are compressed."""
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and "data" not in path.parts
        if any(value in path.read_text(encoding="utf-8") for value in values)
    }


def test_verification_tells_it_from_damage(released, tombstone, signing_key):
    key = public_pem(signing_key.public_key())
    assert exit_status([verify_release(released.path, key)]) == 0
    bury(released.path, tombstone, signing_key)
    report = verify_release(released.path, key)
    assert (report.problems, report.rows, report.withdrawn) == ((), None, tombstone)
    assert exit_status([report]) == WITHDRAWN
    assert "withdrawn on 2026-11-20: A wrong column." in report.words
    assert "Its dossier still verifies" in report.words
    assert report.to_json()["withdrawn"]["reason"] == "A wrong column"
    (released.path / "dossier.html").write_text("other words")
    report = verify_release(released.path, key)
    assert [(problem.kind, problem.file) for problem in report.problems] == [("hash", "dossier.html")]
    assert exit_status([report]) == 1


def test_only_the_publishers_tombstone_for_this_release_excuses_missing_rows(released, tombstone, signing_key):
    key = public_pem(signing_key.public_key())
    for other, by in (
        (tombstone, Ed25519PrivateKey.generate()),
        (replace(tombstone, release="visits-0"), signing_key),
    ):
        bury(released.path, other, by)
        report = verify_release(released.path, key)
        assert report.withdrawn is None
        assert {("signature", TOMBSTONE), ("unlisted", TOMBSTONE)} <= {
            (item.kind, item.file) for item in report.problems
        }
        assert any(item.kind == "missing" and item.file.endswith(".parquet") for item in report.problems)


def test_rows_that_are_still_there_are_told(released, tombstone, signing_key, monkeypatch):
    """Killed before the deletion, or a copy put back: it does not verify, and repeating the withdrawal mends it."""
    key = public_pem(signing_key.public_key())
    with monkeypatch.context() as patch:
        patch.setattr(withdrawal, "_delete", lambda table: False)
        bury(released.path, tombstone, signing_key)
    report = verify_release(released.path, key)
    assert {(problem.kind, problem.file) for problem in report.problems} == TOLD
    assert "rows remain" in report.words
    assert (report.withdrawn, exit_status([report])) == (tombstone, 1)
    table = next((released.path / "data").glob("*.parquet"))
    table.write_bytes(table.read_bytes() + b"x")
    told = {(problem.kind, problem.file) for problem in verify_release(released.path, key).problems}
    assert told == {*TOLD, ("hash", f"data/{table.name}")}
    assert bury(released.path, tombstone, signing_key)
    assert verify_release(released.path, key).ok


def test_a_withdrawal_that_only_the_ledger_knows_is_told(released, tombstone, signing_key, tmp_path):
    """A copy from before, or one whose tombstone was taken away, held against the publisher's ledger."""
    key, export = public_pem(signing_key.public_key()), tmp_path / "ledger.json"
    links = [{"sequence": number, "hash": "c0" * 32, "kind": "spent", "subject": "e"} for number in range(1, 18)]
    for subject, kinds in (("visits-0", []), (released.release_id, ["withdrawn"])):
        withdrawn = {"sequence": 18, "hash": "d0" * 32, "kind": "withdrawn", "subject": subject}
        export.write_text(json.dumps({"events": [*links, withdrawn]}))
        report = verify_release(released.path, key, chain=KnownChain.of_export(export))
        assert report.to_json()["failures"] == kinds
        assert exit_status([report]) == len(kinds)
    assert "ledger.json records that this release was withdrawn" in report.words
    bury(released.path, tombstone, signing_key)
    assert verify_release(released.path, key, chain=KnownChain.of_export(export)).ok


@pytest.mark.parametrize("evil", ["\x1b[2J", "a\nverified; 9 files", "\x9b", "\u202e", "\u2028"])
def test_a_tombstone_cannot_steer_a_terminal(released, tombstone, signing_key, evil):
    for changed in (replace(tombstone, reason=evil), replace(tombstone, contacts=(evil,))):
        bury(released.path, changed, signing_key)
        with pytest.raises(VerificationFailed, match="is not of the format"):
            read_tombstone(released.path)


def test_nothing_is_published_into_a_withdrawn_release(released, tombstone, signing_key, evidence, rows):
    bury(released.path, tombstone, signing_key)
    with pytest.raises(ReleaseRefused, match="was withdrawn meanwhile"):
        publish(evidence, one_table(rows), released.path.parent, signing_key, announce=lambda: None)
    assert not has_rows(released.path)


def test_it_says_no_more_than_it_should(released, tombstone, signing_key):
    bury(released.path, tombstone, signing_key)
    document = json.loads((released.path / TOMBSTONE).read_text())
    assert document.keys() == {"format", "release", "withdrawn_at", "reason", "contacts"}


def test_twice_is_as_once(released, tombstone, signing_key):
    bury(released.path, tombstone, signing_key)
    before = digest_directory(released.path)
    assert not bury(released.path, tombstone, signing_key)
    assert digest_directory(released.path) == before


def test_the_recipe_of_the_page_checks_it_too(released, tombstone, signing_key):
    """The commands as they stand on the release's page, for the other file."""
    if any(shutil.which(tool) is None for tool in ("bash", "jq", "openssl", "sha256sum")):
        pytest.skip("needs bash, jq, openssl and sha256sum")
    bury(released.path, tombstone, signing_key)
    page = (released.path / layout.PAGE).read_text()
    (recipe,) = (
        html.unescape(block) for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL) if "jq" in block
    )
    command = ["bash", "-e", "-o", "pipefail", "-c", recipe.replace(layout.ATTESTATION, ATTESTATION)]
    done = subprocess.run(command, cwd=released.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{TOMBSTONE}: OK" in done.stdout
    with (released.path / TOMBSTONE).open("a") as file:
        file.write(" ")
    assert subprocess.run(command, cwd=released.path, capture_output=True, check=False).returncode == 1


def test_a_signature_is_for_a_tombstone_and_this_one(released, tombstone, signing_key):
    """Neither what vouches for the release itself nor what vouches for another tombstone is taken for this one's."""
    bury(released.path, tombstone, signing_key)
    key = signing_key.public_key()
    for other in (
        (released.path / layout.ATTESTATION).read_bytes(),
        replace(tombstone, reason="Another").seal(signing_key),
        Envelope.seal(tombstone.statement() | {"predicateType": "urn:other"}, signing_key).to_bytes(),
    ):
        (released.path / ATTESTATION).write_bytes(other)
        assert not read_tombstone(released.path).is_signed_by(key)
    (released.path / ATTESTATION).write_bytes(b"{}")
    with pytest.raises(VerificationFailed, match="not a DSSE envelope"):
        read_tombstone(released.path)
    assert ("signature", TOMBSTONE) in {(item.kind, item.file) for item in verify_release(released.path).problems}


@pytest.mark.parametrize(("broken", "call"), [("_write_public", 1), ("_write_public", 2), ("_delete", 1)])
def test_an_interruption_is_finished_by_repeating_it(released, tombstone, signing_key, monkeypatch, broken, call):
    """Interrupted at each effect: nobody ever sees a tombstone without its signature, nor rows gone without one."""
    work, calls = getattr(withdrawal, broken), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return work(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(withdrawal, broken, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bury(released.path, tombstone, signing_key)
    signed = read_tombstone(released.path)
    assert signed is None or signed.is_signed_by(signing_key.public_key())
    assert has_rows(released.path)
    assert bury(released.path, tombstone, signing_key)
    assert read_tombstone(released.path).tombstone == tombstone
    assert not has_rows(released.path)
    assert not [path for path in released.path.iterdir() if path.name.startswith(".")]


def test_a_deletion_that_was_interrupted_is_finished(released, tombstone, signing_key):
    next((released.path / "data").glob("*.parquet")).unlink()
    assert bury(released.path, tombstone, signing_key)
    assert not has_rows(released.path)


def test_a_link_is_removed_and_not_followed(released, tombstone, signing_key, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (released.path / "data").rename(elsewhere)
    (released.path / "data").symlink_to(elsewhere)
    assert bury(released.path, tombstone, signing_key)
    assert not has_rows(released.path)
    assert list(elsewhere.glob("*.parquet"))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"format": "dpsynth-tombstone/1"}', b"[" * 100_000, b"\xff"],
    ids=["empty", "torn", "list", "object", "without parts", "deep", "no text"],
)
def test_what_is_no_tombstone_is_refused_without_quoting_it(released, tombstone, signing_key, content):
    bury(released.path, tombstone, signing_key)
    (released.path / TOMBSTONE).write_bytes(content)
    assert is_withdrawn(released.path)
    with pytest.raises(VerificationFailed, match=r"^is not of the format"):
        read_tombstone(released.path)


@pytest.mark.parametrize("change", ["reason", "contacts", "space", "key", "number"])
def test_a_changed_tombstone_is_found(released, tombstone, signing_key, change):
    bury(released.path, tombstone, signing_key)
    document = json.loads((released.path / TOMBSTONE).read_text())
    if change == "space":
        content = (released.path / TOMBSTONE).read_bytes() + b" "
    else:
        document |= {
            "reason": {"reason": "Another"},
            "contacts": {"contacts": ["b@example.org"]},
            "key": {"more": "x"},
            "number": {"reason": 1},
        }[change]
        content = json.dumps(document, indent=2).encode() + b"\n"
    (released.path / TOMBSTONE).write_bytes(content)
    try:
        found = read_tombstone(released.path).is_signed_by(signing_key.public_key())
    except VerificationFailed:
        found = False
    assert not found


@pytest.mark.parametrize("name", [TOMBSTONE, ATTESTATION])
def test_missing_and_linked_files_are_told(released, tombstone, signing_key, name, tmp_path):
    bury(released.path, tombstone, signing_key)
    (released.path / name).rename(tmp_path / name)
    (released.path / name).symlink_to(tmp_path / name)
    with pytest.raises(VerificationFailed, match="cannot be read"):
        read_tombstone(released.path)
