"""Federated runs over pictures: plans by the command, nodes with files of pictures at real sockets, and the table."""

import io
import json
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from drawing_cases import COLUMNS, KINDS, PICTURED, SIDE, by_all, drawings
from federated_cases import NAMES
from node_cases import Sockets, place, policy, public, up  # noqa: F401  (place is a fixture)
from PIL import Image
from seeded_stream import Counted
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.federation import noise
from dpsynth_platform.federation.moments import PictureMomentsPlan
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, LedgerError, SourceError
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_node import Approvals, node_status, node_up
from dpsynth_platform.one_table.federated_plan import read_plan
from dpsynth_platform.one_table.federated_run import run_federated
from dpsynth_platform.one_table.paying import Interrupted
from dpsynth_platform.synth.images import moments_measuring

ALONE = {"drawing": COLUMNS["drawing"]}
OWNED = {"--owners": "person", "--contributions": "2"}


@pytest.fixture(autouse=True)
def small(monkeypatch, capfd):
    """Few drawn pictures, so that networks are learned in moments; and noise by a seeded stream."""
    command.captured = capfd
    monkeypatch.setattr(moments_measuring, "DRAWN", 48)
    monkeypatch.setattr(moments_measuring, "FEW_DRAWN", 24)
    monkeypatch.setattr("dpsynth_platform.synth.images.moments_model.TRIED", 8)
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)


def command(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, " ".join((done.output + "".join(command.captured.readouterr())).split())


def planned(place, columns, *more, name="plan.json", settings=(), **changes):  # noqa: F811
    """Status and output of the command that makes a plan; a changed option that is None is left out."""
    (place / "columns.yaml").write_text(yaml.safe_dump({"columns": columns, **dict(settings)}, sort_keys=False))
    (place / "keys.yaml").write_text(yaml.safe_dump({"participants": {each: public(place / each) for each in NAMES}}))
    options = {
        "--schema": place / "columns.yaml",
        "--participants": place / "keys.yaml",
        "--dataset": "drawings",
        "--epsilon": 2,
        "--delta": 1e-5,
        "--expected-units": 400,
        "--minimum": 3,
        "--most-records": 10_000,
        "--method": "image_moments",
        "--out": place / name,
        **OWNED,
    } | {f"--{key}": value for key, value in changes.items()}
    given = [word for key, value in options.items() if value is not None for word in (key, value)]
    return command("federate", "plan", *given, *more)


def run(place, plan, **options):  # noqa: F811
    roster = Roster.from_texts({name: public(place / name) for name in NAMES})
    link = nullcontext(Sockets(place))
    return run_federated(plan, roster, federation_key(place / "coordinator"), link, place / "out", **options)


def test_a_plan_of_pictures_in_words_and_for_programs(place):  # noqa: F811
    status, said = planned(place, COLUMNS)
    assert status == 0, said
    for words in (
        "Pictures in drawing: 4 x 4 pixels, 1 channel; 2 classes by kind.",
        "the covariance of the pictures",
        "pictures that a classifier is right for",
        "a gradient of a classifier",
        "of which each participant uses at most 2 records",
    ):
        assert words in said
    plan = read_plan(place / "plan.json")
    assert isinstance(plan, PictureMomentsPlan) and plan.reads == ["kind", "drawing"]
    status, said = planned(place, COLUMNS, "--json", name="other.json")
    shown = json.loads(said)
    assert status == 0 and shown["digest"] == plan.digest and len(shown["rounds"]) == len(plan.rounds)
    assert shown["pictures"]["column"] == "drawing" and shown["columns"] == ["kind", "drawing"]


@pytest.mark.parametrize(
    ("columns", "changes", "words"),
    [
        (COLUMNS, {"method": "mst"}, "--method 'mst' with a column of type image"),
        ({"kind": COLUMNS["kind"]}, {}, "--method 'image_moments' without a column of type image"),
        (COLUMNS | {"other": COLUMNS["drawing"]}, {}, "image.column: missing; accepted: one of drawing, other"),
        (COLUMNS | {"drawing": COLUMNS["drawing"] | {"size": [128, 128]}}, {}, "a message to a participant could have"),
    ],
)
def test_what_no_federated_plan_of_pictures_has(place, columns, changes, words):  # noqa: F811
    status, said = planned(place, columns, **changes)
    assert status == 1 and words in said and not (place / "plan.json").exists()


def test_settings_of_pictures_are_those_of_a_contract(place):  # noqa: F811
    columns = COLUMNS | {"size": {"type": "categorical", "values": ["small", "large"]}}
    assert "image.given: missing" in planned(place, columns)[1]
    document = {"columns": columns, "image": {"given": ["size"], "columns_share": 0.5}}
    declared = place / "declared.yaml"
    declared.write_text(yaml.safe_dump(document, sort_keys=False))
    status, said = planned(place, columns, schema=declared)
    assert status == 0 and "2 classes by size" in said
    assert read_plan(place / "plan.json").columns.guarantee.epsilon == 1.0
    declared.write_text(yaml.safe_dump(document | {"image": {"diffusion": {}}}))
    assert planned(place, columns, schema=declared)[0] == 1


def test_a_run_over_sockets_makes_a_table_with_pictures_and_its_statement(place):  # noqa: F811
    planned(place, COLUMNS)
    plan, person = read_plan(place / "plan.json"), {"approval": "person"}
    policies = by_all() | {"north": PICTURED | person}
    with up(place, drawings(200, damaged=3), {"columns": COLUMNS}, **policies) as lines:
        with pytest.raises(GrantRefused, match="waits for a person"):
            Approvals(place / "north").check("before", plan)
        status, said = command("node", "approve", place / "north", plan.digest[:12], "--by", "a reviewer")
        assert status == 0 and "Pictures in drawing: 4 x 4 pixels" in said and "kind, drawing" in said
        made = run(place, plan, rows=40)
    table = pq.read_table(made.synthetic)
    assert table.num_rows == made.rows == 40 and table.column_names == ["kind", "drawing", "person"]
    assert set(table["kind"].to_pylist()) <= set(KINDS)
    pictures = [Image.open(io.BytesIO(picture)) for picture in table["drawing"].to_pylist()]
    assert {(picture.format, picture.size, picture.mode) for picture in pictures} == {("PNG", (SIDE, SIDE), "L")}
    assert [run["state"] for name in NAMES for run in node_status(place / name).to_json()["runs"]] == ["spent"] * 4
    assert any(f"round {len(plan.rounds)} of {len(plan.rounds)}" in line for line in lines["east"])
    said = made.statement.read_text()
    for words in (
        "Made by the method image_moments for the dataset drawings: 1 table of counts and",
        "vectors of pictures in",
        "Pictures in drawing: 4 x 4 pixels",
        "faces, plates and writing were not removed",
        "no person looked at the pictures",
        "clips what the pictures of one unit add to a sum",
        f"Round {len(plan.rounds)} is the sum of 4",
    ):
        assert words in said
    document = json.loads((place / "out/statement.json").read_text())
    assert document["plan"]["digest"] == plan.digest and document["guarantee"]["epsilon"] <= 2


def test_pictures_alone_need_a_number_of_rows_before_anything_is_asked(place):  # noqa: F811
    """Each row is a unit."""
    assert planned(place, ALONE, owners=None, contributions=None)[0] == 0
    plan = read_plan(place / "plan.json")
    family = {"family": "guests", "unit": "example", "namespace": "person", "mode": "family"}
    family |= {"cap": {"epsilon": 5.0, "delta": 1e-4}}
    table = drawings(120).select(["drawing"])
    with up(place, table, {"columns": ALONE}, None, **by_all(family=family, columns=["drawing"], max_contributions=1)):
        with pytest.raises(ContractError, match="--rows: missing, and the plan counts no column"):
            run(place, plan)
        assert all(node_status(place / name).entries == [] for name in NAMES)
        made = run(place, plan, rows=5)
    assert pq.read_table(made.synthetic).column_names == ["drawing"] and made.rows == 5
    said = made.statement.read_text()
    assert "One record is protected." in said and "counts and" not in said


def test_pictures_evolve_by_the_votes_of_all(place):  # noqa: F811
    """From made-up shapes; the table has them, and the statement says what they were."""
    evolved = {"foundation": "shapes", "rounds": 2, "variations": 1, "population": 4}
    status, said = planned(place, COLUMNS, settings={"image": {"evolution": evolved}}, method="image_pe")
    assert status == 0 and said.count("votes for candidates") == 1 and "2 to 3" in said, said
    with up(place, drawings(60), {"columns": COLUMNS}, **by_all(methods=["image_pe"])):
        made = run(place, read_plan(place / "plan.json"), rows=12)
    table = pq.read_table(made.synthetic)
    assert table.num_rows == 12 and set(table["kind"].to_pylist()) <= set(KINDS)
    assert {Image.open(io.BytesIO(file)).size for file in table["drawing"].to_pylist()} == {(SIDE, SIDE)}
    words = " ".join(made.statement.read_text().split())
    assert "1 table of counts and 2 histograms of votes for candidates in 3 rounds" in words
    assert "What made the candidates, at the coordinator (foundation: shapes)" in words
    assert all([run["state"] for run in node_status(place / name).to_json()["runs"]] == ["spent"] for name in NAMES)


def test_pictures_that_are_declared_otherwise_at_a_node_are_refused_before_they_cost(place):  # noqa: F811
    assert planned(place, COLUMNS | {"drawing": COLUMNS["drawing"] | {"size": [5, 5]}})[0] == 0
    with (
        up(place, drawings(40), {"columns": COLUMNS}, **by_all()) as lines,
        pytest.raises(LedgerError, match="0 participants have reserved"),
    ):
        run(place, read_plan(place / "plan.json"), rows=5)
    assert all("drawing has 4 x 4 x 1 here, and 5 x 5 x 1 in the plan" in " ".join(said) for said in lines.values())
    assert all(node_status(place / name).entries == [] for name in NAMES)


def test_a_node_without_readable_pictures_does_not_come_up(place):  # noqa: F811
    table = drawings(200)
    path = place / "none.parquet"
    pq.write_table(table.set_column(2, "drawing", pa.array([b"none"] * table.num_rows, pa.binary())), path)
    given = {"owners": "person", "report": print, "goes_on": lambda: False}
    with pytest.raises(SourceError, match="hardly any, of its values is a picture of the declared form"):
        node_up(place / "north", path, policy(place, "north", **PICTURED), {"columns": COLUMNS}, **given)


@pytest.mark.parametrize(
    ("method", "settings", "exchange"),
    [
        ("image_moments", {}, 2 + 5 * 9),  # in the last of ten rounds or so, after networks were learned from sums
        (
            "image_pe",
            {"image": {"evolution": {"foundation": "shapes", "rounds": 2, "variations": 1, "population": 4}}},
            14,
        ),
    ],
)
def test_a_run_over_pictures_continues(place, method, settings, exchange):  # noqa: F811
    status, said = planned(place, COLUMNS, settings=settings, method=method)
    assert status == 0, said

    class Stopping(Sockets):
        asked = 0

        def ask(self, requests):
            found = super().ask(requests)
            self.asked += 1
            if self.asked == exchange:
                raise KeyboardInterrupt
            return found

    roster = Roster.from_texts({name: public(place / name) for name in NAMES})
    plan, key = read_plan(place / "plan.json"), federation_key(place / "coordinator")
    with up(place, drawings(100), {"columns": COLUMNS}, **by_all(methods=[method])):
        with pytest.raises(Interrupted, match="The same command continues this one"):
            run_federated(plan, roster, key, nullcontext(Stopping(place)), place / "out", rows=12)
        made = run(place, plan, rows=12)
    assert made.rows == 12 and made.took_part.finished == ((*NAMES,),) * len(plan.rounds)
    assert all([run["state"] for run in node_status(place / name).to_json()["runs"]] == ["spent"] for name in NAMES)
