"""What the console shows, as plain values: one module a page.

What belongs here: putting together what `reviewing`, `ledger`, `lineage` and `release` know, for one page each, and
leaving out what somebody's actions do not allow: here and nowhere else, so that the pages and the REST API show the
same. What does not: how it looks (`pages`), who asks (`access`), and computing anything that the library does not.

Every function takes the deployment's settings and the actions that the asker may do, raises `NotAllowed` where it is
for others altogether, and gives frozen dataclasses of plain values. A part that the actions do not allow is None, as is
one that does not exist; of each such part its dataclass says which action it asks for.

Nothing here ever holds a row, a fingerprint, an owner's id or a key, whoever asks.
"""
