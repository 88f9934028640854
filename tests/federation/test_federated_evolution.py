"""Federated private evolution of texts: the plan, what a unit adds, documents of dishonest servers, and whole runs."""

import itertools
import json
import math
import os
import random
from dataclasses import replace

import federated_cases
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from endpoint_cases import TEXTS, serving
from federated_cases import COORDINATOR, KEYS, NAMES, plain_sum, policy_document
from seeded_stream import Counted
from text_cases import fitted

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation import noise
from dpsynth_platform.federation import text_evolution as federated
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.evolution import PARTS, coded
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan
from dpsynth_platform.foundation.errors import (
    AccountingError,
    ConfigurationError,
    ContractError,
    GrantRefused,
    MechanismFailed,
)
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_to_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.evolution.journal import FILE_NAME
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.text import evolution

KINDS = ("mail", "note")
WORDS = {
    "mail": ["parcel box late open", "team report monday send", "invoice paid bank sum", "flight gate delay seat"],
    "note": ["milk bread home buy", "fever cough nurse rest", "keys door lock spare", "rain coat wet walk"],
}
FREQUENT = {"mail": 0, "note": 1}
"""Of the subjects of each kind, the one of most private texts."""
LETTERS = "abcdefghiklmnoprstuwy"
TERMS = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000}
SCHEMA = pa.schema([("person", pa.string()), ("kind", pa.string()), ("body", pa.string())])
SECRET = "zanzibar"


class Letters:
    """An encoder that knows how often some letters stand in a text; milliseconds sooner than the real one."""

    def __init__(self, device="cpu"):
        pass

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in LETTERS] for text in texts], dtype=np.float32)
        return counts.reshape(len(texts), -1) / np.maximum(np.linalg.norm(counts, axis=-1, keepdims=True), 1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    for module in (evolution, federated):
        monkeypatch.setattr(module, "SentenceEncoder", Letters)
    monkeypatch.setattr(federated, "FEATURES", len(LETTERS))
    monkeypatch.setattr(federated, "encoder_digest", lambda: "letters")


def text_of(rng, kind, subject):
    return " ".join(rng.choice(WORDS[kind][subject].split(), 6))


@pytest.fixture(scope="session")
def public(tmp_path_factory):
    rng = np.random.default_rng(1)
    rows = [
        {"kind": kind, "body": f"{text_of(rng, kind, subject)} {number}"}
        for kind in KINDS
        for subject in range(4)
        for number in range(20)
    ]
    place = tmp_path_factory.mktemp("public") / "texts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), place)
    return place


def contract(public, target=2.0, *, alone=False, text=(), privacy=(), generate=(), **evolved):
    evolved = {"about": "short texts", "population": 6, "variations": 1, "rounds": 3, "ways": ["retrieve"]} | evolved
    kinds = {} if alone else {"kind": {"type": "categorical", "values": list(KINDS)}}
    document = {
        "dataset": "letters",
        "description": "Fictional people.",
        "owners": ["tests@example.org"],
        "source": {"uri": "/nowhere", "key": ["person"]},
        "family": "guests",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 2,
            "guarantee": {"epsilon": target, "delta": 1e-5},
            "expected_units": 400,
            **dict(privacy),
        },
        "columns": {"person": {"type": "identifier"}, **kinds, "body": {"type": "text", "pii": "replace"}},
        "generate": {
            "method": "aug_pe",
            "rows": 30,
            "public": {"uri": str(public), "why": "texts that were made up for tests"},
            "text": {"max_tokens": 40, **({} if alone else {"given": ["kind"]}), "evolution": evolved} | dict(text),
        }
        | dict(generate),
        "release": {"uri": "/nowhere/public"},
    }
    if document["generate"]["public"] is None:
        del document["generate"]["public"]
    return parse_contract(document, where="test", variables={})


def plan_for(public, target=2.0, *, terms=(), **changes):
    made = contract(public, target, **changes)
    schema = SCHEMA if "kind" in made.columns else SCHEMA.remove(1)
    return TextEvolutionPlan.of(made, schema, **TERMS | dict(terms))


@pytest.fixture(scope="module")
def plan(public):
    with pytest.MonkeyPatch.context() as patch:
        for module in (evolution, federated):
            patch.setattr(module, "SentenceEncoder", Letters)
        patch.setattr(federated, "FEATURES", len(LETTERS))
        patch.setattr(federated, "encoder_digest", lambda: "letters")
        return plan_for(public)


def letters(people, seed=0):
    """One or two texts of each person, most of one subject of each kind, all with a word that no candidate has."""
    rng = np.random.default_rng(seed)
    rows = []
    for person in range(people):
        for _ in range(1 + person % 2):
            kind = KINDS[int(rng.uniform() < 0.4)]
            subject = FREQUENT[kind] if rng.uniform() < 0.8 else int(rng.integers(0, 4))
            owner = f"{person:04d}"
            rows.append(
                {OWNER_COLUMN: owner, "person": owner, "kind": kind, "body": f"{text_of(rng, kind, subject)} {SECRET}"}
            )
    return pa.Table.from_pylist(rows)


def table_of(*records):
    """Records as (owner, kind, text)."""
    columns = {OWNER_COLUMN: 0, "person": 0, "kind": 1, "body": 2}
    return pa.table({name: pa.array([one[at] for one in records], pa.string()) for name, at in columns.items()})


def party(directory, name, table, declared, **changes):
    document = policy_document(name, epsilon=50.0) | {
        "dataset": "letters",
        "methods": ["aug_pe"],
        "columns": ["kind", "body"],
        "max_contributions": 2,
        **{key: value for key, value in changes.items() if key != "texts"},
    }
    ledger = Ledger(f"sqlite:///{directory / name / 'ledger.db'}")
    texts = changes.get("texts", ["body"])
    return Participant(Policy.model_validate(document), ledger, table, planned_domain(declared), texts=texts)


def divided(table):
    """All records of a person at one participant."""
    places = np.array([int(owner) % len(NAMES) for owner in table.column(OWNER_COLUMN).to_pylist()])
    return [table.filter(pa.array(places == place)) for place in range(len(NAMES))]


def runs_of(plan, declared, directory, table):
    parties = [party(directory, name, part, declared) for name, part in zip(NAMES, divided(table), strict=True)]
    reserved = {each.policy.name: each.reserve("run", plan.to_json()) for each in parties}
    return [each.start("run", reserved) for each in parties]


def document_of(plan, features, groups=None, labels=(("mail",),), index=None):
    features = np.asarray(features, dtype=np.float32)
    return {
        "index": plan.before if index is None else index,
        "labels": [list(label) for label in labels],
        "groups": [0] * len(features) if groups is None else list(groups),
        "features": coded(features),
    }


def kept(directory, kind):
    lines = [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


# The plan.


def renyi_epsilon(plan, moved):
    """At whole orders: Agarwal, Kairouz & Liu 2021, theorem 3.1, for each sum; to epsilon by Canonne et al. 2020."""
    terms, least = plan.terms, math.inf
    honest, most = terms.minimum - terms.colluders, plan.most_candidates
    for order in range(2, 200):
        total = 0.0
        for share in terms.share_variances:
            variance, l2 = honest * share, moved * terms.parts
            l1 = math.sqrt(most) * l2
            total += order * l2**2 / (2 * variance)
            total += min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
        least = min(least, total + math.log1p(-1 / order) + (math.log(1e5) - math.log(order)) / (order - 1))
    return least


@pytest.mark.parametrize(
    ("privacy", "silos", "moved"),
    [
        ({}, 1, 1),
        ({"max_contributions": 5}, 1, 1),
        ({}, 3, 3),
        ({"adjacency": "replace-one"}, 1, 2),
        ({"adjacency": "replace-one"}, 2, 4),
    ],
)
def test_the_event_is_that_of_the_composed_sums(public, privacy, silos, moved):
    """Of texts without other columns. A unit's votes have length 1 in each silo, whatever its number of records is."""
    plan = plan_for(public, alone=True, privacy=privacy, terms={"silos": silos})
    assert plan.columns is None and len(plan.rounds) == 3
    stated = epsilon(plan.event, 1e-5)
    assert 0.99 * 2.0 < stated.epsilon <= 2.0
    assert 1 - 1e-9 <= stated.renyi / renyi_epsilon(plan, moved) < 1.02  # of fewer orders
    whole = len(NAMES) * plan.terms.share_variances[0]
    assert plan.parameters.sigma == math.sqrt(whole) / PARTS


def test_counted_columns_are_rounds_of_their_own_within_the_guarantee(plan):
    assert isinstance(plan.columns, MarginalsPlan)
    assert [name for name, _ in plan.rounds] == ["one-way", "votes", "votes", "votes"]
    assert plan.columns.guarantee.epsilon < 0.5 and plan.reads == ["kind", "body"]
    assert len(plan.rounds) == len(plan.sums)
    assert 0.99 * 2 < epsilon(plan.event, 1e-5).epsilon <= 2


def test_the_population_follows_the_noise_of_all_participants(public):
    """As in the central method: three times the noise for each candidate, on average."""
    plan = plan_for(public, population="auto", privacy={"expected_units": 100_000})
    most = 100_000 / (3 * plan.parameters.sigma * 2)
    assert 0.8 * most < plan.parameters.population <= 1.05 * most or plan.parameters.population == 2000


def test_the_sums_of_a_plan_cannot_overflow(public, plan):
    assert max(each.modulus_bits for each in plan.sums) <= 62
    with pytest.raises(AccountingError, match="bits"):
        plan_for(public, terms={"most_records": 2**51})
    with pytest.raises(AccountingError, match="fixed-graph"):
        plan.terms.votes(0, 2, "fixed-graph")
    assert RECORD_PARTS % PARTS == 0


def altered(plan, federated=(), **changes):
    parameters = plan.sealed.parameters | changes
    parameters["federated"] = parameters["federated"] | dict(federated)
    return TextEvolutionPlan(replace(plan.sealed, parameters=parameters))


def test_a_plan_is_read_back_by_its_method_and_checked(plan):
    again = plan_of(plan.to_json())
    assert isinstance(again, TextEvolutionPlan) and again.digest == plan.digest and again.terms == plan.terms
    less = altered(plan, {"share_variances": [float(share // 4) for share in plan.terms.share_variances]})
    with pytest.raises(AccountingError, match="not that of its parameters"):
        plan_of(less.to_json())
    cheaper = replace(less.sealed, event=event_to_json(less.event))
    with pytest.raises(AccountingError, match="costs epsilon"):
        plan_of(cheaper.to_json())
    for changes in (
        {"parts": 1},
        {"parts": 3},
        {"minimum": 4},
        {"max_contributions": 1},
        {"share_variances": []},
        {"encoder": 7},
        {"more": 1},
    ):
        with pytest.raises(AccountingError, match="damaged"):
            plan_of(altered(plan, changes).to_json())
    for key, wrong in (
        ("population", 0),
        ("population", 2.5),
        ("population", 99_999),
        ("rounds", plan.sealed.parameters["rounds"] | {"rounds": 2}),
        ("rounds", plan.sealed.parameters["rounds"] | {"variations": 0}),
        ("nearest", 0),
        ("nearest", 2.0),
        ("nearest", True),
        ("layout", plan.sealed.parameters["layout"] | {"conditions": [{"column": "town", "values": ["Aix"]}]}),
        ("columns", None),
    ):
        with pytest.raises(AccountingError, match=r"damaged|of a sum"):
            plan_of(altered(plan, **{key: wrong}).to_json())
    with pytest.raises(AccountingError, match="damaged"):
        plan_of(replace(plan.sealed, method="image_moments").to_json())


def test_what_a_federated_run_does_not_have_is_refused_with_a_plan(public):
    with pytest.raises(ContractError, match="without resample"):
        plan_for(public, text={"resample": {"clusters": 3, "noise": 2.0, "pool": 2.0}})
    with pytest.raises(AccountingError, match=r"a message to a participant could .* fewer candidates"):
        plan_for(public, population=100_000, variations=50)


def test_the_central_mechanism_does_not_run_a_federated_plan(plan):
    with pytest.raises(GrantRefused, match="federated"):
        generator("aug_pe").check(SealedPlan.from_json(plan.to_json()))


# What a unit adds.

AXES = np.eye(4, len(LETTERS), dtype=np.float32)
TEXT_OF_AXIS = ["aaa", "bbb", "ccc", "ddd"]


def squares(vector):
    return sum(int(entry) ** 2 for entry in vector)


def every_unit(most):
    """All choices of at most so many records among four texts, and one that is blank."""
    texts = [*TEXT_OF_AXIS, " "]
    return [own for number in range(most + 1) for own in itertools.combinations_with_replacement(texts, number)]


@pytest.mark.parametrize("nearest", [1, 2])
def test_a_unit_moves_no_sum_further_than_the_event_says(public, nearest):
    """Every unit of at most three records is added to, removed from and replaced in a table, in whole numbers."""
    privacy = {"max_contributions": 3}
    plan = plan_for(public, population=4, nearest=nearest, privacy=privacy, terms={"silos": 2})
    asked = plan.read_round(document_of(plan, AXES))
    others = [("other", "mail", "aab"), ("other", "mail", "ddd"), ("another", "mail", "b"), ("last", "note", "ccc")]
    without, sealed = asked.units(table_of(*others)), next(iter(leaves(asked.sum.event)))[0]
    moved = {}
    for own in every_unit(3):
        records = [("unit", "mail", text) for text in own]
        for place in (0, 2, len(others)):
            whole = asked.units(table_of(*others[:place], *records, *others[place:]))
            assert own not in moved or np.array_equal(moved[own], whole - without)
            moved[own] = whole - without
        assert squares(moved[own]) <= PARTS**2
        assert np.abs(moved[own]).sum() <= math.isqrt(asked.sum.length * PARTS**2)
        if len(set(own)) == 1 and " " not in own and nearest == 1:
            assert squares(moved[own]) == PARTS**2  # what is paid for is reached
    assert sealed.sensitivity.l2_squared == (2 * PARTS) ** 2  # two silos
    assert max(squares(one + other) for one in moved.values() for other in moved.values()) <= (2 * PARTS) ** 2
    # Replaced units, in one silo: their votes are not negative, so that the event pays for more than they move.
    replaced = plan_for(public, population=4, nearest=nearest, privacy=privacy | {"adjacency": "replace-one"})
    paid = next(iter(leaves(replaced.read_round(document_of(replaced, AXES)).sum.event)))[0].sensitivity
    farthest = max(squares(one - other) for one in moved.values() for other in moved.values())
    assert farthest <= 2 * PARTS**2 < paid.l2_squared == 4 * PARTS**2


def test_the_units_of_all_participants_are_added_and_labels_vote_for_their_own(plan):
    table = letters(40)
    rng = np.random.default_rng(5)
    features = rng.uniform(size=(12, len(LETTERS))).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    document = document_of(plan, features, [0, 1] * 6, [("note",), ("mail",)])
    asked = plan.read_round(document)
    whole = asked.units(table)
    assert np.array_equal(whole, sum(asked.units(part) for part in divided(table)))
    notes = table.filter(pa.array(np.array(table["kind"]) == "note"))
    of_notes = plan.read_round(document).units(notes)
    assert not of_notes[1::2].any() and of_notes[::2].any()
    # Of exact parts, as many as the central method has, up to rounding.
    exact = plan.voters(table, asked.labels).votes(asked.features, asked.groups)
    assert np.abs(whole * (RECORD_PARTS // PARTS) - exact).max() <= 40 * RECORD_PARTS // PARTS
    assert not asked.units(table.slice(0, 0)).any()


def test_the_records_of_another_table_are_not_those_kept(plan):
    """A participant keeps the features of its texts between rounds, of the same table and labels alone."""
    asked = plan.read_round(document_of(plan, AXES))
    one, other = table_of(("a", "mail", "aaa")), table_of(("a", "mail", "bbb"))
    assert [asked.units(table).tolist() for table in (one, other, one)] == [
        [PARTS, 0, 0, 0],
        [0, PARTS, 0, 0],
        [PARTS, 0, 0, 0],
    ]
    of_notes = plan.read_round(document_of(plan, AXES, labels=(("note",),)))
    assert not of_notes.units(one).any()


# Documents of dishonest servers.


def test_whatever_candidates_a_server_makes_up_a_unit_moves_no_sum_further(plan):
    """Equal, empty, opposite and tiny candidates: one unit more or less is a vector of length 1."""
    rng = np.random.default_rng(2)
    wild = [
        np.zeros((12, len(LETTERS))),
        np.repeat(AXES[:1], 12, axis=0),
        -np.eye(12, len(LETTERS)),
        np.full((12, len(LETTERS)), 1e-38),
        rng.normal(size=(12, len(LETTERS))) / 100,
        AXES[:1],
    ]
    table = letters(30)
    owners = sorted(set(table[OWNER_COLUMN].to_pylist()))
    for features, labels in itertools.product(wild, ((("mail",),), (("note",), ("mail",)))):
        if len(labels) > len(features):
            continue
        groups = [place % len(labels) for place in range(len(features))]
        asked = plan.read_round(document_of(plan, features, groups, labels))
        whole = asked.units(table)
        for owner in owners[:6]:
            mine = pa.array(np.array(table[OWNER_COLUMN]) == owner)
            moved = whole - asked.units(table.filter(pa.compute.invert(mine)))
            assert np.array_equal(moved, asked.units(table.filter(mine)))
            assert squares(moved) <= PARTS**2 and (moved >= 0).all()


def test_a_round_is_the_same_for_all_and_others_are_refused(plan):
    document = json.loads(json.dumps(document_of(plan, AXES, [0, 1, 0, 1], [("mail",), ("note",)])))
    asked = plan.read_round(document)
    again = plan_of(plan.to_json()).read_round(json.loads(json.dumps(asked.to_json())))
    assert again == asked and again.digest == asked.digest and again.sum.length == 4
    assert asked.digest != plan.read_round(document | {"groups": [0, 1, 1, 1]}).digest
    most = plan.most_candidates
    assert plan.read_round(document_of(plan, np.zeros((most, len(LETTERS))))).sum.length == most
    missing = plan.read_round(document_of(plan, AXES, labels=[(None,), ("mail",)]))
    assert not missing.units(table_of(("a", None, "aaa"))).any()  # as in the central method
    large, unknown = AXES * 1.01, AXES.copy()
    unknown[2, 3] = np.nan
    for wrong in (
        document | {"index": len(plan.rounds)},
        document | {"index": -1},
        document | {"index": True},
        document | {"index": "1"},
        document | {"index": 0},  # a round of the columns
        document | {"labels": [["mail"], ["mail"]]},
        document | {"labels": [["mail"], ["letter"]]},
        document | {"labels": [["mail"], ["note"], [None], ["mail"]]},
        document | {"labels": [["mail"], [["note"]]]},
        document | {"labels": [["mail"], []]},
        document | {"labels": [["mail", "note"]]},
        document | {"labels": []},
        document | {"labels": 7},
        document | {"labels": [["mail"]]},
        document | {"groups": [0, 1, 0, 2]},
        document | {"groups": [0, 1, 0, -1]},
        document | {"groups": [0, 1, 0, 1.0]},
        document | {"groups": [0, 1, 0, True]},
        document | {"groups": [0, 1, 0]},
        document | {"groups": []},
        document | {"groups": "0101"},
        document | {"features": document["features"][:-4]},
        document | {"features": "!" * len(document["features"])},
        document | {"features": ["A"] * len(document["features"])},
        document | {"features": 7},
        document_of(plan, large),
        document_of(plan, unknown),
        document_of(plan, np.full((4, len(LETTERS)), 3e38)),
        document_of(plan, np.full((4, len(LETTERS)), np.inf)),
        document_of(plan, np.zeros((most + 1, len(LETTERS)))),
        document | {"more": 1},
        {"index": 1},
        [],
    ):
        with pytest.raises(AccountingError, match="round"):
            plan.read_round(wrong)


def test_a_document_is_no_longer_than_its_plan_says(plan):
    """The longest one, with all labels, as the line of JSON that a message has."""
    label = "\N{GRINNING FACE}" * 10
    layout = plan.sealed.parameters["layout"] | {"conditions": [{"column": "kind", "values": [label, "b"]}]}
    for each in (plan, altered(plan, layout=layout)):
        labels, most = [(value,) for value in (*each.conditions[0].values, None)], each.most_candidates
        groups = [len(labels) - 1] * most
        line = json.dumps(document_of(plan, np.ones((most, len(LETTERS))), groups, labels, 100))
        assert len(line) <= each.own_document_bytes <= 1.2 * len(line) + 300
    assert plan.own_document_bytes <= plan.most_document_bytes < plan.most_message_bytes


def test_a_participant_refuses_what_it_does_not_declare_before_anything_costs(tmp_path, public, plan, monkeypatch):
    table, declared = letters(4), contract(public)
    for place, (changes, named) in enumerate(
        (
            ({"texts": []}, "columns: body is no text here"),
            ({"methods": ["mst"]}, "methods: aug_pe"),
            ({"columns": ["kind"]}, "columns: body"),
            ({"max_contributions": 3}, "max_contributions: 2"),
            ({"most_cells": max(each.length for each in plan.sums) - 1}, "most_cells"),
        )
    ):
        refusing = party(tmp_path / str(place), NAMES[0], table, declared, **changes)
        with pytest.raises(ContractError, match=named):
            refusing.reserve("run", plan.to_json())
        assert refusing.ledger.entries() == []
    willing = party(tmp_path / "willing", NAMES[0], table, declared)
    with monkeypatch.context() as patch:
        patch.setattr(federated, "encoder_digest", lambda: "others")
        with pytest.raises(ContractError, match="encoder: letters; accepted: others"):
            willing.reserve("run", plan.to_json())
    assert willing.ledger.entries() == []
    assert willing.reserve("run", plan.to_json()) == plan.digest


# Whole runs.


@pytest.fixture
def seeded(monkeypatch):
    """Candidates and noise are drawn by seeds."""
    made, stream = evolution.TextFoundation, Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    monkeypatch.setattr(evolution, "TextFoundation", lambda *args, **more: made(*args, **more, chance=random.Random(4)))


def test_with_the_same_noise_the_candidates_are_those_of_a_central_run(seeded, public, tmp_path, monkeypatch):
    plan, table = plan_for(public, alone=True), letters(400).drop_columns("kind")
    declared, directory, added = contract(public, alone=True), tmp_path / "model", []
    directory.mkdir()
    opened = plain_sum(runs_of(plan, declared, tmp_path, table))

    def open_sum(asked):
        total, names = opened(asked)
        added.append(total - plan_of(plan.to_json()).read_round(asked.to_json()).units(table))
        return total, names

    run_rounds(plan, directory, open_sum)
    assert all(part.any() for part in added) and len(added) == 3
    write_table(tmp_path / "table", table.schema, table.to_batches())
    left = iter(added)

    def noisy(voters, features, groups, sigma):
        return (voters.votes(features, groups, PARTS) + next(left)) * (RECORD_PARTS // PARTS)

    monkeypatch.setattr(evolution, "noisy_votes", noisy)
    central = generator("aug_pe").plan(declared, SCHEMA.remove(1), Guarantee.target(declared))
    fitted(central, tmp_path / "table", tmp_path / "central")
    for kind in ("groups", "candidates", "votes"):
        assert kept(directory, kind) == kept(tmp_path / "central", kind)
    assert len(kept(directory, "votes")) == 3
    survivors = (directory / evolution.SURVIVORS).read_text()
    assert survivors == (tmp_path / "central" / evolution.SURVIVORS).read_text()
    whole = b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())
    assert SECRET.encode() not in whole


def subject_of(kind, text):
    return max(range(4), key=lambda subject: sum(word in WORDS[kind][subject].split() for word in text.split()))


def test_frequent_subjects_survive_a_run_over_signed_messages(seeded, public, tmp_path):
    """At epsilon 8 and 900 records; 8 survivors, of which noise alone would choose a quarter of the right subject."""
    changes = {"population": 8, "variations": 3, "privacy": {"expected_units": 600}}
    plan, declared, table = plan_for(public, 8.0, **changes), contract(public, 8.0, **changes), letters(600)
    cap = {"run_cap": {"epsilon": 8.0, "delta": 1e-5}}
    nodes = {
        name: Node(party(tmp_path, name, part, declared, **cap), KEYS[name])
        for name, part in zip(NAMES, divided(table), strict=True)
    }
    lengths = []

    class Wires:
        def ask(self, requests):
            lengths.extend(map(len, requests.values()))
            return {name: nodes[name].answer(request) for name, request in requests.items()}

    roster = Roster({name: KEYS[name].public_key() for name in NAMES})
    made = Coordinator(roster, COORDINATOR, Wires()).run("first", plan, tmp_path / "model")
    assert made.finished == (NAMES,) * len(plan.rounds)
    assert max(lengths) <= plan.most_message_bytes
    assert {entry.state for node in nodes.values() for entry in node.participant.ledger.entries()} == {"spent"}
    survivors = json.loads((tmp_path / "model" / evolution.SURVIVORS).read_text())
    right = [subject_of(one["given"][0], one["text"]) == FREQUENT[one["given"][0]] for one in survivors]
    assert sum(right) >= 0.75 * len(right) and len(right) >= 8
    drawn = generator("aug_pe").draw(tmp_path / "model", 40).table()
    assert drawn.schema.names == ["person", "kind", "body"] and drawn.num_rows > 20
    known = {(row["kind"], row["body"]) for row in pq.read_table(public).to_pylist()}
    assert all((row["kind"], row["body"]) in known for row in drawn.select(["kind", "body"]).to_pylist())


def test_a_model_at_an_endpoint_is_asked_by_the_coordinator_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(federated_cases, "sample_skellam", lambda variance, number: np.zeros(number, dtype=np.int64))
    monkeypatch.setattr("dpsynth_platform.synth.endpoint_calls.FIRST_WAIT", 0.01)
    directory = tmp_path / "model"
    with serving() as server:
        monkeypatch.setitem(os.environ, "DPSYNTH_TEXT_ENDPOINTS", server.url.removesuffix("/v1"))
        generate = {"public": None, "base_model": "some-model"}
        written = {"ways": ["rephrase"], "endpoint": {"url": server.url, "attempts": 2}}
        declared = contract("/nowhere", generate=generate, **written)
        plan = plan_for("/nowhere", generate=generate, **written)
        runs = runs_of(plan, declared, tmp_path, letters(40))
        assert not server.asked
        plan.prepare()
        assert len(server.asked) == 1
        directory.mkdir()
        run_rounds(plan, directory, plain_sum(runs, {2: 1}))
        assert len(server.asked) > 12 and SECRET not in json.dumps([document for *_, document in server.asked])
        texts = [one["text"] for one in json.loads((directory / evolution.SURVIVORS).read_text())]
        assert len(texts) >= 6 and all(
            text.partition(", number")[0] in [*TEXTS["mail"], *TEXTS["note"]] for text in texts
        )
        server.breaks = lambda document: True
        with pytest.raises(ConfigurationError):
            plan.prepare()
        (tmp_path / "broken").mkdir()
        with pytest.raises(MechanismFailed, match="what participants have spent remains spent"):
            run_rounds(plan, tmp_path / "broken", lambda asked: (np.full(asked.sum.length, 40 * 16), NAMES))


def test_nobody_is_asked_if_the_coordinator_lacks_the_public_texts(public, tmp_path):
    own = tmp_path / "texts.parquet"
    own.write_bytes(public.read_bytes())
    plan = plan_for(own)
    own.unlink()

    class Silent:
        def ask(self, requests):
            pytest.fail("a participant was asked")

    roster = Roster({name: KEYS[name].public_key() for name in NAMES})
    with pytest.raises(ConfigurationError):
        Coordinator(roster, COORDINATOR, Silent()).run("first", plan, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_votes_of_no_round_are_refused(public, tmp_path):
    plan = plan_for(public, alone=True)
    with plan.measuring(tmp_path) as measuring:
        with pytest.raises(MechanismFailed, match="after next_round"):
            measuring.add(np.zeros(3, dtype=np.int64), 4)
        asked = measuring.next_round()
        measuring.add(np.zeros(asked.sum.length, dtype=np.int64), 4)
        with pytest.raises(MechanismFailed, match="after next_round"):
            measuring.add(np.zeros(asked.sum.length, dtype=np.int64), 4)
        assert measuring.next_round().index == 1
