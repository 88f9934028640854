"""Every loader of a file that a person writes, over garbage: either it reads it, or it says what is wrong in own words.

What is found here becomes a fixed case below, with the bytes that it was found with.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bad_files import BOMB
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.compute.choice import engine_choice
from dpsynth_platform.console.configuration import console_settings
from dpsynth_platform.contracts.constraints import read_constraints
from dpsynth_platform.contracts.loading import load_contract, load_family
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.foundation.yaml_files import dump, read_yaml
from dpsynth_platform.lineage.producers import load_producers
from dpsynth_platform.one_table.declaration import read_declared
from dpsynth_platform.reviewing.catalogue import catalogue, published_beside
from dpsynth_platform.reviewing.releases import published
from dpsynth_platform.secrets.choice import keeper_of
from dpsynth_platform.synth.planning import check_contract, load_all
from dpsynth_platform.worker.choice import worker_choice

DEPLOY = PACKAGE_ROOT / "deploy"
SCHEMA = """columns:
  age: {type: integer, min: 0, max: 99, bins: [10, 20], points: [0]}
  size: {type: float, min: 0.5, max: 9.5, decimals: 1, nullable: true}
  day: {type: date, min: 2026-01-01, max: 2026-12-31}
  moment: {type: datetime, min: 2026-01-01T00:00:00, max: 2026-12-31T00:00:00, resolution: 1h}
  opens: {type: time, min: '08:00', max: '20:00'}
  city: {type: categorical, values: [Aix, Bern, '01']}
  firm: {type: categorical, values: learned, most: 7}
  code: {type: categorical, values: [1, 2, 3]}
"""
CONSTRAINTS = """constraints:
  - forbid: {age: {max: 14}, city: [Aix, Bern]}
  - only: [{city: Aix, code: [1, 2]}, {city: Bern, age: {min: 3, max: 9}}]
  - {column: city, determines: code, mapping: {Aix: 1, Bern: 2}}
  - {ascending: [age, size], strict: true}
"""
COMPUTE = """default: {engine: duckdb, memory: 2GB, threads: 2}
datasets:
  visits: {engine: spark, master: "local[2]", memory: 2GB, partitions: 8, options: {spark.cores.max: "32"}}
"""
WORKER = """default: {launcher: local, processes: 2}
datasets:
  mail: {launcher: kubernetes, namespace: workers, image: "registry/dpsynth:0.1.0", gpus: 1, labels: {a: b},
         volumes: [{claim: restricted, path: /srv/restricted}], tolerations: [gpu], cpu: 2, user: 10001}
  visits: {launcher: ray, address: "http://head:8265", python: /opt/bin/python, resources: {a100: 1}}
"""
CONSOLE = """local: true
sessions: {idle_minutes: 30, longest_hours: 10}
oidc:
  issuer: https://id.example.org/realms/governance
  client_id: dpsynth-console
  scopes: [openid, email]
  roles: {reviewer: [privacy-board], auditor: [audit]}
proxy:
  addresses: [10.20.0.0/16]
  secret_file: /run/secrets/console-proxy
  roles: {reviewer: [privacy-board]}
"""
AWS = "{manager: aws, region: eu-central-1, prefix: dpsynth}"
PRODUCERS = f"airflow: {'0' * 64}\n# a comment\n"
SEEDS = {
    **{path.name: path.read_text(encoding="utf-8") for path in sorted(DEPLOY.glob("[cf][oa][nm]*/*.yaml"))},
    **{"schema": SCHEMA, "constraints": CONSTRAINTS, "compute": COMPUTE, "worker": WORKER, "console": CONSOLE},
    **{"aws": AWS, "producers": PRODUCERS, "columns": f"{SCHEMA}{CONSTRAINTS}"},
}


def _deployment(path: Path) -> Settings:
    """The deployment with the real families, whose one contract or further family is a file."""
    place, content = path.parent / "deployment", path.read_bytes()
    named = re.search(rb"^dataset: ([a-z_]{1,60})$", content, re.MULTILINE)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(DEPLOY / "families", place / "families")
    (place / "contracts").mkdir()
    (place / "contracts" / f"{named[1].decode() if named else 'x'}.yaml").write_bytes(content)
    (place / "families" / "x.yaml").write_bytes(content)
    return Settings(home=place / "home", deploy=place, ledger_url="sqlite://", user="tester")


def _whole(path: Path) -> None:
    """All that looks at many files raises nothing, and has each fault as words that every file and terminal takes."""
    deployment = _deployment(path)
    faults = map(str, load_all(deployment)[1])
    found = catalogue(deployment)
    assert (published(deployment), published_beside(deployment, ())) == ([], {})
    for fault in (*faults, *found.faults.values(), *found.family_faults.values()):
        assert json.dumps(fault).isascii()
        assert fault.encode()
        assert "cannot be used (" not in fault, fault  # what the parsers did not foresee


def _console(path: Path) -> None:
    console_settings(replace(_deployment(path), console=path), "127.0.0.1", 3900)


def _keeper(path: Path) -> None:
    directory = path.parent / "vault"
    directory.mkdir(exist_ok=True)
    (directory / "manager.yaml").write_bytes(path.read_bytes())
    keeper_of(directory)


def _producers(path: Path) -> None:
    path.chmod(0o600)
    load_producers(path)


def _contract(path: Path) -> None:
    """What is accepted is sealed as JSON, and read back the same."""
    contract = load_contract(path, {"DPSYNTH_HOME": "/home"})
    assert type(contract).model_validate(json.loads(json.dumps(contract.snapshot()))) == contract


LOADERS: dict[str, Callable[[Path], object]] = {
    "yaml": read_yaml,
    "contract": _contract,
    "family": load_family,
    "check": lambda path: check_contract(_deployment(path), path),
    "deployment": _whole,
    "schema": lambda path: read_declared(path, None),
    "constraints": read_constraints,
    "compute": lambda path: engine_choice(path, "visits"),
    "worker": lambda path: worker_choice(path, "mail"),
    "console": _console,
    "keeper": _keeper,
    "producers": _producers,
}


def tried(path: Path, content: bytes) -> None:
    """Has every loader read it. Any other error than the platform's own fails the test."""
    path.write_bytes(content)
    for name, load in LOADERS.items():
        said = ""
        try:
            load(path)
        except (ContractError, ConfigurationError) as error:
            said = str(error)
            assert error.__context__ is None or not isinstance(error.__context__, MemoryError | RecursionError)
        assert "pydantic" not in said, name
        assert "cannot be used (" not in said, said
        assert len(said) < 200_000, name


def _values(node: str) -> list[str]:
    """What a scalar is replaced with."""
    return [
        *("", "~", "01", "08", "1.10", "-0", "1e3", "1e308", "1e999", "-1", "0", "9" * 301, "9" * 299, "1_000", "true"),
        *("2026-02-30", "0001-01-01T00:00:00+14:00", "9999-12-31", "12:30", "24:00", "2026-13", "NO", "'1e99999999'"),
        *("[]", "{}", "[[]]", "{a: {b: c}}", "[1, a, ~]", "{1: 2}", "{~: 1}", "*x", "&x 1", "!!int 1", "20260101"),
        *("${DPSYNTH_HOME}", "${NOWHERE}", "/" * 300, f"/{'a' * 300}", "'x\n\n  y'", "\u202e", "~nobody/x", '"\\0"'),
        *("'(a?){99}'", "'((('", "'[z-a]'", "'\\\\'", f"'{'a' * 5000}'", node * 2, "auto", '"\\uFFFF"'),
    ]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound file with a few scalars, lines or bytes changed."""
    text = draw(st.sampled_from(sorted(SEEDS.values())))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["scalar", "scalar", "scalar", "line", "twice", "cut", "character"]))
        if kind == "scalar":
            words = list(re.finditer(r"[^\s,:\[\]{}]+", text)) or [re.match("", text)]
            word = draw(st.sampled_from(words))
            assert word is not None
            text = text[: word.start()] + draw(st.sampled_from(_values(word[0]))) + text[word.end() :]
        else:
            lines = text.split("\n")
            at = draw(st.integers(0, len(lines) - 1))
            if kind == "line":
                del lines[at]
            elif kind == "twice":
                lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
            elif kind == "cut":
                lines = lines[: at + 1]
            else:
                column = draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:column] + draw(st.characters(codec="utf-8")) + lines[at][column:]
            text = "\n".join(lines)
    return text.encode("utf-8", "surrogateescape")


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
KEYS = st.sampled_from(
    ["columns", "type", "min", "max", "values", "privacy", "release", "default", "datasets", "engine", "constraints"]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
BOUNDED = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@BOUNDED
@given(content=mutated())
def test_sound_files_with_mistakes(tmp_path: Path, content: bytes) -> None:
    tried(tmp_path / "census.yaml", content)


@BOUNDED
@given(document=st.dictionaries(KEYS, TREES, max_size=4))
def test_any_document(tmp_path: Path, document: dict[str, Any]) -> None:
    tried(tmp_path / "census.yaml", dump(document).encode("utf-8", "surrogatepass"))


@BOUNDED
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    tried(tmp_path / "census.yaml", content)


VARIABLES = {
    "DPSYNTH_HOME": ("/srv/dpsynth", "~", "~nobody-at-all/x", f"/{'a' * 300}", "/dev/null"),
    "DPSYNTH_DEPLOY": ("/srv/deploy", "~nobody-at-all"),
    "DPSYNTH_USER": ("rita", "\n", " ", "a" * 500),
    "DPSYNTH_DEVICE": ("cuda",),
    "DPSYNTH_COMPUTE": ("/srv/compute.yaml", "~nobody-at-all/c"),
    "DPSYNTH_MEMORY": ("8GB", "0GB"),
    "DPSYNTH_NOTIFY": ("notify-send 'a b'", "'"),
    "DPSYNTH_NOTIFY_URL": ("https://hooks.example.org/x", "https://[", "https://[::1"),
    "DPSYNTH_NOTIFY_MAIL": (
        "smtp://u:p@mail.example.org:587?from=a@b.c&to=d@e.f",
        "smtp://[?",
        "smtp://h:99999?from=a@b.c&to=d@e.f",
    ),
    "DPSYNTH_TEXT_ENDPOINTS": ("https://models.example.org", "https://[::1]", "https://[:::]"),
    "DPSYNTH_CONSOLE_URL": ("https://console.example.org", "https://[x", "http://localhost:99999999"),
    "DPSYNTH_DAGSTER_URL": ("https://dagster.example.org/ui", "https://[]"),
    "DPSYNTH_LEDGER_URL": ("sqlite:///x.db", "::", "postgresql+psycopg://u:p@h/d"),
    "DPSYNTH_LINEAGE_TOKENS": ("/srv/tokens", "~nobody-at-all/t"),
}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(BOUNDED, max_examples=400)
@given(
    st.dictionaries(st.sampled_from(sorted(VARIABLES)), TEXT, max_size=2),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(texts) for name, texts in VARIABLES.items()}),
)
def test_any_environment(odd: dict[str, str], known: dict[str, str]) -> None:
    try:
        Settings.from_environment(known | odd)
    except ConfigurationError as error:
        assert str(error).startswith("DPSYNTH_")


CENSUS = SEEDS["census.yaml"]
FOUND = {
    "an overlong name in a path": CENSUS.replace("${DPSYNTH_HOME}/public", f"/{'a' * 300}"),
    "an overlong path": CENSUS.replace("${DPSYNTH_HOME}/public", "/" + "/".join(["a" * 200] * 30)),
    "a NUL in a path": CENSUS.replace("${DPSYNTH_HOME}/public", "\\0"),
    "a NUL in a key": CENSUS.replace("family:", '"fam\\0ily":'),
    "a date that is none": CENSUS.replace("{type: integer, min: 17, max: 90}", "{type: date, max: 2026-02-30}"),
    "a date before all dates": CENSUS.replace("integer, min: 17, max: 90", "datetime, min: 0001-01-01T00:00:00+14:00"),
    "ten thousand digits": CENSUS.replace("48000", "9" * 10_000),
    "more units than people": CENSUS.replace("48000", "9" * 299),
    "edges beyond double precision": CENSUS.replace(
        "max: 90}", f"max: 90, bins: [{'9' * 299}], points: [{'9' * 299}]}}"
    ),
    "an exponent of a billion": CENSUS.replace(
        "constraints:", "constraints:\n    - forbid: {age: '1e999999999', sex: Male}"
    ),
    "a recursive alias": "a: &a [*a]",
    "a recursive alias behind another": "a: &a {b: &b [*a]}",
    "an alias bomb": BOMB,
    "deep nesting": "[" * 100_000,
    "deep nesting of mappings": "{a: " * 100_000,
    "a merge of nothing": "<<: *x",
    "a text for a part": "privacy: 3\ncolumns: 4\nsource: [5]\nrelease: ~\ngenerate: x\naudit: 7",
    "lists for columns": CENSUS.replace("columns:", "columns: [1]\ncolumns2:"),
    "half of a character": 'a: "\\ud800"',
    "a choice of a list": "default: [1]\ndatasets: [visits]",
    "a choice of a choice": "default: {engine: {engine: duckdb}}\ndatasets: {visits: ~}",
    "a launcher that is a list": "default: {launcher: [local]}",
    "an issuer that is no address": "oidc: {issuer: 'https://[', client_id: x}",
    "a manager that is a mapping": "{manager: {aws: 1}}",
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(tmp_path: Path, name: str) -> None:
    tried(tmp_path / "census.yaml", FOUND[name].encode())
