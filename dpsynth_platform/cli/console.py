"""`dpsynth console`: the governance console, and its local users.

What belongs here: arguments and output. What does not: the console itself (`console`), which is imported when it
starts, since NiceGUI takes seconds to import.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, command, listed
from dpsynth_platform.console.roles import ROLES, Action, Role
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.console.users import Users

LONGEST_LINE = 5000

console_app = Commands(help="The governance console: pages and a REST API for reviewers and auditors.")
user_app = Commands(no_args_is_help=True, help="The console's local users.")
console_app.add_typer(user_app, name="user")

Name = Annotated[str, typer.Argument(help="The user's name, as the ledger will record it.")]
Roles = Annotated[list[str] | None, typer.Option("--role", help=f"{', '.join(ROLES)}; {SEVERAL}.")]
FromInput = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input instead of asking for it.")
]


@console_app.callback(invoke_without_command=True)
@command
def console(
    output: TerminalOutput,
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 3900,
) -> None:
    """Starts the governance console (ends with Ctrl-C)."""
    if context.invoked_subcommand is not None:
        return
    from dpsynth_platform.console.app import application, serve
    from dpsynth_platform.console.configuration import console_settings
    from dpsynth_platform.console.store import Store
    from dpsynth_platform.console.users import Users
    from dpsynth_platform.foundation.serving import listening_at

    settings = Settings.from_environment()
    configured = console_settings(settings, host, port)
    listening = listening_at(host, port)
    app = application(settings, configured)
    output.json({"url": configured.url})
    output.print(f"the console is at {configured.url}; stop with Ctrl-C")
    if configured.local and not (configured.oidc or configured.proxy) and not Users(Store(configured.home)).all():
        output.print("there is no user yet; add one with: dpsynth console user add NAME --role reviewer")
    threading.Thread(target=_read_ahead, args=(settings,), daemon=True).start()
    serve(listening, app)


def _read_ahead(settings: Settings) -> None:
    """Loads what most pages need, so that the first page does not wait for it."""
    from dpsynth_platform.console.views.overview import overview
    from dpsynth_platform.console.views.releases import releases

    # Pages report any error; a thread's traceback would go to the terminal with the data that it may quote.
    with suppress(Exception):
        overview(settings, frozenset(Action))
        releases(settings, frozenset(Action), state="damaged")  # reads every release


@user_app.command("add")
def add(output: TerminalOutput, name: Name, role: Roles = None, password_stdin: FromInput = False) -> None:
    """Adds a user with one or several roles, and asks for a password."""
    user = _users().add(name, listed(role), _password(password_stdin))
    output.json({"name": user.name, "roles": _ordered(user.roles)})
    output.print(f"{user.name} can sign in now, as {', '.join(_ordered(user.roles))}")


@user_app.command("list")
def list_(output: TerminalOutput) -> None:
    """Lists the local users with their roles."""
    rows = [(user.name, _ordered(user.roles), moment(user.changed)) for user in _users().all()]
    output.json([{"name": name, "roles": roles, "changed": changed} for name, roles, changed in rows])
    if not rows:
        output.print("There is no local user; add one with: dpsynth console user add NAME --role reviewer")
        return
    output.table(("name", "roles", "changed"), [(name, ", ".join(roles), changed) for name, roles, changed in rows])


@user_app.command("password")
def password(output: TerminalOutput, name: Name, password_stdin: FromInput = False) -> None:
    """Changes a user's password, and ends their sessions."""
    _users().change_password(name, _password(password_stdin))
    output.json({"name": name})
    output.print(f"{name} has a new password, and must sign in again")


@user_app.command("roles")
def roles(output: TerminalOutput, name: Name, role: Roles = None) -> None:
    """Replaces a user's roles, and ends their sessions."""
    given = listed(role)
    _users().change_roles(name, given)
    output.json({"name": name, "roles": given})
    output.print(f"{name} has the roles {', '.join(given)} now, and must sign in again")


@user_app.command("remove")
def remove(output: TerminalOutput, name: Name) -> None:
    """Removes a user, and ends their sessions. Their decisions stay in the ledger."""
    _users().remove(name)
    output.json({"name": name})
    output.print(f"{name} is removed")


def _ordered(roles: Collection[Role]) -> list[str]:
    return [role for role in ROLES if role in roles]


def _password(from_input: bool) -> str:
    """The password, typed twice or read as one line of standard input; never shown."""
    if not from_input:
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline(LONGEST_LINE)
    if not line.endswith("\n") and len(line) == LONGEST_LINE:
        raise ConfigurationError(f"--password-stdin: the line has {LONGEST_LINE} characters or more; accepted: fewer")
    return line.rstrip("\r\n")


def _users() -> Users:
    from dpsynth_platform.console.store import Store
    from dpsynth_platform.console.users import Users

    return Users(Store(Settings.from_environment().console_home))
