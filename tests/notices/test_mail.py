"""Notices by mail, to a real mail server that speaks TLS: what it is told, and what happens where it fails."""

from __future__ import annotations

import base64
import datetime as dt
import email
import email.policy
import ipaddress
import socketserver
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dpsynth_platform.foundation.errors import ConfigurationError, NotificationFailed
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.notices import receivers
from dpsynth_platform.notices.receivers import Mail, Notice

PASSWORD = "p@ss:word/1"
NOTICE = Notice(7, "released", "2026-11-20T01:02:03.000004+00:00", "visits", "2026-10", "visits-0", "visits: é is out")


class MailServer(socketserver.ThreadingTCPServer):
    """A server that keeps mails; it takes none before TLS where it has a certificate."""

    daemon_threads = True

    def __init__(self, certificate: Path | None, *, tls_from_the_start: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.context = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        self.tls_from_the_start = tls_from_the_start
        self.mails: list[EmailMessage] = []
        self.users: list[str] = []
        self.unknown: set[str] = set()
        self.answer = "250 OK"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Conversation(socketserver.StreamRequestHandler):
    """As much of the protocol as a client needs."""

    def handle(self) -> None:
        server = cast(MailServer, self.server)
        secret = server.context is None
        if server.tls_from_the_start:
            self.turn_to_tls(server)
            secret = True
        self.say("220 here")
        while line := self.rfile.readline():
            word, _, rest = line.decode().strip().partition(" ")
            word = word.upper()
            if word == "EHLO":
                self.say("250-here", *([] if secret else ["250-STARTTLS"]), "250 AUTH PLAIN")
            elif word == "STARTTLS":
                self.say("220 go on")
                self.turn_to_tls(server)
                secret = True
            elif word == "QUIT":
                self.say("221 bye")
                return
            elif not secret:
                self.say("530 TLS first")
            elif word == "AUTH":
                server.users.append(base64.b64decode(rest.partition(" ")[2]).decode().replace("\0", "|"))
                self.say("235 OK")
            elif word == "RCPT" and rest[4:-1] in server.unknown:
                self.say("550 nobody of that name")
            elif word == "DATA":
                self.say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                if server.answer.startswith("250"):
                    server.mails.append(cast(EmailMessage, mail))
                self.say(server.answer)
            else:
                self.say("250 OK")

    def turn_to_tls(self, server: MailServer) -> None:
        assert server.context is not None
        self.connection = server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), cast(Any, self.connection.makefile("wb", 0))

    def say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 with its key, signed by itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    """No address is this machine's, and the certificate is trusted."""
    monkeypatch.setattr(receivers, "THIS_MACHINE", ())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(receivers, "_MAIL_SECONDS", 300.0)


@pytest.fixture
def server(certificate: Path) -> Iterator[MailServer]:
    with MailServer(certificate) as made:
        yield made
        made.shutdown()


def mail_to(server: MailServer, *, scheme: str = "smtp", to: str = "a@example.org,b@example.org") -> Mail:
    url = f"{scheme}://dpsynth:p%40ss%3Aword%2F1@127.0.0.1:{server.port}?from=dpsynth@example.org&to={to}"
    Settings.from_environment({"DPSYNTH_NOTIFY_MAIL": url})
    return Mail(url)


def test_a_mail_says_what_the_notice_says(elsewhere: None, server: MailServer) -> None:
    for _ in range(2):
        mail_to(server).send(NOTICE)
    first, again = server.mails
    assert first["Subject"] == "dpsynth: released: visits 2026-10"
    assert (first["From"], first["To"]) == ("dpsynth@example.org", "a@example.org, b@example.org")
    assert first["Message-ID"] == again["Message-ID"], "what comes twice can be known"
    text, _, notice = first.get_content().replace("\r\n", "\n").partition("\n\n")
    assert text == "visits: é is out"
    assert notice.strip() == NOTICE.to_bytes().decode().strip()
    assert server.users == [f"|dpsynth|{PASSWORD}"] * 2


def test_tls_from_the_start(elsewhere: None, certificate: Path) -> None:
    with MailServer(certificate, tls_from_the_start=True) as server:
        mail_to(server, scheme="smtps").send(NOTICE)
        server.shutdown()
    assert len(server.mails) == 1


def test_nothing_is_said_without_tls_nor_to_a_stranger(
    elsewhere: None, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MailServer(None) as bare:
        with pytest.raises(NotificationFailed, match="SMTPNotSupportedError"):
            mail_to(bare).send(NOTICE)
        bare.shutdown()
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(NotificationFailed, match="SSLCertVerificationError"):
        mail_to(server).send(NOTICE)
    assert bare.users == server.users == []


def test_this_machine_is_told_in_clear() -> None:
    with MailServer(None) as server:
        mail_to(server).send(NOTICE)
        server.shutdown()
    assert len(server.mails) == 1


def test_what_fails_is_told_in_safe_words(elsewhere: None, server: MailServer) -> None:
    server.answer = f"452 {PASSWORD}"
    with pytest.raises(NotificationFailed, match=r"^it answered with status 452$"):
        mail_to(server).send(NOTICE)
    server.answer, server.unknown = "250 OK", {"b@example.org"}
    with pytest.raises(NotificationFailed, match=r"^it refuses 1 of the addresses$"):
        mail_to(server).send(NOTICE)
    with pytest.raises(NotificationFailed, match=r"^it cannot be reached or refuses \(SMTPRecipientsRefused\)$"):
        mail_to(server, to="b@example.org").send(NOTICE)
    away = Mail("smtp://user:secret@127.0.0.1:9?from=a@b&to=c@d")
    with pytest.raises(NotificationFailed, match=r"^it cannot be reached or refuses \(ConnectionRefusedError\)$"):
        away.send(NOTICE)
    assert "secret" not in repr(away)


@pytest.mark.parametrize(
    "url",
    [
        "mail.example.org",
        "https://mail.example.org?from=a@b&to=c@d",
        "smtp://mail.example.org",
        "smtp://mail.example.org?from=a@b",
        "smtp://mail.example.org?from=a@b&to=c@d&bcc=e@f",
        "smtp://mail.example.org?from=a@b&from=g@h&to=c@d",
        "smtp://mail.example.org/path?from=a@b&to=c@d",
        "smtp://mail.example.org?from=a@b&to=c@d,nobody",
        "smtp://mail.example.org?from=a@b%0d%0aBcc:e@f&to=c@d",
        "smtp://mail.example.org:no?from=a@b&to=c@d",
    ],
)
def test_an_address_that_cannot_be_used_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="DPSYNTH_NOTIFY_MAIL: accepted: smtp://USER") as told:
        Settings.from_environment({"DPSYNTH_NOTIFY_MAIL": url})
    assert url not in str(told.value)
