"""Federated marginals with the coordinator's noise: the event of a central run, exact sums that stay in memory, and
noise that is drawn once. Each statistical bound is missed below 1e-6."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from federated_cases import COLUMNS, COORDINATOR, NAMES, SCHEMA, contract, participant, plan_of, rows
from scipy.stats import norm
from test_exchanges import EXCHANGES, Ending, Killed, answered, run  # noqa: F401  (a fixture)
from test_nodes import ROSTER, Wires, nodes_of, states

from dpsynth_platform.federation import central, secure_sum, trust
from dpsynth_platform.federation.central import CentralMarginalsPlan, MeasuringCentrally
from dpsynth_platform.federation.exchanges import Exchanges
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.mechanisms import plan_for
from dpsynth_platform.federation.mechanisms import plan_of as read_plan
from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.federation.sums import ExactSumPlan, SumPlan
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_to_json
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.measurements import FILE_NAME, MeasurementLog, NoisyCounts, read_measurements

FIRST = (0, [(0,), (1,), (2,), (3,)], [range(4), range(3), range(5), range(11)])
METHODS = ("independent", "mst", "aim")
TWO = {name: COLUMNS[name] for name in ("drink", "food")}


def central_plan(method="mst", target=2.0, *, columns=COLUMNS, privacy=None, **changes):
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000} | changes
    asked = contract(target, columns=columns, **privacy or {})
    return CentralMarginalsPlan.of(asked, SCHEMA, method=method, **terms)


# The plan.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
def test_the_event_is_that_of_a_central_run_for_the_records_in_all_silos(method, adjacency):
    """b 3 in each of 2 silos costs what 6 records in one table cost, in the central method's own plan."""
    made = central_plan(method, privacy={"max_contributions": 3, "adjacency": adjacency}, silos=2)
    asked = contract(2.0, max_contributions=6, adjacency=adjacency)
    alone = generator(method).plan(asked, SCHEMA, made.guarantee)
    assert made.guarantee.max_contributions == 6
    assert event_to_json(made.event) == alone.event == made.sealed.event
    assert made.terms.mechanism == alone.parameters
    assert 1.98 < epsilon(made.event, 1e-5).epsilon <= 2.0


def test_the_noise_meets_the_guarantee_by_the_formula_of_the_gaussian_mechanism():
    """Balle & Wang 2018, theorem 8: four tables of which a record moves each by one."""
    made = central_plan("independent")
    moved = math.sqrt(4) / made.noise_of(0)[0]

    def delta(target):
        return norm.cdf(moved / 2 - target / moved) - math.exp(target) * norm.cdf(-moved / 2 - target / moved)

    assert delta(2.0) <= 1e-5 < delta(1.99)


def test_nobody_has_a_guarantee_against_the_coordinator():
    made = central_plan()
    found = trust.protections("central", made.event, 1e-5)
    assert [item.party for item in found if item.epsilon is None] == ["aggregator"]
    assert {item.epsilon for item in found[1:]} == {epsilon(made.event, 1e-5).epsilon}


def sealed(made, **changes):
    parts = made.sealed.parameters | changes
    return replace(made.sealed, parameters=parts).to_json()


def test_a_plan_is_recomputed_by_who_reads_it():
    made = central_plan("independent")
    assert read_plan(made.to_json()) == made and isinstance(read_plan(made.to_json()), CentralMarginalsPlan)
    less = made.terms.mechanism | {"sigma_total": made.terms.mechanism["sigma_total"] / 2}
    for wrong in (
        {"mechanism": less},
        {"mechanism": {}},
        {"share_variances": [1024.0]},
        {"share_variances": []},
        {"trust": "local"},
        {"trust": "distributed"},
        {"most_records": 2**60},
    ):
        with pytest.raises(AccountingError):
            read_plan(sealed(made, **wrong))
    cheaper = replace(made.sealed, parameters=made.sealed.parameters | {"mechanism": less})
    cheaper = replace(cheaper, event=event_to_json(CentralMarginalsPlan(cheaper).event))
    with pytest.raises(AccountingError, match="costs epsilon"):
        read_plan(cheaper.to_json())


def test_a_workload_of_more_than_pairs_is_none_of_its_rounds():
    made = central_plan("aim")
    wide = made.terms.mechanism | {"workload": [[0, 1, 2]], "workload_weights": [1]}
    with pytest.raises(AccountingError, match="damaged"):
        read_plan(sealed(made, mechanism=wide))


def test_a_distributed_plan_cannot_do_without_noise():
    made = plan_of("independent")
    for trust_model in ({}, {"trust": "central"}):
        with pytest.raises(AccountingError):
            read_plan(sealed(made, share_variances=[0.0], **trust_model))
    with pytest.raises(AccountingError, match="share_variance"):
        SumPlan(4, 3, 1, 5, 1, 100, 0.0)
    with pytest.raises(AccountingError, match="share_variance"):
        ExactSumPlan(4, 3, 1, 5, 1, 100, 1.0)
    with pytest.raises(AccountingError, match="adjacency"):
        ExactSumPlan(4, 3, 1, 5, 1, 100, 0.0, "none")
    with pytest.raises(AccountingError, match="no privacy event"):
        _ = ExactSumPlan(4, 3, 1, 5, 1, 100, 0.0).event


def test_other_methods_have_no_such_plan():
    asked = contract(2.0)
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000}
    pictures = asked.model_copy(update={"generate": asked.generate.model_copy(update={"method": "image_moments"})})
    with pytest.raises(ContractError, match="trust 'central' with method 'image_moments'; accepted: aim, independent"):
        plan_for(pictures, SCHEMA, trust="central", **terms)
    mst = asked.model_copy(update={"generate": asked.generate.model_copy(update={"method": "mst"})})
    assert isinstance(plan_for(mst, SCHEMA, trust="central", **terms), CentralMarginalsPlan)
    assert type(plan_for(mst, SCHEMA, **terms)) is MarginalsPlan


# Participants.


def test_a_participant_takes_part_only_if_its_policy_says_so(tmp_path):
    made = central_plan().to_json()
    with pytest.raises(ContractError, match="refuses the plan: trust: central; accepted: distributed"):
        participant(tmp_path).allowed(made)
    both = participant(tmp_path, trust=["distributed", "central"])
    assert both.allowed(made).trust == "central" and both.allowed(plan_of().to_json()).trust == "distributed"
    with pytest.raises(ContractError, match="trust: distributed; accepted: central"):
        participant(tmp_path, trust=["central"]).allowed(plan_of().to_json())


def test_each_participant_pays_what_the_central_run_costs(tmp_path):
    made, nodes = central_plan("mst"), nodes_of(tmp_path, trust=["central"])
    Coordinator(ROSTER, COORDINATOR, Wires(nodes)).run("first", made, tmp_path / "model")
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    for node in nodes.values():
        (entry,) = node.participant.ledger.entries()
        assert entry.request.event == made.sealed.event


# Runs.


@pytest.fixture
def exact(monkeypatch):
    """The exact sums that were opened."""
    found, add = [], MeasuringCentrally.add

    def noted(self, opened, finished):
        found.append(opened)
        add(self, opened, finished)

    monkeypatch.setattr(MeasuringCentrally, "add", noted)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_measurements_are_exact_counts_with_the_coordinators_noise(tmp_path, exact, method):
    """Of fewer than 200 numbers each is off by more than 7 sigma + 1 with a chance of 3e-12: together below 1e-9."""
    made, nodes, table = central_plan(method), nodes_of(tmp_path, trust=["central"]), rows(2_000)
    Coordinator(ROSTER, COORDINATOR, Wires(nodes)).run("first", made, tmp_path / "model")
    first = made.round(0, [(column,) for column in range(4)], [range(size) for size in made.domain.sizes])
    counts = first.counted(table, made.domain)
    assert exact[0].tolist() == counts.tolist() and len(exact) == len(made.rounds)
    found = read_measurements(tmp_path / "model", made.digest)
    noisy = np.concatenate([item.counts for item in found.one_way])
    sigma = {item.sigma for item in found.one_way}
    assert sigma == {made.noise_of(0)[0]} and noisy.size < 200
    assert np.abs(noisy - counts).max() <= 7 * max(sigma) + 1
    assert not np.array_equal(noisy, counts)  # each is equal with a chance below 0.2: of 21, all below 1e-14
    assert len(found.joint) == {"independent": 0, "mst": 3}.get(method, len(found.joint))
    assert len(generator(method).sample(tmp_path / "model", 100)) == 100


def texts_of(vector):
    return [
        vector.astype(np.int64).tobytes(),
        json.dumps(vector.tolist()).encode(),
        json.dumps(vector.tolist(), separators=(",", ":")).encode(),
    ]


def test_no_exact_sum_is_in_a_file_or_message(tmp_path, exact, capfd):
    """Searched are whole sums, and their tables of 5 and 11 cells alone.

    A noisy count is the exact one with a chance below 0.058 (sigma 6.96): all of 5 cells with one of 7e-7.
    """
    made, nodes, wires = central_plan(), nodes_of(tmp_path, trust=["central"]), []

    class Kept(Wires):
        def ask(self, requests):
            wires.extend(requests.values())
            replies = super().ask(requests)
            wires.extend(replies.values())
            return replies

    said = []
    Coordinator(ROSTER, COORDINATOR, Kept(nodes), said.append).run(
        "first", made, tmp_path / "model", lambda *words: said.append(repr(words))
    )
    sizes = made.domain.sizes
    tables = [*exact, *np.split(exact[0], np.cumsum(sizes)[:-1])[2:]]
    assert [len(table) for table in tables[2:]] == [5, 11]
    files = [path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()]
    heard = [*files, *wires, *(line.encode() for line in said), *(part.encode() for part in capfd.readouterr())]
    for text in (text for table in tables for text in texts_of(table)):
        assert not any(text in piece for piece in heard)
    noisy = read_measurements(tmp_path / "model", made.digest).one_way[3].counts
    assert any(text in piece for text in texts_of(noisy) for piece in files)  # such a search finds what is there


@pytest.mark.parametrize("masked", [True, False])
def test_a_relay_sees_vectors_under_masks(tmp_path, monkeypatch, masked):
    """Neither a participant's counts nor a sum of some: an entry is uniform below 2^17, so that half of 21 entries
    agree with given ones with a chance below 1e-40. Without masks the same search finds all participants' counts."""
    if not masked:
        for name in ("own_mask", "pair_mask"):
            monkeypatch.setattr(secure_sum, name, lambda *given: np.zeros(given[-2], dtype=np.uint64))
    made, nodes, table = central_plan("independent"), nodes_of(tmp_path, trust=["central"]), rows(2_000)
    wires, asked = Wires(nodes), made.round(*FIRST)
    Coordinator(ROSTER, COORDINATOR, wires).run("first", made, tmp_path / "model")
    width = -(-asked.sum.modulus_bits // 8) * asked.sum.length
    vectors = [reply[-64 - width : -64] for _, kind, reply in wires.heard if kind == "sum" and len(reply) > width + 64]
    numbers = []
    for each in vectors:
        parts = np.frombuffer(each, dtype=np.uint8).reshape(asked.sum.length, -1).astype(np.int64)
        numbers.append(sum(parts[:, place] << (8 * place) for place in range(parts.shape[1])))
    pairs = itertools.combinations(numbers, 2)
    seen = [
        *numbers,
        *(sum(each) % 2**asked.sum.modulus_bits for each in (*pairs, *itertools.combinations(numbers, 4))),
    ]
    parts = [table.take(np.arange(place, 2_000, len(NAMES))) for place in range(len(NAMES))]
    known = [asked.counted(part, made.domain) for part in (*parts, table)]
    found = [any((vector == counts).mean() > 0.5 for vector in seen) for counts in known]
    assert found == [not masked] * 5


# Noise is drawn once.


@pytest.fixture
def drawn(monkeypatch):
    """Which exact counts got noise, and how many choices were drawn."""
    found, sample, choose = [], drawing.sample_rounded_gaussian, drawing.select_by_exponential_mechanism

    def noisy(counts, sigma):
        found.append(counts.tolist())
        return sample(counts, sigma)

    def chosen(*arguments):
        found.append("choice")
        return choose(*arguments)

    monkeypatch.setattr(drawing, "sample_rounded_gaussian", noisy)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", chosen)
    return found


def two_columns(tmp_path):
    made = central_plan(columns=TWO)
    nodes = nodes_of(tmp_path, rows(60), trust=["central"])
    for node in nodes.values():
        object.__setattr__(node.participant, "domain", made.domain)
    return made, nodes, Exchanges(tmp_path / "said")


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("number", range(1, EXCHANGES + 1))
def test_a_continued_run_draws_no_second_noise(tmp_path, drawn, answered, number, heard):  # noqa: F811
    """Wherever its coordinator was killed: two columns, one choice of a pair and its counts, each once."""
    made, nodes, exchanges = two_columns(tmp_path)
    log = tmp_path / "model" / FILE_NAME
    with pytest.raises(Killed):
        run(Ending(nodes, number, heard=heard), exchanges, made, tmp_path / "model")
    before = log.read_bytes() if log.exists() else b""
    run(Wires(nodes), exchanges, made, tmp_path / "model")
    assert log.read_bytes().startswith(before) and len(drawn) == 4 and drawn.count("choice") == 1
    reserved = number == 1 and heard
    assert states(nodes) == {name: [*["reserved"] * reserved, "spent"] for name in NAMES}
    assert len(read_measurements(tmp_path / "model", made.digest).joint) == 1


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_draw_that_was_used_is_not_drawn_again(tmp_path, monkeypatch, drawn, number, written):
    """Killed at each line of the log, before or after it is on disk: header, two columns, choice, pair, end."""
    made, nodes, exchanges = two_columns(tmp_path)
    append, left = MeasurementLog._append, [number]

    def ended(self, document):
        left[0] -= 1
        if left[0] == 0 and not written:
            raise Killed
        append(self, document)
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(MeasurementLog, "_append", ended)
    with pytest.raises(Killed):
        run(Wires(nodes), exchanges, made, tmp_path / "model")
    before = (tmp_path / "model" / FILE_NAME).read_bytes()
    run(Wires(nodes), exchanges, made, tmp_path / "model")
    unused = not written and number in (2, 3, 4, 5)  # a draw that nobody has seen
    assert len(drawn) == 4 + unused
    assert (tmp_path / "model" / FILE_NAME).read_bytes().startswith(before)


@pytest.mark.parametrize("number", [3, 9])
def test_a_run_whose_draws_are_gone_does_not_continue(tmp_path, drawn, number):
    """Neither before its first sum nor later; no participant is asked."""
    made, nodes, exchanges = two_columns(tmp_path)
    with pytest.raises(Killed):
        run(Ending(nodes, number, heard=True), exchanges, made, tmp_path / "model")
    (tmp_path / "model" / FILE_NAME).unlink()
    before, wires = len(drawn), Wires(nodes)
    with pytest.raises(MechanismFailed, match="noise a second time; accepted: a new run elsewhere, which costs again"):
        run(wires, exchanges, made, tmp_path / "model")
    assert len(drawn) == before and not wires.heard


def test_a_run_that_nobody_started_begins_anew_in_the_same_place(tmp_path, drawn):
    made, nodes, exchanges = two_columns(tmp_path)

    def killed(reserved):
        raise Killed

    coordinator = Coordinator(ROSTER, COORDINATOR, Wires(nodes))
    with pytest.raises(Killed):
        coordinator.run("first", made, tmp_path / "model", before_start=killed)
    assert (tmp_path / "model" / FILE_NAME).exists() and not exchanges.has_begun
    run(Wires(nodes), exchanges, made, tmp_path / "model")
    assert len(drawn) == 4


def test_a_line_that_is_not_whole_was_not_used(tmp_path, monkeypatch, drawn):
    """Killed while the second column's counts are written."""
    made, nodes, exchanges = two_columns(tmp_path)
    append, left = MeasurementLog._append, [3]

    def ended(self, document):
        left[0] -= 1
        if left[0] == 0:
            self._file.write(b'{"kind":"one-w')
            raise Killed
        append(self, document)

    monkeypatch.setattr(MeasurementLog, "_append", ended)
    with pytest.raises(Killed):
        run(Wires(nodes), exchanges, made, tmp_path / "model")
    log = tmp_path / "model" / FILE_NAME
    whole = log.read_bytes().rpartition(b"\n")[0]
    assert whole.count(b"one-way") == 1
    run(Wires(nodes), exchanges, made, tmp_path / "model")
    assert log.read_bytes().startswith(whole) and len(drawn) == 5


def test_a_log_of_something_else_is_not_continued(tmp_path):
    asked = NoisyCounts((0,), np.array([1, 2]), 3.0)
    with MeasurementLog.continued(tmp_path, "plan") as log:
        assert log.kept_counts("one-way", asked) is None
        log.counts("one-way", asked)
        log.choice((0, 1), (0, 0))
    with MeasurementLog.continued(tmp_path, "plan") as log:
        kept = log.kept_counts("one-way", replace(asked, counts=np.array([7, 7])))
        assert kept.counts.tolist() == [1, 2] and log.kept_choice() == ((0, 1), (0, 0))
        assert log.kept_choice() is None
        log.complete()
    with MeasurementLog.continued(tmp_path, "plan") as log, pytest.raises(MechanismFailed, match="a second time"):
        log.kept_counts("one-way", replace(asked, sigma=2.0))
    with MeasurementLog.continued(tmp_path, "plan") as log, pytest.raises(MechanismFailed, match="a second time"):
        log.kept_choice()
    with MeasurementLog.continued(tmp_path, "plan") as log, pytest.raises(MechanismFailed, match="a second time"):
        log.counts("one-way", asked)
    with pytest.raises(MechanismFailed, match="another plan"), MeasurementLog.continued(tmp_path, "other"):
        pass


def test_a_log_is_open_in_one_process_at_a_time(tmp_path):
    with (
        MeasurementLog.continued(tmp_path, "plan"),
        pytest.raises(MechanismFailed, match="another process draws"),
        MeasurementLog.continued(tmp_path, "plan"),
    ):
        pass


@pytest.mark.parametrize("number", [7, 8, 11])
def test_rounds_of_aim_go_on_where_they_were(tmp_path, monkeypatch, drawn, number):
    """Killed after a choice, or after its counts, of which the next choice depends on the model fitted to them."""
    made, nodes, exchanges = central_plan("aim"), nodes_of(tmp_path, trust=["central"]), Exchanges(tmp_path / "said")
    append, left = MeasurementLog._append, [number]

    def ended(self, document):
        append(self, document)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(MeasurementLog, "_append", ended)
    with pytest.raises(Killed):
        run(Wires(nodes), exchanges, made, tmp_path / "model")
    log = tmp_path / "model" / FILE_NAME
    before = log.read_bytes()
    assert before.count(b"\n") == number == 1 + len(drawn)
    run(Wires(nodes), exchanges, made, tmp_path / "model")
    assert log.read_bytes().startswith(before) and log.read_bytes().count(b"\n") == len(drawn) + 2


def test_sums_of_other_rounds_end_the_run(tmp_path, monkeypatch):
    made = central_plan(columns=TWO)
    measuring = MeasuringCentrally(made, tmp_path, lambda *words: None)
    first = measuring.next_round()
    measuring.add(np.arange(first.sum.length), 3)
    with pytest.raises(MechanismFailed, match="an opened sum of no round"):
        measuring.add(np.arange(first.sum.length), 3)
    measuring.next_round()
    monkeypatch.setattr(central._OpenedCounts, "one_way", lambda self: self._sums(0, [(0,)], [range(4), range(3)]))
    with pytest.raises(MechanismFailed, match="other sums than those that were opened"):
        measuring.next_round()


def test_claims_beyond_a_plans_bounds_are_clipped():
    """No participant can make the scores of others' records overflow."""
    with pytest.raises(AccountingError, match="most_records 10000000000000 of 4 participants in the cells of a table"):
        central_plan(most_records=10**13)
    made = central_plan("independent", most_records=100)
    measuring = MeasuringCentrally(made, None, None, _asked=made.round(*FIRST))
    claimed = np.array([2**40, -(2**40), *range(19)])
    measuring.add(claimed, 4)
    ((_, kept),) = measuring._opened
    assert kept.tolist() == [400, 0, *range(19)]


@pytest.mark.parametrize("method", ["mst", "aim"])
def test_scores_of_the_largest_accepted_bound_are_numbers(tmp_path, method):
    """All participants claim their bound in all cells of all pairs; scores of `aim` have weights, too."""
    small = central_plan(method, most_records=100)
    cells = small._most_counted // (len(NAMES) * 100)
    made = central_plan(method, most_records=central.MOST_COUNTED // (len(NAMES) * cells))
    measuring = MeasuringCentrally(made, tmp_path, lambda *words: None)
    while (asked := measuring.next_round()) is not None:
        most = np.full(asked.sum.length, len(NAMES) * asked.sum.bound)
        measuring.add(asked.units(rows(200)) if asked.index == 0 else most, len(NAMES))
    assert read_measurements(tmp_path, made.digest).one_way


def test_altered_plans_are_no_plans():
    with pytest.raises(GrantRefused):
        read_plan(central_plan().to_json().replace('"trust": "central"', '"trust": "local"'))
