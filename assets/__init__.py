"""The asset line: orchestration only.

What belongs here: a thin module for each step, and `line.py`, which turns a contract into a line of assets. What does
not: anything that can be used or tested without Dagster; that is in the library.
"""
