"""Federated private evolution of pictures: the plan, what a unit adds, and a run beside a central one."""

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from federated_cases import KEYS, NAMES, plain_sum, policy_document, public
from seeded_stream import Counted

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation import noise
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.evolution import PARTS, coded
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.evolution.journal import FILE_NAME
from dpsynth_platform.synth.images import evolution, image_pe
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import Checkpoints, SealedPlan, generator
from dpsynth_platform.synth.tabular.attributes import planned_domain

KINDS = ["dark", "light"]
SIDE = 4
TERMS = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000}


def contract(*, kinds=True, privacy=(), **evolved):
    drawing = {"type": "image", "size": [SIDE, SIDE], "channels": 1, "accept_unscrubbed": "made up for tests"}
    columns = {"kind": {"type": "categorical", "values": KINDS}} if kinds else {}
    evolved = {"foundation": "shapes", "rounds": 3, "variations": 1, "population": 4} | evolved
    document = {
        "dataset": "drawings",
        "description": "Fictional people.",
        "owners": ["tests@example.org"],
        "source": {"uri": "/nowhere", "key": ["person"]},
        "family": "guests",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 2,
            "guarantee": {"epsilon": 2.0, "delta": 1e-5},
            "expected_units": 400,
            **dict(privacy),
        },
        "columns": {"person": {"type": "identifier"}, **columns, "drawing": drawing},
        "generate": {"method": "image_pe", "rows": 20, "image": {"evolution": evolved}},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="test", variables={})


def schema_of(declared):
    kinds = [("kind", pa.string())] if "kind" in declared.columns else []
    return pa.schema([("person", pa.string()), *kinds, ("drawing", pa.binary())])


def plan_for(*, terms=(), **changes):
    declared = contract(**changes)
    return PictureEvolutionPlan.of(declared, schema_of(declared), **TERMS | dict(terms))


def table_of(records):
    """Records as (owner, kind, grey values)."""
    pixels = np.array([grey for *_, grey in records], dtype=np.uint8).reshape(-1, SIDE, SIDE, 1)
    return pa.table(
        {
            OWNER_COLUMN: pa.array([owner for owner, *_ in records], pa.string()),
            "person": pa.array([owner for owner, *_ in records], pa.string()),
            "kind": pa.array([kind for _, kind, _ in records], pa.string()),
            "drawing": ImageLayout.of(contract()).form.stored(pixels),
        }
    )


def drawings(people, seed=0):
    rng = np.random.default_rng(seed)
    records = []
    for person in range(people):
        for _ in range(1 + person % 2):
            kind = int(rng.integers(0, 2))
            grey = np.clip(60 + 130 * kind + rng.normal(0, 20, (SIDE, SIDE)) + np.arange(SIDE) * 15 * kind, 0, 255)
            records.append((f"{person:04d}", KINDS[kind], grey))
    return table_of(records)


def runs_of(plan, declared, directory, table):
    places = np.array([int(owner) % len(NAMES) for owner in table.column(OWNER_COLUMN).to_pylist()])
    parties = []
    for place, name in enumerate(NAMES):
        document = policy_document(name, epsilon=50.0) | {
            "dataset": "drawings",
            "methods": ["image_pe"],
            "columns": ["kind", "drawing"],
            "max_contributions": 2,
            "participants": {each: public(KEYS[each]) for each in NAMES},
        }
        ledger = Ledger(f"sqlite:///{directory / name / 'ledger.db'}")
        rows, layout = table.filter(pa.array(places == place)), ImageLayout.of(declared)
        parties.append(Participant(Policy.model_validate(document), ledger, rows, planned_domain(declared), layout))
    reserved = {each.policy.name: each.reserve("run", plan.to_json()) for each in parties}
    return [each.start("run", reserved) for each in parties]


def document_of(plan, features, groups=None, labels=(("dark",),)):
    features = np.asarray(features, dtype=np.float32)
    return {
        "index": plan.before,
        "labels": [list(label) for label in labels],
        "groups": [0] * len(features) if groups is None else list(groups),
        "features": coded(features),
    }


def squares(vector):
    return sum(int(entry) ** 2 for entry in vector)


@pytest.fixture(scope="module")
def plan():
    return plan_for()


@pytest.mark.parametrize(("privacy", "silos", "moved"), [({}, 1, 1), ({}, 3, 3), ({"adjacency": "replace-one"}, 1, 2)])
def test_the_event_is_that_of_sums_of_votes_of_length_one(privacy, silos, moved):
    """The noise is what Gaussian sums need at this cost, within what Renyi bounds lose; the cost is near the target."""
    plan = plan_for(kinds=False, privacy=privacy, terms={"silos": silos})
    stated = epsilon(plan.event, 1e-5)
    assert 0.98 * 2.0 < stated.epsilon <= 2.0
    assert plan.columns is None and len(plan.rounds) == 3
    for each, times in leaves(plan.event):
        assert times == 1 and each.sensitivity.l2_squared == (moved * PARTS) ** 2
        assert each.variance == 2 * plan.terms.share_variances[0]  # three of four finish, one is not honest
    assert plan.parameters.evolution.sigma == math.sqrt(4 * plan.terms.share_variances[0]) / PARTS


def test_a_plan_is_read_back_and_is_not_run_by_the_central_mechanism(plan):
    again = plan_of(plan.to_json())
    assert isinstance(again, PictureEvolutionPlan) and again.digest == plan.digest
    assert plan.reads == ["kind", "drawing"] and plan.rounds[0] == ("one-way", 1)
    with pytest.raises(GrantRefused, match="federated"):
        generator("image_pe").check(SealedPlan.from_json(plan.to_json()))


@pytest.mark.parametrize("number", [4.0, True, "4"])
def test_a_size_that_is_no_whole_number_is_refused_before_it_costs(plan, number):
    """4.0 equals 4, and would fail once a participant had paid."""
    layout = plan.sealed.parameters["layout"]
    form = layout["form"] | {"height": number}
    parameters = plan.sealed.parameters | {"layout": layout | {"form": form}}
    with pytest.raises((AccountingError, ContractError)):
        plan_of(replace(plan.sealed, parameters=parameters).to_json())


def test_owners_whose_names_differ_by_a_trailing_zero_character_are_two(plan):
    far = np.full((4, 4), 255) * np.eye(4)
    table = table_of([("a", "dark", np.zeros((4, 4))), ("a\0", "dark", far)])
    features = np.zeros((2, plan.features))
    features[1] = 1 / 14
    asked = plan.round(**document_of(plan, features, [0, 0]))
    assert [list(asked.units(table)), list(asked.units(table.slice(1, 1)))] == [[PARTS, PARTS], [0, PARTS]]


def test_pictures_that_are_near_by_a_network_are_refused(tmp_path):
    with pytest.raises(ContractError, match="accepted in a federated run: none"):
        plan_for(encoder=str(tmp_path / "network"))


def test_a_unit_moves_no_sum_further_than_the_event_says(plan):
    """Every unit of two records is added and removed, whatever the candidates are; in whole numbers."""
    greys = [np.full((SIDE, SIDE), 250), np.tri(SIDE) * 200, np.eye(SIDE) * 255, np.zeros((SIDE, SIDE))]
    others = [("other", "dark", greys[0]), ("other", "dark", greys[1]), ("last", "light", greys[2])]
    rng, most = np.random.default_rng(3), 5
    directions = rng.normal(size=(most, plan.features))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for features in (
        np.abs(directions),
        -directions,
        np.zeros((most, plan.features)),
        np.repeat(directions[:1], most, axis=0),
        np.eye(most, plan.features),
    ):
        asked = plan.read_round(document_of(plan, features, [0, 1, 0, 1, 0], [("dark",), ("light",)]))
        without = asked.units(table_of(others))
        for one, other in itertools.product(itertools.product(KINDS, greys), repeat=2):
            own = [("unit", *one), ("unit", *other)]
            moved = asked.units(table_of([*own[:1], *others, *own[1:]])) - without
            assert np.array_equal(moved, asked.units(table_of(own)))
            assert (moved >= 0).all() and PARTS**2 - 4 * PARTS <= squares(moved) <= PARTS**2


def test_candidates_that_the_plan_does_not_allow_are_refused(plan):
    axes = np.eye(4, plan.features)
    document = document_of(plan, axes)
    assert plan.read_round(json.loads(json.dumps(document))).sum.length == 4
    many = np.zeros((plan.most_candidates + 1, plan.features))
    for wrong in (
        document_of(plan, axes * 1.001),
        document_of(plan, axes * np.nan),
        document_of(plan, many),
        document_of(plan, np.eye(4, plan.features + 1)),
        document | {"labels": [["grey"]]},
        document | {"index": len(plan.rounds)},
    ):
        with pytest.raises(AccountingError, match="round"):
            plan.read_round(wrong)


def test_with_the_same_noise_the_candidates_are_those_of_a_central_run(tmp_path, monkeypatch):
    """Choices of parents and candidates are seeded anew for each round, as rounds run anew after each vote."""
    stream, made, added = Counted(), np.random.default_rng, []
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    plan, declared, table, directory = plan_for(kinds=False), contract(kinds=False), drawings(200), tmp_path / "model"
    directory.mkdir()
    opened = plain_sum(runs_of(plan, declared, tmp_path, table))

    class Seeded(evolution._Candidates):
        """Each call of the evolution is seeded by its round."""

        def random(self, groups):
            self._generator = made(100)
            return super().random(groups)

        def vary(self, samples, groups):
            self._generator = made(self._round)
            return super().vary(samples, groups)

        def select(self, *rest):
            self._generator = made(200 + self._round)
            return super().select(*rest)

    monkeypatch.setattr(evolution, "_Candidates", Seeded)

    def open_sum(asked):
        total, names = opened(asked)
        added.append(total - plan_of(plan.to_json()).read_round(asked.to_json()).units(table))
        return total, names

    run_rounds(plan, directory, open_sum)
    assert len(added) == 3 and all(part.any() for part in added)
    write_table(tmp_path / "table", table.schema, table.to_batches())
    left = iter(added)

    def noisy(voters, features, groups, sigma):
        return (voters.votes(features, groups, PARTS) + next(left)) * (RECORD_PARTS // PARTS)

    sealed = plan.parameters.evolution
    monkeypatch.setattr(image_pe, "noisy_votes", noisy)
    monkeypatch.setattr(evolution, "_shares", lambda votes, _, shares=evolution._shares: shares(votes, sealed))
    central = generator("image_pe").plan(declared, schema_of(declared), Guarantee.target(declared))
    (tmp_path / "central").mkdir()
    grant, checkpoints = SimpleNamespace(plan_digest=central.digest), Checkpoints(None, b"k" * 32)
    generator("image_pe").fit(central, tmp_path / "table", grant, tmp_path / "central", checkpoints=checkpoints)
    for name in (FILE_NAME, image_pe.SURVIVORS):
        mine, theirs = ((place / "pictures" / name).read_text() for place in (directory, tmp_path / "central"))
        assert mine.splitlines()[1:] == theirs.splitlines()[1:]  # the journal's first line names the plan
    drawn = generator("image_pe").draw(directory, 10).table()
    assert drawn.num_rows == 10 and all(one.startswith(b"\x89PNG") for one in drawn["drawing"].to_pylist())
    lines = [json.loads(line)["kind"] for line in (directory / "pictures" / FILE_NAME).read_text().splitlines()]
    assert lines.count("votes") == 3


def test_columns_are_counted_first_in_a_whole_run(plan, tmp_path, monkeypatch):
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    directory = tmp_path / "model"
    directory.mkdir()
    run_rounds(plan, directory, plain_sum(runs_of(plan, contract(), tmp_path, drawings(200)), {2: 1}))
    drawn = generator("image_pe").draw(directory, 12).table()
    assert drawn.num_rows == 12 and set(drawn["kind"].to_pylist()) <= set(KINDS)
