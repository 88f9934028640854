"""Linked tables: a plan for each table's view, one guarantee for the owner of all rows, and rows that join.

What belongs in this package: the plan and its cost, the order of the mechanisms, and drawing rows given the rows above
and before. What does not: the declaration (`contracts.tables`), the views (`bounding.linked`), and how a view is
measured, which is that of single tables (`synth.tabular`).
"""
