"""Fine-tuning on public topics: its plan, its column of keywords, and what is drawn."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from text_cases import TOPICS, bounded_table, fitted, letters_contract, save_model, two_topics

from dpsynth_platform.contracts.text_generation import TOPIC_LEVELS
from dpsynth_platform.foundation.errors import AccountingError, ConfigurationError, ContractError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import dp_sgd_event, event_from_json, histogram_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import RECORD_COLUMN
from dpsynth_platform.synth.interface import MechanismRun, generator
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.text.dp_finetune import log_likelihoods
from dpsynth_platform.synth.text.filtering import Rules
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.sealing import TextParameters, topics_of
from dpsynth_platform.synth.text.terms import TextTerms
from dpsynth_platform.synth.text.topic_sorting import sorted_records
from dpsynth_platform.synth.text.topics import write_topics

GENERATOR = generator("ctcl")
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("kind", pa.string()), ("body", pa.string())])
TEXTS = {"sport": "the team was late again", "trade": "please send the parcel by monday"}


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    return two_topics(tmp_path_factory.mktemp("topics") / "topics.safetensors", list(TEXTS.values()))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    kinds = [("sport", "trade")[number % 3 == 0] for number in range(200)]
    columns = {"kind": kinds, "body": [TEXTS[kind] for kind in kinds]}
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", columns)


def contract_for(base, topics, *, columns=(), units=100, training=(), **text):
    public = {} if topics == "universal" else {"public": "made of two sentences", "count": 16}
    trained_by = {"steps": 4, "batch_size": 40, "replay_steps": 2, "adapter": {"rank": 2, "alpha": 4}}
    return letters_contract(
        {"kind": {"type": "categorical", "values": ["sport", "trade"]}} | dict(columns),
        {
            "method": "ctcl",
            "base_model": str(base),
            "rows": 12,
            "text": {"max_tokens": 64, "given": ["kind"], "topics": {"model": str(topics)} | public | text},
            "training": trained_by | dict(training),
        },
        privacy={"expected_units": units},
    )


def planned(*arguments, **changes):
    contract = contract_for(*arguments, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


@pytest.fixture(scope="module")
def plan(base, topics):
    return planned(base, topics)


def test_topics_and_training_cost_together_what_is_asked_for(plan):
    parameters = TextParameters.of(plan)
    guarantee = Guarantee.from_json(plan.guarantee)
    assert 7.9 < epsilon(parameters.event(guarantee), guarantee.delta).epsilon <= 8.0
    assert event_from_json(plan.event) == parameters.event(guarantee)
    alone = epsilon(event_from_json(parameters.columns.event), 0.1 * guarantee.delta).epsilon
    counts = histogram_event(10 * guarantee.sensitivity.l2, "add-or-remove", 2, discrete=False)
    assert alone == pytest.approx(epsilon(counts, 0.1 * guarantee.delta).epsilon, rel=0.01)
    GENERATOR.check(plan)


def test_a_plan_says_what_the_topics_are_and_what_they_cost(plan):
    words = GENERATOR.describe(plan)["training_in_words"]
    assert "is given keywords, kind and writes body" in words
    assert "one of 16 public topics that a record's text is nearest to, if it is near to any" in words
    counts = histogram_event(
        10 * Guarantee.from_json(plan.guarantee).sensitivity.l2, "add-or-remove", 2, discrete=False
    )
    alone = epsilon(counts, Guarantee.from_json(plan.guarantee).delta).epsilon
    said = float(re.search(r"costs epsilon ([0-9.]+) alone", words)[1])
    assert alone <= said == pytest.approx(alone, rel=0.02)


def test_the_paper_s_split_of_the_budget():
    """Tan et al. 2025, appendix D: 0.39 and 3.96, 1.94, 0.9 compose to 4, 2, 1 (PubMed, noise of appendix E)."""
    from dp_accounting import dp_event

    delta = 1.18e-6
    counts = histogram_event(10.0, discrete=False)
    assert epsilon(counts, delta).epsilon == pytest.approx(0.39, abs=0.005)
    for noise, alone, together in ((3.03, 3.96, 4.0), (5.63, 1.94, 2.0), (11.33, 0.9, 1.0)):
        training = dp_sgd_event(records=75_316, batch_size=4096, noise_multiplier=noise, steps=2000)
        assert epsilon(training, delta).epsilon == pytest.approx(alone, abs=0.005)
        composed = epsilon(dp_event.ComposedDpEvent([counts, training]), delta).epsilon
        assert composed == pytest.approx(together, abs=0.012)


@pytest.mark.parametrize(("units", "level"), [(100, 16), (1_000, 32), (8_000, 256), (10**6, 512)])
def test_there_are_as_many_topics_as_noise_leaves_something_of(base, units, level):
    contract = contract_for(base, "universal", units=units)
    guarantee = Guarantee.target(contract)
    chosen = topics_of(contract, guarantee)
    assert chosen.level == level in TOPIC_LEVELS
    assert 2 * units / level >= 3 * 10 * guarantee.sensitivity.l2 or level == 16


def test_there_are_no_more_topics_than_the_model_has(base, topics):
    contract = contract_for(base, topics, units=10**6, count="auto")
    assert topics_of(contract, Guarantee.target(contract)).level == 16


def test_the_topic_is_counted_with_the_other_columns_and_heads_the_prompt(plan):
    parameters = TextParameters.of(plan)
    assert [column["name"] for column in parameters.columns.columns] == ["kind", "keywords"]
    assert parameters.layout.columns == ("keywords", "kind", "body")
    assert parameters.layout.conditions[0].values == (*TOPICS, "unclassified")


def test_noise_that_costs_all_there_is_is_refused(base, topics):
    with pytest.raises(AccountingError, match=r"generate\.text\.topics\.noise: 0\.1 alone costs epsilon"):
        planned(base, topics, noise=0.1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"topics": "own.safetensors", "public": None}, "without `public`"),
        ({"columns": {"keywords": {"type": "boolean"}}}, "whose prompts use that name for topics"),
        ({"count": 17}, "count"),
        ({"noise": 0.0}, "noise"),
    ],
)
def test_an_impossible_contract_is_refused(base, topics, changes, said):
    changes = {"topics": topics} | changes
    with pytest.raises(ContractError, match=said):
        contract_for(base, **changes)


def test_what_was_learned_is_drawn_without_the_topics(base, topics, bounded, tmp_path, monkeypatch):
    monkeypatch.setattr("dpsynth_platform.training.noise.GaussianNoise.add_", lambda self, sums, deviation: sums)
    monkeypatch.setattr("dpsynth_platform.synth.tabular.drawing.sample_rounded_gaussian", lambda counts, sigma: counts)
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr("dpsynth_platform.training.health.Watch.step", lambda *_: None)
    told, counted = [], MarginalGenerator.measure

    def measure(self, part, table, *rest):
        told.append(pa.Table.from_batches(read_table(table)))
        counted(self, part, table, *rest)

    monkeypatch.setattr(MarginalGenerator, "measure", measure)
    training = {"learning_rate": 0.02, "steps": 50, "batch_size": 60}
    plan, model = planned(base, topics, training=training), tmp_path / "model"
    fitted(plan, bounded, model)
    assert GENERATOR.is_complete(model)
    kinds = told[0].select(["kind", "keywords"]).to_pylist()
    assert {(row["kind"], row["keywords"]) for row in kinds} == {("sport", "team"), ("trade", "parcel")}
    assert not list(tmp_path.glob("*-topics*"))
    seen = pa.table({"kind": ["sport"], "body": [TEXTS["sport"]]})
    before, after = log_likelihoods(plan, model, seen)
    assert after[0] - before[0] > 0.5
    # More than half of the prompts are of a kind and its own topic, which were read together: nearly all their texts
    # are those that were read (in 8 models). Were it a quarter of all texts, none of 60 would be one by 3e-8.
    terms = TextTerms(Sampling(temperature=0.2, max_tokens=20), Rules(duplicates="kept"))
    drawn = GENERATOR.draw(model, 60, texts=terms).table()
    assert drawn.schema.names == ["letter", "reader", "kind", "body"]
    assert 1 <= drawn.num_rows <= 60
    assert set(drawn.column("kind").to_pylist()) <= {"sport", "trade"}


def test_one_record_more_changes_no_other_s_topic(plan, tmp_path, bounded):
    parameters = TextParameters.of(plan)
    rows = pa.Table.from_batches(read_table(bounded)).slice(0, 5)
    more = pa.concat_tables([rows, pa.table([["sport"], ["a " * 400], ["f" * 32], ["e" * 32]], schema=rows.schema)])
    found = []
    for name, table in (("one", rows), ("two", more)):
        write_table(tmp_path / name, table.schema, table.to_batches())
        run = MechanismRun(plan, tmp_path / name, None, tmp_path / "model")
        with sorted_records(parameters, run) as place:
            records = pa.Table.from_batches(read_table(place)).to_pylist()
        found.append({record[RECORD_COLUMN]: record for record in records})
    assert len(found[1]) == len(found[0]) + 1
    assert all(found[1][key] == record for key, record in found[0].items())


def test_the_sorted_table_is_gone_when_the_mechanism_stops(plan, bounded, tmp_path, monkeypatch):

    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)

    def stopped(*_):
        assert list(tmp_path.glob("*-topics*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(MarginalGenerator, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        fitted(plan, bounded, tmp_path / "model")
    assert not list(tmp_path.glob("*-topics*"))


def test_another_topic_model_than_the_plan_s_is_refused_before_the_data_are_read(
    base, topics, bounded, tmp_path, monkeypatch
):
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    own = tmp_path / "own.safetensors"
    own.write_bytes(topics.read_bytes())
    plan = planned(base, own)
    write_topics(own, {16: (np.eye(16, 384, dtype=np.float32), TOPICS)}, "others")
    with pytest.raises(ConfigurationError, match="is not the file of the plan"):
        fitted(plan, bounded, tmp_path / "model")
    assert not (tmp_path / "model" / "columns").exists()
