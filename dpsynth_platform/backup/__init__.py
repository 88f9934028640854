"""Backup and restore of the ledger together with the lineage graph.

What belongs here: taking a backup during writes, checking it, restoring it, and refusing an outdated one. What does
not: keys (the vault has a separate backup, so that one theft does not give both), rows and models (they expire; a copy
would keep them), and the ledger's own checks (`ledger`).
"""
