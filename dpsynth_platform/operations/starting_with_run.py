"""Starts the fork server of a run's steps, on import by the process of the run (see `forking.start_beside_run`)."""

from dpsynth_platform.operations.forking import start_beside_run

start_beside_run()
