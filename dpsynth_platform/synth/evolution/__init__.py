"""Private evolution of samples of any kind: rounds of noisy votes for public candidates.

What belongs in this package: the rounds, their journal, and one owner's votes. What does not: a kind of samples
(`text`, `images`).
"""
