"""What a release promises and what it costs: units, events, accounting, guarantees and the statement in words.

What belongs here: arithmetic on public inputs. What does not: recording what was spent (`ledger`), drawing noise
(`synth`), reading data. Nothing is re-exported, so that `units` and `guarantee` need no SciPy.
"""
