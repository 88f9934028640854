"""The audit of linked tables: what it says of honest mechanisms, and the mistakes that it finds.

Keys, coins, noise, choices and drawing are the same each time, so no test depends on luck. The sizes of planted
mistakes were fixed before they were tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from audit_cases import proven_epsilon, run

from dpsynth_platform.audit import canaries, linked_canaries
from dpsynth_platform.audit.attacks import ATTACKS, LINK_ATTACKS, LINK_MEASUREMENTS, LINKED_ROWS, NEAREST, Scored
from dpsynth_platform.audit.bounds import area_under_curve
from dpsynth_platform.audit.linked_canaries import FamilySet, make_families
from dpsynth_platform.audit.linked_scoring import FamiliesInView, families_cost, score_families
from dpsynth_platform.audit.policy import attacks_on, check_gates
from dpsynth_platform.audit.shortage import shortage_of
from dpsynth_platform.audit.verdict import AuditReport, judge
from dpsynth_platform.bounding.linked import ID_COLUMN, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import AccountingError, ContractError
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.linked_tables.task import LinkedTask, TablesOptions, linked_task
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import MechanismRun, generator
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import counting, drawing
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.model import load_model

KEY, DELTA = b"k" * 32, 1e-6
PEOPLE, FAMILIES = 1500, 500
Database = dict[str, pa.Table]
KEYS = {"people": ["id"], "visits": ["visit", "id"], "drugs": ["visit"]}


def schema(columns: Mapping[str, int], size: int, **shares: float) -> dict[str, Any]:
    """Three tables with so many columns of `size` values each."""
    listed = {"type": "categorical", "values": [str(each) for each in range(size)]}
    parts: dict[str, dict[str, Any]] = {
        "people": {"key": ["id"]},
        "visits": {"key": ["visit"], "parent": {"table": "people", "columns": ["id"]}, "max_children": 4},
        "drugs": {"parent": {"table": "visits", "columns": ["visit"]}, "max_children": 3},
    }
    for name, part in parts.items():
        part["columns"] = {f"{name[0]}{each}": listed for each in range(columns[name])}
        if name in shares:
            part["share"] = shares[name]
    return {"tables": parts}


def types(declared: Mapping[str, Any]) -> dict[str, pa.Schema]:
    columns = {name: [*KEYS[name], *part["columns"]] for name, part in declared["tables"].items()}
    return {name: pa.schema([(each, pa.string()) for each in found]) for name, found in columns.items()}


def database(declared: Mapping[str, Any], people: int) -> Database:
    """People with few of the values each; what a row has is near what its parent has."""
    rng = np.random.default_rng(3)

    def values(name: str, base: np.ndarray) -> tuple[dict[str, list[str]], np.ndarray]:
        found = {}
        for column, part in declared["tables"][name]["columns"].items():
            base = (base + rng.integers(0, 3, base.size)) % len(part["values"])
            found[column] = [str(each) for each in base]
        return found, base

    first, base = values("people", rng.integers(0, 30, people))
    of = np.repeat(np.arange(people), rng.integers(0, 5, people))
    second, below = values("visits", base[of])
    under = np.repeat(np.arange(of.size), rng.integers(0, 4, of.size))
    third, _ = values("drugs", below[under])
    rows = {
        "people": {"id": [f"p{each}" for each in range(people)]} | first,
        "visits": {"visit": [f"v{each}" for each in range(of.size)], "id": [f"p{each}" for each in of]} | second,
        "drugs": {"visit": [f"v{each}" for each in under]} | third,
    }
    return {name: pa.table(found, schema=types(declared)[name]) for name, found in rows.items()}


def owners_of(real: Database) -> pa.Table:
    ids = real["people"]["id"].to_pylist()
    return pa.table({ID_COLUMN: ids, OWNER_COLUMN: [f"{place:032x}" for place in range(len(ids))]})


def joined(real: Database, added: Mapping[str, pa.Table]) -> Database:
    return {name: pa.concat_tables([rows, added[name].select(rows.column_names)]) for name, rows in real.items()}


def written(task: LinkedTask, rows: Database, owners: pa.Table, place: Path) -> dict[str, pa.Table]:
    with DuckDBChoice(threads=1).open(place / "spill") as engine:
        write_linked(task.tables, rows, place / "views", engine=engine, owners=owners, key=KEY)
    return {name: pa.Table.from_batches(read_table(place / "views" / name)) for name in task.tables.private}


def fix(patch: pytest.MonkeyPatch) -> None:
    noise, plain, texts = np.random.default_rng(1), np.random.default_rng, random.Random(2)

    def rounded(counts: np.ndarray, sigma: Fraction) -> np.ndarray:
        return np.rint(counts + noise.normal(0, float(sigma), np.shape(counts))).astype(np.int64)

    patch.setattr(canaries, "_random", random.Random(3))
    for name, draw in (
        ("token_hex", lambda size: texts.randbytes(size).hex()),
        ("randbits", texts.getrandbits),
    ):
        patch.setattr(linked_canaries.secrets, name, draw)
    patch.setattr(drawing, "sample_rounded_gaussian", rounded)
    patch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, *_: int(np.argmax(scores)))
    patch.setattr(np.random, "default_rng", lambda seed=0: plain(seed))


@dataclass
class Audited:
    """A mechanism's model, with what an audit of it needs."""

    task: LinkedTask
    families: FamilySet
    views: dict[str, pa.Table]
    model: Path
    rows: Database

    def scored(self, synthetic: Database | None = None) -> dict[str, Scored]:
        found = score_families(self.families, self.views, self.model, synthetic or self.drawn())
        return {item.attack.name: item for item in found}

    def drawn(self) -> Database:
        made = list(LinkedDrawing.of(self.task.plan, self.model).batches(PEOPLE))
        return {name: pa.Table.from_batches([each[name] for each in made]) for name in self.rows}

    def report(self, scored: Mapping[str, Scored]) -> AuditReport:
        return judge(
            self.task.contract,
            None,
            self.families.included,
            list(scored.values()),
            cost=families_cost(self.task.contract, self.families, self.model),
            most_records=self.families.most_rows,
        )


Plant = Callable[[pytest.MonkeyPatch], None]


def honest(patch: pytest.MonkeyPatch) -> None:
    """Nothing is planted."""


def noise_of_a_twentieth(patch: pytest.MonkeyPatch) -> None:
    noise = drawing.sample_rounded_gaussian
    patch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: noise(counts, sigma / 20))


def exact_links(patch: pytest.MonkeyPatch) -> None:
    """Sets of columns of a row and its parent are counted without noise."""
    joint, noise, seen = drawing.Draws.joint, drawing.sample_rounded_gaussian, {"exact": False}
    columns = drawing.Draws.columns

    def named(self: Any, records: Any, *others: Any) -> Any:
        seen["names"] = records.domain.names
        return columns(self, records, *others)

    def counted(self: Any, view: Any, *others: Any) -> Any:
        of = ["__" in seen["names"][each] for each in view.clique]
        seen["exact"] = any(of) and not all(of)
        try:
            return joint(self, view, *others)
        finally:
            seen["exact"] = False

    patch.setattr(drawing.Draws, "columns", named)
    patch.setattr(drawing.Draws, "joint", counted)
    patch.setattr(
        drawing,
        "sample_rounded_gaussian",
        lambda counts, sigma: np.array(counts) if seen["exact"] else noise(counts, sigma),
    )


def audited(place: Path, declared: dict[str, Any], epsilon: float, method: str, plant: Plant = honest) -> Audited:
    real = database(declared, PEOPLE)
    options = TablesOptions(epsilon=epsilon, delta=DELTA, schema=declared, method=method)
    task = linked_task(real, options)
    families = make_families(task.tables, {}, types(declared), FAMILIES)
    added, owners = families.joining
    rows = joined(real, added)
    written(task, rows, pa.concat_tables([owners_of(real), owners]), place)
    with DuckDBChoice(threads=1).open(place / "canaries") as engine:
        views = families.views(engine, KEY, place / "all")
    model = place / "model"
    model.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        generator(method)  # refuses an unknown one
        generator(task.plan.method).run(MechanismRun(task.plan, place / "views", None, model))  # type: ignore[arg-type]
    return Audited(task, families, views, model, rows)


WIDE = schema({"people": 3, "visits": 2, "drugs": 2}, 200)
NARROW = schema({"people": 1, "visits": 1, "drugs": 1}, 60)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Of an honest mechanism at epsilon 1."""
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        return audited(tmp_path_factory.mktemp("sound"), WIDE, 1.0, "independent")


def test_an_honest_mechanism_passes(sound: Audited) -> None:
    report = sound.report(sound.scored())
    assert [attack.name for attack in report.attacks] == [attack.name for attack in (*ATTACKS, *LINK_ATTACKS)]
    assert report.verdict == "pass" and report.epsilon_lower_bound < 0.2
    assert report.highest_bound > report.claimed_epsilon == 1.0
    for attack in report.attacks:
        assert attack.fault is None or attack.name == LINK_MEASUREMENTS.name, attack
        assert 0.4 < attack.area_under_curve < 0.6
    # Columns one by one say nothing of who belongs together.
    assert report.attacks[3].fault == "it gave every canary the same score"


def test_noise_of_a_twentieth_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix(monkeypatch)
    found = audited(tmp_path, WIDE, 1.0, "independent", noise_of_a_twentieth)
    report = found.report(found.scored())
    assert report.verdict == "fail" and report.epsilon_lower_bound > 1.5
    assert {attack.name for attack in report.attacks if attack.epsilon_lower_bound > 1} >= {"measurements"}


def test_exact_counts_of_parents_with_children_are_found_by_the_attack_on_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix(monkeypatch)
    found = audited(tmp_path, NARROW, 10.0, "mst", exact_links)
    scores = {name: area_under_curve(item.scores, found.families.included) for name, item in found.scored().items()}
    assert scores[LINK_MEASUREMENTS.name] > 0.8


def test_what_the_attacks_assume_of_a_family_is_what_the_mechanism_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise and without people, each count is the weights of the included families that are in its cell."""
    fix(monkeypatch)
    options = TablesOptions(epsilon=10.0, delta=DELTA, schema=NARROW, method="mst")
    task = linked_task(database(NARROW, 30), options)
    families = make_families(task.tables, {}, types(NARROW), 80)
    rows, owners = families.joining
    written(task, rows, owners, tmp_path)
    with DuckDBChoice(threads=1).open(tmp_path / "canaries") as engine:
        views = families.views(engine, KEY, tmp_path / "all")
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: np.array(counts))
    run = MechanismRun(task.plan, tmp_path / "views", None, _made(tmp_path / "model"))  # type: ignore[arg-type]
    generator(task.plan.method).run(run)
    seen, linked = [], 0
    for name in task.tables.private:
        model = load_model(tmp_path / "model" / name)
        view = FamiliesInView.of(task.tables, name, model, views[name], families.owners[OWNER_COLUMN])
        entries, others = view.entries(1000, links=False)
        linked += view.entries(0, links=True)[0].cells.size
        counted = np.bincount(entries.cells, entries.weights * families.included[entries.targets])[entries.cells]
        assert np.abs(counted - entries.counts).max() <= 0.5 + 1e-6, name  # counts are whole numbers
        assert entries.cells.min() >= 1000 and entries.cells.max() < 1000 + view.cells and (others >= 1).all()
        weights = np.bincount(entries.targets, entries.weights, 80)
        sets = len(model.measurements.one_way) + len(model.measurements.joint)
        assert weights == pytest.approx(np.full(80, float(sets))), "one in each set of columns"
        seen.append(entries.cells.size)
    assert 0 < linked < sum(seen)


# Copies.


def test_copied_pairs_of_parent_and_child_are_found_by_the_attack_on_the_link(sound: Audited) -> None:
    report = sound.report(copied := sound.scored(sound.rows))
    assert report.verdict == "fail"
    areas = {attack.name: attack.area_under_curve for attack in report.attacks}
    assert areas[LINKED_ROWS.name] > 0.999 and copied[LINKED_ROWS.name].scores[sound.families.included].min() == 0
    # With the same children under other parents the rows are found, and the link is not.
    visits = sound.rows["visits"]
    order = np.random.default_rng(5).permutation(visits.num_rows)
    visits = visits.set_column(1, "id", visits["id"].take(pa.array(order)))
    drugs = sound.rows["drugs"]
    order = np.random.default_rng(6).permutation(drugs.num_rows)
    drugs = drugs.set_column(0, "visit", drugs["visit"].take(pa.array(order)))
    moved = sound.scored({"people": sound.rows["people"], "visits": visits, "drugs": drugs})
    included = sound.families.included
    assert area_under_curve(moved[NEAREST.name].scores, included) > 0.9
    assert moved[LINKED_ROWS.name].scores[included].max() < 0


def test_released_rows_without_keys_or_columns_are_refused(sound: Audited) -> None:
    drawn = sound.drawn()
    for name, column in (("visits", "id"), ("people", "p0")):
        with pytest.raises(AccountingError, match=f"the released table {name} lacks the columns {column}"):
            sound.scored(drawn | {name: drawn[name].drop_columns([column])})


def test_a_table_without_released_rows_says_nothing(sound: Audited) -> None:
    drawn = sound.drawn()
    empty = {name: drawn[name].slice(0, 0) for name in ("visits", "drugs")}
    scored = sound.scored(drawn | empty)
    assert (scored[LINKED_ROWS.name].scores == 0).all()
    with pytest.raises(AccountingError, match="synthetic rows of shape"):
        sound.scored(empty | {"people": drawn["people"].slice(0, 0)})


# One family, many runs.

# With a large delta, an ordinary run shows what is wrong.
TRIALS, CLAIM, LOOSE = 40_000, 1.0, 0.01
SHARED = schema({"people": 1, "visits": 1, "drugs": 1}, 4, people=1, visits=1, drugs=4)


@dataclass(frozen=True)
class Mistake:
    """What the mechanism does otherwise: the noise of a column, and the weight of an owner's rows in a table."""

    noise: Callable[[str], float] = lambda column: 1.0
    weight: Callable[[str], int] = lambda table: 1


MISTAKES = {
    "noise of a twentieth": Mistake(noise=lambda column: 1 / 20),
    "numbers of children without noise": Mistake(noise=lambda column: 1e-3 if column.endswith("__rows") else 1.0),
    "a child counted twice": Mistake(weight=lambda table: 2 if table == "drugs" else 1),
}


def proven(place: Path, mistake: Mistake) -> float:
    """What the likelihood ratio of all noisy counts proves, over many runs with and without one family."""
    real = database(SHARED, 60)
    task = linked_task(real, TablesOptions(epsilon=CLAIM, delta=LOOSE, schema=SHARED, method="independent"))
    family = make_families(task.tables, {}, types(SHARED), 1)
    without, more = (
        written(task, rows, owners, _made(place / name))
        for name, rows, owners in (
            ("without", real, owners_of(real)),
            (
                "with",
                joined(real, family.tables),
                pa.concat_tables([owners_of(real), family.owners.select([ID_COLUMN, OWNER_COLUMN])]),
            ),
        )
    )
    sealed, rng = SealedTables.of(task.plan), np.random.default_rng(11)
    scores, precision = np.zeros((2, TRIALS)), 0.0
    for name in task.tables.private:
        view, weight = sealed.plan(task.plan, name), mistake.weight(name)
        columns = Domain.from_json(view.columns).names
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counting, "row_weight", lambda rows, weight=weight: weight * RECORD_PARTS // rows)
            draws = [run(view, rows[name], noise=lambda counts, _: counts).draws for rows in (without, more)]
        for column, one, other in zip(columns, *draws, strict=True):
            moved, sigma = other.exact - one.exact, float(one.scale) * mistake.noise(column)
            precision += float((moved**2).sum()) / sigma**2
            for inside in (0, 1):
                noise = np.rint(rng.normal(0, sigma, (TRIALS, moved.size)))
                scores[inside] += (noise + inside * moved) @ moved / sigma**2
    # Where the ratio of likelihoods is e^CLAIM.
    included, threshold = np.repeat([False, True], TRIALS), precision / 2 + CLAIM
    return proven_epsilon(scores.ravel(), included, threshold=threshold, delta=LOOSE)


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def test_a_family_moves_a_sound_mechanism_nearly_as_far_as_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix(monkeypatch)
    assert CLAIM / 2 < proven(tmp_path, Mistake()) <= CLAIM


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_family_proves_more_than_the_claim_of_a_faulty_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    fix(monkeypatch)
    assert proven(tmp_path, MISTAKES[mistake]) > CLAIM


# Reports and contracts.


def contract(**changes: Any) -> DataContract:
    document = {
        "dataset": "clinic",
        "description": "A clinic's patients.",
        "owners": ["clinic@example.org"],
        "source": {"uri": "/nowhere"},
        "family": "clinic",
        "privacy": {
            "unit": "user",
            "namespace": "patient",
            "guarantee": {"epsilon": 1.0, "delta": DELTA},
            "expected_units": 100_000,
        },
        "generate": {"method": "aim"},
        "release": {"uri": "/nowhere"},
        **WIDE,
    }
    return parse_contract(document | changes, where="clinic", variables={})


def test_a_report_says_what_families_are_and_cost(sound: Audited) -> None:
    report = sound.report(sound.scored())
    assert AuditReport.from_json(report.to_json()) == report
    most = sound.families.most_rows
    assert most == 1 + 4 + 12
    assert f"500 fictional owners (kind: random) with at most {most} records each were prepared" in report.summary
    included = int(sound.families.included.sum())
    assert f"they were {included} owners, " in report.summary and report.cost is not None
    assert report.cost.owners and abs(report.cost.share - included / (PEOPLE + included)) < 0.1


def test_the_line_of_a_linked_contract_runs_these_attacks() -> None:
    found = contract()
    assert attacks_on(found) == (*ATTACKS, *LINK_ATTACKS)
    check_gates(contract(audit={"gates": ["link measurements", "measurements"]}), attacks_on(found))
    assert shortage_of(found) is None
    alone = {"tables": {"people": WIDE["tables"]["people"]}}
    assert attacks_on(contract(**alone)) == ATTACKS
    few = {"tables": {"people": {"key": ["id"], "columns": {"sex": {"type": "boolean"}}}}}
    assert "differ in the modelled columns" in str(shortage_of(contract(**few)))


def test_rows_that_keep_constraints_are_not_made_for_linked_tables() -> None:
    with pytest.raises(ContractError, match=r"audit\.canary_rows: plausible with tables"):
        contract(audit={"canary_rows": ["plausible"]})
