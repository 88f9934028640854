"""A dataset and a source table keep their family and their owner columns; a family keeps its normalization."""

import pytest
from ledger_cases import KEYS, family

from dpsynth_platform.foundation.errors import LedgerError


def test_a_name_stays_with_its_family_and_owner_columns(ledger):
    ledger.bind("dataset census", "surveys", ["person_id"])
    ledger.bind("dataset census", "surveys", ["person_id"])
    with pytest.raises(LedgerError, match="belongs to family 'surveys'"):
        ledger.bind("dataset census", "others", ["person_id"])
    with pytest.raises(LedgerError, match="owner columns"):
        ledger.bind("dataset census", "surveys", ["visit_number"])
    ledger.bind("dataset visits", "others", ["patient_id"])
    assert [event.subject for event in ledger.history(kinds=["bound"])] == ["dataset census", "dataset visits"]
    assert ledger.verify().ok


def test_nobody_writes_a_binding_as_an_ordinary_record(ledger):
    with pytest.raises(LedgerError, match="bound"):
        ledger.record("bound", "dataset census", {"family": "others", "owner_columns": []})


def test_normalization_is_sealed_with_the_account(ledger):
    ledger.open_account(family("surveys", mode="per-owner"), KEYS)
    with pytest.raises(LedgerError, match="owner_normalization"):
        ledger.open_account(family("surveys", mode="per-owner", owner_normalization=["casefold"]), KEYS)


def test_a_second_binding_in_the_chain_is_told(ledger):
    from dpsynth_platform.ledger import chain, rows

    ledger.bind("letters", "each", ["customer"])
    assert ledger.verify().ok
    forged = {"family": "everyone", "owner_columns": ["customer"]}
    ledger._database.write(
        lambda connection: chain.append(connection, rows.now_text(connection), chain.BOUND, "letters", forged)
    )
    (problem,) = ledger.verify().problems
    assert "letters could not be bound to another family or other owner columns" in problem
