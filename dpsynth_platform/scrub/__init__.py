"""Scrubbing: directly identifying content is removed from the rows, and owners become keyed fingerprints.

What belongs here: checking the source's columns against the contract, fingerprints of owners and records, treating
columns with personal data, and finding it in free text. What does not: choosing records (`bounding`), reading the
source and writing the result (their steps). Scrubbing is best effort and no part of the privacy guarantee.
"""
