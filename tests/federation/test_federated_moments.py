"""Federated moments of pictures: the plan, what a unit adds, rounds of dishonest servers, and models of whole runs."""

import copy
import json
import math
from dataclasses import replace

import federated_cases
import numpy as np
import pyarrow as pa
import pytest
from drawing_cases import COLUMNS, KINDS, SIDE
from federated_cases import COORDINATOR, KEYS, NAMES, plain_sum, policy_document
from scipy import optimize, stats

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation import noise
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.moments import (
    LOST,
    LOST_OF_NORM,
    PictureMomentsPlan,
    _from_json,
    _to_json,
    batches_by_unit,
    lengths,
    most_arrays,
    names_of,
)
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.plans import MOST_MESSAGE_BYTES
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_to_json, leaves
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.images import moments_measuring, noisy_results
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.attributes import planned_domain

TERMS = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000}


def contract(target=2.0, *, columns=COLUMNS, side=SIDE, **privacy):
    columns = copy.deepcopy(columns)
    columns["drawing"]["size"] = [side, side]
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
            "guarantee": {"epsilon": target, "delta": 1e-5},
            "expected_units": 400,
            **privacy,
        },
        "columns": {"person": {"type": "identifier"}, **columns},
        "generate": {"method": "image_moments", "rows": 50},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="test", variables={})


def schema_of(columns=COLUMNS):
    kinds = [("kind", pa.string())] if "kind" in columns else []
    return pa.schema([("person", pa.string()), *kinds, ("drawing", pa.binary())])


def pictures_plan(target=2.0, *, columns=COLUMNS, side=SIDE, privacy=None, **changes):
    made = contract(target, columns=columns, side=side, **privacy or {})
    return PictureMomentsPlan.of(made, schema_of(columns), **(TERMS | changes))


ALONE = {"drawing": COLUMNS["drawing"]}


def drawings(people, seed=0, columns=COLUMNS):
    """One or two pictures of each person: dark or light, with a gradient."""
    rng = np.random.default_rng(seed)
    owners = [f"{person:04d}" for person in range(people) for _ in range(1 + person % 2)]
    kinds = rng.integers(0, 2, len(owners))
    slopes = rng.uniform(-20, 20, (len(owners), 1, 1, 1)) * np.arange(SIDE).reshape(1, SIDE, 1, 1)
    grey = np.clip(
        60 + 130 * kinds[:, None, None, None] + slopes + rng.normal(0, 5, (len(owners), SIDE, SIDE, 1)), 0, 255
    )
    held = {
        OWNER_COLUMN: owners,
        "person": owners,
        "kind": [KINDS[kind] for kind in kinds],
        "drawing": ImageLayout.of(contract()).form.stored(np.rint(grey).astype(np.uint8)),
    }
    return pa.table(held).select([OWNER_COLUMN, "person", *columns])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few drawn pictures, so that networks are learned in moments."""
    monkeypatch.setattr(moments_measuring, "DRAWN", 48)
    monkeypatch.setattr(moments_measuring, "FEW_DRAWN", 24)
    monkeypatch.setattr("dpsynth_platform.synth.images.moments_model.TRIED", 8)


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(federated_cases, "sample_skellam", lambda variance, number: np.zeros(number, dtype=np.int64))


@pytest.fixture(scope="module")
def plan():
    return pictures_plan()


def party(directory, name, table, plan_contract=None, **changes):
    document = policy_document(name, epsilon=50.0, **changes) | {
        "dataset": "drawings",
        "methods": ["image_moments"],
        "columns": ["kind", "drawing"],
        "max_contributions": 2,
        **changes,
    }
    declared = plan_contract or contract()
    ledger = Ledger(f"sqlite:///{directory / name / 'ledger.db'}")
    layout = ImageLayout.of(declared)
    return Participant(Policy.model_validate(document), ledger, table, planned_domain(declared), layout)


def divided(table):
    """All records of a person at one participant."""
    places = np.array([int(owner) % len(NAMES) for owner in table.column(OWNER_COLUMN).to_pylist()])
    return [table.filter(pa.array(places == place)) for place in range(len(NAMES))]


def runs_of(plan, directory, table, **changes):
    parties = [party(directory, name, part, **changes) for name, part in zip(NAMES, divided(table), strict=True)]
    reserved = {each.policy.name: each.reserve("run", plan.to_json()) for each in parties}
    return [each.start("run", reserved) for each in parties]


# The plan.


def gaussian_epsilon(mu):
    """Of one Gaussian sum that a unit moves by mu deviations, at delta 1e-5 (Balle & Wang 2018, theorem 8)."""

    def excess(target):
        return stats.norm.cdf(mu / 2 - target / mu) - math.exp(target) * stats.norm.cdf(-mu / 2 - target / mu) - 1e-5

    return optimize.brentq(excess, 1e-3, 100)


def renyi_epsilon(plan, moved):
    """At whole orders: Agarwal, Kairouz & Liu 2021, theorem 3.1, for each sum; to epsilon by Canonne et al. 2020."""
    terms, least = plan.terms, math.inf
    honest = terms.minimum - terms.colluders
    for order in range(2, 200):
        total = 0.0
        for share, scale, most in zip(terms.share_variances, terms.scales, lengths(plan.moments).values(), strict=True):
            variance, l2 = honest * share, moved * scale
            l1 = math.sqrt(most) * l2
            total += order * l2**2 / (2 * variance)
            total += min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
        least = min(least, total + math.log1p(-1 / order) + (math.log(1e5) - math.log(order)) / (order - 1))
    return least


@pytest.mark.parametrize(
    ("privacy", "silos", "moved"),
    [
        ({"max_contributions": 1}, 1, 1),
        ({"max_contributions": 2}, 1, 2),
        ({"max_contributions": 2}, 3, 6),
        ({"max_contributions": 1, "adjacency": "replace-one"}, 1, 2),
    ],
)
def test_the_event_is_that_of_the_composed_sums(privacy, silos, moved):
    """Of pictures without other columns, so that all of the cost is that of sums of vectors."""
    plan = pictures_plan(columns=ALONE, privacy=privacy, silos=silos)
    stated = epsilon(plan.event, 1e-5)
    assert stated.epsilon <= 2.0
    assert 1 - 1e-9 <= stated.renyi / renyi_epsilon(plan, moved) < 1.02  # of fewer orders
    honest = plan.terms.minimum - plan.terms.colluders
    deviations = [
        math.sqrt(honest * share) / scale
        for share, scale in zip(plan.terms.share_variances, plan.terms.scales, strict=True)
    ]
    mu = moved * math.sqrt(sum(1 / deviation**2 for deviation in deviations))
    assert 0.8 * 2.0 < gaussian_epsilon(mu) <= stated.epsilon
    # Half a unit of rounding for each person in each silo, and in each entry of a vector.
    for deviation, scale, most in zip(deviations, plan.terms.scales, lengths(plan.moments).values(), strict=True):
        assert 400 * silos / 2 <= LOST * deviation * scale * 1.001
        assert math.sqrt(most) / 2 <= LOST_OF_NORM * scale


def test_counted_columns_are_rounds_of_their_own_within_the_guarantee(plan):
    assert isinstance(plan.columns, MarginalsPlan) and plan.rounds[0] == ("one-way", 1)
    assert [name for name, _ in plan.rounds[1:]] == names_of(plan.moments)
    assert plan.columns.guarantee.epsilon < 0.5 and plan.reads == ["kind", "drawing"]
    assert len(plan.rounds) == len(plan.sums)
    assert 0.8 * 2 < epsilon(plan.event, 1e-5).epsilon <= 2


def test_the_sums_of_a_plan_cannot_overflow(plan):
    for index, most in enumerate(lengths(plan.moments).values()):
        assert plan.terms.vectors(index, most, "add-or-remove").modulus_bits <= 62
    with pytest.raises(AccountingError, match="bits"):
        pictures_plan(most_records=2**51)
    with pytest.raises(AccountingError, match="fixed-graph"):
        plan.terms.vectors(0, 2, "fixed-graph")


def altered(plan, **changes):
    sealed = plan.sealed
    federated = sealed.parameters["federated"] | changes
    return PictureMomentsPlan(replace(sealed, parameters=sealed.parameters | {"federated": federated}))


def test_a_plan_is_read_back_by_its_method_and_checked(plan):
    again = plan_of(plan.to_json())
    assert isinstance(again, PictureMomentsPlan) and again.digest == plan.digest and again.terms == plan.terms
    less = altered(plan, share_variances=[float(share // 4) for share in plan.terms.share_variances])
    with pytest.raises(AccountingError, match="not that of its parameters"):
        plan_of(less.to_json())
    cheaper = replace(less.sealed, event=event_to_json(less.event))
    with pytest.raises(AccountingError, match="costs epsilon"):
        plan_of(cheaper.to_json())
    for changes in ({"scales": plan.terms.scales[1:]}, {"minimum": 4}, {"max_contributions": 1}, {"more": 1}):
        with pytest.raises(AccountingError, match="damaged"):
            plan_of(altered(plan, **changes).to_json())
    parameters = plan.sealed.parameters
    for key, wrong in (
        ("moments", {"classes": 3}),
        ("moments", {"shape": [5, 4, 1]}),
        ("layout", {"column": 3, "x": 1}),
    ):
        other = parameters | {key: parameters[key] | wrong}
        with pytest.raises(AccountingError, match="damaged"):
            plan_of(replace(plan.sealed, parameters=other).to_json())
    with pytest.raises(AccountingError, match="damaged"):
        plan_of(replace(plan.sealed, method="image_pe").to_json())


def test_the_central_mechanism_does_not_run_a_federated_plan(plan):
    with pytest.raises(GrantRefused, match="federated"):
        generator("image_moments").check(SealedPlan.from_json(plan.to_json()))


# What a unit adds.


def rounds_of(plan, table):
    """All rounds of a run whose sums have no noise, in a directory."""
    return [asked for asked in _asked(plan, table) if hasattr(asked, "query")]


def _asked(plan, table, directory=None):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place, plan.measuring(Path(place)) as measuring:
        while (asked := measuring.next_round()) is not None:
            yield asked
            measuring.add(asked.units(table), 4)


def moves(asked, vector, times=1):
    l2 = times * asked.sum.max_contributions * asked.sum.scale
    squares = sum(int(entry) ** 2 for entry in vector)
    return squares <= l2**2 and int(np.abs(vector).sum()) <= math.sqrt(asked.sum.length) * l2


def test_a_person_moves_no_sum_further_than_the_event_says(plan):
    """By removal, by replacement, and in several silos; in whole numbers, for every query of a run."""
    table = drawings(40)
    extremes = [np.zeros((SIDE, SIDE, 1)), np.full((SIDE, SIDE, 1), 255), np.eye(SIDE)[..., None] * 255]
    extreme = [
        Batch(np.stack([one, other]).astype(np.uint8), np.array(classes))
        for one in extremes
        for other in extremes
        for classes in ([0, 0], [0, 1])
    ]
    found = rounds_of(plan, table)
    assert [asked.query.name for asked in found] == names_of(plan.moments)
    for asked in found:
        whole = asked.units(table)
        units = {
            owner: table.filter(pa.array(np.array(table[OWNER_COLUMN]) == owner)) for owner in ("0000", "0001", "0007")
        }
        alone = {owner: asked.units(mine) for owner, mine in units.items()}
        for owner, vector in alone.items():
            left = table.filter(pa.array(np.array(table[OWNER_COLUMN]) != owner))
            assert np.array_equal(whole - asked.units(left), vector) and moves(asked, vector)
            assert np.any(vector) or asked.query.name not in ("class-counts", "class-means")
        vectors = [asked.of_unit(batch) for batch in extreme]
        assert all(moves(asked, vector) for vector in vectors)
        assert all(moves(asked, one - other, 2) for one in vectors for other in vectors)
        # The same person in three silos, with other records in each.
        assert moves(asked, vectors[0] + vectors[3] + vectors[-1], 3)
        sensitivity = next(iter(leaves(asked.sum.event)))[0].sensitivity
        assert sensitivity.l2_squared == (2 * asked.sum.scale) ** 2
        # A class count is that of the central method, and its norm is paid for to the full.
        if asked.query.name == "class-counts":
            assert vectors[0].tolist() == [2 * asked.sum.scale, 0]
            assert vectors[1].tolist() == [asked.sum.scale] * 2


def test_vectors_are_the_central_sums_up_to_rounding(plan):
    """Each person loses less than a unit of an entry."""
    table = drawings(40)
    (pixels, classes) = (
        np.concatenate(each)
        for each in zip(
            *((b.pixels, b.classes) for b in batches_by_unit(ImageLayout.of(contract()), table)), strict=True
        )
    )
    for asked in rounds_of(plan, table):
        exact = asked.query.vector(Batch(pixels, classes))
        lost = exact * asked.sum.scale - asked.units(table)
        assert np.abs(lost).max() < len(classes)
        shape = asked.query.sums(noisy_results.no_records(plan.moments)).shape
        kept = asked.query.of_vector(exact, shape)
        whole = asked.query.sums(Batch(pixels, classes))
        assert np.array_equal(kept, np.triu(whole) if asked.query.matrix else whole)


def test_whatever_results_a_server_makes_up_a_person_moves_no_sum_further(plan):
    """Results of huge numbers, for every query; the vector of all is still the sum of bounded ones."""
    table, accepted = drawings(12), set()
    for asked in rounds_of(plan, table):
        for factor in (1e300, -1e12, 0.0):
            try:
                with np.errstate(all="ignore"):
                    arrays = {
                        name: {part: (array * factor).astype(array.dtype) for part, array in parts.items()}
                        for name, parts in _from_json(asked.results, most_arrays(plan.moments)).items()
                    }
                    wild = plan.round(asked.index, _to_json(arrays))
            except AccountingError:
                continue
            accepted.add((asked.query.name, factor))
            vectors = [wild.of_unit(batch) for batch in batches_by_unit(wild.layout, table)]
            assert all(moves(wild, vector) for vector in vectors)
            assert np.array_equal(sum(vectors), wild.units(table))
    assert accepted >= {("class-means", -1e12), ("class-means", 0.0), ("centres", -1e12), ("gradient-0-0", 0.0)}


def test_a_person_on_whom_a_query_fails_adds_zeros(plan):
    table = drawings(6)
    asked = rounds_of(plan, table)[2]

    def failing(batch):
        if len(batch.classes) == 2:
            raise FloatingPointError("a value of the data")
        return asked.query.sums(batch)

    other = replace(asked, query=replace(asked.query, sums=failing))
    single = table.filter(pa.array([int(owner) % 2 == 0 for owner in table[OWNER_COLUMN].to_pylist()]))
    assert np.array_equal(other.units(table), asked.units(single))


# Rounds.


def test_a_round_is_the_same_for_all_and_others_are_refused(plan):
    found = rounds_of(plan, drawings(12))
    asked, later = found[2], found[5]
    document = json.loads(json.dumps(asked.to_json()))
    again = plan_of(plan.to_json()).read_round(document)
    assert (again.digest, again.sum) == (asked.digest, asked.sum)
    results = document["results"]
    name = next(iter(results))
    part = results[name]["sums"]
    for wrong in (
        document | {"index": asked.index + 1},
        document | {"index": True},
        document | {"index": -1},
        document | {"index": len(plan.rounds)},
        document | {"index": str(asked.index)},
        document | {"results": {}},
        document | {"results": 7},
        document | {"results": later.to_json()["results"]},
        document | {"results": {name: {"sums": part | {"type": "|O"}}}},
        document | {"results": {name: {"sums": part | {"data": "!"}}}},
        document | {"results": {name: {"sums": part | {"shape": [10**12]}}}},
        document | {"results": results | {name: {"sums": part | {"shape": [-1]}}}},
        document | {"results": results | {name: {"sums": part | {"shape": [1, *part["shape"]]}}}},
        document | {"results": results | {"another": results[name]}},
        document
        | {"results": results | {name: {"sums": part | {"type": "<f8", "data": "AAAAAAAA8H8=", "shape": [1]}}}},
        document | {"more": 1},
        {"index": 1},
        {"index": 0, "results": {}},
        [],
    ):
        with pytest.raises(AccountingError):
            plan.read_round(wrong)


def test_a_participant_refuses_pictures_of_another_form_before_anything_costs(tmp_path, plan):
    table, text = drawings(4), plan.to_json()
    other = copy.deepcopy(COLUMNS)
    other["kind"]["values"] = ["dark", "light", "grey"]
    for place, (changes, named) in enumerate(
        (
            ({"plan_contract": contract(side=5)}, "drawing has 5 x 5 x 1 here, and 4 x 4 x 1 in the plan"),
            ({"plan_contract": contract(columns=other)}, "kind is declared otherwise"),
            ({"methods": ["mst"]}, "methods: image_moments"),
            ({"columns": ["kind"]}, "columns: drawing"),
            ({"max_contributions": 3}, "max_contributions: 2"),
            ({"most_cells": max(each.length for each in plan.sums) - 1}, "most_cells"),
        )
    ):
        refusing = party(tmp_path / str(place), NAMES[0], table, **changes)
        with pytest.raises(ContractError, match=named):
            refusing.reserve("run", text)
        assert refusing.ledger.entries() == []
    plain = replace(party(tmp_path / "plain", NAMES[0], table), pictures=None)
    with pytest.raises(ContractError, match="drawing is not declared here as pictures"):
        plain.reserve("run", text)


def test_a_document_is_as_long_as_the_plan_says(plan):
    """But for components, of which noise leaves fewer."""
    documents = [json.dumps(asked.to_json()) for asked in rounds_of(plan, drawings(400))]
    assert 0.9 * plan.most_document_bytes < max(map(len, documents)) <= plan.most_document_bytes


def test_pictures_whose_documents_no_message_holds_are_refused_when_they_are_planned():
    """Five networks have 4 x 96 x 32 (side / 4)^2 bytes each, in base64: 33 MB for sides of 80, and 84 MB for 128."""
    assert pictures_plan(side=80).most_message_bytes < MOST_MESSAGE_BYTES
    with pytest.raises(AccountingError, match=r"a message to a participant could have \d+ bytes .*smaller pictures"):
        pictures_plan(side=128)


# The model.


def test_sums_without_noise_make_the_model_of_the_central_sums(silent, tmp_path, plan):
    table, directory = drawings(400), tmp_path / "model"
    directory.mkdir()
    runs = runs_of(plan, tmp_path, table)
    digest = run_rounds(plan, directory, plain_sum(runs, {3: 1}))
    assert [run.complete(digest).state for run in runs] == ["spent"] * 4
    made = generator("image_moments")
    assert made.is_complete(directory)
    read = noisy_results.complete_results(plan.moments, directory / "pictures")
    counts = read.kept("class-counts", dict)
    classes = np.bincount([KINDS.index(kind) for kind in table["kind"].to_pylist()])
    assert (counts["sums"] / 2**16).tolist() == classes.tolist()
    # The estimate has the noise of those who finished: three in the round of index 3.
    for name, finished in (("class-counts", 4), ("class-means", 3)):
        place = names_of(plan.moments).index(name)
        read.kept(name, dict)
        assert (
            read.deviation(name) == math.sqrt(finished * plan.terms.share_variances[place]) / plan.terms.scales[place]
        )
    assert plan.moments.noise["class-counts"] == pytest.approx(read.deviation("class-counts"))
    drawn = made.draw(directory, 30).table()
    assert drawn.num_rows == 30 and drawn.schema.names == ["person", "kind", "drawing"]
    assert all(picture.startswith(b"\x89PNG") for picture in drawn["drawing"].to_pylist())
    means = Model.load(directory / "pictures" / "model.npz").means
    assert means[0].mean() + 0.05 < means[1].mean()


def test_a_run_over_signed_messages_with_noise(tmp_path, monkeypatch):
    """Noise is seeded: words of a seeded generator, in place of a cryptographic one."""
    rng = np.random.default_rng(3)

    class Counted:
        def words(self, number):
            return rng.integers(0, 2**64, number, dtype=np.uint64)

    monkeypatch.setattr(noise, "SecureStream", Counted)
    table = drawings(120, columns=ALONE)
    plan = pictures_plan(columns=ALONE)
    declared = contract(columns=ALONE)
    nodes = {
        name: Node(party(tmp_path, name, part, plan_contract=declared), KEYS[name])
        for name, part in zip(NAMES, divided(table), strict=True)
    }
    asked, replied = [], []

    class Wires:
        def ask(self, requests):
            replies = {name: nodes[name].answer(request) for name, request in requests.items()}
            asked.extend(map(len, requests.values()))
            replied.extend(map(len, replies.values()))
            return replies

    roster = Roster({name: KEYS[name].public_key() for name in NAMES})
    made = Coordinator(roster, COORDINATOR, Wires()).run("first", plan, tmp_path / "model")
    assert made.finished == (NAMES,) * len(plan.rounds)
    assert generator("image_moments").draw(tmp_path / "model", 5).table().num_rows == 5
    assert {entry.state for node in nodes.values() for entry in node.participant.ledger.entries()} == {"spent"}
    assert max(asked) <= plan.most_message_bytes and max(replied) <= plan.most_reply_bytes
