"""Federated runs over texts: plans by the command, nodes with scrubbed texts at real sockets, and the table."""

import json
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from federated_cases import NAMES
from node_cases import Sockets, place, policy, public, up  # noqa: F401  (place is a fixture)
from note_cases import COLUMNS, EVOLVED, NOTED, by_all, notes
from seeded_stream import Counted
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.federation import noise
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan, with_features
from dpsynth_platform.foundation.errors import ContractError, LedgerError, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import read_table, table_schema, write_table
from dpsynth_platform.one_table import federated_node
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_node import node_status, node_up
from dpsynth_platform.one_table.federated_plan import read_plan
from dpsynth_platform.one_table.federated_run import run_federated
from dpsynth_platform.one_table.paying import Interrupted
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.evolution_votes import FEATURES_COLUMN

MARK = "zanzibar"


@pytest.fixture(autouse=True)
def seeded(monkeypatch, capfd):
    command.captured = capfd
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)


def command(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, " ".join((done.output + "".join(command.captured.readouterr())).split())


def planned(place, *more, columns=COLUMNS, settings=(("evolution", EVOLVED),), **changes):  # noqa: F811
    """Status and output of the command that makes a plan; a changed option that is None is left out."""
    document = {"columns": columns} | {"text": dict(settings)}
    (place / "columns.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    (place / "keys.yaml").write_text(yaml.safe_dump({"participants": {each: public(place / each) for each in NAMES}}))
    pq.write_table(notes(200, seed=1).drop_columns(["person"]), place / "public.parquet")
    options = {
        "schema": place / "columns.yaml",
        "participants": place / "keys.yaml",
        "dataset": "notes",
        "epsilon": 2,
        "delta": 1e-5,
        "expected-units": 400,
        "owners": "person",
        "contributions": 1,
        "minimum": 3,
        "most-records": 10_000,
        "method": "aug_pe",
        "text": "body",
        "about": "short notes",
        "public": place / "public.parquet",
        "public-why": "texts that were made up for tests",
        "out": place / "plan.json",
    } | {key.replace("_", "-"): value for key, value in changes.items()}
    given = [word for key, value in options.items() if value is not None for word in (f"--{key}", value)]
    return command("federate", "plan", *given, *more)


class Heard(Sockets):
    """Sockets that keep all that nodes say."""

    def __init__(self, place):  # noqa: F811
        super().__init__(place)
        self.replies = []

    def ask(self, requests):
        found = super().ask(requests)
        self.replies += found.values()
        return found


def run(place, wires=None, **options):  # noqa: F811
    roster = Roster.from_texts({name: public(place / name) for name in NAMES})
    link = nullcontext(wires or Sockets(place))
    key = federation_key(place / "coordinator")
    return run_federated(read_plan(place / "plan.json"), roster, key, link, place / "out", **options)


def test_a_run_over_sockets_makes_a_table_with_texts_and_its_statement(place):  # noqa: F811
    status, said = planned(place)
    assert status == 0 and "Texts in body, by kind, which vote for candidates." in said, said
    assert "Candidates are texts of the public table public.parquet: they may be released word for word." in said
    assert isinstance(read_plan(place / "plan.json"), TextEvolutionPlan)
    wires = Heard(place)
    with up(place, notes(200, seed=2, mark=MARK), {"columns": COLUMNS}, **by_all()):
        made = run(place, wires, rows=20)
    table = pq.read_table(made.synthetic)
    assert table.num_rows == made.rows == 20 and set(table["kind"].to_pylist()) <= set(COLUMNS["kind"]["values"])
    known = pq.read_table(place / "public.parquet")
    assert set(table["body"].to_pylist()) <= set(known["body"].to_pylist())
    assert wires.replies and not [reply for reply in wires.replies if MARK.encode() in reply]
    of_nodes = [path for name in (*NAMES, "out") for path in (place / name).rglob("*") if path.is_file()]
    assert of_nodes and not [path for path in of_nodes if MARK.encode() in path.read_bytes()]
    assert all([run["state"] for run in node_status(place / name).to_json()["runs"]] == ["spent"] for name in NAMES)
    words = " ".join(made.statement.read_text().split())
    for expected in (
        "1 table of counts and 2 histograms of votes for candidates in 3 rounds",
        "Texts in body, by kind, which vote for candidates.",
        "(foundation: a public table of texts)",
        "no person looked at the texts before they were written",
        "each participant replaces personal data in its own texts",
        "limits what the votes of one unit's texts add to a sum",
        "The texts of the public table public.parquet, among which votes choose: declared public",
        "because: texts that were made up for tests. The sealed plan names the digest",
    ):
        assert expected in words, expected
    document = json.loads((place / "out" / "statement.json").read_text())
    assert document["plan"]["text"] == "body" and document["guarantee"]["epsilon"] <= 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": None}, "--method 'aug_pe' without --text"),
        ({"method": "mst"}, "--method 'mst' with --text; accepted: aug_pe with the column of texts"),
        ({"about": None}, "--about: missing, and method aug_pe writes from public words"),
        ({"public_why": None}, "--public"),
        ({"contributions": None}, "--owners and --contributions go together"),
    ],
)
def test_what_no_federated_plan_of_texts_has(place, changes, words):  # noqa: F811
    status, said = planned(place, **changes)
    assert status == 1 and words in said and not (place / "plan.json").exists(), said


def test_settings_that_a_federated_run_does_not_have_are_refused(place):  # noqa: F811
    chosen = {"evolution": EVOLVED, "resample": {"by": "labels"}}
    status, said = planned(place, settings=chosen)
    assert status == 1 and "without resample" in said, said


def test_a_node_replaces_personal_data_before_features_are_taken(place, monkeypatch):  # noqa: F811
    seen = []

    def watched(bounded, column, where):
        seen.extend(text for batch in read_table(bounded, columns=[column]) for text in batch.column(0).to_pylist())
        return with_features(bounded, column, where)

    monkeypatch.setattr(federated_node, "with_features", watched)
    table = notes(12, seed=3, mark="write to jane.doe@example.com")
    with up(place, table, {"columns": COLUMNS}, **by_all()):
        pass
    assert len(seen) == 12 and not [text for text in seen if "jane.doe@example.com" in text]


def test_features_that_a_node_has_taken_before_are_those_of_the_texts(tmp_path):
    """A record's vote depends on that record alone, whenever its features were computed."""
    bounded, copied = tmp_path / "bounded", tmp_path / "with"
    table = notes(20, seed=4).rename_columns([OWNER_COLUMN, "kind", "body"])
    write_table(bounded, table.schema, table.to_batches())
    kept = with_features(bounded, "body", copied)
    assert table_schema(kept).names == [OWNER_COLUMN, "kind", "body", FEATURES_COLUMN]
    encoder, rows = SentenceEncoder("cpu"), [row for batch in read_table(kept) for row in batch.to_pylist()]
    assert len(rows) == 20
    for row in rows:
        assert np.array_equal(np.array(row[FEATURES_COLUMN], dtype=np.float32), encoder.encode([row["body"]])[0])


def test_texts_that_are_declared_otherwise_at_a_node_are_refused_before_they_cost(place):  # noqa: F811
    assert planned(place)[0] == 0
    columns = COLUMNS | {"body": {"ignore": True}}
    with (
        up(place, notes(40, seed=2), {"columns": columns}, **by_all()) as lines,
        pytest.raises(LedgerError, match="0 participants have reserved"),
    ):
        run(place, rows=5)
    assert all(
        "body is no text here; accepted: a declared text at all participants" in " ".join(said)
        for said in lines.values()
    )
    assert all(node_status(place / name).entries == [] for name in NAMES)


PICTURE = {"type": "image", "size": [4, 4], "channels": 1, "accept_unscrubbed": "the drawings are made up for tests"}


@pytest.mark.parametrize(
    ("schema", "read", "words"),
    [
        (
            {"columns": COLUMNS | {"other": {"type": "text"}}},
            ["other"],
            "names body, other; accepted: one text, or pict",
        ),
        ({"columns": COLUMNS | {"scan": PICTURE}}, [], "names body, pictures; accepted: one text, or pictures"),
        (
            {"columns": COLUMNS, "text": {"evolution": EVOLVED}},
            [],
            "text: at a participant; accepted: none, as the coord",
        ),
    ],
)
def test_a_node_reads_one_text_as_its_policy_names_it(place, schema, read, words):  # noqa: F811
    pq.write_table(notes(40, seed=2), place / "notes.parquet")
    declared = policy(place, "north", **NOTED | {"columns": [*NOTED["columns"], *read]})
    given = {"owners": "person", "report": print, "goes_on": lambda: False}
    with pytest.raises(ContractError, match=words):
        node_up(place / "north", place / "notes.parquet", declared, schema, **given)


def test_a_node_without_texts_does_not_come_up(place):  # noqa: F811
    table = notes(40, seed=2)
    pq.write_table(table.set_column(2, "body", pa.array([" "] * table.num_rows)), place / "none.parquet")
    given = {"owners": "person", "report": print, "goes_on": lambda: False}
    with pytest.raises(SourceError, match="no row has a text in column 'body'"):
        node_up(place / "north", place / "none.parquet", policy(place, "north", **NOTED), {"columns": COLUMNS}, **given)


def test_a_public_table_that_is_guarded_by_now_stops_a_run_before_anybody_is_asked(place, monkeypatch):  # noqa: F811
    assert planned(place)[0] == 0
    monkeypatch.setenv("DPSYNTH_HOME", str(place / "home"))
    monkeypatch.setattr(Settings, "sensitive_places", property(lambda settings: {"restricted zone": place}))
    wires = Heard(place)
    with pytest.raises(ContractError, match=r"the plan's public texts: .* overlap; accepted: a table that is public"):
        run(place, wires, rows=20)
    assert wires.replies == []


def test_candidates_that_were_drawn_at_random_are_the_same_when_a_run_continues(place):  # noqa: F811
    """Votes for the candidates of a round can be heard by a coordinator that was stopped once it had asked for them."""
    assert planned(place)[0] == 0

    class Stopping(Heard):
        def ask(self, requests):
            found = super().ask(requests)
            if len(self.replies) == 4 * (2 + 2 * 5 + 4):  # in the second of three rounds, all have sent their votes
                raise KeyboardInterrupt
            return found

    with up(place, notes(200, seed=2, mark=MARK), {"columns": COLUMNS}, **by_all()):
        with pytest.raises(Interrupted, match="The same command continues this one"):
            run(place, Stopping(place), rows=20)
        (journal,) = (place / "out").rglob("evolution.jsonl")
        begun = journal.read_text().splitlines()
        made = run(place, rows=20)
    assert made.rows == 20 and any('"candidates"' in line for line in begun)
    assert made.took_part.finished == ((*NAMES,),) * 3
    kept = next((place / "out").rglob("evolution.jsonl")).read_text().splitlines()
    assert kept[: len(begun)] == begun
    assert all([run["state"] for run in node_status(place / name).to_json()["runs"]] == ["spent"] for name in NAMES)
