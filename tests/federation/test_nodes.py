"""The coordinator and nodes of a federated run, in one process: who may send what, and what each message starts."""

import json

import numpy as np
import pyarrow as pa
import pytest
from federated_cases import COORDINATOR, KEYS, NAMES, participant, plan_of, rows

from dpsynth_platform.federation import nodes as messages
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    DpsynthError,
    GrantRefused,
    LedgerError,
    MechanismFailed,
    RoundRefused,
    SpendRepeated,
)

ROSTER = Roster({name: KEYS[name].public_key() for name in NAMES})


class Wires:
    """A link in one process, which keeps what was said, and can lose or change messages."""

    def __init__(self, nodes, change=lambda name, kind, message: message):
        self.nodes, self.change, self.refusals, self.heard = nodes, change, [], []

    def ask(self, requests):
        replies = {}
        for name, request in requests.items():
            kind = json.loads(request.partition(b"\n")[0])["kind"]
            message = self.change(name, kind, request)
            if message is None:
                continue
            try:
                replies[name] = self.nodes[name].answer(message)
            except DpsynthError as error:
                self.refusals.append((name, kind, error))
            else:
                self.heard.append((name, kind, replies[name]))
        return replies


def nodes_of(directory, table=None, **changes):
    table = rows(2_000) if table is None else table
    parts = [table.take(np.arange(place, table.num_rows, len(NAMES))) for place in range(len(NAMES))]
    return {
        name: Node(participant(directory, name, part, **changes), KEYS[name])
        for name, part in zip(NAMES, parts, strict=True)
    }


def states(nodes):
    return {name: [entry.state for entry in node.participant.ledger.entries()] for name, node in nodes.items()}


def test_a_run_over_signed_messages_spends_once_at_each_participant(tmp_path):
    nodes = nodes_of(tmp_path)
    made = Coordinator(ROSTER, COORDINATOR, Wires(nodes)).run("first", plan_of("mst"), tmp_path / "model")
    assert made.participants == NAMES
    assert [set(finished) for finished in made.finished] == [set(NAMES)] * 3
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    assert (tmp_path / "model").is_dir()


def test_participants_that_drop_out_are_named_and_the_run_goes_on(tmp_path):
    steps = []

    def change(name, kind, message):
        steps.append(kind)
        return None if name == "west" and kind == "sum" and steps.count("sum") > 24 else message

    nodes = nodes_of(tmp_path)
    made = Coordinator(ROSTER, COORDINATOR, Wires(nodes, change)).run("first", plan_of("mst"), tmp_path / "model")
    assert set(made.finished[0]) == set(NAMES) and set(made.finished[-1]) == set(NAMES) - {"west"}
    assert set(made.dropped[-1]) == {"west"}
    assert states(nodes) == {name: ["spent"] for name in NAMES}


def test_too_few_that_reserve_start_nothing_and_hold_nothing(tmp_path):
    nodes = nodes_of(tmp_path)
    refusing = {"north", "west"}
    wires = Wires(nodes, lambda name, kind, message: None if name in refusing else message)
    with pytest.raises(LedgerError, match=r"2 participants have reserved .* 3 or more.*: north, west"):
        Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of(), tmp_path / "model")
    assert states(nodes) == {name: [] if name in refusing else ["void"] for name in NAMES}


def test_too_few_that_start_release_the_others(tmp_path):
    nodes = nodes_of(tmp_path)
    wires = Wires(nodes, lambda name, kind, message: None if (name, kind) in LOST else message)
    with pytest.raises(LedgerError, match=r"2 participants have started"):
        Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of(), tmp_path / "model")
    found = states(nodes)
    assert sorted(each for (each,) in found.values()) == ["started", "started", "void", "void"]


LOST = {("north", "start"), ("west", "start")}


def test_a_policy_refuses_for_its_participant_alone(tmp_path):
    nodes = nodes_of(tmp_path)
    nodes["west"].participant = participant(tmp_path, "west", columns=["drink", "food"])
    wires = Wires(nodes)
    made = Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of(), tmp_path / "model")
    assert made.participants == ("east", "north", "south")
    assert [(name, kind, type(error)) for name, kind, error in wires.refusals] == [("west", "propose", ContractError)]
    assert states(nodes)["west"] == []


def test_a_plan_waits_for_a_person(tmp_path):
    def approve(run_id, plan):
        raise GrantRefused("waits for approval")

    nodes = nodes_of(tmp_path)
    for name in ("north", "west"):
        nodes[name].approve = approve
    with pytest.raises(LedgerError, match="2 participants have reserved"):
        Coordinator(ROSTER, COORDINATOR, Wires(nodes)).run("first", plan_of(), tmp_path / "model")
    assert states(nodes)["north"] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda name, message: message[:-1] + bytes([message[-1] ^ 1]),
        lambda name, message: message.replace(b'"first"', b'"other"', 1),
        lambda name, message: b"",
        lambda name, message: messages._sealed({"kind": "propose", "run": "first"}, b"", name, KEYS["west"]),
        lambda name, message: messages._sealed({"kind": "propose", "run": "first"}, b"", "another", COORDINATOR),
    ],
)
def test_no_message_is_heard_that_the_coordinator_has_not_signed_for_this_node(tmp_path, change):
    node = nodes_of(tmp_path)["east"]
    real = messages._sealed({"kind": "propose", "run": "first"}, plan_of().to_json().encode(), "east", COORDINATOR)
    with pytest.raises(RoundRefused, match="not signed for this participant"):
        node.answer(change("east", real))
    assert node.participant.ledger.entries() == []


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "spend", "run": "r"},
        {"kind": "sum", "run": "r"},
        {"run": "r"},
        {"kind": "sum", "run": ""},
        {"kind": "propose", "run": "r" * 101},
    ],
)
def test_other_messages_of_the_coordinator_are_refused(tmp_path, head):
    node = nodes_of(tmp_path)["east"]
    with pytest.raises(RoundRefused):
        node.answer(messages._sealed(head, b"", "east", COORDINATOR))


def test_the_coordinator_alone_starts_no_run(tmp_path):
    """It signs for others, with its own key or with their signatures of another run."""
    nodes, plan = nodes_of(tmp_path), plan_of()
    said = {}
    for run_id in ("first", "second"):
        wires = Wires(nodes)
        said[run_id] = Coordinator(ROSTER, COORDINATOR, wires).ask(
            "propose", run_id, dict.fromkeys(NAMES, plan.to_json().encode())
        )
    forged = dict(said["second"], east=said["first"]["east"])
    for signatures in (forged, {"east": said["first"]["east"]}, {}):
        content = json.dumps({name: each.hex() for name, each in signatures.items()}).encode()
        with pytest.raises(LedgerError):
            nodes["east"].answer(messages._sealed({"kind": "start", "run": "first"}, content, "east", COORDINATOR))
    assert states(nodes)["east"] == ["reserved", "reserved"]


def test_no_round_is_opened_twice_and_no_run_started_twice(tmp_path):
    nodes, kept = nodes_of(tmp_path), []

    def change(name, kind, message):
        if name == "east":
            kept.append(message)
        return message

    Coordinator(ROSTER, COORDINATOR, Wires(nodes, change)).run("first", plan_of("independent"), tmp_path / "model")
    last = nodes["east"].answer(kept[-1])
    for message in kept[:-1]:
        with pytest.raises((RoundRefused, SpendRepeated, LedgerError)):
            nodes["east"].answer(message)
    assert nodes["east"].answer(kept[-1]) == last  # which is done once
    assert states(nodes)["east"] == ["spent"]


def test_a_message_that_is_sent_twice_has_one_reply(tmp_path):
    """The same bytes, and nothing is done for it a second time."""
    nodes, replies = nodes_of(tmp_path), []

    def change(name, kind, message):
        replies.append((nodes[name].answer(message), nodes[name].answer(message)))
        return message

    made = Coordinator(ROSTER, COORDINATOR, Wires(nodes, change)).run("1", plan_of("independent"), tmp_path / "model")
    assert [set(finished) for finished in made.finished] == [set(NAMES)]
    assert all(one == other for one, other in replies) and len({one for one, _ in replies}) == len(replies)


@pytest.mark.parametrize("back", [1, 2])
def test_an_earlier_message_of_a_round_ends_it_for_that_participant_alone(tmp_path, back):
    """From a relay that repeats messages: it is refused, whether it is a step or what opens the round."""
    nodes, steps = nodes_of(tmp_path), []

    def change(name, kind, message):
        if (name, kind) == ("east", "sum"):
            steps.append(message)
            if len(steps) == 3:
                return steps[2 - back]
        return message

    wires = Wires(nodes, change)
    made = Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of("independent"), tmp_path / "model")
    assert [set(finished) for finished in made.finished] == [set(NAMES) - {"east"}]


def test_no_run_without_a_place_for_its_model(tmp_path):
    nodes = nodes_of(tmp_path)
    wires = Wires(nodes)
    for place in (tmp_path, tmp_path / "none" / "model"):
        with pytest.raises(MechanismFailed, match="accepted: a new directory"):
            Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of(), place)
    assert wires.heard == [] and states(nodes) == {name: [] for name in NAMES}


def test_a_killed_node_has_dropped_out_and_its_entry_stays_spent(tmp_path):
    nodes, count = nodes_of(tmp_path), []

    def change(name, kind, message):
        count.append(kind)
        if name == "west" and count.count("sum") == 4:  # a new process of this participant
            nodes["west"] = Node(participant(tmp_path, "west"), KEYS["west"])
        return message

    wires = Wires(nodes, change)
    made = Coordinator(ROSTER, COORDINATOR, wires).run("first", plan_of("mst"), tmp_path / "model")
    assert all("west" not in finished for finished in made.finished)
    assert states(nodes) == {name: ["spent"] for name in NAMES[:3]} | {"west": ["started"]}


def test_a_name_without_a_key_is_refused_before_anything_is_asked(tmp_path):
    short = Roster({name: KEYS[name].public_key() for name in NAMES[:3]})
    with pytest.raises(ConfigurationError, match="no key of 'west'"):
        Coordinator(short, COORDINATOR, Wires({})).run("first", plan_of(), tmp_path / "model")


def test_nothing_that_a_node_says_holds_its_counts(tmp_path):
    """Marks: a count that no other table has, as it stands in a vector, with and without noise (here there is none)."""
    table = rows(2_000).take(pa.array([0] * 1_234 + list(range(400))))
    nodes = nodes_of(tmp_path, table)
    wires = Wires(nodes)
    plan = plan_of("independent")
    Coordinator(ROSTER, COORDINATOR, wires).run("first", plan, tmp_path / "model")
    asked = plan.next_round([])
    width = -(-asked.sum.modulus_bits // 8)
    for name, node in nodes.items():
        counts = asked.counted(node.participant.bounded, plan.domain) * asked.sum.scale
        said = b"".join(body for sender, _, body in wires.heard if sender == name)
        for count in counts[counts > 2**16]:
            assert int(count).to_bytes(width, "little") not in said


def test_a_model_that_is_paid_for_is_kept_where_the_relay_goes_before_the_end(tmp_path):
    def change(name, kind, message):
        if kind == "complete":
            raise ConfigurationError("the relay has gone")
        return message

    nodes = nodes_of(tmp_path)
    made = Coordinator(ROSTER, COORDINATOR, Wires(nodes, change)).run(
        "first", plan_of("independent"), tmp_path / "model"
    )
    assert made.participants == NAMES and states(nodes) == {name: ["started"] for name in NAMES}


def test_a_reply_that_a_relay_has_changed_counts_as_none(tmp_path):
    """Without the node's signature, a relay could add to a masked vector what it likes."""

    class Changing(Wires):
        def ask(self, requests):
            replies = super().ask(requests)
            if "east" in replies and b'"kind":"sum"' in requests["east"]:
                changed = bytearray(replies["east"])
                changed[-100] ^= 1
                replies["east"] = bytes(changed)
            return replies

    nodes = nodes_of(tmp_path)
    made = Coordinator(ROSTER, COORDINATOR, Changing(nodes)).run("first", plan_of("mst"), tmp_path / "model")
    assert [set(finished) for finished in made.finished] == [set(NAMES) - {"east"}] * 3
    assert [set(dropped) for dropped in made.dropped] == [{"east"}] * 3


def test_replies_of_others_and_of_other_messages_count_as_none(tmp_path):
    nodes, kept = nodes_of(tmp_path), {}

    class Swapping(Wires):
        def ask(self, requests):
            replies = super().ask(requests)
            swapped = {
                "east": replies["north"],
                "north": kept.get("north", b""),
                "west": b"",
                "south": replies["south"],
            }
            kept.update(replies)
            return swapped

    coordinator = Coordinator(ROSTER, COORDINATOR, Swapping(nodes))
    contents = dict.fromkeys(NAMES, plan_of().to_json().encode())
    assert coordinator.ask("propose", "first", contents).keys() == {"south"}
    assert coordinator.ask("propose", "second", contents).keys() == {"south"}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("step", range(8))
def test_a_node_that_is_killed_at_any_message_has_paid_at_most_once(tmp_path, step, before):
    """Before it hears the message, or after it has done its part and before the reply: a new process has its ledger."""
    nodes, seen = nodes_of(tmp_path), []

    def killed():
        nodes["west"] = Node(participant(tmp_path, "west"), KEYS["west"])

    class Killing(Wires):
        def ask(self, requests):
            now = len(seen) == step
            seen.append(1)
            if now and before:
                killed()
            replies = super().ask(requests)
            if now and not before:
                killed()
                replies.pop("west", None)
            return replies

    made = Coordinator(ROSTER, COORDINATOR, Killing(nodes)).run("first", plan_of("independent"), tmp_path / "model")
    (entry,) = nodes["west"].participant.ledger.entries()
    others = {(0, True): "spent", (0, False): "reserved", (1, True): "reserved", (7, False): "spent"}
    assert entry.state == others.get((step, before), "started")
    # Keys, shares and vectors are messages 2 to 4: whose vector has arrived is in the sum.
    assert ("west" in made.finished[0]) == ((step, before) == (0, True) or step > 4)
    assert states(nodes)["east"] == ["spent"]
    with pytest.raises(LedgerError):
        nodes["west"].participant.start("first", dict.fromkeys(NAMES, plan_of("independent").digest))
