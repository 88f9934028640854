"""What a release's statement says of other mechanisms: as many as the ledger has started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.privacy.events import histogram_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import PrivacyStatement
from dpsynth_platform.release.evidence import statement_of


class Runs:
    """Runs of cheap mechanisms in a real ledger."""

    def __init__(self, path: Path, contract: DataContract, family: FamilyBudget) -> None:
        self.contract, self.family = contract, family
        self.ledger = Ledger(f"sqlite:///{path / 'ledger.db'}")
        self.ledger.open_account(family, ["first", "second"])

    def reserve(self, key: str, dataset: str = "visits", **more: Any) -> Entry:
        event = histogram_event(100.0, max_contributions=2)
        request = CostRequest.of(
            event,
            dataset=dataset,
            period=None,
            guarantee=Guarantee.target(self.contract),
            plan_digest="9a" * 32,
            runner="ada",
        )
        return self.ledger.reserve(self.family.family, key, request, None, "compose", **more)

    def start(self, key: str, dataset: str = "visits", **more: Any) -> Entry:
        return self.ledger.start(self.reserve(key, dataset, **more).entry_id)

    def statement(self, entry: Entry) -> PrivacyStatement:
        return statement_of(self.contract, self.family, self.ledger, entry.entry_id, "mst")


@pytest.fixture
def runs(tmp_path: Path, contract: DataContract, family: FamilyBudget) -> Runs:
    return Runs(tmp_path, contract, family)


def test_a_lone_run_has_no_others(runs: Runs) -> None:
    statement = runs.statement(runs.start("this"))
    assert (statement.tuning["runs"], statement.tuning["covered"]) == (0, True)
    assert "once" in statement.assumptions[-1].assumption


def test_what_was_started_on_the_dataset_counts_and_nothing_else(runs: Runs) -> None:
    bound = runs.start("a bound")
    runs.ledger.complete(bound.entry_id, "ab" * 32)
    this = runs.start("this")
    runs.start("failed later")
    runs.start("another", dataset="letters")
    runs.reserve("reserved only")
    runs.ledger.void(runs.reserve("withdrawn").entry_id)
    statement = runs.statement(this)
    assert (statement.tuning["runs"], statement.tuning["covered"]) == (2, False)
    assert "2 other runs" in " ".join(statement.plain_words())
    assert "once" in statement.assumptions[-1].assumption


def test_attempts_count_by_their_starts(runs: Runs) -> None:
    runs.ledger.void(runs.reserve("this").entry_id)
    first = runs.start("this")
    second = runs.start("this", replaces=first.entry_id)
    assert second.attempt == 3  # the first of them was withdrawn and cost nothing
    statement = runs.statement(second)
    assert statement.tuning["runs"] == 0
    assert "was started 2 times" in statement.assumptions[-1].assumption


def test_what_was_never_started_has_no_statement(runs: Runs) -> None:
    with pytest.raises(AccountingError, match="0 attempts"):
        runs.statement(runs.reserve("this"))
