"""Choosing among synthetic texts by clustered votes: what is chosen, what one owner moves, and one plan for both."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from text_cases import WORDS, fitted, save_model
from text_line_cases import TEXTS, public_model

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import (
    AccountingError,
    ContractError,
    GrantRefused,
    MechanismFailed,
    ResumeRefused,
)
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianVotesEvent, event_from_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.text import dp_finetune, resampling
from dpsynth_platform.synth.text.filtering import Rules
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import (
    ClusterVotes,
    Resampling,
    clustered,
    read_votes,
    vote_once,
    write_votes,
)
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.terms import TextTerms

GENERATOR = generator("dp_finetune")
SOURCE = pa.schema([("person", pa.string()), ("region", pa.string()), ("letter", pa.string())])
LAYOUT = TextLayout(fields=("letter",))
AXES = np.eye(3, dtype=np.float32)
PLAN = Resampling(4, 1.0, 1.0)


class Letters:
    """An encoder that knows how often some letters stand in a text."""

    def __init__(self, device="cpu"):
        self.letters = "abcdefghiklmnoprstuwy"

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in self.letters] for text in texts], dtype=np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)


def pool(sizes, votes):
    """Features of a pool with so many texts of each cluster, and the clusters' votes."""
    features = np.repeat(AXES, sizes, axis=0)
    return features, ClusterVotes(AXES, np.array(votes) * RECORD_PARTS)


def taken(features, votes, number):
    chosen = votes.take(features, number, np.random.default_rng(4))
    assert len(set(chosen)) == len(chosen) == number
    assert chosen == sorted(chosen)
    return np.bincount(votes.nearest(features)[chosen], minlength=3).tolist()


def test_clusters_occur_in_proportion_to_their_votes():
    """However often the model wrote each: a third of the pool here is what half of the records are near to."""
    features, votes = pool([3000, 3000, 3000], [50, 30, 20])
    assert taken(features, votes, 300) == pytest.approx([150, 90, 60], abs=25)
    features, votes = pool([6000, 1000, 2000], [20, 30, 50])
    assert taken(features, votes, 100) == pytest.approx([20, 30, 50], abs=20)


def test_negative_votes_weigh_nothing_and_there_are_enough_texts():
    features, votes = pool([30, 30, 30], [10, -5, 0])
    assert taken(features, votes, 20) == [20, 0, 0]
    assert taken(features, votes, 60)[0] == 30
    assert taken(features, votes, 90) == [30, 30, 30]


def test_clusters_are_of_length_one_and_no_more_than_there_are_texts():
    features = Letters().encode([*WORDS, *WORDS, *TEXTS["east"]])
    centers = clustered(features, 50)
    assert len(centers) == len({*WORDS, *TEXTS["east"]})
    assert np.linalg.norm(centers, axis=1) == pytest.approx(np.ones(len(centers)), abs=1e-5)
    assert clustered(features, 2).shape == (2, features.shape[1])


def test_one_owner_moves_the_votes_by_one_vote_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr("dpsynth_platform.synth.evolution.votes.sample_rounded_gaussian", lambda votes, sigma: votes)
    monkeypatch.setattr(resampling, "clustered", lambda features, clusters: np.eye(21, dtype=np.float32)[:4])

    def histogram(name, records):
        rows = pa.table({"letter": [text for text, _ in records], OWNER_COLUMN: [owner for _, owner in records]})
        write_table(tmp_path / name, rows.schema, rows.to_batches())
        voters = PLAN.voters(tmp_path / name, LAYOUT, Letters(), by_owner=True)
        return PLAN.measured(lambda: ["a"], voters, Letters()).votes

    others = [("aaa", "1"), ("bb", "1"), ("c", "2"), ("dd", "3")]
    before = histogram("before", others)
    for number, own in enumerate(("a" * 40, "ab" * 20, "abcd" * 10)):
        change = histogram(f"after{number}", [*others, *[(letter, "9") for letter in own]]) - before
        assert 0.999 * RECORD_PARTS**2 < int((change.astype(object) ** 2).sum()) <= RECORD_PARTS**2


def test_pools_are_as_large_as_is_said_and_texts_are_taken_label_by_label():
    plan = Resampling(3, 1.0, 2.5)
    assert plan.pools({("a",): 4, ("b",): 3}) == {("a",): 10, ("b",): 8}
    assert (plan.texts, plan.texts_for(1), plan.taken_of(10), plan.taken_of(9)) == (30, 3, 4, 3)
    for pool in range(100, 1000, 7):
        one = Resampling(3, 1.0, pool / 100)
        assert all(one.taken_of(one.texts_for(number)) == number for number in (1, 2, 3, 12, 60, 77, 250, 4999))
        assert all(one.texts_for(one.taken_of(texts)) <= texts for texts in range(200))
    votes = ClusterVotes(np.eye(21, dtype=np.float32)[:2], np.array([9, 0]))
    texts = {("a",): ["aaa", "bbb", "aab", "bba"], ("b",): ["bb", "b"], ("c",): []}
    found = votes.taken(texts, {("a",): 2, ("b",): 1, ("c",): 3}, Letters())
    assert (found["a",], len(found["b",]), found["c",]) == (["aaa", "aab"], 1, [])


def test_votes_are_read_back_or_not_at_all(tmp_path):
    with pytest.raises(MechanismFailed, match="missing or damaged"):
        read_votes(tmp_path, PLAN, LAYOUT)
    write_votes(tmp_path, ClusterVotes(AXES, np.array([1, -2, 3])))
    found = read_votes(tmp_path, PLAN, LAYOUT)
    assert (found.centers.tolist(), found.votes.tolist()) == (AXES.tolist(), [1, -2, 3])
    for content in ("{", "{}", '{"centers": [[1.0]], "votes": [1, 2]}'):
        (tmp_path / resampling.FILE_NAME).write_text(content)
        with pytest.raises(MechanismFailed, match="missing or damaged"):
            read_votes(tmp_path, PLAN, LAYOUT)
    with pytest.raises(MechanismFailed, match="no synthetic text"):
        PLAN.measured(list, None, Letters())


def test_a_vote_is_counted_once_and_an_interrupted_one_is_deleted(tmp_path, monkeypatch):
    model, found = tmp_path / "model", ClusterVotes(AXES, np.array([1, 2, 3]))
    model.mkdir()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pathlib.Path.replace", lambda *_: _stop())
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: None)  # a process that is killed cleans up nothing
        vote_once(model, model / "alone", lambda: found)
    assert len(list(model.glob(".resampling.json.*"))) == 1
    with pytest.raises(ResumeRefused, match="another process"):
        vote_once(model, model / "alone", lambda: vote_once(model, model / "alone", lambda: found))
    vote_once(model, model / "alone", lambda: replace(found, votes=np.array([4, 5, 6])))
    assert [file.name for file in model.iterdir()] == ["resampling.json"]
    vote_once(model, model / "alone", lambda: pytest.fail("voted twice"))
    assert read_votes(model, PLAN, LAYOUT).votes.tolist() == [4, 5, 6]


def _stop():
    raise KeyboardInterrupt


# With the training


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr(dp_finetune, "SentenceEncoder", Letters)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"), public_model())


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    regions = [sorted(TEXTS)[number % 4] for number in range(80)]
    table = pa.table(
        {
            "region": regions,
            "letter": [TEXTS[region][number % 2] for number, region in enumerate(regions)],
            OWNER_COLUMN: [f"{number:032x}" for number in range(80)],
            RECORD_COLUMN: [f"{number:032x}" for number in range(80)],
        }
    )
    place = tmp_path_factory.mktemp("bounded") / "table"
    write_table(place, table.schema, table.to_batches())
    return place


def contract_for(base, *, resample=None, **generate):
    chosen = {} if resample is None else {"resample": {"clusters": 4, "noise": 2.0, "pool": 2.0} | resample}
    return parse_contract(
        {
            "dataset": "letters",
            "description": "Letters to the editor.",
            "owners": ["letters@example.org"],
            "source": {"uri": "/nowhere", "key": ["person"]},
            "family": "readers",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "reader",
                "max_contributions": 1,
                "guarantee": {"epsilon": 8.0, "delta": 1e-5},
                "expected_units": 100,
            },
            "columns": {
                "person": {"type": "identifier"},
                "region": {"type": "categorical", "values": sorted(TEXTS)},
                "letter": {"type": "text", "pii": "replace"},
            },
            "generate": {
                "method": "dp_finetune",
                "base_model": str(base),
                "rows": 10,
                "text": {"given": ["region"], "max_tokens": 48} | chosen,
                "training": {"steps": 2, "batch_size": 20, "replay_steps": 1, "learning_rate": 1e-5},
            }
            | generate,
            "release": {"uri": "/nowhere/public"},
        },
        where="letters.yaml",
        variables={},
    )


def planned(*arguments, **changes):
    contract = contract_for(*arguments, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def test_counts_training_and_votes_cost_together_what_is_asked_for(base):
    plan, plain = planned(base, resample={}), planned(base)
    event = event_from_json(plan.event)
    assert 7.9 < epsilon(event, 1e-5).epsilon <= 8.0
    assert (GaussianVotesEvent(2.0, "add-or-remove", 1), 1) in list(leaves(event))
    noise = [TextParameters.of(one).training.noise_multiplier for one in (plan, plain)]
    assert noise[0] > noise[1]  # votes take a part of the budget
    words = plan.describe()["training_in_words"]
    assert "one of up to 4 clusters of 40 such texts" in words
    assert words.endswith("by these votes one in 2 of the texts that are written is taken")
    assert (
        planned(base, resample={"pool": 1})
        .describe()["training_in_words"]
        .endswith("every one of the texts that are written is taken")
    )
    assert "up to 4 clusters of the model's texts" in plan.describe()["event"]
    GENERATOR.check(plan)
    cheaper = plan.parameters | {"resampling": plan.parameters["resampling"] | {"sigma": 1.0}}
    with pytest.raises(GrantRefused, match="privacy event"):
        GENERATOR.check(replace(plan, parameters=cheaper))


def test_votes_whose_noise_alone_costs_all_there_is_are_refused(base):
    with pytest.raises(AccountingError, match=r"0\.1 alone costs epsilon .* of 8; accepted: 0.751 or more"):
        planned(base, resample={"noise": 0.1})


def test_a_run_interrupted_before_the_vote_continues_and_votes_once(base, bounded, tmp_path, monkeypatch):
    voted, counted = [], resampling.noisy_votes

    def stopped(*_):
        raise KeyboardInterrupt

    plan, model = planned(base, resample={}), tmp_path / "model"
    terms, sampled = [], dp_finetune.sample_records
    monkeypatch.setattr(resampling, "noisy_votes", stopped)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            dp_finetune,
            "sample_records",
            lambda *rest, **more: terms.append((more["rules"], more["sampling"])) or sampled(*rest, **more),
        )
        fitted(plan, bounded, model)
    assert terms == [(Rules(), Sampling())], "no contract has a say in what is voted on"
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    monkeypatch.setattr(resampling, "noisy_votes", lambda *rest: voted.append(1) or counted(*rest))
    weights = (model / "weights.safetensors").read_bytes()
    fitted(plan, bounded, model, resume=True)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (True, False)
    assert (model / "weights.safetensors").read_bytes() == weights
    assert voted == [1]
    assert not (model / "training").exists()
    assert 1 <= len(read_votes(model, PLAN, LAYOUT).votes) <= 4
    before = {file: file.read_bytes() for file in model.rglob("*") if file.is_file()}
    asked = []
    monkeypatch.setattr(
        dp_finetune,
        "sample_records",
        lambda *rest, **more: asked.append(sum(rest[2].values())) or sampled(*rest, **more),
    )
    drawn = GENERATOR.draw(model, 10, texts=TextTerms(Sampling(max_tokens=40))).table()
    assert 1 <= drawn.num_rows <= 10
    assert asked == [20]
    assert {file: file.read_bytes() for file in model.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"resample": {"clusters": 1}}, "clusters"),
        ({"resample": {"noise": 0}}, "noise"),
        ({"resample": {"pool": 0.5}}, "pool"),
        ({"method": "mst", "training": None, "base_model": None}, "text: is for method dp_finetune, ctcl"),
    ],
)
def test_an_impossible_contract_is_refused(base, changes, said):
    with pytest.raises(ContractError, match=said):
        contract_for(base, **changes)


def test_votes_decide_the_run_only_where_there_are_any(base):
    plain, chosen = contract_for(base), contract_for(base, resample={})
    assert "resample" not in plain.mechanism_snapshot()
    # Drawn otherwise after the vote: of the same candidates, since these do not depend on the contract.
    document = chosen.snapshot()
    document["generate"]["text"] |= {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "keep": {"duplicates": "kept"}}
    assert DataContract.model_validate(document).mechanism_snapshot() == chosen.mechanism_snapshot()
    assert chosen.mechanism_snapshot()["resample"] == {"clusters": 4, "noise": 2.0, "pool": 2.0}
