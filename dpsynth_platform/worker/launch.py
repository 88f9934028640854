"""The command and environment of a worker, and the interface of the launchers.

What belongs here: what a process on this machine (`local`), a Kubernetes job (`kubernetes_job`) and a Ray job
(`ray_job`) have in common. What does not: Dagster, the choice for a dataset (`choice`), and each launcher's start.

A worker inherits only listed variables, so database URLs and tokens never reach it. The context of Dagster Pipes, with
the grant, and its messages are files of the restricted zone: command lines and variables, which other users of a
cluster can read, contain only their paths.
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
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Processes that train together exchange sums without noise, so they communicate only inside their machine."""


@dataclass(frozen=True)
class Start:
    """One start of a worker.

    Attributes:
        model: the model directory; at most one worker may run there.
        log: the restricted file for all output of the worker.
        variables: of Dagster Pipes, with the paths of its files.
    """

    model: Path
    log: Path
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of a cluster's job: the same for every start in this model directory, and without the dataset's name."""
        return f"dpsynth-{canonical_digest(str(self.model))[:24]}"

    @property
    def alive(self) -> Path:
        """Heartbeat file of a launcher on another machine; it is deleted with old logs."""
        return self.log.with_name(f"{self.log.stem}-alive.log")


class Launcher(Protocol):
    """Runs workers."""

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Checks, before any budget is spent, that a worker could start.

        Args:
            reads: files and directories that the worker needs.
            hidden: paths that no worker may see: keys and the ledger.

        Raises:
            ConfigurationError: it could not.
        """

    def run(self, start: Start) -> int:
        """Runs a worker to its end; an interruption ends the worker and is raised again.

        Returns:
            Its exit status; negative or above 128 for a signal.

        Raises:
            LaunchFailed: it could not be started, or its outcome is unknown.
        """


def command(python: str, launcher: Sequence[str], log: Path) -> list[str]:
    """The command that starts a worker; `launcher` holds the arguments that name the process with which it ends."""
    return [python, "-m", "dpsynth_platform.worker", *launcher, "--log", str(log)]


def environment(inherited: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The complete environment of a worker on this machine."""
    return {name: inherited[name] for name in KEPT if name in inherited} | LOOPBACK | dict(variables)
