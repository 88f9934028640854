"""Private evolution of pictures that a remote model makes: what it is asked, who reaches it, and a verified release."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment import Deployment
from endpoint_cases import Server, serving
from line_cases import PEOPLE, bases_of, ledger_of, released, run_here, storage_of
from picture_cases import KINDS, SIDE, drawings, picture_deployment
from PIL import Image

from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.quality.images import classifier, report
from dpsynth_platform.reviewing import verification
from dpsynth_platform.sources.pictures import encoded
from dpsynth_platform.synth import endpoint_calls

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
KEY = "sk-nobody-may-see-this"
ABOUT = "ink strokes on paper"


class Painter:
    """A fictional model: a stroke of the kind that its words name, or the picture that it is asked to vary, lighter."""

    def __init__(self) -> None:
        self.painted: set[bytes] = set()

    def __call__(self, document: dict[str, Any], number: int) -> bytes:
        if "image" in document:
            with Image.open(io.BytesIO(base64.b64decode(document["image"]))) as sent:
                pixels = np.asarray(sent)[..., None]
            assert pixels.tobytes() in self.painted, "it is asked to vary its own pictures only"
            pixels = np.where(pixels > 0, np.minimum(pixels.astype(int) + 1, 255), 0).astype(np.uint8)
        else:
            kind = next(place for place, kind in enumerate(KINDS) if document["prompt"].endswith(kind))
            pixels = drawings(np.array([kind]), np.random.default_rng(number))[0]
        self.painted.add(pixels.tobytes())
        answer = base64.b64encode(encoded(pixels, "png")).decode()
        return json.dumps({"data": [{"b64_json": answer}]}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setattr(endpoint_calls, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(classifier, "STEPS", 4)
    monkeypatch.setattr(report, "SEEDS", 1)
    key = tmp_path / "endpoint.key"
    key.write_text(KEY)
    key.chmod(0o600)
    monkeypatch.setenv("DPSYNTH_TEXT_KEY", str(key))
    with serving() as found:
        monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", found.url.removesuffix("/v1"))
        found.answer = Painter()
        yield found


def deployment_of(root: Path, server: Server, **endpoint: Any) -> Deployment:
    declared = {"url": server.url, "model": "painter", "attempts": 2, **endpoint}
    evolution = {"foundation": "endpoint", "endpoint": declared, "rounds": 2, "population": 2, "variations": 1}
    deployment = picture_deployment(root, method="image_pe", image={"evolution": evolution})
    deployment.contract["description"] = ABOUT
    deployment.contract["generate"]["rows"] = 30
    return deployment.write()


def declare_painter(deployment: Deployment) -> None:
    LineageStore(deployment.settings.ledger_url).declare_public(
        model_name("painter"), by="Bo", reason="its makers list its pictures"
    )


def test_a_release_of_pictures_from_an_endpoint(tmp_path: Path, server: Server) -> None:
    deployment = deployment_of(tmp_path, server, words={"bar": "one upright bar"})
    refused = run_here(deployment).failures["raw"]
    assert "a model of unknown origin upstream of a base, or a base itself: dpsynth:products:painter" in refused
    assert not [entry for entry in ledger_of(deployment).entries() if entry.state in ("started", "spent")]
    server.asked.clear()
    declare_painter(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert bases_of(deployment, "model") == {("painter", "MODEL")}
    paths = {path for path, _, _ in server.asked}
    assert paths == {"/v1/images/random", "/v1/images/variation"}
    assert {key for _, key, _ in server.asked} == {f"Bearer {KEY}"}
    asked = {document["prompt"] for _, _, document in server.asked}
    assert asked == {"one upright bar", f"{ABOUT}: cross", f"{ABOUT}: disc"}
    assert {(document["width"], document["height"]) for _, _, document in server.asked} == {(SIDE, SIDE)}
    path = released(deployment)
    assert not verification.verify(deployment.settings, str(path), None).problems
    public = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert KEY.encode() not in public and server.url.encode() not in public
    dossier = json.loads((path / "dossier.json").read_text())
    told = " ".join(dossier["statement"]["not_covered"])
    assert "which made pictures from public words and from pictures of its own" in told
    assert "No request holds pixels of a record" in told
    assert "What the model painter at 127.0.0.1 was trained on. Clearance refuses it unless" in told
    assert [base["known_by"] for base in dossier["clearance"]["bases"]] == ["declaration"]

    # How requests are sent decides nothing: the model stays, and no other entry is made.
    model = storage_of(deployment).require(PEOPLE, "model").content_hash
    deployment.contract["generate"]["image"]["evolution"]["endpoint"]["timeout"] = 90
    deployment.write()
    assert run_here(deployment).success
    assert storage_of(deployment).require(PEOPLE, "model").content_hash == model
    assert len(ledger_of(deployment).entries()) == 1


def test_an_endpoint_that_is_not_listed_or_makes_nothing_costs_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployment_of(tmp_path, server)
    declare_painter(deployment)
    monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", "https://models.example.org")
    (refused,) = run_here(deployment).failures.values()
    assert "generate.image.evolution.endpoint.url: http://127.0.0.1" in refused and "is no endpoint of" in refused
    assert not server.asked
    monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", server.url.removesuffix("/v1"))
    server.answer = lambda document, number: b"{}"
    (refused,) = run_here(deployment).failures.values()
    assert "made no picture on trial" in refused
    assert not [entry for entry in ledger_of(deployment).entries() if entry.state in ("started", "spent")]
