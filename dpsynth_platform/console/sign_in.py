"""Sign-in and sign-out: the form with name and password, and the OpenID Connect provider.

What belongs here: those addresses, and the redirects. What does not: access control (`access`), checking a password
(`users`), and what a provider says (`oidc`).

The form has CSRF protection although there is no session yet: it carries a random text that is also in a cookie of the
browser. So no other site can sign a person in under another name.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dpsynth_platform.console import access
from dpsynth_platform.console.access import AccessServices
from dpsynth_platform.console.identity import Identity, signed_in
from dpsynth_platform.console.oidc import Provider
from dpsynth_platform.console.pages.markup import ICON, PRODUCT, render, stylesheet
from dpsynth_platform.console.problems import Problem
from dpsynth_platform.console.sessions import equal_secrets, handle_of
from dpsynth_platform.foundation.errors import SignedOut
from dpsynth_platform.foundation.people import person_key

START_SECONDS = 600
"""Longest time from the sign-in page to the end of the sign-in."""
_LONGEST_ADDRESS = 2000
_ONWARD = re.compile(r"/(?![/\\])[!-\[\]-~]*")
_WRONG = "Wrong name or password."

_log = logging.getLogger(__name__)


def routes() -> list[Route]:
    """The routes of the sign-in."""
    return [
        Route(access.SIGN_IN, _page, methods=["GET"]),
        Route(access.SIGN_IN, _password, methods=["POST"]),
        Route(access.SIGN_OUT, _sign_out, methods=["POST"]),
        Route(access.OIDC_START, _to_provider, methods=["GET"]),
        Route(access.OIDC_BACK, _from_provider, methods=["GET"]),
    ]


def onward(text: str) -> str:
    """The address after the sign-in: the requested one if it is a page of the console, else `/`."""
    pages = _ONWARD.fullmatch(text) is not None and len(text) <= _LONGEST_ADDRESS
    return text if pages and not text.startswith((access.API, access.SIGN_IN, access.SIGN_OUT)) else "/"


def sign_in_page(
    *, csrf: str, onward: str, error: str = "", passwords: bool = True, provider: str | None = None
) -> str:
    """The sign-in page: plain HTML without script, widget or websocket, since those need a session.

    `onward` is the address after the sign-in; `error` must contain no detail that helps an attacker.
    """
    return render(
        "sign_in.html.j2",
        product=PRODUCT,
        icon=quote(ICON),
        style=stylesheet(),
        csrf=csrf,
        onward=onward,
        error=error,
        passwords=passwords,
        provider=provider,
    )


async def _page(request: Request) -> Response:
    """The form, or a redirect for a person who is signed in already."""
    target = onward(request.query_params.get("next", ""))
    try:
        signed_in(request)
    except SignedOut:
        return _shown(request, target)
    return RedirectResponse(target, status_code=303)


async def _password(request: Request) -> Response:
    services = _services(request)
    if not services.console.local:
        raise Problem(404, "no-local-users", "this console has no local users; accepted: the provider or the proxy")
    form = await _form(request)
    target = onward(form.get("next", ""))
    kept = request.cookies.get(_start_cookie(services), "")
    if not (kept and equal_secrets(kept, form.get("csrf", ""))):
        return _shown(request, target, "This page was open for too long. Please try again.", 403)
    name, password = form.get("name", ""), form.get("password", "")
    key, address = person_key(name), request.client.host if request.client else ""
    wait = services.attempts.begin(key, address)
    if wait:
        _log.warning("sign-in: too many attempts")
        minutes = math.ceil(wait / 60)
        response = _shown(request, target, f"Too many attempts. Please wait {minutes} minutes, then try again.", 429)
        response.headers["Retry-After"] = str(math.ceil(wait))
        return response
    async with services.hashing:
        found = await run_in_threadpool(services.users.verified, name, password)
    if found is None:
        _log.warning("sign-in: refused")
        return _shown(request, target, _WRONG, 403)
    services.attempts.succeeded(key, address)
    try:
        return await _let_in(request, found.identity, target, found.changed)
    except SignedOut:  # the password or the roles have just changed
        _log.warning("sign-in: refused")
        return _shown(request, target, _WRONG, 403)


async def _sign_out(request: Request) -> Response:
    services, form = _services(request), await _form(request)
    session = signed_in(request)
    if not equal_secrets(form.get("csrf", ""), session.csrf):
        raise Problem(403, "csrf", "accepted: from the console's own page")
    await run_in_threadpool(services.sessions.end, session.handle)
    response = RedirectResponse(access.SIGN_IN, status_code=303)
    services.delete_cookie(response, services.cookie)
    return response


async def _to_provider(request: Request) -> Response:
    services, provider = _services(request), _provider(request)
    browser = secrets.token_urlsafe(32)
    target = onward(request.query_params.get("next", ""))
    async with services.asking:
        address = await run_in_threadpool(provider.begin, browser, target)
    response = RedirectResponse(address, status_code=303)
    services.set_cookie(response, _start_cookie(services), browser, START_SECONDS)
    return response


async def _from_provider(request: Request) -> Response:
    services, provider = _services(request), _provider(request)
    browser = request.cookies.get(_start_cookie(services), "")
    async with services.asking:
        identity, target = await run_in_threadpool(provider.complete, browser, request.query_params.multi_items())
    return await _let_in(request, identity, target)


async def _let_in(request: Request, identity: Identity, target: str, changed: str | None = None) -> Response:
    """Ends any earlier session, begins a new one, and redirects. Raises `SignedOut` like `Sessions.begin`."""
    services = _services(request)
    before = request.cookies.get(services.cookie, "")
    if before:
        await run_in_threadpool(services.sessions.end, handle_of(before))
    token = await run_in_threadpool(services.sessions.begin, identity, changed)
    _log.info("sign-in: by %s", identity.how)
    response = RedirectResponse(target, status_code=303)
    services.set_cookie(response, services.cookie, token)
    services.delete_cookie(response, _start_cookie(services))
    return response


def _shown(request: Request, target: str, error: str = "", status: int = 200) -> Response:
    services, text = _services(request), secrets.token_urlsafe(32)
    console = services.console
    page = sign_in_page(
        csrf=text,
        onward=target,
        error=error,
        passwords=console.local,
        provider=console.oidc.name if console.oidc else None,
    )
    response = HTMLResponse(page, status)
    services.set_cookie(response, _start_cookie(services), text, START_SECONDS)
    return response


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, the last value of a repeated one. Raises `Problem`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem(415, "content-type", "accepted: application/x-www-form-urlencoded")
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise Problem(400, "form", "accepted: a form in UTF-8") from None


def _start_cookie(services: AccessServices) -> str:
    return f"{services.cookie}-start"


def _provider(request: Request) -> Provider:
    provider = _services(request).provider
    if provider is None:
        raise Problem(404, "no-provider", "this console has no OpenID Connect provider; sign in at /sign-in")
    return provider


def _services(request: Request) -> AccessServices:
    services: AccessServices = request.state.services
    return services
