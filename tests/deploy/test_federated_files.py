"""Compose files and manifests of participants and coordinators of federated runs: what their text shows.

A node has rows and no network, its SuperNode the network and no rows; participants reach no more of a coordinator than
SuperNodes need. `test_federated_containers` runs the same commands.
"""

import json
import re
import subprocess
import tomllib

import pytest
import yaml
from container_cases import variables
from file_cases import DEPLOY, KNOWN, OTHERS, PINNED, check_command
from flower_cases import FLOWER

from dpsynth_platform.federation.choice import relay_choice

PARTICIPANT, COORDINATOR, BASE = (
    yaml.safe_load((DEPLOY / f"compose{name}.yaml").read_text()) for name in (".participant", ".federation", "")
)
SERVICES = {**PARTICIPANT["services"], **COORDINATOR["services"]}
NODE, SUPERNODE, SUPERLINK, GATE, CODE = (SERVICES[name] for name in ("node", "supernode", "superlink", "gate", "code"))
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "participant.yaml").read_text()))
(DEPLOYMENT,) = (item["spec"] for item in MANIFESTS if item["kind"] == "Deployment")
POD = DEPLOYMENT["template"]["spec"]
IN_POD = {container["name"]: container for container in POD["containers"]}
FLOWERS = {
    "supernode": ("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode", SUPERNODE["command"]),
    "superlink": ("flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink", SUPERLINK["command"]),
}


def places(service):
    """Where a service has volumes and secrets, and whether it can write there."""
    found = {f"/run/secrets/{name}": False for name in service.get("secrets", ())}
    for volume in service["volumes"]:
        _, target, *how = re.sub(r"\$\{[^}]*\}", "/somewhere", volume).split(":")
        found[target] = how != ["ro"]
    return found


def mounts(container):
    return {mount["mountPath"]: not mount.get("readOnly", False) for mount in container["volumeMounts"]}


def paths(command):
    """The absolute paths that a command names."""
    return re.findall(r'(?:^|[="\s(])(/[\w./-]+)', "\n".join(command), re.MULTILINE)


def test_the_nodes_command_is_one_that_its_program_accepts():
    check_command(NODE["command"])
    (key,) = (container["command"] for container in POD["initContainers"])
    assert key == ["dpsynth", "node", "key", NODE["command"][3]]
    check_command(key)
    check_command(["dpsynth", "node", "status", "/srv/dpsynth/node"])
    check_command(["dpsynth", "node", "approve", "/srv/dpsynth/node", "0123456789ab", "--by", "Rita"])
    check_command(["dpsynth", "federate", "keys"])


@pytest.mark.parametrize("name", FLOWERS)
@pytest.mark.skipif(not (FLOWER / "flwr").exists(), reason="no Flower (requirements/flower.lock)")
def test_flowers_commands_are_those_that_its_programs_accept(name):
    module, parser, (program, *arguments) = FLOWERS[name]
    assert (FLOWER / program).exists()
    script = f"import json, sys; from {module} import {parser} as made; print(vars(made().parse_args(sys.argv[1:])))"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    found = subprocess.run(
        [FLOWER / "python", "-c", script, *arguments], env=quiet, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "'insecure': False" in found.stdout
    assert "deprecated" not in found.stdout + found.stderr


def test_a_cluster_runs_the_same_commands():
    assert IN_POD["node"]["command"] == NODE["command"]
    assert IN_POD["supernode"]["command"] == ["prlimit", "--core=0", *SUPERNODE["command"]]
    for name, service in PARTICIPANT["services"].items():
        assert IN_POD[name]["readinessProbe"]["exec"]["command"] == service["healthcheck"]["test"][1:]
        assert IN_POD[name]["image"].removeprefix("registry.example.org/") == service["image"]


def test_what_a_command_names_is_there_and_what_is_there_is_named():
    for service, container in ((NODE, IN_POD["node"]), (SUPERNODE, IN_POD["supernode"]), (SUPERLINK, None)):
        for there in (places(service), *([] if container is None else [mounts(container)])):
            named = [*paths(service["command"]), *paths(service["healthcheck"]["test"])]
            for path in named:
                assert any(path == place or path.startswith(f"{place}/") for place in there), path
            for place in there.keys() - {"/tmp", "/srv/relay"}:
                assert any(path == place or path.startswith(f"{place}/") for path in named), place
    assert '--node-config=socket="/srv/relay/node.sock"' in SUPERNODE["command"]
    assert "--socket=/srv/relay/node.sock" in NODE["command"]
    assert "/srv/relay/node.sock" in paths(NODE["healthcheck"]["test"])
    for name, file in (("node", PARTICIPANT), ("relay", PARTICIPANT), ("relay", COORDINATOR), ("flower", COORDINATOR)):
        assert name in file["volumes"]
        assert any(f"{name}:/" in volume for part in file["services"].values() for volume in part["volumes"])
    for file in (PARTICIPANT, COORDINATOR):
        used = {name for service in file["services"].values() for name in service.get("secrets", ())}
        assert used == file["secrets"].keys()
        assert all(secret["file"].startswith("./secrets/") for secret in file["secrets"].values())
    claims = {item["metadata"]["name"] for item in MANIFESTS if item["kind"] == "PersistentVolumeClaim"}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert claims == {
        volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values() if "persistentVolumeClaim" in volume
    }
    assert volumes.keys() == {mount["name"] for item in POD["containers"] for mount in item["volumeMounts"]}


def test_the_node_has_no_network_and_its_supernode_has_nothing_but_the_socket():
    assert NODE["network_mode"] == "none"
    assert not {"networks", "ports", "secrets"} & NODE.keys()
    assert "ports" not in SUPERNODE
    assert SUPERNODE["volumes"] == ["relay:/srv/relay:ro"]
    assert "environment" not in SUPERNODE
    assert mounts(IN_POD["supernode"]).keys() == {"/srv/relay", "/run/secrets", "/tmp"}
    assert mounts(IN_POD["supernode"])["/srv/relay"] is False
    shared = {mount["name"] for mount in IN_POD["node"]["volumeMounts"]} & {
        mount["name"] for mount in IN_POD["supernode"]["volumeMounts"]
    }
    assert shared == {"relay"}
    writable = {"/srv/dpsynth", "/srv/relay"}
    assert {place for place, how in places(NODE).items() if how} == writable
    assert {place for place, how in mounts(IN_POD["node"]).items() if how} == writable | {"/tmp"}


def test_relays_are_other_users_in_the_group_of_the_sockets():
    """A node and a run make sockets with mode 0660, in a directory of theirs that their group may enter."""
    base = BASE["services"]["code"]["user"]
    for listens, relay in ((NODE["user"], SUPERNODE["user"]), (base, SUPERLINK["user"])):
        (user, group), (other, same) = listens.split(":"), relay.split(":")
        assert (user != other, group == same) == (True, True)
    for name in ("node", "supernode"):
        context = IN_POD[name]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == PARTICIPANT["services"][name]["user"]
    assert POD["securityContext"]["fsGroup"] == 10001
    image = (DEPLOY / "Dockerfile").read_text()
    assert len(re.findall("--owner 10001 --group 10001 --mode 0750 /srv/relay", image)) == 2  # whichever is first
    assert "\nUSER 10003:10001\n" in image
    assert SUPERLINK["volumes"] == ["flower:/srv/flower", "relay:/srv/relay:ro"]


def test_no_container_has_more_rights_than_it_needs():
    for name, service in SERVICES.items():
        whole = BASE["services"].get(name, {}) | service
        assert whole["read_only"] is True, name
        assert whole["cap_drop"] == ["ALL"], name
        assert whole["security_opt"] == ["no-new-privileges:true"], name
        assert int(whole["user"].split(":")[0]) > 0, name
        assert name == "code" or service["ulimits"] == {"core": 0}, name
        assert PINNED.search(service["image"]), name
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["automountServiceAccountToken"] is False
    for container in (*POD["initContainers"], *POD["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert PINNED.search(container["image"])
    (namespace,) = (item for item in MANIFESTS if item["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {item["metadata"].get("namespace", namespace["metadata"]["name"]) for item in MANIFESTS} == {
        namespace["metadata"]["name"]
    }


def test_one_process_holds_the_nodes_directory_and_nothing_kills_it_while_it_works():
    assert (DEPLOYMENT["replicas"], DEPLOYMENT["strategy"]) == (1, {"type": "Recreate"})
    assert not any("livenessProbe" in container for container in POD["containers"])
    assert POD["terminationGracePeriodSeconds"] == 60
    assert NODE["stop_grace_period"] == "1m"
    (claim,) = (
        item for item in MANIFESTS if item["kind"] == "PersistentVolumeClaim" and item["metadata"]["name"] == "node"
    )
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "deploy" not in NODE


def test_the_pod_reaches_names_and_the_coordinator_alone_and_is_reached_by_nobody():
    policies = [item["spec"] for item in MANIFESTS if item["kind"] == "NetworkPolicy"]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    (other,) = (policy for policy in policies if "egress" in policy)
    assert not any("ingress" in policy for policy in policies)
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    assert other["podSelector"]["matchLabels"].items() <= labels.items()
    names, coordinator = other["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert (coordinator["to"][0].keys(), coordinator["ports"]) == ({"ipBlock"}, [{"protocol": "TCP", "port": 9092}])
    assert coordinator["to"][0]["ipBlock"]["cidr"].endswith("/32")
    (place,) = (argument for argument in SUPERNODE["command"] if argument.startswith("--superlink="))
    assert place.endswith(":9092")


def test_participants_reach_the_gate_alone_and_of_it_what_supernodes_say():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gate"]
    networks = COORDINATOR["networks"]
    assert networks == {"flower": {"internal": True}, "gate": {"internal": True}}
    assert not networks.keys() & BASE["networks"].keys()
    joined = {name: set(service["networks"]) for name, service in COORDINATOR["services"].items()}
    assert joined == {"code": {"flower"}, "superlink": {"flower", "gate"}, "gate": {"gate", "outside"}}
    assert "--enable-supernode-auth" in SUPERLINK["command"]
    written = (DEPLOY / "proxy" / "federation.conf").read_text()
    assert re.findall(r"location (\S+) \{", written) == ["/", "/v1/fleet/"]
    assert re.search(r"location / \{\s*return 404;", written)
    assert re.findall(r"proxy_pass (\S+);", written) == ["https://superlink:9092/v1/fleet/"]
    assert "proxy_ssl_verify on;" in written
    secrets = set(re.findall(r"/run/secrets/(\w+)", written))
    assert secrets == set(GATE["secrets"])


def test_a_run_finds_flower_and_its_relay_where_the_deployment_puts_them():
    choice = relay_choice(DEPLOY / "production" / "federation.yaml", "visits")
    where = places(CODE)
    assert where["/etc/dpsynth/federation.yaml"] is False
    assert where[str(choice.socket).rpartition("/")[0]] is True
    assert places(SUPERLINK)[str(choice.socket).rpartition("/")[0]] is False
    assert f"{choice.flower.home}/config.toml" in where
    (scratch,) = CODE["tmpfs"]
    assert scratch.startswith(f"{choice.flower.home}:uid=10001,gid=10001,mode=0700")
    known = tomllib.loads((DEPLOY / "production" / "flwr.toml").read_text())["superlink"]
    link = known[choice.flower.superlink]
    host, _, port = link["address"].partition(":")
    assert f"--port={port}" in SERVICES[host]["command"]
    assert link["root-certificates"] in where
    assert "insecure" not in json.dumps(known)
    image = (DEPLOY / "Dockerfile").read_text()
    stage = image.partition(" AS flower\n")[2].partition("\nFROM ")[0]
    assert f"COPY deploy/flower {choice.flower.app}\n" in stage
    assert choice.flower.program.startswith("/opt/flower/bin/")
    assert "python -m venv /opt/flower" in stage
    assert "COPY --from=flower /opt/flower /opt/flower\n" in image.partition(" AS coordinator\n")[2]
    for service in (NODE, SUPERNODE, SUPERLINK, CODE):
        assert f" AS {service['build']['target']}\n" in image
    # Flower alone is in its image: nothing of the platform, and what the lock says.
    assert re.findall(r"^COPY (.*)$", stage, re.MULTILINE) == [
        "requirements/flower.lock /opt/flower/",
        f"deploy/flower {choice.flower.app}",
    ]
    assert "--no-deps --requirement /opt/flower/flower.lock" in stage


def test_flower_reports_nothing_to_its_makers():
    known = variables("flower")
    assert (known["FLWR_TELEMETRY_ENABLED"], known["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert "environment" not in SUPERLINK
    assert "--disable-runtime-dependency-installation" in SUPERLINK["command"]
    assert not any("runtime-dependency" in argument for argument in SUPERNODE["command"])  # by default it installs none


def test_no_secret_is_in_a_file_or_a_variable():
    for file in ("compose.participant.yaml", "compose.federation.yaml", "kubernetes/participant.yaml"):
        text = (DEPLOY / file).read_text()
        assert "PRIVATE KEY" not in text
        assert not re.search(r"[0-9a-f]{32}", text)
    assert not any(item["kind"] == "Secret" for item in MANIFESTS)
    environment = NODE["environment"]
    assert environment.keys() <= KNOWN | OTHERS
    assert environment["DPSYNTH_REQUIRE_ENCRYPTED"] == "declared"
    assert {item["name"]: item["value"] for item in IN_POD["node"]["env"]} == environment
    assert "env" not in IN_POD["supernode"]
