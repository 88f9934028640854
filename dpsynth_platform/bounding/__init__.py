"""Contribution bounding: no owner keeps more than *b* records, so that a mechanism's sensitivity is what its plan says.

What belongs here: choosing the records that each owner keeps, and keeping a share of owners away from the mechanism for
tests. What does not: who may take part (`ledger` and `lineage` decide that), fingerprints (`scrub`), the mechanism.
"""
