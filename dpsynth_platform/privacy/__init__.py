"""What a release promises and what it costs: units, events, accounting, guarantees and the statement in words.

What belongs here: everything that follows from public inputs alone by arithmetic. What does not: keeping track of what
was spent (`ledger`), drawing noise (`synth`), looking at data. Import from the modules; nothing is re-exported, so that
the light ones (`units`, `guarantee`) stay free of SciPy.
"""
