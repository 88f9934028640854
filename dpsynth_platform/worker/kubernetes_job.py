"""A worker as a Kubernetes job: what the cluster is asked for, and what became of it.

What belongs here: the job's manifest, and the few calls to the cluster's API. What does not: what a deployment may
choose (`choice`), and Dagster, whose own client (`dagster_k8s.PipesK8sClient`) writes the context, and with it the
grant, into the pod's specification, and reads messages from the pod's log: both would then be the cluster's to keep.

**What the pod may do.** It runs as a user that is not root, on a file system that it cannot write, without
capabilities, without a token for the cluster's API; it satisfies the Pod Security Standard `restricted`. It needs no
network, and the label `dpsynth.io/network: none` lets a policy take it away (`deploy/kubernetes/workers.yaml`). Of the
deployment it sees the volumes that were chosen; one that holds the vault or the ledger is refused.

**How often it runs.** Once: no retry is left to the cluster, and a job has the same name for every start at its place,
so that the cluster itself holds two of them apart. It is deleted when its end is known or the step is interrupted; if
the step is killed, the worker ends itself (`lifeline`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from dpsynth_platform.foundation.errors import ConfigurationError, LaunchFailed
from dpsynth_platform.worker.choice import KubernetesChoice
from dpsynth_platform.worker.cluster import Unanswered, end_of, to_its_end, wait_until_gone
from dpsynth_platform.worker.codes import status_of
from dpsynth_platform.worker.launch import LOOPBACK, Start, command
from dpsynth_platform.worker.lifeline import KILLED_STATUS, lifeline

CALL_SECONDS = 30.0
GRACE_SECONDS = 20
"""How long a worker may take to stop by itself."""
KEPT_SECONDS = 3600
"""After its end, a job that nobody deleted is deleted by the cluster."""
JOB_LABEL = "dpsynth.io/job"
LABELS = {"app.kubernetes.io/name": "dpsynth-worker", "dpsynth.io/network": "none"}
_SCRATCH = "/tmp"  # noqa: S108 - a file system of the pod's own

Answer = TypeVar("Answer")


def manifest(choice: KubernetesChoice, start: Start, alive: Path) -> dict[str, Any]:
    """The job of one start, as the API takes it. Of the restricted zone there are paths in it, and nothing else.

    Args:
        alive: file of the step's signs of life.

    Raises:
        ConfigurationError: the worker would be root.
    """
    labels = dict(choice.labels) | LABELS | {JOB_LABEL: start.name}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _not_root(choice.user or os.getuid()),
            "runAsGroup": choice.group or os.getgid(),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(choice, start, alive)],
        "volumes": [
            *({"name": f"zone-{number}", "persistentVolumeClaim": _claim(one)} for number, one in _numbered(choice)),
            {"name": "scratch", "emptyDir": {"sizeLimit": choice.scratch[:-1]}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": choice.scratch[:-1]}},
        ],
    }
    if choice.service_account:
        pod["serviceAccountName"] = choice.service_account
    if choice.node_selector:
        pod["nodeSelector"] = dict(choice.node_selector)
    if choice.tolerations:
        pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in choice.tolerations]
    if choice.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in choice.image_pull_secrets]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": start.name, "namespace": choice.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


class KubernetesLauncher:
    """See `launch.Launcher`.

    Raises:
        ConfigurationError: there is no client library, or nothing says where the cluster is.
    """

    def __init__(self, choice: KubernetesChoice) -> None:
        self._choice = choice
        self._batch, self._core = _apis(choice.context)

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Volumes, and the cluster's own verdict on such a job, which it is asked for and does not run."""
        mounted = [PurePosixPath(volume.path) for volume in self._choice.volumes]
        for path in reads:
            if not any(path.is_relative_to(place) for place in mounted):
                raise ConfigurationError(
                    f"launcher: kubernetes: a worker would not see {path}; accepted: a volume whose path holds it, in "
                    "the deployment's worker.yaml"
                )
        for path in hidden:
            if any(path.is_relative_to(place) or place.is_relative_to(path) for place in mounted):
                raise ConfigurationError(
                    f"launcher: kubernetes: a worker would see {path}, which none may; accepted: volumes of the "
                    "restricted zone and of base models, in the deployment's worker.yaml"
                )
        nowhere = Path("/check")
        job = manifest(self._choice, Start(nowhere, nowhere, {}), nowhere)
        try:
            self._create(job, dry_run="All")
        except Unanswered as silent:
            raise ConfigurationError(f"launcher: kubernetes: {silent}; see the deployment's worker.yaml") from None

    def run(self, start: Start) -> int:
        alive = start.alive
        with lifeline(alive):
            try:
                self._remove(start.name)  # what an interrupted step left
                self._create(manifest(self._choice, start, alive))
                return end_of(lambda: self._look(start.name), self._choice.start_seconds)
            except Unanswered as silent:
                raise LaunchFailed(f"the worker was not started: {silent}") from None
            finally:
                with suppress(Unanswered, LaunchFailed):  # the cluster deletes it later
                    to_its_end(lambda: self._remove(start.name))

    def _create(self, job: Mapping[str, Any], **how: Any) -> None:
        _asked(lambda: self._batch.create_namespaced_job(self._choice.namespace, job, **_LIMIT, **how))

    def _remove(self, name: str) -> None:
        """Deletes a job, and returns when its pod has ended."""
        place = self._choice.namespace
        how = {"propagation_policy": "Foreground"} | _LIMIT
        if _asked(lambda: self._batch.delete_namespaced_job(name, place, **how), missing=None) is not None:
            wait_until_gone(lambda: self._job(name) is not None, name)

    def _job(self, name: str) -> Any:
        return _asked(lambda: self._batch.read_namespaced_job(name, self._choice.namespace, **_LIMIT), missing=None)

    def _look(self, name: str) -> int | str | None:
        """The worker's exit status, or why its pod has not started, or None while it runs."""
        place = self._choice.namespace
        pods = _asked(
            lambda: self._core.list_namespaced_pod(place, label_selector=f"{JOB_LABEL}={name}", **_LIMIT)
        ).items
        for pod in pods:
            (container,) = pod.status.container_statuses or [None]
            ended = container and container.state.terminated
            if ended:
                return status_of("memory") if ended.reason == "OOMKilled" else int(ended.exit_code)
            if pod.status.phase == "Failed":  # evicted, or its node is gone
                return KILLED_STATUS
            if pod.status.phase == "Running":
                return None
            waits = container and container.state.waiting
            return _word(waits.reason if waits else pod.status.phase)
        job = self._job(name)
        if job is None or any(one.type == "Failed" and one.status == "True" for one in job.status.conditions or []):
            return KILLED_STATUS
        return "no pod"


_LIMIT = {"_request_timeout": CALL_SECONDS}
_NEVER: Any = object()


def _asked(call: Callable[[], Answer], missing: Any = _NEVER) -> Answer:
    """The API's answer; `missing`, where given, if there is no such thing. Raises `Unanswered`."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return call()
    except ApiException as error:
        if error.status == 404 and missing is not _NEVER:
            return missing  # type: ignore[no-any-return]
        status, reason = error.status, _word(error.reason)
    except (HTTPError, OSError) as error:
        status, reason = 0, type(error).__name__
    raise Unanswered(f"the cluster's API answered {status} {reason}" if status else f"no answer of its API ({reason})")


def _apis(context: str | None) -> tuple[Any, Any]:
    """The API of jobs and that of pods, of the cluster that a kubeconfig names or that this process runs in."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise ConfigurationError(
            "launcher: kubernetes: install it first: pip install -r requirements/kubernetes.lock"
        ) from None
    configuration = client.Configuration()
    try:
        try:
            if context is not None:
                raise config.ConfigException  # a named context is of a kubeconfig
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            config.load_kube_config(context=context, client_configuration=configuration)
    except (config.ConfigException, OSError):
        of = "" if context is None else f" with the context {context!r}"
        raise ConfigurationError(
            f"launcher: kubernetes: no cluster is known; accepted: a kubeconfig{of} (KUBECONFIG), or running in one"
        ) from None
    api = client.ApiClient(configuration)
    return client.BatchV1Api(api), client.CoreV1Api(api)


def _container(choice: KubernetesChoice, start: Start, alive: Path) -> dict[str, Any]:
    limits = {"cpu": f"{choice.cpu:g}", "memory": choice.memory[:-1]}
    if choice.gpus:
        limits["nvidia.com/gpu"] = str(choice.gpus)
    variables = {
        "HOME": _SCRATCH,
        "TMPDIR": _SCRATCH,
        "USER": "dpsynth",  # some libraries ask for a name, which a numeric user has not
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(max(1, int(choice.cpu))),  # a limit hides no processor of the node
        **LOOPBACK,
        **start.variables,
    }
    return {
        "name": "worker",
        "image": choice.image,
        "command": command(choice.python, ["--alive", str(alive)], start.log),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": limits, "requests": dict(limits)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *(
                {"name": f"zone-{number}", "mountPath": one.path, "readOnly": one.read_only}
                | ({"subPath": one.sub_path} if one.sub_path else {})
                for number, one in _numbered(choice)
            ),
            {"name": "scratch", "mountPath": _SCRATCH},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }


def _numbered(choice: KubernetesChoice) -> list[tuple[int, Any]]:
    return list(enumerate(choice.volumes))


def _claim(volume: Any) -> dict[str, Any]:
    return {"claimName": volume.claim, "readOnly": volume.read_only}


def _not_root(user: int) -> int:
    if user == 0:
        raise ConfigurationError("launcher: kubernetes: steps run as root, and a worker does not; accepted: user: 1000")
    return user


def _word(reason: Any) -> str:
    """A reason as a word of the cluster's own; whatever else it says may quote anything."""
    return str(reason) if re.fullmatch(r"[A-Za-z][A-Za-z ]{0,60}", str(reason)) else "unknown"
