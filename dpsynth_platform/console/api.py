"""The console's REST API: all that the pages show and do, for programs.

What belongs here: addresses, parameters, and the actions that each needs. What does not: what is told (`views`), and
who may come in (`access`). Every answer that is no success is problem JSON.

Programs sign in as browsers do, or come through the trusted proxy. What changes something needs the header
`X-CSRF-Token` with what `GET /api/v1/session` tells, and an `Origin` of the console's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from dpsynth_platform.console.identity import signed_in
from dpsynth_platform.console.roles import ROLES, Action, Role
from dpsynth_platform.settings import Settings

PREFIX = "/api/v1"


@dataclass(frozen=True)
class Session:
    """Who is signed in.

    Attributes:
        csrf: what the header X-CSRF-Token must hold where something is changed.
    """

    name: str
    roles: list[Role]
    how: str
    actions: list[Action]
    csrf: str


def router(settings: Settings) -> APIRouter:
    """The addresses of a deployment's console."""
    api = APIRouter(prefix=PREFIX)

    @api.get("/session", summary="Who is signed in, and what they may do")
    def session(request: Request) -> Session:
        here = signed_in(request)
        who = here.identity
        return Session(
            name=who.name,
            roles=[role for role in ROLES if role in who.roles],
            how=who.how,
            actions=[action for action in Action if who.may(action)],
            csrf=here.csrf,
        )

    return api
