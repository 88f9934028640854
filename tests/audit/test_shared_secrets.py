"""Secrets that several fictional owners share: what joins the data, and what is counted of what comes out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from text_cases import letters_contract

from dpsynth_platform.audit.attacks import TEXT_OVERLAP, Scored, runs_of
from dpsynth_platform.audit.canaries import CanarySet, is_canary, make_canaries, read_canaries, write_canaries
from dpsynth_platform.audit.canary_cost import canary_cost, share_in_words
from dpsynth_platform.audit.risk import SharedFound
from dpsynth_platform.audit.shared_secrets import count_shared
from dpsynth_platform.audit.verdict import AuditReport, judge
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.units import group_guarantee

B, EACH, SIZES = 3, 40, (1, 4, 10)
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("topic", pa.string()), ("body", pa.string())])


def contract_of(secrets: dict[str, Any] | None = None, **audit: Any) -> DataContract:
    shared = {"owners": list(SIZES), "each": EACH} if secrets is None else secrets
    whole = letters_contract(
        {"topic": {"type": "categorical", "values": ["sport", "trade"]}},
        {
            "method": "aug_pe",
            "base_model": "x",
            "rows": 10,
            "text": {"max_tokens": 40, "evolution": {"population": 5, "rounds": 1, "variations": 1}},
        },
        privacy={"max_contributions": B, "guarantee": {"epsilon": 1.0, "delta": 1e-6}, "expected_units": 10_000},
    ).snapshot()
    whole["audit"] |= {"canaries": 50, "shared_secrets": shared, **audit}
    return parse_contract(whole, where="test", variables={})


@pytest.fixture(scope="module")
def contract() -> DataContract:
    return contract_of()


@pytest.fixture(scope="module")
def canaries(contract: DataContract, tmp_path_factory: pytest.TempPathFactory) -> CanarySet:
    """With coins that are drawn anew, and the same texts each time.

    Of 120 fresh texts, two share eight characters in about one of six draws; of these, none do.
    """
    place = tmp_path_factory.mktemp("canaries") / "table"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpsynth_platform.audit.canaries._random", random.Random(0))
        made = make_canaries(contract, SOURCE, 50, B, None)
    texts = set(made.secrets["body"].to_pylist())
    assert len(set().union(*map(runs_of, texts))) == sum(len(runs_of(text)) for text in texts)
    write_canaries(made, place)
    return read_canaries(place)


def test_one_coin_decides_for_all_owners_of_a_secret(canaries: CanarySet) -> None:
    rows = canaries.secrets.to_pylist()
    assert len(rows) == EACH * sum(SIZES) * B
    sizes = Counter()
    for number in {row["_shared"] for row in rows}:
        own = [row for row in rows if row["_shared"] == number]
        assert len({(row["body"], row["topic"], row["included"]) for row in own}) == 1
        records = Counter(row["_owner"] for row in own)
        assert set(records.values()) == {B} and all(map(is_canary, records))
        sizes[len(records)] += 1
    assert sizes == dict.fromkeys(SIZES, EACH)
    assert len({row["body"] for row in rows}) == 3 * EACH
    assert 0 < sum(row["included"] for row in rows) < len(rows)  # 120 fair coins are all equal with a chance of 2^-119


def test_they_are_no_canaries_and_join_the_data_with_them(canaries: CanarySet) -> None:
    assert len(canaries.owners) == canaries.included.size == canaries.values.num_rows == 50
    assert canaries.records_per_owner == B and canaries.kinds == []
    assert canaries.joining.column_names == ["topic", "body", "_owner", "_record"]
    joined = set(canaries.joining["_owner"].to_pylist())
    shared = {row["_owner"] for row in canaries.secrets.to_pylist() if row["included"]}
    assert shared <= joined and len(joined - shared) == canaries.included.sum()


def test_they_have_no_kind_beside_canaries_of_several_kinds() -> None:
    contract = contract_of(canary_rows=["random"])
    made = make_canaries(contract, SOURCE, 4, B, None)
    kinds = pa.array([None if owner is not None else "random" for owner in made.table["_shared"].to_pylist()])
    named = CanarySet(made.table.append_column("_kind", kinds))
    assert named.kinds == ["random"] * 4 and named.joining.column_names == ["topic", "body", "_owner", "_record"]
    assert contract.mechanism_snapshot()["shared_secrets"] == {"owners": list(SIZES), "each": EACH}
    assert "shared_secrets" not in contract_of(shared_secrets=None).mechanism_snapshot()


def test_what_comes_out_is_counted_by_the_number_of_owners(contract: DataContract, canaries: CanarySet) -> None:
    rows = canaries.secrets.to_pylist()
    owners = {number: len({row["_owner"] for row in rows if row["_shared"] == number}) for number in range(3 * EACH)}
    leaked = {row["body"] for row in rows if row["included"] and owners[row["_shared"]] == 10}
    written = [f"so {text}" for text in leaked] + [None, "the team was late"]

    def continued(one_each: pa.Table) -> np.ndarray:
        assert one_each.num_rows == 3 * EACH
        return np.array([1.0 if body in leaked else 0.1 for body in one_each["body"].to_pylist()])

    found = count_shared(canaries, "body", written, epsilon=1.0, delta=1e-6, continued=continued)
    assert [item.owners for item in found] == list(SIZES)
    for item in found:
        assert item.members + item.held_out == EACH
        all_of = (item.members if item.owners == 10 else 0, 0)
        assert item.traces == item.wholes == item.continued == all_of
        assert (item.epsilon, item.delta) == group_guarantee(1.0, 1e-6, item.owners)
    one, _, ten = found
    assert "of one owner each" in one.words and "epsilon 1 and delta 1e-06 are promised" in one.words
    assert "to 10 owners together, epsilon 10 and delta 0.0129 are promised" in ten.words
    assert "nothing is promised" in replace(ten, delta=1.0).words
    (alone, *_) = count_shared(canaries, "body", written, epsilon=1.0, delta=1e-6)
    assert alone.continued is None and "the model" not in alone.words
    assert TypeAdapter(tuple[SharedFound, ...]).validate_python([asdict(item) for item in found]) == found
    without = CanarySet(canaries.table.drop_columns(["_shared"]))
    assert count_shared(without, "body", written, epsilon=1.0, delta=1e-6) == ()

    scored = [Scored(TEXT_OVERLAP, np.arange(50.0))]
    reports = [judge(contract, None, canaries.included, scored, shared=shared) for shared in ((), found)]
    assert reports[0].verdict == reports[1].verdict and reports[0].reasons == reports[1].reasons
    assert ten.words in reports[1].summary
    assert AuditReport.from_json(reports[1].to_json()) == reports[1]


def test_their_records_count_as_cost(contract: DataContract, canaries: CanarySet, tmp_path: Path) -> None:
    cost = canary_cost(contract, canaries, None, pa.table({"body": ["the team was late"]}))
    # At most 50 of the 650 owners join, so that 5 of 40 secrets with ten owners do, with a chance below 7e-7.
    assert cost.counted == canaries.joining.num_rows > 50 * B
    assert "650 fictional owners, 600 of them with shared secrets" in share_in_words(contract)
    assert "975 records" in share_in_words(contract)


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ({"owners": []}, "at least 1"),
        ({"owners": [0]}, "accepted: distinct whole numbers from 1"),
        ({"owners": [4, 4]}, "accepted: distinct whole numbers from 1"),
        ({"owners": [1000], "each": 1000}, "1000000 fictional owners in all; accepted: at most 100000"),
        ({"owners": [1], "each": 1}, "each"),
    ],
)
def test_impossible_numbers_are_refused(secrets: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract_of(secrets)
