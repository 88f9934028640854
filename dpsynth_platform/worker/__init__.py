"""The accelerator process: where a mechanism runs, apart from everything that it must not reach.

What belongs in this package: the program itself (`python -m dpsynth_platform.worker`), the checks before its first read
(`run`, `inputs`), its tie to the process that started it (`process`), and what a launcher needs (`job`, `launch`,
`codes`). What does not: Dagster's side, the ledger and its credentials. The worker is handed a signed grant, paths and
a plan, reports progress in public words and ends with a code from a fixed list.
"""
