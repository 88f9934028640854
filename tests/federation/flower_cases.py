"""Flower's processes on this machine: a SuperLink with TLS, SuperNodes with keys, and the relay."""

import datetime as dt
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

FLOWER = Path(sys.prefix) / "flower" / "bin"
RELAY = Path(__file__).parents[2] / "deploy" / "flower"
SECONDS = 120


def _written(path, key, public=None):
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def certificate(place, *hosts):
    """A certificate of 127.0.0.1 and further names that vouches for itself; returns the paths of it and of its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    path = place / "server.crt"
    path.write_bytes(built.public_bytes(Encoding.PEM))
    return path, _written(place / "server.key", key)


def node_key(place, name):
    """A SuperNode's key pair; returns the paths of the private and the public one."""
    key, path = ec.generate_private_key(ec.SECP384R1()), place / f"{name}.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return path, public


def own_port(stack):
    """A port on which a process may listen: bound and not listening, so that no other one gets it meanwhile."""
    held = stack.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1]


def wait_until(true, what):
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def listens(port):
    with socket.socket() as end:
        return end.connect_ex(("127.0.0.1", port)) == 0


class Flower:
    """A SuperLink in a directory, with what was started for it."""

    def __init__(self, place, stack):
        self.place, self._stack, self.port = place, stack, own_port(stack)
        self.certificate, self.key = certificate(place, "localhost")
        self._tls = (
            "--ssl-certfile",
            self.certificate,
            "--ssl-keyfile",
            self.key,
            "--ssl-ca-certfile",
            self.certificate,
        )
        (place / "home").mkdir()
        (place / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.certificate}"\n'
        )
        self.start(
            "superlink",
            FLOWER / "flower-superlink",
            *self._tls,
            *("--port", self.port, "--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        wait_until(lambda: listens(self.port), "the SuperLink does not listen")

    def environment(self, home):
        others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        return others | quiet | {"PATH": f"{FLOWER}:{os.environ['PATH']}"}

    def start(self, name, *command, home=None):
        """A process of a session of its own; its output goes to a file."""
        with (self.place / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment(home or self.place / "home"),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(_ended, process)
        return process

    def call(self, *command):
        """Runs Flower's command to its end."""
        done = subprocess.run(
            [str(FLOWER / "flwr"), *map(str, command)],
            env=self.environment(self.place / "home"),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def add_node(self, name, place):
        """A SuperNode that brings messages to the socket at a path."""
        private, public = node_key(self.place, name)
        self.call("supernode", "register", public, "local")
        home = self.place / f"home-{name}"
        home.mkdir()
        return self.start(
            f"supernode-{name}",
            FLOWER / "flower-supernode",
            *("--root-certificates", self.certificate, "--superlink", f"127.0.0.1:{self.port}"),
            *("--auth-supernode-private-key", private, "--port", own_port(self._stack), *self._tls),
            *("--node-config", f'socket="{place}"'),
            home=home,
        )

    def relay_to(self, place, seconds=60.0):
        """Starts the relay, which connects to a coordinator's socket."""
        self.call("run", RELAY, "local", "--run-config", f'socket="{place}" timeout={seconds}')


def _ended(process):
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@contextmanager
def flower(place):
    with ExitStack() as stack:
        yield Flower(place, stack)
