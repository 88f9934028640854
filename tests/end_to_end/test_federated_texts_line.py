"""Texts of participants through the whole line: nodes with scrubbed texts at real sockets, audit and release."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from federated_cases import NAMES
from federated_cases import public as public_half
from node_cases import Sockets, place, public, up  # noqa: F401  (place is a fixture)
from seeded_stream import Counted
from test_federated_line import AUDITOR, CONTRACT, COORDINATOR, Federated, federated, published

from dpsynth_platform.federation import noise
from dpsynth_platform.operations.federating import federation_keys
from dpsynth_platform.reviewing import verification
from dpsynth_platform.secrets.vault import Vault

pytestmark = pytest.mark.end_to_end

WORDS = {
    "mail": ["parcel box late open", "team report monday send", "invoice paid bank sum", "flight gate delay seat"],
    "note": ["milk bread home buy", "fever cough nurse rest", "keys door lock spare", "rain coat wet walk"],
}
COLUMNS = {"kind": {"type": "categorical", "values": list(WORDS)}, "body": {"type": "text", "pii": "replace"}}
SECRET = "zanzibar"


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)


def texts(people: int, seed: int, marks: str = "") -> pa.Table:
    """A text of each person, of two kinds and several subjects."""
    draws, rows = random.Random(seed), []
    for person in range(people):
        kind = draws.choice(list(WORDS))
        words = draws.choices(draws.choice(WORDS[kind]).split(), k=6)
        rows.append({"person": f"{person:05d}", "kind": kind, "body": " ".join([*words, marks]).strip()})
    return pa.Table.from_pylist(rows)


def run_line(place: Path, **generate: Any) -> tuple[Federated, Any, dict[str, list[str]]]:  # noqa: F811
    pq.write_table(texts(200, seed=1).drop_columns(["person"]), place / "public.parquet")
    given = CONTRACT["source"]["federation"] | {"participants": {name: public(place / name) for name in NAMES}}
    evolved = {"about": "short texts", "population": 8, "variations": 1, "rounds": 2, "ways": ["retrieve"]}
    written = {
        "method": "aug_pe",
        "rows": 30,
        "public": {"uri": str(place / "public.parquet"), "why": "texts that were made up for tests"},
        "text": {"column": "body", "given": ["kind"], "max_tokens": 40, "evolution": evolved},
    } | generate
    deployment = federated(place, source={"federation": given}, generate=written)
    deployment.contract["columns"] = {"person": {"type": "identifier"}, **COLUMNS}
    deployment.contract["privacy"] |= {"max_contributions": 1, "expected_units": 400}
    deployment.write()
    keys = {name: public_half(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    policy = {
        "dataset": "meals",
        "methods": ["aug_pe"],
        "columns": ["kind", "body"],
        "participants": given["participants"] | {AUDITOR: keys[AUDITOR]},
        "coordinator": keys[COORDINATOR],
        "max_contributions": 1,
    }
    with up(place, texts(400, seed=2, marks=SECRET), {"columns": COLUMNS}, **dict.fromkeys(NAMES, policy)) as lines:
        return deployment, deployment.run(Sockets(place)), lines


def test_texts_through_the_whole_line(place: Path) -> None:  # noqa: F811
    deployment, ran, lines = run_line(place)
    assert ran.success, (ran.failures, lines)
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    import json
    print(json.dumps(dossier, indent=1)[:200000])
    assert dossier["synthetic"]["rows"] == 30
