"""Must show: when all has expired, a search of the whole disk finds no planted value outside of the source.

One deployment runs in processes of its own, with a temporary directory of its own: a library speaks the planted values
in every way, a step is killed while rows are spilled, an evaluation of bounds is killed with owners' ids on disk, then
the line completes and is released. Then the clock of all files is put back, the sweep runs as a command, and every file
is read in every form in which a value may stand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from deployment import Deployment
from leak_cases import (
    MARKED_ROWS,
    MARKS,
    OWNER,
    SPEAKING_SCRUBBER,
    UNLISTED,
    found,
    marked_deployment,
    marked_table,
    put_back,
)
from line_cases import ledger_of, released

from dpsynth_platform.foundation.storage import SCORES, STEPS

pytestmark = pytest.mark.end_to_end

NUMBER = 918273645546
PLANTED = (*MARKS, str(NUMBER))
KILLED = f"""
import signal
def _kill():
    os.kill(os.getpid(), signal.SIGKILL)
if not os.path.exists(os.environ["KILLED_ONCE"]):
    from dpsynth_platform.compute import duckdb_engine
    _quiet_exit = duckdb_engine.DuckDBEngine.__exit__
    def _exit(self, *error):
        if os.path.basename(os.path.dirname(os.path.dirname(str(self._spill)))) == "bounded":
            with open(os.environ["KILLED_ONCE"], "w"):
                pass
            (self._spill / "storage.tmp").write_text("{UNLISTED} {NUMBER}")  # few rows: DuckDB itself spills none
            _kill()
        _quiet_exit(self, *error)
    duckdb_engine.DuckDBEngine.__exit__ = _exit
if "evaluate" in sys.orig_argv:
    from dpsynth_platform.bounding import evaluation
    def _evaluate(*_, workspace, **__):
        (workspace / "ids").write_text("{OWNER}")
        _kill()
    evaluation.evaluate = _evaluate
"""
KEPT = {"audit", "quality", "clearance", "dossier", "nonces", "releases"}
"""Where something may be left in the restricted zone: reports and counts for reviewers, commitments, the register."""


@dataclass
class Run:
    """A deployment in which much went wrong before it completed, where everything that may expire has expired."""

    deployment: Deployment
    before: dict[str, list[str]]
    purged: list[dict[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    root = tmp_path_factory.mktemp("expiry")
    deployment = marked_deployment(root, table=_planted())
    code, scratch = root / "code", root / "scratch"
    code.mkdir()
    scratch.mkdir()
    (code / "sitecustomize.py").write_text(SPEAKING_SCRUBBER + KILLED)
    source = str(deployment.settings.home / "sources" / "people")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("TMPDIR", str(scratch))
        patch.setenv("KILLED_ONCE", str(root / "killed-once"))
        first = deployment.dpsynth("run", "people")
        assert first.returncode == 1 and "bounded failed" in first.stderr, first.stdout + first.stderr
        evaluated = deployment.dpsynth("bound", "evaluate", source, "--owners", "person")
        assert evaluated.returncode == -9, evaluated.stdout + evaluated.stderr
        second = deployment.dpsynth("run", "people")
        assert second.returncode == 0, second.stdout + second.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        released(deployment)
        before = _search(deployment)
        put_back(deployment.settings.restricted, scratch)
        purged = deployment.dpsynth("purge", "--json")
        assert purged.returncode == 0, purged.stdout + purged.stderr
        yield Run(deployment, before, json.loads(purged.stdout)["deleted"])


def _planted() -> pa.Table:
    table = marked_table()
    score = [NUMBER if row < MARKED_ROWS else value for row, value in enumerate(table["score"].to_pylist())]
    return table.set_column(table.schema.get_field_index("score"), "score", pa.array(score, pa.int64()))


def _search(deployment: Deployment) -> dict[str, list[str]]:
    return found(PLANTED, deployment.root, without=(deployment.settings.home / "sources", deployment.root / "code"))


def test_the_values_were_there_to_be_found(run: Run) -> None:
    """Otherwise a search that finds nothing would say nothing."""
    for part, marks in {
        "/restricted/logs/": set(MARKS),
        "/restricted/people/all/scrubbed/": {UNLISTED, str(NUMBER)},
        "/restricted/people/all/bounded/": {UNLISTED, str(NUMBER)},
        "/storage.tmp": {UNLISTED, str(NUMBER)},  # what a killed step had spilled
        "/scratch/dpsynth-bound-": {OWNER},
    }.items():
        assert {mark for path, seen in run.before.items() if part in path for mark in seen} >= marks, part


def test_no_file_holds_a_planted_value_after_expiry(run: Run) -> None:
    assert _search(run.deployment) == {}
    steps = {item["step"] for item in run.purged}
    assert steps == {"raw", "scrubbed", "canaries", "bounded", "model", "synthetic", "scores", "log", "scratch"}
    assert list((run.deployment.root / "scratch").glob("dpsynth-*")) == []


def test_only_records_and_reports_are_left_in_the_restricted_zone(run: Run) -> None:
    """Also what the search could not read, such as a compressed spill, is gone."""
    restricted = run.deployment.settings.restricted
    below = [path.relative_to(restricted).parts for path in restricted.rglob("*") if path.is_file()]
    place = ("people", "all")
    left = {parts[2] if parts[:2] == place else parts[0] for parts in below}
    records = {f"{step}.json" for step in (*STEPS, SCORES)}
    assert left <= KEPT | records, left - KEPT - records
    assert {"audit", "quality", "released.json"} <= left


def test_what_was_released_and_recorded_still_verifies(run: Run) -> None:
    deployment = run.deployment
    assert deployment.json("ledger", "verify")["ok"]
    (release,) = (deployment.settings.home / "public" / "people").glob("people-*")
    assert deployment.here("release", "verify", str(release)).returncode == 0
    recorded = [(event.subject, event.payload["step"]) for event in ledger_of(deployment).history(kinds=["purged"])]
    assert sorted(set(recorded)) == sorted({(item["dataset"], item["step"]) for item in run.purged})
