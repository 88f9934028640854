"""Public texts as candidates of a private evolution: sealed, chosen by votes, released word for word, or varied."""

import json
import os
import random
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from endpoint_cases import TEXTS, serving
from text_cases import bounded_table, fitted, letters_contract

from dpsynth_platform.contracts.bases import PublicBase
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianVotesEvent, event_from_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.evolution.journal import FILE_NAME
from dpsynth_platform.synth.interface import Checkpoints, SealedPlan, generator
from dpsynth_platform.synth.text import evolution
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.lost_votes import lost_votes_of
from dpsynth_platform.synth.text.public_candidates import PublicCandidates
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.sealing import started_from

GENERATOR = generator("aug_pe")
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("kind", pa.string()), ("body", pa.string())])
SECRET, WHY = "zanzibar", "letters that we wrote and published ourselves"
KINDS = ("mail", "note")
POOL = [
    {"kind": kind, "body": f"{text}, public {number}"} for kind in KINDS for text in TEXTS[kind] for number in range(30)
]
NO_MODEL = {"ways": ["retrieve"]}


class Letters:
    """An encoder that knows how often some letters stand in a text."""

    def __init__(self, device="cpu"):
        self.letters = "abcdefghiklmnoprstuwy"

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in self.letters] for text in texts], dtype=np.float32)
        return counts.reshape(len(texts), -1) / np.maximum(np.linalg.norm(counts, axis=-1, keepdims=True), 1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.synth.endpoint_calls.FIRST_WAIT", 0.01)
    monkeypatch.setattr(evolution, "SentenceEncoder", Letters)


@pytest.fixture
def server():
    with serving() as found:
        os.environ["DPSYNTH_TEXT_ENDPOINTS"] = found.url.removesuffix("/v1")
        yield found


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    kinds = [KINDS[number % 3 == 0] for number in range(100)]
    bodies = [f"{TEXTS[kind][0]} {SECRET}" for kind in kinds]
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", {"kind": kinds, "body": bodies})


def written(place, rows=POOL):
    pq.write_table(pa.Table.from_pylist(rows) if isinstance(rows, list) else rows, place)
    return place


def contract_of(place, *, endpoint=None, text=(), privacy=(), generate=(), **evolved):
    declared = {"about": "short letters", "population": 6, "variations": 1, "rounds": 3} | evolved
    if endpoint is not None:
        declared["endpoint"] = {"url": endpoint, "attempts": 2}
    generate = {
        "method": "aug_pe",
        **({} if endpoint is None else {"base_model": "some-model"}),
        "rows": 12,
        **({} if place is None else {"public": {"uri": str(place), "why": WHY}}),
        "text": {"max_tokens": 40, "given": ["kind"], "evolution": declared} | dict(text),
    } | dict(generate)
    kinds = {"kind": {"type": "categorical", "values": list(KINDS)}}
    return letters_contract(kinds, generate, privacy=privacy)


def planned(place, **changes):
    contract = contract_of(place, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def in_pool(table):
    """Whether each row's text is one of the pool, of the row's label."""
    known = {(row["kind"], row["body"]) for row in POOL}
    return [(row["kind"], row["body"]) in known for row in table.select(["kind", "body"]).to_pylist()]


# Candidates


def candidates(by_label, places=(0,)):
    return PublicCandidates(by_label, places, Letters().encode)


def test_some_are_distinct_and_of_the_label():
    made = candidates({("mail",): ["a", "b", "c"], ("note",): ["d"]})
    found = made.some([("mail",), ("note",), ("mail",), ("note",), ("mail",)], random.Random(1))
    assert {text.words for at, text in enumerate(found) if at % 2 == 0} == {"a", "b", "c"}
    assert (found[1].words, found[3]) == ("d", None)
    assert made.some([], random.Random(1)) == []


def test_the_nearest_are_neither_samples_nor_taken_nor_twice_as_long_as_there_are_others():
    made = candidates({("mail",): ["aaab", "aabb", "abbb", "cccc"]})
    sample, given = PublicText("aaab"), ("mail",)
    taken = {(given, "abbb")}
    assert [text.words for text in made.nearest([sample] * 2, [given] * 2)] == ["aabb", "abbb"]
    assert [text.words for text in made.nearest([sample] * 2, [given] * 2, taken)] == ["aabb", "cccc"]
    assert len(made.nearest([sample] * 7, [given] * 7)) == 7
    assert made.nearest([PublicText("bbbb")], [given])[0].words == "abbb"  # a model's own text


def test_a_text_without_a_label_is_released_under_one_label_alone():
    made = candidates({(): ["aaab", "aabb", "abbb", "cccc"]}, ())
    samples, givens = [PublicText("aaab")] * 2, [("mail",), ("note",)]
    assert [text.words for text in made.nearest(samples, givens)] == ["aabb", "aabb"], "votes decide of which it is"
    taken = {(("mail",), "aaab"), (("mail",), "abbb")}
    assert [text.words for text in made.nearest(samples, givens, taken)] == ["aabb", "cccc"]


def test_a_label_without_texts_and_a_table_without_labels_have_all_of_them():
    assert candidates({("mail",): ["a", "b"]}).of(("note",)) == ["a", "b"]
    assert candidates({(): ["a", "b"]}, ()).of(("note",)) == ["a", "b"]
    two = candidates({("b",): ["a text"]}, (1,))
    assert two.of(("mail", "b")) == two.of(("mail", "c")) == ["a text"]


# Plans


def test_a_plan_seals_the_table_and_costs_what_it_costs_without(tmp_path, server):
    place = written(tmp_path / "pool.parquet")
    plan, plain = planned(place, endpoint=server.url), planned(None, endpoint=server.url)
    assert plan.event == plain.event
    assert SealedPlan.from_json(plan.to_json()).digest == plan.digest != plain.digest
    GENERATOR.check(plan)
    assert GENERATOR.check_public(plan) == (place,)
    assert GENERATOR.check_public(plain) == ()
    sealed = EvolutionParameters.of(SealedPlan.from_json(plan.to_json())).public
    assert (sealed.rows, sealed.unlisted) == (len(POOL), {"kind": 0, "body": 0})
    described = GENERATOR.describe(plan)
    assert f"{len(POOL)} rows with body, kind" in described["public_in_words"]
    assert sealed.digest in described["training_in_words"] and "word for word" in described["training_in_words"]
    assert "some-model" in described["training_in_words"]
    written(place, POOL[1:])
    assert planned(place, endpoint=server.url).digest != plan.digest
    with pytest.raises(ConfigurationError, match="its rows are not those of the plan"):
        GENERATOR.check_public(plan)
    place.unlink()
    with pytest.raises(ConfigurationError, match=r"pool.parquet"):
        GENERATOR.check_public(plan)


def test_a_plan_without_a_model(tmp_path):
    plan = planned(written(tmp_path / "pool.parquet"), **NO_MODEL)
    guarantee = Guarantee.from_json(plan.guarantee)
    assert 7.9 < epsilon(event_from_json(plan.event), guarantee.delta).epsilon <= 8.0
    assert started_from(plan) is None
    described = GENERATOR.describe(plan)
    assert "base_model" not in described and "No model is asked" in described["training_in_words"]
    contract = contract_of(tmp_path / "pool.parquet", **NO_MODEL)
    assert PublicBase("table", str(tmp_path / "pool.parquet"), WHY) in contract.bases
    assert not any(base.is_writer for base in contract.bases)
    assert contract.mechanism_snapshot()["public"] == {"uri": str(tmp_path / "pool.parquet"), "format": "parquet"}


def test_shared_votes_leave_the_event_as_it_is_and_the_default_has_no_key(tmp_path, server):
    plain, one, three = (planned(None, endpoint=server.url, **of) for of in ({}, {"nearest": 1}, {"nearest": 3}))
    assert plain.digest == one.digest != three.digest
    assert "nearest" not in plain.parameters and three.parameters["nearest"] == 3
    assert plain.event == three.event
    assert contract_of(None, endpoint=server.url).mechanism_snapshot() == (
        contract_of(None, endpoint=server.url, nearest=1).mechanism_snapshot()
    )
    votes = [(leaf, times) for leaf, times in leaves(event_from_json(three.event)) if leaf == leaf]
    assert (GaussianVotesEvent(EvolutionParameters.of(three).sigma, "add-or-remove", 2), 3) in votes
    assert (
        "the 3 of about 12 texts that, among those of its kind, are nearest to its own, which share its vote"
        in (GENERATOR.describe(three)["training_in_words"])
    )
    many = {"privacy": {"expected_units": 5_000}, "population": "auto", "endpoint": server.url}
    sizes = [EvolutionParameters.of(planned(None, nearest=nearest, **many)).population for nearest in (1, 4)]
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=2)  # sqrt(4) times the votes a candidate gets


def test_shared_votes_are_worth_more_beside_their_noise(server):
    """Epsilon 1, 100 units, 80 candidates: 1.25 votes each, and twice as many where four candidates share a vote."""
    few = {"expected_units": 100, "guarantee": {"epsilon": 1.0, "delta": "auto"}}
    for nearest, votes in ((1, "1.25"), (4, "2.5")):
        contract = contract_of(None, endpoint=server.url, population=40, privacy=few, nearest=nearest)
        plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
        assert f"each text of a round gets about {votes} votes" in lost_votes_of(contract, plan)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has no column 'body'"),
        (
            pa.table({"kind": pa.array([], pa.string()), "body": pa.array([], pa.string())}),
            "of 0 rows, none has a text",
        ),
        ([{"kind": "mail", "text": "hello"}], r"has no column 'body'; accepted: a table with a text column of that"),
        ([{"kind": "Mail", "body": "hello"}], r"of 1 row, none has a text and listed values .*kind 1, body 0"),
        ([{"kind": "mail", "body": " "}, {"kind": None, "body": "hello"}], r"of 2 rows, none .*kind 1, body 1"),
        ([{"kind": 1.5, "body": "hello"}], "column kind has the type double"),
        ([{"kind": "mail", "body": 3}], "column body has the type int64"),
        (None, "pool.parquet"),
    ],
)
def test_a_table_without_usable_texts_is_refused_with_the_plan(tmp_path, rows, said):
    place = tmp_path / "pool.parquet"
    if rows is not None:
        written(place, rows)
    with pytest.raises(ConfigurationError, match=said):
        planned(place, **NO_MODEL)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"public": False, "ways": ["retrieve"]}, "public: missing, and text.evolution.ways has 'retrieve'"),
        ({"ways": ["rephrase", "retrieve"], "public": False}, "public: missing"),
        ({"ways": ["retrieve"], "generate": {"base_model": "some-model"}}, "which asks no model; accepted: neither"),
        ({"ways": ["retrieve"], "endpoint": "https://models.example.org/v1"}, "which asks no model"),
        ({"ways": ["retrieved"]}, "ways"),
        ({"nearest": 0}, "nearest"),
        ({"nearest": 101}, "nearest"),
        ({"nearest": 1.5}, "nearest"),
        ({"generate": {"method": "auto"}}, "public: is for method"),
        ({"generate": {"method": "dp_finetune"}}, "public: is for method"),
    ],
)
def test_an_impossible_contract_is_refused(changes, said):
    place = "/public/pool.parquet" if changes.pop("public", True) else None
    with pytest.raises(ContractError, match=said):
        contract_of(place, **changes)


# The mechanism


def fitted_alone(plan, bounded, directory, *, resume=False):
    """Runs a plan that asks no model, as a worker does."""
    directory.mkdir(exist_ok=True)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    checkpoints = Checkpoints(None, b"k" * 32, resume=resume, endpoint=None)
    GENERATOR.fit(plan, bounded, grant, directory, checkpoints=checkpoints)
    return directory


def test_public_texts_alone_are_released_word_for_word(tmp_path, bounded):
    plan, model = planned(written(tmp_path / "pool.parquet"), **NO_MODEL), tmp_path / "model"
    fitted_alone(plan, bounded, model)
    assert GENERATOR.is_complete(model)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in model.rglob("*") if file.is_file())
    drawn = GENERATOR.draw(model, 30).table()
    assert drawn.num_rows == 30 and all(in_pool(drawn))
    assert len(set(drawn.column("body").to_pylist())) == 30, "as long as there are others, no text comes twice"
    assert GENERATOR.draw(model, 400).table().num_rows == 400
    written(tmp_path / "pool.parquet", POOL[1:])
    with pytest.raises(ConfigurationError, match="its rows are not those of the plan"):
        GENERATOR.draw(model, 30)


def test_without_noise_votes_find_the_texts_that_are_near(tmp_path, bounded, monkeypatch):
    """All private letters are like the first text of their kind, of two in the table, which all are candidates."""
    monkeypatch.setattr("dpsynth_platform.synth.evolution.votes.sample_rounded_gaussian", lambda votes, sigma: votes)
    few = [row for row in POOL if row["body"].endswith((" 1", " 2"))]
    plan, model = planned(written(tmp_path / "pool.parquet", few), variations=4, **NO_MODEL), tmp_path / "model"
    fitted_alone(plan, bounded, model)
    survivors = json.loads((model / evolution.SURVIVORS).read_text())
    voted = [one for one in survivors if one["votes"]]
    assert voted and all(one["text"].startswith(TEXTS[one["given"][0]][0]) for one in voted)


def test_a_survivor_of_several_labels_is_drawn_for_the_one_with_most_votes(tmp_path, bounded):
    place = written(tmp_path / "pool.parquet", [{"body": row["body"]} for row in POOL])
    model = fitted_alone(planned(place, **NO_MODEL), bounded, tmp_path / "model")
    survivors = [
        {"text": POOL[at]["body"], "given": [kind], "votes": votes * RECORD_PARTS}
        for at, kind, votes in ((0, "mail", 90), (0, "note", 20), (1, "note", 50), (2, "mail", 50))
    ]
    (model / evolution.SURVIVORS).write_text(json.dumps(survivors))
    drawn = GENERATOR.draw(model, 40).table()
    assert [row["kind"] for row in drawn.to_pylist() if row["body"] == POOL[0]["body"]] == ["mail"]
    assert len(set(drawn["body"].to_pylist())) == drawn.num_rows == 40


def test_a_table_with_fewer_texts_than_candidates_is_enough(tmp_path, bounded):
    plan = planned(written(tmp_path / "pool.parquet", [{"body": "hello"}, {"body": "good day"}]), **NO_MODEL)
    drawn = GENERATOR.draw(fitted_alone(plan, bounded, tmp_path / "model"), 10).table()
    assert drawn.num_rows == 10 and set(drawn["body"].to_pylist()) <= {"hello", "good day"}


def test_an_interrupted_choice_continues_with_its_votes(tmp_path, bounded, monkeypatch):
    place, counted, drawn = written(tmp_path / "pool.parquet"), evolution.noisy_votes, []

    def stopped(*given):
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(1)
        return counted(*given)

    plan, model = planned(place, nearest=2, **NO_MODEL), tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evolution, "noisy_votes", stopped)
        fitted_alone(plan, bounded, model)
    before = (model / FILE_NAME).read_bytes()
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    written(place, POOL[1:])
    with pytest.raises(ConfigurationError, match="its rows are not those of the plan"):
        fitted_alone(plan, bounded, model, resume=True)
    assert (model / FILE_NAME).read_bytes() == before
    written(place)
    monkeypatch.setattr(evolution, "noisy_votes", lambda *given: drawn.append(1) or counted(*given))
    fitted_alone(plan, bounded, model, resume=True)
    assert len(drawn) == 3 and (model / FILE_NAME).read_bytes().startswith(before)
    lines = [json.loads(line) for line in (model / FILE_NAME).read_text().splitlines()]
    assert [line["kind"] for line in lines].count("votes") == 3


def test_another_table_is_refused_before_a_record_is_read(tmp_path, bounded, monkeypatch):
    place = written(tmp_path / "pool.parquet")
    plan = planned(place, **NO_MODEL)
    written(place, POOL[:-1])
    monkeypatch.setattr(evolution, "read_voters", lambda *_, **__: pytest.fail("records were read"))
    monkeypatch.setattr(evolution.counted, "measure", lambda *_: pytest.fail("records were counted"))
    with pytest.raises(ConfigurationError, match="its rows are not those of the plan"):
        fitted_alone(plan, bounded, tmp_path / "model")


def test_a_model_varies_the_first_candidates_and_fills_up_what_a_label_lacks(tmp_path, server, bounded):
    def asked():
        new = [json.dumps(document) for *_, document in server.asked if "You write examples" in json.dumps(document)]
        return len(new), any("kind: mail" in one for one in new)

    full = fitted(planned(written(tmp_path / "pool.parquet"), endpoint=server.url), bounded, tmp_path / "full")
    assert asked() == (0, False)
    assert any("public" in json.dumps(document) for *_, document in server.asked), "variations of public texts"
    assert SECRET not in json.dumps([document for *_, document in server.asked])
    lines = [json.loads(line) for line in (full / FILE_NAME).read_text().splitlines()]
    first = next(line["samples"] for line in lines if line["kind"] == "candidates")
    assert set(first) <= {row["body"] for row in POOL} and len(first) >= 12
    few = [row for row in POOL if row["kind"] == "note"] + POOL[:1]
    fitted(planned(written(tmp_path / "few.parquet", few), endpoint=server.url), bounded, tmp_path / "few")
    assert asked()[1] and asked()[0] > 0
    both = planned(tmp_path / "pool.parquet", endpoint=server.url, ways=["rephrase", "retrieve"])
    before = len(server.asked)
    drawn = GENERATOR.draw(fitted(both, bounded, tmp_path / "both"), 40).table()
    assert before < len(server.asked)
    assert any(in_pool(drawn))


def test_a_draw_does_not_need_the_table_where_a_model_varies(tmp_path, server, bounded):
    place = written(tmp_path / "pool.parquet")
    model = fitted(planned(place, endpoint=server.url), bounded, tmp_path / "model")
    place.unlink()
    assert GENERATOR.draw(model, 10).table().num_rows > 0


# Words


def test_the_statement_says_that_texts_are_those_of_the_table(tmp_path, server):
    from dpsynth_platform.contracts.family import FamilyBudget

    family = FamilyBudget.model_validate(
        {
            "family": "readers",
            "unit": "user",
            "adjacency": "add-or-remove",
            "namespace": "reader",
            "mode": "per-owner",
            "cap": {"epsilon": 20.0, "delta": 1e-2},
        }
    )
    place = written(tmp_path / "pool.parquet")

    def said(**changes):
        contract = contract_of(place, **changes)
        plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
        return privacy_statement(contract, family, plan.event, words_of("aug_pe", plan.event))

    found = said(**NO_MODEL)
    (line,) = [line for line in found.not_covered if "pool.parquet" in line]
    assert WHY in line and "word for word" in line and str(tmp_path) not in line
    assert any("one text of the public table" in line for line in found.covered)
    assert "texts of the public table that these chose" in found.output
    assert not any("language model" in line for line in (*found.covered, found.output))
    found = said(endpoint=server.url, nearest=3)
    assert any("the 3 nearest ones, which share its vote" in line for line in found.covered)
    assert "the first of these texts are those of the public table, word for word" in found.output
    assert any("as the public table has it, or as a language model" in line for line in found.not_covered)
    chosen = said(text={"resample": {"clusters": 3, "noise": 2.0, "pool": 2.0}}, **NO_MODEL)
    assert any(re.search("public table.*the last one of a mechanism, for a cluster", line) for line in chosen.covered)
