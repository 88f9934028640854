"""Replaying a chain into the accounts and entries that follow from it, and finding impossible events.

What belongs here: every rule of decisions that can be checked on a chain alone, so that an auditor need not trust its
writer. What does not: hashes and links (`chain`), costs and caps (`verification`), and checks that need participants.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Sequence
from typing import get_args

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.people import person_key
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.chain import Values
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import ChainEvent, Mode, OverlapPolicy
from dpsynth_platform.privacy.guarantee import Guarantee


def replay(events: Iterable[ChainEvent]) -> tuple[dict[str, Values], dict[str, Values], list[str]]:
    """The account and entry rows that follow from the chain, and its impossible events.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, LedgerError: an event is not of its kind's form.
    """
    state = _Replay()
    for event in events:
        state.apply(event)
    return state.accounts, state.entries, state.problems + state.key_problems() + state.never_reserved()


class _Replay:
    def __init__(self) -> None:
        self.accounts: dict[str, Values] = {}
        self.entries: dict[str, Values] = {}
        self.problems: list[str] = []
        self._asked: dict[int, ChainEvent] = {}
        self._bound: dict[str, Values] = {}  # datasets and source tables, each with its family and owner columns
        self._runs: dict[str, list[str]] = {}  # each run's attempts, first to last
        self._released: dict[str, tuple[str, str]] = {}  # each release's candidate and entry
        self._withdrawn: dict[str, dict[str, str]] = {}  # of each entry, who withdrew which release
        self._related: dict[str, list[str]] = {}  # for an entry not yet reserved, the entries that it is related to
        self._stopped: dict[str, set[str]] = {}  # runs blocked by an overlap, with their kin at that time
        self._ended: dict[str, str] = {}  # reservations past their deadline, with the entry that counted them as ended
        self._keyed: dict[str, list[str]] = {}  # for entries that name participants, the keys they committed under last
        self._steps = {
            chain.OPENED: self._open,
            chain.BOUND: self._bind,
            chain.RAISE_ASKED: self._ask,
            chain.RAISED: self._raise,
            chain.REKEYED: self._rekey,
            chain.BLOCKED: self._stop,
            chain.RELATED: self._relate,
            chain.RESERVED: self._reserve,
            chain.RECOMMITTED: self._recommit,
            chain.STARTED: self._move,
            chain.SPENT: self._move,
            chain.VOID: self._move,
            chain.APPROVED: self._decide,
            chain.REFUSED: self._decide,
            chain.RELEASED: self._release,
            chain.WITHDRAWN: self._withdraw,
            chain.DECLARED_PUBLIC: self._declare,
            chain.DISTRUSTED: self._declare,
        }

    def apply(self, event: ChainEvent) -> None:
        step = self._steps.get(event.kind)
        refusal = step(event) if step else None
        if refusal:
            self.problems.append(f"event {event.sequence}: {refusal}")

    def key_problems(self) -> list[str]:
        """Entries that did not follow their account to new keys, and namespaces whose accounts have different keys."""
        problems = [
            f"entry {name}: it was not recommitted when its account's keys were changed"
            for name, ids in self._keyed.items()
            if ids != self._key_ids(self.entries[name]["family"])
        ]
        kept: dict[str, list[str]] = {}
        for family in self.accounts:
            terms = self._terms(family)
            if kept.setdefault(terms["namespace"], terms["key_ids"]) != terms["key_ids"]:
                problems.append(f"account {family}: its keys are not those of its namespace")
        return problems

    def never_reserved(self) -> list[str]:
        return [f"entry {name}: related to others, and never reserved" for name in self._related]

    def _open(self, event: ChainEvent) -> str | None:
        terms = event.payload
        if event.subject in self.accounts:
            return f"account {event.subject} could not be opened: it was open already"
        if not (_is_cap(terms["cap"]) and RenyiFilter.from_json(terms["filter"], **terms["cap"]).is_valid):
            return f"account {event.subject} could not be opened: its filter does not keep a cap"
        if terms["mode"] not in get_args(Mode):
            return f"account {event.subject} could not be opened: its mode is unknown"
        self.accounts[event.subject] = {"terms": chain.canonical(terms), "opened_at": event.at}
        return None

    def _bind(self, event: ChainEvent) -> str | None:
        if self._bound.setdefault(event.subject, event.payload) != event.payload:
            return f"{event.subject} could not be bound to another family or other owner columns"
        return None

    def _ask(self, event: ChainEvent) -> None:
        self._asked[event.sequence] = event

    def _raise(self, event: ChainEvent) -> str | None:
        account = self.accounts.get(event.subject)
        asked = self._asked.get(event.payload["asked"])
        if account is None or not _may_raise(chain.parse(account["terms"]), asked, event):
            return f"the cap of {event.subject} could not be raised"
        account["terms"] = chain.raised_terms(account["terms"], event)
        return None

    def _rekey(self, event: ChainEvent) -> str | None:
        account = self.accounts.get(event.subject)
        waiting = any(
            entry["family"] == event.subject and entry["state"] == chain.RESERVED for entry in self.entries.values()
        )
        if account is None or waiting or not _may_rekey(chain.parse(account["terms"]), event):
            return f"the keys of {event.subject} could not be changed"
        account["terms"] = chain.rekeyed_terms(account["terms"], event)
        return None

    def _stop(self, event: ChainEvent) -> None:
        key, family = event.payload.get("key"), self.accounts.get(event.subject)
        if key is not None and family is not None and event.payload["reason"] == "overlap":
            self._stopped[key] = set(self._kin(event.subject, (), event.at))

    def _relate(self, event: ChainEvent) -> str | None:
        if event.subject in self.entries:
            return f"entry {event.subject} could not be related to others: it was reserved already"
        self._related.setdefault(event.subject, []).extend(event.payload["related"])
        return None

    def _reserve(self, event: ChainEvent) -> str | None:
        payload = event.payload
        related = [*self._related.get(event.subject, ()), *payload.get("related", ())]
        refusal = self._why_not_reserved(event)
        if refusal:
            return f"entry {event.subject} could not be reserved: {refusal}"
        if payload.get("policy", "compose") != "compose":
            kin = self._all_kin(payload["family"], related)
            passed = [name for name, entry in kin.items() if is_expired(entry, event.at)]
            self._ended |= dict.fromkeys(passed, event.subject)
        self.entries[event.subject] = chain.reserved_row(event)
        self._runs.setdefault(payload["key"], []).append(event.subject)
        if payload["commitment"] is not None:
            self._keyed[event.subject] = self._key_ids(payload["family"])
        return None

    def _why_not_reserved(self, event: ChainEvent) -> str | None:
        payload, named = event.payload, self._related.pop(event.subject, [])
        related = [*named, *payload.get("related", ())]
        if event.subject in self.entries:
            return "it was reserved before"
        if payload["family"] not in self.accounts:
            return "its family has no account"
        terms = self._terms(payload["family"])
        if terms["mode"] == "per-owner" and payload["commitment"] is None:
            return "it charges owners, and names none"
        if len(named) != payload.get("related_before", 0):
            return "some of its related entries are missing"
        if not self.entries.keys() >= set(related):
            return "it is related to an unknown entry"
        if payload.get("policy", "compose") not in get_args(OverlapPolicy):
            return "its overlap policy is unknown"
        if not _is_within(payload["request"], terms):
            return "its unit, adjacency or delta does not fit its account"
        return self._why_policy_broken(event, related) or self._why_no_attempt(payload)

    def _why_policy_broken(self, event: ChainEvent, related: Sequence[str]) -> str | None:
        """Checks `exclude` and `block`, as far as is possible without participants."""
        payload = event.payload
        if payload.get("policy", "compose") == "compose":
            return None
        if payload["commitment"] is None:
            return "its overlap policy needs participants, and it names none"
        kin = self._kin(payload["family"], related, event.at)
        ids = {
            name: same_ids(self._terms(name))
            for name in {payload["family"], *(item["family"] for item in kin.values())}
        }
        mine = ids[payload["family"]]
        if any(item["commitment"] is None or ids[item["family"]] != mine for item in kin.values()):
            return "its overlap policy cannot be checked against an earlier entry"
        met = self._stopped.get(payload["key"])
        if payload["policy"] == "block" and met is not None and met <= kin.keys():
            return "it was blocked for an overlap, and none of the entries of that time has ended"
        return None

    def _kin(self, family: str, related: Collection[str], at: str) -> dict[str, Values]:
        """The entries that were charged at a time, of a family's namespace or related (`kinship`)."""
        kin = self._all_kin(family, related)
        return {name: entry for name, entry in kin.items() if is_charged(entry, at)}

    def _all_kin(self, family: str, related: Collection[str]) -> dict[str, Values]:
        namespace = self._terms(family)["namespace"]
        families = {name for name in self.accounts if self._terms(name)["namespace"] == namespace}
        return {name: entry for name, entry in self.entries.items() if entry["family"] in families or name in related}

    def _why_no_attempt(self, payload: Values) -> str | None:
        tried = self._runs.get(payload["key"], [])
        if payload["attempt"] != len(tried) + 1:
            return "it is not the next attempt at its run"
        for before in (self.entries[name] for name in tried[-1:]):
            same_plan = chain.parse(before["request"])["plan_digest"] == payload["request"]["plan_digest"]
            if before["family"] != payload["family"] or not same_plan:
                return "its run is of another plan or family"
        place = chain.deciding_attempt([self.entries[name]["state"] for name in tried])
        deciding = None if place is None else tried[place]
        if payload["replaces"] != deciding:
            return "it does not replace the deciding attempt"
        if deciding is not None and self.entries[deciding]["state"] != chain.STARTED:
            return "the deciding attempt has not failed"
        return None

    def _recommit(self, event: ChainEvent) -> str | None:
        name = event.subject
        now = self._key_ids(self.entries[name]["family"]) if name in self._keyed else None
        if now is None or self._keyed[name] != now[:-1]:
            return f"entry {name} could not be recommitted"
        self._keyed[name] = now
        return None

    def _move(self, event: ChainEvent) -> str | None:
        entry = self.entries.get(event.subject)
        if entry is None or entry["state"] != chain.TRANSITIONS[event.kind] or not self._may_move(entry, event):
            return f"entry {event.subject} could not become {event.kind}"
        later = self._ended.get(event.subject)
        if event.kind == chain.STARTED and later is not None:
            return f"entry {event.subject} could not become started: entry {later} was reserved as if it had ended"
        entry.update(chain.transition_values(event))
        return None

    def _may_move(self, entry: Values, event: ChainEvent) -> bool:
        if event.kind == chain.STARTED:
            return dt.datetime.fromisoformat(event.at) < dt.datetime.fromisoformat(entry["deadline"])
        if event.kind == chain.SPENT:
            return all(self.entries[name]["state"] != chain.SPENT for name in self._runs[entry["run_key"]])
        return True

    def _decide(self, event: ChainEvent) -> str | None:
        entry, by = self.entries.get(event.payload["entry"]), person_key(event.payload["by"])
        if entry is None or not by:
            return f"entry {event.payload['entry']} could not be {event.kind}: there is none, or no person is named"
        if event.kind == chain.APPROVED and by == person_key(chain.parse(entry["request"])["runner"]):
            return f"entry {event.payload['entry']} could not be approved by the person who ran it"
        return self._why_not_again(event) if event.kind == chain.APPROVED else None

    def _why_not_again(self, approved: ChainEvent) -> str | None:
        withdrawn = self._withdrawn.get(approved.payload["entry"], {})
        if approved.payload.get("after_withdrawal") != next(reversed(withdrawn), None):
            return "it could not be approved without naming the withdrawn release"
        if person_key(approved.payload["by"]) in withdrawn.values():
            return "it could not be approved by the person who withdrew it"
        return None

    def _release(self, event: ChainEvent) -> str | None:
        content = event.payload["candidate"], event.payload["entry"]
        entry = self.entries.get(event.payload["entry"])
        if entry is None or entry["state"] != chain.SPENT:
            return f"release {event.subject} could not be published: nothing was spent on it"
        if event.subject in self._withdrawn.get(event.payload["entry"], {}):
            return f"release {event.subject} could not be published: it was withdrawn"
        if self._released.setdefault(event.subject, content) != content:
            return f"release {event.subject} could not be published: it is another candidate's"
        return None

    def _withdraw(self, event: ChainEvent) -> str | None:
        content, by = (event.payload["candidate"], event.payload["entry"]), person_key(event.payload["by"])
        withdrawn = self._withdrawn.setdefault(event.payload["entry"], {})
        if self._released.get(event.subject) != content or event.subject in withdrawn or not by:
            return f"release {event.subject} could not be withdrawn"
        withdrawn[event.subject] = by
        return None

    @staticmethod
    def _declare(event: ChainEvent) -> str | None:
        words = event.payload["by"], event.payload["reason"]
        return None if all(map(person_key, words)) else f"{event.kind} without a name or a reason"

    def _terms(self, family: str) -> Values:
        return chain.parse(self.accounts[family]["terms"])

    def _key_ids(self, family: str) -> list[str]:
        ids: list[str] = self._terms(family)["key_ids"]
        return ids


def is_charged(entry: Values, at: str) -> bool:
    """Whether an entry's row at a time is started, spent, or reserved within its deadline."""
    return entry["state"] != chain.VOID and not is_expired(entry, at)


def is_expired(entry: Values, at: str) -> bool:
    """Whether an entry's row at a time is a reservation past its deadline that is not void."""
    return entry["state"] == chain.RESERVED and bool(entry["deadline"] <= at)


def same_ids(terms: Values) -> tuple[str, ...]:
    """Equal where one person has one fingerprint (`kinship.comparable`)."""
    return terms["namespace"], terms["unit"], *terms["owner_normalization"]


def _is_cap(cap: Values) -> bool:
    return bool(0 < cap["epsilon"] < math.inf and 0 < cap["delta"] < 1)


def _is_within(request: Values, terms: Values) -> bool:
    """Whether a request has an account's unit and adjacency, and a delta between its slack and the cap's."""
    try:
        guarantee = Guarantee.from_json(request["guarantee"])
    except AccountingError:
        return False
    same_kind = (guarantee.unit, guarantee.adjacency) == (terms["unit"], terms["adjacency"])
    return same_kind and bool(0 <= request["delta_slack"] < guarantee.delta <= terms["cap"]["delta"])


def _may_raise(terms: Values, asked: ChainEvent | None, raised: ChainEvent) -> bool:
    """Whether a `raised` event follows from the request that it names: same caps, by another person."""
    if asked is None or asked.subject != raised.subject:
        return False
    was, cap = asked.payload["was"], asked.payload["cap"]
    return bool(
        was == terms["cap"]
        and cap == raised.payload["cap"]
        and _is_cap(cap)
        and cap != was
        and all(cap[name] >= was[name] for name in ("epsilon", "delta"))
        and person_key(asked.payload["by"]) != person_key(raised.payload["by"])
    )


def _may_rekey(terms: Values, rekeyed: ChainEvent) -> bool:
    """Whether a `rekeyed` event adds one key to an account's."""
    ids = rekeyed.payload["key_ids"]
    return bool(ids["was"] == terms["key_ids"] == ids["now"][:-1] and ids["now"][-1] not in ids["was"])
