"""Where a federated dataset's coordinator meets its relay, as `deploy/federation.yaml` declares it.

What belongs here: the model of that file, and starting the Flower app. What does not: what travels (`relays`). Nothing
of it is part of a contract: a relay can lose, delay and repeat messages, and no guarantee depends on it.

    default: {socket: /srv/dpsynth/coordinator.sock, seconds: 60}
    datasets:
      visits: {socket: /srv/dpsynth/visits.sock, flower: {program: /opt/flower/bin/flwr, superlink: local}}
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from dpsynth_platform.contracts.base import Part
from dpsynth_platform.contracts.deployment_choices import choice_for
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.federation.relays import run_config
from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, bare_environment

START_SECONDS = 300.0
"""In which `flwr run` has to hand over the app; the run itself is the SuperLink's."""


class FlowerChoice(Part):
    """How a run starts the Flower app by itself.

    Attributes:
        program: path of `flwr`, in an environment of its own.
        superlink: its name in `config.toml` of `home`.
        home: `FLWR_HOME`; None: the user's own.
        app: directory of the app.
    """

    program: str
    superlink: str = Field(default="local", pattern=r"^[A-Za-z0-9_-]+$")
    home: str | None = None
    app: str = str(PACKAGE_ROOT / "deploy" / "flower")

    def start(self, socket: Path, seconds: float, log: Path) -> None:
        """Hands the app to the SuperLink.

        Args:
            log: a new file for what Flower prints.

        Raises:
            ConfigurationError: Flower cannot be started, or refuses.
        """
        known = bare_environment() | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        if self.home is not None:
            known["FLWR_HOME"] = self.home
        # `flwr` starts its own programs by their names.
        known["PATH"] = os.pathsep.join([str(Path(self.program).parent), known.get("PATH", os.defpath)])
        command = [self.program, "run", self.app, self.superlink, "--run-config", run_config(socket, seconds)]
        try:
            with private_files(), log.open("xb") as output:
                status = subprocess.run(
                    command,
                    env=known,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=START_SECONDS,
                    check=False,
                ).returncode
        except OSError as error:
            problem = file_problem(error)
        except subprocess.TimeoutExpired:
            problem = f"it has not ended in {START_SECONDS:g} seconds"
        else:
            problem = f"it has ended with status {status}" if status else ""
        if problem:
            raise ConfigurationError(
                f"{self.program} run: {problem} (details: restricted log {log.name}); accepted: a `flwr` that reaches "
                f"the SuperLink {self.superlink!r}"
            )


class RelayChoice(Part):
    """Where the relay of a dataset's runs connects.

    Attributes:
        socket: absolute path of the local socket that a run makes; at most 107 bytes.
        seconds: in which a participant has to reply.
        flower: how a run starts the relay; None: a person does, while the run waits.
    """

    socket: str = Field(max_length=107)
    seconds: float = Field(default=60.0, ge=1, le=86_400)
    flower: FlowerChoice | None = None

    @field_validator("socket")
    @classmethod
    def _absolute(cls, socket: str) -> str:
        if not socket.startswith("/"):
            raise ValueError(f"{socket!r}; accepted: an absolute path")
        return socket


def relay_choice(path: Path | None, dataset: str, known: Collection[str] | None = None) -> RelayChoice:
    """The choice for a dataset. Raises `ConfigurationError` where there is none, or the file has a fault."""
    found = choice_for(path, dataset, _choice, None, known)
    if found is None:
        raise ConfigurationError(
            f"{dataset}: {'DPSYNTH_FEDERATION: no file' if path is None else f'{path}: default: missing'}; accepted: a "
            "file such as federation.yaml in DPSYNTH_DEPLOY, which says where the relay connects"
        )
    return found


def _choice(document: Any, where: str) -> RelayChoice | None:
    return None if document is None else validated(RelayChoice, document, where)
