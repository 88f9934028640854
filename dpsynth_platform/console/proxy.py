"""Being signed in by a proxy in front of the console, which says in headers who somebody is.

What belongs here: when such headers are believed. What does not: what the proxy does to find out.

They are believed where the connection comes from the proxy's address *and* carries the secret that only the proxy
knows. Any other request that has one of them is refused: whoever sends it claims to be somebody, and to pass over the
claim in silence would hide an attack, or a proxy that is configured wrongly.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers

from dpsynth_platform.console.configuration import ConsoleSettings, Proxy
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.problems import Problem
from dpsynth_platform.console.sessions import same
from dpsynth_platform.console.users import checked_name
from dpsynth_platform.foundation.errors import ConfigurationError

PROXY = "proxy"
USUAL_HEADERS = tuple(Proxy.model_fields[name].default for name in ("name_header", "roles_header", "secret_header"))


def told_by_proxy(console: ConsoleSettings, headers: Headers, address: str) -> Identity | None:
    """Whom the proxy says somebody to be; None where no header claims anything.

    Args:
        address: of the connection's other end.

    Raises:
        Problem: headers claim something and are not the proxy's, or are incomplete, or give no role.
    """
    proxy = console.proxy
    named = {*USUAL_HEADERS, *(proxy.headers if proxy else ())}
    if not any(name in headers for name in named):
        return None
    if proxy is None or any(name in headers for name in named - set(proxy.headers)):
        raise _forged()
    secrets = headers.getlist(proxy.secret_header)
    right = len(secrets) == 1 and same(secrets[0], console.proxy_secret)
    if not (right and _comes_from(proxy, address)):
        raise _forged()
    names, groups = headers.getlist(proxy.name_header), headers.getlist(proxy.roles_header)
    if len(names) != 1 or len(groups) > 1:
        raise Problem(401, "proxy-header", f"accepted: {proxy.name_header} once, and {proxy.roles_header} once")
    try:
        # Headers travel as Latin-1; what the proxy means is UTF-8.
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
