"""A worker as a Kubernetes job.

What belongs here: the job's manifest, and calls to the cluster's API. What does not: what a deployment may choose
(`choice`), and Dagster. Its client (`dagster_k8s.PipesK8sClient`) writes the context with the grant into the pod's
specification and reads messages from the pod's log, so the cluster would store both.

**Permissions.** The pod runs as a user other than root, with a read-only root file system, without capabilities, and
without a token for the cluster's API; it satisfies the Pod Security Standard `restricted`. It needs no network, and the
label `dpsynth.io/network: none` lets a policy remove it (`deploy/kubernetes/workers.yaml`). It sees only the chosen
volumes; a volume with the vault or the ledger is refused.

**One run.** The cluster retries no job, and every start in a model directory has the same job name, so the cluster
never runs two of them at the same time. The job is deleted when it has ended or the step is interrupted; if the step is
killed, the worker ends itself (`lifeline`).
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
from dpsynth_platform.worker.cluster import RequestFailed, uninterrupted, wait_for_exit, wait_until_gone
from dpsynth_platform.worker.codes import status_of
from dpsynth_platform.worker.launch import LOOPBACK, Start, command
from dpsynth_platform.worker.lifeline import KILLED_STATUS, lifeline

CALL_SECONDS = 30.0
GRACE_SECONDS = 20
"""The cluster kills a worker that does not stop within this time."""
KEPT_SECONDS = 3600
"""The cluster deletes an ended job after this time."""
JOB_LABEL = "dpsynth.io/job"
LABELS = {"app.kubernetes.io/name": "dpsynth-worker", "dpsynth.io/network": "none"}
_SCRATCH = "/tmp"  # noqa: S108 - a file system of the pod's own

Answer = TypeVar("Answer")


def manifest(choice: KubernetesChoice, start: Start, alive: Path) -> dict[str, Any]:
    """The job of one start, in the form of the API. Of the restricted zone it contains only paths.

    Args:
        alive: the step's heartbeat file.

    Raises:
        ConfigurationError: the worker would run as root.
    """
    user = choice.user or os.getuid()
    if user == 0:
        raise ConfigurationError(
            "launcher: kubernetes: the step runs as root, and a worker must not; accepted: user: 1000, in the "
            "deployment's worker.yaml"
        )
    labels = dict(choice.labels) | LABELS | {JOB_LABEL: start.name}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": choice.group or os.getgid(),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(choice, start, alive)],
        "volumes": [
            *(
                {
                    "name": f"zone-{number}",
                    "persistentVolumeClaim": {"claimName": one.claim, "readOnly": one.read_only},
                }
                for number, one in enumerate(choice.volumes)
            ),
            {"name": "scratch", "emptyDir": {"sizeLimit": choice.scratch[:-1]}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": choice.scratch[:-1]}},
        ],
    }
    optional = {
        "serviceAccountName": choice.service_account,
        "nodeSelector": choice.node_selector,
        "tolerations": [{"key": key, "operator": "Exists"} for key in choice.tolerations],
        "imagePullSecrets": [{"name": name} for name in choice.image_pull_secrets],
    }
    pod |= {key: value for key, value in optional.items() if value}
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
        ConfigurationError: the client library or the configuration of a cluster is missing.
    """

    def __init__(self, choice: KubernetesChoice) -> None:
        self._choice = choice
        self._batch, self._core = _apis(choice.context)

    def check(self, reads: Sequence[Path], hidden: Sequence[Path]) -> None:
        """Checks the volumes, and creates a job in a dry run, which the cluster validates but does not start."""
        mounted = [PurePosixPath(volume.path) for volume in self._choice.volumes]
        for path in reads:
            if not any(path.is_relative_to(place) for place in mounted):
                raise ConfigurationError(
                    f"launcher: kubernetes: no volume of the worker contains {path}; accepted: a volume whose path "
                    "contains it, in the deployment's worker.yaml"
                )
        for path in hidden:
            if any(path.is_relative_to(place) or place.is_relative_to(path) for place in mounted):
                raise ConfigurationError(
                    f"launcher: kubernetes: a volume would show {path}, which no worker may see; accepted: volumes of "
                    "the restricted zone and of base models, in the deployment's worker.yaml"
                )
        nowhere = Path("/check")
        job = manifest(self._choice, Start(nowhere, nowhere, {}), nowhere)
        try:
            self._create(job, dry_run="All")
        except RequestFailed as failure:
            raise ConfigurationError(f"launcher: kubernetes: {failure}; see the deployment's worker.yaml") from None

    def run(self, start: Start) -> int:
        with lifeline(start.alive):
            try:
                self._remove(start.name)  # the job of an interrupted step
                self._create(manifest(self._choice, start, start.alive))
                return wait_for_exit(lambda: self._poll(start.name), self._choice.start_seconds)
            except RequestFailed as failure:
                raise LaunchFailed(f"the worker was not started: {failure}") from None
            finally:
                with suppress(RequestFailed, LaunchFailed):  # the cluster deletes it later
                    uninterrupted(lambda: self._remove(start.name))

    def _create(self, job: Mapping[str, Any], **options: Any) -> None:
        _request(lambda: self._batch.create_namespaced_job(self._choice.namespace, job, **_TIMEOUT, **options))

    def _remove(self, name: str) -> None:
        """Deletes a job if it exists, and returns when its pod has ended."""
        namespace = self._choice.namespace
        options = {"propagation_policy": "Foreground"} | _TIMEOUT
        if _request(lambda: self._batch.delete_namespaced_job(name, namespace, **options), missing=None) is not None:
            wait_until_gone(lambda: self._job(name) is not None, name)

    def _job(self, name: str) -> Any:
        return _request(lambda: self._batch.read_namespaced_job(name, self._choice.namespace, **_TIMEOUT), missing=None)

    def _poll(self, name: str) -> int | str | None:
        """The worker's exit status, or why its pod has not started, or None while it runs."""
        namespace = self._choice.namespace
        pods = _request(
            lambda: self._core.list_namespaced_pod(namespace, label_selector=f"{JOB_LABEL}={name}", **_TIMEOUT)
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
            waiting = container and container.state.waiting
            return _safe_reason(waiting.reason if waiting else pod.status.phase)
        job = self._job(name)
        if job is None or any(one.type == "Failed" and one.status == "True" for one in job.status.conditions or []):
            return KILLED_STATUS
        return "no pod"


_TIMEOUT = {"_request_timeout": CALL_SECONDS}
_NEVER: Any = object()


def _request(call: Callable[[], Answer], missing: Any = _NEVER) -> Answer:
    """The API's answer, or `missing`, if given, for a missing object. Raises `RequestFailed`."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return call()
    except ApiException as error:
        if error.status == 404 and missing is not _NEVER:
            return missing  # type: ignore[no-any-return]
        status, reason = error.status, _safe_reason(error.reason)
    except (HTTPError, OSError) as error:
        status, reason = 0, type(error).__name__
    raise RequestFailed(
        f"the cluster's API answered {status} {reason}" if status else f"no answer from its API ({reason})"
    )


def _apis(context: str | None) -> tuple[Any, Any]:
    """The APIs of jobs and pods, of the kubeconfig's cluster or the one that this process runs in."""
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
                raise config.ConfigException  # only a kubeconfig has named contexts
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            config.load_kube_config(context=context, client_configuration=configuration)
    except (config.ConfigException, OSError):
        of = "" if context is None else f" with the context {context!r}"
        raise ConfigurationError(
            f"launcher: kubernetes: no cluster is configured; accepted: a kubeconfig{of} (KUBECONFIG), or running "
            "inside a cluster"
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
        "USER": "dpsynth",  # some libraries need a name, which a numeric user lacks
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(max(1, int(choice.cpu))),  # the container sees all processors of the node
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
                for number, one in enumerate(choice.volumes)
            ),
            {"name": "scratch", "mountPath": _SCRATCH},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }


def _safe_reason(reason: Any) -> str:
    """A reason if it is one of the cluster's constants; other text could contain data."""
    return str(reason) if re.fullmatch(r"[A-Za-z][A-Za-z ]{0,60}", str(reason)) else "unknown"
