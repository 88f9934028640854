"""A small contract, rows of several participants, their policies and a run in one process."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.noise import sample_skellam
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.synth.tabular.attributes import planned_domain

NAMES = ("east", "north", "south", "west")
KEYS = defaultdict(Ed25519PrivateKey.generate)
COORDINATOR = Ed25519PrivateKey.generate()
SCHEMA = pa.schema(
    [("person", pa.string()), ("drink", pa.string()), ("food", pa.string()), ("town", pa.string()), ("age", pa.int64())]
)
COLUMNS = {
    "drink": {"type": "categorical", "values": ["tea", "milk", "beer"]},
    "food": {"type": "categorical", "values": ["rice", "bread"]},
    "town": {"type": "categorical", "values": ["Aix", "Bern", "Cork", "Delft"]},
    "age": {"type": "integer", "min": 0, "max": 9},
}


def contract(epsilon=2.0, *, columns=COLUMNS, **privacy):
    document = {
        "dataset": "meals",
        "description": "Fictional people.",
        "owners": ["tests@example.org"],
        "source": {"uri": "/nowhere", "key": ["person"]},
        "family": "guests",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": epsilon, "delta": 1e-5},
            "expected_units": 2000,
            **privacy,
        },
        "columns": {"person": {"type": "identifier"}, **columns},
        "generate": {"rows": 500},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="test", variables={})


def plan_of(method="mst", epsilon=2.0, *, columns=COLUMNS, privacy=None, **changes):
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000} | changes
    return MarginalsPlan.of(contract(epsilon, columns=columns, **privacy or {}), SCHEMA, method=method, **terms)


def rows(number, seed=0):
    """Food follows drink, town follows age, and drink follows town."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 10, number)
    town = np.where(rng.uniform(size=number) < 0.9, age // 3, rng.integers(0, 4, number))
    drink = np.where(rng.uniform(size=number) < 0.7, town % 3, rng.integers(0, 3, number))
    food = np.where(rng.uniform(size=number) < 0.95, drink > 0, drink == 0).astype(int)
    values = {name: np.array(COLUMNS[name]["values"]) for name in ("drink", "food", "town")}
    picked = {"drink": values["drink"][drink], "food": values["food"][food], "town": values["town"][town], "age": age}
    return pa.table({"person": [str(each) for each in range(number)], **picked}, SCHEMA)


def public(key):
    return key.public_key().public_bytes_raw().hex()


def policy_document(name=NAMES[0], *, epsilon=5.0, **changes):
    cap = {"epsilon": epsilon, "delta": 1e-4}
    return {
        "name": name,
        "dataset": "meals",
        "family": {"family": "guests", "unit": "user", "namespace": "person", "mode": "family", "cap": cap},
        "run_cap": {"epsilon": 3.0, "delta": 1e-5},
        "methods": ["independent", "mst", "aim"],
        "columns": list(COLUMNS),
        "participants": {each: public(KEYS[each]) for each in NAMES},
        "coordinator": public(COORDINATOR),
        "approval": "policy",
        "minimum": 3,
        "colluders": 1,
        "max_contributions": 1,
    } | changes


def participant(directory, name=NAMES[0], table=None, domain=None, **changes):
    url = f"sqlite:///{directory / name / 'ledger.db'}"
    document = policy_document(name, **changes)
    own = rows(10) if table is None else table
    return Participant(Policy.model_validate(document), Ledger(url), own, domain or planned_domain(contract()))


def started(plan, directory, table, run_id="run"):
    """The runs of all participants, among whom the rows are divided."""
    names = plan.terms.participants
    terms = {"participants": {name: public(KEYS[name]) for name in names}, "colluders": 0}
    parties = [
        participant(directory, name, table.take(np.arange(place, table.num_rows, len(names))), plan.domain, **terms)
        for place, name in enumerate(names)
    ]
    reserved = {party.policy.name: party.reserve(run_id, plan.to_json()) for party in parties}
    return [party.start(run_id, reserved) for party in parties]


def vector(run, document):
    """A participant's counts of a round with its noise, as they go under masks."""
    asked = run.open(document)
    return run.counts(asked) + sample_skellam(asked.sum.share_variance, asked.sum.length)


def plain_sum(runs, dropped=()):
    """Opens sums by adding vectors up; in the round of each index in `dropped`, so many participants drop out."""

    def opened(asked):
        live = runs[: len(runs) - dict(dropped).get(asked.index, 0)]
        return sum(vector(run, asked.to_json()) for run in live), [run.policy.name for run in live]

    return opened
