"""The `dpsynth` command: what each prints for people and for programs, and with which status it ends."""

import copy
import json
import os
import re
import runpy
import shutil
import signal
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import typer
import yaml
from frozen import Frozen
from inside import inside
from line_cases import (
    PEOPLE,
    ledger_of,
    line_to_candidate,
    released,
    run_here,
    small_deployment,
    small_table,
    storage_of,
)

from dpsynth_platform.cli import main as cli
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import STEPS
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.operations.operating import Outcome
from dpsynth_platform.reviewing import verification
from dpsynth_platform.synth.planning import load_dataset


def commands(group, *path):
    """Every command with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.fixture
def use(monkeypatch, capfd):
    """Runs a command in this process on a deployment; returns status, standard output and standard error."""

    def dpsynth(deployment, *arguments):
        for name, value in deployment.environment.items():
            if name.startswith("DPSYNTH_"):
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.app(list(map(str, arguments)))
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return dpsynth


def with_other_source(deployment, table):
    """Puts another table in the place of the deployment's source."""
    shutil.rmtree(deployment.settings.home / "sources" / "people")
    deployment.with_source(table)


@pytest.fixture(scope="module")
def kept_candidate(tmp_path_factory):
    """A deployment whose line was run up to its candidate."""
    directory = tmp_path_factory.mktemp("candidate")
    deployment = line_to_candidate(directory / "here")
    return Frozen.of(deployment, deployment.root, directory / "kept")


@pytest.fixture
def candidate(kept_candidate):
    """The same, for this test alone."""
    return kept_candidate.put_back()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A deployment with one release; tests only read it."""
    deployment = line_to_candidate(tmp_path_factory.mktemp("cli"))
    assert released(deployment).is_dir()
    return deployment


def test_the_commands_are_those_that_were_promised():
    promised = {
        ("demo",),
        ("run",),
        ("plan",),
        ("purge",),
        ("notify",),
        ("up",),
        *(("contract", name) for name in ("check", "schema")),
        *(("ledger", name) for name in ("show", "history", "verify")),
        *(("release", name) for name in ("list", "show", "approve", "refuse", "withdraw", "verify")),
    }
    assert promised <= COMMANDS.keys()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(words, tmp_path, use):
    options = {option for parameter in COMMANDS[words].params for option in parameter.opts}
    assert "--json" in options
    for parameter in COMMANDS[words].params:
        assert parameter.help, parameter.name
    status, out, err = use(small_deployment(tmp_path), *words, "--help")
    assert status == 0
    assert "Usage: " in out + err
    assert COMMANDS[words].help.split("\n")[0][:30] in out + err


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["contract", "schema"], {"properties", "required"}),
        (["ledger", "verify"], {"ok", "events", "entries", "problems", "dossiers", "last_at"}),
        (["release", "show", "people"], {"candidate", "guarantee", "verdict", "runners", "approvals"}),
        (["release", "verify", "people"], {"ok", "path", "problems", "key_fingerprint"}),
        (["audit", "show", "people"], {"verdict", "reasons", "attacks", "family", "summary"}),
        (["release", "key"], {"public_key", "fingerprint"}),
        (["plan", "people"], {"claimed", "left", "fits", "noise", "error", "filled"}),
    ],
)
def test_json_is_one_value(published, use, arguments, keys):
    status, out, err = use(published, *arguments, "--json")
    assert (status, err) == (0, "")
    assert keys <= json.loads(out).keys()
    status, out, err = use(published, *arguments)
    assert (status, err) == (0, "")
    assert out.strip()


def test_lists_in_json(published, use):
    _, out, _ = use(published, "ledger", "show", "--json")
    (account,) = json.loads(out)
    (entry,) = account["entries"]
    assert account["family"] == "tests"
    (left,) = account["left"]
    assert left["dataset"] == entry["place"]
    assert 0 < left["epsilon"] < account["cap"]["epsilon"]
    assert left["delta"] == entry["delta"]
    assert entry["state"] == "spent"
    _, out, _ = use(published, "ledger", "history", "--json")
    kinds = [event["kind"] for event in json.loads(out) if event["kind"] != "bound"]
    assert kinds == ["opened", "reserved", "started", "spent", "audited", "candidate", "approved", "released"]
    _, out, _ = use(published, "release", "list", "--json")
    (release,) = json.loads(out)
    assert release["state"] == "published"
    status, out, _ = use(published, "release", "verify", release["id"], "--json")
    assert (status, json.loads(out)["ok"]) == (0, True)


def test_what_is_published_is_shown_so(published, use):
    _, out, _ = use(published, "release", "list", "--json")
    (release,) = json.loads(out)
    _, out, _ = use(published, "release", "show", "people")
    assert "HIST and Pair: similarity" in out
    assert "the contract declares no purpose" in out and "the contract declares no recipients" in out
    assert f"published as release {release['id']}; how it is now: dpsynth release verify {release['id']}" in out
    assert re.search(r"approved by reviewer at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", out), out
    assert json.loads(use(published, "release", "show", "people", "--json")[1])["release"] == release["id"]


def test_a_check_after_ones_own_release_names_what_is_paid(published, use):
    (entry,) = ledger_of(published).entries()
    status, out, err = use(published, "lineage", "check", "--dataset", "people")
    assert (status, err) == (0, "")
    assert "no other mechanism is known that the mechanism would add to" in out
    assert f"Ledger entry {entry.entry_id} (spent) belongs to the run itself: it is charged to the family tests" in out
    assert json.loads(use(published, "lineage", "check", "--dataset", "people", "--json")[1])["entry"] == entry.entry_id


def test_the_ledger_in_words(published, use):
    _, out, _ = use(published, "ledger", "show")
    words = r"like the last one of people would fit with up to about epsilon [0-9.]+ at its own delta 1e-06"
    assert re.search(words, out), out
    assert re.search(r"people +│ 1 +│ 1e-06 │ spent", out), out
    _, out, _ = use(published, "ledger", "history")
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    by = {row[2]: (row[4], row[5]) for row in rows if row[0].isdigit()}
    assert {kind: who for kind, (who, _) in by.items() if who} == {
        "reserved": "runner",
        "started": "runner",
        "spent": "runner",
        "audited": "runner",
        "candidate": "runner",
        "approved": "reviewer",
        "released": "runner",
    }
    assert by["bound"][1].startswith("attached to tests")
    _, out, _ = use(published, "ledger", "verify")
    assert re.fullmatch(
        r"\d+ events and 1 entry, all as written; 1 published dossier leads into this chain; "
        r"last event \d{4}-\d\d-\d\d \d\d:\d\d UTC\n",
        out,
    )


def test_an_approved_raise_must_be_declared(candidate, use):
    """Plan, run and the approval name the file and the key; after that a run costs what it costs."""
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    assert use(candidate, "ledger", "raise", "tests", "--epsilon", "5", "--delta", "1e-5", "--reason", "a wave")[0] == 0
    asked = ledger_of(candidate).head().sequence
    _, shown, _ = use(candidate, "ledger", "show")
    assert f"event {asked}: runner asks for 2.5 -> 5, delta 1e-05 (a wave)" in shown
    _, out, _ = use(candidate, "ledger", "approve-raise", "tests", asked, "--as", "Bo")
    file = candidate.settings.families / "tests.yaml"
    assert f"runs are refused until {file} declares: cap: {{epsilon: 5.0, delta: 1e-05}}" in out
    assert "asks for" not in use(candidate, "ledger", "show")[1]
    differs = f"raised to epsilon 5, delta 1e-05 (event {asked + 1}); declare cap.epsilon: 5.0 in families/tests.yaml"
    status, _, err = use(candidate, "contract", "check", "people")
    assert (status, differs in err) == (1, True)
    answer = json.loads(use(candidate, "contract", "check", "--json")[1])
    assert differs in answer["faults"]["people"]
    assert use(candidate, "contract", "check", "people", "--offline")[0] == 0
    status, out, _ = use(candidate, "plan", "people")
    assert (status, "would be blocked" in out, "would spend nothing" in out) == (3, True, False)
    forecast = json.loads(use(candidate, "plan", "people", "--json")[1])
    assert (forecast["cap"]["epsilon"], forecast["fits"], differs in forecast["refusal"]) == (5, False, True)
    again = run_here(candidate, accelerator=inside(candidate))
    assert differs in again.failures["raw"]
    candidate.family["cap"]["epsilon"] = 5.0
    candidate.write()
    forecast = json.loads(use(candidate, "plan", "people", "--json")[1])
    assert (forecast["fits"], forecast["refusal"]) == (True, None)
    assert forecast["standing"] is not None


def test_a_list_without_releases_says_so(tmp_path, use):
    deployment = small_deployment(tmp_path)
    status, out, _ = use(deployment, "release", "list")
    assert (status, "No candidate waits for a decision, and nothing is published" in out) == (0, True)
    assert json.loads(use(deployment, "release", "list", "--json")[1]) == []
    assert not (deployment.settings.home / "ledger").exists()


def test_the_key_is_shown_and_never_made(tmp_path, use):
    deployment = small_deployment(tmp_path)
    status, out, err = use(deployment, "release", "key")
    assert (status, out) == (1, "")
    assert f"DPSYNTH_HOME: {deployment.settings.home} holds no signing key" in err
    assert "dpsynth run DATASET" in err
    assert not deployment.settings.vault.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nobody"], "contract", "dataset 'nobody' has no contract"),
        (["plan", "nobody"], "contract", "dataset 'nobody' has no contract"),
        (["run", "people", "--period", "2026-01"], "configuration", "has no cadence"),
        (["contract", "check", "/nowhere.yaml"], "contract", "/nowhere.yaml"),
        (["release", "verify", "nothing"], "verification", "nothing"),
        (["release", "show", "people", "--period", "2026-01"], "release", "nothing was run yet"),
        (["release", "approve", "people", "--as", "runner"], "release", "public already, as release people-"),
        (
            ["release", "refuse", "people", "--as", "Bo", "--reason", "why"],
            "release",
            "dpsynth release withdraw people-",
        ),
        (["release", "approve", "people", "--as", ""], "configuration", "--as: '' is empty"),
        (
            ["release", "approve", "people", "--as", "Bo", "--reason", "a\nb"],
            "configuration",
            "--reason: 'a\\nb' contains",
        ),
        (
            ["release", "refuse", "people", "--as", "B\x1b[2J", "--reason", "why"],
            "configuration",
            "--as: 'B\\x1b[2J' contains",
        ),
        (["release", "refuse", "people", "--as", "Bo", "--reason", " "], "configuration", "--reason: ' ' is empty"),
        (
            ["release", "withdraw", "people", "--reason", "why"],
            "verification",
            "no publication of this release; accepted",
        ),
        (
            ["release", "withdraw", "people-0", "--as", "Bo", "--reason", ""],
            "configuration",
            "--reason: '' is empty",
        ),
        (["notify"], "configuration", "name one in DPSYNTH_NOTIFY"),
        (
            ["release", "verify", "people", "--public-key", "/nowhere.pem"],
            "verification",
            "/nowhere.pem: the key cannot be read: there is no such file",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_clear_in_both_forms(published, use, arguments, code, words):
    before = ledger_of(published).history()
    status, out, err = use(published, *arguments)
    assert status == 1
    assert words in err
    assert "Traceback" not in out + err
    status, out, err = use(published, *arguments, "--json")
    assert (status, err) == (1, "")
    error = json.loads(out)["error"]
    assert error["code"] == code
    assert words in error["message"]
    assert ledger_of(published).history() == before


def test_wrong_usage_has_a_status_of_its_own(published, use):
    assert use(published, "run")[0] == 2
    assert use(published, "nonsense")[0] == 2
    assert use(published, "plan", "people", "--rehearse", "--mock-rows", "0")[0] == 2
    status, _, err = use(published, "plan", "people", "--mock-rows", "5")
    assert status == 1 and "accepted: together with --rehearse" in err


def test_releases_are_verified_together_and_against_an_export_of_the_ledger(published, use, tmp_path):
    release = next((published.settings.home / "public" / "people").glob("people-*"))
    status, out, err = use(published, "release", "verify", "people", release, "--json")
    assert status == 0, err
    assert [report["ok"] for report in json.loads(out)] == [True, True]
    assert {report["ledger_head"]["hash"] for report in json.loads(out)} == {json.loads(out)[0]["ledger_head"]["hash"]}

    export = tmp_path / "export.json"
    assert use(published, "ledger", "export", export)[0] == 0
    status, out, err = use(published, "release", "verify", release, "--ledger", export)
    assert (status, "verified; " in out) == (0, True), err
    document = json.loads(export.read_text())
    export.write_text(json.dumps(document | {"events": document["events"][:2]}))
    status, out, err = use(published, "release", "verify", release, "--ledger", export)
    assert status == 1
    assert "chain-head failure" in err
    assert "the chain in export.json ends at 2" in err
    status, out, err = use(published, "release", "verify", release, "--ledger", tmp_path / "none.json")
    assert (status, "no such file" in err) == (1, True)


def test_a_damaged_release_does_not_verify(candidate, use):
    release = released(candidate)
    assert use(candidate, "release", "verify", release)[0] == 0
    (release / "dossier.json").write_text((release / "dossier.json").read_text().replace("people", "peopel", 1))
    status, out, err = use(candidate, "release", "verify", release)
    assert status == 1
    assert "dossier.json" in err
    status, out, err = use(candidate, "release", "verify", release, "--json")
    assert status == 1
    report = json.loads(out)
    assert report["ok"] is False
    assert report["failures"] == ["hash"]
    assert "dossier.json" in {problem["file"] for problem in report["problems"]}


def test_contract_check_names_what_is_wrong(tmp_path, use):
    deployment = small_deployment(tmp_path)
    contract = deployment.settings.contracts / "people.yaml"
    status, out, _ = use(deployment, "contract", "check", contract, "--json")
    assert (status, json.loads(out)["valid"]) == (0, True)
    assert (json.loads(out)["method"], json.loads(out)["why_method"]) == ("mst", "it is declared")
    document = yaml.safe_load(contract.read_text())
    document["audit"] = {"canaries": 20}
    contract.write_text(yaml.safe_dump(document))
    assert "audit: 20 canaries can show at most" in use(deployment, "contract", "check", contract)[1]
    document["audit"]["accept_inconclusive"] = "a trial"
    contract.write_text(yaml.safe_dump(document))
    assert "audit: " not in use(deployment, "contract", "check", contract)[1]
    document["privacy"]["guarantee"]["epsilon"] = -1
    contract.write_text(yaml.safe_dump(document))
    status, _, err = use(deployment, "contract", "check", contract)
    assert status == 1
    assert "privacy.guarantee.epsilon" in err
    assert "-1" in err


def test_contract_check_and_plan_say_what_the_public_table_holds(tmp_path, use):
    deployment = small_deployment(tmp_path)
    contract = deployment.settings.contracts / "people.yaml"
    document = yaml.safe_load(contract.read_text())
    names = [name for name, column in document["columns"].items() if column["type"] == "integer"]
    names += [name for name, column in document["columns"].items() if column["type"] == "categorical"]
    place = tmp_path / "public.csv"
    listed = document["columns"][names[1]]["values"][0]
    place.write_text(f"{','.join(names[:2])}\n1,{listed}\n" + "1,nobody lists this\n" * 2)
    document["generate"] = {
        "method": "jam",
        "rows": 100,
        "public": {"uri": str(place), "why": "made up, and published"},
    }
    contract.write_text(yaml.safe_dump(document))
    status, out, err = use(deployment, "contract", "check", "people")
    words = f"3 rows with {', '.join(sorted(names[:2]))}; missing or unlisted values: "
    assert status == 0 and f"public table: {words}" in out, err
    found = json.loads(use(deployment, "contract", "check", "people", "--json")[1])["public"]
    assert found["rows"] == 3 and found["unlisted"][names[1]] == 2
    assert json.loads(use(deployment, "plan", "people", "--json")[1])["public"] == found
    place.write_text(f"{','.join(names[:2])}\n" + "1,nobody lists this\n" * 3)
    for command in (("contract", "check"), ("plan",)):
        status, _, err = use(deployment, *command, "people")
        assert status == 1 and f"no value of {names[1]} is a listed" in err
    place.unlink()
    status, _, err = use(deployment, "contract", "check", "people")
    assert (status, f"public table {place}: there is no" in err) == (1, True)
    assert use(deployment, "contract", "check", "people", "--offline")[0] == 0


def test_contract_check_compares_with_the_source(tmp_path, use):
    deployment = small_deployment(tmp_path)
    contract = deployment.settings.contracts / "people.yaml"
    status, out, _ = use(deployment, "contract", "check", "people")
    assert status == 0 and "source: its columns are as declared" in out
    document = yaml.safe_load(contract.read_text())
    (numeric,) = (name for name, column in document["columns"].items() if column["type"] == "integer")
    changed = copy.deepcopy(document)
    changed["columns"]["height"] = {"type": "integer", "min": 0, "max": 9}
    changed["columns"][numeric] = {"type": "date", "min": "2020-01-01", "max": "2020-12-31"}
    contract.write_text(yaml.safe_dump(changed))
    status, _, err = use(deployment, "contract", "check", "people")
    assert status == 1
    assert "'height' (integer) is declared, but not in the source" in err
    assert f"columns.{numeric}: declared date, found Arrow type" in err
    status, out, _ = use(deployment, "contract", "check", "people", "--offline")
    assert status == 0 and "source: not compared" in out and "not asked for" in out
    for one in (("people",), ()):
        answer = json.loads(use(deployment, "contract", "check", *one, "--offline", "--json")[1])
        (answer,) = answer.get("contracts", [answer])
        assert answer["valid"] and answer["source_not_compared"] == "not asked for"
    contract.write_text(yaml.safe_dump(document))
    source = deployment.settings.home / "sources" / "people"
    source.rename(tmp_path / "elsewhere")
    source.mkdir()
    status, _, err = use(deployment, "contract", "check", "people")
    assert status == 1 and "there is no Delta table at this place" in err, "what is there is none"
    source.rmdir()
    status, out, _ = use(deployment, "contract", "check", "people")
    assert status == 0 and "source: not compared" in out and "there is no Delta table at this place" in out
    answer = json.loads(use(deployment, "contract", "check", "people", "--json")[1])
    assert answer["valid"] and "no Delta table" in answer["source_not_compared"]
    assert answer["account_not_compared"] is None
    directory = deployment.settings.home / "ledger"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "ledger.db").write_text("no database")
    status, out, _ = use(deployment, "contract", "check", "people")
    assert status == 0 and "account of the family: not compared: " in out


def test_contract_check_goes_on_where_the_account_cannot_be_read(tmp_path, use):
    deployment = small_deployment(tmp_path)
    (deployment.settings.home / "ledger").mkdir(mode=0o700)
    Ledger(deployment.settings.ledger_url)
    with sqlite3.connect(deployment.settings.home / "ledger" / "ledger.db") as database:
        database.execute("DROP TABLE account")
    status, out, _ = use(deployment, "contract", "check", "people")
    assert status == 0 and "account of the family: not compared: the ledger's tables are missing" in out


def test_contract_check_does_not_show_a_password_in_place_of_a_name(tmp_path, use):
    deployment = small_deployment(tmp_path)
    contract = deployment.settings.contracts / "people.yaml"
    contract.write_text(yaml.safe_dump(yaml.safe_load(contract.read_text()) | {"dataset": "sftp://me:hunter2@host/a"}))
    status, out, err = use(deployment, "contract", "check", "people")
    assert status == 1 and "accepted: 'people', as the file is named" in err and "hunter2" not in out + err


def test_contract_check_looks_at_every_contract(tmp_path, use):
    deployment = small_deployment(tmp_path)
    good = deployment.settings.contracts / "people.yaml"
    document = yaml.safe_load(good.read_text()) | {"dataset": "others"}
    good.with_name("others.yaml").write_text(yaml.safe_dump(document | {"family": "nobody"}))
    status, out, err = use(deployment, "contract", "check")
    assert status == 1 and f"{good}: valid" in out and "others failed: " in err and "nobody" in err
    answer = json.loads(use(deployment, "contract", "check", "--json")[1])
    assert ([item["dataset"] for item in answer["contracts"]], list(answer["faults"])) == (["people"], ["others"])


def test_contract_check_names_all_faults_at_once(tmp_path, use):
    """Whatever kind they are of: keys, values, references between parts, the family, the file's name."""
    deployment = small_deployment(tmp_path)
    document = copy.deepcopy(deployment.contract)
    document |= {"dataset": "persons", "generate": {"method": "mst", "row": 0}, "release": {"uri": "${NOWHERE}/a"}}
    document["source"]["key"] = ["person", "visitt"]
    document["columns"]["score"]["max"] = -1
    document["quality"]["target"] = "person"
    del document["description"]
    document["privacy"].update(unit="group", namespace="customer", expected_units=2_000_000)
    document["privacy"]["guarantee"]["epsilon"] = 9
    contract = deployment.settings.contracts / "people.yaml"
    contract.write_text(yaml.safe_dump(document))
    status, _, err = use(deployment, "contract", "check", contract)
    assert status == 1
    lines = err.splitlines()
    assert all(line.startswith(f"{contract}: ") for line in lines)
    for words in (
        "${NOWHERE} is not known; accepted: DPSYNTH_HOME",
        "generate.row: unknown key (did you mean 'rows'?)",
        "generate.rows: 0; accepted: auto, or a number",
        "description: missing; it is required",
        "columns.score: min 0 is not below max -1",
        "source.key: column 'visitt' is not declared",
        "quality.target: column 'person' is not modelled",
        "privacy.guarantee.delta: 1e-06 exceeds 1/expected_units",
        "dataset: 'persons'; accepted: 'people'",
    ):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 9
    document["privacy"]["expected_units"] = 3000
    contract.write_text(yaml.safe_dump(document))
    lines = use(deployment, "contract", "check", contract)[2].splitlines()
    for words in (
        "privacy.unit: 'group' differs from the family's 'user'",
        "privacy.namespace: 'customer' differs from the family's 'person'",
        "privacy.guarantee.epsilon: 9 alone exceeds the cap of family tests; accepted: at most 2.5",
    ):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 8 + 3
    document["family"] = "nobody"
    contract.write_text(yaml.safe_dump(document))
    lines = use(deployment, "contract", "check", contract)[2].splitlines()
    assert sum("family: 'nobody' has no file in" in line for line in lines) == 1
    assert len(lines) == 8 + 1


def test_contract_check_names_what_planning_would_find_beside_other_faults(tmp_path, use):
    deployment = small_deployment(tmp_path)
    document = deployment.contract | {"owners": [], "release": {"uri": "${DPSYNTH_HOME}/restricted/out"}}
    document["generate"]["workload"] = {"target": "nothing", "weights": {"person": 2}}
    contract = deployment.settings.contracts / "people.yaml"
    contract.write_text(yaml.safe_dump(document))
    lines = use(deployment, "contract", "check", contract)[2].splitlines()
    for words in (
        "owners: a list; accepted: at least 1 item",
        "generate.workload.target: 'nothing' is no modelled column",
        "generate.workload.weights: 'person' is no modelled column",
        "and the restricted zone overlap; accepted: a separate directory",
    ):
        assert sum(words in line for line in lines) == 1, (words, lines)


@pytest.mark.parametrize(
    ("source", "overlap"),
    [
        ({"uri": "${DPSYNTH_HOME}/restricted/other/all/extract", "format": "csv"}, "restricted zone"),
        ({"uri": "file://${DPSYNTH_HOME}/restricted/other", "format": "parquet"}, "restricted zone"),
        ({"uri": "${DPSYNTH_HOME}", "format": "csv"}, "restricted zone"),
        ({"uri": "${DPSYNTH_HOME}/link", "format": "json"}, "restricted zone"),
        ({"uri": "sqlite:///${DPSYNTH_HOME}/ledger/ledger.db", "format": "sql", "table": "entries"}, "ledger"),
        ({"uri": "sqlite:///file:${DPSYNTH_HOME}/vault/x.db?mode=ro&uri=true", "format": "sql", "table": "t"}, "vault"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_no_source_is_among_the_platforms_own_files(tmp_path, use, source, overlap):
    """Another dataset's rows would be read under a budget that is not theirs."""
    deployment = small_deployment(tmp_path)
    (deployment.settings.home / "link").symlink_to(deployment.settings.restricted)
    deployment.contract["source"] = source | {"key": ["visit"]}
    deployment.write()
    status, _, said = use(deployment, "contract", "check", "people")
    assert status == 1 and f"and the {overlap} overlap; accepted: a separate place" in said
    assert use(deployment, "plan", "people")[0] == 1


@pytest.mark.parametrize("place", ["restricted/other/all/scrubbed", "link", "vault/fonts"])
def test_nothing_public_is_among_the_platforms_own_files(tmp_path, use, place):
    """Lineage does not know the rows of a step that failed."""
    deployment = small_deployment(tmp_path)
    home = deployment.settings.home
    (home / "link").symlink_to(deployment.settings.restricted)
    evolution = {"foundation": "fonts", "fonts": {"directory": f"{home}/{place}"}}
    deployment.contract["generate"] = {"method": "image_pe", "rows": 10, "image": {"evolution": evolution}}
    deployment.write()
    status, _, said = use(deployment, "contract", "check", "people")
    assert status == 1 and "generate: public fonts: " in said and "overlap; accepted: a separate place" in said


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg://other@Database/ledger?sslmode=require",
        "postgresql://me@x:1/ledger?host=database&port=5432",
    ],
)
def test_no_source_is_the_ledgers_database(tmp_path, uri):
    """How many were left out in silence would show in the number of its rows."""
    deployment = small_deployment(tmp_path)
    settings = replace(deployment.settings, ledger_url="postgresql+psycopg://dpsynth:geheim@database:5432/ledger")
    deployment.contract["source"] = {"uri": uri, "format": "sql", "query": "SELECT 1 AS person", "key": ["visit"]}
    deployment.write()
    with pytest.raises(ContractError, match=r"source\.uri: it is the ledger's database; accepted: another one"):
        load_dataset(settings, "people")
    deployment.contract["source"]["uri"] = uri.replace("/ledger", "/clinic")
    deployment.write()
    assert load_dataset(settings, "people")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"format": "postgresql", "uri": "postgresql://me@database/ledger", "table": "open"}, "it is the ledger's"),
        ({"format": "iceberg", "uri": "postgresql://me@database/ledger", "table": "a.b"}, "it is the ledger's"),
        ({"format": "iceberg", "uri": "sqlite:///${DPSYNTH_HOME}/vault/x.db", "table": "a.b"}, "and the vault overlap"),
    ],
)
def test_no_target_is_among_the_platforms_own_files(tmp_path, target, why):
    deployment = small_deployment(tmp_path)
    settings = replace(deployment.settings, ledger_url="postgresql+psycopg://dpsynth:geheim@database:5432/ledger")
    deployment.contract["release"]["publish"] = target
    deployment.write()
    with pytest.raises(ContractError, match=rf"release\.publish\.0\.uri: .*{why}.*; accepted: "):
        load_dataset(settings, "people")


def test_the_contracts_that_come_along_are_valid(tmp_path, use):
    deployment = small_deployment(tmp_path)
    for family in (PACKAGE_ROOT / "deploy" / "families").glob("*.yaml"):
        (deployment.settings.families / family.name).write_bytes(family.read_bytes())
    for contract in (PACKAGE_ROOT / "deploy" / "contracts").glob("*.yaml"):
        assert use(deployment, "contract", "check", contract)[0] == 0


def test_plan_tries_the_line_and_costs_nothing(tmp_path):
    """Before the first run, too: there is no account yet, and none is opened."""
    deployment = small_deployment(tmp_path)
    source = deployment.settings.home / "sources"
    source.rename(tmp_path / "elsewhere")  # a plan needs no source
    forecast = deployment.json("plan", "people", "--rehearse", "--mock-rows", "300")
    assert forecast["fits"]
    assert forecast["rehearsal"] == {"rows": 300, "success": True}
    assert 0.9 < forecast["claimed"] <= 1.0
    assert ledger_of(deployment).history() == []
    assert storage_of(deployment).places() == []
    assert not (deployment.settings.home / "vault").exists()


def test_plan_says_that_a_run_would_be_blocked(tmp_path, use):
    deployment = small_deployment(tmp_path)
    deployment.family["cap"]["epsilon"] = 0.9
    deployment.write()
    status, out, _ = use(deployment, "plan", "people", "--json")
    assert status == 3
    assert json.loads(out)["fits"] is False
    status, out, _ = use(deployment, "plan", "people")
    assert status == 3
    assert "would be blocked" in out
    assert ledger_of(deployment).history() == []


def test_plan_needs_no_knowledge_of_the_field(published, use):
    _, out, _ = use(published, "plan", "people")
    told = out[: out.index("for experts")]
    assert "each user, with at most 2 records used" in told
    assert "noise in counts of one column, by this plan" in told
    assert "each count is off by about" in told
    for jargon in ("sigma", "rho", "marginal", "Renyi", "privacy loss", "exponential", "add-or-remove", "Gaussian"):
        assert jargon not in told
    assert "sigma one" in out and "add-or-remove" in out


def test_plan_says_when_an_edited_contract_would_pay_a_second_time(tmp_path, use):
    deployment = small_deployment(tmp_path)
    first = copy.deepcopy(deployment.contract)

    def plan(**privacy):
        deployment.contract = copy.deepcopy(first)
        deployment.contract["privacy"].update(privacy)
        deployment.write()
        forecast = json.loads(use(deployment, "plan", "people", "--json")[1])
        return forecast["standing"], forecast["paid_before"], forecast["changed"]

    assert plan() == (None, None, [])
    assert run_here(deployment, accelerator=inside(deployment)).success
    (paid,) = (entry.entry_id for entry in ledger_of(deployment).entries())
    assert plan() == (paid, None, [])
    assert plan(expected_units=4000, max_contributions=1) == (
        None,
        paid,
        ["privacy.max_contributions", "privacy.expected_units"],
    )
    _, out, _ = use(deployment, "plan", "people")
    assert f"ledger entry {paid} has paid for a model already" in " ".join(re.sub("│", " ", out).split())
    # Once raw has sealed the edit, what changed is not known any more; that it would pay twice is.
    assert run_here(deployment, steps=["raw"]).success
    assert plan(expected_units=4000, max_contributions=1) == (None, paid, [])
    assert plan() == (paid, None, []), "with the edit undone, the paid model is used"


def test_plan_after_a_run_knows_what_is_left(published, use):
    before = ledger_of(published).history()
    _, out, _ = use(published, "plan", "people", "--json")
    assert 0 < json.loads(out)["left"] < json.loads(out)["cap"]["epsilon"]
    assert ledger_of(published).history() == before


def test_plan_has_one_number_for_what_is_left(tmp_path, use):
    """At the contract's own delta, for a release of its kind: the one by which a larger one is refused."""
    deployment = small_deployment(tmp_path)
    assert run_here(deployment, accelerator=inside(deployment)).success

    def plan(epsilon):
        deployment.contract["privacy"]["guarantee"]["epsilon"] = epsilon
        deployment.write()
        return json.loads(use(deployment, "plan", "people", "--json")[1])

    cap = plan(1.0)["cap"]["epsilon"]
    refused = plan(cap)
    assert not refused["fits"] and f"epsilon left at this delta: {refused['left']:g}." in refused["refusal"]
    _, shown, _ = use(deployment, "plan", "people")
    assert f"like this one would fit with up to about epsilon {refused['left']:g} at its own delta" in " ".join(
        re.sub("│", " ", shown).split()
    )
    # What is left holds: that much is admitted, and clearly more is not.
    assert plan(refused["left"])["fits"] and not plan(refused["left"] * 1.1)["fits"]


def test_a_run_stops_where_it_is_told_and_a_bound_can_be_learned(tmp_path, use):
    deployment = small_deployment(tmp_path)
    status, _, err = use(deployment, "run", "people", "--up-to", "released")
    assert (status, "--up-to 'released'; accepted: raw, scrubbed, canaries" in err) == (1, True)
    status, _, err = use(deployment, "run", "people", "--up-to", "scrubbed", "--spend-again", "0" * 32)
    assert (status, "--up-to scrubbed ends before the step that reads --spend-again" in err) == (1, True)
    table = small_table()
    people = [None if row < 12 else person for row, person in enumerate(table.column("person").to_pylist())]
    with_other_source(deployment, table.set_column(0, "person", pa.array(people, pa.string())))
    done = deployment.dpsynth("run", "people", "--up-to", "scrubbed")
    assert done.returncode == 0, done.stderr
    assert "people/scrubbed exists; nothing new was spent or reserved" in done.stdout
    for words in ("rows +│ 1488", "owners +│ 992", "rows read +│ 1500", "rows without owner +│ 12"):
        assert re.search(rf"scrubbed │ {words}\b", done.stdout), done.stdout
    storage = storage_of(deployment)
    assert [step for step in STEPS if storage.read(PEOPLE, step)] == ["raw", "scrubbed"]
    assert ledger_of(deployment).entries() == []
    for option, value in [("epsilon", "0"), ("epsilon", "nan"), ("at-most", "0"), ("quantile", "1.5")]:
        asked = {"epsilon": "0.2", option: value}
        words = [word for name, given in asked.items() for word in (f"--{name}", given)]
        status, _, err = use(deployment, "bound", "learn", "people", *words)
        assert (status, f"--{option} {value}; accepted: " in err) == (1, True), err
    status, out, err = use(deployment, "bound", "learn", "people", "--epsilon", "0.2")
    assert (status, "max_contributions: " in out) == (0, True), err
    assert re.search(r"people +│ 0.2 .*│ a learned bound", use(deployment, "ledger", "show")[1])
    status, _, err = use(deployment, "bound", "learn", "people", "--epsilon", "30")
    assert (status, "Lower --epsilon to about" in err) == (3, True), err
    events = map(json.loads, deployment.settings.lineage_file.read_text().splitlines())
    learned = [event for event in events if event["job"]["name"] == "people.learned-bound"]
    assert [event["eventType"] for event in learned] == ["START", "COMPLETE", "START", "FAIL"]


def test_what_steps_counted_is_a_row_for_each_number():
    report = {
        "rows_read": 20,
        "rows_without_owner": 3,
        "texts": {"remark": 17},
        "findings": {"remark": {"PERSON": 12, "UNREAD": "fewer than 10"}, "note": {}},
        "actions": {"remark": "replace"},
        "damaged": {},
        "limits": "Best effort.",
    }
    facts = {
        "scrubbed": {"rows": 17, "reused": False, "owners": 9, "scrubbing report": report},
        "bounded": {"rows": "restricted", "reused": True, "repeated_keys": 2},
    }
    outcome = Outcome("people", None, facts=facts)
    assert outcome.to_json()["facts"] == facts
    assert outcome.facts_rows() == [
        ("scrubbed", "rows", "17"),
        ("scrubbed", "owners", "9"),
        ("scrubbed", "rows read", "20"),
        ("scrubbed", "rows without owner", "3"),
        ("scrubbed", "texts", "remark 17"),
        ("scrubbed", "findings: remark", "PERSON 12, UNREAD fewer than 10"),
        ("scrubbed", "findings: note", "none"),
        ("scrubbed", "damaged", "none"),
        ("bounded", "rows", "restricted"),
        ("bounded", "existed already", "the run that made it shows its other counts"),
        ("bounded", "repeated keys", "2"),
    ]


@pytest.mark.parametrize("mode", ["family", "per-owner"])
def test_a_run_tells_what_the_asset_pages_tell_and_no_more(tmp_path, mode):
    """Per owner, what bounding kept would tell how many were left out."""
    deployment = small_deployment(tmp_path)
    deployment.family["mode"] = mode
    deployment.write()
    table = small_table()
    visits = [None if row < 2 else visit for row, visit in enumerate(table.column("visit").to_pylist())]
    table = table.set_column(1, "visit", pa.array(visits, pa.int64()))  # null is a value of a key, twice of one person
    with_other_source(deployment, pa.concat_tables([table, table.slice(0, 7)]))
    facts = deployment.json("run", "people", "--up-to", "bounded")["facts"]
    assert facts["scrubbed"]["scrubbing report"]["rows_read"] == 1507
    bounded = facts["bounded"]
    assert (bounded["repeated_keys"], bounded["reused"]) == (8, False)
    if mode == "per-owner":
        assert bounded == {"rows": "restricted", "reused": False, "repeated_keys": 8, "max_contributions": 2}
    else:
        assert bounded["rows_before"] == 1507
        people = len(set(table.column("person").to_pylist()))
        assert bounded["owners"] + bounded["owners_held_out"] == people == facts["scrubbed"]["owners"]
        assert 0 < bounded["owners"] < bounded["rows"] <= 1507 + bounded["canary_rows"]


def test_a_bound_is_not_learned_before_there_are_rows(tmp_path, use):
    deployment = small_deployment(tmp_path)
    ran = run_here(deployment, steps=["raw"])
    assert ran.success, ran.failures
    status, _, err = use(deployment, "bound", "learn", "people", "--epsilon", "0.2")
    assert (status, "make it with: dpsynth run people --up-to scrubbed" in err) == (1, True)


def test_purge_says_first_and_does_then(candidate, use):
    storage = storage_of(candidate)
    bounded = storage.require(PEOPLE, "bounded").directory
    assert json.loads(use(candidate, "purge", "--dry-run", "--json")[1]) == {
        "deleted": [],
        "on_hold": [],
        "failed": {},
    }
    for path in [bounded, *bounded.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    (due,) = json.loads(use(candidate, "purge", "--dry-run", "--json")[1])["deleted"]
    assert (due["dataset"], due["step"], due["reason"]) == ("people", "bounded", "expired")
    assert bounded.is_dir()
    assert "would be deleted" in use(candidate, "purge", "--dry-run")[1]
    assert ledger_of(candidate).history(kinds=["purged"]) == []
    assert use(candidate, "purge")[0] == 0
    assert not bounded.exists()
    assert storage.require(PEOPLE, "model").directory.is_dir()
    (event,) = ledger_of(candidate).history(kinds=["purged"])
    assert event.payload["step"] == "bounded"
    assert verification.verify_ledger(candidate.settings).ok


def test_refusing_is_recorded_with_its_reason(candidate, use):
    assert "refused by" not in use(candidate, "release", "show", "people")[1]
    status, out, err = use(
        candidate, "release", "refuse", "people", "--as", "reviewer", "--reason", "too few rows", "--json"
    )
    assert status == 0, err
    assert json.loads(out)["by"] == "reviewer"
    status, out, _ = use(candidate, "release", "show", "people")
    assert status == 0
    assert "refused by reviewer" in out
    assert use(candidate, "release", "refuse", "people", "--as", "reviewer")[0] == 2


def test_up_starts_dagster_on_this_deployment(tmp_path, use, monkeypatch):
    deployment = small_deployment(tmp_path)
    started = []

    def execute(module, **_):
        started.append((module, sys.argv, os.environ["DAGSTER_HOME"]))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "or SIGTERM would be ignored, too"
        raise SystemExit(0)

    for name in ("DAGSTER_HOME", "DPSYNTH_LEDGER_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "argv", ["dpsynth"])
    monkeypatch.setattr(runpy, "run_module", execute)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script's background
    try:
        status, out, _ = use(deployment, "up", "--port", "3999", "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 0
    assert json.loads(out)["url"] == "http://127.0.0.1:3999"
    ((module, arguments, home),) = started
    assert (module, arguments[1]) == ("dagster", "dev")
    assert "dpsynth_platform.definitions" in arguments
    assert Path(home) == deployment.settings.dagster_home
    assert (Path(home) / "dagster.yaml").read_bytes() == (deployment.settings.deploy / "dagster.yaml").read_bytes()


def test_a_demonstration_source_by_itself(tmp_path, use):
    deployment = small_deployment(tmp_path)
    status, out, err = use(deployment, "demo", "--source", "visits", "--json")
    assert status == 0, err
    assert Path(json.loads(out)["source"]) == deployment.settings.home / "sources" / "visits"
    assert (deployment.settings.home / "sources" / "visits" / "_delta_log").is_dir()
