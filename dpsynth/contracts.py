"""Contracts of datasets: checking a file, and what a run of it would do and cost.

What belongs here: the calls. What does not: the checks (`dpsynth_platform.contracts`) and running (`dpsynth run`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth.words import in_python
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.contracts.contract import DataContract
    from dpsynth_platform.reviewing.forecasts import Forecast


@dataclass(frozen=True)
class Contract:
    """A valid contract.

    Attributes:
        path: its file, `contracts/DATASET.yaml`; its family's budget is in `families/` beside `contracts/`.
        declared: the declarations.

    Examples:
        >>> contract = dpsynth.Contract.load("deploy/contracts/people.yaml")
        >>> contract.declared.modelled
        ['age', 'income']
        >>> contract.plan().fits
        True
    """

    path: Path
    declared: DataContract = field(repr=False)

    @classmethod
    def load(cls, path: str | Path) -> Contract:
        """Reads and checks a file, as `dpsynth contract check` does.

        Raises:
            ContractError: a line for each fault, with file, key, value and what is accepted.
        """
        return _loaded(Path(path))

    @in_python
    def plan(self, period: str | None = None) -> Forecast:
        """What a run would do and cost, from the contract and the ledger at `DPSYNTH_HOME`; reads no data.

        Args:
            period: for datasets with a cadence, such as 2026-01 for a month.

        Raises:
            ContractError, ConfigurationError, AccountingError: it cannot be planned.
        """
        from dpsynth_platform.reviewing.forecasts import forecast

        return forecast(_settings(self.path), self.declared.dataset, period)

    def _repr_html_(self) -> str:
        declared = self.declared
        return escape(f"{self.path}: valid; dataset {declared.dataset}, {len(declared.modelled)} modelled columns")


@in_python
def _loaded(path: Path) -> Contract:
    from dpsynth_platform.synth.planning import check_contract

    return Contract(path, check_contract(_settings(path), path))


def _settings(path: Path) -> Settings:
    return replace(Settings.from_environment(), deploy=path.resolve().parents[1])
