"""Limits of the SQL engine (DuckDB in process)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ComputeResource:
    """How much memory and how many threads one step's SQL may take.

    Spill files go into the step's own restricted directory and vanish with it.
    """

    memory_limit: str = "2GB"
    threads: int = 2
