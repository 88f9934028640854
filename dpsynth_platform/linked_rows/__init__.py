"""Linked tables between their source and the mechanism, and their drawn rows: for the line and outside of a deployment.

What belongs in this package: single-table contracts of tables and views, the rows that a mechanism may read, and drawn
rows on disk. What does not: runs outside of a deployment (`linked_tables`), the declaration's meaning
(`contracts.tables`), bounding, and the mechanism (`synth.relational`).
"""
