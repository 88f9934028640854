"""The library of the platform: everything that can be used and tested without Dagster.

What belongs in this package: contracts, privacy accounting, the ledger, scrubbing, bounding, generators, audit,
quality and release. What does not: orchestration (`assets`, `resources` and `sensors` beside this package).
"""

from dpsynth_platform.foundation.settings import keep_two_runtime_threads

keep_two_runtime_threads()

__version__ = "0.1.0"
