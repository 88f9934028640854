"""Identity from a proxy in front of the console, which reports in headers who signed in.

What belongs here: when such headers are trusted. What does not: how the proxy authenticates people.

They are trusted if the connection comes from the proxy's address *and* carries the secret that only the proxy knows.
Any other request with one of these headers is refused: ignoring it would hide an attack or a misconfigured proxy.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers

from dpsynth_platform.console.configuration import ConsoleSettings, Proxy
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.problems import Problem
from dpsynth_platform.console.sessions import equal_secrets
from dpsynth_platform.console.users import checked_name
from dpsynth_platform.foundation.errors import ConfigurationError

PROXY = "proxy"
USUAL_HEADERS = tuple(Proxy.model_fields[name].default for name in ("name_header", "roles_header", "secret_header"))


def identity_from_proxy(console: ConsoleSettings, headers: Headers, address: str) -> Identity | None:
    """The identity that the proxy claims for a connection from `address`; None if no header claims one.

    Raises `Problem` if such headers are not the proxy's, are incomplete, or give no role.
    """
    proxy = console.proxy
    named = {*USUAL_HEADERS, *(proxy.headers if proxy else ())}
    if not any(name in headers for name in named):
        return None
    if proxy is None or any(name in headers for name in named - set(proxy.headers)):
        raise _forged()
    secrets = headers.getlist(proxy.secret_header)
    right = len(secrets) == 1 and equal_secrets(secrets[0], console.proxy_secret)
    if not (right and _comes_from(proxy, address)):
        raise _forged()
    names, groups = headers.getlist(proxy.name_header), headers.getlist(proxy.roles_header)
    if len(names) != 1 or len(groups) > 1:
        raise Problem(401, "proxy-header", f"accepted: {proxy.name_header} once, and {proxy.roles_header} once")
    try:
        # Headers are decoded as Latin-1, but the proxy sends UTF-8.
        name = checked_name(names[0].encode("latin-1").decode(), proxy.name_header)
        wanted = [part.strip() for part in "".join(groups).encode("latin-1").decode().split(",")]
    except (ConfigurationError, UnicodeError):
        raise Problem(401, "proxy-header", f"{proxy.name_header}: accepted: a name in UTF-8, on one line") from None
    roles = proxy.roles_of(wanted)
    if not roles:
        raise Problem(403, "no-role", "signed in, but none of your groups has a role at this console")
    return Identity(name, roles, PROXY)


def _comes_from(proxy: Proxy, address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in ipaddress.ip_network(network) for network in proxy.addresses)


def _forged() -> Problem:
    return Problem(401, "forged-header", "this request claims an identity that only the console's proxy may give")
