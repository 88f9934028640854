"""Tables of ids and a text alone: nothing is counted, so that the whole guarantee is for the text's own mechanism."""

from __future__ import annotations

from dataclasses import asdict, replace

import dp_accounting
import numpy as np
import pyarrow as pa
import pytest
from dp_accounting import dp_event
from endpoint_cases import serving
from inference_cases import ABOUT, SENTENCES, note_reader
from pydantic import TypeAdapter
from text_cases import bounded_table, fitted, letters_contract, save_model, sealed_plan

from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.canaries import kinds_of as canary_kinds
from dpsynth_platform.audit.canaries import make_canaries
from dpsynth_platform.audit.canary_cost import CanaryCost, canary_cost
from dpsynth_platform.audit.policy import attacks_on
from dpsynth_platform.audit.shortage import shortage_of
from dpsynth_platform.audit.verdict import judge
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    GaussianCountsEvent,
    GaussianVotesEvent,
    event_from_json,
    event_to_json,
    leaves,
    token_selection_event,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import covered_accesses, words_of
from dpsynth_platform.quality.plots import plots
from dpsynth_platform.quality.report import measure_quality
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.evolution import sizes_of
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.filtering import Rules
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import Resampling, read_votes
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.terms import TextTerms

SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("body", pa.string())])
KIND = {"kind": {"type": "categorical", "values": ["mail", "note"]}}
TRAINING = {"steps": 6, "batch_size": 40, "replay_steps": 4, "adapter": {"rank": 2, "alpha": 4}}
PARTS = {
    "dp_finetune": {},
    "ctcl": {"topics": {"count": 16}},
    "dp_inference": {"inference": {"about": ABOUT, "batch_size": 25, "document_tokens": 8}},
    "aug_pe": {"evolution": {"population": 6, "variations": 1, "rounds": 3}},
}
DELTA = 1e-4


def contract_for(method, base="some-model", *, columns=(), rows=12, generate=(), **text):
    declared = {"method": method, "base_model": str(base), "rows": rows, "text": PARTS[method] | text}
    trains = {"training": TRAINING} if method in ("dp_finetune", "ctcl") else {}
    privacy = {"guarantee": {"epsilon": 8.0, "delta": DELTA}}
    return letters_contract(dict(columns), declared | trains | dict(generate), privacy=privacy)


def sealed(contract, base):
    """A plan, but for trying the model, which needs its weights."""
    source = SOURCE if not contract.modelled else SOURCE.insert(2, pa.field("kind", pa.string()))
    return sealed_plan(contract, source, base)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


@pytest.fixture
def nowhere(tmp_path):
    return BaseModel("some-model", tmp_path, "0" * 64, "some-model", "0" * 64)


def kinds_of(event):
    return {type(leaf) for leaf, _ in leaves(event_from_json(event))}


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
def test_nothing_is_counted_and_nothing_paid_for_counts(nowhere, method):
    """With a column, counts are in the event; without, no part of it is of any, not even one that costs nothing."""
    alone, beside = sealed(contract_for(method), nowhere), sealed(contract_for(method, columns=KIND), nowhere)
    assert GaussianCountsEvent in kinds_of(beside.event)
    assert GaussianCountsEvent not in kinds_of(alone.event) and len(kinds_of(alone.event)) == 1
    assert alone.columns == [] and alone.parameters["columns"] is None
    assert 7.9 < epsilon(event_from_json(alone.event), DELTA).epsilon <= 8.0 or method == "dp_inference"
    said = generator(method).describe(alone)
    assert not any(word in said["event"] for word in ("counts", "column", "sigma"))
    assert "columns" not in " ".join(covered_accesses(alone.event, method))
    assert "measurements" not in words_of(method, alone.event).result


def test_training_has_the_whole_guarantee(nowhere):
    """Its cost by `dp_accounting` alone, of nothing but the steps, is the plan's; a column takes some of it."""
    plan = sealed(contract_for("dp_finetune"), nowhere)
    training = TextParameters.of(plan).training
    assert training.max_contributions == 2
    q = training.sampling_probability
    chances = [(1 - q) ** 2, 2 * q * (1 - q), q * q]  # of a step with none, one or both of an owner's records
    step = dp_event.MixtureOfGaussiansDpEvent(training.noise_multiplier, [0.0, 1.0, 2.0], chances)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, training.paid_steps))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon(event_from_json(plan.event), DELTA).epsilon, rel=0.01)
    assert event_to_json(training.event) == plan.event
    beside = TextParameters.of(sealed(contract_for("dp_finetune", columns=KIND), nowhere)).training
    assert beside.noise_multiplier > training.noise_multiplier


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
def test_votes_for_texts_are_paid_for_beside_their_writing_alone(nowhere, method):
    plan = sealed(contract_for(method, resample={"clusters": 3}), nowhere)
    first, second = event_from_json(plan.event).events
    if method == "dp_finetune":
        assert event_to_json(first) == event_to_json(TextParameters.of(plan).training.event)
    assert second == GaussianVotesEvent(10.0, "add-or-remove", 2)
    assert 7.9 < epsilon(event_from_json(plan.event), DELTA).epsilon <= 8.0 or method == "dp_inference"


def test_tokens_have_the_whole_guarantee(nowhere):
    plan = sealed(contract_for("dp_inference", rows="auto"), nowhere)
    drawn = InferenceParameters.of(plan).inference

    def cost(tokens):
        event = token_selection_event(
            tokens=tokens,
            clipping_norm=drawn.clipping_norm,
            temperature=drawn.temperature,
            batch_size=drawn.batch_size,
            adjacency="add-or-remove",
            max_contributions=2,
            clipped="user",
        )
        return epsilon(event, DELTA).epsilon

    assert cost(drawn.tokens) <= 8.0 < cost(drawn.tokens + 1)
    beside = InferenceParameters.of(sealed(contract_for("dp_inference", columns=KIND, rows="auto"), nowhere))
    assert beside.inference.tokens < drawn.tokens


def test_votes_have_the_whole_guarantee(nowhere):
    """The noise is the least that three Gaussian mechanisms may have, by `dp_accounting` alone."""
    plan = sealed(contract_for("aug_pe"), nowhere)
    sigma = EvolutionParameters.of(plan).sigma

    def cost(noise):
        accountant = dp_accounting.pld.PLDAccountant()
        accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), 3))
        return accountant.get_epsilon(DELTA)

    assert cost(sigma) <= 8.0 * 1.001
    assert cost(0.98 * sigma) > 8.0


def test_topics_are_counted_whatever_else_there_is(nowhere):
    """They are a text's own; what they cost is in the event, and nothing beside it is for columns."""
    contract = contract_for("ctcl")
    assert counted.counts_columns(contract) and not contract.modelled
    plan = sealed(contract, nowhere)
    assert [column["name"] for column in plan.columns] == ["keywords"]
    assert GaussianCountsEvent in kinds_of(plan.event)
    assert 7.9 < epsilon(event_from_json(plan.event), DELTA).epsilon <= 8.0
    assert "public topics" in " ".join(covered_accesses(plan.event, "ctcl"))


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
def test_a_plan_whose_event_leaves_something_out_is_refused(nowhere, method):
    """Also one that says that nothing is counted, of a plan that counts: the parts must be the event's."""
    beside = sealed(contract_for(method, columns=KIND), nowhere)
    hidden = replace(beside, parameters=beside.parameters | {"columns": None})
    with pytest.raises(GrantRefused, match="event is not that of its parts"):
        generator(method).check(hidden)
    alone = sealed(contract_for(method), nowhere)
    generator(method).check(alone)
    added = replace(alone, parameters=alone.parameters | {"columns": beside.parameters["columns"]})
    with pytest.raises(GrantRefused, match="event is not that of its parts"):
        generator(method).check(added)
    with pytest.raises(GrantRefused, match="materialize the line from raw again"):
        generator(method).check(replace(alone, parameters=alone.parameters | {"columns": {"method": "aim"}}))


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            SOURCE.set(2, pa.field("body", pa.int64())),
            "columns.body: written by a language model, but the source holds",
        ),
        (SOURCE.set(2, pa.field("body", pa.list_(pa.string()))), "the source holds list<.*>; accepted: strings"),
        (SOURCE.remove(2), "columns.body: declared, but the source has no such column"),
    ],
)
def test_a_source_without_such_a_text_is_refused_with_its_plan(nowhere, method, source, said):
    with pytest.raises(ContractError, match=said):
        sealed_plan(contract_for(method), source, nowhere)


def test_an_evolution_begins_as_many_texts_whatever_the_data(nowhere, tmp_path):
    plan = sealed(contract_for("aug_pe"), nowhere)
    assert sizes_of(plan, EvolutionParameters.of(plan), tmp_path / "columns") == {(): 6}


def test_a_mechanism_without_a_text_in_any_record_learns_of_none(base, tmp_path):
    """Missing and blank texts: nothing to learn from, and nothing that would tell so but the restricted log."""
    table = pa.table(
        {
            "body": pa.array([None, " "] * 20, pa.string()),
            OWNER_COLUMN: [f"{number // 2:032x}" for number in range(40)],
            RECORD_COLUMN: [f"{number:032x}" for number in range(40)],
        }
    )
    write_table(tmp_path / "blank", table.schema, table.to_batches())
    plan = planned(contract_for("dp_finetune", base, max_tokens=64))
    fitted(plan, tmp_path / "blank", tmp_path / "model")
    assert generator("dp_finetune").is_complete(tmp_path / "model"), "steps without examples add noise and count"


# The mechanisms, on records that have nothing but an owner and a text.


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    rng = np.random.default_rng(3)
    columns = {"body": [SENTENCES[number] for number in rng.integers(0, 4, 200)]}
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", columns)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"), note_reader("body"))


def planned(contract):
    return generator(contract.generate.method).plan(contract, SOURCE, Guarantee.target(contract))


@pytest.fixture
def server(monkeypatch):
    with serving() as found:
        monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", found.url.removesuffix("/v1"))
        yield found


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
def test_rows_have_fresh_ids_and_a_text(base, bounded, tmp_path, server, method):
    """So tiny a model cannot follow the prompts of an evolution: there, an endpoint writes."""
    text = {"max_tokens": 64}
    if method == "aug_pe":
        text["evolution"] = PARTS["aug_pe"]["evolution"] | {"endpoint": {"url": server.url, "attempts": 2}}
    plan, directory, made = planned(contract_for(method, base, **text)), tmp_path / "model", generator(method)
    fitted(plan, bounded, directory)
    assert made.is_complete(directory) and not made.can_resume(directory)
    assert not (directory / "columns").exists(), "nothing was counted"
    made.estimate(plan, directory)  # there is no model of columns that could be fitted again
    drawn = made.draw(directory, None if method == "dp_inference" else 12).table()
    assert drawn.schema.names == ["letter", "reader", "body"]
    assert drawn.num_rows and drawn["body"].null_count == 0
    assert drawn["letter"].to_pylist() == sorted(set(drawn["letter"].to_pylist()))
    with pytest.raises(ContractError, match="no column is modelled that they could be about"):
        made.draw(directory, 2, given={"kind": ["mail"]})
    if method != "dp_inference":
        with pytest.raises(ContractError, match="accepted: a number of rows"):
            made.draw(directory)


@pytest.mark.parametrize("method", ["dp_finetune", "dp_inference", "aug_pe"])
def test_texts_are_chosen_by_votes_without_columns(base, bounded, tmp_path, server, method):
    text = {"max_tokens": 64, "resample": {"clusters": 2, "pool": 2.0}}
    if method == "aug_pe":
        text["evolution"] = PARTS["aug_pe"]["evolution"] | {"endpoint": {"url": server.url, "attempts": 2}}
    plan = planned(contract_for(method, base, **text))
    fitted(plan, bounded, tmp_path / "model")
    chosen, layout = Resampling(**plan.parameters["resampling"]), TextLayout.from_json(plan.parameters["layout"])
    assert len(read_votes(tmp_path / "model", chosen, layout).votes) == 2
    kept = TextTerms(rules=Rules(duplicates="kept"))  # so small a model knows four sentences
    assert generator(method).draw(tmp_path / "model", 6, texts=kept).table().num_rows == 6


def test_contexts_owe_nothing_to_the_data(base, bounded, tmp_path, monkeypatch):
    """Without labels, how many contexts there are and what they are called is public: a neighbour's are the same."""
    seen = []
    monkeypatch.setattr(
        "dpsynth_platform.synth.text.inference.placed",
        lambda records, contexts, key, most: seen.append((contexts, sorted(records))) or [{} for _ in contexts.labels],
    )
    monkeypatch.setattr("dpsynth_platform.synth.text.inference.Writer.texts", lambda *_: [])
    plan = planned(contract_for("dp_inference", base, max_tokens=64))
    table = pa.Table.from_batches(read_table(bounded))
    fewer = tmp_path / "fewer"
    write_table(fewer, table.schema, table.slice(2).to_batches())
    for number, place in enumerate((bounded, fewer)):
        fitted(plan, place, tmp_path / f"model-{number}")
    (contexts, records), (others, rest) = seen
    assert contexts == others and contexts.labels == ((),) * 4
    assert len(records) == len(rest) + 2


# The audit: canaries are texts, and so are all attacks.


def audited(contract, **audit):
    return contract.model_copy(update={"audit": contract.audit.model_copy(update=audit)})


def test_canaries_are_texts_alone():
    contract = contract_for("dp_finetune")
    canaries = make_canaries(contract, SOURCE, 60, 2, None)
    assert canaries.values.column_names == ["body"]
    assert len(set(canaries.values["body"].to_pylist())) == len(canaries.owners) == 60
    assert canaries.table.num_rows == 120 and canaries.records_per_owner == 2
    assert canary_kinds(contract) == ("made-up",)


def test_canaries_whose_texts_the_base_model_writes(base):
    kinds = ["made-up", "in-distribution", "unlikely-ending"]
    contract = audited(contract_for("dp_finetune", base, max_tokens=64), canary_texts=kinds)
    canaries = make_canaries(contract, SOURCE, 12, 1, None)
    assert sorted(set(canaries.kinds)) == sorted(kinds) == sorted(canary_kinds(contract))
    assert all(text.strip() for text in canaries.values["body"].to_pylist())


def test_what_canaries_cost_where_nothing_is_counted():
    contract = contract_for("dp_finetune")
    canaries = make_canaries(contract, SOURCE, 60, 2, None)
    cost = canary_cost(contract, canaries, None, pa.table({"body": ["the team was late"] * 5}))
    records = 2 * int(canaries.included.sum())
    assert (cost.counted, cost.share, cost.columns) == (records, None, ())
    assert cost.declared == pytest.approx(records / (records + 90))  # a hundred units, of whom a tenth is held out
    assert f"they were {records} records (" in cost.words and "no column was counted" in cost.words
    assert "5 synthetic texts, 0 hold" in cost.words
    assert TypeAdapter(CanaryCost).validate_python(asdict(cost)) == cost


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("dp_finetune", ["text likelihood", "text overlap"]),
        ("ctcl", ["measurements", "likelihood", "nearest rows", "text likelihood", "text overlap"]),
    ],
)
def test_columns_are_attacked_where_some_are_counted_and_topics_are(method, names):
    contract = contract_for(method)
    assert [attack.name for attack in attacks_on(contract)] == names
    enough = audited(contract, canaries=2000, max_epsilon_lower_bound=0.5)
    assert shortage_of(enough) is None
    assert "canaries can show at most epsilon" in shortage_of(audited(enough, canaries=20))


@pytest.mark.parametrize("method", ["dp_inference", "aug_pe"])
def test_nothing_passes_by_an_attack_that_could_see_no_fault(method):
    """The only attack scores at random, also for votes without noise; this is reported before anything is spent."""
    contract = audited(contract_for(method), canaries=2000, max_epsilon_lower_bound=0.5)
    assert [attack.name for attack in attacks_on(contract)] == ["text overlap"]
    assert "The verdict can only be inconclusive; train a model" in shortage_of(contract)
    assert shortage_of(audited(contract, accept_inconclusive="a test of audits")) is None
    random = np.random.default_rng(1)
    scored = [Scored(attack, random.normal(size=400)) for attack in attacks_on(contract)]
    report = judge(contract, None, random.random(400) < 0.5, scored)
    assert report.verdict == "inconclusive"
    assert "was not shown to find anyone where noise is missing" in report.reasons[0]
    assert "1 attack then tried" in report.summary
    beside = contract_for(method, columns=KIND)
    scored = [Scored(attack, random.normal(size=400)) for attack in attacks_on(beside)]
    coins = random.random(400) < 0.5
    assert "is the only one" not in " ".join(judge(beside, None, coins, scored).reasons)
    gated = judge(audited(beside, gates=["text overlap"]), None, coins, scored)
    assert (gated.verdict, "is the only one that decides" in gated.reasons[0]) == ("inconclusive", True)


def test_a_plan_that_is_stripped_of_its_columns_is_refused(nowhere):
    plan = sealed(contract_for("dp_finetune", columns=KIND), nowhere)
    generator("dp_finetune").check(plan)
    bare = replace(TextParameters.of(plan), columns=None)
    stripped = replace(
        plan, parameters=bare.to_json(), event=event_to_json(bare.event(Guarantee.from_json(plan.guarantee)))
    )
    with pytest.raises(GrantRefused, match="columns are not those that it counts"):
        generator("dp_finetune").check(stripped)


def test_a_verdict_says_that_attacks_on_columns_do_not_apply():
    contract, random = contract_for("dp_finetune"), np.random.default_rng(1)
    included = random.random(400) < 0.5
    scored = [Scored(attack, random.normal(size=400)) for attack in attacks_on(contract)]
    said = judge(contract, None, included, scored).summary
    assert "Attacks on columns do not apply: no column is counted" in said
    beside = contract_for("dp_finetune", columns=KIND)
    scored = [Scored(attack, random.normal(size=400)) for attack in attacks_on(beside)]
    assert "do not apply" not in judge(beside, None, included, scored).summary


def test_quality_has_no_figure_of_columns():
    contract = contract_for("dp_finetune")
    table = pa.table({"body": ["the team was late"] * 5, OWNER_COLUMN: ["0" * 32] * 5})
    report = measure_quality(contract, None, table, table.select(["body"]), table)
    assert report.table() == [("columns", "not available: no column is modelled", "", "")]
    assert report.to_json()["fidelity"]["mean_column"] is None
    assert report.rows == {"held_out": 5, "synthetic": 5, "real": 5}
    assert plots(report) == {}
