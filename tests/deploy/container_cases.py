"""Services of compose files as processes: what a container is, without an engine and without images.

Each process has a root of its own, which is read-only, with the service's volumes and secrets at their paths; its user
and no capabilities; the variables of its image; and a network for each of the service's. Programs are this
environment's. Needs root, for namespaces.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from file_cases import DEPLOY
from flower_cases import FLOWER

from dpsynth_platform.foundation.settings import PACKAGE_ROOT

IMAGE = (DEPLOY / "Dockerfile").read_text()
PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", sys.base_prefix, os.path.realpath(sys.prefix), str(PACKAGE_ROOT))
OF_FLOWER = str(FLOWER.resolve().parent)
PLATFORM = ("cpu", "coordinator")
LAUNCH = Path(__file__).with_name("container_launch.py")


def variables(stage):
    """What a stage of the Dockerfile, and those that it is built on, set in the environment."""
    if stage is None:
        return {"PATH": "/usr/sbin:/usr/bin"}
    head, _, rest = IMAGE.partition(f" AS {stage}\n")
    parent = head.rpartition("FROM ")[2].replace("${PLATFORM}", "cpu")
    found = {} if "/" in parent else variables(parent)
    block = rest.partition("\nFROM ")[0].replace("\\\n", " ")
    for line in re.findall(r"^ENV (.*)$", block, re.MULTILINE):
        for name, value in (item.split("=", 1) for item in line.split()):
            found[name] = value.replace("$PATH", found.get("PATH", "/usr/bin:/bin"))
    return found


def can_contain():
    """Whether this process may make namespaces and bridges."""
    script = "ip link add b0 type bridge && ip link add v0 type veth peer name v1 && mount -t tmpfs none /mnt"
    try:
        tried = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", script], capture_output=True, check=False)
    except OSError:
        return False
    return tried.returncode == 0 and os.geteuid() == 0


class Networks:
    """Bridges, by name, in a namespace that leads nowhere else."""

    def __init__(self, stack):
        self._hub = stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "infinity"]))
        stack.callback(self._hub.kill)
        self._names, self._hosts, self._last = {}, {}, 0
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{self._hub.pid}/ns/net").readlink() == own:
            time.sleep(0.01)

    def join(self, network, *hosts):
        """A new address in a network, under these names; one of the same first name has left."""
        if network not in self._names:
            self._names[network] = len(self._names)
            bridge = f"b{self._names[network]}"
            for command in (["add", bridge, "type", "bridge"], ["set", bridge, "up"]):
                subprocess.run(["nsenter", "-t", str(self._hub.pid), "-n", "ip", "link", *command], check=True)
        known = self._hosts.setdefault(network, {})
        self._last += 1
        address = f"10.9.{self._names[network]}.{self._last}"
        known[hosts[0]] = (hosts, address)
        return {"hub": self._hub.pid, "bridge": f"b{self._names[network]}", "address": address}

    def hosts(self, networks):
        """The lines of a hosts file, with those that have joined so far."""
        known = [item for network in networks for item in self._hosts.get(network, {}).values()]
        return "".join(f"{address} {' '.join(names)}\n" for names, address in [(("localhost",), "127.0.0.1"), *known])


class Project:
    """The services of one compose file. `place` has volumes, secrets and logs, by their names.

    Args:
        beside: the compose file's directory, for what it mounts from there.
    """

    def __init__(self, place, services, networks, stack, beside, values=None):
        self.place, self._services, self._networks, self._stack = place, services, networks, stack
        self._beside, self._values, self._number = beside, values or {}, 0

    def volume(self, name, owner=10001, mode=0o700):
        """A new volume, as an engine makes it: from an image's directory."""
        made = self.place / "volumes" / name
        made.mkdir(parents=True)
        os.chown(made, owner, 10001)
        made.chmod(mode)

    def secret(self, name, content, user, mode=0o600):
        made = self.place / "secrets" / name
        made.parent.mkdir(exist_ok=True)
        made.write_bytes(content)
        os.chown(made, user, 10001)
        made.chmod(mode)

    def start(self, name, stage, command=None, *, hosts=(), environment=None, more=(), user=None, log=None):
        """A service's process; what it prints is in `log(name)`.

        Args:
            stage: of the Dockerfile; None: another image.
            command, environment, user: in place of the service's.
            hosts: further names of it in its networks.
            more: files that it sees besides: source, path.
        """
        service, self._number = self._services[name], self._number + 1
        networks, root = service.get("networks", ()), self.place / f"root-{self._number}"
        root.mkdir()
        given = service.get("environment", {}) if environment is None else environment
        joined = [self._networks.join(network, name, *hosts) for network in networks]
        mounts = [(target, self._source(source), how != ["ro"]) for source, target, *how in self._volumes(service)]
        mounts += [
            (f"/run/secrets/{each}", self.place / "secrets" / each, False) for each in service.get("secrets", ())
        ]
        mounts += [(path, source, False) for source, path in [*more, (DEPLOY / "flower", "/opt/flower/relay")]]
        mounts = [(target, str(source), writable) for target, source, writable in mounts]
        scratch = [each.partition(":") for each in service.get("tmpfs", ())]
        spec = {
            "root": str(root),
            "programs": [path for path in (*PROGRAMS, OF_FLOWER) if Path(path).exists()],
            "flower": OF_FLOWER,
            "platform": sys.prefix,
            "hosts": self._networks.hosts(networks),
            "mounts": mounts + [(target, None, how or "mode=1777") for target, _, how in scratch],
            "networks": joined,
            "user": (user or service["user"]).split(":"),
            "core": service.get("ulimits", {}).get("core"),
            "environment": variables(stage)
            | {"PYTHONPATH": str(PACKAGE_ROOT)}  # in place of an installation
            | {key: str(value) for key, value in given.items()},
            "command": [str(part) for part in command or service["command"]],
        }
        if stage not in PLATFORM:
            del spec["environment"]["PYTHONPATH"]
        name = log or name
        with self.log(name).open("ab") as log:
            self.log(name).chmod(0o666)  # nginx opens /dev/stderr anew
            process = subprocess.Popen(
                ["unshare", "--mount", "--net", sys.executable, str(LAUNCH), json.dumps(spec)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(_ended, process)
        return process

    def log(self, name):
        return self.place / f"{name}.log"

    def _volumes(self, service):
        for volume in service.get("volumes", ()):
            yield re.sub(r"\$\{(\w+)[^}]*\}", lambda found: self._values[found[1]], volume).split(":")

    def _source(self, source):
        return (self._beside / source) if source.startswith((".", "/")) else self.place / "volumes" / source


def _ended(process):
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
