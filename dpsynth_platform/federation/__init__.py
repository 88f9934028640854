"""Federated mechanisms: one release of rows that stay with several participants.

What belongs here: what is sealed about a sum before any participant computes (`sums`), its noise (`noise`), the masks
of its parts (`masks`), shares of secrets (`shamir`), what all parties know of a round (`rounds`) and their steps in it
(`secure_sum`); what a mechanism is (`plans`), tables by sums of counts (`marginals`), which may come first
(`columns_first`), a network by sums of gradients (`gradients`), pictures by sums of vectors (`moments`), texts and
pictures by sums of votes (`evolution`, `text_evolution`, `picture_evolution`), and which of them a plan names
(`mechanisms`); a participant's part with its policy and ledger (`participants`), the order of rounds (`coordinator`),
and signed messages (`nodes`) with the local sockets by which they come (`relays`); who is protected against whom
(`trust`), tables with the noise of a trusted coordinator (`central`), and reports that are private by themselves
(`local_reports`, `local`). What does not: the network.
"""
