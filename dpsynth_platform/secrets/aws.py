"""Keys in AWS Secrets Manager, by boto3.

What belongs here: the manager's calls and what their failures mean. What does not: credentials (boto3 finds those of
the machine, the pod or the user) and when a key is made (`vault`).

A key is one secret, and in it the version with the id `VERSION`, which creating a secret may choose. Whatever rotates
the secret afterwards adds another version, and the key stays what accounts and signatures depend on.
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
"""Id of the version that is the key (AWS wants 32 to 64 characters), alike for all: it is unique in its secret only."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
_ATTEMPTS = 2
_LOADER = create_loader()
"""What boto3 knows of AWS, read from its files once; a session for each call would read it each time."""
_NOT_THERE = "ResourceNotFoundException"
_THERE = "ResourceExistsException"
_DENIED = (
    "AccessDenied",
    "Unrecognized",
    "ExpiredToken",
    "InvalidSignature",
    "InvalidClientToken",
    "DecryptionFailure",
)


class AwsKeeper:
    """See `keeper.Keeper`. A call ends within half a minute, whoever does not answer."""

    def __init__(self, region: str, prefix: str, endpoint: str | None) -> None:
        self._region, self._prefix, self._endpoint = region, prefix, endpoint

    def found(self, name: str) -> bytes | None:
        """The key's own version of its secret; one that is there without it is a fault, no free name."""
        answer = self._asked(name, "get_secret_value", VersionId=VERSION)
        if answer is None:
            if self._asked(name, "get_secret_value") is None:
                return None
            # Somebody else may have made it between the two questions.
            answer = self._asked(name, "get_secret_value", VersionId=VERSION)
        if answer is None:
            raise self._failed(
                name, f"it is there, but not its version {VERSION!r}; put that back, with the key that was in it"
            )
        text = answer.get("SecretString")
        return key_of(name, text if isinstance(text, str) else "", self._of(name))

    def keep(self, name: str, key: bytes) -> None:
        """Makes the secret; where it is there already, AWS refuses another one."""
        self._asked(name, "create_secret", ClientRequestToken=VERSION, SecretString=key.hex())

    def lacks(self, name: str) -> str:
        return f"the vault ({self._of(name)})"

    def _of(self, name: str) -> str:
        return f"AWS Secrets Manager, {self._region}, secret {self._prefix + name!r}"

    def _failed(self, name: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"key {name!r} ({self._of(name)}): {problem}")

    def _asked(self, name: str, call: str, **given: str) -> dict[str, Any] | None:
        """The answer, or None where there is no such secret to get, or one already that should be made."""
        named = {"Name" if call == "create_secret" else "SecretId": self._prefix + name}
        try:
            answer: dict[str, Any] = getattr(self._client(), call)(**named, **given)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code == (_THERE if call == "create_secret" else _NOT_THERE):
                return None
            problem = _meaning(code, call)
        except (BotoConnectionError, HTTPClientError) as error:
            problem = f"no answer within {CONNECT_SECONDS:g} and {READ_SECONDS:g} seconds ({type(error).__name__})"
        except BotoCoreError as error:
            problem = f"cannot be asked ({type(error).__name__}); accepted: credentials that boto3 finds by itself"
        except Exception as error:  # of its parsers, on whatever answered: they may quote it
            problem = f"what answered is no Secrets Manager ({type(error).__name__}); look at the endpoint"
        else:
            return answer
        raise self._failed(name, problem) from None

    def _client(self) -> Any:
        # At DEBUG it logs what is sent and received, keys included, whatever level the deployment's own logs have.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        session = botocore.session.get_session()
        session.register_component("data_loader", _LOADER)
        # The session's, and not only this client's: asking for credentials must not hang either.
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
    """What a refusal means. Of its words only the code is shown, and only if it looks like one."""
    shown = code if re.fullmatch(r"[A-Za-z]{1,60}", code) else "a code of another form"
    if code.startswith(_DENIED):
        allowed = "CreateSecret" if call == "create_secret" else "GetSecretValue"
        return f"denied ({shown}); accepted: credentials that may secretsmanager:{allowed} it, and use its KMS key"
    if code == "InvalidRequestException":
        return f"it is marked for deletion, or otherwise not to be had ({shown}); restore it"
    return f"refused ({shown})"
