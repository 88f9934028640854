"""The asset line: orchestration only.

What belongs here: one thin module a step, whose body tells the step's story, and `line.py`, which turns one contract
into one line of assets. What does not: anything that can be used or tested without Dagster; that is in the library.
"""
