"""The receivers: the operator's own record, and the transport of the standard OpenLineage configuration.

What belongs here: delivering one event, and telling temporary failures from permanent ones. What does not: order,
retries and what is stuck (`outbox`), and the public part of an event (`export`).

A delivery counts when the transport confirms it. Asynchronous transports of OpenLineage are waited for; a composite one
confirms for its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.lineage.export import public_event
from dpsynth_platform.lineage.outbox import FILE, TRANSPORT, Refusal
from dpsynth_platform.lineage.record import JsonLines

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

_TEMPORARY = (401, 403, 404, 405, 407, 408, 425, 429)
"""Answers about the receiver or its configuration and not about the event: another attempt may succeed."""
_LONGEST_WAIT_SECONDS = 60.0


class Client(Protocol):
    """The part of `OpenLineageClient` that is used here."""

    def emit(self, event: RunEvent) -> None:
        """Sends one event, or raises."""


class NotConfirmed(DpsynthError):
    """The transport is gone, or did not confirm the delivery."""

    code = "lineage"


def standard_client() -> Client | None:
    """OpenLineage's own client, or None if the standard configuration names no transport.

    The client reads OPENLINEAGE_* and `openlineage.yml` itself. Without configuration it would print events to the
    console, so a first client with a no-op transport reads the configuration.

    Raises:
        ValueError: the configuration names no usable transport.
    """
    from openlineage.client.client import OpenLineageClient
    from openlineage.client.transport.noop import NoopConfig, NoopTransport

    if not OpenLineageClient(transport=NoopTransport(NoopConfig())).config.transport:
        return None
    client = OpenLineageClient()
    wanted = (client.config.transport or {}).get("type")
    if client.transport.kind == "console" and wanted != "console":
        raise ValueError("the OpenLineage configuration has a transport without a type")
    return client


class RecordFile:
    """The operator's full record, a file of JSON lines."""

    target = FILE

    def __init__(self, path: Path) -> None:
        self._record = JsonLines(path)

    def send(self, event: Mapping[str, Any]) -> None:
        """Appends the event, unless it is the last one in the file: then a killed process has delivered it."""
        with self._record.locked() as descriptor:
            if self._record.last(descriptor) != event:
                self._record.append(descriptor, dict(event))


class StandardTransport:
    """The public part of events, through OpenLineage's client.

    Args:
        find: returns the client if there is none yet, since its configuration may have been corrected.
    """

    target = TRANSPORT

    def __init__(self, find: Callable[[], Client | None], client: Client | None = None) -> None:
        self._find = find
        self._client = client

    def send(self, event: Mapping[str, Any]) -> None:
        from dpsynth_platform.lineage.events import run_event

        client = self._found()
        try:
            leaving = run_event(public_event(event))
        except Exception as error:
            raise Refusal(f"it has no public form: {type(error).__name__}") from None
        failed_before = _failures(client)
        try:
            client.emit(leaving)
        except Exception as error:
            answer = getattr(getattr(error, "response", None), "status_code", None)
            if isinstance(answer, int) and 400 <= answer < 500 and answer not in _TEMPORARY:
                raise Refusal(f"HTTP {answer}") from None
            raise
        _confirm(client, failed_before)

    def _found(self) -> Client:
        if self._client is None:
            self._client = self._find()
        if self._client is None:
            raise NotConfirmed("the OpenLineage configuration no longer names a transport")
        return self._client


def _confirm(client: Client, failed_before: int) -> None:
    """Waits for a transport that sends in the background. Raises `NotConfirmed`."""
    wait = getattr(getattr(client, "transport", None), "wait_for_completion", None)
    if wait is not None and not wait(_LONGEST_WAIT_SECONDS):
        raise NotConfirmed("the transport has not delivered in time")
    if _failures(client) > failed_before:
        raise NotConfirmed("the transport could not deliver")


def _failures(client: Client) -> int:
    """How many events an asynchronous transport has failed to send; 0 for others, which raise."""
    stats: Mapping[str, int] = getattr(getattr(client, "transport", None), "get_stats", dict)()
    return stats.get("failed", 0)
