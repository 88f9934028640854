"""The choice of a vault's keeper: files, unless a file of its directory names another.

What belongs here: that file's models, and reading it. What does not: a keeper. The choice is a file in the vault, no
environment variable, so that all processes of a deployment use the same keeper. Either of

    command         one line: a program and its words (`program`)
    manager.yaml    a cloud's secret manager:

        manager: aws                    # AWS Secrets Manager
        region: eu-central-1
        prefix: dpsynth/                # before each key's name; separate for each deployment

        manager: google                 # Google Cloud Secret Manager
        project: my-project
        prefix: dpsynth-
        locations: [europe-west3]       # regions of keys; by default Google chooses

Both accept an `endpoint` for a private network address. Credentials are not part of the file: the libraries find those
of the machine, the pod or the user.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from dpsynth_platform.contracts.deployment_choices import tagged
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.settings import is_protected
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.secrets.files import FileKeeper
from dpsynth_platform.secrets.keeper import Keeper, own_text
from dpsynth_platform.secrets.program import COMMAND, ProgramKeeper

MANAGER = "manager.yaml"
"""The vault's file that names the secret manager."""


def _endpoint(address: str) -> str:
    bare = address.removesuffix("/")
    if not (is_protected(bare) and re.fullmatch(r"https?://[^/?#]+", bare)):
        raise ValueError("accepted: https://HOST[:PORT], or http://localhost[:PORT]; without a path")
    return bare


def _encrypted(address: str) -> str:
    if not address.startswith("https://"):
        raise ValueError("accepted: https://HOST[:PORT]; this manager requires TLS")
    return address


Endpoint = Annotated[str, AfterValidator(_endpoint)]
Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class _Manager(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", frozen=True)
    lock: ClassVar[str]

    def open(self) -> Keeper:
        """Raises `ConfigurationError` where the manager's library is not installed."""
        try:
            return self._opened()
        except ImportError:
            raise ConfigurationError(
                f"{MANAGER}: the library of this manager is missing; install it first: pip install -r {self.lock}"
            ) from None

    @abstractmethod
    def _opened(self) -> Keeper:
        """Imports the manager's library."""


class AwsManager(_Manager):
    """AWS Secrets Manager.

    Attributes:
        prefix: before each key's name. Deployments with the same region and prefix share keys.
        endpoint: a private network address. None: the region's public address.
    """

    lock = "requirements/aws.lock"

    manager: Literal["aws"]
    region: Word
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/_+=.@-]{1,128}$")] = "dpsynth/"
    endpoint: Endpoint | None = None

    def _opened(self) -> Keeper:
        from dpsynth_platform.secrets.aws import AwsKeeper

        return AwsKeeper(self.region, self.prefix, self.endpoint)


class GoogleManager(_Manager):
    """Google Cloud Secret Manager.

    Attributes:
        prefix: before each key's name. Deployments with the same project and prefix share keys.
        locations: regions that a new key is replicated to. Empty: Google chooses.
        endpoint: a private network address. None: Google's public address.
    """

    lock = "requirements/google.lock"

    manager: Literal["google"]
    project: Word
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")] = "dpsynth-"
    locations: tuple[Word, ...] = ()
    endpoint: Annotated[Endpoint, AfterValidator(_encrypted)] | None = None

    def _opened(self) -> Keeper:
        from dpsynth_platform.secrets.google import GoogleKeeper

        return GoogleKeeper(self.project, self.prefix, self.locations, self.endpoint)


_MANAGERS: dict[str, type[_Manager]] = {"aws": AwsManager, "google": GoogleManager}


def keeper_of(directory: Path) -> Keeper:
    """The keeper of the vault in a directory.

    Raises:
        ConfigurationError: its file is invalid or writable for others, or there are two.
    """
    command, manager = own_text(directory / COMMAND), own_text(directory / MANAGER)
    if command is not None and manager is not None:
        raise ConfigurationError(f"{directory}: {COMMAND} and {MANAGER}; accepted: one of them, or none")
    if command is not None:
        return ProgramKeeper(_words(directory / COMMAND, command))
    if manager is not None:
        return _manager(directory / MANAGER).open()
    return FileKeeper(directory)


def _words(file: Path, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise ConfigurationError(f"{file}: accepted: one line, a program and its words, quoted as for a shell")
    return words


def _manager(file: Path) -> _Manager:
    try:
        return tagged(read_yaml(file), str(file), "manager", _MANAGERS, "{manager: aws, region: eu-central-1}")
    except ContractError as error:
        problem = str(error)
    raise ConfigurationError(problem)
