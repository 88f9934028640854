"""The SQL engine that a mechanism may count with, in the mechanism's process.

What belongs here: from which size on tables use an engine, and opening it so that its files are deleted with the job.
What does not: counting (`synth.tabular.counting`), and the choice of an engine (`compute.choice`). The number of
records decides whether an engine counts, so both ways must report the same progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpsynth_platform.compute.choice import read_choice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import ConfigurationError, EngineError
from dpsynth_platform.foundation.storage import count_rows
from dpsynth_platform.worker.job import WorkerJob

LEAST_ROWS = 5_000_000
"""Fewest rows for which an engine counts, with all its threads or machines, and spills. For fewer, its start costs more
than it gains. On two busy processors DuckDB counted all columns and pairs of 10 million rows of 20 columns in 29 s with
1.1 GB, the process in 34 s with 0.5 GB; a million rows took 2.5 s and 3.0 s, 100,000 took 0.6 s and 0.5 s
(`tests/benchmarks/bench_tabular.py --growth`)."""


@contextmanager
def counting_engine(job: WorkerJob, tables: Iterable[Path]) -> Iterator[Engine | None]:
    """The job's engine, open for the block; None where all its tables are small, none was chosen, or it does not start.

    The budget is already spent, and the process counts the same without an engine: so an engine's failure is ignored.
    """
    with ExitStack() as stack:
        engine = None
        if job.engine and max(map(count_rows, tables)) >= LEAST_ROWS:
            with suppress(EngineError, ConfigurationError):
                file = Path(job.engine)
                engine = stack.enter_context(read_choice(file).open(file.parent))
        yield engine
