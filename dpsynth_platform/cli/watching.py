"""`dpsynth metrics` and `dpsynth health`.

What belongs here: arguments and words. What does not: what is told (`watching`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from dpsynth_platform.cli.terminal import Json, TerminalOutput, command
from dpsynth_platform.foundation.settings import Settings

watching_app = typer.Typer()


@watching_app.command()
@command
def metrics(
    host: Annotated[str, typer.Option(help="Address to listen on. Readers need no password.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 9464,
    as_json: Json = False,
) -> None:
    """Serves metrics for Prometheus at /metrics, and /health and /live (ends with Ctrl-C)."""
    from dpsynth_platform.foundation.serving import listening_at
    from dpsynth_platform.watching import server

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    listening = listening_at(host, port)
    url = f"http://{host}:{listening.getsockname()[1]}"
    output.json({"url": url})
    output.print(f"metrics at {url}/metrics, health at {url}/health; stop with Ctrl-C")
    server.serve(listening, server.application(settings))


@watching_app.command()
@command
def health(as_json: Json = False) -> None:
    """Whether the ledger is reachable and whole, places can be written to, and the disk has room; if not, status 1."""
    from dpsynth_platform.watching.health import checks

    output = TerminalOutput(as_json)
    found = checks(Settings.from_environment())
    ok = all(item.ok for item in found)
    output.json({"ok": ok, "checks": [vars(item) for item in found]})
    for item in found:
        output.print(f"{item.name}: {'well' if item.ok else 'NOT WELL'}: {item.words}")
    if not ok:
        raise typer.Exit(1)
