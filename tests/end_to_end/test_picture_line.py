"""Tables of pictures, from the source to a verified release, by each method, and what people see on the way."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deployment import Deployment
from line_cases import PEOPLE, Ran, bases_of, ledger_of, released, run_here, storage_of
from picture_cases import KINDS, PICTURES, SIDE, drawings, drawings_table, picture_deployment
from PIL import Image

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.quality.images import classifier, report
from dpsynth_platform.reviewing import decisions, verification
from dpsynth_platform.sources.pictures import encoded, read_pictures
from dpsynth_platform.synth.images import moments_plan
from resources.accelerator import AcceleratorResource

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
METHODS: dict[str, dict[str, Any]] = {
    "image_moments": {},
    "image_pe": {"image": {"evolution": {"rounds": 2, "population": 3}}},
    "image_mixed": {"image": {"evolution": {"rounds": 1, "population": 2}}},
    "image_diffusion": {"image": {"diffusion": {"steps": 4, "batch_size": 64, "draws": 2, "warm_up_steps": 20}}},
    "image_embedding": {"image": {"embedding": {"frequencies": 50, "steps": 20}}},
    "image_gan": {"image": {"gan": {"steps": 4, "batch_size": 64}}},
}
FORM = ImageForm(SIDE, SIDE, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that learn little: these tests are about the line, and others about what is learned."""
    monkeypatch.setattr(moments_plan, "NETWORKS", 0)
    monkeypatch.setattr(classifier, "STEPS", 4)
    monkeypatch.setattr(report, "SEEDS", 1)


def pixels_of(table: pa.Table) -> Any:
    pixels, good, faults = read_pictures(table["drawing"], FORM, "refuse", raw=False)
    assert good.all() and not faults
    return pixels


@pytest.mark.parametrize("method", METHODS)
def test_a_line_by_each_method(tmp_path: Path, method: str) -> None:
    verified_line(tmp_path, method, METHODS[method])


def test_a_line_that_first_learns_from_public_pictures_that_resemble_the_private_ones(tmp_path: Path) -> None:
    """The dossier says why they are public and what was counted, and not where they are."""
    reason = "drawn by a program for this test"
    public = tmp_path / "strokes"
    for kind in KINDS:
        (public / kind).mkdir(parents=True)
    kinds = np.arange(90) % len(KINDS)
    for number, drawing in enumerate(drawings(kinds, np.random.default_rng(8))):
        (public / KINDS[kinds[number]] / f"{number}.png").write_bytes(encoded(drawing, "png"))
    table = {"directory": str(public), "public": reason, "nearest_classes": 1}
    part = METHODS["image_diffusion"]["image"]["diffusion"] | {"warm_up": "table", "table": table}
    dossier = verified_line(tmp_path, "image_diffusion", {"image": {"diffusion": part}})
    assert reason in " ".join(dossier["statement"]["not_covered"])
    assert "how many pictures of each class look like each label" in " ".join(dossier["statement"]["covered"])
    assert dossier["contract"]["generate"]["image"]["diffusion"]["table"]["directory"] == "strokes"
    assert str(public) not in json.dumps(dossier)
    (base,) = dossier["clearance"]["bases"]
    assert base == {"kind": "pictures", "name": "strokes", "public_because": reason, "known_by": "contract"}


def verified_line(tmp_path: Path, method: str, generate: dict[str, Any]) -> dict[str, Any]:
    """Runs a line to its verified release, and returns the dossier."""
    deployment = picture_deployment(tmp_path, method=method, **generate)
    deployment.family["cap"]["epsilon"] = 8.0  # an account's orders suit counts better than a short training
    deployment.contract["release"]["publish"] = [{"format": "images", "uri": str(tmp_path / "folders")}]
    deployment.write()
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    cost = entry.request
    assert epsilon(event_from_json(cost.event), cost.guarantee.delta).epsilon <= cost.guarantee.epsilon
    path = released(deployment)
    checked = verification.verify(deployment.settings, str(path), None)
    assert not checked.problems
    rows = pa.Table.from_batches(read_table(path / "data"))
    assert rows.num_rows == 120 and set(rows["kind"].to_pylist()) <= set(KINDS)
    pixels = pixels_of(rows)
    assert np.ptp(pixels) > 0
    dossier = json.loads((path / "dossier.json").read_text())
    assert dossier["synthetic"]["pictures"]["classes"] == KINDS
    treatments = {column["name"]: column["treatment"] for column in dossier["synthetic"]["columns"]}
    assert treatments == {"person": "regenerated", "visit": "regenerated", "kind": "modelled", "drawing": "pictured"}
    assert any("faces, plates and writing" in access for access in dossier["statement"]["not_covered"])
    check_folder(tmp_path / "folders" / path.name, rows)
    return dict(dossier)


def test_changed_public_pictures_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for others is refused before its entry starts; raw then makes a new one, which is the only one spent.

    Before that, the launcher is asked whether a worker sees them.
    """
    asked, check = [], AcceleratorResource.check

    def remembered(self: AcceleratorResource, dataset: str, reads: Sequence[Path]) -> None:
        asked.extend(reads)
        check(self, dataset, reads)

    monkeypatch.setattr(AcceleratorResource, "check", remembered)
    places = [tmp_path / "public" / kind / f"{number}.png" for kind in KINDS for number in range(3)]
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(encoded(drawings(np.array([number // 3]), np.random.default_rng(number))[0], "png"))
    table = {"directory": str(tmp_path / "public"), "public": "strokes that were made up for tests"}
    evolution = {"foundation": "table", "table": table, "rounds": 1, "population": 2}
    deployment = picture_deployment(tmp_path, method="image_pe", image={"evolution": evolution})
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    places[0].unlink()
    refused = run_here(deployment, steps=["model"]).failures["model"]
    assert "are not those of the sealed plan; accepted: the earlier ones; or materialize raw again" in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    assert not asked
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert tmp_path / "public" in asked
    assert bases_of(deployment, "model") == {(str(tmp_path / "public"), "FILE")}
    states = [entry.state for entry in ledger_of(deployment).entries()]
    assert states.count("spent") == 1 and "started" not in states


def check_folder(root: Path, rows: pa.Table) -> None:
    """The target's directory has every picture of the release once, with its other columns, and nothing else."""
    names = [line.split(",")[0] for line in (root / "pictures" / "metadata.csv").read_text().splitlines()[1:]]
    assert [(root / "pictures" / name).read_bytes() for name in names] == rows["drawing"].to_pylist()
    assert {path.suffix for path in (root / "pictures").rglob("*") if path.is_file()} == {".png", ".csv"}
    assert (root / "release" / "attestation.dsse.json").is_file()


def test_what_people_see_of_pictures(tmp_path: Path) -> None:
    """Reviewers see the nearest real pictures; Dagster's log, the public dossier and its files have none."""
    deployment = picture_deployment(tmp_path)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    quality = storage_of(deployment).require(PEOPLE, "nearest")
    nearest = (quality.directory / "nearest.svg").read_text()
    assert "data:image/png;base64," in nearest and "Restricted" in nearest
    why, left_out, place = decisions.review(deployment.settings, PEOPLE).pictures
    assert why.endswith(deployment.contract["columns"]["drawing"]["accept_unscrubbed"])
    assert left_out.endswith("none") and place.endswith(str(quality.directory / "nearest.svg"))
    words = {step: " ".join(map(str, metadata.values())) for step, metadata in ran.materializations.items()}
    inline = {step for step, text in words.items() if "data:image/png" in text}
    assert inline == {"synthetic"}
    assert nearest[-200:-20] not in " ".join(words.values())
    path = released(deployment)
    public = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert nearest[-200:-20].encode() not in public
    page = (path / "dossier.html").read_text()
    assert "Training classifiers of drawing" in page and "each picture is made for its row's class" in page
    with Image.open(io.BytesIO((path / "pictures.png").read_bytes())) as sheet:
        assert sheet.height >= 3 * SIDE


def test_a_sheet_of_other_pictures_does_not_verify(tmp_path: Path) -> None:
    """Signed by the publisher's own key, and yet no picture of the table: what a faulty publication would leave."""
    from dpsynth_platform.release import first_pictures

    deployment = picture_deployment(tmp_path)
    assert run_here(deployment).success
    honest = first_pictures.FirstPictures.sheet
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_pictures.FirstPictures, "sheet", lambda mine: _inverted(honest(mine)))
        path = released(deployment)
    (problem,) = verification.verify(deployment.settings, str(path), None).problems
    assert (problem.kind, problem.file) == ("table", "pictures.png")


def _inverted(sheet: bytes) -> bytes:
    written = io.BytesIO()
    with Image.open(io.BytesIO(sheet)) as image:
        Image.fromarray(255 - np.asarray(image)).save(written, "PNG")
    return written.getvalue()


def test_rows_from_before_damaged_pictures_were_refused_are_no_longer_reused(tmp_path: Path) -> None:
    """The same for a column that was accepted as it is; what was scrubbed under a stricter contract is reused."""
    table = drawings_table(400)
    files = table["drawing"].to_pylist()
    damaged = table.set_column(3, "drawing", pa.array([b"no picture"] * 60 + files[60:], pa.binary()))
    deployment = Deployment(tmp_path, contract=copy.deepcopy(PICTURES)).write().with_source(damaged)
    steps = ["raw", "scrubbed"]

    def declared(column: str, **keys: str) -> Ran:
        deployment.contract["columns"][column] |= keys
        deployment.write()
        return run_here(deployment, steps=steps)

    assert declared("kind", accept_pii="kinds of strokes are no names").success
    first = storage_of(deployment).require(PEOPLE, "scrubbed")
    assert first.facts["rows"] == 340
    assert "damaged: leave-out" in declared("drawing", damaged="refuse").failures["scrubbed"]
    assert declared("drawing", damaged="leave-out").success
    assert storage_of(deployment).require(PEOPLE, "scrubbed").directory == first.directory, "nothing changed"
    del deployment.contract["columns"]["kind"]["accept_pii"]
    assert declared("drawing").success
    again = storage_of(deployment).require(PEOPLE, "scrubbed")
    assert again.directory != first.directory and again.facts["rows"] == 340
    assert declared("kind", accept_pii="kinds of strokes are no names").success
    assert storage_of(deployment).require(PEOPLE, "scrubbed").directory == again.directory
