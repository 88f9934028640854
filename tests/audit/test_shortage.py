from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpsynth_platform.audit.attacks import ATTACKS, Scored
from dpsynth_platform.audit.shortage import certain_shortage_of, shortage_of
from dpsynth_platform.audit.verdict import judge
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError


def test_an_audit_that_cannot_conclude_is_known_beforehand(contract_of: Any) -> None:
    few = contract_of(audit={"canaries": 20})
    shortage = shortage_of(few)
    assert shortage is not None
    found = re.search(r"declare audit\.canaries: (\d+)", shortage)
    assert found is not None
    assert shortage_of(contract_of(audit={"canaries": int(found[1])})) is None
    assert shortage_of(contract_of(audit={"canaries": int(found[1]) - 10})) is not None


def test_a_limit_that_so_few_canaries_cannot_show_is_known_beforehand(contract_of: Any) -> None:
    limit = {"false_positive_rate": 0.01, "true_positive_rate": 0.1}
    few = contract_of(audit={"canaries": 100, "rate_limits": [limit]})
    shortage = shortage_of(few)
    assert shortage is not None
    assert "cannot show that at most 10% are found at 1% false alarms" in shortage
    included = np.arange(100) < 50
    nobody_found = judge(few, None, included, [Scored(attack, -included.astype(float)) for attack in ATTACKS])
    assert any("so few canaries" in reason for reason in nobody_found.reasons)
    assert shortage_of(contract_of(audit={"canaries": 2000, "rate_limits": [limit]})) is None


def test_a_gate_that_is_no_attack_is_refused(contract_of: Callable[..., DataContract]) -> None:
    with pytest.raises(ContractError, match="no attack on it is called 'likelyhood'; accepted: measurements"):
        shortage_of(contract_of(audit={"gates": ["likelyhood"]}))


def test_a_domain_in_which_most_canaries_are_alike_is_known_beforehand(
    contract_of: Callable[..., DataContract],
) -> None:
    def shortage(regions: int, of: Callable[[DataContract], str | None] = shortage_of) -> str | None:
        columns = {
            "person": {"type": "identifier"},
            "day": {"type": "identifier"},
            "region": {"type": "categorical", "values": [f"region-{number}" for number in range(regions)]},
            "insured": {"type": "boolean"},
        }
        document = contract_of().snapshot()
        assert document["audit"]["canaries"] == 500
        return of(DataContract.model_validate(document | {"columns": columns}))

    few = shortage(3)
    assert few is not None and few.startswith("of 500 canaries only 6 differ in the modelled columns")
    assert "declare columns with more values" in few
    assert shortage(2000) is None
    assert shortage(3, certain_shortage_of) is None, "what a draw shows refuses no run: another one may show less"


def test_an_attack_on_pictures_that_no_mechanism_reads_proves_nothing_alone(
    contract_of: Callable[..., DataContract],
) -> None:
    """Even a training without noise would pass: only the endpoint's pictures, which no record decides, are attacked."""
    document = contract_of().snapshot()
    document["columns"] |= {
        "caption": {"type": "text"},
        "photo": {"type": "image", "size": [8, 8], "accept_unscrubbed": "the photographs show no people"},
    }
    pictures = {"endpoint": {"url": "https://models.example.org/v1", "model": "painter"}}
    text = {"given": ["insured"], "pictures": pictures}
    document["generate"] = {"method": "dp_finetune", "rows": 100, "text": text}

    def shortage(*gates: str) -> str | None:
        return certain_shortage_of(DataContract.model_validate(document | {"audit": {"canaries": 500, "gates": gates}}))

    alone = shortage("nearest pictures")
    assert alone is not None
    assert "The attack 'nearest pictures' is the only one that decides, and it was not shown to find anyone" in alone
    assert shortage("nearest pictures", "text overlap") is None
