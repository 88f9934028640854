"""The coordinator and the nodes of a federated run: what they say to each other, signed.

What belongs here: the messages of a run, who may send them, and what each one starts. What does not: what a participant
approves and pays (`participants`), the steps of a secure sum (`secure_sum`), and how bytes travel (`Link`).

A message to a node is a line of JSON, a content, and the coordinator's signature of both together with the node's name.
A reply ends with the node's signature of it and of the message. So a relay can lose, delay and repeat messages, and no
more: without signatures, it could spend a participant's budget by runs of its own making, and change sums. The kinds:

    propose   the plan's text; the node reserves, and replies with its signature of run and plan
    start     the signatures of all who reserved; the node spends
    sum       a request of a step of a secure sum; the first one of a round says what is counted
    complete  the digest of the model; the node notes it
    withdraw  nothing; a node that has not started releases its reservation

A node starts a run only with signatures of at least `minimum` participants of the plan, checked by its own roster: that
they have reserved. Whether they take part is the coordinator's matter: it can start one alone, whose budget is then
spent, up to its cap, for a run that opens nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpsynth_platform.contracts.base import shown_value
from dpsynth_platform.contracts.federation import AUDITOR
from dpsynth_platform.federation.coordinator import TookPart, run_rounds
from dpsynth_platform.federation.masks import framed
from dpsynth_platform.federation.participants import Participant, Run
from dpsynth_platform.federation.plans import SIGNATURE_BYTES, FederatedPlan, Round
from dpsynth_platform.federation.rounds import AGGREGATOR, Roster, is_name
from dpsynth_platform.federation.secure_sum import Draws, Link, Member, run_sum
from dpsynth_platform.federation.sums import Whole
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    DpsynthError,
    LedgerError,
    MechanismFailed,
    RoundRefused,
    file_problem,
)
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.signature import is_valid, sign

PROPOSE, START, SUM, COMPLETE, WITHDRAW = "propose", "start", "sum", "complete", "withdraw"
LABEL = b"dpsynth-run-2"
MOST_RUN = 100
"""Letters of a run's name: with a digest after it, it names a round."""


@dataclass
class Node:
    """A participant that answers the coordinator's messages, one after the other.

    Attributes:
        identity: the participant's own key; those of the others and the coordinator's are in its policy.
        approve: raises `GrantRefused` unless a person approves the run; called once its policy allows the plan.
        report: called with a line on what was done.
        started, completed: called with a run's name once it is paid for, and once it is complete; never raise.
        draws: of its secrets and noise in the round of a name.
    """

    participant: Participant
    identity: Ed25519PrivateKey = field(repr=False)
    approve: Callable[[str, FederatedPlan], None] = lambda run_id, plan: None
    report: Callable[[str], None] = lambda line: None
    started: Callable[[str, Run], None] = lambda run_id, run: None
    completed: Callable[[str], None] = lambda run_id: None
    draws: Callable[[str], Draws] = lambda round_id: Draws()
    _runs: dict[str, Run] = field(default_factory=dict, repr=False)
    _member: tuple[str, Member] | None = field(default=None, repr=False)
    _last: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)  # digest of a message, and the reply to it

    def __post_init__(self) -> None:
        policy = self.participant.policy
        self.name, self.roster, self._coordinator = policy.name, policy.roster, policy.coordinator_key
        own = self.roster.keys[self.roster.places[self.name]]
        if own.public_bytes_raw() != self.identity.public_key().public_bytes_raw():
            raise ConfigurationError(
                f"the policy has another key of {self.name} than this directory; accepted: its own, "
                f"{self.identity.public_key().public_bytes_raw().hex()}"
            )

    def answer(self, message: bytes) -> bytes:
        """The signed reply to a message; to the last one again, the same.

        A coordinator that was killed has perhaps not heard it, and asks once more.

        Raises:
            RoundRefused: the message is not the coordinator's, or not of a run or round that is under way here.
            DpsynthError: as `Participant` and `Member` refuse it.
        """
        digest = hashlib.sha256(message).digest()
        if digest != self._last[0]:
            reply = self._answer(message)
            self._last = digest, reply + sign(self.identity, _replied(message, reply))
        return self._last[1]

    def _answer(self, message: bytes) -> bytes:
        head, content = _opened(message, self.name, self._coordinator)
        kind, run_id = head["kind"], head["run"]
        if kind == PROPOSE:
            return self._propose(run_id, content)
        if kind == START:
            return self._start(run_id, content)
        if kind == WITHDRAW:
            self.participant.withdraw(run_id)
            self.report(f"run {run_id}: withdrawn; nothing was spent")
        elif kind == COMPLETE:
            self._run(run_id).complete(content.decode("ascii", "replace"))
            del self._runs[run_id]
            self.report(f"run {run_id}: complete")
            self.completed(run_id)
        elif kind == SUM:
            return self._sum(run_id, head.get("round"), content)
        else:
            raise RoundRefused(f"a message of kind {shown_value(kind)}; accepted: {', '.join(_KINDS)}")
        return b""

    def _propose(self, run_id: str, content: bytes) -> bytes:
        text = content.decode("utf-8", "replace")
        plan = self.participant.allowed(text)
        self.approve(run_id, plan)
        digest = self.participant.reserve(run_id, text)
        self.report(f"run {run_id}: plan {digest} reserved, epsilon {plan.guarantee.epsilon:g}")
        return sign(self.identity, _reserved(run_id, digest, self.roster.of(plan.terms.participants)))

    def _start(self, run_id: str, content: bytes) -> bytes:
        plan = self.participant.reserved_plan(run_id)
        digest, roster = plan.digest, self.roster.of(plan.terms.participants)
        said, signatures = _reserved(run_id, digest, roster), _signatures(content)
        for name, signature in signatures.items():
            place = roster.places.get(name)
            if place is None or not is_valid(roster.keys[place], said, signature):
                raise LedgerError(
                    f"run {run_id}: no signature of {shown_value(name)} that it has reserved this plan, with the keys "
                    "of participants that the policy here has; accepted: its own"
                )
        self._runs[run_id] = self.participant.start(run_id, dict.fromkeys(signatures, digest))
        self.report(f"run {run_id}: started by {', '.join(sorted(signatures))}; what was reserved is spent")
        self.started(run_id, self._runs[run_id])
        return b""

    def _sum(self, run_id: str, document: Any, request: bytes) -> bytes:
        run = self._run(run_id)
        if document is not None:
            asked = run.open(document)
            round_id = _round_id(run_id, asked)
            self.report(f"run {run_id}: round {asked.index + 1} of {len(run.plan.rounds)}, {asked.sum.length} numbers")
            self._member = (
                run_id,
                Member(
                    asked.sum,
                    self.roster.of(run.plan.terms.participants),
                    round_id,
                    self.name,
                    self.identity,
                    lambda: run.counts(asked),
                    lambda _: True,  # `Run.open` opens each round once, and `Participant.start` each run
                    self.draws(round_id),
                ),
            )
        if self._member is None or self._member[0] != run_id:
            raise RoundRefused("a step of a round that is not under way; accepted: its first step")
        return self._member[1].answer(request)

    def _run(self, run_id: str) -> Run:
        if run_id not in self._runs:
            raise RoundRefused("a run that is not under way here; accepted: one that this process has started")
        return self._runs[run_id]


@dataclass(frozen=True)
class Outcome:
    """What a run has made.

    Attributes:
        model_digest: of the model's directory.
        participants: who reserved and started.
        finished: of each round, whose counts are in its sum.
        dropped: of each round, why others said no more.
    """

    model_digest: str
    participants: tuple[str, ...]
    finished: tuple[tuple[str, ...], ...]
    dropped: tuple[Mapping[str, str], ...]


class Coordinator:
    """Runs plans over a link. It sees the sums that are opened, and who took part.

    Args:
        roster: the participants' public keys.
        key: by which nodes know its messages.
        report: called with a line on participants whose keys are not those that are known here.
    """

    def __init__(
        self, roster: Roster, key: Ed25519PrivateKey, link: Link, report: Callable[[str], None] = lambda line: None
    ) -> None:
        self._roster, self._key, self._link, self._report = roster, key, link, report
        self._unverified: set[str] = set()  # whose last reply was not signed by the key that is known here

    def run(
        self,
        run_id: str,
        plan: FederatedPlan,
        directory: Path,
        progress: Progress = silent,
        *,
        before_start: Callable[[Collection[str]], None] = lambda reserved: None,
        continues: bool = False,
    ) -> Outcome:
        """A whole run: reservations, starts, rounds, and the model in a new directory, or one without files.

        Args:
            run_id: its name for all who take part, new for each run.
            before_start: called with the names of those who have reserved, before any of them is asked to start. What
                it raises ends the run, and reservations are withdrawn.
            continues: whether the run began before, over a link that has kept what was said (`exchanges`). Its first
                messages are made again, and its rounds from the first one of which the directory has no result.

        Raises:
            LedgerError: fewer participants than the plan's minimum have reserved, or started. Reservations are then
                withdrawn; what was started is spent.
            RoundRefused: too few participants remain in a round; what was started is spent.
            ConfigurationError: as `FederatedPlan.prepare`; nothing was asked.
            MechanismFailed: the directory cannot be made, or lacks what a run needs to continue, and nothing was asked;
                or as `run_rounds`.
        """
        roster = self._roster.of(plan.terms.participants)
        plan.prepare()
        plan.clear(directory, continues=continues)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)  # before anything is spent
            new = not any(directory.iterdir())
        except OSError as error:
            raise MechanismFailed(f"{directory}: {file_problem(error)}; accepted: a new directory") from None
        if not new and not continues:
            raise MechanismFailed(f"{directory}: File exists; accepted: a new directory")
        signatures = self._reserve(run_id, plan, roster)
        try:
            plan.begin(directory)
            before_start(signatures.keys())
        except BaseException:
            self._withdraw(run_id, signatures)
            raise
        started = self._start(run_id, plan, signatures)
        took_part = TookPart(tuple(sorted(started)), (), ())
        if continues:
            took_part = TookPart.kept(directory) or took_part

        def open_sum(asked: Round) -> tuple[Whole, tuple[str, ...]]:
            link = _RoundLink(self, run_id, asked, frozenset(started))
            nonlocal took_part
            opened = run_sum(asked.sum, roster, _round_id(run_id, asked), link)
            dropped = {name: why for name, why in opened.dropped.items() if name in started}
            took_part = took_part.with_round(asked.index, opened.finished, dropped)
            took_part.write(directory)
            return opened.total, opened.finished

        digest = run_rounds(plan, directory, open_sum, progress)
        if len(took_part.finished) != len(plan.rounds):
            raise MechanismFailed(
                f"{len(took_part.finished)} rounds of {len(plan.rounds)} are known; accepted: all of the plan"
            )
        with suppress(DpsynthError):  # a model that is paid for is worth more than the participants' note of it
            self.ask(COMPLETE, run_id, dict.fromkeys(started, digest.encode()))
        return Outcome(digest, took_part.started, took_part.finished, took_part.dropped)

    def ask(
        self, kind: str, run_id: str, contents: Mapping[str, bytes], document: Mapping[str, Any] | None = None
    ) -> Mapping[str, bytes]:
        """Sends each node a signed message, and gives the replies that came with the node's own signature."""
        head = {"kind": kind, "run": run_id} | ({} if document is None else {"round": document})
        messages = {name: _sealed(head, body, name, self._key) for name, body in contents.items()}
        found, self._unverified = {}, set()
        for name, reply in self._link.ask(messages).items():
            body, signature = reply[:-SIGNATURE_BYTES], reply[-SIGNATURE_BYTES:]
            key = self._roster.keys[self._roster.places[name]] if name in messages else None
            if key is not None and is_valid(key, _replied(messages[name], body), signature):
                found[name] = body
            elif key is not None:
                self._unverified.add(name)
        return found

    def _reserve(self, run_id: str, plan: FederatedPlan, roster: Roster) -> dict[str, bytes]:
        replies = self.ask(PROPOSE, run_id, dict.fromkeys(roster.names, plan.to_json().encode()))
        said, strange = _reserved(run_id, plan.digest, roster), frozenset(self._unverified)
        valid = {
            name: reply
            for name, reply in replies.items()
            if name in roster.places and is_valid(roster.keys[roster.places[name]], said, reply)
        }
        others = replies.keys() - valid.keys()
        about = [
            f"{', '.join(sorted(names))}: {words}"
            for names, words in ((strange, _ANOTHER_KEY), (others, _OTHER_KEYS))
            if names
        ]
        self._check_enough(run_id, plan, valid, {*valid, *others, *strange}, "reserved", about)
        for line in about:
            self._report(f"without {line}")
        self._withdraw(run_id, others | strange)  # they may have reserved, and take no part
        return valid

    def _start(self, run_id: str, plan: FederatedPlan, signatures: Mapping[str, bytes]) -> Mapping[str, bytes]:
        content = json.dumps({name: signature.hex() for name, signature in signatures.items()}).encode()
        started = self.ask(START, run_id, dict.fromkeys(signatures, content))
        self._check_enough(run_id, plan, started, signatures.keys() - started.keys(), "started")
        return started

    def _withdraw(self, run_id: str, names: Collection[str]) -> None:
        if not names:
            return
        with suppress(DpsynthError):  # reservations end at their deadline anyway
            self.ask(WITHDRAW, run_id, dict.fromkeys(names, b""))

    def _check_enough(
        self,
        run_id: str,
        plan: FederatedPlan,
        ready: Mapping[str, bytes],
        waiting: Collection[str],
        what: str,
        about: Sequence[str] = (),
    ) -> None:
        if len(ready) >= plan.terms.minimum:
            return
        self._withdraw(run_id, waiting)
        have = "has" if len(ready) == 1 else "have"
        missing = sorted(set(plan.terms.participants) - set(ready))
        raise LedgerError(
            f"{number_of(len(ready), 'participant')} {have} {what} the run; accepted: the plan's "
            f"{plan.terms.minimum} or more{_with_auditor(plan)}. Without a reply or refusing: {', '.join(missing)}; "
            f"each one's own log says why{''.join(f'. {words}' for words in about)}"
        )


class _RoundLink:
    """The link of one secure sum: requests become messages, the first of which say what is counted."""

    def __init__(self, coordinator: Coordinator, run_id: str, asked: Round, started: frozenset[str]) -> None:
        self._coordinator, self._run_id, self._started = coordinator, run_id, started
        self._document: Mapping[str, Any] | None = asked.to_json()

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        document, self._document = self._document, None
        known = {name: body for name, body in requests.items() if name in self._started}
        return self._coordinator.ask(SUM, self._run_id, known, document)


_KINDS = (PROPOSE, START, SUM, COMPLETE, WITHDRAW)


def _round_id(run_id: str, asked: Round) -> str:
    return f"{run_id} {asked.digest}"


_ANOTHER_KEY = "replied, and not by the key that the coordinator knows; compare it with what `dpsynth node key` prints"
_OTHER_KEYS = "has reserved with other keys of participants in its policy than the coordinator knows; compare these"


def _with_auditor(plan: FederatedPlan) -> str:
    return f" ({AUDITOR} among them)" if AUDITOR in plan.terms.participants else ""


def _reserved(run_id: str, digest: str, roster: Roster) -> bytes:
    """What a participant signs when it has reserved: with the keys of all whom it takes for participants.

    So one wrong key in one place is found before anybody starts.
    """
    return framed(LABEL, b"reserved", run_id.encode(), digest.encode(), roster.digest.encode())


def _replied(message: bytes, reply: bytes) -> bytes:
    """What a node signs of its reply: it fits one message alone, which names the node."""
    return framed(LABEL, b"reply", hashlib.sha256(message).digest(), reply)


def _sealed(head: Mapping[str, Any], content: bytes, receiver: str, key: Ed25519PrivateKey) -> bytes:
    line = json.dumps(head, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return line + content + sign(key, framed(LABEL, b"message", receiver.encode(), line, content))


def _opened(message: bytes, receiver: str, key: Ed25519PublicKey) -> tuple[dict[str, Any], bytes]:
    """Head and content. Nothing is parsed before the signature is checked."""
    line, found, rest = message.partition(b"\n")
    content, signature = rest[:-SIGNATURE_BYTES], rest[-SIGNATURE_BYTES:]
    signed = framed(LABEL, b"message", receiver.encode(), line + found, content)
    if len(rest) < SIGNATURE_BYTES or not is_valid(key, signed, signature):
        raise RoundRefused("a message that the coordinator has not signed for this participant; accepted: its own")
    try:
        head = json.loads(line)
        valid = isinstance(head, dict) and isinstance(head["kind"], str) and is_name(head["run"])
        valid = valid and len(head["run"]) <= MOST_RUN
    except (ValueError, KeyError, RecursionError):
        valid = False
    if not valid:
        raise RoundRefused(f"a message without kind and run, from {AGGREGATOR!r}")
    return head, content


def _signatures(content: bytes) -> dict[str, bytes]:
    try:
        found = json.loads(content)
        return {str(name): bytes.fromhex(signature) for name, signature in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise RoundRefused("signatures that are no JSON object of hexadecimal texts") from None
