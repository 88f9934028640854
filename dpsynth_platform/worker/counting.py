"""The SQL engine that a mechanism may count with, in the mechanism's own process.

What belongs here: which tables are worth an engine, and opening it so that its files go with the job. What does not:
counting (`synth.tabular.counting`), and which engine a dataset has (`compute.choice`). Which of the two counts hangs on
the number of records, so neither tells of steps that the other would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpsynth_platform.compute.choice import read_choice
from dpsynth_platform.compute.engine import Engine, EngineError
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import count_rows
from dpsynth_platform.worker.job import WorkerJob

LEAST_ROWS = 5_000_000
"""From so many rows on an engine counts: it uses all its threads or machines, and spills. Below, starting it is more
than it gains. On two busy processors DuckDB counted all columns and pairs of 10 million rows of 20 columns in 29 s with
1.1 GB, the process in 34 s with 0.5 GB; a million rows took 2.5 s and 3.0 s, 100,000 took 0.6 s and 0.5 s
(`tests/benchmarks/bench_tabular.py --growth`)."""


@contextmanager
def counting_engine(job: WorkerJob) -> Iterator[Engine | None]:
    """The job's engine, open for the block; None where the table is small, none was chosen, or it does not start.

    By now the mechanism is paid for, and its own process gives the very same counts: so what is wrong with an engine
    stops nothing.
    """
    with ExitStack() as stack:
        engine = None
        if job.engine and count_rows(Path(job.bounded)) >= LEAST_ROWS:
            with suppress(EngineError, ConfigurationError):
                file = Path(job.engine)
                engine = stack.enter_context(read_choice(file).open(file.parent))
        yield engine
