"""How people sign in at a deployment's console: the file `console.yaml`, and the console's own address.

What belongs here: the models of that file and reading it. What does not: signing in (`sign_in`, `oidc`, `proxy`), and
the local users (`users`). Secrets are in separate files that this one names. Without this file there are local users
only.

    local: true
    sessions: {idle_minutes: 30, longest_hours: 10}
    oidc:
      issuer: https://id.example.org/realms/governance
      client_id: dpsynth-console
      client_secret_file: /run/secrets/console-oidc
      roles_claim: groups
      roles: {reviewer: [privacy-board], auditor: [internal-audit], engineer: [data-platform]}
    proxy:
      addresses: [10.20.0.0/16]
      secret_file: /run/secrets/console-proxy
      roles: {reviewer: [privacy-board], auditor: [internal-audit], engineer: [data-platform]}
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from dpsynth_platform.console.roles import ROLES, Role
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, file_problem
from dpsynth_platform.foundation.permissions import PRIVATE_UMASK
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import THIS_MACHINE, Settings
from dpsynth_platform.foundation.yaml_files import read_yaml

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]{2,62}$")]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+$", max_length=500)]
Roles = dict[Role, list[Annotated[str, StringConstraints(min_length=1, max_length=200)]]]
SHORTEST_SECRET = 32
_ORDINARY = ("host", "origin", "cookie", "authorization", "content-type", "content-length", "x-csrf-token")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SessionLimits(_Part):
    """How long a person stays signed in.

    Attributes:
        idle_minutes: without a request or an action.
        longest_hours: with any activity.
    """

    idle_minutes: int = Field(default=30, ge=1, le=24 * 60)
    longest_hours: int = Field(default=10, ge=1, le=72)

    @property
    def idle(self) -> float:
        """Seconds."""
        return 60.0 * self.idle_minutes

    @property
    def longest(self) -> float:
        """Seconds."""
        return 3600.0 * self.longest_hours


class _Mapped(_Part):
    """Attributes: roles: for each role the external groups any of which gives it."""

    roles: Roles = Field(default_factory=dict)

    def roles_of(self, groups: Iterable[str]) -> frozenset[Role]:
        having = set(groups)
        return frozenset(role for role, needed in self.roles.items() if having & set(needed))


class Oidc(_Mapped):
    """An OpenID Connect provider, by the code flow with PKCE.

    Attributes:
        name: of the provider, as people know it.
        issuer: exactly as the provider names itself.
        metadata: address of its metadata. None: the issuer's well-known address.
        client_id: of the console, whose return address is `<console>/sign-in/oidc/back`.
        client_secret_file: None for a public client.
        scopes: requested ones, `openid` among them.
        name_claim: whose value is the person's name in the ledger; `email` counts only if it is verified.
        roles_claim: whose value is a text or a list of texts.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=60)] = "single sign-on"
    issuer: Url
    metadata: Url | None = None
    client_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    client_secret_file: Path | None = None
    scopes: list[Annotated[str, StringConstraints(pattern=r"^[!-~]{1,100}$")]] = ["openid", "email"]
    name_claim: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "email"
    roles_claim: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "groups"

    @field_validator("issuer", "metadata")
    @classmethod
    def _protected(cls, url: str | None) -> str | None:
        if url is not None and not is_protected(url):
            raise ValueError(f"{url!r}; accepted: https://..., or http://localhost")
        return url

    @model_validator(mode="after")
    def _usable(self) -> Oidc:
        if "openid" not in self.scopes:
            raise ValueError("scopes: without 'openid'; accepted: a list that holds it")
        if not self.roles:
            raise ValueError("roles: none; accepted: such as {reviewer: [privacy-board]}, or nobody could sign in")
        return self

    @property
    def metadata_url(self) -> str:
        return self.metadata or f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"


def _same_names() -> Roles:
    return {role: [role] for role in ROLES}


class Proxy(_Mapped):
    """A proxy in front of the console that signs people in and reports who they are.

    Attributes:
        addresses: of the proxy as the console sees it, single ones or networks.
        secret_file: contains the secret that the proxy sends, so that nobody else who reaches the port is trusted.
        name_header: the person's name.
        roles_header: their groups, separated by commas.
        secret_header: the secret.
        roles: by the groups' names; by default each group has the name of its role.
    """

    addresses: list[str] = Field(min_length=1)
    secret_file: Path
    name_header: HeaderName = "X-Dpsynth-User"
    roles_header: HeaderName = "X-Dpsynth-Roles"
    secret_header: HeaderName = "X-Dpsynth-Proxy-Secret"  # noqa: S105 - a header's name
    roles: Roles = Field(default_factory=_same_names)

    @field_validator("addresses")
    @classmethod
    def _networks(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            try:
                network = ipaddress.ip_network(address)
            except ValueError:
                raise ValueError(f"{address!r}; accepted: such as 10.20.0.7 or 10.20.0.0/16") from None
            if network.prefixlen == 0:
                raise ValueError(f"{address!r} is every address; accepted: those of the proxy")
        return addresses

    @model_validator(mode="after")
    def _distinct(self) -> Proxy:
        names = [name.lower() for name in self.headers]
        taken = [name for name in names if name in _ORDINARY]
        if len(set(names)) < len(names) or taken:
            raise ValueError("name_header, roles_header, secret_header: accepted: three different, unused names")
        return self

    @property
    def headers(self) -> tuple[str, str, str]:
        return (self.name_header, self.roles_header, self.secret_header)


class _File(_Part):
    local: bool = True
    sessions: SessionLimits = Field(default_factory=SessionLimits)
    oidc: Oidc | None = None
    proxy: Proxy | None = None

    @model_validator(mode="after")
    def _somehow(self) -> _File:
        if not (self.local or self.oidc or self.proxy):
            raise ValueError("local: false, and neither oidc nor proxy; accepted: one way to sign in at least")
        return self


@dataclass(frozen=True)
class ConsoleSettings:
    """One console.

    Attributes:
        url: its address as browsers see it, without a path; `https`, or `http` on this machine only.
        home: directory of its users and sessions.
        local: local users may sign in.
        oidc_secret: of the client; never shown.
        proxy_secret: that the proxy sends; never shown.
    """

    url: str
    home: Path
    local: bool = True
    sessions: SessionLimits = field(default_factory=SessionLimits)
    oidc: Oidc | None = None
    proxy: Proxy | None = None
    oidc_secret: str = ""
    proxy_secret: str = ""

    def __repr__(self) -> str:
        return f"ConsoleSettings({self.url!r})"

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")

    @property
    def origins(self) -> frozenset[str]:
        """The origins of its own pages: its address; on this machine also the machine's other names."""
        parts = urlsplit(self.url)
        if parts.hostname not in THIS_MACHINE:
            return frozenset({self.url})
        port = "" if parts.port is None else f":{parts.port}"
        names = (f"[{name}]" if ":" in name else name for name in THIS_MACHINE)
        return frozenset(f"{parts.scheme}://{name}{port}" for name in names)

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(urlsplit(origin).netloc for origin in self.origins)


def is_protected(url: str) -> bool:
    """Whether the connection to a server is encrypted (`https`) or stays on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in THIS_MACHINE)


def console_settings(settings: Settings, host: str, port: int) -> ConsoleSettings:
    """The settings of a deployment's console that listens at an address.

    Raises:
        ConfigurationError: the file cannot be read or contains an unaccepted value; a secret's file is missing, too
            short or readable by others; or other machines can reach the console without an encrypted address.
    """
    if not settings.console_url and host not in THIS_MACHINE:
        raise ConfigurationError(
            f"--host {host}: other machines reach it there; accepted: {', '.join(THIS_MACHINE)}, or "
            "DPSYNTH_CONSOLE_URL with the https address of the proxy in front of it"
        )
    file = _read(settings.console)
    name = f"[{host}]" if ":" in host else host
    return ConsoleSettings(
        url=settings.console_url or f"http://{name}:{port}",
        home=settings.console_home,
        local=file.local,
        sessions=file.sessions,
        oidc=file.oidc,
        proxy=file.proxy,
        oidc_secret=_secret(file.oidc.client_secret_file, "oidc.client_secret_file") if file.oidc else "",
        proxy_secret=_secret(file.proxy.secret_file, "proxy.secret_file", SHORTEST_SECRET) if file.proxy else "",
    )


def _read(path: Path | None) -> _File:
    if path is None:
        return _File()
    try:
        # An empty part counts as its default.
        document = {key: value for key, value in read_yaml(path).items() if value is not None}
        return validated(_File, document, str(path))
    except ContractError as error:
        problem = str(error)
    raise ConfigurationError(problem)


def _secret(path: Path | None, key: str, shortest: int = 1) -> str:
    """The line of a file that only this user may read. Raises `ConfigurationError`, which contains nothing of it."""
    if path is None:
        return ""
    problem = ""
    try:
        shared = path.stat().st_mode & PRIVATE_UMASK
        text = read_regular(path).decode().strip()
    except (OSError, ValueError) as error:
        problem = file_problem(error)
    else:
        if shared:
            problem = "others may read it; accepted: mode 0600 or 0400"
        elif not (len(text) >= shortest and text.isascii() and text.isprintable()):
            problem = f"accepted: one line of at least {shortest} plain characters"
    if problem:
        raise ConfigurationError(f"{key}: {path}: {problem}")
    return text
