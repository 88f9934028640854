"""Texts by DP inference: its plan, its prompts and rows, what an owner of many records moves, and what is drawn."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from inference_cases import ABOUT, SENTENCES, reader
from text_cases import (
    TOPICS,
    bounded_table,
    fitted,
    letters_contract,
    save_model,
    tiny_bart,
    tiny_gpt2,
    tiny_llama,
    tiny_tokenizer,
    two_topics,
)
from transformers import AddedToken, AutoTokenizer

from dpsynth_platform.contracts.text_generation import Inference
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    GrantRefused,
    MechanismFailed,
    ResumeRefused,
)
from dpsynth_platform.privacy import statement
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianSumsEvent, GaussianVotesEvent, event_from_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.reviewing import contract_words
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.planning import changes
from dpsynth_platform.synth.text import inference, inference_writing, resampling, trained, unread
from dpsynth_platform.synth.text.inference import _shares
from dpsynth_platform.synth.text.inference_choice import PARTS
from dpsynth_platform.synth.text.inference_contexts import Contexts, placed
from dpsynth_platform.synth.text.inference_model import MOST_ROWS, Context, Prompts, Rows, independent_rows
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters
from dpsynth_platform.synth.text.inference_writing import Writer, shape_of
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.sampling import read_texts
from dpsynth_platform.synth.text.sealing import topics_of
from dpsynth_platform.synth.text.topic_sorting import as_learned

GENERATOR = generator("dp_inference")
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("topic", pa.string()), ("body", pa.string())])
TEXTS = {"sport": "the team was late again", "trade": "please send the parcel by monday"}
LAYOUT = TextLayout(("body",), (Condition("topic", ("sport", "trade")),), max_tokens=40)
DRAWN = {"document_tokens": 8, "batch_size": 25, "clipping_norm": 1.0, "temperature": 1.0}


def contract_for(base, *, text=None, rows=12, **changes):
    inference = DRAWN | {key: value for key, value in changes.items() if key in Inference.model_fields}
    privacy = {key: value for key, value in changes.items() if key not in inference}
    return letters_contract(
        {"topic": {"type": "categorical", "values": ["sport", "trade"]}},
        {
            "method": "dp_inference",
            "base_model": str(base),
            "rows": rows,
            "text": {"max_tokens": 40, "inference": inference} | (text or {}),
        },
        privacy={"guarantee": {"epsilon": 8.0, "delta": 1e-4}} | privacy,
        description=ABOUT,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"), reader("topic", ("sport", "trade"), "body"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    rng = np.random.default_rng(3)
    topics = [("sport", "trade")[number] for number in rng.integers(0, 2, 200)]
    columns = {"topic": topics, "body": [TEXTS[topic] for topic in topics]}
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", columns)


def planned(base, **changes):
    contract = contract_for(base, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def test_an_encoder_decoder_model_is_refused_with_a_plan(tmp_path):
    with pytest.raises(ConfigurationError, match="method dp_inference accepts: a causal language model"):
        planned(save_model(tmp_path / "base", tiny_bart()))


@pytest.fixture(scope="module")
def model(base, bounded, tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPSYNTH_HOME", str(place))
        return fitted(planned(base), bounded, place / "model")


def inference_plan(**changes):
    terms = Inference(**DRAWN).model_dump(exclude={"about"}) | {"contexts": 1, "tokens": 24}
    return InferencePlan(**terms | {"adjacency": "add-or-remove", "max_contributions": 100} | changes)


# The plan.


def test_counts_and_tokens_cost_together_no_more_than_is_asked_for(base):
    plan = planned(base, rows="auto")
    parameters = InferenceParameters.of(plan)
    cost = epsilon(event_from_json(plan.event), 1e-4).epsilon
    assert 7.5 < cost <= 8.0
    assert parameters.inference.contexts == 4
    GENERATOR.check(plan)
    described = GENERATOR.describe(plan)
    assert described["documents_at_least"] == 4 * (parameters.inference.tokens // 8)
    assert described["next_tokens_asked_for"] == 4 * parameters.inference.tokens * 26
    assert f"at least {described['documents_at_least']} documents" in described["training_in_words"]
    with pytest.raises(ContractError, match=f"rows up to {described['documents_at_least']},"):
        planned(base, rows=described["documents_at_least"] + 4)


def test_a_plan_whose_parts_cost_something_else_is_refused(base):
    plan = planned(base)
    parts = plan.parameters["inference"]
    for changed in ({"tokens": parts["tokens"] + 1}, {"clipping_norm": 9.0}, {"max_contributions": 1}):
        other = replace(plan, parameters=plan.parameters | {"inference": parts | changed})
        with pytest.raises(GrantRefused):
            GENERATOR.check(other)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"adjacency": "replace-one"}, "assigns each owner to one context"),
        ({"adjacency": "fixed-graph"}, "assigns each owner to one context"),
        ({"weighting": "owners"}, "accepted: rows"),
        ({"batch_size": 60}, r"makes 1 contexts, and .* have 2 combinations"),
        ({"batch_size": 101, "text": {"given": []}}, "makes 0 contexts"),
        ({"text": {"temperature": 0.5}}, "the mechanism draws the texts"),
        ({"text": {"top_k": 5}}, "the mechanism draws the texts"),
        ({"text": {"chunks": 2}}, "the mechanism draws the texts"),
        ({"in_series": True}, "in_series: true with records_per_owner 1"),
        ({"clip": "logits", "top_k": 5}, "accepted: none, or clip difference"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
    ],
)
def test_an_impossible_contract_is_refused(base, changes, said):
    with pytest.raises(ContractError, match=said):
        contract_for(base, **changes)


def test_other_rows_and_other_draws_are_another_mechanism(base):
    one = contract_for(base).mechanism_snapshot()
    assert one != contract_for(base, rows=13).mechanism_snapshot()
    assert one != contract_for(base, temperature=1.1).mechanism_snapshot()
    told = contract_for(base).model_copy(update={"description": "Other letters."})  # the words that head every prompt
    assert changes(contract_for(base), told) == ["inference.about"]
    named = contract_for(base, about=ABOUT)
    assert changes(named, named.model_copy(update={"description": "Other letters."})) == []


def test_a_model_that_sees_too_few_tokens_is_refused(tmp_path):
    short = save_model(tmp_path / "short", tiny_llama(positions=64))
    with pytest.raises(ConfigurationError, match="the model sees 64 tokens, texts have"):
        planned(short)


# Contexts of one topic.


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    return two_topics(tmp_path_factory.mktemp("topics") / "topics.safetensors", list(TEXTS.values()))


def by_topics(topics, **more):
    return {"max_tokens": 64, "topics": {"model": str(topics), "public": "made of two sentences", "count": 16, **more}}


def test_topics_and_tokens_cost_together_what_is_asked_for(base, topics):
    plan = planned(base, rows="auto", text=by_topics(topics, noise=2.0))
    parameters = InferenceParameters.of(plan)
    assert 7.5 < epsilon(event_from_json(plan.event), 1e-4).epsilon <= 8.0
    assert parameters.layout.conditions[0] == Condition("keywords", (*TOPICS, "unclassified"))
    assert "one of 16 public topics" in GENERATOR.describe(plan)["training_in_words"]
    assert "public topics" in statement.words_of(plan.method, plan.event).counts
    # Topics do not change what tokens cost.
    plain = InferenceParameters.of(planned(base, rows=12)).inference
    assert InferenceParameters.of(planned(base, rows=12, text=by_topics(topics))).inference == plain
    GENERATOR.check(plan)


@pytest.mark.parametrize(("batch_size", "level"), [(100, 16), (25, 32), (10, 64)])
def test_there_are_no_more_topics_than_contexts(base, batch_size, level):
    """Of 900 owners with two records each, noise alone would leave 128 topics."""
    text = {"topics": {"noise": 2.0}}
    contract = contract_for(base, batch_size=batch_size, expected_units=900, text=text)
    assert topics_of(contract, Guarantee.target(contract)).level == level


def test_records_of_a_context_have_its_topic(base, topics, bounded, tmp_path, monkeypatch):
    """Sentences about teams and parcels, under both labels: topics follow from texts alone."""
    monkeypatch.setattr("dpsynth_platform.synth.tabular.drawing.sample_rounded_gaussian", lambda counts, sigma: counts)
    seen, written = [], Writer.texts
    monkeypatch.setattr(Writer, "texts", lambda *of: seen.append(of[1:3]) or written(*of))
    columns = {"topic": ["sport"] * 200, "body": [TEXTS[("sport", "trade")[at % 4 == 0]] for at in range(200)]}
    table = bounded_table(tmp_path / "table", columns)
    plan, model = planned(base, text=by_topics(topics) | CHOSEN), tmp_path / "model"
    fitted(plan, table, model)
    ((contexts, owners),) = seen
    assert Counter(label[0] for label in contexts.labels) == {"team": 3, "parcel": 1}
    about = {"team": {TEXTS["sport"]}, "parcel": {TEXTS["trade"]}}
    for label, context in zip(contexts.labels, owners, strict=True):
        assert {body.strip() for own in context.values() for body in own} == about[label[0]]
    assert not list(tmp_path.glob("*-topics*"))
    assert "keywords" not in GENERATOR.draw(model, 3).table().schema.names
    prompts = Prompts(Encoder(InferenceParameters.of(plan).layout, tiny_tokenizer()), ABOUT)
    assert prompts.public(("team", "sport")) == Prompts(Encoder(LAYOUT, tiny_tokenizer()), ABOUT).public(("sport",))
    learned = as_learned(plan, pa.table({"topic": ["sport"], "body": [TEXTS["trade"]]}))
    assert learned.to_pylist()[0]["keywords"] == "parcel"


def test_a_topic_model_that_is_not_the_plan_s_is_refused_before_the_data_are_read(base, topics, bounded, tmp_path):
    own = tmp_path / "own.safetensors"
    own.write_bytes(topics.read_bytes())
    plan = planned(base, text=by_topics(own))
    two_topics(own, list(TEXTS.values())[::-1])
    with pytest.raises(ConfigurationError, match="is not the file of the plan"):
        fitted(plan, bounded, tmp_path / "model")
    assert unread.is_unread(tmp_path / "model")


# Prompts, and rows by themselves.


@pytest.fixture(scope="module")
def encoder():
    return Encoder(LAYOUT, tiny_tokenizer())


def test_a_record_is_between_two_prompts_and_cannot_break_out(encoder):
    prompts = Prompts(encoder, ABOUT)
    (tokens,) = prompts.of_records(("sport",), [" one\n\n \n\nAnother record:\n<|endoftext|>"])
    text = encoder.text(tokens)
    assert text.startswith("<s>Letters to the editor.\n\nOne record:\n\ntopic: sport\nbody: one\nAnother record:")
    assert text.endswith("\n\nAnother record:\n\ntopic: sport\nbody:")
    assert text.count("\n\n") == 4
    assert encoder.eos not in tokens
    public = encoder.text(prompts.public(("sport",)))
    assert public == "<s>Letters to the editor.\n\nOne record:\n\ntopic: sport\nbody:"
    (longest,) = prompts.of_records(("trade",), ["x" * 10_000])
    assert max(len(tokens), len(longest)) <= prompts.longest


def test_records_of_one_owner_follow_each_other_in_a_prompt(encoder):
    prompts = Prompts(encoder, ABOUT, 3)
    one, several = prompts.of_series(("sport",), [[" a"], [" a", " b", "x" * 10_000]])
    assert one == prompts.of_records(("sport",), [" a"])[0]
    text = encoder.text(several)
    assert text.startswith(f"{encoder.text(one)} b\n\nAnother record:\n\ntopic: sport\nbody: x")
    assert text.endswith("x\n\nAnother record:\n\ntopic: sport\nbody:")
    assert Prompts(encoder, ABOUT).longest < len(several) <= prompts.longest
    assert prompts.public(("sport",)) == Prompts(encoder, ABOUT).public(("sport",))


def test_a_prompt_needs_no_words_about_the_texts(base, encoder):
    assert encoder.text(Prompts(encoder, "").public(("sport",))) == "<s>One record:\n\ntopic: sport\nbody:"
    assert InferenceParameters.of(planned(base, about="")).about == ""
    assert contract_for(base, about="").mechanism_snapshot() != contract_for(base).mechanism_snapshot()


SERIES = {"in_series": True, "records_per_owner": 2}


def test_prompts_of_several_records_cost_the_same(base):
    plain, plan = planned(base, records_per_owner=2), planned(base, **SERIES)
    assert plan.event == plain.event
    assert plan.digest != plain.digest
    assert "in_series" not in plain.parameters["inference"]
    parameters, before = InferenceParameters.of(plan), InferenceParameters.of(plain)
    assert parameters.inference == replace(before.inference, in_series=True)
    assert parameters.inference.prompts_kept == before.inference.prompts_kept / 2
    GENERATOR.check(plan)
    assert "in_series" not in str(contract_for(base).mechanism_snapshot())


def test_an_owner_of_many_records_in_series_moves_a_score_as_one(encoder, monkeypatch):
    """With and without an owner of a hundred records: the other owners' scores are the same, and theirs is clipped."""
    plan = inference_plan(clipping_norm=0.1, batch_size=3, tokens=8, in_series=True, records_per_owner=3)
    records = [(f"{number:032x}", ("sport",), f" the team was late {at}") for number in range(4) for at in range(3)]
    many = [("f" * 32, ("sport",), f" zzz {number}") for number in range(100)]
    contexts, seen = Contexts((("sport",),)), []
    monkeypatch.setattr(inference_writing, "drawn", lambda scored, *_, **__: seen.append(scored.clone()) or 20)
    writer = Writer(tiny_llama(positions=512), encoder, Prompts(encoder, ABOUT, 3), plan)
    for there in (records, [*many, *records]):
        writer.texts(contexts, placed(there, contexts, bytes(32), most=3))
    moved = [other - one for one, other in zip(seen[:8], seen[8:], strict=True)]
    assert 0.99 * PARTS < max(int(change.abs().max()) for change in moved) <= PARTS


def test_a_run_with_records_in_series(base, bounded, tmp_path, monkeypatch):
    seen, of_series = [], Prompts.of_series
    monkeypatch.setattr(Prompts, "of_series", lambda self, given, own: seen.append(own) or of_series(self, given, own))
    model = fitted(planned(base, **SERIES), bounded, tmp_path / "model")
    assert GENERATOR.draw(model, 2).table().num_rows <= 2
    assert {len(own) for context in seen for own in context} == {1, 2}


def test_the_longest_prompt_is_found_part_by_part():
    values = tuple(f"{'long' * (number % 3)} value {number}" for number in range(40))
    few = TextLayout(("body",), tuple(Condition(name, values[:4]) for name in ("a", "bb")), max_tokens=64)
    small = Encoder(few, tiny_tokenizer())
    every = max(len(small.prompt((one, other))) for one in values[:4] for other in values[:4])
    assert Prompts(small, ABOUT).longest == every + Prompts(small, ABOUT).longest - small.longest_prompt()
    assert small.longest_prompt() == every
    began = time.monotonic()
    many = TextLayout(("body",), tuple(Condition(f"c{at}", values) for at in range(12)), max_tokens=1024)
    Prompts(Encoder(many, tiny_tokenizer()), ABOUT)
    assert time.monotonic() - began < 300  # one by one it would be 40^12


@pytest.mark.parametrize("made", [tiny_llama, tiny_gpt2])
def test_kept_keys_and_values_give_what_a_plain_pass_gives_also_for_a_second_document(made):
    model = made(positions=256)
    rows = Rows(model, [[1, 2, 3, 4], [5, 6]], longest=10, more=6)
    rows.begin(), rows.advance(9), rows.advance(8)
    found = [rows.begin(), rows.advance(7), rows.advance(11)]
    with torch.inference_mode():
        for row, prompt in enumerate(([1, 2, 3, 4], [5, 6])):
            logits = model(input_ids=torch.tensor([[*prompt, 7, 11]])).logits[0, len(prompt) - 1 :]
            assert torch.allclose(torch.stack([step[row] for step in found]), logits, atol=1e-4)


def test_a_row_is_computed_alike_to_the_last_bit_whatever_else_is_in_the_context():
    model = tiny_llama(positions=256)
    shape = {"longest": 30, "more": 6}
    rows = independent_rows(model, **shape)
    own, filler = [3, 1, 4, 1, 5, 9, 2, 6], [5, 6]
    others = [[8] * length for length in range(2, 29)]
    found = []
    for prompts, place in (([own], 0), ([*others, own], len(others)), ([*others[:3], own, *others[5:]], 3)):
        for kept in (len(prompts), rows, 0):
            context = Context(model, prompts, filler, rows=rows, kept=kept, **shape)
            list(context.begin())
            found.append(list(context.advance(7))[place])
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_model_with_dependent_rows_computes_one_row_at_a_time(monkeypatch):
    model, step = tiny_llama(positions=256), Rows.step
    assert 1 < independent_rows(model, longest=12, more=4) <= MOST_ROWS

    def mixed(self, tokens):
        logits = step(self, tokens)
        return logits + logits.mean(dim=0, keepdim=True)

    with monkeypatch.context() as patched:
        patched.setattr(Rows, "step", mixed)
        assert independent_rows(model, longest=12, more=4) == 1

    def by_the_longest(self, tokens):
        """As models do that rescale positions where a text in the batch is longer than they were trained for."""
        return step(self, tokens) * (2 if self._lengths.max() > 11 else 1)

    with monkeypatch.context() as patched:
        patched.setattr(Rows, "step", by_the_longest)
        assert independent_rows(model, longest=12, more=4) == 1
    model.add_module("experts", torch.nn.Linear(1, 1))
    assert independent_rows(model, longest=12, more=4) == 1


# What an owner moves.


@pytest.mark.parametrize("clip", ["difference", "logits"])
def test_an_owner_of_a_hundred_documents_moves_no_score_by_more_than_the_event_claims(encoder, monkeypatch, clip):
    """Both neighbours write the same tokens, so that every choice's scores can be held against each other."""
    model = tiny_llama(positions=256)
    plan = inference_plan(clip=clip, clipping_norm=0.1, batch_size=3, records_per_owner=100)
    records = [(f"{number:032x}", ("sport",), f" the team was late {number}") for number in range(7)]
    many = [("f" * 32, ("sport",), f" zzz {number}") for number in range(100)]
    contexts, seen = Contexts((("sport",),)), []

    def told(scored, tokens, chosen, *, barred=()):
        seen.append((scored.clone(), tokens, chosen))
        return int(torch.arange(20, 60)[len(seen) % 24])

    monkeypatch.setattr(inference_writing, "drawn", told)
    writer = Writer(model, encoder, Prompts(encoder, ABOUT), plan)
    for there in (records, [*many, *records]):
        writer.texts(contexts, placed(there, contexts, bytes(32), most=100))
    assert len(seen) == 2 * 24
    moved = [other[0] - one[0] for one, other in zip(seen[:24], seen[24:], strict=True)]
    widest = max(int(change.abs().max()) for change in moved)
    assert 0.99 * PARTS < widest <= PARTS
    assert all(torch.equal(one[1], other[1]) for one, other in zip(seen[:24], seen[24:], strict=True))
    assert {chosen for _, _, chosen in seen} == {plan.epsilon_of_choice} == {2 * 0.1 / 3}


def test_a_context_of_far_more_records_than_are_expected_takes_no_more_memory(encoder, monkeypatch):
    made, model, plan = [], tiny_llama(positions=256), inference_plan(batch_size=4, tokens=8)
    monkeypatch.setattr(inference_writing, "drawn", lambda *_, **__: 20)
    read = Rows.__init__

    def counted(self, *arguments, **shape):
        read(self, *arguments, **shape)
        made.append(weakref.ref(self))
        most.append(sum(one() is not None for one in made))

    most = []
    monkeypatch.setattr(Rows, "__init__", counted)
    writer = Writer(model, encoder, Prompts(encoder, ABOUT), plan)
    made.clear(), most.clear()
    writer.texts(Contexts((("sport",),)), [{f"{number:032x}": [f" {number}"] for number in range(200)}])
    assert max(most) <= 1 + -(-plan.prompts_kept // writer._rows) + 1
    assert plan.prompts_kept == 13


def test_progress_tells_the_load_of_no_context_and_of_no_label(encoder, monkeypatch):
    """The owners of a label are many: their contexts take longer, and are reported together with others."""
    told, order, number = [], [], 40
    writer = Writer(tiny_llama(positions=256), encoder, Prompts(encoder, ABOUT), inference_plan())
    monkeypatch.setattr(Writer, "_documents", lambda self, label, bodies: order.append(bodies["at"]) or iter([]))
    contexts = Contexts((("sport",),) * 20 + (("trade",),) * 20)
    writer.texts(contexts, [{"at": at} for at in range(number)], lambda stage, done, total: told.append(done))
    assert told == [0, 10, 20, 30, 40]
    assert sorted(order) == list(range(number)) != order
    for few, lines in ((11, [0, 11]), (19, [0, 19]), (20, [0, 10, 20]), (29, [0, 10, 29])):
        told.clear()
        owners = [{"at": at} for at in range(few)]
        writer.texts(Contexts((("sport",),) * few), owners, lambda stage, done, total: told.append(done))
        assert told == lines


def test_contexts_without_the_owner_ask_the_same(encoder, monkeypatch):
    monkeypatch.setattr(inference_writing, "_shuffled", range)
    model, plan = tiny_llama(positions=256), inference_plan(tokens=8)
    records = [(f"{number:032x}", ("sport",), f" the team was late {number}") for number in range(12)]
    contexts, seen = Contexts((("sport",),) * 3), []
    monkeypatch.setattr(inference_writing, "drawn", lambda scored, *_, **__: seen.append(scored.clone()) or 20)
    writer = Writer(model, encoder, Prompts(encoder, ABOUT), plan)
    for there in (records, [*records, ("f" * 32, ("sport",), " zzz")]):
        writer.texts(contexts, placed(there, contexts, bytes(32), most=1))
    ((place,),) = [[at for at, owners in enumerate(placed(
        [("f" * 32, ("sport",), " zzz")], contexts, bytes(32), most=1)) if owners]]  # fmt: skip
    for at in range(3):
        alike = [torch.equal(seen[step], seen[24 + step]) for step in range(8 * at, 8 * at + 8)]
        assert not any(alike) if at == place else all(alike)


def test_no_context_draws_more_tokens_than_its_plan_has(encoder, monkeypatch):
    model, plan = tiny_llama(positions=256), inference_plan(tokens=21, document_tokens=8)
    chosen = iter([20, encoder.eos, *[20] * 8, *[20] * 8, *[20] * 30])
    count = []
    monkeypatch.setattr(inference_writing, "drawn", lambda *_, **__: count.append(1) or next(chosen))
    texts = Writer(model, encoder, Prompts(encoder, ABOUT), plan).texts(Contexts((("sport",),)), [{"a": [" x"]}])
    assert [text.tokens for text in texts] == [2, 8, 8]
    assert [text.ended for text in texts] == [True, False, False]
    assert len(count) == 18 <= plan.tokens


def test_a_document_ends_with_a_blank_line_and_its_first_token_is_no_end(encoder, monkeypatch):
    breaks = encoder.bodies([" x\n\ny"])[0]
    chosen = iter([*breaks, *[20] * 30])

    def told(scored, tokens, range_, *, barred=()):
        seen.append(tuple(barred))
        return next(chosen)

    seen = []
    monkeypatch.setattr(inference_writing, "drawn", told)
    plan = inference_plan(tokens=8, document_tokens=8)
    (text,) = Writer(tiny_llama(positions=256), encoder, Prompts(encoder, ABOUT), plan, never=[0], blank=[7]).texts(
        Contexts((("sport",),)), [{}]
    )
    assert (text.body, text.ended) == (" x", True)
    assert seen[0] == (0, 7, encoder.eos)
    assert set(seen[1:]) == {(0,)}


def test_records_are_read_once_for_all_documents(encoder):
    model, calls = tiny_llama(positions=256), []
    plan = inference_plan(tokens=24, document_tokens=8)
    writer = Writer(model, encoder, Prompts(encoder, ABOUT), plan)
    model.register_forward_hook(
        lambda _, args, kwargs, out: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    longest = shape_of(Prompts(encoder, ABOUT), 8)["longest"]
    writer.texts(Contexts((("sport",),)), [{"a": [" x"], "b": [" y"]}])
    assert calls.count(longest) == 2  # the public prompt, and the batch of records
    assert set(calls) == {longest, 1}


# The line of it.


def test_what_is_written_is_drawn_and_no_more(model):
    written = list(read_texts(model))
    assert len(written) >= 12
    assert {text.given for text in written} == {("sport",), ("trade",)}
    table = GENERATOR.draw(model).table()
    assert table.schema.names == ["letter", "reader", "topic", "body"]
    assert (
        1 <= table.num_rows <= len(written)
    )  # of 144 documents 142 made a row: twelve that make none are out of reach
    # Two labels may have the same text: a document is known by both.
    fields = [(text.given[0], LAYOUT.parsed(text.body)) for text in written]  # what is no body has no row
    documents = Counter((label, found["body"].strip()) for label, found in fields if found)
    assert Counter((row["topic"], row["body"].strip()) for row in table.to_pylist()) <= documents
    assert GENERATOR.draw(model, 3).table().num_rows <= 3
    with pytest.raises(ContractError, match=f"{len(written)} documents were paid for and written"):
        GENERATOR.draw(model, len(written) + 1)
    only = GENERATOR.draw(model, given={"topic": ["trade"]}).table()
    assert set(only.column("topic").to_pylist()) <= {"trade"}


CHOSEN = {"resample": {"clusters": 3, "noise": 2.0, "pool": 2.5}}
LABELLED = {"resample": {"by": "labels", "noise": 2.0, "pool": 2.5}}


def test_documents_to_choose_among_and_votes_for_them_are_paid_for(base):
    plain, plan = planned(base, rows=12), planned(base, rows=12, text=CHOSEN)
    parameters = InferenceParameters.of(plan)
    assert parameters.inference.documents == 32  # 4 contexts, 30 documents
    assert InferenceParameters.of(plain).inference.documents == 12
    votes = [leaf for leaf, _ in leaves(event_from_json(plan.event)) if isinstance(leaf, GaussianVotesEvent)]
    assert votes == [GaussianVotesEvent(2.0, "add-or-remove", 2)]
    GENERATOR.check(plan)
    cheaper = plan.parameters | {"resampling": plan.parameters["resampling"] | {"sigma": 1.0}}
    with pytest.raises(GrantRefused, match="privacy event"):
        GENERATOR.check(replace(plan, parameters=cheaper))
    described = GENERATOR.describe(plan)["event"]
    assert described.endswith("then a histogram of votes for up to 3 clusters of the documents, with noise of 2 votes")
    assert "of which votes choose one in 2.5" in GENERATOR.describe(plan)["training_in_words"]
    # The same documents cost more with a vote.
    alone, beside = (epsilon(event_from_json(one.event), 1e-4).epsilon for one in (planned(base, rows=30), plan))
    assert alone < beside <= 8.0
    auto = InferenceParameters.of(planned(base, rows="auto", text=CHOSEN)).inference
    assert 0 < auto.tokens < InferenceParameters.of(planned(base, rows="auto")).inference.tokens
    most = auto.documents * 2 // 5
    with pytest.raises(ContractError, match=rf"documents are requested; accepted: rows up to {most},"):
        planned(base, rows=auto.documents, text=CHOSEN)


def test_a_run_interrupted_before_the_vote_continues_with_it(base, bounded, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    plan, voted = planned(base, text=CHOSEN), []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(resampling, "noisy_votes", stopped)
        fitted(plan, bounded, tmp_path / "model")
    model = tmp_path / "model"
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    with pytest.raises(MechanismFailed, match="not complete"):
        GENERATOR.draw(model, 3)
    documents = (model / "texts.jsonl").read_bytes()
    monkeypatch.setattr(Writer, "texts", lambda *_: pytest.fail("documents were drawn twice"))
    monkeypatch.setattr(resampling, "noisy_votes", lambda *rest: voted.append(1) or noisy_votes(*rest))
    fitted(plan, bounded, model, resume=True)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model), voted) == (True, False, [1])
    assert (model / "texts.jsonl").read_bytes() == documents
    assert sorted(file.name for file in model.iterdir()) == sorted(
        ["columns", "plan.json", "resampling.json", "texts.jsonl", "written.json"]
    )


def test_how_many_rows_there_will_be_is_said_as_it_is(base):
    every = "one for every 2.5 documents"
    for text, stated, said in (
        ({}, "as many as documents", "one for every document that"),
        (CHOSEN, every, every),
        (LABELLED, f"{every} that were paid for and written, chosen by noisy sums", every),
    ):
        contract = contract_for(base, rows="auto", text=text)
        assert statement._rows(contract).startswith(f"synthetic rows, {stated}")
        assert contract_words._rows(contract).startswith(said)


def test_a_share_of_each_label_is_taken_and_all_where_some_are_left_out():
    assert _shares({("a",): ["x"] * 20, ("b",): ["x"] * 5, ("c",): []}, 10) == {("a",): 8, ("b",): 2, ("c",): 0}
    assert _shares({("a",): ["x"] * 3, ("b",): ["x"]}, 10) == {("a",): 3, ("b",): 1}
    assert _shares({}, 10) == {}


def test_documents_are_chosen_by_votes(base, bounded, tmp_path, monkeypatch):
    seen = []

    def voted(voters, *rest):
        seen.append(voters)
        return noisy_votes(voters, *rest)

    monkeypatch.setattr(resampling, "noisy_votes", voted)
    model = fitted(planned(base, rows=12, text=CHOSEN), bounded, tmp_path / "model")
    (voters,) = seen
    assert (len(voters.features), len(set(voters.owners.tolist()))) == (200, 100)
    written, drawn = list(read_texts(model)), GENERATOR.draw(model).table()
    assert len(written) >= 32
    assert 1 <= drawn.num_rows <= len(written) * 2 // 5
    assert GENERATOR.draw(model, 3).table().num_rows <= 3
    most = len(written) * 2 // 5
    with pytest.raises(ContractError, match=rf"of which one in 2.5 is taken, .* accepted: up to {most} rows"):
        GENERATOR.draw(model, most + 1)
    (model / resampling.FILE_NAME).unlink()
    with pytest.raises(MechanismFailed, match="not complete"):
        GENERATOR.draw(model, 3)


def test_documents_get_their_labels_by_sums(base, bounded, tmp_path):
    plan = planned(base, rows=12, text=LABELLED)
    assert GaussianSumsEvent(2.0, "add-or-remove", 2) in [leaf for leaf, _ in leaves(event_from_json(plan.event))]
    described = GENERATOR.describe(plan)
    assert "then sums of sentence features for each" in described["event"]
    assert "of which sums of features choose one in 2.5" in described["training_in_words"]
    model = fitted(plan, bounded, tmp_path / "model")
    written = {text.body.strip() for text in read_texts(model)}
    drawn = GENERATOR.draw(model, 6).table()
    assert 1 <= drawn.num_rows <= 6
    assert {text.strip() for text in drawn.column(InferenceParameters.of(plan).layout.fields[0]).to_pylist()} <= written


def test_before_a_record_is_read_the_same_entry_begins_again(base, bounded, tmp_path, monkeypatch):
    """As where a device is in use. Only one process gets to read, and once it does, nothing begins again."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    plan, model, keys = planned(base), tmp_path / "model", []
    with monkeypatch.context() as patch:
        patch.setattr(inference._CheckedModel, "prepared", stopped)
        for resume in (False, True):
            with pytest.raises(KeyboardInterrupt):
                fitted(plan, bounded, model, resume=resume)
            assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
            assert [file.name for file in model.iterdir()] == [unread.FILE_NAME]

    with monkeypatch.context() as patch:
        patch.setattr(inference, "Writer", lambda *_, **__: unread.begin_reading(model))
        patch.setattr(inference.counted, "measure", lambda *_: pytest.fail("two processes read"))
        with pytest.raises(ResumeRefused, match="another process"):
            fitted(plan, bounded, model, resume=True)
    assert not GENERATOR.can_resume(model)
    unread.declare_unread(model)
    monkeypatch.setattr(inference, "placed", lambda *of, **most: keys.append(of[-1]) or placed(*of, **most))
    fitted(plan, bounded, model, resume=True)
    fitted(plan, bounded, tmp_path / "other")
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (True, False)
    # Who is in which context is chosen by a new key each time.
    assert {len(key) for key in keys} == {32} and keys[0] != keys[1]


def test_no_special_token_is_drawn_whether_it_has_a_role_or_not(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True)])
    place = save_model(tmp_path / "base", tiny_llama(tokenizer, positions=256), tokenizer)
    asked = inference._CheckedModel.prepared(trained.deployed(str(place)), LAYOUT, ABOUT, 8)
    assert tokenizer.convert_tokens_to_ids("<|turn|>") in asked.never
    assert asked.encoder.eos not in asked.never


def test_an_interrupted_mechanism_never_continues(model, base, bounded, tmp_path, monkeypatch):
    assert GENERATOR.is_complete(model)
    assert not GENERATOR.can_resume(model)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "texts", stopped)
    plan = planned(base)
    with pytest.raises(KeyboardInterrupt):
        fitted(plan, bounded, tmp_path / "cut")
    assert not GENERATOR.is_complete(tmp_path / "cut")
    assert not GENERATOR.can_resume(tmp_path / "cut")
    with pytest.raises(MechanismFailed, match="not complete"):
        GENERATOR.draw(tmp_path / "cut", 3)
    with pytest.raises(MechanismFailed, match="not complete"):
        GENERATOR.estimate(plan, tmp_path / "cut")


def test_documents_that_were_changed_are_refused(model, tmp_path):
    import shutil

    other = shutil.copytree(model, tmp_path / "other")
    with (other / "texts.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(MechanismFailed, match="damaged"):
        GENERATOR.draw(other, 3)


def test_a_grant_for_another_plan_or_no_model_is_refused_before_the_data_are_read(base, tmp_path):
    plan = planned(base)
    with pytest.raises(GrantRefused):
        fitted(plan, tmp_path / "nowhere", tmp_path / "model", of="0" * 64)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    with pytest.raises(GrantRefused, match="base model"):
        GENERATOR.fit(plan, tmp_path / "nowhere", grant, tmp_path / "model")


def test_what_owners_agree_on_is_written(encoder):
    """Where all say the same, and nothing is clipped, a document is what the model makes of it."""
    model = reader("topic", ("sport", "trade"), "body")
    plan = inference_plan(
        clip="logits", clipping_norm=500.0, batch_size=5, tokens=32, document_tokens=32, temperature=0.1
    )
    bodies = {f"{number:032x}": [f" {SENTENCES[0]}"] for number in range(5)}
    (text, *_) = Writer(model, encoder, Prompts(encoder, ABOUT), plan).texts(Contexts((("sport",),)), [bodies])
    (prompt,) = Prompts(encoder, ABOUT).of_records(("sport",), [SENTENCES[0]])
    with torch.inference_mode():
        found = model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0, len(prompt) :].tolist()
    assert text.body == encoder.text(found[: found.index(encoder.eos)])
