"""The governance console: pages and a REST API for the people who are responsible for releases.

What belongs here: who may use it, what they may see and do, how it is shown. What does not: computing what the library
does not; `views` only combine what `reviewing`, `ledger`, `lineage` and `release` know. Only this package imports
NiceGUI and FastAPI, and no other package imports its modules before the console is started.
"""
