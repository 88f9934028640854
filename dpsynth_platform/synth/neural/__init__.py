"""Methods for tables by networks that DP-SGD trains.

What belongs here: networks over one table's columns, and their plans. What does not: DP-SGD (`training`), and columns,
states, conditions and values (`synth.tabular`).
"""
