"""Selects a launcher."""

from __future__ import annotations

from dpsynth_platform.worker.choice import KubernetesChoice, RayChoice, WorkerChoice
from dpsynth_platform.worker.launch import Launcher
from dpsynth_platform.worker.local import LocalLauncher


def launcher_of(choice: WorkerChoice) -> Launcher:
    """The launcher; imports the client of a cluster only if that is chosen.

    Raises:
        ConfigurationError: the client is not installed, or the cluster cannot be reached.
    """
    if isinstance(choice, KubernetesChoice):
        from dpsynth_platform.worker.kubernetes_job import KubernetesLauncher

        return KubernetesLauncher(choice)
    if isinstance(choice, RayChoice):
        from dpsynth_platform.worker.ray_job import RayLauncher

        return RayLauncher(choice)
    return LocalLauncher()
