"""Settings among which a mechanism chooses: `generate.tune`.

What belongs here: the plan of all settings and its cost, the runs, and the choice. What does not: the methods, and the
score (`tabular.paid`).
"""
