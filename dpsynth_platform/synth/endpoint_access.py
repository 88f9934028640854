"""The endpoint that makes samples, its key, and how requests reach it.

What belongs here: the endpoint (part of the plan), the transport (no part of it), the deployment's list of endpoints,
and the key in memory. What does not: requests (`endpoint_calls`), and where a key is stored (`settings`).

A contract names an endpoint, and the deployment's operator lists the allowed ones: neither the key nor any text goes to
another. Addresses are plain (`settings.is_plain`), so that the listed address is the requested one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError, GrantRefused, file_problem
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings, origin
from dpsynth_platform.foundation.storage import write_durably


@dataclass(frozen=True)
class Endpoint:
    """An endpoint, as a contract declares it. Public; part of the sealed plan.

    Attributes:
        url: without the path of a request.
        model: its name at the endpoint.
    """

    url: str
    model: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class Transport:
    """How requests reach an endpoint. It has no effect on texts or votes, and is no part of a plan: it may change.

    Attributes:
        seconds: the deadline from the request's first byte to the answer's last one.
        at_once: the number of concurrent requests.
    """

    seconds: float = 60.0
    attempts: int = 4
    at_once: int = 8


@dataclass(frozen=True)
class Access:
    """What a request to an endpoint needs; `key` is sent as a bearer token unless it is empty."""

    key: str = field(repr=False)
    transport: Transport = Transport()

    @classmethod
    def of(cls, endpoint: Endpoint, transport: Transport, settings: Settings, setting: str) -> Access:
        """The deployment's access to an endpoint.

        Args:
            setting: the endpoint's path in a contract.

        Raises:
            ConfigurationError: the deployment does not list it, or the key's file cannot be used.
        """
        address = origin(endpoint.url)
        if address not in settings.text_endpoints:
            listed = ", ".join(settings.text_endpoints) or "none yet"
            raise ConfigurationError(
                f"{setting}.url: {address} is no endpoint of this deployment; accepted: "
                f"{listed} (the deployment's operator adds one to DPSYNTH_TEXT_ENDPOINTS)"
            )
        return cls(read_key(settings.text_key), transport)

    def write(self, file: Path) -> None:
        write_durably(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path | None) -> Access:
        """Reads `write` back. Raises `GrantRefused`."""
        try:
            found = json.loads(b"" if file is None else file.read_bytes())
            return cls(found["key"], Transport(**found["transport"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise GrantRefused("the job does not say how to reach its endpoint") from None


def transport_of(contract: DataContract) -> Transport | None:
    """How requests reach the endpoint of a contract's mechanism; None if it names none."""
    declared = contract.generate.endpoint
    return None if declared is None else Transport(declared.timeout, declared.attempts, declared.at_once)


def read_key(file: Path | None) -> str:
    """The key in a file; empty without a file.

    Raises:
        ConfigurationError: the file cannot be read, others may read it, or it has no key.
    """
    if file is None:
        return ""
    try:
        mode, key = file.stat().st_mode, read_regular(file).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"DPSYNTH_TEXT_KEY: {file}: {file_problem(error)}") from None
    if mode & 0o077 or not key.isprintable() or not key or " " in key:
        raise ConfigurationError(
            f"DPSYNTH_TEXT_KEY: {file}: accepted: a file that only its owner can read (mode 0600), with the key and "
            "nothing else"
        )
    return key
