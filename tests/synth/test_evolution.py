"""Private evolution of texts as a generator: its plan, its votes on a table, and rows from what lived on."""

import json
import os
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pyarrow as pa
import pytest
import torch
from endpoint_cases import TEXTS, serving
from text_cases import bounded_table, fitted, letters_contract, save_model, tiny_bart, tiny_llama, tiny_tokenizer

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    GrantRefused,
    MechanismFailed,
    ResumeRefused,
)
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianSumsEvent, GaussianVotesEvent, event_from_json, leaves, twice
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import WORDS, words_of
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.endpoint_access import Transport, transport_of
from dpsynth_platform.synth.evolution.journal import FILE_NAME
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.planning import changes
from dpsynth_platform.synth.text import evolution, resampling
from dpsynth_platform.synth.text.dp_finetune import COLUMNS
from dpsynth_platform.synth.text.evolution import AugPe
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.resampling import ClusterVotes, read_votes
from dpsynth_platform.synth.text.sealing import started_from

GENERATOR = generator("aug_pe")
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("kind", pa.string()), ("body", pa.string())])
SECRET = "zanzibar"
EVOLUTION = {"about": "short letters", "population": 6, "variations": 1, "rounds": 3}


class Letters:
    """An encoder that knows how often some letters stand in a text; milliseconds sooner than the real one."""

    def __init__(self, device):
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
    """Two letters of each of fifty readers, all with a word that no prompt may hold."""
    kinds = [("mail", "note")[number % 3 == 0] for number in range(100)]
    bodies = [f"{TEXTS[kind][number % 2]} {SECRET}" for number, kind in enumerate(kinds)]
    return bounded_table(tmp_path_factory.mktemp("bounded") / "table", {"kind": kinds, "body": bodies})


def contract_for(*, endpoint=None, base="some-model", generate=(), text=(), privacy=(), **changes):
    evolved = EVOLUTION | changes | ({} if endpoint is None else {"endpoint": {"url": endpoint, "attempts": 2}})
    declared = {
        "method": "aug_pe",
        **({} if base is None else {"base_model": str(base)}),
        "rows": 12,
        "text": {"max_tokens": 40, "given": ["kind"], "evolution": evolved} | dict(text),
    }
    kinds = {"kind": {"type": "categorical", "values": ["mail", "note"]}}
    return letters_contract(kinds, declared | dict(generate), privacy=privacy)


def planned(**changes):
    contract = contract_for(**changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def test_an_encoder_decoder_model_is_refused_with_a_plan(tmp_path):
    with pytest.raises(ConfigurationError, match="method aug_pe accepts: a causal language model"):
        planned(base=save_model(tmp_path / "base", tiny_bart()))


def test_counts_and_votes_cost_together_what_is_asked_for(server):
    plan = planned(endpoint=server.url)
    guarantee = Guarantee.from_json(plan.guarantee)
    event = event_from_json(plan.event)
    assert 7.9 < epsilon(event, guarantee.delta).epsilon <= 8.0
    votes = [(leaf, times) for leaf, times in leaves(event) if isinstance(leaf, GaussianVotesEvent)]
    assert votes == [(GaussianVotesEvent(EvolutionParameters.of(plan).sigma, "add-or-remove", 2), 3)]
    GENERATOR.check(plan)
    assert not server.asked  # a plan asks nobody
    described = plan.describe()
    assert "3 histograms of votes" in described["event"]
    assert "127.0.0.1" in described["training_in_words"]


def test_the_sentences_for_readers_say_what_is_done(server):
    """Votes among the texts of a record's own label, and by the length of an owner's votes: not by their sum."""
    words = GENERATOR.describe(planned(endpoint=server.url, lookahead=2))["training_in_words"]
    assert "among those of its kind, is nearest to its own, by the mean of 2 variations" in words
    assert "all votes of one owner have the length (L2 norm) of one vote together" in words
    assert "from public words and from texts of its own that were chosen" in words
    graph = {"adjacency": "fixed-graph", "owner_columns": ["reader"]}
    described = GENERATOR.describe(planned(endpoint=server.url, privacy=graph, text={"given": []}))
    for words in (described["event"], described["training_in_words"]):
        assert "one vote in full" in words
        assert "L2" not in words
    assert "In each of 3 rounds every record votes" in words
    once = GENERATOR.describe(planned(endpoint=server.url, rounds=1))["training_in_words"]
    assert "In the one round every record votes" in once
    said = WORDS["aug_pe"]
    assert "written for the record's own label" in said.votes
    assert "after the first votes, from texts of its own" in said.result
    assert f"votes and of sums of features to 1/{RECORD_PARTS}" in said.noise.assumption


def test_a_plan_with_less_noise_than_its_event_is_refused(server):
    plan = planned(endpoint=server.url)
    parts = plan.parameters | {"sigma": plan.parameters["sigma"] / 2}
    with pytest.raises(GrantRefused, match="privacy event"):
        GENERATOR.check(replace(plan, parameters=parts))
    with pytest.raises(GrantRefused, match="not for private evolution"):
        GENERATOR.check(replace(plan, parameters={}))


def test_as_many_texts_live_on_as_noise_leaves_votes_for(server):
    few = EvolutionParameters.of(planned(endpoint=server.url, population="auto"))
    many = EvolutionParameters.of(planned(endpoint=server.url, population="auto", privacy={"expected_units": 10_000}))
    assert few.population == max(10, int(100 / (2 * 3 * few.sigma)))
    assert 10_000 / (many.population * 2) >= 3 * many.sigma
    assert 10_000 / ((many.population + 1) * 2) < 3 * many.sigma or many.population == 2000


def test_texts_evolve_behind_an_endpoint_that_sees_no_private_word(server, bounded, tmp_path):
    plan, model = planned(endpoint=server.url), tmp_path / "model"
    assert SealedPlan.from_json(plan.to_json()).digest == plan.digest
    fitted(plan, bounded, model)
    assert GENERATOR.is_complete(model)
    assert not GENERATOR.can_resume(model)
    assert len(server.asked) >= 6 * 2 + 2 * 6
    assert {key for _, key, _ in server.asked} == {"Bearer top-secret"}
    assert SECRET not in json.dumps([document for *_, document in server.asked])
    kept = b"".join(file.read_bytes() for file in model.rglob("*") if file.is_file())
    assert SECRET.encode() not in kept
    assert b"top-secret" not in kept
    survivors = json.loads((model / evolution.SURVIVORS).read_text())
    assert 6 <= len(survivors) <= 7
    before = {file: file.read_bytes() for file in model.rglob("*") if file.is_file()}
    drawn = GENERATOR.draw(model, 30).table()
    assert drawn.schema.names == ["letter", "reader", "kind", "body"]
    assert 15 <= drawn.num_rows <= 30
    texts = [re.sub(r", number.*", "", text) for text in drawn.column("body").to_pylist()]
    assert all(text in TEXTS[kind] for kind, text in zip(drawn.column("kind").to_pylist(), texts, strict=True))
    assert {file: file.read_bytes() for file in model.rglob("*") if file.is_file()} == before
    assert len(set(drawn.column("body").to_pylist())) == drawn.num_rows  # further rows have variations of their own


def test_an_endpoint_that_fails_costs_no_second_vote(server, bounded, tmp_path, monkeypatch):
    drawn = []
    counted = evolution.noisy_votes
    monkeypatch.setattr(evolution, "noisy_votes", lambda *rest: drawn.append(1) or counted(*rest))
    plan, model = planned(endpoint=server.url), tmp_path / "model"
    model.mkdir()
    assert not GENERATOR.can_resume(model)  # who knows what was drawn before its journal was lost
    server.coming.extend([(503, {}, b"")] * 200)
    with pytest.raises(MechanismFailed, match="0 came"):
        fitted(plan, bounded, model)
    assert (drawn, GENERATOR.can_resume(model), GENERATOR.is_complete(model)) == ([], True, False)
    server.coming.clear()
    server.breaks = lambda document: "<text>" in json.dumps(document)  # no variations: after the first vote
    with pytest.raises(MechanismFailed, match="at no further cost"):
        fitted(plan, bounded, model)
    assert (len(drawn), GENERATOR.can_resume(model)) == (1, True)
    with pytest.raises(MechanismFailed, match="not complete; there is no model to draw from"):
        GENERATOR.draw(model, 5)
    server.breaks = lambda document: False
    fitted(plan, bounded, model)
    assert len(drawn) == 3
    lines = [json.loads(line)["kind"] for line in (model / FILE_NAME).read_text().splitlines()]
    assert lines.count("votes") == 3


CHOSEN = {"resample": {"clusters": 3, "noise": 2.0, "pool": 2.0}}


def test_votes_for_clusters_are_paid_for_beside_those_for_texts(server):
    """The noise of all votes, with that of the counts, by `dp_accounting` alone."""
    plain, plan = planned(endpoint=server.url), planned(endpoint=server.url, text=CHOSEN)
    parameters, delta = EvolutionParameters.of(plan), Guarantee.from_json(plan.guarantee).delta
    event = event_from_json(plan.event)
    rounds = GaussianVotesEvent(parameters.sigma, "add-or-remove", 2)
    assert [leaf for leaf, _ in leaves(event) if isinstance(leaf, GaussianVotesEvent)] == [
        rounds,
        GaussianVotesEvent(2.0, "add-or-remove", 2),
    ]
    ((counts, times),) = [(leaf, times) for leaf, times in leaves(event) if not isinstance(leaf, GaussianVotesEvent)]
    accountant = dp_accounting.pld.PLDAccountant()
    multipliers = [parameters.sigma] * 3 + [2.0] + [counts.sigma / counts.max_contributions] * times
    accountant.compose(dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(one) for one in multipliers]))
    assert accountant.get_epsilon(delta) == pytest.approx(8.0, abs=0.1)
    assert parameters.sigma > EvolutionParameters.of(plain).sigma
    assert plan.digest != plain.digest and SealedPlan.from_json(plan.to_json()).digest == plan.digest
    cheaper = plan.parameters | {"resampling": plan.parameters["resampling"] | {"sigma": 1.0}}
    with pytest.raises(GrantRefused, match="privacy event"):
        GENERATOR.check(replace(plan, parameters=cheaper))
    assert "one of up to 3 clusters of 30 such texts" in GENERATOR.describe(plan)["training_in_words"]
    described = GENERATOR.describe(plan)["event"]
    assert "then a histogram of votes for up to 3 clusters of 30 texts, those that live on and" in described
    for one, said in ((plan, True), (plain, False)):
        for event in (event_from_json(one.event), twice(event_from_json(one.event))):
            assert ("the last one of a mechanism, for a cluster" in words_of("aug_pe", event).votes) is said


def test_an_evolution_interrupted_before_the_vote_for_clusters_continues_and_votes_once(
    server, bounded, tmp_path, monkeypatch
):
    voted, counted = [], resampling.noisy_votes
    plan, model = planned(endpoint=server.url, text=CHOSEN), tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(resampling, "noisy_votes", lambda *_: _stop())
        fitted(plan, bounded, model)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    rounds = (model / FILE_NAME).read_bytes()
    monkeypatch.setattr(evolution, "noisy_votes", lambda *_: pytest.fail("a round voted twice"))
    monkeypatch.setattr(resampling, "noisy_votes", lambda *rest: voted.append(len(rest[1])) or counted(*rest))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evolution, "write_survivors", lambda *_: _stop())
        fitted(plan, bounded, model)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    fitted(plan, bounded, model)
    assert GENERATOR.is_complete(model)
    assert voted == [3]
    assert (model / FILE_NAME).read_bytes() == rounds
    sealed = EvolutionParameters.of(plan)
    assert len(read_votes(model, sealed.resampling, sealed.layout).votes) == 3
    assert SECRET not in json.dumps([document for *_, document in server.asked])
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in model.rglob("*") if file.is_file())


def test_texts_are_chosen_among_more_by_their_votes(server, bounded, tmp_path, monkeypatch):
    plan, model = planned(endpoint=server.url, text=CHOSEN), tmp_path / "model"
    fitted(plan, bounded, model)
    written, chosen = [], ClusterVotes.taken

    def taken(votes, texts, counts, encoder):
        written.append((sum(map(len, texts.values())), sum(counts.values())))
        return chosen(votes, texts, counts, encoder)

    monkeypatch.setattr(ClusterVotes, "taken", taken)
    drawn = GENERATOR.draw(model, 20).table()
    ((pool, rows),) = written
    assert (rows, 30 <= pool <= 40) == (20, True)
    texts = [re.sub(r", number.*", "", text) for text in drawn.column("body").to_pylist()]
    assert all(text in TEXTS[kind] for kind, text in zip(drawn.column("kind").to_pylist(), texts, strict=True))
    (model / resampling.FILE_NAME).unlink()
    with pytest.raises(MechanismFailed, match="by which texts are chosen are missing"):
        GENERATOR.draw(model, 20)


def test_texts_get_their_labels_by_sums(server, bounded, tmp_path):
    plan = planned(endpoint=server.url, text={"resample": {"by": "labels", "noise": 2.0, "pool": 2.0}})
    assert (GaussianSumsEvent(2.0, "add-or-remove", 2), 1) in list(leaves(event_from_json(plan.event)))
    model = tmp_path / "model"
    fitted(plan, bounded, model)
    assert len(json.loads((model / resampling.FILE_NAME).read_text())["sums"]) == 2
    drawn = GENERATOR.draw(model, 20).table()
    assert drawn.num_rows == 20
    known = {text for kind in TEXTS for text in TEXTS[kind]}
    assert {re.sub(r", number.*", "", text) for text in drawn.column("body").to_pylist()} <= known


def test_interrupted_counts_of_columns_are_not_drawn_again(server, bounded, tmp_path, monkeypatch):
    plan, model = planned(endpoint=server.url), tmp_path / "model"
    monkeypatch.setattr("dpsynth_platform.synth.tabular.measurements.MeasurementLog.complete", lambda self: _stop())
    with pytest.raises(KeyboardInterrupt):
        fitted(plan, bounded, model)
    assert not GENERATOR.can_resume(model)
    with pytest.raises(ResumeRefused, match="began before"):
        fitted(plan, bounded, model)
    shutil.rmtree(model / COLUMNS)  # what a deletion that was cut short may leave
    assert not GENERATOR.can_resume(model)
    with pytest.raises(ResumeRefused, match="began before"):
        fitted(plan, bounded, model)


def _stop():
    raise KeyboardInterrupt


def test_an_endpoint_that_is_away_when_rows_are_drawn(server, bounded, tmp_path):
    plan, model = planned(endpoint=server.url), tmp_path / "model"
    fitted(plan, bounded, model)
    server.coming.extend([(503, {}, b"")] * 400)
    with pytest.raises(MechanismFailed, match="came"):
        GENERATOR.draw(model, 30, transport=Transport(attempts=1))


def test_an_endpoint_that_the_deployment_does_not_list_gets_neither_a_key_nor_a_word(server, bounded, tmp_path):
    plan, model = planned(endpoint=server.url), tmp_path / "model"
    fitted(plan, bounded, model)
    before = len(server.asked)
    AugPe().tried_endpoint(plan, Transport())
    assert len(server.asked) == before + 1
    secure = server.url.removesuffix("/v1").replace("http:", "https:")
    for listed in ("", "https://models.example.org", secure):
        os.environ["DPSYNTH_TEXT_ENDPOINTS"] = listed
        for attempt in (
            lambda: planned(endpoint=server.url),
            lambda: AugPe().tried_endpoint(plan, Transport()),
            lambda: GENERATOR.draw(model, 30),
        ):
            with pytest.raises(ConfigurationError, match=r"is no endpoint of this deployment.*DPSYNTH_TEXT_ENDPOINTS"):
                attempt()
    assert len(server.asked) == before + 1


def test_an_endpoint_that_writes_nothing_is_found_out_before_anything_is_spent(server):
    plan = planned(endpoint=server.url)
    server.coming.extend([(400, {}, b'{"error": "unknown parameter top_p"}')])
    with pytest.raises(ConfigurationError, match=r"127.0.0.1 wrote no text on trial: rejected \(1\)") as refused:
        AugPe().tried_endpoint(plan, Transport())
    assert 'top_p"' not in str(refused.value)
    ((_, _, asked),) = server.asked
    assert "letter" not in json.dumps(asked)
    assert asked["max_tokens"] == EvolutionParameters.of(plan).sampling.max_tokens


def test_how_an_endpoint_is_reached_is_no_part_of_the_run(server):
    def made(**transport):
        contract = contract_for(endpoint=server.url)
        declared = contract.model_dump(mode="json")
        declared["generate"]["text"]["evolution"]["endpoint"] |= transport
        contract = DataContract.model_validate(declared)
        return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract)), contract

    plan, contract = made()
    for transport in ({"timeout": 7.0}, {"attempts": 9}, {"at_once": 3}):
        other, changed = made(**transport)
        assert (other.digest, changes(contract, changed)) == (plan.digest, [])
        assert transport_of(changed) != transport_of(contract)
    other, changed = made(url=f"{server.url}/other")
    assert other.digest != plan.digest
    assert changes(contract, changed) == ["evolution.endpoint.url"]


def test_the_description_is_part_of_the_run_where_prompts_hold_it(server):
    def described(words, **more):
        return contract_for(endpoint=server.url, **more).model_copy(update={"description": words})

    assert changes(described("Letters.", about=None), described("Mails.", about=None)) == ["evolution.about"]
    assert changes(described("Letters."), described("Mails.")) == []


@pytest.fixture(scope="module")
def talkative():
    """A tiny model that answers with English words, whatever short prompt it is asked by."""
    model, tokenizer = tiny_llama(positions=2048), tiny_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told = [f"Write.\n\nKind of text: x\nkind: {kind}\nLength: up to 18 words\n" for kind in TEXTS]
    marked = [f"{one}<text>\n_ _ {TEXTS['note'][0]}\n</text>\n" for one in told]
    for step in range(120):
        answer = TEXTS["mail"][step % 2] if step % 3 else TEXTS["note"][step % 2]
        prompt = tokenizer(f"{(told + marked)[step % 4]}\nAnswer:\n")["input_ids"]
        said = [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        optimizer.zero_grad()
        tokens, labels = torch.tensor([prompt + said]), torch.tensor([[-100] * len(prompt) + said])
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def test_a_model_on_this_machine_writes(bounded, talkative, tmp_path, monkeypatch):
    for name in ("_NEW", "_REPHRASE", "_FILL"):
        monkeypatch.setattr(f"dpsynth_platform.synth.text.evolution_prompts.{name}", "Write.")
    base = save_model(tmp_path / "base", talkative)
    text = {"max_tokens": 24, "temperature": 0.5}
    plan, model = planned(base=base, text=text, rounds=2, population=4, about="xxx"), tmp_path / "model"
    assert started_from(plan)[0] == str(base)
    fitted(plan, bounded, model)
    drawn = GENERATOR.draw(model, 8).table()
    assert 1 <= drawn.num_rows <= 8
    assert all(text.strip() for text in drawn.column("body").to_pylist())
    save_model(base, tiny_llama(positions=2048, seed=1))
    with pytest.raises(ConfigurationError, match="not the one that the plan was made for"):
        fitted(plan, bounded, tmp_path / "other")
    with pytest.raises(GrantRefused, match="names no language model"):
        GENERATOR.fit(plan, bounded, SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32), tmp_path / "third")


def test_a_model_that_sees_too_little_is_refused_before_the_data_are_read(bounded, tmp_path):
    base = save_model(tmp_path / "base", tiny_llama(positions=64))
    with pytest.raises(ConfigurationError, match="at most half of them"):
        fitted(planned(base=base), bounded, tmp_path / "model")
    assert not (tmp_path / "model" / "columns").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"endpoint": "http://models.example.org/v1"}, "endpoint.url.*https"),
        ({"endpoint": "https://user:word@models.example.org/v1"}, "endpoint.url"),
        (
            {"endpoint": "https://models.example.org/v1", "base": None},
            "generate.*base_model: with text.evolution.endpoint",
        ),
        *(
            ({"endpoint": url}, r"endpoint.url: .*accepted: https://HOST\[:PORT\]/PATH")
            for url in (
                "https://models.example.org:99999/v1",
                "https://models.example.org\\.evil.example/v1",
                "https://models..example.org/v1",
                "https://[::g]/v1",
                "https://256.1.1.1/v1",
                "https://1.2.3/v1",
                "https://models.example.org/v 1",
                "https://models.example.org/v1?key=1",
                "https://models.example.org/%zz",
                "https://:443/v1",
            )
        ),
        ({"population": 0}, "population"),
        ({"rounds": 0}, "rounds"),
        ({"ways": ["rephrase", "rephrase"]}, "contains duplicates"),
        ({"generate": {"training": {}}}, "training: is for method dp_finetune, ctcl"),
        ({"generate": {"method": "dp_finetune"}}, "text.evolution: is for method aug_pe"),
        ({"privacy": {"weighting": "owners"}}, "weighting"),
        ({"text": {"chunks": 2}}, "chunks"),
    ],
)
def test_an_impossible_contract_is_refused(changes, said):
    with pytest.raises(ContractError, match=said):
        contract_for(**changes)


def test_what_decides_the_candidates_decides_the_run(server):
    digests = {
        json.dumps(contract_for(**changes).mechanism_snapshot(), sort_keys=True)
        for changes in (
            {},
            {"about": "long letters"},
            {"rounds": 4},
            {"text": {"temperature": 0.5}},
            {"hints": ["rain"]},
        )
    }
    assert len(digests) == 5
    assert contract_for().mechanism_snapshot() == contract_for(generate={"rows": 99}).mechanism_snapshot()


@pytest.mark.parametrize(
    "url", ["https://me:top-secret@models.example.org/v1", "https://models.example.org/v1?key=top-secret"]
)
def test_a_refused_address_that_may_hold_a_key_is_not_shown(url):
    with pytest.raises(ContractError, match=r"endpoint.url: .*accepted: https://HOST") as refused:
        contract_for(endpoint=url)
    assert "top-secret" not in str(refused.value)
