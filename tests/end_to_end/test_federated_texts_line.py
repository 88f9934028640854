"""Texts of participants through the whole line: nodes with scrubbed texts at real sockets, audit and release."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from federated_cases import NAMES
from federated_cases import public as public_half
from node_cases import Sockets, place, public, up  # noqa: F401  (place is a fixture)
from note_cases import COLUMNS, EVOLVED, by_all, notes
from seeded_stream import Counted
from test_federated_line import AUDITOR, CONTRACT, COORDINATOR, Federated, ending, federated, published

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation import noise
from dpsynth_platform.federation.contracts import plan_of_contract
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.operations.federating import federation_keys
from dpsynth_platform.reviewing import verification
from dpsynth_platform.secrets.vault import Vault

pytestmark = pytest.mark.end_to_end


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)


def line_of(place: Path, public_table: Path, **generate: Any) -> Federated:  # noqa: F811
    given = CONTRACT["source"]["federation"] | {"participants": {name: public(place / name) for name in NAMES}}
    written = {
        "method": "aug_pe",
        "rows": 30,
        "public": {"uri": str(public_table), "why": "texts that were made up for tests"},
        "text": {"column": "body", "given": ["kind"], "evolution": {"about": "short texts", **EVOLVED}},
    } | generate
    deployment = federated(place, source={"federation": given}, generate=written)
    deployment.contract["columns"] = {"person": {"type": "identifier"}, **copy.deepcopy(COLUMNS)}
    deployment.contract["privacy"] |= {"expected_units": 400}
    deployment.write()
    return deployment


def policies_of(deployment: Federated, place: Path) -> dict[str, Any]:  # noqa: F811
    keys = {name: public_half(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    named = {name: public(place / name) for name in NAMES} | {AUDITOR: keys[AUDITOR]}
    return by_all(dataset="meals", participants=named, coordinator=keys[COORDINATOR])


def test_texts_through_the_whole_line(place: Path) -> None:  # noqa: F811
    known, mark = notes(200, seed=1), "zanzibar"
    pq.write_table(known.drop_columns(["person"]), place / "public.parquet")
    deployment = line_of(place, place / "public.parquet")
    policies = policies_of(deployment, place)
    with up(place, notes(400, seed=2, mark=mark), {"columns": COLUMNS}, **policies):
        ran = deployment.run(Sockets(place))
    assert ran.success, ran.failures
    assert "ROC AUC of text overlap" in ran.materializations["audit"]
    kept = [path for path in deployment.settings.home.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if mark.encode() in path.read_bytes()]
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    statement = dossier["statement"]
    for words in (
        "What texts say: each participant replaces personal data in its own texts",
        "The texts of the public table public.parquet, among which votes choose: declared public",
        "What made the candidates, at the coordinator (foundation: a public table of texts)",
    ):
        assert any(words in sentence for sentence in statement["not_covered"]), words
    assert any("limits what the votes of one unit's texts add" in item["because"] for item in statement["assumptions"])
    assert dossier["scrubbing"]["text_columns"] == {}
    assert "Of each record's text in body, a participant takes sentence features" in dossier["scrubbing"]["note"]
    assert dossier["fidelity"]["noise"] == "Skellam, in sums of several participants"
    assert dossier["synthetic"]["rows"] == 30
    released = pq.read_table(next(folder.glob("data/*.parquet")))
    assert set(released["body"].to_pylist()) <= set(known["body"].to_pylist())


@pytest.mark.parametrize("step", [1, 4])
def test_the_last_round_of_votes_continues_with_the_auditor(place: Path, step: int) -> None:  # noqa: F811
    """Earlier rounds of votes are in the journal, and are not made again; the auditor says what it said in this one."""
    pq.write_table(notes(200, seed=1).drop_columns(["person"]), place / "public.parquet")
    deployment = line_of(place, place / "public.parquet")
    with up(place, notes(400, seed=2), {"columns": COLUMNS}, **policies_of(deployment, place)):
        with ending(2 + 2 * 5 + step, ConfigurationError("the relay has gone")):
            assert "the relay has gone" in deployment.run(Sockets(place)).failures["model"]
        again = deployment.run(Sockets(place))
    assert again.success, again.failures
    _, dossier = published(deployment)
    assert [sorted(names) for names in dossier["mechanism"]["took_part"]["finished"]] == 3 * [[AUDITOR, *NAMES]]


def test_a_guarded_table_is_no_public_one_of_texts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Such as a copy of a file in the restricted zone."""
    monkeypatch.setenv("DPSYNTH_HOME", str(place / "home"))
    kept = Settings.from_environment().restricted / "texts.parquet"
    kept.parent.mkdir(mode=0o700, parents=True)
    pq.write_table(notes(50, seed=1).drop_columns(["person"]), kept)
    contract = parse_contract(line_of(place, kept).contract, where="test", variables={"DPSYNTH_HOME": str(place)})
    with pytest.raises(ContractError, match="restricted zone overlap; accepted: a table that is public"):
        plan_of_contract(contract)
