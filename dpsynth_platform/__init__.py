"""The library of the platform: everything that can be used and tested without Dagster.

What belongs in this package: contracts, privacy accounting, the ledger, scrubbing, bounding, generators, audit,
quality and release. What does not: orchestration (`assets`, `resources` and `sensors` beside this package).
"""

__version__ = "0.1.0"
