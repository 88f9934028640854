"""Receivers of notices: a command, webhooks, a mail server.

What belongs here: a notice's fields, and delivering one. What does not: the choice and order of events, and further
attempts (`notifying`). Errors never show a receiver's answer, which is untrusted text.
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
from collections.abc import Callable
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
"""Limit of each of the up to ten steps of an SMTP session."""
_OWN_VARIABLES = ("DPSYNTH_", "OPENLINEAGE_", "DAGSTER_")


@dataclass(frozen=True)
class Notice:
    """A message to a receiver. Every field is public.

    Attributes:
        id: the number of the ledger's event, `run-` with the id of the run, or `watch-` with the number of what
            `dpsynth watch` found; equal in repeated deliveries.
        event: one of the values of `notifying.EVENTS`, `run-failed`, one of `watching.watch`, or `test`.
        at: time of the event, ISO 8601, UTC.
        dataset, period: None for notices about the deployment.
        text: a sentence, with what to do.
        link: of the console's page about it; None where the console's address is not configured.
    """

    id: int | str
    event: str
    at: str
    dataset: str | None
    period: str | None
    release: str | None
    text: str
    link: str | None = None

    def to_bytes(self) -> bytes:
        """One line of JSON in UTF-8."""
        return f"{json.dumps(asdict(self), ensure_ascii=False)}\n".encode()


class Receiver(Protocol):
    """A destination of notices; `name` is also that of its cursor file."""

    @property
    def name(self) -> str: ...

    def send(self, notice: Notice) -> None:
        """Returns after delivery, or raises `NotificationFailed` with safe words."""


@dataclass(frozen=True)
class Command:
    """A command that reads one notice on standard input and ends with status 0 on success.

    Its environment is the deployment's, without the platform's own variables: those may contain passwords.
    """

    arguments: tuple[str, ...]
    name: str = "command"

    def send(self, notice: Notice) -> None:
        """Runs the command in a separate session, all of which is killed after the time limit."""
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
    """A URL that receives one notice per POST request and answers with status 200 to 299. May contain a secret.

    `name` is also the form of the request: the notice itself (`webhook`), or a message (`slack`, `teams`).
    """

    url: str = field(repr=False)
    name: str = "webhook"

    def send(self, notice: Notice) -> None:
        """Posts the notice; follows no redirection.

        A request to this machine uses no proxy: a remote one would see the secret in clear text.
        """
        here = urlsplit(self.url).hostname in THIS_MACHINE
        handlers = (_NoRedirection(), urllib.request.ProxyHandler({})) if here else (_NoRedirection(),)
        request = urllib.request.Request(  # noqa: S310 - https, or this machine: settings see to it
            self.url, data=_FORMS[self.name](notice), headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise NotificationFailed(f"it answered with status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:  # `URLError` is an `OSError`
            raise NotificationFailed(f"it cannot be reached ({reason_of(error)})") from None


def _slack(notice: Notice) -> bytes:
    """Of Slack's incoming webhooks, whose texts have three characters to escape."""
    escaped = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    link = f"\n<{notice.link}>" if notice.link else ""
    return json.dumps({"text": f"dpsynth, {notice.event}: {escaped}{link}", "unfurl_links": False}).encode()


def _teams(notice: Notice) -> bytes:
    """Of Teams' workflows: an adaptive card. Its texts know Markdown, and a run of text (`RichTextBlock`) does not."""
    text = {"type": "TextRun", "text": notice.text}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": f"dpsynth: {notice.event}", "weight": "Bolder", "wrap": True},
            {"type": "RichTextBlock", "inlines": [text]},
        ],
        "actions": [{"type": "Action.OpenUrl", "title": "Open the console", "url": notice.link}] if notice.link else [],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return json.dumps({"type": "message", "attachments": [attachment]}).encode()


_FORMS: dict[str, Callable[[Notice], bytes]] = {"webhook": Notice.to_bytes, "slack": _slack, "teams": _teams}


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Mail:
    """A mail server; the connection is encrypted unless it is this machine.

    Attributes:
        url: percent-encoded, and may contain a password: `smtp://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS,ADDRESS`
            with STARTTLS before the login, or `smtps://...` with TLS from the start.
    """

    url: str = field(repr=False)
    name: str = "mail"

    def send(self, notice: Notice) -> None:
        """Sends the mail. Repeated deliveries have the same Message-ID, so that mailboxes recognise them."""
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
        """Starts TLS, unless it is on or the server is this machine; then logs in."""
        parts = urlsplit(self.url)
        if parts.scheme == "smtp" and parts.hostname not in THIS_MACHINE:
            server.starttls(context=ssl.create_default_context())
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))

    def _message(self, notice: Notice) -> EmailMessage:
        addresses = parse_qs(urlsplit(self.url).query)
        about = f": {notice.dataset}" if notice.dataset else ""
        sender = addresses["from"][0]
        message = EmailMessage(policy=policy.SMTP)
        message["From"], message["To"] = sender, ", ".join(addresses["to"])
        message["Subject"] = f"dpsynth: {notice.event}{about}{f' {notice.period}' if notice.period else ''}"
        message["Date"] = dt.datetime.fromisoformat(notice.at)
        at = re.sub("[^0-9]", "", notice.at)
        message["Message-ID"] = f"<{notice.id}.{at}.dpsynth@{sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        link = f"\n\n{notice.link}" if notice.link else ""
        message.set_content(f"{notice.text}{link}\n\n{notice.to_bytes().decode()}")
        return message


def receivers_of(settings: Settings) -> tuple[Receiver, ...]:
    """The receivers that the settings name."""
    found: list[Receiver] = []
    if settings.notify:
        found.append(Command(settings.notify))
    if settings.notify_url:
        found.append(Webhook(settings.notify_url))
    if settings.notify_slack:
        found.append(Webhook(settings.notify_slack, "slack"))
    if settings.notify_teams:
        found.append(Webhook(settings.notify_teams, "teams"))
    if settings.notify_mail:
        found.append(Mail(settings.notify_mail))
    return tuple(found)
