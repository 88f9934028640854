"""Receivers of notices: a command, a webhook, a mail server.

What belongs here: what a notice is, and handing one over. What does not: which events are told and in which order, and
trying again (`notifying`). Nothing here says what a receiver answered: that is its own text.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from email import policy
from email.message import EmailMessage
from http.client import HTTPException, HTTPMessage
from typing import IO, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from dpsynth_platform.foundation.errors import NotificationFailed
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.settings import THIS_MACHINE, Settings, inherited_environment

_SECONDS = 15.0
_MAIL_SECONDS = 5.0
"""For each step of the conversation with a mail server, of which there are up to ten."""
_OWN_VARIABLES = ("DPSYNTH_", "OPENLINEAGE_", "DAGSTER_")


@dataclass(frozen=True)
class Notice:
    """What a receiver is told. Every field is public.

    Attributes:
        id: the number of the ledger's event, or `run-` with the id of the run; a notice that comes twice has the same.
        event: one of the values of `notifying.TOLD`, or `run-failed`.
        at: when it happened, ISO 8601, UTC.
        dataset, period: what it is about; none where it is about the deployment.
        release: id of the release, where there is one.
        text: the same as a sentence, and what to do.
    """

    id: int | str
    event: str
    at: str
    dataset: str | None
    period: str | None
    release: str | None
    text: str

    def to_bytes(self) -> bytes:
        """One JSON object in UTF-8, on a line of its own."""
        return f"{json.dumps(asdict(self), ensure_ascii=False)}\n".encode()


class Receiver(Protocol):
    """Where notices go."""

    @property
    def name(self) -> str:
        """Names it in messages and in its file."""

    def send(self, notice: Notice) -> None:
        """Returns when it was taken; raises `NotificationFailed` with safe words if not."""


@dataclass(frozen=True)
class Command:
    """A command that reads one notice on standard input and ends with status 0 when it has taken it.

    It has the deployment's environment without the platform's own variables: those may hold passwords.
    """

    arguments: tuple[str, ...]
    name: str = "command"

    def send(self, notice: Notice) -> None:
        """Runs the command in a session of its own, which is ended with it where it takes too long."""
        environment = {
            name: value for name, value in inherited_environment().items() if not name.startswith(_OWN_VARIABLES)
        }
        try:
            process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotificationFailed(f"it cannot be started ({reason_of(error)})") from None
        try:
            process.communicate(notice.to_bytes(), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotificationFailed(f"it did not end within {_SECONDS:g} seconds") from None
        if process.returncode != 0:
            raise NotificationFailed(f"it ended with status {process.returncode}")


@dataclass(frozen=True)
class Webhook:
    """A URL that takes one notice a POST request and answers with a status of 200 to 299. May hold a secret."""

    url: str = field(repr=False)
    name: str = "webhook"

    def send(self, notice: Notice) -> None:
        """Posts; follows no redirection, which could lead anywhere.

        What is for this machine goes by no proxy: on another machine, it would tell that one the secret in clear.
        """
        here = urlsplit(self.url).hostname in THIS_MACHINE
        handlers = (_NoRedirection(), urllib.request.ProxyHandler({})) if here else (_NoRedirection(),)
        request = urllib.request.Request(  # noqa: S310 - https, or this machine: settings see to it
            self.url, data=notice.to_bytes(), headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise NotificationFailed(f"it answered with status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:  # `URLError` is an `OSError`
            raise NotificationFailed(f"it cannot be reached ({reason_of(error)})") from None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Makes an error of every redirection."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Mail:
    """A mail server that takes one notice as a mail, encrypted unless it is this machine. May hold a password.

    Attributes:
        url: `smtp://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS,ADDRESS`, which turns to TLS before it says who it
            is, or `smtps://...`, which speaks nothing else. Quoted as URLs are.
    """

    url: str = field(repr=False)
    name: str = "mail"

    def send(self, notice: Notice) -> None:
        """Hands the mail over. What is sent again has the same Message-ID, by which mailboxes know it."""
        try:
            with self._server() as server:
                self._sign_in(server)
                refused = server.send_message(self._message(notice))
        except smtplib.SMTPResponseException as error:
            raise NotificationFailed(f"it answered with status {error.smtp_code}") from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise NotificationFailed(f"it cannot be reached or refuses ({reason_of(error)})") from None
        if refused:
            raise NotificationFailed(f"it refuses {len(refused)} of the addresses")

    def _server(self) -> smtplib.SMTP:
        parts = urlsplit(self.url)
        host, usual = str(parts.hostname), 25 if parts.hostname in THIS_MACHINE else 587
        if parts.scheme == "smtps":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(host, parts.port or 465, timeout=_MAIL_SECONDS, context=context)
        return smtplib.SMTP(host, parts.port or usual, timeout=_MAIL_SECONDS)

    def _sign_in(self, server: smtplib.SMTP) -> None:
        """Turns to TLS, unless all of it is that already or the server is this machine; then says who it is."""
        parts = urlsplit(self.url)
        if parts.scheme == "smtp" and parts.hostname not in THIS_MACHINE:
            server.starttls(context=ssl.create_default_context())
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))

    def _message(self, notice: Notice) -> EmailMessage:
        asked = parse_qs(urlsplit(self.url).query)
        about = f": {notice.dataset}" if notice.dataset else ""
        sender = asked["from"][0]
        message = EmailMessage(policy=policy.SMTP)
        message["From"], message["To"] = sender, ", ".join(asked["to"])
        message["Subject"] = f"dpsynth: {notice.event}{about}{f' {notice.period}' if notice.period else ''}"
        message["Date"] = dt.datetime.fromisoformat(notice.at)
        at = re.sub("[^0-9]", "", notice.at)
        message["Message-ID"] = f"<{notice.id}.{at}.dpsynth@{sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(f"{notice.text}\n\n{notice.to_bytes().decode()}")
        return message


def receivers_of(settings: Settings) -> tuple[Receiver, ...]:
    """Those that the deployment names."""
    found: list[Receiver] = []
    if settings.notify:
        found.append(Command(settings.notify))
    if settings.notify_url:
        found.append(Webhook(settings.notify_url))
    if settings.notify_mail:
        found.append(Mail(settings.notify_mail))
    return tuple(found)
