"""Keys in Google Cloud Secret Manager, by google-cloud-secret-manager.

What belongs here: the manager's calls and the meaning of their failures. What does not: credentials (the library finds
those of the machine, the pod or the user) and when a key is made (`vault`).

A key is version 1 of one secret. A later rotation adds another version, so the key never changes; of two processes that
create it at the same time, the first wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from google.api_core.exceptions import (
    AlreadyExists,
    FailedPrecondition,
    Forbidden,
    GoogleAPICallError,
    NotFound,
    ResourceExhausted,
    RetryError,
    ServiceUnavailable,
    Unauthorized,
)
from google.api_core.retry import Retry, if_exception_type
from google.auth.exceptions import GoogleAuthError
from google.cloud.secretmanager_v1 import Replication, Secret, SecretManagerServiceClient, SecretPayload

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.secrets.keeper import key_of

SECONDS = 30.0
"""Limit of a call with all its attempts."""
_LOGGER = "google.cloud.secretmanager_v1"

Answer = TypeVar("Answer")


class GoogleKeeper:
    """See `keeper.Keeper`."""

    def __init__(self, project: str, prefix: str, locations: tuple[str, ...], endpoint: str | None) -> None:
        self._project, self._prefix, self._locations = project, prefix, locations
        self._options = {"api_endpoint": endpoint.removeprefix("https://")} if endpoint else {}

    def read(self, name: str) -> bytes | None:
        """Raises `ConfigurationError` also where version 1 is disabled or destroyed."""
        answer = self._request(
            name,
            "secretmanager.versions.access",
            lambda client, timeout, retry: client.access_secret_version(
                name=f"{self._secret(name)}/versions/1", timeout=timeout, retry=retry
            ),
            NotFound,
        )
        if answer is None:
            return None
        return key_of(name, answer.payload.data.decode("ascii", "replace"), self._label(name))

    def store(self, name: str, key: bytes) -> None:
        """Creates the secret unless it exists, and adds a version, which is the key if it is the first."""
        self._request(
            name,
            "secretmanager.secrets.create",
            lambda client, timeout, retry: client.create_secret(
                parent=f"projects/{self._project}",
                secret_id=self._prefix + name,
                secret=Secret(replication=self._replication()),
                timeout=timeout,
                retry=retry,
            ),
            AlreadyExists,
        )
        self._request(
            name,
            "secretmanager.versions.add",
            lambda client, timeout, retry: client.add_secret_version(
                parent=self._secret(name),
                payload=SecretPayload(data=key.hex().encode()),
                timeout=timeout,
                retry=retry,
            ),
        )

    def place_of(self, name: str) -> str:
        return f"the vault ({self._label(name)})"

    def _secret(self, name: str) -> str:
        return f"projects/{self._project}/secrets/{self._prefix}{name}"

    def _label(self, name: str) -> str:
        return f"Google Secret Manager, project {self._project}, secret {self._prefix + name!r}"

    def _replication(self) -> Replication:
        if not self._locations:
            return Replication(automatic=Replication.Automatic())
        replicas = [Replication.UserManaged.Replica(location=location) for location in self._locations]
        return Replication(user_managed=Replication.UserManaged(replicas=replicas))

    def _request(
        self,
        name: str,
        permission: str,
        call: Callable[[SecretManagerServiceClient, float, Retry], Answer],
        nothing: type[GoogleAPICallError] | None = None,
    ) -> Answer | None:
        """The answer, or None where the call fails with `nothing`."""
        retry = Retry(if_exception_type(ServiceUnavailable, ResourceExhausted), timeout=SECONDS)
        try:
            with SecretManagerServiceClient(client_options=self._options) as client:
                # At DEBUG it logs requests and answers, keys included, whatever the level of the deployment's logs.
                logging.getLogger(_LOGGER).setLevel(logging.WARNING)
                return call(client, SECONDS, retry)
        except GoogleAPICallError as error:
            if nothing is not None and isinstance(error, nothing):
                return None
            problem = _meaning(error, permission)
        except RetryError:
            problem = f"no answer within {SECONDS:g} seconds"
        except GoogleAuthError as error:
            problem = f"no request was possible ({type(error).__name__}); accepted: credentials that the library finds"
        raise ConfigurationError(f"key {name!r} ({self._label(name)}): {problem}") from None


def _meaning(error: GoogleAPICallError, permission: str) -> str:
    """The meaning of a refusal. Shows only its status."""
    status = error.grpc_status_code.name if error.grpc_status_code is not None else type(error).__name__
    if isinstance(error, Forbidden | Unauthorized):
        return f"denied ({status}); accepted: credentials with the permission {permission}"
    if isinstance(error, FailedPrecondition):
        return f"its version 1, which is the key, is disabled or destroyed ({status}); enable it, or restore it"
    if status == "DEADLINE_EXCEEDED":
        return f"no answer within {SECONDS:g} seconds ({status})"
    return f"refused ({status})"
