"""What the tests of deployment files share: where these are, the variables that are read, and programs' own parsers."""

import re

from dpsynth_platform.foundation import settings as settings_module
from dpsynth_platform.foundation.settings import PACKAGE_ROOT

DEPLOY = PACKAGE_ROOT / "deploy"
KNOWN = {*re.findall(r"\| (DPSYNTH_\w+) \|", settings_module.__doc__ or "")}
OTHERS = {"DAGSTER_HOME", "DAGSTER_POSTGRES_URL", "PGPASSFILE", "OPENLINEAGE_CONFIG", "OMP_NUM_THREADS"}
PINNED = re.compile(r":v?\d+(\.\d+)+(-\w+)*$")


def check_command(command):
    """Parses a command as its program does, and does not run it. The parser ends the test where it refuses."""
    program, *arguments = command
    found = program_of(program)
    while hasattr(found, "commands") and arguments and arguments[0] in found.commands:
        found = found.commands[arguments.pop(0)]
    assert not hasattr(found, "commands") or found.invoke_without_command
    found.make_context(program, arguments)


def program_of(name):
    if name == "dpsynth":
        import typer

        from dpsynth_platform.cli.main import app

        return typer.main.get_command(app)
    if name == "dagster":
        from dagster._cli import create_dagster_cli

        return create_dagster_cli()
    if name == "dagster-daemon":
        from dagster._daemon.cli import create_dagster_daemon_cli

        return create_dagster_daemon_cli()
    from dagster_webserver.cli import dagster_webserver

    assert name == "dagster-webserver"
    return dagster_webserver
