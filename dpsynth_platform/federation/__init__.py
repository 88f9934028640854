"""Federated mechanisms: one release of rows that stay with several participants.

What belongs here: what is sealed about a sum before any participant computes (`sums`), its noise (`noise`), the masks
of its parts (`masks`), who is protected against whom (`trust`), and reports that are private by themselves
(`local_reports`). What does not: the transport of messages.
"""
