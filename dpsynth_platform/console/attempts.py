"""Limits on password attempts.

What belongs here: counting attempts by name and by address. What does not: whether a password is right (`users`).

Counts are kept in this process's memory only, by the name's SHA-256: a typed name may be long, or a password by
mistake. An attempt counts before its password is checked, so parallel attempts do not avoid the limit.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import deque
from collections.abc import Callable

WINDOW = 15 * 60.0
"""Seconds for which a failed attempt counts."""
MOST_OF_NAME_HERE, MOST_OF_NAME, MOST_FROM_ADDRESS = 5, 20, 60
"""Limits within the window: for a name from one address, for a name, and for an address."""
_MOST_KEPT = 30_000
_NETWORK_V6 = 64

_Key = tuple[str, str, str]


class Attempts:
    """Recent failed attempts; `clock` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tries: dict[_Key, deque[float]] = {}

    def begin(self, name: str, address: str) -> float:
        """Counts an attempt as failed until `succeeded` takes it back.

        Returns:
            0, or the seconds to wait; then this attempt must not be made.
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
        """Uncounts the last attempt, and all earlier ones of this name from this address."""
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
    """The limits by key, the one for name and address first."""
    named, place = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest(), _place(address)
    return {
        ("here", named, place): MOST_OF_NAME_HERE,
        ("name", named, ""): MOST_OF_NAME,
        ("address", "", place): MOST_FROM_ADDRESS,
    }


def _place(address: str) -> str:
    """An address; of IPv6, whose machines have many addresses, the network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, _NETWORK_V6), strict=False)) if found.version == 6 else address
