"""Signing in through an OpenID Connect provider: the code flow with PKCE, by Authlib.

What belongs here: sending somebody to the provider, and what to believe when they come back. What does not: sessions
and cookies (`sign_in`), and which roles follow from which groups (`configuration`).

Believed is only what the provider signed for this console and this very sign-in: `state` must be one that was given to
this browser and not used yet, the code is exchanged with the verifier that only the console has, and the ID token must
bear the provider's signature by a key that it publishes, its name, this client's, the nonce, and a time that is now. Of
the provider's words nothing is logged or shown.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from dpsynth_platform.console.configuration import Oidc, is_protected
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.problems import Problem
from dpsynth_platform.console.sessions import handle_of
from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import checked_name
from dpsynth_platform.foundation.errors import ConfigurationError

OIDC = "oidc"
WAY_SECONDS = 600.0
"""How long somebody may be away at the provider."""
_KNOWN_SECONDS = 600.0
_ANSWER_SECONDS = 10.0
_CLOCK_SKEW = 60
_MOST_AWAY = 5000
# Signatures by a key that only the provider has: none made with the client's secret, and not "none".
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")

_log = logging.getLogger(__name__)


class Provider:
    """A provider, as one console uses it.

    Args:
        oidc: what is configured of it.
        secret: the client's, or nothing.
        back: the console's address to which it sends people back.
        store: where those are noted who are away.
        clock: seconds of the epoch.
    """

    def __init__(
        self, oidc: Oidc, secret: str, back: str, store: Store, clock: Callable[[], float] = time.time
    ) -> None:
        self._oidc = oidc
        self._secret = secret
        self._back = back
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, Mapping[str, Any]] | None = None

    def departure(self, browser: str, onward: str) -> str:
        """The provider's address for one sign-in.

        Args:
            browser: a secret that a cookie of the browser holds.
            onward: where to go afterwards.

        Raises:
            Problem: the provider does not answer as it should.
        """
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        with self._client() as client:
            address, _ = client.create_authorization_url(
                self._metadata(client)["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        now = self._clock()
        with self._store.write() as connection:
            connection.execute("DELETE FROM departure WHERE began < ?", (now - WAY_SECONDS,))
            connection.execute(
                "DELETE FROM departure WHERE state IN "
                "(SELECT state FROM departure ORDER BY began DESC LIMIT -1 OFFSET ?)",
                (_MOST_AWAY,),
            )
            connection.execute(
                "INSERT INTO departure VALUES (?, ?, ?, ?, ?, ?)",
                (handle_of(state), handle_of(browser), nonce, verifier, onward, now),
            )
        return str(address)

    def arrival(self, browser: str, answer: Sequence[tuple[str, str]]) -> tuple[Identity, str]:
        """Who came back, and where they want to go.

        Args:
            browser: what the cookie holds.
            answer: the parameters that the provider gave the browser.

        Raises:
            Problem: they are not what one sign-in of this browser leads to, or nobody who has a role here.
        """
        told = dict(answer)
        nonce, verifier, onward = self._departed(told.get("state", ""), browser)
        if len(told) != len(answer) or "code" not in told:
            raise Problem(403, "provider-refused", "the provider did not sign you in; try again, or ask who runs it")
        with self._client() as client:
            metadata = self._metadata(client)
            named = told.get("iss")
            if named not in (None, self._oidc.issuer) or (
                named is None and metadata.get("authorization_response_iss_parameter_supported") is True
            ):
                raise _unbelievable("iss")
            claims = self._claims(client, metadata, told["code"], verifier, nonce)
        return self._identity(claims), onward

    def _departed(self, state: str, browser: str) -> tuple[str, str, str]:
        """What was noted at the departure, which is forgotten now. Raises `Problem`."""
        with self._store.write() as connection:
            row = connection.execute(
                "DELETE FROM departure WHERE state = ? RETURNING browser, nonce, verifier, next, began",
                (handle_of(state),),
            ).fetchone()
        if row is None or row[0] != handle_of(browser) or not 0 <= self._clock() - row[4] <= WAY_SECONDS:
            raise Problem(403, "sign-in-lost", "this sign-in was not begun here, or too long ago; begin at /sign-in")
        return row[1], row[2], row[3]

    def _client(self) -> Any:
        return OAuth2Client(
            client_id=self._oidc.client_id,
            client_secret=self._secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            scope=" ".join(self._oidc.scopes),
            redirect_uri=self._back,
            code_challenge_method="S256",
            timeout=_ANSWER_SECONDS,
        )

    def _metadata(self, client: Any) -> Mapping[str, Any]:
        """What the provider says of itself, asked for anew from time to time. Raises `Problem`."""
        with self._lock:
            if self._known is None or not 0 <= self._clock() - self._known[0] < _KNOWN_SECONDS:
                self._known = self._clock(), self._checked(_fetched(client, self._oidc.described_at))
            return self._known[1]

    def _checked(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        if metadata.get("issuer") != self._oidc.issuer:
            raise _unbelievable("issuer")
        for name in _ENDPOINTS:
            url = metadata.get(name)
            if not (isinstance(url, str) and is_protected(url)):
                raise _unbelievable(name)
        return metadata

    def _claims(
        self, client: Any, metadata: Mapping[str, Any], code: str, verifier: str, nonce: str
    ) -> Mapping[str, Any]:
        """The claims of the ID token that a code stands for. Raises `Problem`."""
        try:
            token = client.fetch_token(
                metadata["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=verifier
            )
            keys = KeySet.import_key_set(cast("Any", _fetched(client, metadata["jwks_uri"])))
            decoded = jwt.decode(
                token.get("id_token") or "",
                keys,
                registry=JWSRegistry(algorithms=_ALGORITHMS, strict_check_header=False),
            )
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": self._oidc.issuer},
                    "aud": {"essential": True, "value": self._oidc.client_id},
                },
                {"nonce": nonce, "client_id": self._oidc.client_id, "access_token": token.get("access_token")},
            )
            claims.validate(leeway=_CLOCK_SKEW)
        except OAuthError:
            _log.warning("sign-in: the provider refused the code")
            raise Problem(403, "provider-refused", "the provider did not sign you in; try again") from None
        except httpx2.HTTPError:
            raise _silent() from None
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unbelievable(type(error).__name__) from None
        return dict(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        """Raises `Problem` where the claims name nobody, or give no role."""
        name, groups = claims.get(self._oidc.name_claim), claims.get(self._oidc.roles_claim)
        if self._oidc.name_claim == "email" and claims.get("email_verified") is not True:
            raise Problem(403, "no-name", "the provider does not say that your e-mail address is yours")
        try:
            known = checked_name(name if isinstance(name, str) else "", self._oidc.name_claim)
        except ConfigurationError:
            raise Problem(403, "no-name", "the provider gives you no name that can be recorded") from None
        having = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        roles = self._oidc.roles_of(item for item in having if isinstance(item, str))
        if not roles:
            raise Problem(403, "no-role", "signed in, but none of your groups has a role at this console")
        return Identity(known, roles, OIDC)


def _fetched(client: Any, url: str) -> dict[str, Any]:
    """A JSON object. Raises `Problem`."""
    try:
        response = client.request("GET", url, withhold_token=True)
        response.raise_for_status()
        found = response.json()
    except httpx2.HTTPError:
        raise _silent() from None
    except ValueError:
        raise _unbelievable("JSON") from None
    if not isinstance(found, dict):
        raise _unbelievable("JSON")
    return found


def _silent() -> Problem:
    _log.warning("sign-in: the provider does not answer")
    return Problem(502, "provider-silent", "the provider does not answer; try again later")


def _unbelievable(what: str) -> Problem:
    """What is wrong is told in the log by a word of ours or an error's type, for whoever configures the provider."""
    _log.warning("sign-in: the provider's answer is not acceptable: %s", what)
    return Problem(502, "provider-answer", "the provider's answer is not acceptable; the console's log says where")
