"""Must show: a table of a real PostgreSQL becomes a verified release, by a copy that is kept as long as declared."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from deployment import Deployment
from leak_cases import put_back
from line_cases import PEOPLE, ledger_of, released, run_here, small_deployment, small_table, storage_of
from test_plain_files_line import with_source

from dpsynth_platform.foundation.storage import EXTRACT
from dpsynth_platform.lifecycle.erasure import HONOURED, Erasure
from dpsynth_platform.lifecycle.retention import due
from dpsynth_platform.reviewing.forecasts import forecast

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
PASSWORD = "zq-hunter-Quillmarker-904"


def fill(url: str, seed: int = 3) -> None:
    """The small table, in an order of its own, under a name that needs quotes."""
    rows = small_table(seed=seed).to_pylist()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql('DROP TABLE IF EXISTS "All people"')
        connection.exec_driver_sql(
            'CREATE TABLE "All people" (person text, visit bigint, region text, score integer, outcome text)'
        )
        connection.execute(
            sa.text('INSERT INTO "All people" VALUES (:person, :visit, :region, :score, :outcome)'), rows[::-1]
        )
    engine.dispose()


def from_database(deployment: Deployment, url: str) -> Deployment:
    root = deployment.root
    (root / "password").write_text(f"*:*:*:*:{PASSWORD}\n")
    source = {"uri": url, "format": "sql", "table": "public.All people", "password_file": str(root / "password")}
    return with_source(deployment, source)


def test_a_table_of_postgresql_becomes_a_release(tmp_path: Path, postgresql_url: str) -> None:
    deployment = small_deployment(tmp_path)
    fill(postgresql_url)
    from_database(deployment, postgresql_url)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    release = released(deployment)
    verified = deployment.here("release", "verify", str(release))
    assert verified.returncode == 0, verified.stdout + verified.stderr

    # Only a run can see whether the rows are those of before.
    shown = dict(forecast(deployment.settings, "people", None).rows())
    assert "with the same rows it spends nothing" in shown["paid twice"]

    # The same rows in another order are the same run, and leave no second copy.
    storage = storage_of(deployment)
    (copy,) = storage.outputs(PEOPLE, EXTRACT)
    fill(postgresql_url)
    again = run_here(deployment)
    assert again.success and again.materializations["raw"]["reused"], again.failures
    assert storage.outputs(PEOPLE, EXTRACT) == [copy]
    assert copy.stat().st_mode & 0o077 == 0 and all(path.stat().st_mode & 0o077 == 0 for path in copy.iterdir())

    # Lineage names the table; the password is nowhere but in its file.
    events = deployment.settings.lineage_file.read_text()
    assert "postgres://localhost:5432" in events and "public.All people" in events
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / "password"]
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]

    # The copy goes with its time, and with a request for erasure.
    now = dt.datetime.now(dt.UTC)
    erasure = {"person": Erasure("person", 10**6, now, 1)}
    assert EXTRACT in {item.step for item in due(storage, [], now, erasure) if item.reason == "erasure"}
    assert EXTRACT not in {item.step for item in due(storage, [], now)}
    # Rows that were scrubbed again without the owner (under a hold, say) do not make the copy one without them.
    record = storage.record_path(PEOPLE, "scrubbed")
    before = record.read_text()
    scrubbed = json.loads(before)
    scrubbed["facts"][HONOURED] = 10**6
    record.write_text(json.dumps(scrubbed))
    erased = {item.step for item in due(storage, [], now, erasure) if item.reason == "erasure"}
    assert EXTRACT in erased and storage.require(PEOPLE, "scrubbed").facts[HONOURED] == 10**6
    record.write_text(before)
    put_back(copy)
    purged = deployment.json("purge")
    assert EXTRACT in json.dumps(purged)
    assert not copy.exists()

    # Without it, scrubbing again needs another copy: of the same rows at no cost.
    (storage.location(PEOPLE, "scrubbed").parent / "scrubbed.json").unlink()
    refused = run_here(deployment, steps=["scrubbed"])
    assert "the copy of the source is gone (purged); materialize people/raw again" in refused.failures["scrubbed"]
    assert run_here(deployment).success
    assert len(ledger_of(deployment).entries()) == 1


def test_a_refused_run_leaves_no_copy(tmp_path: Path, postgresql_url: str) -> None:
    deployment = from_database(small_deployment(tmp_path), postgresql_url)
    deployment.contract["privacy"]["guarantee"]["epsilon"] = 3.0
    deployment.write()
    fill(postgresql_url)
    deployment.family["cap"] = {"epsilon": 3.5, "delta": 1e-5}
    deployment.write()
    assert run_here(deployment).success
    storage = storage_of(deployment)
    (copy,) = storage.outputs(PEOPLE, EXTRACT)
    fill(postgresql_url, seed=4)
    refused = run_here(deployment)
    assert "raw" in refused.failures and not refused.success
    assert storage.outputs(PEOPLE, EXTRACT) == [copy]


def test_a_changed_copy_is_not_read(tmp_path: Path, postgresql_url: str) -> None:
    fill(postgresql_url)
    deployment = from_database(small_deployment(tmp_path), postgresql_url)
    assert run_here(deployment, steps=["raw"]).success
    (copy,) = storage_of(deployment).outputs(PEOPLE, EXTRACT)
    (rows,) = copy.iterdir()
    rows.write_bytes(rows.read_bytes() + b"x,1,east,1,no\n")
    refused = run_here(deployment, steps=["scrubbed"])
    assert "the copy of the source was changed; materialize people/raw again" in refused.failures["scrubbed"]
