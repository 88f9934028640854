"""Scrubbing: directly identifying content is taken out of the rows, and owners become keyed fingerprints.

What belongs here: checking that the source's columns are those that the contract declares, fingerprints of owners and
of records, what happens to each column that holds personal data, and finding personal data in free text. What does
not: choosing records (`bounding`), reading the source and writing the result (their steps).

Scrubbing is best effort: it lowers harm inside the building and is no part of the privacy guarantee.
"""
