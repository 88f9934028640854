"""Must show: marks planted in the source, and in what libraries say of it, stay in the restricted zone.

A run that succeeds and is released, and runs in which a library raises, prints, warns and logs the marks in one step
after the other, all into one deployment. Then every file outside the restricted zone and the source is searched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deployment import Deployment
from inside import inside
from leak_cases import (
    COUNT,
    FAILING_WORKER,
    MARKED_ROWS,
    MARKS,
    SPEAKING,
    SPEAKING_SCRUBBER,
    UNLISTED,
    count_forms,
    found,
    found_in,
    marked_deployment,
    marked_table,
    spoken_in,
    without_noisy_counts,
)
from line_cases import ledger_of, released, run_here, storage_of

from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations import running

pytestmark = pytest.mark.end_to_end
PLACE = Place("people")
spoken: dict[str, Any] = {}
exec(SPEAKING, spoken)  # the very code that other processes are handed as text
speak: Callable[..., str] = spoken["speak"]


def public_places(deployment: Deployment) -> dict[str, list[str]]:
    """Marks outside the restricted zone and the source itself."""
    home = deployment.settings.home
    return found(MARKS, deployment.root, without=(home / "restricted", home / "sources"))


def raising(*_: object, **__: object) -> None:
    """What a library does at its worst: quotes a row in message, cause, context, note and every channel."""
    try:
        raise KeyError(speak())
    except KeyError as cause:
        failure = ValueError(speak())
        failure.add_note(speak())
        raise failure from cause


class Interrupting:
    """A detector that is interrupted with a mark on its lips."""

    def find(self, *_: object) -> None:
        raise KeyboardInterrupt(speak())


PATCHES: dict[str, dict[str, object]] = {
    "pin": {"dpsynth_platform.sources.source.pin": raising},
    "canaries and detector": {
        "dpsynth_platform.audit.canaries.make_canaries": raising,
        "dpsynth_platform.scrub.parallel.text_detector": raising,
    },
    "interrupt": {"dpsynth_platform.scrub.parallel.text_detector": Interrupting},
    "writer": {"dpsynth_platform.foundation.storage._from_another_thread": raising},
    "sql": {
        "dpsynth_platform.bounding.single_owner._ORDERED_SQL": (
            "SELECT {columns}, _owner, CAST(region AS INTEGER) AS _record FROM bounded"
        )
    },
    "worker": {"dpsynth_platform.synth.tabular.domain.Domain.encode": raising},
    "sampling": {"dpsynth_platform.synth.tabular.marginals.drawing": raising},
    "rows": {"dpsynth_platform.synth.tabular.sampling.completed": raising},
    "quality": {"dpsynth_platform.quality.report.measure_quality": raising},
    "none": {},
}
"""What goes wrong in one run after the other."""


@dataclass
class Marked:
    """A deployment in which much went wrong, and what its runs said."""

    deployment: Deployment
    failures: dict[str, dict[str, str]]
    release: Path
    exported: Path
    instance_home: Path


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marked]:
    root = tmp_path_factory.mktemp("leaks")
    deployment = marked_deployment(root)
    settings = deployment.settings
    exported = root / "exported" / "events.jsonl"
    exported.parent.mkdir()
    running.prepare_home(settings)
    failures = {}
    with (
        pytest.MonkeyPatch.context() as transport,
        dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        transport.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
        transport.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(exported))
        transport.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
        spend_again = ""
        for name, patches in PATCHES.items():
            with pytest.MonkeyPatch.context() as patch:
                for target, value in patches.items():
                    patch.setattr(target, value)
                ran = run_here(deployment, instance=instance, accelerator=inside(deployment), spend_again=spend_again)
            failures[name] = ran.failures
            # The word for a second spend is said once, after the mechanism has failed.
            spend_again = ledger_of(deployment).entries()[-1].entry_id if name == "worker" else ""
        release = released(deployment)
        yield Marked(deployment, failures, release, exported, settings.dagster_home)


def test_every_planted_error_struck(marked: Marked) -> None:
    struck = {name: tuple(sorted(failed)) for name, failed in marked.failures.items()}
    assert struck == {
        "pin": ("raw",),
        "canaries and detector": ("canaries", "scrubbed"),
        "interrupt": ("scrubbed",),
        "writer": ("scrubbed",),
        "sql": ("bounded",),
        "worker": ("model",),
        "sampling": ("synthetic",),
        "rows": ("synthetic",),
        "quality": ("quality",),
        "none": (),
    }
    for name in ("pin", "canaries and detector", "writer", "worker", "sampling", "rows", "quality"):
        for message in marked.failures[name].values():
            assert re.fullmatch(r"ValueError \(details: restricted log step-[0-9a-f]{16}\.log\)", message), message
    assert marked.failures["interrupt"]["scrubbed"].startswith("KeyboardInterrupt (")
    assert marked.failures["sql"]["bounded"].startswith("the SQL engine stopped (ConversionException)")
    logs = marked.deployment.settings.restricted / "logs"
    assert spoken_in(logs) == set(MARKS), "the marks were never spoken"


def test_no_mark_leaves_the_restricted_zone(marked: Marked) -> None:
    assert public_places(marked.deployment) == {}
    searched = [path.name for path in marked.deployment.settings.home.rglob("*") if path.is_file()]
    for name in ("events.jsonl", "ledger.db", "signing.key", "runs.db", "dossier.json", "dossier.html"):
        assert name in searched, f"{name} is not where it was looked for"


def test_the_event_log_holds_no_mark_in_any_field(marked: Marked) -> None:
    with dg.DagsterInstance.from_config(str(marked.instance_home)) as instance:
        events = [str(entry) for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    assert len(events) > 100
    assert not found_in(MARKS, "\n".join(events).encode())


def test_the_scrubbed_table_holds_no_direct_identifier(marked: Marked) -> None:
    scrubbed = storage_of(marked.deployment).require(PLACE, "scrubbed").directory
    marks = tuple(mark for mark in MARKS if mark != UNLISTED)
    assert found(marks, scrubbed) == {}
    assert found((UNLISTED,), scrubbed), "the search finds nothing even where it must"


def test_models_and_synthetic_rows_hold_no_mark(marked: Marked) -> None:
    for step in ("model", "synthetic", "audit", "canaries"):
        assert found(MARKS, storage_of(marked.deployment).require(PLACE, step).directory) == {}


def test_what_is_public_tells_no_private_count_hash_or_fingerprint(marked: Marked, tmp_path: Path) -> None:
    """Numbers that only the data can have told: rows, owners, hashes of restricted content, owners' fingerprints."""
    storage = storage_of(marked.deployment)
    records = [
        storage.require(PLACE, step) for step in ("raw", "scrubbed", "canaries", "bounded", "model", "synthetic")
    ]
    hashes = tuple(record.content_hash for record in records)
    ledger = ledger_of(marked.deployment)
    fingerprints = tuple(item.hex() for item in ledger.participants(ledger.entries()[-1].entry_id).tolist()[:50])
    owners = len(set(marked_table().column("person").to_pylist()))
    counts = tuple(
        form
        for number in (COUNT, owners, owners + MARKED_ROWS, records[1].facts["rows"], records[3].facts["rows"])
        for form in (*count_forms(number), f"{number:,}")
    )
    needles = (*hashes, *fingerprints, *(count for count in counts if not _declared(count)))
    for text in (marked.exported.read_text(), marked.deployment.settings.lineage_file.read_text()):
        assert not found_in(needles, text.encode())
    assert found(needles, without_noisy_counts(marked.release.parent, tmp_path / "public")) == {}
    assert found((*hashes, *fingerprints), marked.release.parent) == {}
    assert found((records[-1].content_hash,), marked.deployment.settings.restricted), "the search for hashes is blind"


def _declared(text: str) -> bool:
    """Whether a form is one that a declared number has: the contract's rows, canaries and expected units."""
    return re.sub(r"\D", "", text) in ("500", "60", "3000")


def test_everything_sensitive_is_readable_by_its_owner_alone(marked: Marked) -> None:
    home = marked.deployment.settings.home
    paths = [path for top in ("restricted", "vault", "ledger") for path in (home / top, *(home / top).rglob("*"))]
    assert len(paths) > 50
    assert {str(path) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077} == set()


def test_a_real_run_keeps_the_marks_too(tmp_path: Path) -> None:
    """Processes of their own: the command, Dagster's steps, the worker; each speaks, and the worker fails."""
    deployment = marked_deployment(tmp_path)
    code = tmp_path / "patches"
    code.mkdir()
    (code / "sitecustomize.py").write_text(SPEAKING_SCRUBBER + FAILING_WORKER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])]))
        first = deployment.dpsynth("run", "people")
        assert first.returncode == 1, first.stdout + first.stderr
        assert "model failed" in first.stderr
    shutil.rmtree(code)
    entry = ledger_of(deployment).entries()[-1]
    assert entry.state == "started"
    second = deployment.here("run", "people", "--spend-again", entry.entry_id, "--json")  # where nothing speaks
    assert second.returncode == 0, second.stdout + second.stderr
    assert json.loads(second.stdout)["new_entries"]
    for done in (first, second):
        assert not found_in(MARKS, (done.stdout + done.stderr).encode()), "the terminal"
    assert public_places(deployment) == {}
    logs = deployment.settings.restricted / "logs"
    assert spoken_in(logs) == set(MARKS), "the marks were never spoken"
    worker_logs = found(("markedmessage",), logs)
    assert any("worker-" in name for name in worker_logs)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_no_library_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    from typer.testing import CliRunner

    from dpsynth_platform.cli import main as cli

    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setattr("dpsynth_platform.reviewing.accounts.listing", raising)
    result = CliRunner().invoke(cli.app, ["ledger", "show", *(["--json"] if as_json else [])])
    said = result.output + capfd.readouterr().out
    assert result.exit_code == 1
    assert "unexpected error: ValueError (details: restricted log command-" in said
    assert len(found(MARKS, tmp_path / "logs")) == 0
    assert len(found(MARKS, tmp_path / "restricted" / "logs")) == 1


def test_the_search_finds_every_form(tmp_path: Path) -> None:
    """The search itself: a mark in each container and form that it claims to look into."""
    import base64
    import gzip
    import sqlite3
    import zipfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    mark = MARKS[0]
    (tmp_path / "plain").write_text(f"x{mark.upper()}y")
    (tmp_path / "utf16").write_bytes(mark.encode("utf-16"))
    (tmp_path / "hex").write_text(mark.encode().hex())
    for shift in range(3):
        (tmp_path / f"base64-{shift}").write_bytes(base64.b64encode(b"a" * shift + mark.encode() + b"tail"))
    (tmp_path / "gzip").write_bytes(gzip.compress(mark.encode()))
    with zipfile.ZipFile(tmp_path / "zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", mark * 20)
    pq.write_table(pa.table({"x": [mark] * 100}), tmp_path / "parquet", compression="zstd")
    connection = sqlite3.connect(tmp_path / "sqlite")
    connection.execute("create table t (x)")
    connection.execute("insert into t values (?)", ["a" * 4080 + mark + "b" * 9000])
    connection.commit()
    connection.close()
    (tmp_path / "clean").write_text("nothing")
    seen = {Path(name).name for name in found((mark,), tmp_path)}
    assert seen == {path.name for path in tmp_path.iterdir()} - {"clean"}
