"""What a dossier says of the setting that a mechanism kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from table_cases import one_table

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.kept_setting import kept_setting
from dpsynth_platform.release import dossier
from dpsynth_platform.release.dossier import Evidence
from dpsynth_platform.release.publish import publish
from dpsynth_platform.release.verify import verify_release

CANDIDATES: list[dict[str, Any]] = [
    {"method": "aim", "workload": {"ways": 2, "weights": {}, "queries": []}},
    {"method": "aim", "workload": {"ways": 3, "weights": {"age": 2}, "queries": []}},
    {"method": "mst", "workload": {"ways": 2}},
]


@pytest.mark.parametrize(
    ("kept", "keys", "words"),
    [
        (0, {"workload.weights": {}, "workload.ways": 2}, "1 (aim; workload.ways: 2; workload.weights: {})"),
        (1, {"workload.ways": 3, "workload.weights.age": 2}, "2 (aim; workload.ways: 3; workload.weights.age: 2)"),
        (2, {}, "3 (mst)"),
    ],
)
def test_it_has_the_keys_that_differ_within_its_method(kept: int, keys: dict[str, Any], words: str) -> None:
    method = CANDIDATES[kept]["method"]
    assert kept_setting(CANDIDATES, kept) == {"number": kept + 1, "method": method, "keys": keys, "in_words": words}


@pytest.mark.parametrize(
    "false",
    [
        {"number": 2},
        {"number": 4},
        {"method": "arn"},
        {"keys": {"of": "another"}},
        {"in_words": "1 (mst), the best of 7 runs"},
    ],
)
def test_a_setting_that_is_none_of_the_contract_s_is_refused(
    false: dict[str, Any],
    contract: DataContract,
    with_approvals: Callable[..., Evidence],
    rows: list[pa.RecordBatch],
    tmp_path: Path,
    signing_key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = contract.snapshot()
    tune = {"candidates": [{"method": "mst"}, {"method": "independent"}], "runs": 3}
    document["generate"] = {"rows": document["generate"]["rows"], "tune": tune}
    tuned = DataContract.model_validate(document)
    evidence = with_approvals(contract=tuned, method="tuned", measured=None, kept=0)

    def published(place: str) -> Path:
        publish(evidence, one_table(rows), tmp_path / place, signing_key, announce=lambda: None)
        return tmp_path / place / evidence.release_id

    folder = published("as it is")
    assert verify_release(folder).ok
    shown = json.loads((folder / "dossier.json").read_text())["mechanism"]["setting"]
    assert shown == {"number": 1, "method": "mst", "keys": {}, "in_words": "1 (mst)"}
    monkeypatch.setattr(dossier, "_setting", lambda *given: shown | false)
    with pytest.raises(ReleaseRefused, match=r"\$\.mechanism\.setting: is none of"):
        published("changed")
    assert not (tmp_path / "changed" / evidence.release_id).exists()
