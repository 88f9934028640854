from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import DeltaTable
from table_cases import one_table

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.release import publish as module
from dpsynth_platform.release.attestation import Envelope
from dpsynth_platform.release.dossier import Evidence
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.verify import verify_release


def visible(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir() if not path.name.startswith("."))


def test_a_release_is_whole_and_readable(released: Published, rows: list[pa.RecordBatch]) -> None:
    path = released.path
    assert sorted(item.name for item in path.iterdir()) == [
        "README.md", "attestation.dsse.json", "croissant.json", "data", "dossier.html", "dossier.json",
        "dossier.schema.json", "public_key.pem", "sample.json",
    ]  # fmt: skip
    assert DeltaTable(str(path / "data")).to_pyarrow_table().sort_by("patient_id").equals(pa.Table.from_batches(rows))
    for item in path.rglob("*"):
        assert stat.S_IMODE(item.stat().st_mode) == (0o755 if item.is_dir() else 0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    listed = {
        item["name"] for item in Envelope.read((path / "attestation.dsse.json").read_bytes()).statement()["subject"]
    }
    assert any(name.startswith("data/_delta_log/") for name in listed)
    assert any(name.endswith(".parquet") for name in listed)
    assert (released.rows, released.reused) == (400, False)


def test_the_same_candidate_is_published_once(
    released: Published, evidence: Evidence, signing_key: Ed25519PrivateKey, with_approvals: Callable[..., Evidence]
) -> None:
    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("the rows must not be read again")
        yield

    before = (released.path / "attestation.dsse.json").stat()
    later = with_approvals(created_at="2027-01-01T00:00:00+00:00")
    again = publish(later, one_table(never(), pa.schema([])), released.path.parent, signing_key, announce=lambda: None)
    assert again.reused
    assert (again.path, again.rows, again.size) == (released.path, released.rows, released.size)
    assert (released.path / "attestation.dsse.json").stat() == before
    assert visible(released.path.parent) == [released.release_id]


def test_another_candidate_is_another_release(
    released: Published, rows: list[pa.RecordBatch], signing_key: Ed25519PrivateKey,
    with_approvals: Callable[..., Evidence],
) -> None:  # fmt: skip
    other = with_approvals(commitments={"candidate": "ef" * 32})
    publish(other, one_table(rows), released.path.parent, signing_key, announce=lambda: None)
    assert len(visible(released.path.parent)) == 2


def test_a_changed_release_in_the_same_place_is_refused(
    released: Published, evidence: Evidence, signing_key: Ed25519PrivateKey
) -> None:
    (released.path / "dossier.html").write_text("changed")
    with pytest.raises(ReleaseRefused, match=r"does not verify: dossier\.html"):
        publish(evidence, one_table([], pa.schema([])), released.path.parent, signing_key, announce=lambda: None)


def test_a_release_of_another_key_is_refused(released: Published, evidence: Evidence) -> None:
    with pytest.raises(ReleaseRefused, match="does not verify"):
        publish(
            evidence,
            one_table([], pa.schema([])),
            released.path.parent,
            Ed25519PrivateKey.generate(),
            announce=lambda: None,
        )


@pytest.mark.parametrize("broken", ["render", "_settle", "write_table"])
def test_a_failure_leaves_nothing_behind(
    broken: str, evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module, broken, fail)
    with pytest.raises(OSError, match="disk full"):
        publish(evidence, one_table(rows), tmp_path / "public", signing_key, announce=lambda: None)
    assert [path.name for path in (tmp_path / "public").iterdir()] == [".lock"]


def test_rows_that_fail_midway_leave_nothing_behind(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        raise OSError("gone")

    with pytest.raises(Exception, match="gone"):
        publish(
            evidence,
            one_table(failing(), rows[0].schema),
            tmp_path / "public",
            signing_key,
            announce=lambda: None,
        )
    assert visible(tmp_path / "public") == []


def test_a_killed_publication_shows_nothing_and_is_cleared_by_the_next(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target = tmp_path / "public"

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # a killed process cleans nothing up
        patch.setattr(module, "_settle", killed)
        patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            publish(evidence, one_table(rows), target, signing_key, announce=lambda: None)
    assert visible(target) == []
    (leftover,) = target.glob(".staging-*")
    assert (leftover / "attestation.dsse.json").is_file(), "staged in full, but never shown"
    done = publish(evidence, one_table(rows), target, signing_key, announce=lambda: None)
    assert visible(target) == [done.release_id]
    assert not leftover.exists()
    assert verify_release(done.path).ok


def test_it_is_announced_when_all_is_ready_and_nothing_is_shown(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    target, seen = tmp_path / "public", []

    def announce() -> None:
        (stage,) = target.glob(".staging-*")
        assert verify_release(stage).ok
        assert stat.S_IMODE(stage.stat().st_mode) == 0o700, "nobody else can read it under its other name"
        seen.append(visible(target))

    done = publish(evidence, one_table(rows), target, signing_key, announce=announce)
    assert seen == [[]]
    publish(evidence, one_table([], pa.schema([])), target, signing_key, announce=lambda: seen.append(visible(target)))
    assert seen == [[], [done.release_id]], "what is there already is announced, too"


def test_what_may_not_be_announced_is_not_shown(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    def refuse() -> None:
        raise ReleaseRefused("refused meanwhile")

    with pytest.raises(ReleaseRefused, match="refused meanwhile"):
        publish(evidence, one_table(rows), tmp_path / "public", signing_key, announce=refuse)
    assert [path.name for path in (tmp_path / "public").iterdir()] == [".lock"]


def test_a_reader_needs_no_permissive_umask(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    before = os.umask(0o077)
    try:
        target = tmp_path / "public" / "census"
        done = publish(evidence, one_table(rows), target, signing_key, announce=lambda: None)
    finally:
        os.umask(before)
    assert all(item.stat().st_mode & stat.S_IROTH for item in done.path.rglob("*"))
    assert all(stat.S_IMODE(place.stat().st_mode) == 0o755 for place in (done.path, target, target.parent))
