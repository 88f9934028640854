"""Where a dataset's mechanism runs: what worker.yaml may say, and what is refused, with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.sizes import bytes_of
from dpsynth_platform.worker.choice import KubernetesChoice, LocalChoice, RayChoice, worker_choice
from dpsynth_platform.worker.launchers import launcher_of
from dpsynth_platform.worker.local import LocalLauncher

KUBERNETES = {
    "launcher": "kubernetes",
    "namespace": "workers",
    "image": "registry.example.org/dpsynth:0.1.0",
    "volumes": [{"claim": "zone", "path": "/srv/restricted"}],
}
RAY = {"launcher": "ray", "address": "http://head:8265"}


def written(place: Path, document: object) -> Path:
    path = place / "worker.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_each_dataset_has_its_place_and_others_the_default(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"default": {"launcher": "local", "processes": 2}, "datasets": {"a": KUBERNETES, "b": RAY}}
    )
    assert worker_choice(path, "other") == LocalChoice(processes=2)
    assert worker_choice(path, "a") == validated(KubernetesChoice, KUBERNETES, "a")
    assert worker_choice(path, "b") == validated(RayChoice, RAY, "b")
    assert [worker_choice(path, name).label for name in ("other", "a", "b")] == [
        "this machine",
        "a Kubernetes job in workers",
        "a Ray job at http://head:8265",
    ]
    with pytest.raises(ConfigurationError, match=r"datasets\.b: no such contract; accepted: a, census$"):
        worker_choice(path, "a", {"a", "census"})


def test_without_a_word_it_is_this_machine(tmp_path: Path) -> None:
    for path in (None, written(tmp_path, {"datasets": {}}), PACKAGE_ROOT / "deploy" / "worker.yaml"):
        choice = worker_choice(path, "any")
        assert choice == LocalChoice()
        assert isinstance(launcher_of(choice), LocalLauncher)


def test_the_examples_of_the_deployment_are_accepted(tmp_path: Path) -> None:
    text = (PACKAGE_ROOT / "deploy" / "worker.yaml").read_text(encoding="utf-8")
    commented = text[text.index("# datasets:") :].replace("# ", "", 1).replace("\n# ", "\n")
    path = tmp_path / "worker.yaml"
    path.write_text(commented, encoding="utf-8")
    chosen = [worker_choice(path, name) for name in ("mail", "census", "visits")]
    assert [choice.launcher for choice in chosen] == ["local", "kubernetes", "ray"]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"launcher": "slurm"}, "default.launcher: 'slurm'; accepted: local, kubernetes, ray"),
        ({"processes": 2}, "default.launcher: None; accepted"),
        ({"launcher": "local", "processes": 0}, "processes: 0"),
        ({"launcher": "local", "image": "x"}, "image: unknown key"),
        (KUBERNETES | {"image": "dpsynth"}, "image: 'dpsynth'; accepted: NAME:TAG"),
        (KUBERNETES | {"image": "dpsynth:latest"}, "accepted: NAME:TAG, where the tag is not 'latest'"),
        (KUBERNETES | {"namespace": "Workers"}, "namespace: 'Workers'"),
        (KUBERNETES | {"volumes": []}, "volumes"),
        (KUBERNETES | {"volumes": [{"claim": "zone", "path": "restricted"}]}, "an absolute path below the root"),
        (KUBERNETES | {"volumes": [{"claim": "zone", "path": "/"}]}, "an absolute path below the root"),
        (KUBERNETES | {"volumes": [{"claim": "zone", "path": "/a/../b"}]}, "without '..'"),
        (KUBERNETES | {"volumes": [{"claim": "zone", "path": "/a", "sub_path": "/b"}]}, "a relative path"),
        (KUBERNETES | {"memory": "64Gi"}, "memory: '64Gi'"),
        (KUBERNETES | {"user": 0}, "user: 0"),
        (KUBERNETES | {"labels": {"a b": "c"}}, "labels"),
        (RAY | {"address": "ray://head:10001"}, "address: 'ray://head:10001'"),
        (RAY | {"address": "http://user:secret@head:8265"}, "address"),
        (RAY | {"python": "python; true"}, "python"),
    ],
)
def test_what_is_refused(tmp_path: Path, choice: object, words: str) -> None:
    path = written(tmp_path, {"default": choice})
    with pytest.raises(ConfigurationError, match=r"worker\.yaml: default") as raised:
        worker_choice(path, "any")
    assert words in str(raised.value)


def test_memory_is_counted_in_thousands() -> None:
    assert bytes_of("2GB") == 2 * bytes_of("1000MB") == 2 * 10**9


def test_digests_pin_an_image() -> None:
    image = "registry.example.org:5000/team/dpsynth@sha256:" + "a" * 64
    assert validated(KubernetesChoice, KUBERNETES | {"image": image}, "x").image == image


@pytest.mark.parametrize("name", ["kubernetes", "ray"])
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    monkeypatch.setitem(__import__("sys").modules, "ray.job_submission", None)
    choice = validated(KubernetesChoice, KUBERNETES, "x") if name == "kubernetes" else validated(RayChoice, RAY, "x")
    with pytest.raises(
        ConfigurationError, match=rf"launcher: {name}: install it first: pip install -r requirements/{name}\.lock"
    ):
        launcher_of(choice)
