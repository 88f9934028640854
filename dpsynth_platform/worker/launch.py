"""What starts a worker, whatever starts it: its command, its environment, and the seam of the launchers.

What belongs here: what a process on this machine (`local`), a Kubernetes job (`kubernetes_job`) and a Ray job
(`ray_job`) have in common. What does not: Dagster, which of them a dataset has (`choice`), and how each of them starts.

A worker's environment is made of a list, so that database URLs, tokens and the like never reach it. The context of
Dagster Pipes, which holds the grant, and its messages travel in files of the restricted zone: on command lines and in
variables, which whoever may look at a cluster's jobs can read, stand paths alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpsynth_platform.foundation.digests import canonical_digest

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
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Processes that train together add up sums without noise: they talk inside their machine alone."""


@dataclass(frozen=True)
class Start:
    """One start of a worker.

    Attributes:
        model: the model directory. At most one worker may be at work there.
        log: the restricted file for everything that the worker prints.
        variables: what Pipes tells its process: where its files are.
    """

    model: Path
    log: Path
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        """A name for a cluster's job, the same for every start at this place; it tells nobody whose model it is."""
        return f"dpsynth-{canonical_digest(str(self.model))[:24]}"

    @property
    def alive(self) -> Path:
        """For a launcher on another machine: the file of its signs of life, which goes when old logs do."""
        return self.log.with_name(f"{self.log.stem}-alive.log")


class Launcher(Protocol):
    """Runs workers somewhere."""

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Finds before anything is spent what would keep a worker from starting.

        Args:
            reads: files and directories that it would need.
            hidden: what no worker may see: keys and the ledger.

        Raises:
            ConfigurationError: names what is missing.
        """

    def run(self, start: Start) -> int:
        """Runs a worker to its end; where this is interrupted, ends the worker and passes the interruption on.

        Returns:
            Its exit status; negative or above 128, as of a shell: a signal.

        Raises:
            LaunchFailed: it could not be started, or nobody can tell any more what became of it.
        """


def command(python: str, tie: Sequence[str], log: Path) -> list[str]:
    """The command that starts a worker.

    Args:
        python: the interpreter.
        tie: the arguments that say whose end is the worker's end.
        log: see `Start`.
    """
    return [python, "-m", "dpsynth_platform.worker", *tie, "--log", str(log)]


def environment(inherited: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a worker on this machine.

    Args:
        inherited: of the process that starts it.
        variables: see `Start`.
    """
    return {name: inherited[name] for name in KEPT if name in inherited} | LOOPBACK | dict(variables)
