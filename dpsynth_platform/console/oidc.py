"""Signing in through an OpenID Connect provider: the code flow with PKCE, by Authlib.

What belongs here: the redirect to the provider, and checking its answer. What does not: sessions and cookies
(`sign_in`), and the roles of groups (`configuration`).

An answer is trusted only if the provider signed it for this console and this sign-in: `state` was issued to this
browser and is unused; the code is exchanged with the console's verifier; the ID token has a signature by a published
key of the provider, its issuer, this client as audience, the nonce, and a present time. No text from the provider is
logged or shown.
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
"""Longest time that a person may spend at the provider."""
_KNOWN_SECONDS = 600.0
_ANSWER_SECONDS = 10.0
_CLOCK_SKEW = 60
_MOST_AWAY = 5000
# Signatures by a key that only the provider has; not HMAC with the client's secret, and not "none".
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")

_log = logging.getLogger(__name__)


class Provider:
    """A provider, as one console uses it; people return to the address `back`.

    The client's `secret` is empty for a public client. `store` keeps open sign-ins; `clock` gives seconds since the
    epoch.
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

    def begin(self, browser: str, onward: str) -> str:
        """The provider's address for one sign-in. Raises `Problem` if the provider gives no acceptable answer.

        `browser` is a secret that a cookie of the browser holds; `onward` is the address after the sign-in.
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

    def complete(self, browser: str, answer: Sequence[tuple[str, str]]) -> tuple[Identity, str]:
        """The identity of the returning person, and their address after the sign-in.

        `browser` is what the cookie holds, and `answer` are the parameters that the provider gave the browser. Raises
        `Problem` if they do not belong to a sign-in of this browser, or the person has no role here.
        """
        parameters = dict(answer)
        nonce, verifier, onward = self._open_sign_in(parameters.get("state", ""), browser)
        if len(parameters) != len(answer) or "code" not in parameters:
            raise Problem(403, "provider-refused", "the provider did not sign you in; try again, or ask who runs it")
        with self._client() as client:
            metadata = self._metadata(client)
            named = parameters.get("iss")
            if named not in (None, self._oidc.issuer) or (
                named is None and metadata.get("authorization_response_iss_parameter_supported") is True
            ):
                raise _unacceptable("iss")
            claims = self._claims(client, metadata, parameters["code"], verifier, nonce)
        return self._identity(claims), onward

    def _open_sign_in(self, state: str, browser: str) -> tuple[str, str, str]:
        """Nonce, verifier and next address of an open sign-in, which is deleted. Raises `Problem`."""
        with self._store.write() as connection:
            row = connection.execute(
                "DELETE FROM departure WHERE state = ? RETURNING browser, nonce, verifier, next, began",
                (handle_of(state),),
            ).fetchone()
        if row is None or row[0] != handle_of(browser) or not 0 <= self._clock() - row[4] <= WAY_SECONDS:
            raise Problem(403, "sign-in-lost", "this sign-in was not begun here, or too long ago; sign in at /sign-in")
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
        """The provider's metadata, cached for some minutes. Raises `Problem`."""
        with self._lock:
            if self._known is None or not 0 <= self._clock() - self._known[0] < _KNOWN_SECONDS:
                self._known = self._clock(), self._checked(_fetched(client, self._oidc.metadata_url))
            return self._known[1]

    def _checked(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        if metadata.get("issuer") != self._oidc.issuer:
            raise _unacceptable("issuer")
        for name in _ENDPOINTS:
            url = metadata.get(name)
            if not (isinstance(url, str) and is_protected(url)):
                raise _unacceptable(name)
        return metadata

    def _claims(
        self, client: Any, metadata: Mapping[str, Any], code: str, verifier: str, nonce: str
    ) -> Mapping[str, Any]:
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
            raise _no_answer() from None
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unacceptable(type(error).__name__) from None
        return dict(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        """Raises `Problem` if the claims contain no name or no role."""
        name, groups = claims.get(self._oidc.name_claim), claims.get(self._oidc.roles_claim)
        if self._oidc.name_claim == "email" and claims.get("email_verified") is not True:
            raise Problem(403, "no-name", "the provider has not verified your e-mail address")
        try:
            known = checked_name(name if isinstance(name, str) else "", self._oidc.name_claim)
        except ConfigurationError:
            raise Problem(403, "no-name", "the provider reports no name that can be recorded") from None
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
        raise _no_answer() from None
    except ValueError:
        raise _unacceptable("JSON") from None
    if not isinstance(found, dict):
        raise _unacceptable("JSON")
    return found


def _no_answer() -> Problem:
    _log.warning("sign-in: the provider does not answer")
    return Problem(502, "provider-silent", "the provider does not answer; try again later")


def _unacceptable(what: str) -> Problem:
    """Logs the wrong part by a word of ours or an error's type, for the person who configures the provider."""
    _log.warning("sign-in: the provider's answer is not acceptable: %s", what)
    return Problem(502, "provider-answer", "the provider's answer is not acceptable; the console's log says where")
