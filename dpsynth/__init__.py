"""Differentially private synthetic tables in Python.

    >>> import dpsynth
    >>> result = dpsynth.synthesize(
    ...     people,  # a pandas or polars frame, an Arrow table, or a path
    ...     epsilon=1,
    ...     expected_units=50_000,  # about how many people there are, as the public knows it
    ...     owners="person id",
    ...     contributions=3,
    ...     columns={
    ...         "age": {"type": "integer", "min": 18, "max": 90},
    ...         "city": {"type": "categorical", "values": ["Aix", "Ulm"]},
    ...     },
    ... )
    >>> print(result.guarantee)
    (0.99..., 6.7...e-06)-DP for one user (add-or-remove, at most 3 records)
    >>> type(result.data)  # a frame of the same kind
    <class 'pandas...DataFrame'>

What belongs in this package: the names that people type. What does not: everything else, which is `dpsynth_platform`
and may change.
"""

from dpsynth.comparison import Compared, compare
from dpsynth.contracts import Contract
from dpsynth.evaluation import Evaluation, evaluate
from dpsynth.releases import Release, load_release, verify
from dpsynth.scrubbing import Scrubbed, scrub
from dpsynth.synthesis import Result, Synthesizer, plan, query, sample, synthesize
from dpsynth.tables import Tables
from dpsynth_platform.foundation.errors import (
    AccountingError,
    BudgetExceeded,
    ConfigurationError,
    ContractError,
    DpsynthError,
    LedgerError,
    MechanismFailed,
    SourceError,
    SpendRepeated,
    VerificationFailed,
)
from dpsynth_platform.linked_tables import TablesOptions
from dpsynth_platform.one_table.forecast import Forecast as Plan
from dpsynth_platform.one_table.task import Options
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.verify import VerificationReport

__all__ = [
    "AccountingError",
    "BudgetExceeded",
    "Compared",
    "ConfigurationError",
    "Contract",
    "ContractError",
    "DpsynthError",
    "Evaluation",
    "Guarantee",
    "LedgerError",
    "MechanismFailed",
    "Options",
    "Plan",
    "Release",
    "Result",
    "Scrubbed",
    "SourceError",
    "SpendRepeated",
    "Synthesizer",
    "Tables",
    "TablesOptions",
    "VerificationFailed",
    "VerificationReport",
    "compare",
    "evaluate",
    "load_release",
    "plan",
    "query",
    "sample",
    "scrub",
    "synthesize",
    "verify",
]
