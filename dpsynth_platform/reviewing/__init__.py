"""What reviewers and engineers read: forecasts, accounts, decisions, releases, verification.

What belongs here: combining what the library keeps, for the command line and the console, and recording approvals and
refusals. What does not: running anything, or printing.
"""
