"""Topic models of public phrases and documents: made by the command, refused, in lineage, and used by a contract."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_cases import own
from text_cases import letters_contract
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts.bases import bases_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import survey
from dpsynth_platform.one_table import public_topics
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.file_versions import Files, version_of
from dpsynth_platform.synth.text.sealing import topics_of
from dpsynth_platform.synth.text.topics import load_topics, topic_levels

WHY = "made up for tests, and published"
LETTERS = [f"the doctor saw a {what} in the {where}" for what in ("fever", "cough") for where in ("morning", "night")]
LETTERS += [f"the parcel of the {what} came by {how}" for what in ("shop", "office") for how in ("ship", "train")]
Use = Callable[..., Any]
MATERIAL = {"documents": ("--public", "--text", "body"), "phrases": ("--phrases",)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight public letters, as a table and as lines, and a deployment of its own."""
    pq.write_table(pa.table({"body": LETTERS, "size": range(len(LETTERS))}), tmp_path / "letters.parquet")
    (tmp_path / "letters.txt").write_text("\n".join(LETTERS) + "\n")
    monkeypatch.setattr(public_topics, "TOPIC_LEVELS", (2, 3))
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(tmp_path / "deploy"))
    monkeypatch.setenv("DPSYNTH_DEVICE", "cpu")
    (tmp_path / "deploy/contracts").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def use(place: Path, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command for `out`; all that it prints is the result's `output`, in one line."""

    def call(*arguments: str, out: str = "out", topics: str = "3") -> Any:
        capfd.readouterr()
        result = CliRunner().invoke(app, ["synth", "topics", out, "--topics", topics, *arguments])
        output = " ".join((result.output + "".join(capfd.readouterr())).split())
        return SimpleNamespace(exit_code=result.exit_code, output=output)

    return call


def of_letters(kind: str, file: str | Path | None = None) -> tuple[str, ...]:
    """The options that name a file as public documents or phrases."""
    first, *others = MATERIAL[kind]
    own = {"documents": "letters.parquet", "phrases": "letters.txt"}[kind]
    return (first, str(file or own), *others, "--public-why", WHY)


def written(place: Path, ending: str) -> Path:
    """The letters as a table of another format."""
    file = place / f"letters.{ending}"
    if ending == "csv":
        with file.open("w", newline="") as lines:
            csv.writer(lines).writerows([["body"], *([letter] for letter in LETTERS)])
    else:
        file.write_text("".join(json.dumps({"body": letter}) + "\n" for letter in LETTERS))
    return file


@pytest.mark.parametrize("kind", MATERIAL)
def test_a_topic_model_is_the_same_from_the_same_material(place: Path, use: Use, kind: str) -> None:
    result = use(*of_letters(kind), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output[result.output.index("{") : result.output.index("}") + 1])
    content = (place / "out").read_bytes()
    assert told == {"file": "out", kind: 8, "topics": [2, 3], "sha256": hashlib.sha256(content).hexdigest()}
    assert topic_levels(str(place / "out")) == (2, 3)
    assert WHY.encode() in content and str(place).encode() not in content
    again = use(*of_letters(kind), out="again")
    assert (place / "again").read_bytes() == content and f"up to 3 topics of 8 {kind}" in again.output
    assert "out exists; accepted: the name of a new file" in use(*of_letters(kind)).output
    for said in ("doctor", "parcel"):
        assert said not in again.output


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_documents_of_other_formats_give_the_same_topics(place: Path, use: Use, ending: str) -> None:
    assert use(*of_letters("documents"), topics="2").exit_code == 0
    assert use(*of_letters("documents", written(place, ending)), out="other", topics="2").exit_code == 0
    assert load_topics("out", 2).keywords == load_topics("other", 2).keywords
    keywords = [words.split(", ") for words in load_topics("out", 2).keywords]
    assert sorted(("doctor" in words, "parcel" in words) for words in keywords) == [(False, True), (True, False)]


def test_a_contract_uses_topics_of_documents(place: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is at most what the model has; the plan has its digest, and its keywords are the topics' names."""
    assert use(*of_letters("documents")).exit_code == 0
    generate: dict[str, Any] = {"method": "ctcl", "rows": 12, "training": {"steps": 2}, "base_model": "smollm2-135m"}
    topics = {"model": str(place / "out"), "public": WHY}
    generate["text"] = {"column": "body", "max_tokens": 40, "topics": topics}
    contract = letters_contract({}, generate, privacy={"expected_units": 10**6})
    chosen = topics_of(contract, Guarantee.target(contract))
    assert chosen is not None and chosen.level == 3
    assert chosen.digest == hashlib.sha256((place / "out").read_bytes()).hexdigest()
    assert len(chosen.load().labels) == 4
    assert [base.name for base in bases_of(contract.generate) if base.kind == "topics"] == [str(place / "out")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--public", "letters.parquet", "--text", "letter", "--public-why", WHY), "--text: no column 'letter' in"),
        (("--public", "letters.parquet", "--text", "size", "--public-why", WHY), "has the type int64; accepted: a col"),
        (("--public", "letters.parquet", "--public-why", WHY), "--public and --text go together"),
        (("--text", "body"), "--public and --text go together"),
        (("--public", "letters.parquet", "--text", "body"), "--public-why goes with --phrases or --public"),
        (("--phrases", "letters.txt"), "--public-why goes with --phrases or --public"),
        (("--public-why", WHY), "--public-why goes with --phrases or --public"),
        (("--phrases", "letters.txt", "--public-why", "short"), "why"),
        ((*of_letters("documents"), "--phrases", "letters.txt"), "accepted: one of them"),
        (of_letters("documents", "missing.parquet"), "missing.parquet: there is no such file or directory"),
        (of_letters("phrases", "missing.txt"), "missing.txt: there is no such file or directory"),
        (of_letters("phrases", "letters.parquet"), "letters.parquet: cannot be read (UnicodeDecodeError)"),
        (of_letters("phrases", "deploy/contracts"), "cannot be read (IsADirectoryError)"),
        (of_letters("documents", "letters.txt"), "letters.txt"),
    ],
)
def test_bad_input_is_refused(place: Path, use: Use, arguments: tuple[str, ...], words: str) -> None:
    result = use(*arguments)
    assert result.exit_code != 0 and words in result.output, result.output
    assert not (place / "out").exists()


def test_a_number_of_topics_that_no_contract_names_is_refused(place: Path, use: Use) -> None:
    assert "--topics: 100; accepted: 2, 3" in use(*of_letters("documents"), topics="100").output


def test_empty_and_few_texts_are_refused(place: Path, use: Use) -> None:
    pq.write_table(pa.table({"body": [" ", None]}), place / "empty.parquet")
    assert "column 'body' of empty.parquet has no text" in use(*of_letters("documents", "empty.parquet")).output
    pq.write_table(pa.table({"body": [*LETTERS[:4], LETTERS[0], " ", "7"]}), place / "few.parquet")
    few = use(*of_letters("documents", "few.parquet"))
    assert "4 different documents with words" in few.output
    assert "accepted: at least 6, for 3 topics, or fewer --topics" in few.output
    assert use(*of_letters("documents", "few.parquet"), topics="2").exit_code == 0
    (place / "few.txt").write_text("car\nboat\n\ncar\n")
    few = use(*of_letters("phrases", "few.txt"), out="other")
    assert "2 different phrases; accepted: at least 6, for 3 topics" in few.output


def guarded_by_contract(place: Path, source: Path) -> None:
    form = "json" if source.suffix == ".jsonl" else "parquet" if source.suffix == ".parquet" else "csv"
    contract = f"source: {{uri: {source}, format: {form}, key: [size]}}\n"
    (place / "deploy/contracts/letters.yaml").write_text(contract)


@pytest.mark.parametrize("way", ["itself", "link", "copy"])
@pytest.mark.parametrize("kind", MATERIAL)
def test_the_source_of_a_contract_is_refused(place: Path, use: Use, kind: str, way: str) -> None:
    """Also behind a link, or as a copy of another name."""
    own = of_letters(kind)[1]
    private = place / "private" / own
    private.parent.mkdir()
    shutil.copy(place / own, private)
    guarded_by_contract(place, private)
    given = private
    if way == "link":
        given = place / f"link{private.suffix}"
        given.symlink_to(private)
    elif way == "copy":
        given = shutil.copy(private, place / f"other{private.suffix}")
    result = use(*of_letters(kind, given))
    said = "a copy of one" if way == "copy" else "and the source of dataset letters overlap"
    assert result.exit_code != 0 and said in result.output, result.output
    assert f"the public {kind}: " in result.output and "accepted: a table that is public" in result.output
    assert not (place / "out").exists() and "doctor" not in result.output


def test_a_file_of_a_private_directory_of_json_lines_is_refused(place: Path, use: Use) -> None:
    private = place / "private"
    private.mkdir()
    shutil.copy(written(place, "jsonl"), private / "part-1.jsonl")
    source = f"source: {{uri: {private}, format: json, key: [size]}}\n"
    (place / "deploy/contracts/letters.yaml").write_text(source)
    result = use(*of_letters("documents", written(place, "jsonl")))
    assert result.exit_code != 0 and "has a file of the source of dataset letters, or a copy of one" in result.output


@pytest.mark.parametrize("kind", MATERIAL)
def test_a_file_in_the_restricted_zone_is_refused(place: Path, use: Use, kind: str) -> None:
    own = of_letters(kind)[1]
    inside = Settings.from_environment().restricted / "letters" / own
    inside.parent.mkdir(parents=True)
    shutil.copy(place / own, inside)
    (place / "link").symlink_to(inside)
    for given in (inside, place / "link"):
        result = use(*of_letters(kind, given))
        assert result.exit_code != 0 and "the restricted zone overlap" in result.output, result.output


@pytest.mark.parametrize("kind", MATERIAL)
def test_a_content_that_a_run_has_read_is_refused_when_its_contract_is_gone(place: Path, use: Use, kind: str) -> None:
    file = place / of_letters(kind)[1]
    zone = Settings.from_environment().restricted
    zone.mkdir(parents=True)
    version_of(zone, Files(file, (file,)), register=True)
    copied = shutil.copy(file, place / f"copied{file.suffix}")
    result = use(*of_letters(kind, copied))
    assert result.exit_code != 0 and "has the content of a source that this deployment guards" in result.output
    write_durably(zone / "source-versions.json", "{")  # what cannot be looked up is not taken for public
    assert "source-versions.json" in use(*of_letters(kind, copied)).output and not (place / "out").exists()


@pytest.fixture
def store(place: Path) -> LineageStore:
    url = f"sqlite:///{place / 'home/ledger/ledger.db'}"
    (place / "home/ledger").mkdir(parents=True)
    Ledger(url)
    found = LineageStore(url)
    found.has_own()
    return found


@pytest.mark.parametrize("kind", MATERIAL)
def test_lineage_knows_what_topics_were_made_of(place: Path, use: Use, store: LineageStore, kind: str) -> None:
    assert use(*of_letters(kind)).exit_code == 0
    (base,) = bases_of(
        letters_contract(
            {},
            {
                "method": "ctcl", "rows": 12, "training": {"steps": 2}, "base_model": "smollm2-135m",
                "text": {"column": "body", "max_tokens": 40, "topics": {"model": str(place / "out"), "public": WHY}},
            },
        ).generate
    )[1:2]  # fmt: skip
    assert base.kind == "topics"
    found = survey(store, "/nowhere", [base])
    (known,) = found.bases
    assert known.known_by == "lineage" and not found.unprotected and not found.unknown
    (event,) = store.events()
    said = json.dumps(event.payload)
    assert WHY in said and "doctor" not in said and "parcel" not in said
    (place / "out").rename(place / "first")
    assert use(*of_letters(kind)).exit_code == 0 and len(list(store.events())) == 1  # the same run again
    assert store.record(restricted(place / of_letters(kind)[1])).new  # it turns out later
    assert survey(store, "/nowhere", [base]).unprotected


def restricted(file: Path) -> dict[str, Any]:
    """A report that a file is a restricted output of a step."""
    facets = {"tags": {"tags": [{"key": "zone", "value": "restricted"}]}}
    rows = {"namespace": "file", "name": str(file), "facets": facets}
    return own("COMPLETE", ["visits"], [rows], job="visits.bounded")


@pytest.mark.parametrize("kind", MATERIAL)
def test_what_lineage_guards_is_refused(place: Path, use: Use, store: LineageStore, kind: str) -> None:
    assert store.record(restricted(place / of_letters(kind)[1])).new
    result = use(*of_letters(kind))
    assert result.exit_code != 0 and "made from a guarded table, by lineage" in result.output
    assert not (place / "out").exists()


def test_no_topic_model_is_there_without_its_origin(
    place: Path, use: Use, store: LineageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LineageStore, "record", stopped)
        assert use(*of_letters("documents")).exit_code != 0
    assert not (place / "out").exists()
    assert use(*of_letters("documents")).exit_code == 0 and len(list(store.events())) == 1
