"""What the console shows, as plain values: one module a page.

What belongs here: combining what `reviewing`, `ledger`, `lineage` and `release` know for one page, and hiding what an
actor's actions do not allow. Only this package hides, so that pages and REST API show the same. What does not: how it
looks (`pages`), who asks (`access`), and computing what the library does not.

Every function takes the deployment's settings and the actions that the actor may do. It raises `NotAllowed` if they do
not include the one it needs, `READ` unless stated otherwise, and returns frozen dataclasses of plain values. A part is
None if it does not exist or is not allowed; its dataclass names the action that the part needs.

No view holds a row, a fingerprint, an owner's id or a key. Times are ISO 8601 in UTC; pages count from 1.
"""
