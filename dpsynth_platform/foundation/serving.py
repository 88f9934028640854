"""Common parts of the platform's HTTP servers: listening, and a log that quotes nothing.

What belongs here: sockets, the server's settings, and the log's form. What does not: the applications
(`lineage.server`, `console.app`), and access to them.
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
        listening.listen()  # clients may connect at once
    except UnicodeError:
        why = "not a host name"
    except OverflowError:
        why = "no such port"
    except OSError as error:
        why = error.strerror or "unknown reason"
    else:
        return listening
    raise ConfigurationError(f"--host {host} --port {port} cannot be listened on: {why.lower()}")


def serve(listening: socket.socket, app: Any, *, logs: Sequence[str], connections: int, **more: Any) -> None:
    """Serves until the process receives a signal; finishes current requests first.

    Args:
        listening: from `listening_at`.
        app: the ASGI application.
        logs: loggers of the platform; the server's own log warnings only.
        connections: most open connections; further ones are closed.
        more: passed to `uvicorn.Config`.
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
    """A traceback may quote what was sent, or the data; only its last type is logged."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        return safe_error(ei[1])[1] if ei and ei[1] is not None else ""
