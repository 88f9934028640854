"""Choosing texts by labels: what one owner adds to the sums, by brute force; the classifier; one plan for all."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from text_cases import fitted, save_model
from text_line_cases import TEXTS, public_model

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.text_generation import Resample
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    GaussianSumsEvent,
    event_from_json,
    event_to_json,
    leaves,
    matches_claim,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import covered_accesses
from dpsynth_platform.privacy.units import RECORD_PARTS as UNIT
from dpsynth_platform.privacy.units import vector_sensitivity
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.text import dp_finetune, labelling
from dpsynth_platform.synth.text.evolution_votes import Voters
from dpsynth_platform.synth.text.labelling import LabelChoice, LabelSums, assigned, exact_sums, shortened, vector
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import read_votes, write_votes
from dpsynth_platform.synth.text.sealing import TextParameters

GENERATOR = generator("dp_finetune")
SOURCE = pa.schema([("person", pa.string()), ("region", pa.string()), ("letter", pa.string())])
KIND = Condition("kind", ("mail", "note"))
PLACE = Condition("place", ("here", "there"))
LAYOUT = TextLayout(fields=("letter",), conditions=(PLACE, KIND))
CHOICE = LabelChoice(KIND, 2.0, 3.0)
AXES = np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32)
"""Features that a record can have; opposite ones are farthest apart."""


def sums(records, *, several_owners=False):
    """Exact sums of (owner, label, features) as Python numbers."""
    voters = Voters(
        np.array([AXES[features] for *_, features in records], dtype=np.float32).reshape(len(records), 3),
        np.array([label for _, label, _ in records], dtype=np.int64),
        None if several_owners else np.array([owner for owner, *_ in records], dtype=np.int64),
    )
    return exact_sums(voters, 2, 3).astype(object)


def squared(change):
    return sum(int(part) ** 2 for part in change.ravel())


OTHERS = [(1, 0, 0), (1, 1, 3), (2, 1, 1), (3, 0, 5), (3, 0, 5)]
RECORDS = list(itertools.product(range(2), range(6)))
OWN = [tuple((9, *one) for one in chosen) for b in range(3) for chosen in itertools.product(RECORDS, repeat=b)]
"""All records that owner 9 can have, up to two of them."""


def test_one_owner_moves_the_sums_by_one_vector_at_most_whatever_it_has():
    without = sums(OTHERS)
    moved = [sums([*own[:1], *OTHERS, *own[1:]]) - without for own in OWN]
    most = max(squared(change) for change in moved)
    assert 0.999 * UNIT**2 < most <= vector_sensitivity("add-or-remove", 2).l2_squared * UNIT**2 == UNIT**2
    assert vector_sensitivity("zero-out", 2).l2_squared == 1
    replaced = max(squared(one - other) for one, other in itertools.combinations(moved, 2))
    # Opposite features: nearly twice the length, and more than two votes can be apart.
    assert 3.6 * UNIT**2 < replaced <= vector_sensitivity("replace-one", 2).l2_squared * UNIT**2 == 4 * UNIT**2


def test_a_hundred_documents_move_no_more_than_one_does():
    random = np.random.default_rng(3)
    for _ in range(50):
        own = [(9, int(label), int(at)) for label, at in random.integers(0, (2, 3), (100, 2))]
        assert 0.9 * UNIT**2 < squared(sums([*OTHERS, *own]) - sums(OTHERS)) <= UNIT**2
    unscaled = sums([*OTHERS, *own], several_owners=True) - sums(OTHERS, several_owners=True)
    assert squared(unscaled) > 1000 * UNIT**2


def test_records_of_several_owners_count_in_full():
    """Fixed graph: the contents of one owner's b records change, and the records stay."""
    contents = [tuple((9, *one) for one in chosen) for chosen in itertools.product(RECORDS, repeat=2)]
    found = [sums([*OTHERS, *own], several_owners=True) for own in contents]
    most = max(squared(one - other) for one, other in itertools.combinations(found, 2))
    allowed = vector_sensitivity("fixed-graph", 2).l2_squared
    assert allowed == 16
    assert 0.9 * allowed * UNIT**2 < most <= allowed * UNIT**2


@pytest.mark.parametrize(
    "features", [[1, 0, 0], [3e38, 0, 0], [math.nan, math.inf, -math.inf], [0, 0, 0], [0.6, 0.8, 0]]
)
def test_a_record_has_a_vector_of_whole_numbers_within_the_bound(features):
    found = vector(np.array(features, dtype=np.float32))
    assert found.dtype == np.int64
    assert 0 < squared(found.astype(object)) <= UNIT**2


def test_long_vectors_are_cut_to_the_bound_in_whole_numbers():
    random = np.random.default_rng(5)
    for scale in (1, 2**17, 2**33, 2**45):
        whole = random.integers(-scale, scale + 1, (4, 50))
        cut = shortened(whole, many=scale > 2**20)
        assert squared(cut.astype(object)) <= UNIT**2
        if scale == 1:
            assert (cut == whole).all()
        else:
            assert squared(cut.astype(object)) > 0.99 * UNIT**2
            assert (np.sign(cut) * np.sign(whole) >= 0).all()


def test_the_noise_is_that_of_the_event():
    voters = Voters(np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    draws = np.concatenate([CHOICE.measured(list, voters, Axes()).sums.ravel() for _ in range(1000)]) / UNIT
    assert draws.std() == pytest.approx(CHOICE.sigma, rel=0.05)  # 6.3 deviations of 1 / sqrt(2 * 8000), 3e-10
    assert abs(draws.mean()) < 6 * CHOICE.sigma / math.sqrt(len(draws))


@pytest.mark.parametrize(
    ("adjacency", "b", "l2"),
    [("add-or-remove", 5, 1), ("zero-out", 5, 1), ("replace-one", 5, 2), ("fixed-graph", 3, 6)],
)
def test_sums_cost_what_a_gaussian_of_their_length_costs(adjacency, b, l2):
    event = GaussianSumsEvent(10.0, adjacency, b)
    gaussian = dp_event.GaussianDpEvent(10.0 / l2)
    by_pld = PLDAccountant().compose(gaussian).get_epsilon(1e-6)
    by_renyi = RdpAccountant().compose(gaussian).get_epsilon(1e-6)
    assert by_pld * 0.999 <= epsilon(event, 1e-6).epsilon <= min(by_renyi, by_pld * 1.01)
    assert event_from_json(event_to_json(event)) == event
    assert matches_claim(event, Guarantee(1.0, 1e-6, "user", adjacency, b))
    assert not matches_claim(event, Guarantee(1.0, 1e-6, "user", adjacency, b + 1))
    with pytest.raises(AccountingError, match="sigma: 0"):
        GaussianSumsEvent(0, adjacency, b)


# Reading


class Axes:
    """An encoder that knows how often a, b and c stand in a text."""

    def __init__(self, device="cpu"):
        pass

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32).reshape(-1, 3)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)


def test_records_without_a_text_or_with_an_undeclared_label_add_nothing(tmp_path):
    rows = [("mail", "aa", "1"), ("note", "b", "2"), ("fax", "c", "2"), ("mail", " ", "3"), ("mail", None, "3")]
    schema = pa.schema([("kind", pa.string()), ("letter", pa.string()), (OWNER_COLUMN, pa.string())])
    table = pa.table([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], schema=schema)
    write_table(tmp_path / "table", table.schema, table.to_batches())
    voters = CHOICE.voters(tmp_path / "table", LAYOUT, Axes(), by_owner=True)
    found = exact_sums(voters, 2, 3) / UNIT
    assert found == pytest.approx(np.array([[0.95, 0, 0, 0.3], [0, 0.95, 0, 0.3]]), abs=1e-4)
    # Voters of rounds, whose groups are what candidates are written for, with an unread one.
    of_rounds = Voters(voters.features, np.array([1, -1]), voters.owners)
    among = CHOICE.among(of_rounds, [("here", "mail"), ("there", "note")], LAYOUT)
    assert exact_sums(among, 2, 3)[1].tolist() == exact_sums(voters, 2, 3)[0].tolist()
    assert not exact_sums(among, 2, 3)[0].any()


# The choice


def test_as_many_of_each_label_as_wanted_and_those_that_suit_it():
    truth = np.repeat([0, 1, 2], [50, 30, 20])
    scores = np.random.default_rng(1).normal(0, 0.01, (100, 3)) + np.eye(3)[truth]
    assert assigned(scores, [50, 30, 20]) == truth.tolist()
    moved = scores + np.array([7.0, 0.0, -3.0])  # a bias towards a label has no effect
    assert assigned(moved, [50, 30, 20]) == truth.tolist()
    some = assigned(moved, [10, 0, 20])
    assert [some.count(label) for label in (0, 1, 2, None)] == [10, 0, 20, 70]
    assert all(label in (None, true) for label, true in zip(some, truth.tolist(), strict=True) if true != 1)
    assert assigned(scores[:3, :1], [2]).count(0) == 2
    assert assigned(scores, [0, 0, 0]) == [None] * 100


def label_sums(sigma=2.0):
    totals = np.array([[0.95 * 80, 0.95 * 20, 0, 0.3 * 100], [0.95 * 20, 0.95 * 80, 0, 0.3 * 100]])
    return LabelSums((totals * UNIT).astype(np.int64), sigma, 1, KIND.values)


def test_texts_get_the_label_that_suits_them_and_keep_the_others():
    texts = {
        ("here", "mail"): ["aaab", "bbba", "bbbac", "aaabc"],
        ("here", "note"): ["abbb", "baaa"],
        ("there", "note"): ["aab", "bba"],
    }
    counts = {("here", "mail"): 2, ("here", "note"): 2, ("there", "note"): 1, ("there", "mail"): 1}
    found = label_sums().taken(texts, counts, Axes())
    assert {given: len(own) for given, own in found.items()} == counts
    assert all(text.count("a") > text.count("b") for given in counts if given[1] == "mail" for text in found[given])
    assert all(text.count("b") > text.count("a") for given in counts if given[1] == "note" for text in found[given])
    assert set(found["there", "mail"]) <= set(texts["there", "note"])
    few = label_sums().taken({("here", "mail"): ["aaab"], ("here", "note"): []}, counts, Axes())
    assert sum(map(len, few.values())) == 1
    assert label_sums().taken({}, counts, Axes()) == {given: [] for given in counts}


def test_noise_alone_gives_numbers_and_keeps_the_counts():
    noise = np.random.default_rng(2).normal(0, 50 * UNIT, (2, 4)).astype(np.int64)
    found = LabelSums(noise, 50.0, 1, KIND.values).taken(
        {("here", "mail"): ["a", "b", "c", "ab"]}, {("here", "mail"): 2, ("here", "note"): 1}, Axes()
    )
    assert [len(own) for own in found.values()] == [2, 1]
    same = label_sums().taken({("here", "mail"): ["a"] * 4}, {("here", "mail"): 2, ("here", "note"): 1}, Axes())
    assert [len(own) for own in same.values()] == [2, 1]  # no covariance at all


def test_sums_are_read_back_or_not_at_all(tmp_path):
    write_votes(tmp_path, label_sums())
    found = read_votes(tmp_path, CHOICE, LAYOUT)
    assert (found.sums.tolist(), found.sigma, found.place, found.labels) == (
        label_sums().sums.tolist(),
        2.0,
        1,
        ("mail", "note"),
    )
    for content in ("{", "{}", '{"sums": [[1, 2]]}', '{"sums": [1, 2]}', '{"centers": [[1.0]], "votes": [1]}'):
        (tmp_path / "resampling.json").write_text(content)
        with pytest.raises(MechanismFailed, match="missing or damaged"):
            read_votes(tmp_path, CHOICE, LAYOUT)


# With the training


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr(dp_finetune, "SentenceEncoder", Axes)


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


def contract_for(base, *, columns=None, given=("region",), privacy=None, **resample):
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
            }
            | (privacy or {}),
            "columns": {
                "person": {"type": "identifier"},
                "region": {"type": "categorical", "values": sorted(TEXTS)},
                "letter": {"type": "text", "pii": "replace"},
            }
            | (columns or {}),
            "generate": {
                "method": "dp_finetune",
                "base_model": str(base),
                "rows": 10,
                "text": {
                    "given": list(given),
                    "max_tokens": 48,
                    "resample": {"by": "labels", "noise": 2.0, "pool": 2.0} | resample,
                },
                "training": {"steps": 2, "batch_size": 20, "replay_steps": 1, "learning_rate": 1e-5},
            },
            "release": {"uri": "/nowhere/public"},
        },
        where="letters.yaml",
        variables={},
    )


def planned(base, **changes):
    contract = contract_for(base, **changes)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


@pytest.mark.parametrize(
    ("wanted", "adjacency"), [(8.0, "add-or-remove"), (1.0, "add-or-remove"), (1.0, "replace-one")]
)
def test_noise_of_sums_is_a_tenth_of_the_budget_by_default(base, wanted, adjacency):
    contract = contract_for(
        base, noise="auto", privacy={"guarantee": {"epsilon": wanted, "delta": 1e-5}, "adjacency": adjacency}
    )
    plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
    assert epsilon(event_from_json(plan.event), 1e-5).epsilon <= wanted
    (sums,) = [event for event, _ in leaves(event_from_json(plan.event)) if isinstance(event, GaussianSumsEvent)]
    # Ten such sums have the variance of one with the whole budget, but for the rounding and the search.
    assert 0.98 * wanted < epsilon(dp_event.SelfComposedDpEvent(sums, 10), 1e-5).epsilon <= wanted
    assert TextParameters.of(plan).resampling.sigma == sums.sigma


def test_noise_by_default():
    assert Resample(by="labels").noise == "auto"
    assert Resample().noise == 10.0
    assert Resample.model_validate({"by": "clusters", "clusters": None, "noise": None}) == Resample()


def test_counts_training_and_sums_cost_together_what_is_asked_for(base):
    plan = planned(base)
    event = event_from_json(plan.event)
    assert 7.9 < epsilon(event, 1e-5).epsilon <= 8.0
    assert (GaussianSumsEvent(2.0, "add-or-remove", 1), 1) in list(leaves(event))
    assert TextParameters.of(plan).resampling == LabelChoice(Condition("region", tuple(sorted(TEXTS))), 2.0, 2.0)
    words = plan.describe()
    assert "sums of sentence features for each region, with noise of 2" in words["event"]
    assert "one in 2 of the texts that are written is taken, for the region" in words["training_in_words"]
    assert any("sentence features for each label" in line for line in covered_accesses(plan.event, plan.method))
    GENERATOR.check(plan)
    cheaper = plan.parameters | {"resampling": plan.parameters["resampling"] | {"sigma": 1.0}}
    with pytest.raises(GrantRefused, match="privacy event"):
        GENERATOR.check(replace(plan, parameters=cheaper))
    with pytest.raises(AccountingError, match=r"0\.1 alone costs epsilon .* of 8"):
        planned(base, noise=0.1)


def test_a_run_interrupted_before_the_sums_continues_and_measures_once(base, bounded, tmp_path, monkeypatch):
    plan, model, drawn = planned(base), tmp_path / "model", labelling.sample_rounded_gaussian
    monkeypatch.setattr(labelling, "sample_rounded_gaussian", lambda *_: _stop())
    monkeypatch.setattr(
        dp_finetune._TrainedTexts, "pool", lambda *_: pytest.fail("no synthetic text is needed for the sums")
    )
    with pytest.raises(KeyboardInterrupt):
        fitted(plan, bounded, model)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model)) == (False, True)
    measured = []
    monkeypatch.setattr(labelling, "sample_rounded_gaussian", lambda *rest: measured.append(1) or drawn(*rest))
    fitted(plan, bounded, model, resume=True)
    assert (GENERATOR.is_complete(model), GENERATOR.can_resume(model), measured) == (True, False, [1])
    found = json.loads((model / "resampling.json").read_text())
    assert np.array(found["sums"]).shape == (4, 4)
    before = {file: file.read_bytes() for file in model.rglob("*") if file.is_file()}
    assert 1 <= GENERATOR.draw(model, 10).table().num_rows <= 10
    assert {file: file.read_bytes() for file in model.rglob("*") if file.is_file()} == before


def _stop():
    raise KeyboardInterrupt


TWO = {"kind": {"type": "categorical", "values": ["mail", "note"]}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clusters": 5}, "clusters: 5 with by 'labels'; accepted: none"),
        ({"by": "clusters", "column": "region"}, "column: 'region' with by 'clusters'; accepted: none"),
        ({"by": "classes"}, "'classes'; accepted: .*clusters.*labels"),
        ({"column": "letter"}, "'letter' is no conditioning column; accepted: region"),
        ({"given": []}, "resample.column: missing, with by 'labels'"),
        ({"columns": TWO, "given": ["region", "kind"]}, "column: missing, with by 'labels'; accepted: region, kind"),
    ],
)
def test_an_impossible_contract_is_refused(base, changes, said):
    with pytest.raises(ContractError, match=said):
        contract_for(base, **changes)


def test_of_several_columns_the_declared_one(base):
    contract = contract_for(base, columns=TWO, given=["region", "kind"], column="kind")
    assert contract.label_column == "kind"
    assert contract.mechanism_snapshot()["resample"] == {"by": "labels", "column": "kind", "noise": 2.0, "pool": 2.0}
