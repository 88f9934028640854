"""What the platform's HTTP servers share: listening, and a log that quotes nothing.

What belongs here: sockets, the server's settings, and the log's form. What does not: what is served
(`lineage.server`, `console.app`), and who may reach it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.redaction import safe_error


def listening_at(host: str, port: int) -> socket.socket:
    """Listens at an address; port 0 takes a free one. Raises `ConfigurationError`: it cannot be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # whoever is told the address may connect at once
    except UnicodeError:
        why = "it is no name of a host"
    except OverflowError:
        why = "no such port"
    except OSError as error:
        why = error.strerror or "the system does not say why"
    else:
        return listening
    raise ConfigurationError(f"--host {host} --port {port} cannot be listened on: {why.lower()}")


def serve(listening: socket.socket, app: Any, *, logs: Sequence[str], connections: int, **more: Any) -> None:
    """Serves until the process is asked to end; requests that are being served are finished first.

    Args:
        listening: from `listening_at`.
        app: the ASGI application.
        logs: loggers whose words are ours; the server's own tell warnings alone.
        connections: open ones, further ones are closed.
        more: of `uvicorn.Config`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutTracebacks("%(asctime)s %(levelname)s %(message)s"))
    for name in (*logs, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if name == "uvicorn" else logging.INFO)
    config = uvicorn.Config(
        app,
        http="h11",
        loop="asyncio",
        log_config=None,
        access_log=False,  # it would tell what the client wrote
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        **more,
    )
    uvicorn.Server(config).run(sockets=[listening])


class _WithoutTracebacks(logging.Formatter):
    """A traceback may quote what was sent, or the data; only its last type is told."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        return safe_error(ei[1])[1] if ei and ei[1] is not None else ""
