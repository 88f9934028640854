"""Federated mechanisms: one release of rows that stay with several participants.

What belongs here: what is sealed about a sum before any participant computes (`sums`), its noise (`noise`), the masks
of its parts (`masks`), who is protected against whom (`trust`), reports that are private by themselves
(`local_reports`), and tables made by sums of counts: the plan (`marginals`), a participant's part with its policy and
ledger (`participants`), and the order of rounds (`coordinator`). What does not: the transport of messages.
"""
