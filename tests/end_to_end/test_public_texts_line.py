"""A line whose texts are chosen from a public table: to a verified release, and none from a table that is guarded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from line_cases import add_dataset, ledger_of, released, run_here, small_table
from text_line_cases import TEXTS, letters_table, text_deployment

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.foundation.yaml_files import dump, read_yaml
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.contract_words import contract_words
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.planning import load_dataset, public_table

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
WHY = "letters that we made up, published under CC0"
SECRET = "zanzibar"
PUBLIC = [
    {"region": region, "letter": f"{text}, {at}"} for region in TEXTS for text in TEXTS[region] for at in range(9)
]


def deployed(root: Path, place: Path) -> Deployment:
    table = letters_table(240)
    letters = pa.array([f"{text} {SECRET}" for text in table.column("letter").to_pylist()])
    return text_deployment(
        root,
        table=table.set_column(table.column_names.index("letter"), "letter", letters),
        expected_units=160,
        generate={
            "method": "aug_pe",
            "base_model": None,
            "public": {"uri": str(place), "why": WHY},
            "rows": 20,
            "text": {
                "given": ["region"],
                "max_tokens": 48,
                "evolution": {"population": 8, "variations": 1, "rounds": 2, "ways": ["retrieve"], "nearest": 2},
            },
            "training": None,
        },
    )


def test_a_release_of_public_texts(tmp_path: Path) -> None:
    place = tmp_path / "letters.parquet"
    pq.write_table(pa.Table.from_pylist(PUBLIC), place)
    deployment = deployed(tmp_path, place)
    ahead = forecast(deployment.settings, "people", None)
    assert "72 rows with letter, region" in str(ahead.public_in_words)
    assert (
        f"{place}, declared public: {WHY}"
        in dict(contract_words(load_dataset(deployment.settings, "people")[0]))["public table"]
    )
    steps = ["raw", "scrubbed", "canaries", "clearance", "bounded"]
    assert run_here(deployment, steps=steps).success
    pq.write_table(pa.Table.from_pylist(PUBLIC[1:]), place)
    assert "its rows are not those of the plan" in run_here(deployment, steps=["model"]).failures["model"]
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    pq.write_table(pa.Table.from_pylist(PUBLIC), place)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    release = released(deployment)
    rows = pa.Table.from_batches(list(read_table(release / "data"))).select(["region", "letter"]).to_pylist()
    known = {(row["region"], row["letter"]) for row in PUBLIC}
    assert rows and {(row["region"], row["letter"]) for row in rows} <= known
    text = (release / "dossier.json").read_text()
    assert SECRET not in text and str(tmp_path) not in text
    dossier = json.loads(text)
    (said,) = [line for line in dossier["statement"]["not_covered"] if "letters.parquet" in line]
    assert WHY in said and "word for word" in said
    assert [base["name"] for base in dossier["clearance"]["bases"] if base["kind"] == "table"] == ["letters.parquet"]
    assert dossier["clearance"]["base_model"] == []
    assert verification.verify(deployment.settings, release.name).ok


@pytest.mark.parametrize("kind", ["source", "file of the source", "copy", "another dataset's source"])
def test_a_guarded_table_is_no_table_of_public_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    deployment = deployed(tmp_path, tmp_path / "letters.parquet")
    source, settings = tmp_path / "private.parquet", deployment.settings
    pq.write_table(letters_table(240), source)
    place = {"copy": tmp_path / "copy.parquet", "another dataset's source": settings.home / "sources/others"}.get(
        kind, source
    )
    shutil.copy(source, tmp_path / "copy.parquet")
    add_dataset(deployment, "others", small_table(300, seed=8, first_person=9000))
    monkeypatch.setenv("DPSYNTH_HOME", str(settings.home))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(settings.deploy))
    file = settings.contracts / "people.yaml"
    document = read_yaml(file)
    document["source"] |= {"uri": str(tmp_path if kind == "source" else source), "format": "parquet"}
    document["generate"]["public"] |= {"uri": str(place)}
    file.write_text(dump(document))
    monkeypatch.setattr("dpsynth_platform.synth.text.public_texts.read_rows", lambda *_: pytest.fail("it was read"))
    if "source" in kind and kind != "another dataset's source":
        with pytest.raises(Exception, match="and the source overlap"):
            load_dataset(settings, "people")
        return
    said = run_here(deployment, steps=["raw"]).failures["raw"]
    assert "generate.public.uri" in said and "accepted: a table that is public" in said
    with pytest.raises(Exception, match="accepted: a table that is public"):
        public_table(load_dataset(settings, "people")[0])
    assert not ledger_of(deployment).entries()
