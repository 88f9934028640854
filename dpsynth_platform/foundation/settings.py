"""The deployment's settings: the only reader of the environment.

What belongs here: directories, the ledger's database, the acting person. What does not: anything about one dataset (see
its contract), and OpenLineage's transport, which its client reads from the standard OPENLINEAGE_* variables and
`openlineage.yml`.

| variable | meaning | default |
| --- | --- | --- |
| DPSYNTH_HOME | the deployment: all zones, keys and records | `.dpsynth` in the working directory |
| DPSYNTH_DEPLOY | directory with `contracts/`, `families/` and `dagster.yaml` | `deploy` beside the package |
| DPSYNTH_LEDGER_URL | SQLAlchemy URL of the ledger, such as `postgresql+psycopg://...` | SQLite under DPSYNTH_HOME |
| DPSYNTH_USER | name of the person who runs, approves or refuses | the operating system's user |
| DPSYNTH_DEVICE | accelerator: `auto`, `cpu`, `cuda` | `auto` |
| DPSYNTH_COMPUTE | file that says which SQL engine a dataset has | `compute.yaml` in DPSYNTH_DEPLOY, if there is one |
| DPSYNTH_WORKER | file that says where a dataset's mechanism runs | `worker.yaml` in DPSYNTH_DEPLOY, if there is one |
| DPSYNTH_FEDERATION | file that says where relays of federated runs connect | `federation.yaml` there, if any |
| DPSYNTH_NOTIFY | command that gets each notice on its standard input; started without a shell | none |
| DPSYNTH_NOTIFY_URL | webhook (https) that gets each notice; its address is never shown | none |
| DPSYNTH_NOTIFY_SLACK | incoming webhook of Slack (https) that gets each notice; never shown | none |
| DPSYNTH_NOTIFY_TEAMS | webhook of a workflow of Teams (https) that gets each notice; never shown | none |
| DPSYNTH_NOTIFY_MAIL | mail server: `smtp://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS,ADDRESS` | none |
| DPSYNTH_MEMORY | memory of a mechanism, such as `8GB`; a plan that may need more is refused unpaid | no limit |
| DPSYNTH_MODEL_HUB | `yes`: base models may be downloaded from the Hugging Face hub by their names | no |
| DPSYNTH_TEXT_ENDPOINTS | endpoints for contracts, with commas: `https://HOST[:PORT]`, `http://localhost:PORT` | none |
| DPSYNTH_TEXT_KEY | file (mode 0600) with the key of these endpoints | none |
| DPSYNTH_REQUIRE_ENCRYPTED | `yes`, `declared`: no step writes rows to a disk that is not encrypted | no |
| DPSYNTH_LINEAGE_TOKENS | file of the producers that may report lineage, with the hashes of their tokens | none |
| DPSYNTH_CONSOLE | file that says how people sign in at the console | `console.yaml` in DPSYNTH_DEPLOY, if any |
| DPSYNTH_CONSOLE_URL | the console's address as browsers see it, such as `https://console.example.org` | none |
| DPSYNTH_DAGSTER_URL | the address of Dagster's UI as browsers see it, for links from the console | none |
"""

from __future__ import annotations

import errno
import getpass
import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import parse_qs, quote, urlsplit

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.people import recorded_name
from dpsynth_platform.foundation.sizes import bytes_of, size_of
from dpsynth_platform.foundation.storage import unusable_place

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
DEVICES = ("auto", "cpu", "cuda")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_PLAIN = re.compile(
    rf"(?i:https?)://((?P<name>{_LABEL}(\.{_LABEL})*)|\[(?P<address>[0-9A-Fa-f:.]+)\])(:[0-9]{{1,5}})?(/[A-Za-z0-9._~/-]*)?"
)
REQUIREMENTS = ("no", "yes", "declared")
"""Of encryption at rest. With `declared`, an operator declares disks encrypted that this machine cannot check."""


def keep_two_runtime_threads() -> None:
    """Gives Delta's runtime at least two threads, unless the environment sets their number.

    By default it has a thread per processor. With a single one, writing a table while reading another deadlocks. The
    runtime reads the variable once, at its first use.
    """
    os.environ.setdefault("TOKIO_WORKER_THREADS", str(max(2, len(os.sched_getaffinity(0)))))


@dataclass(frozen=True)
class Settings:
    """One deployment. Tests and `dpsynth plan` construct their own; everything else calls `from_environment`."""

    home: Path
    deploy: Path
    ledger_url: str
    user: str
    device: str = "auto"
    compute: Path | None = None
    worker: Path | None = None
    federation: Path | None = None
    memory: int | None = None
    notify: tuple[str, ...] = ()
    notify_url: str = ""
    notify_slack: str = ""
    notify_teams: str = ""
    notify_mail: str = ""
    require_encrypted: str = "no"
    lineage_tokens: Path | None = None
    model_hub: bool = False
    text_endpoints: tuple[str, ...] = ()
    text_key: Path | None = None
    console: Path | None = None
    console_url: str = ""
    dagster_url: str = ""
    deploy_is_declared: bool = field(default=True, compare=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the DPSYNTH_* variables. Raises `ConfigurationError` for a value that cannot be used."""
        env = os.environ if environment is None else environment
        home = _resolved("DPSYNTH_HOME", env.get("DPSYNTH_HOME") or ".dpsynth")
        if (unusable := unusable_place(home)) is not None:
            raise ConfigurationError(f"DPSYNTH_HOME: {str(home)!r}: {unusable}")
        deploy = _resolved("DPSYNTH_DEPLOY", env.get("DPSYNTH_DEPLOY") or str(PACKAGE_ROOT / "deploy"))
        return cls(
            home=home,
            deploy=deploy,
            ledger_url=env.get("DPSYNTH_LEDGER_URL") or embedded_ledger(home / "ledger"),
            user=recorded_name(env.get("DPSYNTH_USER") or getpass.getuser(), "DPSYNTH_USER"),
            device=_one_of(DEVICES, "DPSYNTH_DEVICE", env) or "auto",
            compute=_chosen("DPSYNTH_COMPUTE", env, deploy / "compute.yaml"),
            worker=_chosen("DPSYNTH_WORKER", env, deploy / "worker.yaml"),
            federation=_chosen("DPSYNTH_FEDERATION", env, deploy / "federation.yaml"),
            memory=_memory(env.get("DPSYNTH_MEMORY") or ""),
            notify=_arguments(env.get("DPSYNTH_NOTIFY") or ""),
            notify_url=_webhook("DPSYNTH_NOTIFY_URL", env),
            notify_slack=_webhook("DPSYNTH_NOTIFY_SLACK", env),
            notify_teams=_webhook("DPSYNTH_NOTIFY_TEAMS", env),
            notify_mail=_mail(env.get("DPSYNTH_NOTIFY_MAIL") or ""),
            require_encrypted=_one_of(REQUIREMENTS, "DPSYNTH_REQUIRE_ENCRYPTED", env) or "no",
            lineage_tokens=_path("DPSYNTH_LINEAGE_TOKENS", env),
            model_hub=_yes("DPSYNTH_MODEL_HUB", env.get("DPSYNTH_MODEL_HUB") or "no"),
            text_endpoints=_origins("DPSYNTH_TEXT_ENDPOINTS", env.get("DPSYNTH_TEXT_ENDPOINTS") or ""),
            text_key=_path("DPSYNTH_TEXT_KEY", env),
            console=_chosen("DPSYNTH_CONSOLE", env, deploy / "console.yaml"),
            console_url=_address("DPSYNTH_CONSOLE_URL", env.get("DPSYNTH_CONSOLE_URL") or ""),
            dagster_url=_link("DPSYNTH_DAGSTER_URL", env.get("DPSYNTH_DAGSTER_URL") or ""),
            deploy_is_declared=bool(env.get("DPSYNTH_DEPLOY")),
        )

    @property
    def ledger_url_is_configured(self) -> bool:
        """Whether the ledger is not the embedded default; its URL may then contain a password."""
        return self.ledger_url != embedded_ledger(self.ledger)

    @property
    def has_ledger(self) -> bool:
        """Whether the ledger exists; a configured one is assumed to."""
        return self.ledger_url_is_configured or (self.home / "ledger" / "ledger.db").exists()

    @property
    def has_receivers(self) -> bool:
        """Whether notices of candidates, releases and failed runs have a receiver."""
        return bool(self.notify or self.notify_url or self.notify_slack or self.notify_teams or self.notify_mail)

    @property
    def variables(self) -> dict[str, str]:
        """Variables for ${NAME} in contracts."""
        return {"DPSYNTH_HOME": str(self.home)}

    def shown(self, text: str) -> str:
        """A text with the deployment's directories replaced by variables: `${DPSYNTH_HOME}/public/census`."""
        places = {str(self.home): "${DPSYNTH_HOME}", str(self.deploy): "${DPSYNTH_DEPLOY}"}
        longest = sorted(places, key=len, reverse=True)  # one may contain the other
        # Whole paths only: neither `/srv/dpsynth-old` nor a suffix of another path.
        found = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, longest))})(?!-|\.?\w)")
        return found.sub(lambda match: places[match[1]], text)

    @property
    def contracts(self) -> Path:
        """Directory of the contract files."""
        return self.deploy / "contracts"

    @property
    def families(self) -> Path:
        """Directory of the family budget files."""
        return self.deploy / "families"

    @property
    def vault(self) -> Path:
        """Directory of the keys, outside every table's directory."""
        return self.home / "vault"

    @property
    def ledger(self) -> Path:
        """Directory of the embedded ledger."""
        return self.home / "ledger"

    @property
    def restricted(self) -> Path:
        """Root of the restricted zone: rows, fingerprints, models."""
        return self.home / "restricted"

    @property
    def sensitive_places(self) -> dict[str, Path]:
        """Directories with rows, fingerprints or keys, by their name in messages."""
        kept = {"restricted zone": self.restricted, "vault": self.vault}
        return kept if self.ledger_url_is_configured else kept | {"ledger": self.ledger}

    @property
    def base_models(self) -> Path:
        """Directory of base models, converted or downloaded once."""
        return self.home / "base_models"

    @property
    def console_home(self) -> Path:
        """Directory of the console's users and sessions."""
        return self.home / "console"

    @property
    def lineage_file(self) -> Path:
        """The platform's own record of lineage events."""
        return self.home / "lineage" / "events.jsonl"

    @property
    def dagster_home(self) -> Path:
        """Dagster's instance directory."""
        return self.home / "dagster"

    def export(self) -> None:
        """Writes these settings to the environment of child processes."""
        os.environ.update(
            DPSYNTH_HOME=str(self.home),
            DPSYNTH_DEPLOY=str(self.deploy),
            DPSYNTH_LEDGER_URL=self.ledger_url,
            DPSYNTH_USER=self.user,
            DPSYNTH_DEVICE=self.device,
            DPSYNTH_COMPUTE=str(self.compute or ""),
            DPSYNTH_WORKER=str(self.worker or ""),
            DPSYNTH_FEDERATION=str(self.federation or ""),
            DPSYNTH_MEMORY=size_of(self.memory) if self.memory else "",
            DPSYNTH_NOTIFY=shlex.join(self.notify),
            DPSYNTH_NOTIFY_URL=self.notify_url,
            DPSYNTH_NOTIFY_SLACK=self.notify_slack,
            DPSYNTH_NOTIFY_TEAMS=self.notify_teams,
            DPSYNTH_NOTIFY_MAIL=self.notify_mail,
            DPSYNTH_REQUIRE_ENCRYPTED=self.require_encrypted,
            DPSYNTH_LINEAGE_TOKENS=str(self.lineage_tokens or ""),
            DPSYNTH_MODEL_HUB="yes" if self.model_hub else "no",
            DPSYNTH_TEXT_ENDPOINTS=",".join(self.text_endpoints),
            DPSYNTH_TEXT_KEY=str(self.text_key or ""),
            DPSYNTH_CONSOLE=str(self.console or ""),
            DPSYNTH_CONSOLE_URL=self.console_url,
            DPSYNTH_DAGSTER_URL=self.dagster_url,
            DAGSTER_HOME=str(self.dagster_home),
        )


def bare_environment() -> dict[str, str]:
    """For another program: the environment without anything of the deployment's own, or of its stores."""
    return {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}


def embedded_ledger(directory: Path) -> str:
    """URL of the SQLite ledger in a directory.

    Quoted, since a question mark or percent sign in a directory's name would lead to another ledger.
    """
    return f"sqlite:///{quote(str(directory / 'ledger.db'))}"


def _chosen(name: str, env: Mapping[str, str], own: Path) -> Path | None:
    """The named file, existing or not (its reader reports that), else the deployment's own if it exists."""
    if env.get(name):
        return _path(name, env)
    return own if os.path.lexists(own) else None  # its reader refuses what is not a file


def _path(name: str, env: Mapping[str, str]) -> Path | None:
    named = env.get(name)
    return _resolved(name, named) if named else None


def _resolved(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        raise ConfigurationError(f"{name}: {text[:200]!r} cannot be resolved; accepted: a path") from None


def _memory(text: str) -> int | None:
    if not text:
        return None
    try:
        return bytes_of(text)
    except ValueError:
        raise ConfigurationError(f"DPSYNTH_MEMORY: {text!r}; accepted: such as 800MB or 8GB") from None


def _yes(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigurationError(f"{name}: {text!r}; accepted: yes, no")
    return text == "yes"


def _one_of(accepted: tuple[str, ...], name: str, env: Mapping[str, str]) -> str:
    text = env.get(name) or ""
    if text and text not in accepted:
        raise ConfigurationError(f"{name}: {text!r}; accepted: {', '.join(accepted)}")
    return text


def _arguments(text: str) -> tuple[str, ...]:
    """A command's words, quoted as for a shell. They may be secret: the error does not show them."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise ConfigurationError("DPSYNTH_NOTIFY: an open quotation; accepted: a command as for a shell") from None


def _webhook(name: str, env: Mapping[str, str]) -> str:
    """A URL that may be secret: the error does not show it."""
    text = env.get(name) or ""
    if text and not is_protected(text):
        raise ConfigurationError(
            f"{name}: accepted: https://HOST/..., or http://localhost/...; without user and password"
        )
    return text


def _mail(text: str) -> str:
    """A mail server's URL, which may contain a password: the error does not show it."""
    if text and not _is_mail(text):
        raise ConfigurationError(
            "DPSYNTH_NOTIFY_MAIL: accepted: smtp://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS,ADDRESS (quoted as "
            "URLs are), or smtps://"
        )
    return text


def _is_mail(text: str) -> bool:
    try:
        parts = urlsplit(text)
        asked = parse_qs(parts.query, strict_parsing=True)
        named = parts.scheme in ("smtp", "smtps") and bool(parts.hostname) and parts.port != 0 and not parts.path
    except ValueError:
        return False
    senders, recipients = asked.get("from", []), ",".join(asked.get("to", [])).split(",")
    whole = named and asked.keys() == {"from", "to"} and len(senders) == 1 and text.isascii() and text.isprintable()
    return whole and all(re.fullmatch(r"[^@\s,<>]+@[^@\s,<>]+", address) for address in (*senders, *recipients))


def _address(name: str, text: str) -> str:
    """A server's address, `scheme://host[:port]`."""
    bare = text.removesuffix("/").lower()
    if bare and not (is_protected(bare) and re.fullmatch(r"https?://[^/?#]+", bare)):
        raise ConfigurationError(f"{name}: accepted: https://HOST[:PORT], or http://localhost[:PORT]; without a path")
    usual = ":443" if bare.startswith("https") else ":80"
    return bare.removesuffix(usual)  # browsers leave it out


def _origins(name: str, text: str) -> tuple[str, ...]:
    """Distinct origins of servers, separated by commas."""
    parts = [part.strip().removesuffix("/") for part in text.split(",") if part.strip()]
    for part in parts:
        if not is_plain(part) or part.count("/") > 2:
            raise ConfigurationError(
                f"{name}: {without_secrets(part)}; accepted: https://HOST[:PORT], or http://localhost[:PORT], without "
                "a path; a comma between two of them"
            )
    return tuple(dict.fromkeys(map(origin, parts)))


def _link(name: str, text: str) -> str:
    """An address for links, with or without a path."""
    if text and not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/-]*)?", text):
        raise ConfigurationError(f"{name}: accepted: http(s)://HOST[:PORT][/PATH]")
    return text.removesuffix("/")


def is_protected(text: str) -> bool:
    """Whether a connection to this address cannot be intercepted: https, or http to this machine."""
    try:
        parts = urlsplit(text)
        encrypted = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in THIS_MACHINE)
        named = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
    return encrypted and named and text.isascii() and text.isprintable() and " " not in text


def without_secrets(address: str) -> str:
    """A refused address for an error, hidden where it may contain a password or a key."""
    return "an address with a user or a query" if set(address) & {"@", "?", "#"} else repr(address)


def is_plain(text: str) -> bool:
    """Whether it is a protected address that all parsers read alike: a plain host, with optional port and path.

    Parsers of URLs disagree about hosts with other characters, so the checked host could differ from the contacted one.
    """
    found = _PLAIN.fullmatch(text)
    if not found or not is_protected(text):
        return False
    host = found["address"] or found["name"]
    if found["address"] or host.rpartition(".")[2].isdecimal():
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
    return True


def origin(url: str) -> str:
    """Origin of a plain address (`is_plain`): scheme, host and port in lower case, without the default port."""
    parts = urlsplit(url.lower())
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def terminal_copy() -> TextIO:
    """A copy of standard output, which keeps printing to the terminal while that is redirected.

    Discards the text where standard output is closed. Escapes what is not text (half a character of an argument).
    """
    try:
        descriptor = os.dup(1)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


def host_of_pgpassword() -> str | None:
    """The host that PostgreSQL's password in a variable is for; empty: not said; None: there is no such password."""
    return os.environ.get("PGHOST", "") if "PGPASSWORD" in os.environ else None


def has_mysql_password() -> bool:
    """Whether there is a password in a variable that MySQL's own client sends to any host."""
    return "MYSQL_PWD" in os.environ


def s3_endpoint() -> str:
    """The endpoint of S3, from the variables of its own tools, which Arrow does not read; empty: that of Amazon."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def inherited_environment() -> dict[str, str]:
    """A copy of this process's environment, for launchers that pass on parts of it."""
    return dict(os.environ)
