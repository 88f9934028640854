"""Synthesis of several tables that belong together, from files, without a deployment: `dpsynth synth tables`.

What belongs in this package: the tables' files and declarations, reading and bounding them, and the released tables.
What does not: the declaration's meaning (`contracts.tables`), the mechanism (`synth.relational`), and the budget and
directory of an output, which are those of one table (`one_table`).

    from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables

    made = synthesize_tables("hospital", "out", TablesOptions(epsilon=1, delta=1e-5, schema="hospital.yaml"))
    print(made.synthetic, made.guarantee)
"""

from dpsynth_platform.linked_tables.run import SyntheticTables, synthesize_tables
from dpsynth_platform.linked_tables.task import TablesOptions

__all__ = ["SyntheticTables", "TablesOptions", "synthesize_tables"]
