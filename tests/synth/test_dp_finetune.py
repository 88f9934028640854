"""Text tables from contract to rows, with a language model that trains in seconds."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from text_cases import bounded_table, fitted, letters_contract, save_model, tiny_bart, tiny_t5

from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    GrantRefused,
    MechanismFailed,
    ReplayExhausted,
    StaleInput,
    TrainingRefused,
)
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.text.dp_finetune import log_likelihoods
from dpsynth_platform.synth.text.filtering import Rules
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.terms import Counts, TextTerms

GENERATOR = generator("dp_finetune")
SOURCE = pa.schema(
    [
        ("letter", pa.int64()),
        ("reader", pa.int64()),
        ("topic", pa.string()),
        ("year", pa.int32()),
        ("body", pa.string()),
    ]
)
TEXTS = {"sport": "the team was late again", "trade": "please send the parcel by monday"}


def contract_for(base, **changes):
    training = {"steps": 6, "batch_size": 40, "replay_steps": 4, "adapter": {"rank": 2, "alpha": 4}}
    return letters_contract(
        {
            "topic": {"type": "categorical", "values": ["sport", "trade"]},
            "year": {"type": "integer", "min": 2000, "max": 2003},
        },
        {
            "method": "dp_finetune",
            "base_model": str(base),
            "rows": 12,
            "text": {"max_tokens": 48, "given": ["topic"]},
            "training": training | changes,
        },
        privacy={"guarantee": {"epsilon": 8.0, "delta": 1e-4}},
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    rng = np.random.default_rng(3)
    topics = [("sport", "trade")[number] for number in rng.integers(0, 2, 200)]
    columns = {
        "topic": topics,
        "year": pa.array(rng.integers(2000, 2004, 200), pa.int32()),
        "body": [TEXTS[topic] for topic in topics],
    }
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", columns)


@functools.cache
def planned(base, **changes):
    """A plan is a pure value of the contract and the model in `base`: each is made once."""
    contract = contract_for(base, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def test_counts_and_training_cost_together_what_is_asked_for(base):
    plan = planned(base)
    parameters = TextParameters.of(plan)
    cost = epsilon(event_from_json(plan.event), 1e-4).epsilon
    assert 7.9 < cost <= 8.0
    assert epsilon(parameters.training.event, 1e-4).epsilon < 8.0
    assert epsilon(event_from_json(parameters.columns.event), 1e-5).epsilon <= 0.8
    assert parameters.training.units == 200
    assert parameters.training.paid_steps == 10
    assert GENERATOR.describe(plan)["predicted_memory_bytes"] > parameters.memory_bytes
    assert "10 steps of DP-SGD over records" in GENERATOR.describe(plan)["event"]


@pytest.mark.parametrize("make", [tiny_t5, tiny_bart])
def test_plan_and_cost_do_not_depend_on_the_model_s_family(base, tmp_path, make):
    plan, other = planned(base), planned(save_model(tmp_path / "other", make()))
    assert other.event == plan.event and other.columns == plan.columns
    apart = {"base_model", "base_digest", "memory_bytes"}
    assert {key: value for key, value in other.parameters.items() if key not in apart} == {
        key: value for key, value in plan.parameters.items() if key not in apart
    }
    with pytest.raises(TrainingRefused, match="adapter: all weights of an encoder-decoder model; accepted"):
        planned(tmp_path / "other", adapter="none")


def test_a_model_that_no_text_can_be_drawn_from_is_refused_with_its_plan(base, monkeypatch):
    def failing(model, tokens):
        raise RuntimeError("no cache")

    monkeypatch.setattr("dpsynth_platform.synth.text.rows.check_slots", failing)
    with pytest.raises(ConfigurationError, match=r"no text can be drawn .* RuntimeError \(no cache\)"):
        planned.__wrapped__(base)


def test_no_tokens_of_real_texts_are_on_disk_while_training(base, bounded, tmp_path, monkeypatch):
    """Whatever ends the process, nothing that outlives the bounded data is left."""
    seen = []

    def cut_short(model, plan, examples, **others):
        seen.append((len(examples), examples.batch([0, len(examples) - 1])["input_ids"].shape[0]))
        seen.append([path.name for path in (tmp_path / "model" / "training").iterdir()])
        raise MechanismFailed("interrupted")

    monkeypatch.setattr("dpsynth_platform.training.loop.train", cut_short)
    with pytest.raises(MechanismFailed, match="interrupted"):
        fitted(planned(base), bounded, tmp_path / "model")
    assert seen[0] == (200, 2)
    assert sorted(seen[1]) == ["checkpoints", "journal"]


def test_a_plan_with_other_noise_than_its_event_says_is_refused(base, bounded, tmp_path):
    plan = planned(base)
    quiet = json.loads(json.dumps(plan.parameters))
    quiet["training"]["noise_multiplier"] /= 2
    with pytest.raises(GrantRefused, match="event is not that of its parts"):
        fitted(replace(plan, parameters=quiet), bounded, tmp_path / "model")
    assert not any((tmp_path / "model").iterdir())


@pytest.fixture(scope="module")
def learned(base, bounded, tmp_path_factory):
    """A plan, and a model that was trained without noise, so that it writes what it read."""
    place = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPSYNTH_HOME", str(place))
        patched.setattr("dpsynth_platform.training.noise.GaussianNoise.add_", lambda self, sums, deviation: sums)
        patched.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
        patched.setattr("dpsynth_platform.training.health.Watch.step", lambda *_: None)
        plan = planned(base, learning_rate=0.02, steps=60)
        assert not GENERATOR.is_complete(place / "model")
        fitted(plan, bounded, place / "model")
    return plan, place / "model"


def test_what_was_learned_is_drawn_in_the_released_schema(learned):
    plan, model = learned
    assert GENERATOR.is_complete(model)
    assert not GENERATOR.can_resume(model)
    assert not (model / "training").exists()
    seen = pa.table({"topic": ["sport"], "body": [TEXTS["sport"]]})
    strange = pa.table({"topic": ["sport"], "body": ["zzzz qqqq 0918 xxxx"]})
    before, after = log_likelihoods(plan, model, pa.concat_tables([seen, strange]))
    gain, gain_of_strange = after - before
    assert gain > 0.5
    assert gain > gain_of_strange + 0.5
    # At this temperature nearly every text is one of the two that were read (all of 3,000 in 24 models). Were it every
    # second, none of 60 would be one and at most 20 of 140, each by a chance below 1e-18.
    greedy, kept = Sampling(temperature=0.2, max_tokens=20), Rules(duplicates="kept")
    drawn = GENERATOR.draw(model, 60, texts=TextTerms(greedy, kept)).table()
    assert drawn.schema.names == ["letter", "reader", "topic", "year", "body"]
    assert 1 <= drawn.num_rows <= 60
    assert drawn.column("body").null_count == 0
    assert set(drawn.column("topic").to_pylist()) <= {"sport", "trade"}
    assert set(drawn.column("year").to_pylist()) <= {2000, 2001, 2002, 2003}
    assert not model.with_name("model-texts").exists()
    terms = TextTerms(greedy, kept, Counts("year", ((2000, 30), (2003, 40))))
    drawing = GENERATOR.draw(model, 60, texts=terms)
    counted = drawing.table()
    assert sum(drawing.texts.left_out.values()) + counted.num_rows <= drawing.texts.drawn
    assert drawing.texts.rows_without == 70 - counted.num_rows < 50
    years = counted.column("year").to_pylist()
    assert years.count(2000) <= 30 and years.count(2003) <= 40
    assert set(years) == {2000, 2003} and years != sorted(years)
    assert len(set(counted.column("letter").to_pylist())) == counted.num_rows, "each row has an id of its own"


class Killed(BaseException):
    pass


def cut_short(monkeypatch, step):
    """The training dies when it has counted so many executed steps, as if the process had been killed there."""
    from dpsynth_platform.training.journal import StepJournal

    begin = StepJournal.begin_step

    def dying(self):
        executed = begin(self)
        if executed == step:
            raise Killed
        return executed

    monkeypatch.setattr(StepJournal, "begin_step", dying)


def test_an_interrupted_training_continues_and_every_step_counts(base, bounded, tmp_path, monkeypatch):
    plan, model = planned(base), tmp_path / "model"
    with monkeypatch.context() as patch:
        cut_short(patch, 4)
        with pytest.raises(Killed):
            fitted(plan, bounded, model)
    assert GENERATOR.can_resume(model)
    with pytest.raises(MechanismFailed):
        GENERATOR.draw(model, 3)
    measured = (model / "columns" / "measurements.jsonl").read_bytes()
    fitted(plan, bounded, model, resume=True)
    assert GENERATOR.is_complete(model)
    assert (model / "columns" / "measurements.jsonl").read_bytes() == measured
    executed = json.loads((model / "trained.json").read_text())["executed_steps"]
    assert 7 <= executed <= 10


def test_beyond_the_paid_steps_nothing_continues(base, bounded, tmp_path, monkeypatch):
    plan, model = planned(base, replay_steps=0), tmp_path / "model"
    with monkeypatch.context() as patch:
        cut_short(patch, 4)
        with pytest.raises(Killed):
            fitted(plan, bounded, model)
    with pytest.raises(ReplayExhausted, match="the plan pays for 0"):
        fitted(plan, bounded, model, resume=True)
    assert not GENERATOR.is_complete(model)


@pytest.mark.parametrize("file", ["texts.jsonl", "sampling.json"])
def test_kept_texts_that_are_damaged_are_drawn_anew(learned, file):
    _, model = learned
    place = model.with_name("model-texts")
    terms = TextTerms(Sampling(temperature=0.2, max_tokens=20), Rules(duplicates="kept"))

    def files():
        return {found: found.read_bytes() for found in model.rglob("*") if found.is_file()}

    def killed(stage, done, total):
        if stage == "sample" and done:
            raise Killed

    before = files()
    with pytest.raises(Killed):
        GENERATOR.draw(model, 30, texts=terms, progress=killed)
    kept = (place / file).read_bytes()
    (place / file).write_bytes(b"\xff" + kept[1:])
    with pytest.raises(StaleInput, match="damaged; materialize synthetic again"):
        GENERATOR.draw(model, 30, texts=terms)
    assert not place.exists()
    assert GENERATOR.draw(model, 30, texts=terms).table().num_rows > 0
    assert files() == before, "the model, which was paid for, stays"


def test_another_base_model_than_the_plan_s_is_refused(base, bounded, tmp_path):
    from text_cases import tiny_llama

    other = save_model(tmp_path / "other", tiny_llama(seed=5))
    plan = planned(base)
    changed = json.loads(json.dumps(plan.parameters)) | {"base_model": str(other)}
    with pytest.raises(ConfigurationError, match="not the one that the plan was made for"):
        fitted(replace(plan, parameters=changed), bounded, tmp_path / "model")


def test_owners_can_be_sampled(base, bounded, tmp_path):
    plan = planned(base, sampled="owners", batch_size=20)
    assert TextParameters.of(plan).training.units == 100
    fitted(plan, bounded, tmp_path / "model")
    assert GENERATOR.is_complete(tmp_path / "model")
