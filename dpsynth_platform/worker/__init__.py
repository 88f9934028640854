"""The process that runs a mechanism, and its launchers.

What belongs here: the program (`python -m dpsynth_platform.worker`), its checks before the first read, and what starts
and ends it. What does not: Dagster's side, the ledger and its credentials. The worker receives a signed grant, paths
and a plan, reports progress without data, and ends with a code from a fixed list.
"""
