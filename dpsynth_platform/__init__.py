"""The library of the platform: everything that can be used and tested without Dagster.

What belongs in this package: contracts, privacy accounting, the ledger, scrubbing, bounding, generators, audit,
quality and release. What does not: orchestration (`assets`, `resources` and `sensors` beside this package).
"""

import os

# Delta's reader and writer share a runtime with a thread for each processor. Where there is one alone, a table that is
# written from another would wait for itself for ever; and it is only asked for this number once.
os.environ.setdefault("TOKIO_WORKER_THREADS", str(max(2, len(os.sched_getaffinity(0)))))

__version__ = "0.1.0"
