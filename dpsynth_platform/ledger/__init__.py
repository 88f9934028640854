"""The ledger: the durable record of what every mechanism cost, and the only place that lets one start.

What belongs here: accounts, entries, the hash chain over all that happened, decisions on requests, and the one-time
grants that carry a started entry to the worker. What does not: what an event costs (`privacy`), lineage checks
(`lineage`), publication (`release`). Import from the modules; nothing is re-exported, because the worker imports
`grants` and must come by without a database.
"""
