"""Signing in and out: the form with name and password, the way through an OpenID Connect provider, and the end.

What belongs here: those addresses, and where somebody goes afterwards. What does not: the gate (`access`), whether a
password is right (`users`), and what a provider says (`oidc`).

The form is protected like every other, though nobody is signed in yet: it carries a random text that a cookie of the
same browser holds too, so that no other page can sign somebody in as somebody else.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dpsynth_platform.console import access
from dpsynth_platform.console.access import Desk
from dpsynth_platform.console.identity import Identity, signed_in
from dpsynth_platform.console.oidc import Provider
from dpsynth_platform.console.pages.sign_in import sign_in_page
from dpsynth_platform.console.problems import Problem
from dpsynth_platform.console.sessions import handle_of, same
from dpsynth_platform.foundation.errors import SignedOut
from dpsynth_platform.foundation.people import person_key

START_SECONDS = 600
"""How long a sign-in may take from its page to its end."""
_LONGEST_ADDRESS = 2000
_ONWARD = re.compile(r"/(?![/\\])[!-\[\]-~]*")
_WRONG = "That name and password do not belong together."

_log = logging.getLogger(__name__)


def routes() -> list[Route]:
    """The addresses."""
    return [
        Route(access.SIGN_IN, _page, methods=["GET"]),
        Route(access.SIGN_IN, _password, methods=["POST"]),
        Route(access.SIGN_OUT, _sign_out, methods=["POST"]),
        Route(access.OIDC_START, _to_provider, methods=["GET"]),
        Route(access.OIDC_BACK, _from_provider, methods=["GET"]),
    ]


def onward(text: str) -> str:
    """Where to go after the sign-in: the address that was asked for if it is one of the console's pages, else `/`."""
    pages = _ONWARD.fullmatch(text) is not None and len(text) <= _LONGEST_ADDRESS
    return text if pages and not text.startswith((access.API, access.SIGN_IN, access.SIGN_OUT)) else "/"


async def _page(request: Request) -> Response:
    """The form; whoever is signed in already goes on."""
    target = onward(request.query_params.get("next", ""))
    try:
        signed_in(request)
    except SignedOut:
        return _shown(request, target)
    return RedirectResponse(target, status_code=303)


async def _password(request: Request) -> Response:
    desk = _desk(request)
    if not desk.console.local:
        raise Problem(404, "no-local-users", "nobody signs in here with a password")
    form = await _form(request)
    target = onward(form.get("next", ""))
    kept = request.cookies.get(_start_cookie(desk), "")
    if not (kept and same(kept, form.get("csrf", ""))):
        return _shown(request, target, "This page was open for too long. Please try again.", 403)
    name, password = form.get("name", ""), form.get("password", "")
    key, address = person_key(name), request.client.host if request.client else ""
    wait = desk.attempts.begin(key, address)
    if wait:
        _log.warning("sign-in: too many tries")
        response = _shown(
            request, target, f"Too many tries. Please wait {math.ceil(wait / 60)} minutes, then try again.", 429
        )
        response.headers["Retry-After"] = str(math.ceil(wait))
        return response
    async with desk.hashing:
        found = await run_in_threadpool(desk.users.verified, name, password)
    if found is None:
        _log.warning("sign-in: refused")
        return _shown(request, target, _WRONG, 403)
    desk.attempts.succeeded(key, address)
    try:
        return await _let_in(request, found.identity, target, found.changed)
    except SignedOut:  # their password or roles were changed just now
        _log.warning("sign-in: refused")
        return _shown(request, target, _WRONG, 403)


async def _sign_out(request: Request) -> Response:
    desk, form = _desk(request), await _form(request)
    here = signed_in(request)
    if not same(form.get("csrf", ""), here.csrf):
        raise Problem(403, "csrf", "accepted: from the console's own page")
    await run_in_threadpool(desk.sessions.end, here.handle)
    response = RedirectResponse(access.SIGN_IN, status_code=303)
    response.delete_cookie(desk.cookie, path="/", secure=desk.console.secure, httponly=True, samesite="lax")
    return response


async def _to_provider(request: Request) -> Response:
    desk, provider = _desk(request), _provider(request)
    browser = secrets.token_urlsafe(32)
    target = onward(request.query_params.get("next", ""))
    async with desk.asking:
        address = await run_in_threadpool(provider.departure, browser, target)
    response = RedirectResponse(address, status_code=303)
    desk.keep(response, _start_cookie(desk), browser, START_SECONDS)
    return response


async def _from_provider(request: Request) -> Response:
    desk, provider = _desk(request), _provider(request)
    browser = request.cookies.get(_start_cookie(desk), "")
    async with desk.asking:
        identity, target = await run_in_threadpool(provider.arrival, browser, request.query_params.multi_items())
    return await _let_in(request, identity, target)


async def _let_in(request: Request, identity: Identity, target: str, changed: str | None = None) -> Response:
    """A new session, whatever there was before; and the way on. Raises `SignedOut` like `Sessions.begin`."""
    desk = _desk(request)
    before = request.cookies.get(desk.cookie, "")
    if before:
        await run_in_threadpool(desk.sessions.end, handle_of(before))
    token = await run_in_threadpool(desk.sessions.begin, identity, changed)
    _log.info("sign-in: by %s", identity.how)
    response = RedirectResponse(target, status_code=303)
    desk.keep(response, desk.cookie, token)
    response.delete_cookie(_start_cookie(desk), path="/", secure=desk.console.secure, httponly=True, samesite="lax")
    return response


def _shown(request: Request, target: str, error: str = "", status: int = 200) -> Response:
    """The page with its form, and a new text to protect that."""
    desk, text = _desk(request), secrets.token_urlsafe(32)
    console = desk.console
    page = sign_in_page(
        csrf=text,
        onward=target,
        error=error,
        passwords=console.local,
        provider=console.oidc.name if console.oidc else None,
    )
    response = HTMLResponse(page, status)
    desk.keep(response, _start_cookie(desk), text, START_SECONDS)
    return response


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; of one that comes twice the last. Raises `Problem`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem(415, "content-type", "accepted: application/x-www-form-urlencoded")
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise Problem(400, "form", "accepted: a form in UTF-8") from None


def _start_cookie(desk: Desk) -> str:
    return f"{desk.cookie}-start"


def _provider(request: Request) -> Provider:
    provider = _desk(request).provider
    if provider is None:
        raise Problem(404, "no-provider", "nobody signs in here through a provider")
    return provider


def _desk(request: Request) -> Desk:
    desk: Desk = request.state.desk
    return desk
