"""The governance console: pages and a REST API for the people who answer for a release.

What belongs here: who may come in, what they may see and do, how it is shown. What does not: computing anything that
the library does not (`views` only put together what `reviewing`, `ledger`, `lineage` and `release` know). Only modules
of this package import NiceGUI and FastAPI, and nothing outside imports those modules before the console is started.
"""
