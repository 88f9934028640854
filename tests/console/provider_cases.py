"""A small OpenID Connect provider on this machine: it signs in whomever a test names, and errs as a test asks."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "dpsynth-console", "a client's secret & more"
BACK = "http://127.0.0.1:3900/sign-in/oidc/back"


def nothing(claims: dict[str, Any]) -> dict[str, Any]:
    """Changes nothing."""
    return claims


@dataclass
class Provider:
    """What it says, and how it signs.

    Attributes:
        person: claims of whoever signs in.
        change: what a test makes of an ID token's claims before it is signed.
        sign: with what.
        metadata: what a test says otherwise of the provider.
        asked: parameters of the last authorization request.
        exchanged: forms of the token requests.
    """

    url: str = ""
    person: dict[str, Any] = field(default_factory=dict)
    change: Callable[[dict[str, Any]], dict[str, Any]] = nothing
    sign: str = "RS256"
    metadata: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    exchanged: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "own", "use": "sig"})
        self.strange = RSAKey.generate_key(2048, {"kid": "own", "use": "sig"})
        self.codes: dict[str, dict[str, str]] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.describe),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/keys", self.keys),
            ]
        )

    async def describe(self, request: Request) -> Response:
        told = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return JSONResponse(told | self.metadata)

    async def authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        code = secrets.token_urlsafe(16)
        self.codes[code] = self.asked
        answer = {"code": code, "state": self.asked["state"]}
        return RedirectResponse(f"{self.asked['redirect_uri']}?{urlencode(answer)}", 303)

    async def keys(self, request: Request) -> Response:
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.exchanged.append(form)
        known = self.codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        right = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if (
            known is None
            or request.headers.get("authorization") != f"Basic {right}"
            or known.get("code_challenge_method") != "S256"
            or known["code_challenge"] != challenge
            or form["redirect_uri"] != known["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant", "error_description": "jane.doe@example.org"}, 400)
        now = int(time.time())
        claims = {"iss": self.url, "sub": "1", "aud": CLIENT, "iat": now, "exp": now + 600, "nonce": known["nonce"]}
        token = self.signed(self.change(claims | self.person))
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": token})

    def signed(self, claims: dict[str, Any]) -> str:
        match self.sign:
            case "none":
                parts = (b'{"alg":"none","kid":"own"}', json.dumps(claims).encode(), b"")
                return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
            case "HS256":
                return jwt.encode({"alg": "HS256", "kid": "own"}, claims, OctKey.import_key(SECRET * 2))
            case "strange":
                return jwt.encode({"alg": "RS256", "kid": "own"}, claims, self.strange)
            case "unknown":
                return jwt.encode({"alg": "RS256", "kid": "other"}, claims, self.strange)
            case "damaged":
                return jwt.encode({"alg": "RS256", "kid": "own"}, claims, self.key)[:-43] + "A" * 43
            case "nothing":
                return ""
        return jwt.encode({"alg": "RS256", "kid": "own"}, claims, self.key)


@contextmanager
def running(provider: Provider) -> Iterator[None]:
    """Serves the provider on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(provider.app(), port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    provider.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield
    server.should_exit = True
    thread.join()
