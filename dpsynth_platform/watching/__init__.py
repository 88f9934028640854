"""Watching a deployment from outside: metrics for Prometheus, and whether it is well.

What belongs here: numbers and checks that an operator's monitoring may see, and the server that shows them. What does
not: what single owners have left, counts of rows, names of people, or anything else that looks at the data: monitoring
keeps what it reads for years, and shows it on walls.
"""
