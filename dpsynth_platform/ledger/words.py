"""The ledger's events and findings in words, for people who read the chain.

What belongs here: who did an event and what it says, in one line each. What does not: reading the chain (`store`) and
showing it (`cli.ledger`). Stored events stay as they are; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent, Entry

SHORT = 12
UNREADABLE = "cannot be read; see: dpsynth ledger verify"

_Payload = Mapping[str, Any]


def other_reservations(charged: Sequence[Entry], keys: Collection[str | None]) -> Iterator[str]:
    """A sentence for each reservation of a place that the present run does not use, and that counts nevertheless.

    Args:
        charged: the charged entries of the place.
        keys: those of the present run.
    """
    for entry in charged:
        if entry.state == chain.RESERVED and entry.key not in keys:
            yield (
                f"ledger entry {entry.entry_id}, which an earlier run of {entry.request.place} reserved for another "
                f"content of the source or another contract, counts until {entry.deadline[:16].replace('T', ' ')} UTC; "
                f"to withdraw it: dpsynth ledger void {entry.entry_id}"
            )


def in_words(events: Sequence[ChainEvent]) -> list[tuple[str, str]]:
    """By whom each event is, and what it says. Needs the whole chain: an event's words may depend on earlier ones."""
    runners: dict[str, str] = {}  # of each entry
    asked: dict[int, _Payload] = {}
    rotated_by, found = "", []
    for event in events:
        payload = event.payload
        try:
            if event.kind == chain.RESERVED:
                runners[event.subject] = payload["request"]["runner"]
            elif event.kind == chain.RAISE_ASKED:
                asked[event.sequence] = payload
            elif event.kind == chain.REKEYED:
                rotated_by = payload["by"]
            if event.kind == chain.RAISED:
                payload = {**payload, "was": asked[payload["asked"]]["was"]}
            elif event.kind == chain.RELEASED:
                payload = {**payload, "commitment": event.subject.rpartition("-")[2]}  # as release ids end
            found.append((_by(event, runners, rotated_by), _words(event.kind, payload)))
        except (KeyError, TypeError, ValueError, AttributeError):
            found.append(("", UNREADABLE))
    return found


def _words(kind: str, payload: _Payload) -> str:
    if kind in _COMPOSED:
        words = _COMPOSED[kind](payload)
    else:
        words = _TEMPLATES.get(kind, "").format_map({**payload, "short": SHORT})
    return ": ".join(part for part in (words, str(payload.get("reason") or "")) if part)


def change_words(was: Mapping[str, float], cap: Mapping[str, float]) -> str:
    """A raise: `4 -> 5, delta 1e-05`."""
    epsilon, delta = (
        f"{was[name]:g}" if was[name] == cap[name] else f"{was[name]:g} -> {cap[name]:g}"
        for name in ("epsilon", "delta")
    )
    return f"{epsilon}, delta {delta}"


def whole_words(events: int, entries: int, last_at: str | None, dossiers: int) -> str:
    """The result of a verification without problems."""
    parts = [f"{_counted(events, entries)}, all as written"]
    if dossiers:
        parts.append(f"{dossiers} published dossier{' leads' if dossiers == 1 else 's lead'} into this chain")
    if last_at is not None:
        parts.append(f"last event {last_at[:16].replace('T', ' ')} UTC")
    return "; ".join(parts)


def broken_words(events: int, entries: int) -> str:
    """The result of a verification with problems, shown after them."""
    return f"FAIL: {_counted(events, entries)}, not as written"


def _counted(events: int, entries: int) -> str:
    return f"{events} event{'' if events == 1 else 's'} and {entries} entr{'y' if entries == 1 else 'ies'}"


def _by(event: ChainEvent, runners: Mapping[str, str], rotated_by: str) -> str:
    payload = event.payload
    if "by" in payload:
        return str(payload["by"])
    if event.kind == chain.BLOCKED:
        return str(payload["runner"])
    if event.kind == chain.RECOMMITTED:
        return rotated_by
    if event.kind in (chain.RESERVED, chain.STARTED, chain.SPENT, chain.AUDITED):
        return runners[event.subject]
    return runners[payload["entry"]] if event.kind in (chain.CANDIDATE, chain.RELEASED) else ""


def _raise(payload: _Payload) -> str:
    return change_words(payload["was"], payload["cap"])


def _bound(payload: _Payload) -> str:
    return f"attached to {payload['family']}, owners in {', '.join(payload['owner_columns'])}"


def _rekeyed(payload: _Payload) -> str:
    return f"key {payload['key_ids']['now'][-1]} added"


def _cost(request: _Payload, guarantee: _Payload) -> str:
    period = f"/{request['period']}" if request["period"] else ""
    return f"{request['dataset']}{period}: epsilon {guarantee['epsilon']:g}, delta {guarantee['delta']:.3g}"


def _related(payload: _Payload) -> str:
    return f"by lineage to {len(payload['related'])} entries, among others"


def _reserved(payload: _Payload) -> str:
    request, commitment, replaces = payload["request"], payload["commitment"], payload["replaces"]
    parts = [_cost(request, request["guarantee"])]
    if commitment is not None:
        parts.append(f"commitment {commitment[:SHORT]}")
    if replaces is not None:
        parts.append(f"again, after entry {replaces[:SHORT]}")
    return "; ".join(parts)


def _approved(payload: _Payload) -> str:
    withdrawn = payload.get("after_withdrawal")
    return f"although {withdrawn} was withdrawn" if withdrawn else ""


# Each event's reason follows its words.
_COMPOSED: dict[str, Callable[[_Payload], str]] = {
    chain.RAISE_ASKED: _raise,
    chain.RAISED: _raise,
    chain.BOUND: _bound,
    chain.REKEYED: _rekeyed,
    chain.RELATED: _related,
    chain.RESERVED: _reserved,
    chain.BLOCKED: lambda payload: _cost(payload, payload),
    chain.APPROVED: _approved,
}
_TEMPLATES = {
    chain.OPENED: "cap {cap[epsilon]:g}, delta {cap[delta]:g}; mode {mode}",
    chain.RECOMMITTED: "commitment {commitment:.{short}}",
    chain.SPENT: "model {model_digest:.{short}}",
    chain.WITHDRAWN: "candidate {candidate:.{short}}, entry {entry:.{short}}",
    chain.CANDIDATE: "waits for a decision; entry {entry:.{short}}",
    chain.AUDITED: "{verdict}; epsilon at least {epsilon_lower_bound:.2f}",
    chain.RELEASED: (
        "candidate {candidate:.{short}}, in the dossier by its commitment {commitment:.{short}}; entry {entry:.{short}}"
    ),
    chain.DECLARED_PUBLIC: "{namespace}:{name}",
    chain.DISTRUSTED: "lineage event {event} of the producer {source}",
    chain.PURGED: "{step}",
    "hold-lifted": "hold {hold}",
    "erased": "{owners} owners are erased now",
    "readmitted": "{owners} owners are erased now",
}
