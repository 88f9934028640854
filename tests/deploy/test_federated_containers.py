"""A federated run by the commands of the compose files: at participants and coordinator, each service is a process.

With the users, volumes, secrets, networks and read-only roots that the files say; what Docker itself does is not
tested. `west` has volumes and secrets as a cluster makes them, and the commands of its manifest.
"""

import re
import shutil
import signal
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from container_cases import Networks, Project, can_contain
from file_cases import DEPLOY
from flower_cases import FLOWER, certificate, node_key, wait_until

from dpsynth_platform.foundation.yaml_files import dump
from dpsynth_platform.one_table.federated_plan import FederatedOptions, federated_plan, read_roster

PARTICIPANT, COORDINATOR, BASE = (
    yaml.safe_load((DEPLOY / f"compose{name}.yaml").read_text())["services"]
    for name in (".participant", ".federation", "")
)
(POD,) = (
    item["spec"]["template"]["spec"]
    for item in yaml.safe_load_all((DEPLOY / "kubernetes" / "participant.yaml").read_text())
    if item["kind"] == "Deployment"
)
NAMES = ("north", "south", "west")
COLUMNS = {
    "ward": {"type": "categorical", "values": ["A", "B", "C"]},
    "age": {"type": "integer", "min": 0, "max": 110},
}
OWN = "coordinator.example.org"
NGINX = shutil.which("nginx")
CORE = "Max core file size        0                    0"
RUN = """
from pathlib import Path
from dpsynth_platform.federation.choice import relay_choice
from dpsynth_platform.federation.relays import relayed
from dpsynth_platform.one_table.federated_plan import read_plan, read_roster
from dpsynth_platform.one_table.federated_run import coordinator_key, run_federated

plan, home = read_plan(Path("/etc/run/plan.json")), Path("/srv/dpsynth")
relay = relay_choice(Path("/etc/dpsynth/federation.yaml"), "visits")
place = Path(relay.socket)
ready = lambda: relay.flower.start(place, relay.seconds, home / "flower.log")
link = relayed(place, relay.seconds, plan.most_reply_bytes, ready)
made = run_federated(plan, read_roster(Path("/etc/run/keys.yaml")), coordinator_key(home / "key"), link, home / "out")
print("synthetic rows:", made.rows)
"""
# From where a SuperNode is: what it may ask passes, and nothing else does, however it is written.
ASK = """
import http.client, ssl
context = ssl.create_default_context(cafile="/run/secrets/coordinator_ca")
for path in ("/v1/fleet/pull-messages", "/v1/control/list-runs", "/v1/runtime/pull-task-input", "/docs", "/health",
             "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol/list-runs",
             "/v1/control/list-runs/../../fleet/pull-messages", "//v1/control/list-runs"):
    end = http.client.HTTPSConnection("coordinator.example.org", 9092, context=context, timeout=20)
    end.request("POST", path, b"")
    print(path, end.getresponse().status)
"""
# What a SuperNode's user can do at the socket's place.
TRY = """
import os, socket
socket.socket(socket.AF_UNIX).connect("/srv/relay/node.sock")
for how in (lambda: os.unlink("/srv/relay/node.sock"), lambda: open("/srv/relay/other", "w")):
    try:
        how()
    except OSError as error:
        print("refused:", error.strerror)
print("sees:", sorted(os.listdir("/srv")), os.path.exists("/etc/participant"))
"""
ALONE = "import socket; print('interfaces:', [name for _, name in socket.if_nameindex()])"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FLOWER / "flower-superlink").exists(), reason="no Flower (requirements/flower.lock)"),
    pytest.mark.skipif(not can_contain(), reason="namespaces need root"),
]


@pytest.fixture
def place():
    made = Path(tempfile.mkdtemp(prefix="ct-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def ended(project, process, log, status=0):
    """What a process has printed, once it has ended with a status."""
    assert process.wait(300) == status, project.log(log).read_text()
    return project.log(log).read_text()


def key_of(project, service, stage, directory):
    process = project.start(service, stage, ["dpsynth", "node", "key", directory], environment={}, log="key")
    return ended(project, process, "key").strip()


def says(project, name, words):
    wait_until(lambda: words in project.log(name).read_text(), f"{name}: {words}")


def rows(seed, number=1_000):
    rng = np.random.default_rng(seed)
    owners = [f"patient {seed} {each}" for each in range(number)]
    values = {"ward": rng.choice(COLUMNS["ward"]["values"], number), "age": rng.integers(0, 111, number)}
    return pa.table({"patient_id": owners, **values})


def policy(name, public, coordinator):
    cap = {"epsilon": 4.0, "delta": 1e-5}
    return {
        "name": name,
        "dataset": "visits",
        "family": {"family": "patients", "unit": "user", "namespace": "person", "mode": "family", "cap": cap},
        "run_cap": {"epsilon": 1.0, "delta": 1e-5},
        "methods": ["independent"],
        "columns": list(COLUMNS),
        "participants": public,
        "coordinator": coordinator,
        "approval": "policy",
        "minimum": 3,
        "colluders": 1,
        "max_contributions": 1,
        "silos": 1,
    }


def certificates(place):
    """Certificates and keys of the coordinator's two servers, and of a SuperNode's own one."""
    found = {}
    for name, hosts in (
        ("superlink", ["superlink"] if NGINX else ["superlink", OWN]),
        ("gate", [OWN]),
        ("runtime", []),
    ):
        (place / name).mkdir()
        found[name] = [path.read_bytes() for path in certificate(place / name, *hosts)]
    return found


def hub_of(place, made, networks, stack):
    """The coordinator's project, with the volumes and secrets of its deployment."""
    code = BASE["code"] | COORDINATOR["code"]
    code |= {"volumes": ["home:/srv/dpsynth", *code["volumes"]], "tmpfs": [*BASE["code"]["tmpfs"], *code["tmpfs"]]}
    services = COORDINATOR | {"code": code}
    if not NGINX:  # participants reach the SuperLink itself
        services["superlink"] = services["superlink"] | {"networks": ["flower", "outside"]}
    hub = Project(place / "hub", services, networks, stack, DEPLOY)
    hub.volume("home")
    hub.volume("relay", mode=0o750)
    hub.volume("flower", 10003)
    hub.secret("superlink_certificate", made["superlink"][0], 0, 0o644)
    hub.secret("superlink_key", made["superlink"][1], 10003)
    hub.secret("gate_certificate", made["gate"][0], 101)
    hub.secret("gate_key", made["gate"][1], 101)
    return hub


def party_of(place, name, made, networks, stack):
    """A participant's project, and the public key of its SuperNode. `west` is as in a cluster."""
    here = place / name
    (here / "participant").mkdir(parents=True)
    (here / "sources").mkdir()
    pq.write_table(rows(NAMES.index(name)), here / "sources" / "rows.parquet")
    (here / "participant" / "columns.yaml").write_text(dump({"columns": COLUMNS}))
    services, owner, secret = PARTICIPANT, 10001, (10003, 0o600)
    if name == "west":
        services = {
            each["name"]: PARTICIPANT[each["name"]] | {"command": each["command"]} for each in POD["containers"]
        }
        services["supernode"] = {key: value for key, value in services["supernode"].items() if key != "ulimits"}
        owner, secret = 0, (0, 0o440)
    party = Project(here, services, networks, stack, here, {"SOURCES": str(here / "sources")})
    party.volume("node", owner, 0o2770 if owner == 0 else 0o700)
    party.volume("relay", owner, 0o2777 if owner == 0 else 0o750)
    private, public = node_key(here, "supernode")
    party.secret("supernode_key", private.read_bytes(), *secret)
    party.secret("coordinator_ca", made["gate" if NGINX else "superlink"][0], *secret)
    party.secret("runtime_certificate", made["runtime"][0], *secret)
    party.secret("runtime_key", made["runtime"][1], *secret)
    return party, public


def flwr(hub, log, *command, more=()):
    """A call of `flwr` in the coordinator's container."""
    quiet = {"FLWR_HOME": "/srv/flwr", "FLWR_TELEMETRY_ENABLED": 0, "FLWR_DISABLE_UPDATE_CHECK": 1}
    whole = ["/opt/flower/bin/flwr", *command]
    return ended(hub, hub.start("code", "coordinator", whole, environment=quiet, more=more, log=log), log)


def healthy(party, name, stage, log):
    check = PARTICIPANT[name]["healthcheck"]["test"][1:]
    return party.start(name, stage, check, log=log).wait(60) == 0


def test_the_commands_of_the_deployment_make_one_release(place):
    with ExitStack() as stack:
        networks, made = Networks(stack), certificates(place)
        (place / "hub").mkdir()
        hub = hub_of(place, made, networks, stack)
        coordinator = key_of(hub, "code", "coordinator", "/srv/dpsynth/key")
        names = [] if NGINX else [OWN]
        superlink = hub.start("superlink", "flower", hosts=names)
        says(hub, "superlink", "Uvicorn running")
        if NGINX:
            nginx = ["/opt/nginx/nginx", "-c", "/etc/nginx/nginx.conf", "-g", "daemon off;"]
            hub.start("gate", None, nginx, hosts=[OWN], more=[(NGINX, "/opt/nginx/nginx")])

        parties = {name: party_of(place, name, made, networks, stack) for name in NAMES}
        public = {name: key_of(party, "node", "cpu", "/srv/dpsynth/node") for name, (party, _) in parties.items()}
        nodes, supernodes, ids = {}, {}, {}
        for name, (party, registered) in parties.items():
            (place / name / "participant" / "policy.yaml").write_text(dump(policy(name, public, coordinator)))
            register = ("supernode", "register", "/etc/run/key.pub", "local")
            said = flwr(hub, f"register-{name}", *register, more=[(registered, "/etc/run/key.pub")])
            ids[name] = re.search(r"SuperNode (\d+) registered", said)[1]
            assert not healthy(party, "node", "cpu", "unhealthy")
            nodes[name] = party.start("node", "cpu")
            supernodes[name] = party.start("supernode", "flower")
        for name, (party, _) in parties.items():
            says(party, "node", "is up: /srv/relay/node.sock")
            assert healthy(party, "node", "cpu", "healthy")
            found = (place / name / "volumes/relay/node.sock").stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o660, 10001, 10001)
            assert stat.S_IMODE((place / name / "volumes/node/node").stat().st_mode) & 0o777 == 0o700
            for process in (nodes[name], supernodes[name]):
                assert CORE in Path(f"/proc/{process.pid}/limits").read_text()

        north = parties["north"][0]
        tried = ended(north, north.start("supernode", "flower", ["python", "-c", TRY], log="try"), "try")
        assert tried.count("refused: Read-only file system") == 2
        assert "sees: ['relay'] False" in tried
        stranger = north.start("supernode", "flower", ["python", "-c", TRY], user="20000:20000", log="stranger")
        assert "Permission denied" in ended(north, stranger, "stranger", 1)
        alone = ended(north, north.start("node", "cpu", ["python", "-c", ALONE], log="alone"), "alone")
        assert alone == "interfaces: ['lo']\n"
        if NGINX:
            asked = ended(north, north.start("supernode", "flower", ["python", "-c", ASK], log="ask"), "ask").split(
                "\n"
            )
            passed = ["/v1/fleet/pull-messages", "/v1/control/list-runs/../../fleet/pull-messages"]
            assert [line for line in asked if not line.endswith(" 404")] == [*(f"{path} 415" for path in passed), ""]

        (place / "run").mkdir()
        (place / "run" / "keys.yaml").write_text(dump({"participants": public}))
        options = FederatedOptions(
            schema=place / "north" / "participant" / "columns.yaml",
            dataset="visits",
            epsilon=1.0,
            delta=1e-5,
            expected_units=3_000,
            owners="patient_id",
            contributions=1,
            method="independent",
            minimum=3,
            colluders=1,
            most_records=1_000,
        )
        plan = federated_plan(options, read_roster(place / "run" / "keys.yaml"))
        (place / "run" / "plan.json").write_text(plan.to_json())
        run = hub.start(
            "code", "coordinator", ["python", "-c", RUN], environment={}, more=[(place / "run", "/etc/run")]
        )
        assert "synthetic rows: " in ended(hub, run, "code")
        for name, (party, _) in parties.items():
            nodes[name].send_signal(signal.SIGTERM)
            log = ended(party, nodes[name], "node", 128 + signal.SIGTERM)
            assert (log.count(": complete"), log.count("cut off"), log.count("refused")) == (1, 0, 0)
            assert "patient " not in log
            assert not list((place / name / "volumes/relay").iterdir())
            assert not list((place / name / "volumes/node/node/restricted").glob("work-*"))
            assert not healthy(party, "node", "cpu", "gone")
            supernodes[name].send_signal(signal.SIGTERM)
            assert supernodes[name].wait(30) == 0
        superlink.send_signal(signal.SIGTERM)
        superlink.wait(30)
        hub.start("superlink", "flower", hosts=names, log="again")
        says(hub, "again", "Uvicorn running")
        known = flwr(hub, "list", "supernode", "list", "local", "--format", "json")
        assert all(each in known for each in ids.values()), known
