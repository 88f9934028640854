"""Starting the worker: its command line with a minimal environment.

What belongs here: what any launcher needs (Dagster's Pipes client, a test, a Kubernetes job's template). What does not:
Dagster itself.

Dagster's subprocess client hands its whole environment on, so the command begins with `env -u` for every variable that
is not on the list below: database URLs, tokens and the like never reach the worker. Names are public, values do not
appear on the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

KEPT = (
    "PATH",
    "HOME",
    "JAVA_HOME",
    "LANG",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
PIPES_PREFIX = "DAGSTER_PIPES_"


def command(environment: Mapping[str, str], *, parent: int, log: Path) -> list[str]:
    """The command that starts a worker.

    Args:
        environment: the launcher's environment, which the process would inherit.
        parent: process id of the launcher, which must start the command itself; the worker dies with it.
        log: the restricted file for everything that the worker prints.
    """
    removed = [name for name in sorted(environment) if name not in KEPT and not name.startswith(PIPES_PREFIX)]
    unset = [argument for name in removed for argument in ("-u", name)]
    module = [sys.executable, "-m", "dpsynth_platform.worker", "--parent", str(parent), "--log", str(log)]
    return ["env", *unset, *module]
