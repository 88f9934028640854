"""Runs in processes of their own that may be killed, without each of them importing everything anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FORKING = """
import json, os, sys, traceback
import deltalake, duckdb, pyarrow.dataset, torch, yaml
import dpsynth_platform.bounding.single_owner, dpsynth_platform.compute.duckdb_engine
import dpsynth_platform.ledger.store, dpsynth_platform.one_table.run, dpsynth_platform.one_table.more_rows
import dpsynth_platform.synth.tabular.mst, dpsynth_platform.synth.tabular.estimation

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.environ.clear()
            os.environ.update(asked["environment"])
            sys.argv = ["-c", *asked["arguments"]]
            exec(compile(asked["script"], "<run>", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended: negative where a signal ended it, and what it had printed."""

    returncode: int
    said: str


class Runs:
    """A process that has only imported, no threads and no ledger open: each run is a fork of it, to be killed."""

    def __init__(self, directory: Path) -> None:
        self._said = directory / "said"
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: str, arguments: list[str]) -> Ended:
        asked = {"script": script, "arguments": arguments, "environment": dict(os.environ), "said": str(self._said)}
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return Ended(code, self._said.read_text())

    def end(self) -> None:
        self._process.communicate(timeout=60)
