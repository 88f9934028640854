"""Synthesis of one table that lies in files, outside of the asset line: `dpsynth synth table` and `synthesize`.

What belongs in this package: which columns a table has and what is declared of them (`sources`, `declaration`,
`assumed`), where the results and what is restricted lie (`place`), the budget that stands beside them (`budget`), the
order of the steps (`run`), further rows from a model that is paid for (`more`) and the words of the guarantee
(`statement`). What does not: a mechanism, bounding, or a ledger; those are the platform's own, under the same
invariants as in the asset line.

    from dpsynth_platform.one_table import Options, more_rows, synthesize

    made = synthesize("people.parquet", "out", Options(epsilon=1, delta=1e-5, schema="people.yaml"))
    print(made.synthetic, made.guarantee)
    more_rows("out", 1000, given={"city": "Aix", "age": {"min": 18}})
"""

from dpsynth_platform.one_table.more_rows import MoreRows, more_rows
from dpsynth_platform.one_table.run import Synthesis, synthesize
from dpsynth_platform.one_table.task import Options

__all__ = ["MoreRows", "Options", "Synthesis", "more_rows", "synthesize"]
