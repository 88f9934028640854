"""Pictures that an endpoint draws from synthetic captions: what it is asked, its failure on the way, and a release."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deployment import Deployment
from endpoint_cases import Server, completion, serving
from line_cases import PEOPLE, STEPS, bases_of, ledger_of, released, run_here, storage_of
from picture_cases import SIDE, drawings
from text_line_cases import TRAINING, declare_base_public, letters_table, text_deployment

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.lineage import columns
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.quality.images import classifier, report
from dpsynth_platform.release import cards
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.sources.pictures import decoded, encoded
from dpsynth_platform.synth import endpoint_calls

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here", "no_gate")]
KEY = "sk-nobody-may-see-this"
SECRET = "zanzibar"
MAIL = "quackenbush@private-mail.example"
AS_FAR = STEPS[: STEPS.index("synthetic") + 1]
FORM = ImageForm(SIDE, SIDE, 1)
WHY = "the drawings show strokes that were made up for tests"


def captioned_table(rows: int = 240) -> pa.Table:
    """Letters with a word that only real ones hold, an address that scrubbing replaces, and a drawing each."""
    table, random = letters_table(rows), np.random.default_rng(8)
    letters = [f"{text} {SECRET} {MAIL}" for text in table.column("letter").to_pylist()]
    pictures = [encoded(pixels, "png") for pixels in drawings(random.integers(0, 3, rows), random)]
    table = table.set_column(table.column_names.index("letter"), "letter", pa.array(letters))
    return table.append_column("drawing", pa.array(pictures, pa.binary()))


def leaks(requests: list[Any], table: pa.Table) -> list[str]:
    """What requests hold of real pictures, as files or pixels in base64, or of real captions."""
    sent, found = json.dumps(requests), []
    for content in table.column("drawing").to_pylist():
        pixels = decoded(content, FORM, "refuse").tobytes()
        whole = (base64.b64encode(part).decode() for part in (content, pixels))
        found += ["picture" for text in whole if text in sent]
    return found + [word for word in (SECRET, MAIL) if word in sent]


class Painter:
    """A fictional model: letters on request, and a stroke at a place that the prompt decides, larger than asked."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.prompts: list[str] = []
        self.most = 10**9

    def __call__(self, document: dict[str, Any], number: int) -> bytes:
        if "messages" in document:
            return completion(self.server.text(document, number))
        seed = int.from_bytes(hashlib.sha256(document["prompt"].encode()).digest()[:4])
        pixels = drawings(np.array([seed % 3]), np.random.default_rng(seed))[0]
        large = np.repeat(np.repeat(pixels, 2, axis=0), 2, axis=1)
        return json.dumps({"data": [{"b64_json": base64.b64encode(encoded(large, "png")).decode()}]}).encode()

    def breaks(self, document: dict[str, Any]) -> bool:
        """Whether a request fails: every picture after the first `most`."""
        if "prompt" not in document:
            return False
        with self.server.lock:
            self.prompts.append(document["prompt"])
            return len(self.prompts) > self.most


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
        found.answer = Painter(found)
        found.breaks = found.answer.breaks
        yield found


def captioned(root: Path, server: Server, method: dict[str, Any], text: dict[str, Any]) -> Deployment:
    endpoint = {"url": server.url, "model": "painter", "attempts": 1, "at_once": 4}
    pictures = {"endpoint": endpoint, "style": "An ink drawing:"}
    generate = method | {"rows": 60, "text": {"given": ["region"], "max_tokens": 48, "pictures": pictures} | text}
    deployment = text_deployment(root, table=captioned_table(), expected_units=160, generate=generate)
    deployment.contract["columns"]["drawing"] = {
        "type": "image",
        "size": [SIDE, SIDE],
        "channels": 1,
        "accept_unscrubbed": WHY,
    }
    deployment.contract["release"]["publish"] = [{"format": "images", "uri": str(root / "home" / "out")}]
    deployment.contract["quality"] = {"holdout": 0.4}  # fewer than the 20 that a comparison takes once in 10^14
    return deployment.write()


def test_a_plan_says_who_draws_and_refuses_an_unlisted_endpoint(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolution = {"about": "short letters", "population": 8, "variations": 1, "rounds": 2}
    deployment = captioned(
        tmp_path, server, {"method": "aug_pe", "training": None}, {"evolution": evolution, "max_tokens": 32}
    )
    plan_rows = dict(forecast(deployment.settings, "people", None).rows())
    assert "painter, behind 127.0.0.1, draws drawing from each synthetic letter" in plan_rows["who draws pictures"]
    monkeypatch.delenv("DPSYNTH_TEXT_ENDPOINTS")
    with pytest.raises(ConfigurationError, match=r"text\.pictures\.endpoint\.url: .* is no endpoint"):
        forecast(deployment.settings, "people", None)


def test_an_endpoint_that_fails_on_its_way_and_a_release(tmp_path: Path, server: Server) -> None:
    evolution = {"about": "short letters", "population": 8, "variations": 1, "rounds": 2}
    declared = {"evolution": evolution | {"endpoint": {"url": server.url, "attempts": 2}}}
    method = {"method": "aug_pe", "base_model": "some-model", "training": None}
    deployment = captioned(tmp_path, server, method, declared)
    graph = LineageStore(deployment.settings.ledger_url)
    graph.declare_public(model_name("some-model"), by="Bo", reason="its makers list what it was trained on")
    painter: Painter = server.answer
    refused = run_here(deployment).failures["raw"]
    assert "a model of unknown origin upstream of a base, or a base itself: dpsynth:products:painter" in refused
    assert not ledger_of(deployment).entries() and not server.asked
    graph.declare_public(model_name("painter"), by="Bo", reason="its makers list its pictures")
    painter.most = 0
    failed = run_here(deployment)
    assert "drew no picture on trial" in failed.failures["model"]
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]

    painter.most, painter.prompts = 41, []  # the trial, and forty captions
    failed = run_here(deployment)
    first = painter.prompts[1:]
    rows = len(first)  # 60, or fewer where noisy counts give a kind of captions no text
    assert f"drew no picture of {rows - 40} among the first {rows} of {rows} captions" in failed.failures["synthetic"]
    assert "nothing is paid again" in failed.failures["synthetic"]
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    model = storage_of(deployment).require(PEOPLE, "model").content_hash

    painter.most, painter.prompts = 10**9, []
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert sorted(painter.prompts) == sorted(first[40:]), "only what was not drawn is asked again"
    assert len(ledger_of(deployment).entries()) == 1
    assert storage_of(deployment).require(PEOPLE, "model").content_hash == model
    synthetic = storage_of(deployment).require(PEOPLE, "synthetic").directory
    assert [path.name for path in synthetic.parent.iterdir()] == [synthetic.name]

    bounded = storage_of(deployment).require(PEOPLE, "bounded").directory / "table"
    assert "drawing" not in table_schema(bounded).names and "letter" in table_schema(bounded).names
    asked = [document for _, _, document in server.asked]
    table = captioned_table()
    assert not leaks(asked, table)
    planted = {"image": base64.b64encode(table["drawing"][3].as_py()).decode(), "prompt": f"a {SECRET}"}
    assert leaks([*asked, planted], table) == ["picture", SECRET]
    assert {frozenset(document) for document in asked if "prompt" in document} == {
        frozenset({"model", "prompt", "width", "height"})
    }

    contract = DataContract.model_validate(storage_of(deployment).require(PEOPLE, "raw").facts["contract"])
    descent = columns.synthetic(contract, DatasetName("file", "bounded"), table.schema).origins["drawing"]
    assert {origin.column for origin in descent} == {"letter", "region"}
    assert {origin.description for origin in descent} == {columns.ILLUSTRATED, columns.CONDITIONING} < columns.SENTENCES

    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    published = pa.Table.from_batches(read_table(folder / "data")).to_pylist()
    assert len(published) == rows
    for row in published:  # each picture is that of its own caption
        seed = int.from_bytes(hashlib.sha256(f"An ink drawing: {row['letter']}".encode()).digest()[:4])
        expected = drawings(np.array([seed % 3]), np.random.default_rng(seed))[0]
        assert (decoded(row["drawing"], FORM, "refuse") == expected).all()
    public = json.loads((folder / "dossier.json").read_text())
    endpoint = public["contract"]["generate"]["text"]["pictures"]["endpoint"]
    assert (endpoint["url"], endpoint["model"]) == ("127.0.0.1", "painter")
    said = " ".join(public["statement"]["not_covered"])
    assert "no mechanism read them, and the published ones were drawn by the model painter at 127.0.0.1" in said
    assert "reached the mechanism" not in said
    assert "What the model painter at 127.0.0.1 was trained on. Clearance refuses it unless lineage" in said
    assert "dpsynth:products:painter was declared public by Bo: its makers list its pictures" in said
    assert [(base["kind"], base["name"], base["known_by"]) for base in public["clearance"]["bases"]] == [
        ("checkpoint", "some-model", "declaration"),
        ("package", "all-MiniLM-L6-v2", "contract"),
        ("endpoint", "painter", "declaration"),
    ]
    model_of, drawn_of = (bases_of(deployment, step) for step in ("model", "synthetic"))
    assert model_of == {("some-model", "MODEL"), ("all-MiniLM-L6-v2", "FILE")}
    assert drawn_of == {("painter", "MODEL")}
    assert {item.node.name.name for item in graph.ancestry([dataset_name(folder / "data")]).relatives} >= {
        "some-model",
        "painter",
    }
    page = (folder / "dossier.html").read_text()
    assert (
        "The model painter at 127.0.0.1 drew them from the synthetic texts in letter; no mechanism read a real picture"
        in page
    )
    assert (folder / "pictures.png").is_file()
    assert "sc:ImageObject" in json.dumps(cards.croissant(public))
    assert (
        "comes of the model painter, which drew them from the synthetic texts in letter"
        in (folder / "README.md").read_text()
    )
    attacks = [attack["name"] for attack in public["audit"]["report"]["attacks"]]
    assert attacks[-2:] == ["text overlap", "nearest pictures"] and "picture sums" not in attacks
    quality = json.loads((storage_of(deployment).require(PEOPLE, "quality").directory / "report.json").read_text())
    assert quality["pictures"]
    (metadata,) = (tmp_path / "home" / "out").rglob("metadata.csv")
    listed = list(csv.DictReader(metadata.read_text().splitlines()))
    assert sorted(row["letter"] for row in listed) == sorted(row["letter"] for row in published)
    assert all((metadata.parent / row["file_name"]).is_file() for row in listed)
    for place in (deployment.settings.restricted, folder, deployment.settings.home / "lineage"):
        assert not [file for file in place.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]

    # How requests are sent decides nothing; another model draws anew, from the same paid captions.
    pictures = deployment.contract["generate"]["text"]["pictures"]
    pictures["endpoint"]["attempts"] = 3
    deployment.write()
    painter.prompts = []
    assert run_here(deployment, steps=AS_FAR).success and not painter.prompts
    pictures["endpoint"]["model"] = "another"
    deployment.write()
    assert "dpsynth:products:another" in run_here(deployment, steps=AS_FAR).failures["clearance"]
    assert "would not be cleared any more" in run_here(deployment, steps=["synthetic"]).failures["synthetic"]
    graph.declare_public(model_name("another"), by="Bo", reason="its makers list its pictures")
    stale = run_here(deployment, steps=["synthetic"]).failures["synthetic"]
    assert "it starts from other public bases than its clearance names" in stale and not painter.prompts
    assert run_here(deployment, steps=AS_FAR).success
    assert bases_of(deployment, "synthetic") == {("another", "MODEL")}
    assert len(painter.prompts) == storage_of(deployment).require(PEOPLE, "synthetic").facts["rows"]
    assert len(ledger_of(deployment).entries()) == 1


def test_captions_of_a_trained_model(tmp_path: Path, server: Server) -> None:
    """Captions that the endpoint draws no picture of are left out, and counted."""
    method = {"training": TRAINING | {"batch_size": 100}}
    deployment = captioned(tmp_path, server, method, {"keep": {"duplicates": "kept"}})
    deployment.contract["generate"]["text"]["pictures"] |= {"most_missing": 0.5}
    deployment.write()
    declare_base_public(deployment)
    LineageStore(deployment.settings.ledger_url).declare_public(
        model_name("painter"), by="Bo", reason="its makers list its pictures"
    )
    painter: Painter = server.answer
    painter.most = 41
    ran = run_here(deployment, steps=AS_FAR)
    assert ran.success, ran.failures
    record = storage_of(deployment).require(PEOPLE, "synthetic")
    rows = pa.Table.from_batches(read_table(record.directory / "table"))
    assert rows.num_rows == record.facts["rows"] == 40
    without = record.facts["captions_without_picture"]
    drawn = json.loads((record.directory / "texts.json").read_text())
    assert drawn["rows_without"] >= without > 0
    assert drawn["in_words"].endswith(f"{without} rows are missing, since no picture of their text was drawn")
    # The trial and at most 60 captions: were one row in ten without a text, fewer than 40 had one once in 10^7 runs.
    assert len(painter.prompts) == 1 + 40 + without
    assert not leaks([document for _, _, document in server.asked], captioned_table())
