"""Tables of ids and a text alone, from the table to a verified release: nothing is counted, all is for the text.

Mechanisms take place in the tests' process; each method has a line with a worker of its own where it has columns, too.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from deployment import Deployment
from endpoint_cases import serving
from inference_cases import ABOUT, note_reader
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_cases import save_model
from text_line_cases import TEXTS, declare_base_public, letters_table, notes_deployment

from dpsynth_platform.console.roles import ALLOWED
from dpsynth_platform.console.views import candidates, datasets, releases
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.drafting.draft import drafted
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    GaussianCountsEvent,
    GaussianVotesEvent,
    SampledGaussianEvent,
    event_from_json,
    leaves,
)
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.topics import write_topics

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here", "no_gate")]
WRITTEN = {"max_tokens": 48, "keep": {"duplicates": "kept"}}  # so small a model knows three sentences


def report(deployment: Any, step: str) -> dict[str, Any]:
    return json.loads((storage_of(deployment).require(PEOPLE, step).directory / "report.json").read_text())


def rows_of(directory: Path) -> pa.Table:
    return pa.Table.from_batches(read_table(directory))


def drafted_deployment(root: Path, file: Path) -> Deployment:
    """A deployment whose contract is a draft of a CSV file of ids, owners and texts, filled in."""
    deployment = notes_deployment(root, generate={"rows": 60, "text": WRITTEN})
    known = deployment.contract
    csv.write_csv(letters_table().select(["person", "visit", "letter"]), file)
    contract = drafted(deployment.settings, file, "people", "tests", dialect=Dialect(header=True)).contract
    assert contract["columns"] == {"person": {"type": None}, "visit": {"type": None}, "letter": {"type": None}}
    for name, kind in (("person", "identifier"), ("visit", "identifier"), ("letter", "text")):
        contract["columns"][name]["type"] = kind
    contract["source"]["key"] = ["person", "visit"]
    contract["privacy"] |= known["privacy"]
    deployment.contract = contract | {key: known[key] for key in ("description", "owners", "generate", "audit")}
    shutil.rmtree(deployment.settings.home / "sources" / "people")
    return deployment.write()


def test_a_release_by_fine_tuning(tmp_path: Path) -> None:
    """From a CSV file, by way of a draft; what people are shown on the way has no column but the ids and the text."""
    deployment = drafted_deployment(tmp_path, tmp_path / "people.csv")
    contract = tmp_path / "deploy" / "contracts" / "people.yaml"
    checked = deployment.here("contract", "check", str(contract))
    assert checked.returncode == 0 and "no modelled column, texts alone" in checked.stdout, checked.stdout
    declare_base_public(deployment)
    plan_rows = dict(forecast(deployment.settings, "people", None).rows())
    assert plan_rows["what is counted"] == "nothing: no column is modelled"
    assert "is given nothing and writes letter" in plan_rows["who writes texts"]
    assert plan_rows["for experts"].startswith("10 steps of DP-SGD over records")
    assert plan_rows["for experts"].endswith("; add-or-remove")
    assert rehearse(deployment.settings, build_definitions, "people", None, 300, lambda _: None)["success"]
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    event = event_from_json(entry.request.event)
    assert [type(leaf) for leaf, _ in leaves(event)] == [SampledGaussianEvent]
    assert 1.9 < epsilon(event, 1e-6).epsilon <= 2.0

    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert not (model / "columns").exists()
    audit = report(deployment, "audit")
    assert [attack["name"] for attack in audit["attacks"]] == ["text likelihood", "text overlap"]
    assert audit["cost"]["share"] is None and not audit["cost"]["columns"]
    measured = report(deployment, "quality")
    assert measured["fidelity"]["not_available"] == "no column is modelled" and measured["texts"]

    settings, reviewer = deployment.settings, ALLOWED["reviewer"]
    assert candidates.candidate(settings, reviewer, "people").state == "waiting"
    columns = dict(datasets.dataset(settings, reviewer, "people").columns)
    assert "written by a language model" in columns["letter"] and "fresh" in columns["person"]
    assert "no column is modelled" in str(datasets.plan(settings, reviewer, "people"))
    shown = candidates.reviewers_dossier(settings, reviewer, "people")
    assert "no column is modelled" in str(shown)
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert "written by a language model" in str(releases.release(settings, reviewer, public["release"]["id"]))
    assert {column["name"]: column["treatment"] for column in public["synthetic"]["columns"]} == {
        "person": "regenerated",
        "visit": "regenerated",
        "letter": "written",
    }
    assert "Attacks on columns do not apply" in public["audit"]["report"]["summary"]
    said = json.dumps(public["statement"])
    assert "counts of the columns" not in said and "noisy measurements" not in said
    published = rows_of(folder / "data")
    # Of 360 rows none was missing; were one in a hundred missing, eleven of 60 were once in 10^10 runs.
    assert 50 <= published.num_rows <= 60 and published["letter"].null_count == 0
    assert not set(published["person"].to_pylist()) & {f"P{number:05d}" for number in range(900)}
    assert verification.verify(deployment.settings, str(folder), None).ok


def test_a_release_of_documents_that_were_paid_for_token_by_token(tmp_path: Path) -> None:
    """Rows follow from documents, which the plan pays for: nothing else says how many there are."""
    base = save_model(tmp_path / "reader", note_reader("letter"))
    inference = {"about": ABOUT, "batch_size": 100, "document_tokens": 16, "clipping_norm": 5.0, "top_k": 40}
    generate = {
        "method": "dp_inference",
        "base_model": str(base),
        "rows": "auto",
        "training": None,
        "text": {"max_tokens": 48, "inference": inference},
    }
    deployment = notes_deployment(tmp_path, generate=generate)
    declare_base_public(deployment)
    bought = forecast(deployment.settings, "people", None)
    assert not bought.noise and not bought.error
    assert any("documents of up to 16 tokens" in str(words) for words in dict(bought.rows()).values())
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.request.event["kind"] == "parallel", "no part beside the tokens"
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert "as many as documents were paid for" in public["statement"]["output"]
    assert any("choices of next tokens" in access for access in public["statement"]["covered"])
    audited = report(deployment, "audit")
    assert [attack["name"] for attack in audited["attacks"]] == ["text overlap"]
    assert audited["verdict"] == "inconclusive" and "is the only one" in audited["reasons"][0]
    published = rows_of(folder / "data")
    # 16 to 29 rows, 23 on average: as a Poisson number it is none once in 10^10 runs.
    assert published.num_rows and published["letter"].null_count == 0
    assert verification.verify(deployment.settings, str(folder), None).ok


def test_a_release_by_private_evolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `auto`, which an endpoint leaves no other choice; with a second evolution for the audit."""
    with serving() as server:
        monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", server.url.removesuffix("/v1"))
        evolution = {"about": "short letters", "population": 8, "variations": 1, "rounds": 2}
        endpoint = {"endpoint": {"url": server.url, "attempts": 2}}
        generate = {
            "method": "auto",
            "base_model": "some-model",
            "rows": 60,
            "text": {"max_tokens": 48, "evolution": evolution | endpoint},
            "training": None,
        }
        deployment = notes_deployment(tmp_path, expected_units=160, generate=generate)
        deployment.contract["audit"]["model"] = "separate"
        deployment.family["cap"]["epsilon"] = 8.0
        deployment.write()
        LineageStore(deployment.settings.ledger_url).declare_public(
            model_name("some-model"), by="Bo", reason="its makers list what it was trained on"
        )
        ran = run_here(deployment)
        assert ran.success, ran.failures
        folder = released(deployment)
    first, second = ledger_of(deployment).entries()
    assert (first.state, second.state) == ("spent", "spent")
    for entry in (first, second):
        assert {type(leaf) for leaf, _ in leaves(event_from_json(entry.request.event))} == {GaussianVotesEvent}
        assert 1.9 < epsilon(event_from_json(entry.request.event), 1e-6).epsilon <= 2.0
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == "aug_pe"
    assert not any("label" in access for access in public["statement"]["covered"])
    audited = public["audit"]["report"]
    assert [attack["name"] for attack in audited["attacks"]] == ["text overlap"]
    assert audited["verdict"] == "inconclusive" and "is the only one" in audited["reasons"][0]
    assert verification.verify(deployment.settings, str(folder), None).ok


def test_a_release_by_public_topics(tmp_path: Path) -> None:
    """Topics are counted and paid for, though no column is modelled."""
    about = SentenceEncoder("cpu").encode([TEXTS["north"][0], TEXTS["west"][0]])
    others = np.linalg.svd(about, full_matrices=True)[2][2:16]
    words = ["late", "please", *(f"topic{number}" for number in range(14))]
    write_topics(tmp_path / "topics", {16: (np.concatenate([about, others]), words)}, "two sentences")
    topics = {"model": str(tmp_path / "topics"), "public": "made of two sentences", "count": 16}
    text = WRITTEN | {"max_tokens": 64, "topics": topics}
    deployment = notes_deployment(tmp_path, generate={"method": "ctcl", "rows": 60, "text": text})
    declare_base_public(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    found = {type(leaf) for leaf, _ in leaves(event_from_json(entry.request.event))}
    assert found == {GaussianCountsEvent, SampledGaussianEvent}
    attacks = [attack["name"] for attack in report(deployment, "audit")["attacks"]]
    assert attacks == ["measurements", "likelihood", "nearest rows", "text likelihood", "text overlap"]
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert "keywords" not in {column["name"] for column in public["synthetic"]["columns"]}
    assert verification.verify(deployment.settings, str(folder), None).ok


def test_a_release_of_notes_with_several_owners(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    readers = [None if number % 5 == 0 else f"P{number:05d}" for number in random.geometric(0.01, 900)]
    table = letters_table().append_column("reader", pa.array(readers))
    deployment = notes_deployment(
        tmp_path,
        table=table,
        generate={"rows": 60, "text": WRITTEN},
        owner_columns=["person", "reader"],
        adjacency="fixed-graph",
        max_contributions=2,
    )
    deployment.contract["source"]["key"] = ["visit"]
    deployment.contract["columns"]["reader"] = {"type": "identifier", "nullable": True}
    deployment.family["adjacency"] = "fixed-graph"
    deployment.write()
    declare_base_public(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    kept = rows_of(storage_of(deployment).require(PEOPLE, "bounded").directory / "table").to_pylist()
    assert max(Counter(owner for row in kept for owner in row["_owners"]).values()) == 2
    (entry,) = ledger_of(deployment).entries()
    ((leaf, _),) = leaves(event_from_json(entry.request.event))
    assert (leaf.adjacency, leaf.max_contributions) == ("fixed-graph", 2)
    folder = released(deployment)
    published = rows_of(folder / "data")
    assert not {f"P{number:05d}" for number in range(900)} & {
        *published["person"].to_pylist(),
        *published["reader"].to_pylist(),
    }
    assert verification.verify(deployment.settings, str(folder), None).ok
