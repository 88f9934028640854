"""The ledger's events and findings in words, for people who read the chain.

What belongs here: who did an event and what it says, in one line each. What does not: reading the chain (`ledger`) and
showing it (`cli`, `ledger_command`). Stored events stay as they are; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent

SHORT = 12
UNREADABLE = "cannot be read; see: dpsynth ledger verify"

_Payload = Mapping[str, Any]


def in_words(events: Sequence[ChainEvent]) -> list[tuple[str, str]]:
    """By whom each event is, and what it says. Wants the whole chain: an event's words may rest on earlier ones."""
    runners: dict[str, str] = {}  # of each entry
    asked: dict[int, _Payload] = {}
    rotated_by, told = "", []
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
            words = _WORDS.get(event.kind, _reason)(payload)
            told.append((_by(event, runners, rotated_by), words))
        except (KeyError, TypeError, ValueError, AttributeError):
            told.append(("", UNREADABLE))
    return told


def change_words(was: Mapping[str, float], cap: Mapping[str, float]) -> str:
    """A raise: `4 -> 5, delta 1e-05`."""
    epsilon, delta = (
        f"{was[name]:g}" if was[name] == cap[name] else f"{was[name]:g} -> {cap[name]:g}"
        for name in ("epsilon", "delta")
    )
    return f"{epsilon}, delta {delta}"


def whole_words(events: int, entries: int, last_at: str | None, dossiers: int) -> str:
    """What a verification says of a ledger in which it found no problem."""
    parts = [f"{_counted(events, entries)}, all as written"]
    if dossiers:
        parts.append(f"{dossiers} published dossier{' leads' if dossiers == 1 else 's lead'} into this chain")
    if last_at is not None:
        parts.append(f"last event {last_at[:16].replace('T', ' ')} UTC")
    return "; ".join(parts)


def broken_words(events: int, entries: int) -> str:
    """What a verification says of a ledger in which it found problems, after these."""
    return f"{_counted(events, entries)}: NOT as it was written"


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


def _reason(payload: _Payload) -> str:
    return str(payload.get("reason") or "")


def _with_reason(words: str, payload: _Payload) -> str:
    return f"{words}: {payload['reason']}" if payload.get("reason") else words


def _opened(payload: _Payload) -> str:
    cap = payload["cap"]
    return f"cap {cap['epsilon']:g}, delta {cap['delta']:g}; mode {payload['mode']}"


def _raise(payload: _Payload) -> str:
    return _with_reason(change_words(payload["was"], payload["cap"]), payload)


def _bound(payload: _Payload) -> str:
    return f"attached to {payload['family']}, owners in {', '.join(payload['owner_columns'])}"


def _rekeyed(payload: _Payload) -> str:
    return _with_reason(f"key {payload['key_ids']['now'][-1]} added", payload)


def _recommitted(payload: _Payload) -> str:
    return f"commitment {payload['commitment'][:SHORT]}"


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


def _blocked(payload: _Payload) -> str:
    return _with_reason(_cost(payload, payload), payload)


def _spent(payload: _Payload) -> str:
    return f"model {payload['model_digest'][:SHORT]}"


def _released(payload: _Payload) -> str:
    candidate, commitment, entry = (payload[name][:SHORT] for name in ("candidate", "commitment", "entry"))
    return f"candidate {candidate}, in the dossier by its commitment {commitment}; entry {entry}"


def _candidate(payload: _Payload) -> str:
    return f"waits for a decision; entry {payload['entry'][:SHORT]}"


def _audited(payload: _Payload) -> str:
    return f"{payload['verdict']}; epsilon at least {payload['epsilon_lower_bound']:.2f}"


def _withdrawn(payload: _Payload) -> str:
    return _with_reason(f"candidate {payload['candidate'][:SHORT]}, entry {payload['entry'][:SHORT]}", payload)


def _approved(payload: _Payload) -> str:
    again = payload.get("after_withdrawal")
    return _with_reason(f"although {again} was withdrawn", payload) if again else _reason(payload)


def _declared(payload: _Payload) -> str:
    return _with_reason(f"{payload['namespace']}:{payload['name']}", payload)


def _distrusted(payload: _Payload) -> str:
    return _with_reason(f"lineage event {payload['event']} of the producer {payload['source']}", payload)


def _purged(payload: _Payload) -> str:
    return _with_reason(str(payload["step"]), payload)


def _lifted(payload: _Payload) -> str:
    return _with_reason(f"hold {payload['hold']}", payload)


def _erased(payload: _Payload) -> str:
    return _with_reason(f"{payload['owners']} owners are erased now", payload)


_WORDS: dict[str, Callable[[_Payload], str]] = {
    chain.OPENED: _opened,
    chain.RAISE_ASKED: _raise,
    chain.RAISED: _raise,
    chain.BOUND: _bound,
    chain.REKEYED: _rekeyed,
    chain.RECOMMITTED: _recommitted,
    chain.RELATED: _related,
    chain.RESERVED: _reserved,
    chain.BLOCKED: _blocked,
    chain.SPENT: _spent,
    chain.APPROVED: _approved,
    chain.WITHDRAWN: _withdrawn,
    chain.CANDIDATE: _candidate,
    chain.AUDITED: _audited,
    chain.RELEASED: _released,
    chain.DECLARED_PUBLIC: _declared,
    chain.DISTRUSTED: _distrusted,
    chain.PURGED: _purged,
    "hold-lifted": _lifted,
    "erased": _erased,
    "readmitted": _erased,
}
