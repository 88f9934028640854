"""A coordinator that is killed anywhere, and its run that continues from what was said."""

import json

import pytest
from federated_cases import COLUMNS, COORDINATOR, NAMES, plan_of, rows
from test_nodes import ROSTER, Wires, nodes_of, states

from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.exchanges import Exchanges
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.foundation.errors import ConfigurationError, RoundRefused
from dpsynth_platform.one_table.federated_run import new_run_name

EXCHANGES = 3 + 2 * 5
"""Reservations, starts, the end, and five steps of each of two rounds."""


class Killed(BaseException):
    pass


class Ending(Wires):
    """Wires that end a coordinator at an exchange: before participants are asked, or once they have answered."""

    def __init__(self, nodes, number, *, heard):
        super().__init__(nodes)
        self.left, self.heard_first = number, heard

    def ask(self, requests):
        self.left -= 1
        if self.left == 0 and not self.heard_first:
            raise Killed
        replies = super().ask(requests)
        if self.left == 0:
            raise Killed
        return replies


def two_columns():
    """Two rounds."""
    return plan_of("mst", columns={name: COLUMNS[name] for name in ("drink", "food")})


def run(wires, exchanges, plan, directory):
    """As a command or a line does: a run that was interrupted before it began is none that continues."""
    begun = exchanges.begun(plan.digest)
    run_id = begun or new_run_name()
    if begun is None:
        exchanges.forget()
    coordinator = Coordinator(ROSTER, COORDINATOR, exchanges.over(wires))
    return coordinator.run(
        run_id,
        plan,
        directory,
        before_start=lambda _: exchanges.begin(plan.digest, run_id),
        continues=begun is not None,
    )


@pytest.fixture
def answered(monkeypatch):
    """The messages that nodes have worked on, not those that they have answered once more."""
    seen, answer = [], Node._answer

    def counted(node, message):
        seen.append((node.name, json.loads(message.partition(b"\n")[0])["kind"]))
        return answer(node, message)

    monkeypatch.setattr(Node, "_answer", counted)
    return seen


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("number", range(1, EXCHANGES + 1))
def test_a_run_continues_wherever_its_coordinator_was_killed(tmp_path, answered, number, heard):
    """Nobody works on a message twice, and what a run costs is paid once. Before it has begun, another one begins."""
    plan, nodes, exchanges = two_columns(), nodes_of(tmp_path, rows(60)), Exchanges(tmp_path / "said")
    domain = plan.domain
    for node in nodes.values():
        object.__setattr__(node.participant, "domain", domain)
    with pytest.raises(Killed):
        run(Ending(nodes, number, heard=heard), exchanges, plan, tmp_path / "model")
    made = run(Wires(nodes), exchanges, plan, tmp_path / "model")
    assert [set(names) for names in made.finished] == [set(NAMES)] * 2
    assert TookPart.read(tmp_path / "model").finished == made.finished
    reserved = number == 1 and heard  # by the first run: until the deadline
    assert states(nodes) == {name: [*["reserved"] * reserved, "spent"] for name in NAMES}
    assert len(answered) == len(NAMES) * (EXCHANGES + reserved)


def test_kept_exchanges_ask_no_participant_and_keep_the_order_of_replies(tmp_path):
    class Once:
        asked = 0

        def ask(self, requests):
            self.asked += 1
            return {"west": b"\n1", "east": b""}

    link, kept = Once(), Exchanges(tmp_path / "said")
    kept.begin("digest", "run")
    for _ in range(2):
        found = kept.over(link).ask({"east": b"a", "west": b"b"})
        assert list(found.items()) == [("west", b"\n1"), ("east", b"")]
    assert link.asked == 1
    kept.over(link).ask({"east": b"b", "west": b"a"})
    assert link.asked == 2
    kept.forget()
    assert kept.begun("digest") is None and not kept.place.exists()


def test_exchanges_of_another_plan_or_other_facts_continue_nothing(tmp_path):
    kept = Exchanges(tmp_path / "said")
    assert kept.begun("one") is None
    kept.begin("one", "run", canaries="these")
    assert kept.begun("one") == kept.begun("one", canaries="these") == "run"
    with pytest.raises(ConfigurationError, match="an interrupted run of another plan; accepted"):
        kept.begun("other")
    with pytest.raises(ConfigurationError, match="an interrupted run of another canaries; accepted"):
        kept.begun("one", canaries="those")


def test_a_round_that_continues_otherwise_is_refused_by_those_who_were_in_it(tmp_path):
    """A coordinator that has lost what was said cannot open a round a second time."""
    plan, nodes = plan_of("independent"), nodes_of(tmp_path)
    with pytest.raises(Killed):
        run(Ending(nodes, 5, heard=True), Exchanges(tmp_path / "said"), plan, tmp_path / "model")
    wires = Wires(nodes)
    with pytest.raises(RoundRefused):
        kept = Exchanges(tmp_path / "said")
        coordinator = Coordinator(ROSTER, COORDINATOR, _WithoutWest(kept.over(wires)))
        coordinator.run(kept.begun(plan.digest), plan, tmp_path / "model", continues=True)
    assert [(name, kind) for name, kind, _ in wires.refusals] == [(name, "sum") for name in NAMES if name != "west"]


class _WithoutWest:
    """Kept exchanges, but for a reply to the first step of the round."""

    def __init__(self, kept):
        self.kept = kept

    def ask(self, requests):
        first = next(iter(requests.values()))
        begins = b'"round"' in first.partition(b"\n")[0]
        return {name: reply for name, reply in self.kept.ask(requests).items() if name != "west" or not begins}
