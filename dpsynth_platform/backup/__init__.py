"""Backup and restore of what must never be lost: the ledger and the lineage graph, together.

What belongs here: taking a backup while others write, checking one, putting it back, and finding out whether something
that survived knows more than a ledger does. What does not: keys (the vault is backed up apart, or a thief of one backup
would have both), rows and models (they expire; a backup would keep them), and the ledger's own checks (`ledger`).
"""
