"""What every other package stands on: files that people write, and how they are read.

What belongs here: reading that knows nothing of datasets, budgets or releases. What does not: what a file declares
(`contracts`, `choices`).
"""
