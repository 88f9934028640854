"""A network that participants train, through the whole line: nodes at real sockets, audit and release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from federated_cases import COLUMNS, NAMES, rows
from federated_cases import public as public_half
from node_cases import Sockets, place, public, up  # noqa: F401  (place is a fixture)
from test_federated_line import AUDITOR, CONTRACT, COORDINATOR, Federated, ending, federated, published

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation.contracts import plan_of_contract
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.operations.federating import federation_keys
from dpsynth_platform.reviewing import verification
from dpsynth_platform.secrets.vault import Vault

pytestmark = pytest.mark.end_to_end


def line_of(place: Path, **generate: Any) -> Federated:  # noqa: F811
    given = CONTRACT["source"]["federation"] | {"participants": {name: public(place / name) for name in NAMES}}
    deployment = federated(place, source={"federation": given}, generate={"method": "arn", "rows": 1000} | generate)
    deployment.contract["privacy"]["guarantee"]["epsilon"] = 4.0
    deployment.write()
    return deployment


def policies_of(deployment: Federated, place: Path) -> dict[str, Any]:  # noqa: F811
    keys = {name: public_half(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    named = {name: public(place / name) for name in NAMES} | {AUDITOR: keys[AUDITOR]}
    cap = {"epsilon": 4.0, "delta": 1e-5}
    terms = {"participants": named, "coordinator": keys[COORDINATOR], "methods": ["arn"], "run_cap": cap}
    return dict.fromkeys(NAMES, terms)


def test_a_network_through_the_whole_line(place: Path) -> None:  # noqa: F811
    """Columns hang together in the released rows: of independent ones, three in ten would agree."""
    deployment = line_of(place)
    with up(place, rows(2000), **policies_of(deployment, place)) as lines:
        ran = deployment.run(Sockets(place))
    assert ran.success, ran.failures
    assert any("round 21 of 21" in line for line in lines[NAMES[0]])
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    took_part = dossier["mechanism"]["took_part"]["finished"]
    assert [sorted(names) for names in took_part] == 21 * [[AUDITOR, *NAMES]]
    assert "of gradients, those of all rounds count as one" in dossier["statement"]["output"]
    assumptions = dossier["statement"]["assumptions"]
    assert any("lets it into the planned rounds alone" in item["because"] for item in assumptions)
    assert dossier["statement"]["against"][0]["epsilon"] == dossier["guarantee"]["epsilon"]
    assert dossier["fidelity"]["noise"] == "Skellam, in sums of several participants"
    released = pq.read_table(next(folder.glob("data/*.parquet")))
    towns = np.array(COLUMNS["town"]["values"])[released["age"].to_numpy().astype(int) // 3]
    assert np.mean(np.array(released["town"].to_pylist()) == towns) > 0.5


@pytest.mark.parametrize("step", [1, 4])
def test_a_training_continues_with_the_auditor(place: Path, step: int) -> None:  # noqa: F811
    """What the auditor adds to a round has earlier rounds in it, which it makes again."""
    deployment = line_of(place)
    with up(place, rows(400), **policies_of(deployment, place)):
        with ending(2 + 9 * 5 + step, ConfigurationError("the relay has gone")):
            assert "the relay has gone" in deployment.run(Sockets(place)).failures["model"]
        again = deployment.run(Sockets(place))
    assert again.success, again.failures
    _, dossier = published(deployment)
    took_part = dossier["mechanism"]["took_part"]["finished"]
    assert [sorted(names) for names in took_part] == 21 * [[AUDITOR, *NAMES]]


def test_what_a_federated_training_does_not_heed_is_refused(place: Path) -> None:  # noqa: F811
    document = line_of(place).contract
    for name, value in (("steps", 10), ("columns_share", 0.2), ("sampled", "owners"), ("learning_rate", 0.1)):
        document["generate"]["network"] = {name: value}
        with pytest.raises(ContractError, match=f"generate.network.{name}: .* with source.federation; accepted: "):
            parse_contract(document, where="test", variables={"DPSYNTH_HOME": str(place)})
    document["generate"]["network"] = {"width": 4, "clipping_norm": 0.5}
    contract = parse_contract(document, where="test", variables={"DPSYNTH_HOME": str(place)})
    plan = plan_of_contract(contract)
    training = plan.parameters["training"]
    assert (training["width"], training["clipping_norm"]) == (4, 0.5)
