"""Synthesis of one table from files, without a deployment: `dpsynth synth table` and `synthesize`.

What belongs in this package: a table's columns and their declarations, files and budget of an output, the order of the
steps, further rows from a paid model, and the privacy statement. What does not: mechanisms, bounding and the ledger,
which are those of the asset line, under the same invariants.

    from dpsynth_platform.one_table import Options, more_rows, synthesize

    made = synthesize("people.parquet", "out", Options(epsilon=1, delta=1e-5, schema="people.yaml"))
    print(made.synthetic, made.guarantee)
    more_rows("out", 1000, given={"city": "Aix", "age": {"min": 18}})
"""

from dpsynth_platform.one_table.forecast import Forecast, forecast
from dpsynth_platform.one_table.more_rows import MoreRows, more_rows
from dpsynth_platform.one_table.run import Synthesis, synthesize
from dpsynth_platform.one_table.task import Options

__all__ = ["Forecast", "MoreRows", "Options", "Synthesis", "forecast", "more_rows", "synthesize"]
