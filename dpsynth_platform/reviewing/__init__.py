"""What reviewers and engineers look at, by reader: forecasts, accounts, decisions, releases, verification.

What belongs here: reading what the library keeps and putting it together for the command line (and whatever shows it
next), and recording approvals and refusals. What does not: running anything, or printing.
"""
