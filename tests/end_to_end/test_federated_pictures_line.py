"""Pictures of participants through the whole line: nodes with files of pictures at real sockets, audit and release."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from drawing_cases import COLUMNS, by_all, drawings
from federated_cases import NAMES
from federated_cases import public as public_half
from node_cases import Sockets, place, public, up  # noqa: F401  (place is a fixture)
from seeded_stream import Counted
from test_federated_line import AUDITOR, CONTRACT, COORDINATOR, Federated, federated, published

from dpsynth_platform.federation import noise
from dpsynth_platform.operations.federating import federation_keys
from dpsynth_platform.reviewing import verification
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.synth.images import moments_measuring

pytestmark = pytest.mark.end_to_end


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few drawn pictures, so that networks are learned in moments; and noise by a seeded stream."""
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    monkeypatch.setattr(moments_measuring, "DRAWN", 48)
    monkeypatch.setattr(moments_measuring, "FEW_DRAWN", 24)
    monkeypatch.setattr("dpsynth_platform.synth.images.moments_model.TRIED", 8)


def run_line(place: Path, generate: dict[str, Any], method: str) -> tuple[Federated, Any]:  # noqa: F811
    """A run of a line for the drawings of four nodes at real sockets."""
    given = CONTRACT["source"]["federation"] | {"participants": {name: public(place / name) for name in NAMES}}
    deployment = federated(place, source={"federation": given}, generate={"method": method} | generate)
    deployment.contract["columns"] = {"person": {"type": "identifier"}, **copy.deepcopy(COLUMNS)}
    deployment.contract["privacy"] |= {"max_contributions": 2, "expected_units": 400}
    deployment.write()
    keys = {name: public_half(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    named = given["participants"] | {AUDITOR: keys[AUDITOR]}
    policies = by_all(dataset="meals", participants=named, coordinator=keys[COORDINATOR], methods=[method])
    with up(place, drawings(200), {"columns": COLUMNS}, **policies):
        return deployment, deployment.run(Sockets(place))


def test_pictures_through_the_whole_line(place: Path) -> None:  # noqa: F811
    deployment, ran = run_line(place, {"image": {"given": ["kind"]}}, "image_moments")
    assert ran.success, ran.failures
    assert len([name for name in ran.materializations["audit"] if name.startswith("ROC AUC of")]) == 5
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    statement = dossier["statement"]
    assert any("Sums of vectors of whole numbers" in sentence for sentence in statement["covered"])
    assert any("faces, plates and writing were not removed" in sentence for sentence in statement["not_covered"])
    assert dossier["synthetic"]["rows"] == 300 and dossier["synthetic"]["pictures"]


def test_pictures_that_evolve_through_the_whole_line(place: Path) -> None:  # noqa: F811
    evolved = {"foundation": "shapes", "rounds": 2, "variations": 2, "population": 20}
    deployment, ran = run_line(place, {"image": {"given": ["kind"], "evolution": evolved}, "rows": 40}, "image_pe")
    assert ran.success, ran.failures
    _, dossier = published(deployment)
    said = dossier["statement"]
    assert any(
        "What made the candidates, at the coordinator (foundation: shapes)" in each for each in said["not_covered"]
    )
    assert "candidate pictures that were made from public material" in said["output"]
    assert dossier["synthetic"]["rows"] == 40
