"""Roles, what they allow, and whoever has them."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from dpsynth_platform.console.identity import Identity, SignedIn, acting, signed_in
from dpsynth_platform.console.roles import ALLOWED, ROLES, Action, actions_of
from dpsynth_platform.foundation.errors import NotAllowed, SignedOut

CHANGING = {Action.COMMENT, Action.DECIDE, Action.RAISE}


def test_each_role_has_its_actions() -> None:
    assert set(ALLOWED) == set(ROLES) == {"engineer", "reviewer", "auditor"}
    everybody = frozenset.intersection(*ALLOWED.values())
    assert everybody == {Action.READ, Action.READ_SPEND, Action.VERIFY}
    assert ALLOWED["engineer"] == everybody | {Action.COMMENT}
    assert ALLOWED["reviewer"] - everybody == {Action.READ_QUALITY, *CHANGING}
    assert ALLOWED["auditor"] - everybody == {Action.READ_QUALITY, Action.EXPORT}
    assert not CHANGING & ALLOWED["auditor"]
    assert actions_of(ROLES) == set(Action)
    assert actions_of(()) == frozenset()


def test_an_identity_is_held_to_its_roles() -> None:
    ann = Identity("Ann", frozenset({"engineer", "auditor"}), "password")
    assert ann.actions == ALLOWED["engineer"] | ALLOWED["auditor"]
    ann.check(Action.EXPORT)
    with pytest.raises(NotAllowed, match="decide: not for engineer, auditor; accepted: reviewer"):
        ann.check(Action.DECIDE)


def request_of(found: SignedIn | None) -> Request:
    return Request({"type": "http", "state": {} if found is None else {"signed_in": found}})


def test_who_acts_is_asked_again() -> None:
    was, now = (Identity("Ann", frozenset({role}), "password") for role in ("reviewer", "engineer"))
    request = request_of(SignedIn(was, "token", lambda: now))
    assert signed_in(request).identity is was
    assert acting(request, Action.VERIFY) is now
    with pytest.raises(NotAllowed):
        acting(request, Action.DECIDE)


def test_nobody_is_signed_out() -> None:
    for ask in (signed_in, lambda request: acting(request, Action.READ)):
        with pytest.raises(SignedOut, match="/sign-in"):
            ask(request_of(None))
