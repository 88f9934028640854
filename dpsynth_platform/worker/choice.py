"""Where a dataset's mechanism runs, as `deploy/worker.yaml` declares it.

What belongs here: the models of that file, and reading it. What does not: launchers (`launchers`). The choice is not
part of a contract: the same program runs in all of these places, so no guarantee depends on it.

    default: {launcher: local}
    datasets:
      mail: {launcher: kubernetes, namespace: dpsynth-workers, image: "registry.example.org/dpsynth:0.1.0", gpus: 1,
             volumes: [{claim: dpsynth-restricted, path: /srv/dpsynth/restricted}]}
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from dpsynth_platform.contracts.deployment_choices import choice_for, tagged
from dpsynth_platform.foundation.sizes import SIZE

_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
ClaimName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}(\.{_NAME})*$")]
LabelKey = Annotated[str, StringConstraints(pattern=rf"^({_NAME}(\.{_NAME})*/)?{_LABEL}$")]
LabelValue = Annotated[str, StringConstraints(pattern=f"^({_LABEL})?$")]
Memory = Annotated[str, StringConstraints(pattern=f"^{SIZE}$")]
Processors = Annotated[float, Field(gt=0, le=1024)]
Devices = Annotated[int, Field(ge=0, le=64)]
Seconds = Annotated[int, Field(ge=10, le=86_400)]
Python = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]+$")]


class _Choice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    processes: int | None = Field(default=None, ge=1, le=64)


class LocalChoice(_Choice):
    """A process on the machine of its step."""

    launcher: Literal["local"] = "local"

    @property
    def label(self) -> str:
        return "this machine"


class Volume(BaseModel):
    """A claim on storage that steps and workers share, mounted at the same path for both.

    Attributes:
        claim: name of the PersistentVolumeClaim.
        sub_path: the directory within it.
        read_only: whether workers may only read it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: ClaimName
    path: str
    sub_path: str = ""
    read_only: bool = False

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts or len(pure.parts) < 2:
            raise ValueError(f"{path!r}; accepted: an absolute path below the root, without '..'")
        return str(pure)

    @field_validator("sub_path")
    @classmethod
    def _relative(cls, path: str) -> str:
        if path and (PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts):
            raise ValueError(f"{path!r}; accepted: a relative path without '..'")
        return path


class KubernetesChoice(_Choice):
    """A job of a Kubernetes cluster.

    Attributes:
        image: image with a tag other than `latest`, or with a digest.
        volumes: of the restricted zone, and of the base models where training starts from one.
        memory: a worker that uses more is killed.
        node_selector: labels of the nodes that the pod may run on.
        tolerations: keys of taints that the pod tolerates.
        scratch: the most that the worker may write outside the volumes.
        start_seconds: the most seconds until a pod starts.
        python: the interpreter in the image.
    """

    launcher: Literal["kubernetes"]
    image: str
    namespace: Name
    volumes: Annotated[tuple[Volume, ...], Field(min_length=1, max_length=32)]
    context: str | None = None
    cpu: Processors = 2
    memory: Memory = "8GB"
    gpus: Devices = 0
    user: int | None = Field(default=None, ge=1, le=2**31 - 1)
    group: int | None = Field(default=None, ge=1, le=2**31 - 1)
    service_account: ClaimName | None = None
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[LabelKey, ...] = ()
    image_pull_secrets: tuple[ClaimName, ...] = ()
    scratch: Memory = "4GB"
    start_seconds: Seconds = 900
    python: Python = "python"

    @field_validator("image")
    @classmethod
    def _pinned(cls, image: str) -> str:
        name = r"[a-z0-9][A-Za-z0-9._/:-]*"
        tag = r":(?!latest$)[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
        if re.fullmatch(rf"{name}({tag}|@sha256:[0-9a-f]{{64}})", image) is None:
            raise ValueError(f"{image!r}; accepted: NAME:TAG, where the tag is not 'latest', or NAME@sha256:DIGEST")
        return image

    @property
    def label(self) -> str:
        return f"a Kubernetes job in {self.namespace}"


class RayChoice(_Choice):
    """A job of a Ray cluster whose machines share the file system of `DPSYNTH_HOME`.

    Attributes:
        memory: memory that Ray reserves for the worker. Ray does not end a job that uses more.
        resources: custom resources of the cluster, such as `{a100_node: 1}`.
        start_seconds: the most seconds that a job waits for its resources.
        python: the interpreter on the machines, in an environment with this platform.
    """

    launcher: Literal["ray"]
    address: Annotated[str, StringConstraints(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?$")]
    cpus: Processors = 2
    memory: Memory = "8GB"
    gpus: Devices = 0
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    start_seconds: Seconds = 900
    python: Python = "python"

    @property
    def label(self) -> str:
        return f"a Ray job at {self.address}"


WorkerChoice = LocalChoice | KubernetesChoice | RayChoice
_CHOICES: dict[str, type[LocalChoice] | type[KubernetesChoice] | type[RayChoice]] = {
    "local": LocalChoice,
    "kubernetes": KubernetesChoice,
    "ray": RayChoice,
}


def worker_choice(path: Path | None, dataset: str, known: Collection[str] | None = None) -> WorkerChoice:
    """Where the dataset's mechanism runs; without a file, this machine. See `deployment_choices.choice_for`."""
    return choice_for(path, dataset, _choice, {"launcher": "local"}, known)


def _choice(document: Any, where: str) -> WorkerChoice:
    return tagged(document, where, "launcher", _CHOICES, "{launcher: local}")
