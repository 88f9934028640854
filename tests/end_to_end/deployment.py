"""A small deployment of its own for each test: a home, a contract, a family, a source, and ways to run the line.

What belongs here: what several end-to-end tests share. What does not: assertions.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import yaml

from dpsynth_platform.cli.main import app
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.operations import operating

LEVELS = [f"level-{number:02d}" for number in range(24)]
CONTRACT: dict[str, Any] = {
    "dataset": "people",
    "description": "A small table for tests.",
    "owners": ["tests@example.org"],
    "source": {"uri": "${DPSYNTH_HOME}/sources/people", "format": "delta", "key": ["person", "visit"]},
    "family": "tests",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person"],
        "namespace": "person",
        "max_contributions": 2,
        "guarantee": {"epsilon": 1.0, "delta": 1.0e-6},
        "expected_units": 3000,
    },
    "columns": {
        "person": {"type": "identifier"},
        "visit": {"type": "identifier"},
        "name": {"type": "text", "pii": "drop"},
        "ssn": {"type": "text", "pii": "mask"},
        "note": {"type": "text", "pii": "replace", "nullable": True},
        **{f"level_{letter}": {"type": "categorical", "values": LEVELS} for letter in "abcde"},
        "score": {"type": "integer", "min": 0, "max": 9},
        "outcome": {"type": "categorical", "values": ["no", "yes"]},
    },
    "generate": {"method": "mst", "rows": 500},
    "audit": {"canaries": 500, "max_epsilon_lower_bound": 1.0},
    "quality": {"target": "outcome", "holdout": 0.1},
    "release": {"uri": "${DPSYNTH_HOME}/public/people", "approvals": 1},
}
FAMILY: dict[str, Any] = {
    "family": "tests",
    "unit": "user",
    "adjacency": "add-or-remove",
    "namespace": "person",
    "mode": "family",
    "cap": {"epsilon": 2.5, "delta": 1.0e-5},
}


def people_table(rows: int = 4000, *, seed: int = 7) -> pa.Table:
    """Fictional people with one to three visits each and correlated columns."""
    random = np.random.default_rng(seed)
    person = np.sort(random.integers(0, 3 * rows // 4, rows))
    base = random.integers(0, 24, rows)
    levels = {
        f"level_{letter}": pa.array(
            [
                LEVELS[(value + shift) % 24]
                for value in np.where(random.random(rows) < 0.7, base, random.integers(0, 24, rows))
            ]
        )
        for shift, letter in enumerate("abcde")
    }
    score = np.clip(base // 3 + random.integers(0, 3, rows), 0, 9)
    return pa.table(
        {
            "person": pa.array([f"P{number:05d}" for number in person]),
            "visit": pa.array(np.arange(rows), pa.int64()),
            "name": pa.array([f"Name{number} Family{number % 97}" for number in person]),
            "ssn": pa.array([f"900-{number % 90 + 10:02d}-{number % 9000 + 1000:04d}" for number in person]),
            "note": pa.array([f"Call Name{number} tomorrow." if number % 40 == 0 else None for number in person]),
            **levels,
            "score": pa.array(score, pa.int64()),
            "outcome": pa.array(np.where(score + random.integers(-2, 3, rows) > 4, "yes", "no").tolist()),
        }
    )


@dataclass
class Deployment:
    """One deployment below a directory of the test's."""

    root: Path
    contract: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(CONTRACT))
    family: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(FAMILY))
    ledger_url: str = ""
    """Of a server; empty: SQLite below the home."""

    @property
    def settings(self) -> Settings:
        home = self.root / "home"
        return Settings(
            home=home,
            deploy=self.root / "deploy",
            ledger_url=self.ledger_url or f"sqlite:///{home / 'ledger' / 'ledger.db'}",
            user="runner",
            device="cpu",
        )

    def write(self) -> Deployment:
        """Writes contract, family and Dagster's configuration, as they are now."""
        deploy = self.root / "deploy"
        self.family["owner_normalization"] = self.contract["privacy"].get("owner_normalization", [])
        for name, document in (("contracts", self.contract), ("families", self.family)):
            (deploy / name).mkdir(parents=True, exist_ok=True)
            stem = document["dataset"] if name == "contracts" else document["family"]
            (deploy / name / f"{stem}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        source = Path(__file__).parents[2] / "deploy" / "dagster.yaml"
        (deploy / "dagster.yaml").write_bytes(source.read_bytes())
        return self

    def with_source(self, table: pa.Table | None = None) -> Deployment:
        """Writes the source table."""
        table = people_table() if table is None else table
        write_table(self.root / "home" / "sources" / "people", table.schema, table.to_batches())
        return self

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a `dpsynth` process on this deployment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DPSYNTH_", "OPENLINEAGE_"))}
        return kept | {
            "DPSYNTH_HOME": str(self.settings.home),
            "DPSYNTH_DEPLOY": str(self.settings.deploy),
            "DPSYNTH_USER": "runner",
            "DPSYNTH_DEVICE": "cpu",
            **({"DPSYNTH_LEDGER_URL": self.ledger_url} if self.ledger_url else {}),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts `dpsynth` as a process of its own session."""
        return subprocess.Popen(
            [sys.executable, "-m", "dpsynth_platform", *arguments],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def dpsynth(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `dpsynth` to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `dpsynth` to its end in this process, where nothing is loaded again and patches hold.

        Steps of a line take place in this process, too; the worker is one of its own.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with _environment(self.environment), _output_to(out, err), _steps_here():
                try:
                    status = app([*arguments], prog_name="dpsynth", standalone_mode=True)
                except SystemExit as ended:
                    status = ended.code
            printed = [(file.seek(0), file.read())[1] for file in (out, err)]
        return subprocess.CompletedProcess(["dpsynth", *arguments], int(status or 0), *printed)

    def json(self, *arguments: str) -> Any:
        """Runs `dpsynth ... --json` in this process, which must end well, and returns its value."""
        done = self.here(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """This process has just these variables inside."""
    with patch.dict(os.environ, wanted, clear=True):
        yield


@contextmanager
def _output_to(out: TextIO, err: TextIO) -> Iterator[None]:
    """Sends to two files what is printed inside, by Python and by others."""
    streams, known = (sys.stdout, sys.stderr), [os.dup(number) for number in (1, 2)]
    for stream in streams:
        stream.flush()
    try:
        for number, file in ((1, out), (2, err)):
            os.dup2(file.fileno(), number)
        # Line by line, and never closed: a library's log handler may keep one. Another library's handler closes the
        # stream that it was made with, unless it finds it here.
        one, two = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        with patch.multiple(sys, stdout=one, stderr=two, __stdout__=streams[0], __stderr__=streams[1]):
            yield
    finally:
        for number, descriptor in zip((1, 2), known, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _steps_here() -> Iterator[None]:
    """Lines take place in this process: one that forks its steps can serve a single deployment."""
    bodies = (operating.run_dataset, operating.publish_if_approved)
    run, publish = (partial(body, in_process=build_definitions) for body in bodies)
    with patch.multiple(operating, run_dataset=run, publish_if_approved=publish):
        yield
