"""Workers as Kubernetes jobs: the manifest against the API's own models, and the client against an API over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from worker_cases import ROOT, is_running, make_job, pipes_environment, wait_until

from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ConfigurationError, LaunchFailed
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.worker import cluster, codes, kubernetes_job
from dpsynth_platform.worker.choice import KubernetesChoice
from dpsynth_platform.worker.kubernetes_job import KubernetesLauncher, manifest
from dpsynth_platform.worker.launch import Start

CHOICE: dict[str, Any] = {
    "launcher": "kubernetes",
    "namespace": "workers",
    "image": "registry.example.org/dpsynth:0.1.0",
    "volumes": [
        {"claim": "zone", "path": "/srv/restricted", "sub_path": "a/b"},
        {"claim": "models", "path": "/srv/models", "read_only": True},
    ],
    "cpu": 1.5,
    "memory": "64GB",
    "gpus": 2,
    "user": 10001,
    "group": 10002,
    "service_account": "workers",
    "labels": {"team": "research"},
    "node_selector": {"accelerator": "a100"},
    "tolerations": ["nvidia.com/gpu"],
    "image_pull_secrets": ["registry"],
}
START = Start(
    Path("/srv/restricted/people/all/model/entry-1"),
    Path("/srv/restricted/logs/worker-1.log"),
    {"DAGSTER_PIPES_CONTEXT": "context", "DAGSTER_PIPES_MESSAGES": "messages"},
)


def choice(**changes: Any) -> KubernetesChoice:
    return validated(KubernetesChoice, CHOICE | changes, "test")


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def test_the_pod_may_do_next_to_nothing() -> None:
    job = manifest(choice(), START, START.alive)
    pod = pod_of(job)
    (container,) = pod["containers"]
    assert job["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (10001, 10002)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    limits = {"cpu": "1.5", "memory": "64G", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"limits": limits, "requests": limits}
    assert job["spec"]["template"]["metadata"]["labels"] == {
        "app.kubernetes.io/name": "dpsynth-worker",
        "dpsynth.io/network": "none",
        "dpsynth.io/job": START.name,
        "team": "research",
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {volume["name"] for volume in pod["volumes"]} == {"zone-0", "zone-1", "scratch", "shared-memory"}


def test_its_specification_tells_paths_and_nothing_else() -> None:
    job = manifest(choice(), START, START.alive)
    (container,) = pod_of(job)["containers"]
    assert container["command"] == [
        "python",
        "-m",
        "dpsynth_platform.worker",
        "--alive",
        "/srv/restricted/logs/worker-1-alive.log",
        "--log",
        "/srv/restricted/logs/worker-1.log",
    ]
    assert {item["name"] for item in container["env"]} == {
        "HOME",
        "TMPDIR",
        "USER",
        "PYTHONDONTWRITEBYTECODE",
        "OMP_NUM_THREADS",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "DAGSTER_PIPES_CONTEXT",
        "DAGSTER_PIPES_MESSAGES",
    }
    assert "people" not in job["metadata"]["name"]
    assert len(job["metadata"]["name"]) <= 63


def test_the_least_and_the_most_of_it_are_jobs_as_the_api_knows_them() -> None:
    """Through the models that are made from the API's own description: an unknown key would be lost on the way."""
    client = pytest.importorskip("kubernetes").client
    least = {name: CHOICE[name] for name in ("launcher", "namespace", "image", "volumes", "user")}
    for made in (choice(), validated(KubernetesChoice, least, "test")):
        job = manifest(made, START, START.alive)
        assert through_models(client, job, "V1Job") == job


def through_models(client: Any, document: dict[str, Any], kind: str) -> Any:
    api = client.ApiClient()
    return api.sanitize_for_serialization(api.deserialize(json.dumps(document), kind, "application/json"))


def test_what_the_deployment_offers_a_cluster_is_as_the_api_knows_it() -> None:
    client = pytest.importorskip("kubernetes").client
    documents = list(yaml.safe_load_all((PACKAGE_ROOT / "deploy" / "kubernetes" / "workers.yaml").read_text()))
    kinds = [document["kind"] for document in documents]
    assert kinds == ["Namespace", "NetworkPolicy", "Role", "RoleBinding"]
    for document in documents:
        assert through_models(client, document, f"V1{document['kind']}") == document
    network = documents[1]["spec"]
    assert network["podSelector"]["matchLabels"].items() <= kubernetes_job.LABELS.items()
    assert network["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in network
    assert "egress" not in network


def test_nobody_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    made = choice(user=None)
    with pytest.raises(ConfigurationError, match="the step runs as root, and a worker must not; accepted: user: 1000"):
        manifest(made, START, START.alive)


@dataclass
class Cluster:
    """The API of jobs and pods over HTTP. A pod's command runs as a process of this machine, if there is a kubelet.

    Attributes:
        refuses: the status that creating a job is answered with, if any.
        silent: how many requests are answered with an error first.
        state: the pod's container in place of a process.
    """

    address: str = ""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kubelet: Callable[[dict[str, Any]], subprocess.Popen[bytes]] | None = None
    refuses: int = 0
    silent: int = 0
    state: dict[str, Any] | None = None
    phase: str = "Pending"

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.requests.append((method, path, body))
        if self.silent and method == "GET":
            self.silent -= 1
            return 503, {}
        jobs = "/apis/batch/v1/namespaces/workers/jobs"
        name = path.rpartition("/")[2]
        if (method, path) == ("POST", jobs):
            return self.create(body, dry="dryRun" in query)
        if path == "/api/v1/namespaces/workers/pods":
            label, _, value = query["labelSelector"][0].partition("=")
            return 200, {"items": [self.pod(job) for job in self.jobs.values() if labelled(job, label, value)]}
        if not path.startswith(f"{jobs}/") or name not in self.jobs:
            return 404, {}
        if method == "DELETE":
            assert query["propagationPolicy"] == ["Foreground"]
            process = self.processes.pop(name, None)
            if process:
                process.terminate()
                process.wait()
            return 200, {"kind": "Status"} if self.jobs.pop(name) else {}
        return 200, self.jobs[name]

    def create(self, body: Any, *, dry: bool) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if self.refuses or name in self.jobs:
            return self.refuses or 409, {"message": "a message that may quote anything"}
        if not dry:
            self.jobs[name] = body
            if self.kubelet:
                self.processes[name] = self.kubelet(pod_of(body)["containers"][0])
        return 201, body

    def pod(self, job: dict[str, Any]) -> dict[str, Any]:
        state, phase = self.state, self.phase
        process = self.processes.get(job["metadata"]["name"])
        if process:
            code = process.poll()
            phase = "Running" if code is None else "Succeeded" if code == 0 else "Failed"
            code = code if code is None or code >= 0 else 128 - code
            state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "Error"}}
        status = {"name": "worker", "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": state}
        return {"status": {"phase": phase, "containerStatuses": [status] if state else None}}


def labelled(job: dict[str, Any], label: str, value: str) -> bool:
    found: dict[str, str] = job["spec"]["template"]["metadata"]["labels"]
    return found.get(label) == value


@contextmanager
def served(cluster_: Cluster) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = cluster_.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster_.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that the kubeconfig names; polled often."""
    pytest.importorskip("kubernetes")
    from kubernetes.config import kube_config

    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.05)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    made = Cluster()
    with served(made):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": made.address}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
        yield made


def here(directory: Path) -> tuple[KubernetesChoice, Start, dict[str, str]]:
    """A job of which everything lies below a directory of this machine: choice, start and the processes' variables."""
    environment = pipes_environment(directory, make_job(directory).to_extras())
    pipes = {name: value for name, value in environment.items() if name.startswith("DAGSTER_PIPES_")}
    made = choice(volumes=[{"claim": "zone", "path": str(directory)}], python=sys.executable)
    return made, Start(directory / "model", directory / "log", pipes), environment


def kubelet(environment: dict[str, str]) -> Callable[[dict[str, Any]], subprocess.Popen[bytes]]:
    def start(container: dict[str, Any]) -> subprocess.Popen[bytes]:
        given = {item["name"]: item["value"] for item in container["env"]}
        return subprocess.Popen(container["command"], env=environment | given, cwd=ROOT)

    return start


def test_a_worker_runs_in_a_job_that_is_gone_afterwards(tmp_path: Path, api: Cluster) -> None:
    """The real client, the real worker; only the cluster between them is made up."""
    made, start, environment = here(tmp_path)
    api.kubelet = kubelet(environment)
    api.silent = 2
    launcher = KubernetesLauncher(made)
    launcher.check([start.model, start.log], [Path("/srv/vault")])
    assert api.jobs == {}
    assert launcher.run(start) == 0, start.log.read_text()
    assert (tmp_path / "model" / "model.json").exists()
    assert api.jobs == {}
    assert not start.alive.exists()
    said = json.dumps([body for _, _, body in api.requests])
    grant = json.loads((tmp_path / "context").read_text())["extras"]["grant"]
    assert grant not in said
    assert [method for method, _, _ in api.requests].count("POST") == 2
    # A second start at the same place: the worker's own claim refuses it, and its code says so.
    assert codes.code_of(launcher.run(start)) == "claimed"


def test_an_interrupted_step_takes_its_job_with_it(
    tmp_path: Path, api: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, start, environment = here(tmp_path)
    sleeps = tmp_path / "sabotage"
    sleeps.mkdir()
    (sleeps / "sitecustomize.py").write_text(
        "import time, numpy\n"
        "def wait(*a, **k):\n"
        "    for _ in range(1200):\n"  # a signal that comes just before a sleep is handled after it only
        "        time.sleep(0.1)\n"
        "numpy.bincount = wait\n"
    )
    api.kubelet = kubelet(environment | {"PYTHONPATH": f"{sleeps}:{ROOT}"})

    def interrupted(look: Callable[[], Any], _: float) -> int:
        assert wait_until((tmp_path / "model" / "claim.json").exists, 180)
        assert look() is None  # it runs
        raise KeyboardInterrupt

    monkeypatch.setattr(kubernetes_job, "wait_for_exit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        KubernetesLauncher(made).run(start)
    assert api.jobs == {}
    assert "interrupted" in (tmp_path / "messages").read_text()


def test_what_an_interrupted_step_left_ends_before_the_next_begins(tmp_path: Path, api: Cluster) -> None:
    made, start, environment = here(tmp_path)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    api.jobs[start.name] = manifest(made, start, start.alive)
    api.processes[start.name] = left
    api.kubelet = kubelet(environment)
    assert KubernetesLauncher(made).run(start) == 0
    assert not is_running(left.pid)


@pytest.mark.parametrize(
    ("state", "phase", "code"),
    [
        ({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "Failed", "memory"),
        ({"terminated": {"exitCode": 58, "reason": "Error"}}, "Failed", "replay-exhausted"),
        ({"terminated": {"exitCode": 137, "reason": "Error"}}, "Failed", codes.KILLED),
        (None, "Failed", codes.KILLED),
    ],
)
def test_every_end_has_its_code(api: Cluster, tmp_path: Path, state: Any, phase: str, code: str) -> None:
    made, start, _ = here(tmp_path)
    api.state, api.phase = state, phase
    assert codes.code_of(KubernetesLauncher(made).run(start)) == code


def test_a_pod_that_does_not_start_is_given_up(api: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, start, _ = here(tmp_path)
    api.state = {"waiting": {"reason": "ImagePullBackOff", "message": "a message that may quote anything"}}
    monkeypatch.setattr(kubernetes_job, "wait_for_exit", lambda look, _: cluster.wait_for_exit(look, 0.2))
    with pytest.raises(LaunchFailed, match=r"did not start in 0\.2 s \(ImagePullBackOff\)$"):
        KubernetesLauncher(made).run(start)
    assert api.jobs == {}


def test_a_silent_cluster_is_given_up(api: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, start, _ = here(tmp_path)
    api.silent = 10**6
    monkeypatch.setattr(cluster, "SILENCE_SECONDS", 0.2)
    with pytest.raises(LaunchFailed, match="the worker was lost: the cluster's API answered 503 Service Unavailable"):
        KubernetesLauncher(made).run(start)


def test_before_anything_is_spent(api: Cluster, tmp_path: Path) -> None:
    made, start, _ = here(tmp_path)
    launcher = KubernetesLauncher(made)
    with pytest.raises(ConfigurationError, match="no volume of the worker contains /srv/base; accepted: a volume"):
        launcher.check([start.model, Path("/srv/base")], [])
    with pytest.raises(ConfigurationError, match=r"a volume would show .*/vault, which no worker may see"):
        launcher.check([start.model], [tmp_path / "vault"])
    with pytest.raises(ConfigurationError, match="which no worker may see"):  # a volume that is a part of it
        launcher.check([start.model], [tmp_path.parent])
    api.refuses = 403
    with pytest.raises(ConfigurationError, match="answered 403 Forbidden") as raised:
        launcher.check([start.model], [])
    with pytest.raises(LaunchFailed, match=r"the worker was not started: .* 403 Forbidden$"):
        launcher.run(start)
    assert "quote" not in str(raised.value)


def test_an_unknown_cluster_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Cluster) -> None:
    with pytest.raises(ConfigurationError, match=r"no cluster is configured; .* with the context 'other'"):
        KubernetesLauncher(choice(context="other"))
    KubernetesLauncher(choice(context="here"))
