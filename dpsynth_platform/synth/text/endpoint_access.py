"""Which endpoint may be asked for texts, with which key, and how requests reach it.

What belongs here: who is asked (part of the plan), how (no part of it), the deployment's list of endpoints, and the key
in memory. What does not: requests (`endpoints`), and where a key is kept (`settings`).

A contract names an endpoint, and whoever runs the deployment says which ones may be named: to no other does the key go,
nor any text. Addresses are plain (`settings.is_plain`), so that the one that is looked up is the one that is asked.
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
    """Who writes texts, as a contract declares it. Public; part of the sealed plan: another one may write others.

    Attributes:
        url: up to where `/chat/completions` follows.
        model: the name by which the endpoint knows the model.
    """

    url: str
    model: str

    @property
    def host(self) -> str:
        """Where it is, for people."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class Transport:
    """How requests reach an endpoint. It decides no text and no vote, and is no part of a plan: it may change any time.

    Attributes:
        seconds: after which an answer is waited for no longer, from its request's first byte to its own last one.
        attempts: how often a request is sent at most.
        at_once: how many requests are under way together.
    """

    seconds: float = 60.0
    attempts: int = 4
    at_once: int = 8


@dataclass(frozen=True)
class Access:
    """What somebody must have who asks an endpoint.

    Attributes:
        key: sent as a bearer token; empty: none.
        transport: how requests are sent.
    """

    key: str = field(repr=False)
    transport: Transport = Transport()

    @classmethod
    def of(cls, endpoint: Endpoint, transport: Transport, settings: Settings) -> Access:
        """Of a deployment to one of its endpoints.

        Raises:
            ConfigurationError: it is none of the deployment's, or the key's file cannot be used.
        """
        check_listed(endpoint.url, settings)
        return cls(read_key(settings.text_key), transport)

    def write(self, file: Path) -> None:
        """Leaves it in a file for its owner alone."""
        write_durably(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path | None) -> Access:
        """Reads `write` back. Raises `GrantRefused`."""
        try:
            found = json.loads(b"" if file is None else file.read_bytes())
            return cls(found["key"], Transport(**found["transport"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise GrantRefused("the job does not say how its endpoint is reached") from None


def check_listed(url: str, settings: Settings) -> None:
    """Refuses an endpoint that the deployment does not list, before a key or a text could go there.

    Raises:
        ConfigurationError: says where it is listed.
    """
    if origin(url) not in settings.text_endpoints:
        listed = ", ".join(settings.text_endpoints) or "none yet"
        raise ConfigurationError(
            f"generate.text.evolution.endpoint.url: {origin(url)} is no endpoint of this deployment; accepted: "
            f"{listed} (whoever runs the deployment adds one to DPSYNTH_TEXT_ENDPOINTS)"
        )


def transport_of(contract: DataContract) -> Transport | None:
    """How a contract has its endpoint asked; None where it names none."""
    declared = contract.generate.endpoint
    return None if declared is None else Transport(declared.timeout, declared.attempts, declared.at_once)


def read_key(file: Path | None) -> str:
    """The key in a file, or nothing where none is named.

    Raises:
        ConfigurationError: it cannot be read, others may read it, or it holds no key.
    """
    if file is None:
        return ""
    try:
        mode, key = file.stat().st_mode, read_regular(file).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"DPSYNTH_TEXT_KEY: {file}: {file_problem(error)}") from None
    if mode & 0o077 or not key.isprintable() or not key or " " in key:
        raise ConfigurationError(
            f"DPSYNTH_TEXT_KEY: {file}: accepted: a file that its owner alone can read (mode 0600), with the key and "
            "nothing else"
        )
    return key
