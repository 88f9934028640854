"""The long-term key of a party of federated runs, in a directory of its own."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import closed_directory, private_files
from dpsynth_platform.secrets.vault import Vault


def federation_key(directory: Path) -> Ed25519PrivateKey:
    """The key of a participant's or coordinator's directory, made once and readable by this user alone.

    Raises:
        ConfigurationError: the directory cannot be used, or its key is damaged.
    """
    with private_files():
        try:
            closed_directory(directory)
        except OSError as error:
            raise ConfigurationError(
                f"{directory}: {file_problem(error)}; accepted: a directory that this user can write to"
            ) from None
        return Ed25519PrivateKey.from_private_bytes(Vault(directory / "keys").create("identity"))
