"""How often somebody may try a password.

What belongs here: counting tries, by the name that was tried and by the address they came from. What does not: whether
a password is right (`users`).

Counted in this process's memory alone, and by the name's SHA-256: a name that was typed may be a password by mistake,
and may be long. A try counts before its password is looked at, so that many at once are no way around.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import deque
from collections.abc import Callable

WINDOW = 15 * 60.0
"""Seconds that a failed try counts."""
MOST_OF_NAME_HERE, MOST_OF_NAME, MOST_FROM_ADDRESS = 5, 20, 60
"""The most failed tries within it: of a name from one address, of a name, and from an address."""
_MOST_KEPT = 30_000
_NETWORK_V6 = 64

_Key = tuple[str, str, str]


class Attempts:
    """The failed tries of late.

    Args:
        clock: seconds of the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tries: dict[_Key, deque[float]] = {}

    def begin(self, name: str, address: str) -> float:
        """Counts a try as failed, until `succeeded` takes it back.

        Returns:
            0, or the seconds after which another may be made, and this one may not.
        """
        now = self._clock()
        self._forget(now)
        limits = _limits(name, address)
        waits = [
            tries[len(tries) - most] + WINDOW - now
            for key, most in limits.items()
            if len(tries := self._tries.get(key, deque())) >= most
        ]
        if waits:
            return max(waits)
        for key in limits:
            self._tries.setdefault(key, deque()).append(now)
        return 0.0

    def succeeded(self, name: str, address: str) -> None:
        """The last try was right and counts no longer, nor do the earlier ones of this name from this address."""
        here, *others = _limits(name, address)
        self._tries.pop(here, None)
        for key in others:
            if self._tries.get(key):
                self._tries[key].pop()

    def _forget(self, now: float) -> None:
        for key, tries in list(self._tries.items()):
            while tries and tries[0] <= now - WINDOW:
                tries.popleft()
            if not tries:
                del self._tries[key]
        while len(self._tries) > _MOST_KEPT:
            del self._tries[next(iter(self._tries))]


def _limits(name: str, address: str) -> dict[_Key, int]:
    """The three counts of a try, the one of name and address first."""
    named, place = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest(), _place(address)
    return {
        ("here", named, place): MOST_OF_NAME_HERE,
        ("name", named, ""): MOST_OF_NAME,
        ("address", "", place): MOST_FROM_ADDRESS,
    }


def _place(address: str) -> str:
    """An address; of those of IPv6, of which one machine has as many as it likes, their network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, _NETWORK_V6), strict=False)) if found.version == 6 else address
