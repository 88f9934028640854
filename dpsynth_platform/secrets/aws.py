"""Keys in AWS Secrets Manager, by boto3.

What belongs here: the manager's calls and the meaning of their failures. What does not: credentials (boto3 finds those
of the machine, the pod or the user) and when a key is made (`vault`).

A key is the version `VERSION` of one secret. A later rotation adds another version, so the key never changes.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.loaders import create_loader

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.secrets.keeper import key_of

VERSION = "dpsynth-first-version-of-this-key"
"""Version id of every key (32 to 64 characters, unique per secret)."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
_ATTEMPTS = 2
_LOADER = create_loader()
"""Caches boto3's data files, which each new session would read again."""
_MISSING = "ResourceNotFoundException"
_EXISTS = "ResourceExistsException"
_DENIED = (
    "AccessDenied",
    "Unrecognized",
    "ExpiredToken",
    "InvalidSignature",
    "InvalidClientToken",
    "DecryptionFailure",
)


class AwsKeeper:
    """See `keeper.Keeper`. A call takes at most half a minute."""

    def __init__(self, region: str, prefix: str, endpoint: str | None) -> None:
        self._region, self._prefix, self._endpoint = region, prefix, endpoint

    def read(self, name: str) -> bytes | None:
        """Raises `ConfigurationError` also for a secret without the version `VERSION`."""
        answer = self._request(name, "get_secret_value", VersionId=VERSION)
        if answer is None:
            if self._request(name, "get_secret_value") is None:
                return None
            # Another process may have created it between the two calls.
            answer = self._request(name, "get_secret_value", VersionId=VERSION)
        if answer is None:
            raise self._failed(
                name, f"it exists, but without its version {VERSION!r}; restore that version with its key"
            )
        text = answer.get("SecretString")
        return key_of(name, text if isinstance(text, str) else "", self._label(name))

    def store(self, name: str, key: bytes) -> None:
        """Creates the secret; AWS refuses to create an existing one again."""
        self._request(name, "create_secret", ClientRequestToken=VERSION, SecretString=key.hex())

    def place_of(self, name: str) -> str:
        return f"the vault ({self._label(name)})"

    def _label(self, name: str) -> str:
        return f"AWS Secrets Manager, {self._region}, secret {self._prefix + name!r}"

    def _failed(self, name: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"key {name!r} ({self._label(name)}): {problem}")

    def _request(self, name: str, call: str, **arguments: str) -> dict[str, Any] | None:
        """The answer, or None: the secret to get is missing, or the one to create exists."""
        secret = {"Name" if call == "create_secret" else "SecretId": self._prefix + name}
        try:
            answer: dict[str, Any] = getattr(self._client(), call)(**secret, **arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code == (_EXISTS if call == "create_secret" else _MISSING):
                return None
            problem = _meaning(code, call)
        except (BotoConnectionError, HTTPClientError) as error:
            problem = f"no answer within {CONNECT_SECONDS:g} and {READ_SECONDS:g} seconds ({type(error).__name__})"
        except BotoCoreError as error:
            problem = f"no request was possible ({type(error).__name__}); accepted: credentials that boto3 finds"
        except Exception as error:  # of its parsers: the text may quote the answer
            problem = f"the answer is not from Secrets Manager ({type(error).__name__}); check the endpoint"
        else:
            return answer
        raise self._failed(name, problem) from None

    def _client(self) -> Any:
        # At DEBUG it logs requests and answers, keys included, whatever the level of the deployment's own logs.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        session = botocore.session.get_session()
        session.register_component("data_loader", _LOADER)
        # For the whole session: requests for credentials must not hang either.
        session.set_default_client_config(
            Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            )
        )
        return boto3.session.Session(botocore_session=session, region_name=self._region).client(
            "secretsmanager", endpoint_url=self._endpoint
        )


def _meaning(code: str, call: str) -> str:
    """The meaning of a refusal. Shows only its code, and only in the form of a code."""
    shown = code if re.fullmatch(r"[A-Za-z]{1,60}", code) else "a code of another form"
    if code.startswith(_DENIED):
        allowed = "CreateSecret" if call == "create_secret" else "GetSecretValue"
        return f"denied ({shown}); accepted: credentials with secretsmanager:{allowed} and the use of its KMS key"
    if code == "InvalidRequestException":
        return f"it is marked for deletion, or otherwise unavailable ({shown}); restore it"
    return f"refused ({shown})"
