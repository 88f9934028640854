"""Chains that could not have happened: consistent in every hash, row and sum, and told all the same, online and off."""

import json
from dataclasses import replace

import pytest
from ledger_cases import KEYS, people, request
from sqlalchemy import insert, select, update

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.ledger import chain, rows, schema
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.ledger.filter import RenyiFilter, add_up
from dpsynth_platform.ledger.verification import check_curves
from dpsynth_platform.privacy.guarantee import Guarantee


class Forger:
    """Somebody who can write the database and knows every rule of its form."""

    def __init__(self, ledger):
        self.ledger = ledger

    def append(self, kind, subject, payload):
        return self.ledger._database.write(
            lambda connection: chain.append(connection, rows.now_text(connection), kind, subject, payload)
        )

    def terms(self, family):
        query = select(schema.account.c.terms).where(schema.account.c.family == family)
        return chain.parse(self.ledger._database.read(lambda connection: connection.execute(query).scalar_one()))

    def open(self, family, terms):
        event = self.append(chain.OPENED, family, terms)
        values = {"terms": chain.canonical(terms), "opened_at": event.at}
        table = schema.account
        if family in [account.family for account in self.ledger.accounts()]:
            change = update(table).where(table.c.family == family).values(values)
        else:
            nothing = RenyiFilter.from_json(terms["filter"], **terms["cap"]).nothing
            change = insert(table).values(family=family, settled=rows.cost_text(nothing), **values)
        self.ledger._database.write(lambda connection: connection.execute(change).rowcount)

    def reserve(self, entry_id, cost, *, family="everyone", key="k", **changes):
        payload = {
            "family": family,
            "key": key,
            "attempt": 1,
            "request": cost.to_json(),
            "commitment": None,
            "replaces": None,
            "deadline": "2999-01-01T00:00:00.000000+00:00",
        } | changes
        event = self.append(chain.RESERVED, entry_id, payload)
        values = chain.reserved_row(event) | {"cost": rows.cost_text(self.cost(family, cost))}
        table = schema.entry

        def work(connection):
            if connection.execute(select(table.c.state).where(table.c.entry_id == entry_id)).first():
                connection.execute(update(table).where(table.c.entry_id == entry_id).values(values))
            else:
                connection.execute(insert(table).values(entry_id=entry_id, **values))

        self.ledger._database.write(work)

    def cost(self, family, cost):
        return self.ledger.account(family).filter.cost(cost.curve, cost.delta_slack)

    def move(self, entry_id, kind, **payload):
        event = self.append(kind, entry_id, payload)
        table, account = schema.entry, schema.account

        def work(connection):
            change = update(table).where(table.c.entry_id == entry_id)
            connection.execute(change.values(chain.transition_values(event)))
            if kind == chain.STARTED:
                entry = connection.execute(select(table).where(table.c.entry_id == entry_id)).one()
                total = add_up(rows.settled(connection, entry.family), rows.cost_of(entry.cost))
                change = update(account).where(account.c.family == entry.family)
                connection.execute(change.values(settled=rows.cost_text(total)))

        self.ledger._database.write(work)


@pytest.fixture
def forger(ledger):
    return Forger(ledger)


def problems(ledger):
    """What is found, which has to be the same with the database at hand and without."""
    found, offline = ledger.verify().problems, verify_export(json.dumps(ledger.export())).problems
    assert found == offline
    return found


ONE, TWO, THREE = ("1" * 32, "2" * 32, "3" * 32)


def test_the_forger_knows_the_form(ledger, forger):
    """What it writes by the rules is found whole, so that what is found below is found for its own sake."""
    forger.open("third", forger.terms("everyone"))
    forger.reserve(ONE, request(0.01))
    forger.move(ONE, chain.STARTED)
    forger.reserve(TWO, request(0.01), attempt=2, replaces=ONE)
    forger.move(TWO, chain.VOID, reason="withdrawn")
    forger.reserve(THREE, request(0.01), attempt=3, replaces=ONE)
    forger.move(THREE, chain.STARTED)
    forger.move(THREE, chain.SPENT, model_digest="m")
    forger.append(chain.APPROVED, "c" * 64, {"by": "Bo", "entry": THREE, "reason": ""})
    assert problems(ledger) == ()
    assert len(ledger.entries("everyone")) == 3


def test_an_account_opens_once(ledger, forger):
    forger.open("everyone", forger.terms("everyone") | {"cap": {"epsilon": 100.0, "delta": 0.5}})
    assert any("account everyone could not be opened: it was open already" in told for told in problems(ledger))


SEALED = RenyiFilter.seal(4.0, 1e-5).to_json()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"filter": SEALED | {"weights": [5.0] * len(SEALED["weights"])}}, "does not keep a cap"),
        ({"filter": SEALED | {"slack_share": 0.2}}, "does not keep a cap"),
        ({"filter": SEALED | {"weights": [-0.1, *SEALED["weights"][1:]]}}, "does not keep a cap"),
        ({"filter": SEALED | {"orders": [SEALED["orders"][1], *SEALED["orders"][1:]]}}, "does not keep a cap"),
        ({"filter": SEALED | {"orders": [2.71828, *SEALED["orders"][1:]]}}, "does not keep a cap"),
        ({"filter": SEALED | {"orders": [], "weights": []}}, "does not keep a cap"),
        ({"cap": {"epsilon": 4.0, "delta": 1.5}}, "does not keep a cap"),
        ({"cap": {"epsilon": -4.0, "delta": 1e-5}}, "does not keep a cap"),
        ({"mode": "nobody"}, "its mode is unknown"),
        ({"filter": "none"}, "cannot be replayed"),
    ],
)
def test_an_account_is_sealed_with_a_filter_that_keeps_its_cap(ledger, forger, change, told):
    terms = forger.terms("everyone") | change
    event = forger.append(chain.OPENED, "third", terms)
    values = {"terms": chain.canonical(terms), "opened_at": event.at, "settled": "[0.0]"}
    ledger._database.write(
        lambda connection: connection.execute(insert(schema.account).values(family="third", **values)).rowcount
    )
    assert any(told in problem for problem in ledger.verify().problems)


def test_what_is_sealed_by_default_keeps_its_cap():
    for epsilon in (1e-3, 0.5, 1.0, 4.0, 10.0, 1e3):
        for delta in (1e-12, 1e-6, 0.1):
            assert RenyiFilter.seal(epsilon, delta).is_valid


def test_a_started_entry_is_not_reserved_again_at_another_price(ledger, forger):
    spent = ledger.reserve("everyone", "k", request(0.15), None, "compose")
    ledger.start(spent.entry_id)
    cheap = request(1e-6)
    forger.reserve(spent.entry_id, cheap)
    forger.move(spent.entry_id, chain.STARTED)
    twice = rows.cost_text(add_up(forger.cost("everyone", cheap), forger.cost("everyone", cheap)))
    ledger._database.write(lambda c: c.execute(update(schema.account).values(settled=twice)).rowcount)
    found = problems(ledger)
    assert any(f"entry {spent.entry_id} could not be reserved: it was reserved before" in told for told in found)
    assert any(f"entry {spent.entry_id} could not become started" in told for told in found)


def test_an_entry_per_owner_names_whom_it_charges(ledger, forger):
    forger.reserve(ONE, request(0.15), family="each")
    assert f"entry {ONE} could not be reserved: it charges owners, and names none" in problems(ledger)[0]


def claim(**changes):
    honest = request(0.01)
    return replace(honest, guarantee=replace(honest.guarantee, **changes))


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (claim(unit="example"), "does not fit its account"),
        (claim(adjacency="replace-one"), "does not fit its account"),
        (claim(delta=2e-5), "does not fit its account"),
        (replace(request(0.01), delta_slack=1e-6), "does not fit its account"),
        (claim(epsilon=0.001), "it claims a smaller epsilon than its event gives"),
        (claim(max_contributions=2), "another adjacency, contribution bound or weighting"),
        (claim(weighting="owners"), "another adjacency, contribution bound or weighting"),
    ],
)
def test_an_entrys_guarantee_is_its_accounts_and_its_events(ledger, forger, cost, told):
    forger.reserve(ONE, cost)
    assert any(told in problem for problem in problems(ledger))


def test_a_claim_is_held_against_the_tighter_of_two_bounds():
    """Renyi alone would call it too small; with the other bound it holds, to a thousandth."""
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json

    honest = request(0.05)
    found = epsilon(event_from_json(honest.event), 1e-6)
    assert found.epsilon < 0.97 * found.renyi
    for factor, told in ((1.0, ()), (0.99, (f"entry {ONE}: it claims a smaller epsilon than its event gives",))):
        claimed = Guarantee(factor * found.epsilon, 1e-6, "user", "add-or-remove", 1)
        request_text = chain.canonical(replace(honest, guarantee=claimed).to_json())
        assert tuple(check_curves({ONE: {"request": request_text}})) == told


def test_nothing_starts_after_its_deadline(ledger, forger):
    forger.reserve(ONE, request(0.01), deadline="2020-01-01T00:00:00.000000+00:00")
    forger.move(ONE, chain.STARTED)
    assert f"entry {ONE} could not become started" in problems(ledger)[0]


@pytest.mark.parametrize(
    ("before", "second", "told"),
    [
        ("started", {}, "it does not replace the deciding attempt"),
        ("started", {"replaces": TWO}, "it does not replace the deciding attempt"),
        ("started", {"replaces": ONE, "attempt": 3}, "not the next attempt"),
        ("started", {"replaces": ONE, "attempt": 1}, "not the next attempt"),
        ("spent", {"replaces": ONE}, "the deciding attempt has not failed"),
        ("reserved", {"replaces": ONE}, "the deciding attempt has not failed"),
        ("reserved", {}, "it does not replace the deciding attempt"),
        ("void", {"replaces": ONE}, "it does not replace the deciding attempt"),
    ],
)
def test_another_attempt_follows_from_the_one_that_stands(ledger, forger, before, second, told):
    forger.reserve(ONE, request(0.01))
    for state in {"started": ["started"], "spent": ["started", "spent"], "void": ["void"], "reserved": []}[before]:
        forger.move(ONE, state, **{"spent": {"model_digest": "m"}, "void": {"reason": "r"}}.get(state, {}))
    assert problems(ledger) == ()
    if second.get("attempt") == 1:  # the table would not take it; the chain does
        payload = ledger.history(kinds=[chain.RESERVED])[-1].payload
        forger.append(chain.RESERVED, TWO, payload | second)
    else:
        forger.reserve(TWO, request(0.01), **{"attempt": 2} | second)
    assert any(f"entry {TWO} could not be reserved: " in problem and told in problem for problem in problems(ledger))


def test_another_attempt_is_at_the_same_plan(ledger, forger):
    forger.reserve(ONE, request(0.01, plan="a"))
    forger.move(ONE, chain.STARTED)
    forger.reserve(TWO, request(0.01, plan="b"), attempt=2, replaces=ONE)
    assert "its run is of another plan or family" in problems(ledger)[0]


def test_a_run_completes_once(ledger, forger):
    forger.reserve(ONE, request(0.01))
    forger.move(ONE, chain.STARTED)
    forger.reserve(TWO, request(0.01), attempt=2, replaces=ONE)
    forger.move(TWO, chain.STARTED)
    for name in (ONE, TWO):
        forger.move(name, chain.SPENT, model_digest=name)
    assert f"entry {TWO} could not become spent" in problems(ledger)[0]


@pytest.mark.parametrize(
    ("kind", "by", "told"),
    [
        (chain.APPROVED, " ADA", "by the person who ran it"),
        (chain.APPROVED, "\u200b", "no person is named"),
        (chain.REFUSED, "", "no person is named"),
        (chain.REFUSED, "Ada", None),
        (chain.APPROVED, "Bo", None),
    ],
)
def test_whoever_ran_it_does_not_approve_it(ledger, forger, kind, by, told):
    entry = ledger.reserve("each", "k", request(0.05, runner="Ada"), people(1), "compose", key_ids=KEYS)
    forger.append(kind, "c" * 64, {"by": by, "entry": entry.entry_id, "reason": ""})
    found = ledger.verify().problems
    assert told in found[0] if told else found == ()


def test_a_decision_is_on_an_entry(ledger, forger):
    forger.append(chain.APPROVED, "c" * 64, {"by": "Bo", "entry": "f" * 32, "reason": ""})
    assert "there is none" in problems(ledger)[0]


def test_decisions_keep_the_same_rules(ledger):
    before = ledger.entries()
    for cost in (claim(unit="example"), claim(delta=2e-5), replace(request(0.01), delta_slack=1e-6)):
        with pytest.raises(DpsynthError):
            ledger.reserve("everyone", "k", cost, None, "compose")
    assert ledger.entries() == before
