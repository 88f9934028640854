"""`dpsynth console`: the governance console, and its local users.

What belongs here: arguments and words. What does not: the console itself (`console`), which is imported when it is
started, for NiceGUI takes its time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import SEVERAL, Json, TerminalOutput, command, listed
from dpsynth_platform.console.roles import ROLES, Action, Role
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.console.users import Users

LONGEST_LINE = 5000

console_app = typer.Typer(help="The governance console: pages and a REST API for reviewers and auditors.")
user_app = typer.Typer(no_args_is_help=True, help="The console's local users.")
console_app.add_typer(user_app, name="user")

Name = Annotated[str, typer.Argument(help="The user's name, as it will stand in the ledger.")]
Roles = Annotated[list[str] | None, typer.Option("--role", help=f"{', '.join(ROLES)}; {SEVERAL}.")]
FromInput = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input instead of asking for it.")
]


@console_app.callback(invoke_without_command=True)
@command
def console(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 3900,
    as_json: Json = False,
) -> None:
    """Starts the governance console (ends with Ctrl-C)."""
    if context.invoked_subcommand is not None:
        return
    from dpsynth_platform.console.app import application, serve
    from dpsynth_platform.console.configuration import console_settings
    from dpsynth_platform.console.store import Store
    from dpsynth_platform.console.users import Users
    from dpsynth_platform.foundation.serving import listening_at

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    configured = console_settings(settings, host, port)
    listening = listening_at(host, port)
    app = application(settings, configured)
    output.json({"url": configured.url})
    output.print(f"the console is at {configured.url}; stop with Ctrl-C")
    if configured.local and not (configured.oidc or configured.proxy) and not Users(Store(configured.home)).all():
        output.print("nobody can sign in yet; add somebody with: dpsynth console user add NAME --role reviewer")
    threading.Thread(target=_read_ahead, args=(settings,), daemon=True).start()
    serve(listening, app)


def _read_ahead(settings: Settings) -> None:
    """Reads what most pages need, so that nobody waits for it with the first one."""
    from dpsynth_platform.console.views.overview import overview
    from dpsynth_platform.console.views.releases import releases

    # Whatever is wrong, the pages tell it; a thread's traceback would go to the terminal with all that it quotes.
    with suppress(Exception):
        overview(settings, frozenset(Action))
        releases(settings, frozenset(Action), state="damaged")  # looks at every release there is


@user_app.command("add")
@command
def add(name: Name, role: Roles = None, password_stdin: FromInput = False, as_json: Json = False) -> None:
    """Adds a user with one or several roles, and asks for a password."""
    output, users = TerminalOutput(as_json), _users()
    user = users.add(name, listed(role), _password(password_stdin))
    output.json({"name": user.name, "roles": _ordered(user.roles)})
    output.print(f"{user.name} can sign in now, as {', '.join(_ordered(user.roles))}")


@user_app.command("list")
@command
def list_(as_json: Json = False) -> None:
    """Every local user, with roles."""
    output, users = TerminalOutput(as_json), _users().all()
    rows = [(user.name, _ordered(user.roles), moment(user.changed)) for user in users]
    output.json([{"name": name, "roles": roles, "changed": changed} for name, roles, changed in rows])
    if not rows:
        output.print("There is no local user; add one with: dpsynth console user add NAME --role reviewer")
        return
    output.table(("name", "roles", "changed"), [(name, ", ".join(roles), changed) for name, roles, changed in rows])


@user_app.command("password")
@command
def password(name: Name, password_stdin: FromInput = False, as_json: Json = False) -> None:
    """Changes a user's password, and ends their sessions."""
    output = TerminalOutput(as_json)
    _users().change_password(name, _password(password_stdin))
    output.json({"name": name})
    output.print(f"{name} has a new password, and must sign in again")


@user_app.command("roles")
@command
def roles(name: Name, role: Roles = None, as_json: Json = False) -> None:
    """Gives a user these roles instead of what they had, and ends their sessions."""
    output = TerminalOutput(as_json)
    given = listed(role)
    _users().change_roles(name, given)
    output.json({"name": name, "roles": given})
    output.print(f"{name} is {', '.join(given)} now, and must sign in again")


@user_app.command("remove")
@command
def remove(name: Name, as_json: Json = False) -> None:
    """Removes a user, and ends their sessions. What they decided stays in the ledger."""
    output = TerminalOutput(as_json)
    _users().remove(name)
    output.json({"name": name})
    output.print(f"{name} is removed")


def _ordered(roles: Collection[Role]) -> list[str]:
    return [role for role in ROLES if role in roles]


def _password(from_input: bool) -> str:
    """The password that somebody types twice, or one line of standard input; shown nowhere."""
    if not from_input:
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline(LONGEST_LINE)
    if not line.endswith("\n") and len(line) == LONGEST_LINE:
        raise ConfigurationError(f"--password-stdin: a line of {LONGEST_LINE} characters and more; accepted: less")
    return line.rstrip("\r\n")


def _users() -> Users:
    from dpsynth_platform.console.store import Store
    from dpsynth_platform.console.users import Users

    return Users(Store(Settings.from_environment().console_home))
