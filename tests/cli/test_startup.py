"""What a command or process loads before it has anything to do: seconds of imports that nobody waits for."""

import os
import subprocess
import sys

import pytest

NEVER_FIRST = ("torch", "pandas", "sklearn", "spacy", "duckdb", "deltalake", "nicegui", "jinja2")
"""Loaded by those who use them, and by nobody before."""
ACCOUNTING = ("dp_accounting", "scipy", "mpmath")
EVENTS = ("openlineage", "httpx")
TABLES = ("pyarrow", "numpy")
DATABASE = ("sqlalchemy", "alembic")
KEYS = ("cryptography",)
ORCHESTRATION = ("dagster",)
CONTRACTS = ("dpsynth_platform.contracts.contract",)

ALL_HELP = """
import typer
from click.testing import CliRunner
from dpsynth_platform.cli.main import app

def groups(command, path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from groups(inner, [*path, name])

whole = typer.main.get_command(app)
for path in groups(whole, []):
    shown = CliRunner().invoke(whole, [*path, "--help"])
    assert shown.exit_code == 0 and "Usage" in shown.output, path
"""
COMMAND = """
from dpsynth_platform.cli.main import app
app({!r}, standalone_mode=False)
"""


def loaded(program, home, names):
    """Which of these modules a program has loaded at its end."""
    told = f"{program}\nimport sys; print('loaded:', *[name for name in {names} if name in sys.modules])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "DPSYNTH_"))}
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=environment | {"DPSYNTH_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rpartition("loaded:")[2].split()


def test_help_of_every_command(tmp_path):
    names = (*NEVER_FIRST, *ACCOUNTING, *EVENTS, *TABLES, *DATABASE, *KEYS, *ORCHESTRATION, *CONTRACTS)
    assert loaded(ALL_HELP, tmp_path, names) == []


@pytest.mark.parametrize(
    ("arguments", "not_needed"),
    [
        (["ledger", "show"], (*ACCOUNTING, *EVENTS, *KEYS, *ORCHESTRATION, *CONTRACTS, "pyarrow")),
        (["release", "list"], (*ACCOUNTING, *EVENTS, *ORCHESTRATION)),
    ],
    ids=" ".join,
)
def test_commands_on_an_empty_deployment(arguments, not_needed, tmp_path):
    assert loaded(COMMAND.format(arguments), tmp_path, (*NEVER_FIRST, *not_needed)) == []


@pytest.mark.parametrize("arguments", [["plan", "census"], ["contract", "check", "census", "--offline"]], ids=" ".join)
def test_what_is_asked_of_a_contract_of_a_table(arguments, tmp_path):
    """Planning and checking a table need no neural network."""
    never = ("torch", "transformers", "sklearn", "spacy", "duckdb", "dagster")
    assert loaded(COMMAND.format(arguments), tmp_path, never) == []


@pytest.mark.parametrize(
    ("modules", "not_needed"),
    [
        ("ledger.store, dpsynth_platform.reviewing.accounts", (*ACCOUNTING, *EVENTS, *KEYS, *CONTRACTS, "pyarrow")),
        ("reviewing.verification, dpsynth_platform.synth.planning", (*ACCOUNTING, *EVENTS)),
        ("lineage.uses, dpsynth_platform.lineage.neighbourhood", (*ACCOUNTING, *EVENTS, *KEYS, "pyarrow")),
        ("lineage.emitter, dpsynth_platform.lifecycle.purging", (*ACCOUNTING, *EVENTS)),
        (
            "lifecycle.holds, dpsynth_platform.lifecycle.erasure, dpsynth_platform.lifecycle.owner_keys",
            (*ACCOUNTING, *EVENTS),
        ),
        ("backup.taking, dpsynth_platform.backup.restoring", (*ACCOUNTING, *EVENTS)),
    ],
)
def test_what_commands_are_made_of(modules, not_needed, tmp_path):
    program = f"import dpsynth_platform.{modules}"
    assert loaded(program, tmp_path, (*NEVER_FIRST[:-1], *not_needed, *ORCHESTRATION)) == []
