"""`dpsynth.verify` and `dpsynth.load_release`: what a recipient reads is what was signed, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from python_examples import run_examples

import dpsynth
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.release.publish import Published
from dpsynth_platform.release.tombstone import Tombstone
from dpsynth_platform.release.withdrawal import bury


@pytest.fixture
def publisher(signing_key: Ed25519PrivateKey, tmp_path: Path) -> Path:
    file = tmp_path / "publisher.pem"
    file.write_bytes(signature.public_pem(signing_key.public_key()))
    return file


@pytest.mark.parametrize(
    ("kind", "expected"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame), ("arrow", pa.Table)]
)
def test_a_recipient_reads_all_rows(
    released: Published, publisher: Path, rows: list[pa.RecordBatch], kind: str, expected: type
) -> None:
    release = dpsynth.load_release(released.path, kind, public_key=publisher)
    assert type(release.data) is expected
    read = dpsynth.load_release(str(released.path), "arrow").data.sort_by("patient_id")
    assert read.to_pylist() == pa.Table.from_batches(rows).to_pylist() and len(release.data) == 400
    assert release.verification.ok and release.verification.key_trusted
    assert str(release.guarantee).startswith("(1, ") and "for one user" in str(release.guarantee)
    assert release.dossier["release"]["id"] == released.release_id
    assert "&lt;b&gt;made up" in release._repr_html_() and "<b>" not in release._repr_html_()


def test_the_examples(released: Published, publisher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    released.path.rename(tmp_path / "received")
    run_examples(["verify", "load_release"])


def test_what_differs_from_what_was_signed_is_refused(released: Published, publisher: Path) -> None:
    page = released.path / layout.PAGE
    page.write_text(page.read_text().replace("strong", "perfect"))
    found = dpsynth.verify(released.path, public_key=publisher)
    assert not found.ok and [problem.file for problem in found.problems] == [layout.PAGE]
    assert "FAIL" in str(found)
    with pytest.raises(dpsynth.VerificationFailed, match=layout.PAGE):
        dpsynth.load_release(released.path)
    assert len(dpsynth.load_release(released.path, verified=False).data) == 400


def test_another_publisher_is_refused(released: Published, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(signature.public_pem(Ed25519PrivateKey.generate().public_key()))
    assert not dpsynth.verify(released.path, public_key=other).ok
    with pytest.raises(dpsynth.VerificationFailed, match="signature"):
        dpsynth.load_release(released.path, public_key=other)


def test_a_log_that_leads_outside_is_never_followed(released: Published, tmp_path: Path) -> None:
    (log,) = (released.path / layout.DATA / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = "../../outside.parquet"
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(dpsynth.VerificationFailed, match="inside its directory"):
        dpsynth.load_release(released.path, verified=False)


def test_a_withdrawn_release_is_refused(released: Published, signing_key: Ed25519PrivateKey, publisher: Path) -> None:
    bury(released.path, Tombstone(released.release_id, "2026-11-20", "why", ("a@example.org",)), signing_key)
    assert dpsynth.verify(released.path, public_key=publisher).withdrawn is not None
    with pytest.raises(dpsynth.VerificationFailed, match="withdrawn"):
        dpsynth.load_release(released.path)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"as_": "excel"}, dpsynth.ConfigurationError, "as_='excel'; accepted: pandas, polars, arrow"),
        ({"public_key": "nowhere.pem"}, dpsynth.VerificationFailed, "nowhere.pem: the key cannot be read"),
        ({"ledger": "nowhere.json"}, dpsynth.VerificationFailed, "nowhere.json"),
        ({"path": "nowhere"}, dpsynth.VerificationFailed, "nowhere: there is no release directory"),
    ],
)
def test_what_cannot_be_read_is_named(
    released: Published, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        dpsynth.load_release(**{"path": released.path} | arguments)


def test_a_library_that_is_missing_is_named(released: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("polars")

    monkeypatch.setattr("dpsynth.frames.nw.from_arrow", missing)
    with pytest.raises(dpsynth.ConfigurationError, match="pip install polars"):
        dpsynth.load_release(released.path, "polars")


def test_the_path_of_a_recipient(
    released: Published,
    publisher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tutorial's code, block after block, beside a release and its publisher's key."""
    monkeypatch.chdir(tmp_path)
    released.path.rename(tmp_path / "received")
    page = Path(__file__).parents[2] / "docs/tutorials/recipient.md"
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, names)
    assert "dermatology" in capsys.readouterr().out
    assert len(pd.read_parquet("received/data")) == len(names["release"].data) == 400
