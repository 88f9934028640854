"""Constraints against brute force: exactly the model's distribution given that a row keeps them, and no other row."""

import itertools
import math
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular import conditioning, sampling
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.conditioning import check_possible, conditioned
from dpsynth_platform.synth.tabular.constraints import Conditions
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.tabular.sampling import Sampler, drawing, drawing_counted

TOP = 5
CITIES = ("Aix", "Bern", "Chur")
RELEASE = ReleaseSchema(
    pa.schema([("start", pa.int16()), ("end", pa.int64()), ("city", pa.string()), ("member", pa.bool_())]),
    dict.fromkeys(("start", "end", "city", "member"), "modelled"),
)


@st.composite
def models(draw):
    """Two whole-number columns in random bins, a category and a flag; random states, shares and potentials.

    A third of them are mixtures.
    """
    columns = [
        ColumnDomain(
            name,
            "integer",
            draw(st.booleans()),
            edges=(0, *sorted(draw(st.sets(st.integers(1, TOP), max_size=TOP))), TOP + 1),
        )
        for name in ("start", "end")
    ]
    columns.append(ColumnDomain("city", "categorical", draw(st.booleans()), values=CITIES))
    columns.append(ColumnDomain("member", "boolean", draw(st.booleans())))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    states = [states_of(column, rng) for column in columns]
    sizes = [column.size for column in states]
    cliques = [(0,), (1,), (2,), (3,), *draw(st.sets(st.sampled_from([(0, 2), (1, 2), (0, 1), (2, 3)])))]
    components = draw(st.sampled_from([0, 0, 3]))
    if components:
        sizes.append(components)
        cliques = [(4,), *((index, 4) for index in range(4))]
    potentials = {clique: rng.normal(size=[sizes[index] for index in clique]) for clique in cliques}
    return SimpleNamespace(
        domain=Domain(tuple(columns)),
        states=tuple(states),
        potentials=potentials,
        release=RELEASE,
        total=100.0,
        cover=(),
        groups=(),
        missing=(),
        components=components,
        joint=None,
    )


def states_of(column, rng):
    """Neighbouring cells together at random; the last cell may be with others only where there is no order."""
    joined = rng.uniform(size=column.size) < 0.4
    joined[0] = False
    if column.ordered:
        joined[-1] = False
    state_of = np.cumsum(~joined) - 1
    weights = rng.uniform(0.2, 1, column.size)
    return ColumnStates(state_of.astype(np.int32), weights / np.bincount(state_of, weights=weights)[state_of])


NUMBERS = st.one_of(
    st.lists(st.integers(0, TOP), min_size=1, max_size=3, unique=True),
    st.tuples(st.integers(0, TOP), st.integers(0, TOP)).map(lambda ends: {"min": min(ends), "max": max(ends)}),
    st.integers(0, TOP).map(lambda end: {"max": end}),
)
BOX = st.fixed_dictionaries(
    {"city": st.lists(st.sampled_from(CITIES), min_size=1, max_size=2, unique=True)},
    optional={"start": NUMBERS, "end": NUMBERS, "member": st.booleans()},
).filter(lambda box: len(box) > 1)
CONSTRAINTS = st.one_of(
    BOX.map(lambda box: {"forbid": box}),
    st.lists(BOX, min_size=1, max_size=3).map(lambda boxes: {"only": boxes}),
    st.tuples(*[st.integers(0, TOP)] * 3, st.booleans()).map(
        lambda drawn: {
            "column": "city",
            "determines": "end",
            "mapping": dict(zip(CITIES, drawn[:3], strict=True)),
            "allow_missing": drawn[3],
        }
    ),
    st.lists(st.sampled_from(CITIES), min_size=2, max_size=2).map(
        lambda drawn: {"column": "member", "determines": "city", "mapping": {"true": drawn[0], "false": drawn[1]}}
    ),
)
ORDER = st.fixed_dictionaries(
    {"ascending": st.permutations(["start", "end"]), "strict": st.booleans(), "allow_missing": st.booleans()}
)


def keeps(row, constraint):
    """Whether a row (a mapping) keeps a declared constraint, straight from its words."""

    def within(box):
        for name, values in box.items():
            value = row[name]
            if isinstance(values, dict):
                if value is None or not values.get("min", 0) <= value <= values.get("max", TOP):
                    return False
            elif value not in (values if isinstance(values, list) else [values]):
                return False
        return True

    if "forbid" in constraint:
        return not within(constraint["forbid"])
    if "only" in constraint:
        return any(map(within, constraint["only"]))
    names = constraint.get("ascending") or [constraint["column"], constraint["determines"]]
    first, second = (row[name] for name in names)
    if first is None or second is None:
        return constraint.get("allow_missing", True)
    if "ascending" in constraint:
        return first < second if constraint["strict"] else first <= second
    return second == constraint["mapping"][str(first).lower() if isinstance(first, bool) else first]


def values_of(column):
    """(value, cell, probability in its cell) of every value of a column."""
    if column.kind == "integer":
        for cell, (low, high) in enumerate(itertools.pairwise(column.edges)):
            for value in range(low, high):
                yield value, cell, 1 / (high - low)
    else:
        for cell, value in enumerate(column.values or (False, True)):
            yield value, cell, 1.0
    if column.nullable:
        yield None, column.missing, 1.0


def brute_force(model, constraints):
    """P[row | all constraints] of every row, from the definition; {} where none can keep them."""
    weights = {}
    shares = [releasable_shares(column, states) for column, states in zip(model.domain, model.states, strict=True)]
    for row in itertools.product(*map(values_of, model.domain)):
        values = tuple(value for value, _, _ in row)
        named = dict(zip(model.domain.names, values, strict=True))
        if not all(keeps(named, constraint) for constraint in constraints):
            continue
        cells = [cell for _, cell, _ in row]
        states = [column.state_of[cell] for column, cell in zip(model.states, cells, strict=True)]
        inside = [share[cell] * chance for share, (_, cell, chance) in zip(shares, row, strict=True)]
        weights[values] = weight_of(model.potentials, states, model.components) * math.prod(inside)
    total = sum(weights.values())
    return {values: weight / total for values, weight in weights.items()}


def weight_of(potentials, states, components):
    """The exponential of a row's potentials, summed over the components of a mixture."""

    def weight(all_states):
        return math.exp(
            sum(values[tuple(all_states[index] for index in clique)] for clique, values in potentials.items())
        )

    return sum(weight((*states, hidden)) for hidden in range(max(components, 1)))


def releasable_shares(column, states):
    """What may not be released leaves its state's records to the other cells of the state."""
    share = states.share.copy()
    if not column.nullable:
        share[column.missing] = 0
    return share / np.maximum(np.bincount(states.state_of, weights=share), 1e-300)[states.state_of]


def joint_of(beliefs):
    sizes = beliefs.tree.sizes[: beliefs.tree.attributes.columns]
    grids, joint = np.indices(sizes), np.ones(sizes)
    for axes, conditional in zip(beliefs.tree.axes, beliefs.conditionals, strict=True):
        shape = [sizes[index] for index in axes]
        joint *= conditional.numpy().reshape(shape)[tuple(grids[index] for index in axes)]
    return joint


def with_conditions(model, constraints, **fixed):
    conditions = Conditions.of(model.domain, [Constraint(**item) for item in constraints])
    return SimpleNamespace(**vars(model) | {"conditions": conditions} | fixed)


@pytest.fixture(autouse=True, scope="module")
def without_a_comparison():
    """These models have no measurements that drawn rows could be compared with."""
    with patch("dpsynth_platform.synth.tabular.sampling.measured_tables", lambda _: None):
        yield


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.lists(CONSTRAINTS, max_size=3), st.lists(ORDER, max_size=1))
def test_the_distribution_is_the_models_given_that_rows_keep_them(model, some, order):
    constraints = some + order
    expected = brute_force(model, constraints)
    conditions = with_conditions(model, constraints).conditions
    if not expected:
        with pytest.raises(ContractError, match="no row can keep"):
            check_possible(model.domain, conditions)
        return
    check_possible(model.domain, conditions)
    under = conditioned(model.domain, model.states, conditions, list(model.potentials), components=model.components)
    found = joint_of(under.beliefs(model.potentials, releasable=True))
    found = found.sum(axis=tuple(range(len(model.states), found.ndim)))
    wanted = np.zeros(found.shape)
    for values, probability in expected.items():
        place = []
        for column, states, value in zip(under.domain, under.states, values, strict=True):
            code = column.encode(pa.array([value], RELEASE.schema.field(column.name).type))[0]
            place.append(states.state_of[code])
        wanted[tuple(place)] += probability
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.lists(CONSTRAINTS, max_size=4), st.lists(ORDER, max_size=2), st.booleans())
def test_no_row_breaks_a_constraint(model, some, orders, without_factors):
    """Also where conditions are left to drawing again, since their factors would be too large."""
    constraints = some + orders
    expected = brute_force(model, constraints)
    asked = with_conditions(model, constraints)
    with pytest.MonkeyPatch.context() as patch:
        if without_factors:
            patch.setattr(conditioning, "FACTOR_CELLS", 1)
        try:
            table = drawing(asked, 200).table()
        except ContractError:
            # Without factors, what a thousandth of rows keeps is given up.
            assert not expected or without_factors
            return
    assert table.num_rows == 200
    assert expected
    for row in table.to_pylist():
        assert all(keeps(row, constraint) for constraint in constraints), row


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), CONSTRAINTS, ORDER)
def test_rows_follow_the_conditioned_distribution(model, constraint, order):
    """Down to values in cells: total variation of 20,000 rows, whose error for 324 outcomes is far below the bound.

    Expected at most sqrt(324 / 20,000) / 2 = .064; the probability that it is .04 above (McDiarmid, independent rows)
    is exp(-2 * 20,000 * .04^2) = 1e-28, and systematic rows vary less.
    """
    expected = brute_force(model, [constraint, order])
    if not expected:
        return
    for column in model.domain:
        # Values in cells are spread along a slope; brute force takes them as even.
        if column.kind == "integer" and max(np.diff(column.edges)) > 1:
            return
    table = drawing(with_conditions(model, [constraint, order]), 20_000).table()
    counts = dict.fromkeys(expected, 0)
    for row in zip(*(table[name].to_pylist() for name in model.domain.names), strict=True):
        counts[row] += 1
    assert sum(abs(counts[row] / 20_000 - chance) for row, chance in expected.items()) / 2 < 0.104


def single(edges, share=None, nullable=False, name="start"):
    column = ColumnDomain(name, "integer", nullable, edges=edges)
    cells = column.size
    share = np.append(np.full(cells - 1, 1 / (cells - 1)), 1.0) if share is None else np.append(share, 1.0)
    return column, ColumnStates(np.append(np.zeros(cells - 1), 1).astype(np.int32), share)


def model_of(*columns, **potentials):
    domain = Domain(tuple(column for column, _ in columns))
    kinds = {"integer": pa.int64(), "categorical": pa.string()}
    release = ReleaseSchema(
        pa.schema([(column.name, kinds[column.kind]) for column in domain]), dict.fromkeys(domain.names, "modelled")
    )
    sizes = [states.size for _, states in columns]
    return SimpleNamespace(
        domain=domain,
        states=tuple(states for _, states in columns),
        potentials={(index,): np.zeros(size) for index, size in enumerate(sizes)},
        release=release,
        total=100.0,
        cover=(),
        groups=(),
        missing=(),
        components=0,
        joint=None,
        conditions=Conditions(),
    )


def test_a_chain_of_orders_inside_of_one_state():
    edges = tuple(range(0, 1001, 10))
    model = model_of(*(single(edges, name=name) for name in ("a", "b", "c")))
    asked = with_conditions(model, [{"ascending": ["a", "b", "c"], "strict": True}])
    table = drawing(asked, 5000).table()
    a, b, c = (table[name].to_numpy() for name in "abc")
    assert (a < b).all()
    assert (b < c).all()
    # Of three independent values in order, the means lie at the quarters.
    assert [round(values.mean() / 250) for values in (a, b, c)] == [1, 2, 3]


def test_next_to_nothing_acceptable_is_refused_in_finite_time(monkeypatch):
    monkeypatch.setattr(conditioning, "FACTOR_CELLS", 1)
    monkeypatch.setattr(sampling, "ENOUGH_TRIED", 1000)
    share = np.append(np.full(99, 1e-9), 1 - 99e-9)
    model = model_of(single(tuple(range(101)), share), single(tuple(range(101)), name="end"))
    asked = with_conditions(model, [{"only": [{"start": [3], "end": [3]}]}])
    with pytest.raises(ContractError, match="rows drawn from the model 0 keep them all"):
        drawing(asked, 10).table()


def test_a_dependency_too_large_for_a_factor_is_computed(monkeypatch):
    monkeypatch.setattr(conditioning, "FACTOR_CELLS", 100)
    codes = tuple(f"code{number}" for number in range(300))
    places = tuple(f"place{number}" for number in range(40))
    even = [ColumnStates(np.arange(n + 1, dtype=np.int32), np.ones(n + 1)) for n in (300, 40)]
    columns = [
        ColumnDomain(name, "categorical", True, values=values) for name, values in (("code", codes), ("place", places))
    ]
    model = model_of(*zip(columns, even, strict=True))
    mapping = {code: places[number % 40] for number, code in enumerate(codes)}
    asked = with_conditions(model, [{"column": "code", "determines": "place", "mapping": mapping}])
    assert Sampler.of(asked).under.computed
    rows = drawing(asked, 3000).table().to_pylist()
    assert all(None in row.values() or mapping[row["code"]] == row["place"] for row in rows)
    assert {row["place"] for row in rows} == {None, *places}


def test_given_values_and_impossible_ones():
    model = model_of(single(tuple(range(0, 101, 10))), single((0, 50, 101), name="end"))
    table = drawing(model, 500, {"start": {"min": 15, "max": 17}, "end": ["33"]}).table()
    assert set(table["start"].to_pylist()) == {15, 16, 17}
    assert set(table["end"].to_pylist()) == {33}
    limited = with_conditions(model, [{"ascending": ["start", "end"]}])
    with pytest.raises(ContractError, match="no row can keep them all, with the requested values"):
        drawing(limited, 5, {"start": [90], "end": [10]})
    with pytest.raises(ContractError, match="given: 'beginning' is no modelled column; accepted: start, end"):
        drawing(model, 5, {"beginning": [90]})
    with pytest.raises(ContractError, match=r"given.start: 101 is outside of the declared range"):
        drawing(model, 5, {"start": [101]})
    with pytest.raises(ContractError, match="not nullable"):
        drawing(model, 5, {"start": [None]})


def test_each_value_has_the_rows_that_are_declared_for_it_under_all_conditions(monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_ROWS", 64)
    model = model_of(single((0, 1, 2, 3)), single(tuple(range(0, 101, 10)), name="end"))
    release = ReleaseSchema(
        model.release.schema.append(pa.field("id", pa.int64())), model.release.treatments | {"id": "regenerated"}
    )
    asked = with_conditions(model, [{"ascending": ["start", "end"], "strict": True}], release=release)
    made = drawing_counted(asked, "start", ((0, 40), (2, 300)), {"end": {"max": 5}})
    rows = made.table().to_pylist()
    assert (made.rows, made.schema) == (340, release.schema)
    starts = [row["start"] for row in rows]
    assert (starts.count(0), starts.count(2), len(rows)) == (40, 300, 340)
    assert all(row["start"] < row["end"] <= 5 for row in rows)
    assert starts != sorted(starts), "the order of rows reveals nothing"
    assert sorted(row["id"] for row in rows) == list(range(1, 341))
    with pytest.raises(ContractError, match="no row can keep them all"):
        drawing_counted(asked, "start", ((2, 3),), {"end": [1]})


def test_values_that_counts_show_nothing_of_can_be_asked_for():
    share = np.append(np.zeros(99), 1.0)
    model = model_of(single(tuple(range(101)), share))
    assert set(drawing(model, 50, {"start": [7]}).table()["start"].to_pylist()) == {7}
