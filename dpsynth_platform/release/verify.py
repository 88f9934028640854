"""Verification of published releases, offline and by anyone who has their directories.

What belongs here: holding a release against its own signed attestation and telling every place that differs, by kind of
failure; and the small command of its own for machines that have little else (`python -m
dpsynth_platform.release.verify`). What does not: whether the evidence behind a release was good; that was checked
before publication. A release is read as if someone meant harm: links are not followed, names that lead outside are
refused, the table is opened only when each of its files is the one that was signed, and control characters in what is
found are written out. Needed beside the standard library: cryptography, jsonschema, and pyarrow for the table.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import DpsynthError, VerificationFailed, file_problem
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.release import schema, table, tombstone
from dpsynth_platform.release.attestation import Envelope, part_digests
from dpsynth_platform.release.heads import DatedHead, KnownChain, contradictions
from dpsynth_platform.release.tombstone import Tombstone

Kind = Literal["signature", "identity", "missing", "unlisted", "hash", "schema", "chain-head", "table", "withdrawn"]

KIND_WORDS: dict[Kind, str] = {
    "signature": "the attestation is not what the key signed: who vouches for this is unknown",
    "identity": "signed, but another release than should be here",
    "missing": "something that was signed is not there",
    "unlisted": "something is there that was not signed",
    "hash": "content is not what was signed",
    "schema": "signed, but not of the form that a release has",
    "chain-head": "the head of the ledger's chain that it names cannot be right",
    "table": "the table is not what the dossier says",
    "withdrawn": "it was withdrawn, which it does not say itself, or not to its end",
}
"""Every kind of failure in words, in the order in which they are told."""


WITHDRAWN = 4
"""Exit status where everything is as it was signed, but a release was withdrawn."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was signed.

    Attributes:
        kind: see `KIND_WORDS`.
        file: relative name of the file. As in the other texts, control characters are written out (`\\n`).
        message: what is wrong.
        where: JSON path inside the file, where one can be told.
    """

    kind: Kind
    file: str
    message: str
    where: str | None = None

    @classmethod
    def of(cls, kind: Kind, file: str, message: str, where: str | None = None) -> Problem:
        """A problem told in words of which some came with the release."""
        return cls(kind, visible(file), visible(message), None if where is None else visible(where))

    def __str__(self) -> str:
        return f"{self.file}{f' at {self.where}' if self.where else ''}: {self.message}"


@dataclass(frozen=True)
class VerificationReport:
    """What verification found.

    Attributes:
        key_trusted: the caller gave the key; otherwise it came from the release itself, which proves only that the
            release was not changed by someone without that key.
        files: how many listed files were compared.
        rows: rows of the table, where it could be opened.
        head: the ledger's head that the release names, where it could be read.
        withdrawn: the signed tombstone, where the release was withdrawn: then its rows may be missing.
    """

    path: Path
    release_id: str | None
    problems: tuple[Problem, ...]
    key_fingerprint: str | None
    key_trusted: bool
    files: int
    rows: int | None
    head: DatedHead | None = None
    withdrawn: Tombstone | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.problems

    @property
    def key_note(self) -> str:
        """What the signature proves, in one sentence."""
        if self.key_fingerprint is None:
            return "No usable key was found, so the signature was not checked."
        if self.key_trusted:
            return f"Signed by the key that you gave (fingerprint {self.key_fingerprint})."
        return (
            "The key came from the release itself, so this shows only that nothing changed since it was signed by "
            f"whoever holds it; compare its fingerprint with the publisher's: {self.key_fingerprint}"
        )

    @property
    def words(self) -> str:
        """The report for people: one line if all is well, else every problem below its kind of failure."""
        return self.words_with(None)

    def words_with(self, key_note: str | None) -> str:
        """The same, with other words for what the signature proves, where the caller knows more of the key."""
        if self.ok and self.withdrawn is not None:
            return (
                f"{visible(str(self.path))}: {self.withdrawn.words}. Its dossier still verifies; {self.files} files. "
                f"{key_note or self.key_note}"
            )
        if self.ok:
            found = f"{self.files} files, {self.rows} rows"
            return f"{visible(str(self.path))}: verified; {found}. {key_note or self.key_note}"
        lines = [f"{visible(str(self.path))}: NOT what was signed"]
        for kind, meaning in KIND_WORDS.items():
            told = [f"    {problem}" for problem in self.problems if problem.kind == kind]
            lines += [f"  {kind} failure ({meaning}):", *told] if told else []
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ok": self.ok,
            "path": visible(str(self.path)),
            "release": None if self.release_id is None else visible(self.release_id),
            "files": self.files,
            "rows": self.rows,
            "withdrawn": asdict(self.withdrawn) if self.withdrawn else None,
            "key_trusted": self.key_trusted,
            "key_fingerprint": self.key_fingerprint,
            "ledger_head": {"sequence": self.head.sequence, "hash": self.head.hash} if self.head else None,
            "failures": [kind for kind in KIND_WORDS if any(problem.kind == kind for problem in self.problems)],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def raise_for_problems(self) -> None:
        """Raises `VerificationFailed` with every problem, one a line, if there is any."""
        if self.problems:
            raise VerificationFailed(self.words)


def verify_release(
    path: Path,
    public_key: bytes | None = None,
    *,
    chain: KnownChain | None = None,
    rows: bool = True,
    release: str | None = None,
) -> VerificationReport:
    """Holds a release against its attestation, dossier, schema and table.

    Args:
        path: the release's directory.
        public_key: the publisher's key as PEM or 32 raw bytes, got over another channel. Without it the release's own
            key is used, and the report says so.
        chain: the publisher's ledger, in which the release's head must stand, and which knows what was withdrawn.
        rows: whether the table's files are read, too; else only whether each is there. For lists of many releases.
        release: id of the release that should be there; without it, any may be.

    Raises:
        VerificationFailed: there is no such directory, or the given key is none.
    """
    trusted = signature.read_public_key(public_key) if public_key is not None else None
    if path.is_symlink() or not path.is_dir():
        raise VerificationFailed(f"{path}: there is no release directory")
    return _Verification(path, trusted, chain, rows=rows, release=release).run()


def verify_releases(
    paths: Sequence[Path],
    public_key: bytes | None = None,
    *,
    chain: KnownChain | None = None,
    expected: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[VerificationReport, ...]:
    """Verifies releases of one publisher, and that the heads that they name can be of one chain.

    Raises like `verify_release`; `expected` are the ids of the releases that should be at some of the paths.
    """
    reports = [verify_release(path, public_key, chain=chain, release=expected.get(path)) for path in paths]
    # What is not signed as it is now says nothing about other releases.
    for release, message in contradictions(report.head for report in reports if report.ok and report.head):
        found = Problem.of("chain-head", layout.DOSSIER, message, "$.ledger.head")
        reports = [
            replace(report, problems=(*report.problems, found)) if report.release_id == release else report
            for report in reports
        ]
    return tuple(reports)


def exit_status(reports: Sequence[VerificationReport]) -> int:
    """A command's status after verification: 0 all is well, 1 something is not, `WITHDRAWN` some were withdrawn."""
    if not all(report.ok for report in reports):
        return 1
    return WITHDRAWN if any(report.withdrawn for report in reports) else 0


class _Verification:
    """One verification: the problems found so far, and what later checks build on."""

    def __init__(
        self,
        path: Path,
        trusted: Ed25519PublicKey | None,
        chain: KnownChain | None,
        *,
        rows: bool,
        release: str | None,
    ) -> None:
        self._path = path
        self._trusted = trusted
        self._chain = chain
        self._reads_rows = rows
        self._expected = release
        self._problems: list[Problem] = []
        self._files: dict[str, Path] = {}
        self._withdrawn: Tombstone | None = None

    def run(self) -> VerificationReport:
        self._look_around()
        key = self._key()
        envelope = self._envelope()
        if envelope is not None and key is not None:
            self._check_signature(envelope, key)
        statement = self._statement(envelope)
        files, rows, head = 0, None, None
        if statement is not None:
            self._check_identity(statement["predicate"]["release"])
            self._withdrawn = self._tombstone(statement["predicate"]["release"], key)
            self._check_withdrawal(statement["predicate"]["release"])
            files = self._check_files({item["name"]: item["digest"]["sha256"] for item in statement["subject"]})
            dossier = self._dossier(statement["predicate"])
            if dossier is not None:
                head = self._check_names(dossier, statement["predicate"])
                whole = self._reads_rows and not self._withdrawn
                rows = self._check_table(dossier["synthetic"]) if whole else None
        return VerificationReport(
            path=self._path,
            release_id=statement["predicate"]["release"] if statement else None,
            problems=tuple(self._problems),
            key_fingerprint=signature.fingerprint(key) if key else None,
            key_trusted=self._trusted is not None,
            files=files,
            rows=rows,
            head=head,
            withdrawn=self._withdrawn,
        )

    def _report(self, kind: Kind, file: str, message: str, where: str | None = None) -> None:
        self._problems.append(Problem.of(kind, file, message, where))

    def _check_identity(self, release: str) -> None:
        """A whole release of the same publisher, put where another one was."""
        if self._expected is not None and release != self._expected:
            self._report("identity", layout.ATTESTATION, f"it is of the release {release}, not of {self._expected}")

    def _damaged(self, *files: str) -> bool:
        """Whether anything was found in these files, or in directories (`data/`)."""
        return any(
            problem.file == file or (file.endswith("/") and problem.file.startswith(file))
            for problem in self._problems
            for file in files
        )

    def _look_around(self) -> None:
        """Sorts what is there into regular files and what no release contains: links, devices, empty directories."""
        for parent, directories, files in os.walk(self._path, onerror=self._unreadable):
            for name in [*directories, *files]:
                entry = Path(parent, name)
                relative = entry.relative_to(self._path).as_posix()
                mode = entry.lstat().st_mode
                if stat.S_ISREG(mode):
                    self._files[relative] = entry
                elif not stat.S_ISDIR(mode):
                    self._report("unlisted", relative, "is a link or no regular file")
            if not directories and not files and Path(parent) != self._path:
                relative = Path(parent).relative_to(self._path).as_posix()
                self._report("unlisted", relative, "is an empty directory, not listed")

    def _unreadable(self, error: OSError) -> None:
        self._report("missing", Path(str(error.filename)).name, f"cannot be read ({type(error).__name__})")

    def _read(self, name: str) -> bytes | None:
        if name not in self._files:
            self._report("missing", name, "is missing")
            return None
        try:
            return self._files[name].read_bytes()
        except OSError as error:
            self._report("missing", name, f"cannot be read ({type(error).__name__})")
            return None

    def _key(self) -> Ed25519PublicKey | None:
        """The trusted key, or the release's own. The release's own must be well formed and the same in any case."""
        content = self._read(layout.PUBLIC_KEY)
        own = None
        if content is not None:
            try:
                own = signature.read_public_key(content)
            except VerificationFailed as error:
                self._report("signature", layout.PUBLIC_KEY, str(error))
            if own is not None and signature.public_pem(own) != content:
                self._report("signature", layout.PUBLIC_KEY, "is not in the form in which it was written")
        if self._trusted and own and signature.fingerprint(own) != signature.fingerprint(self._trusted):
            self._report("signature", layout.PUBLIC_KEY, "is another key than the trusted one")
        return self._trusted or own

    def _envelope(self) -> Envelope | None:
        content = self._read(layout.ATTESTATION)
        if content is None:
            return None
        try:
            return Envelope.read(content)
        except VerificationFailed as error:
            self._report("signature", layout.ATTESTATION, str(error))
            return None

    def _check_signature(self, envelope: Envelope, key: Ed25519PublicKey) -> None:
        if not envelope.is_signed_by(key):
            self._report("signature", layout.ATTESTATION, "its statement is not what the key signed")
        if envelope.key != signature.fingerprint(key):
            self._report("signature", layout.ATTESTATION, "names another key", "$.signatures[0].keyid")

    def _statement(self, envelope: Envelope | None) -> dict[str, Any] | None:
        """The statement, if it has the parts that the other checks read."""
        if envelope is None:
            return None
        try:
            statement = envelope.statement()
        except VerificationFailed as error:
            self._report("schema", layout.ATTESTATION, str(error))
            return None
        breaches = schema.breaches(statement, schema.ATTESTATION)
        for breach in breaches:
            self._report("schema", layout.ATTESTATION, f"the statement {breach.message}", breach.where)
        if breaches:
            return None
        names = [item["name"] for item in statement["subject"]]
        outside = [name for name in names if not _is_inside(name)]
        if outside or len(set(names)) < len(names):
            message = "the statement names a file twice or outside the release"
            self._report("schema", layout.ATTESTATION, message, "$.subject")
            return None
        return statement

    def _tombstone(self, release: str, key: Ed25519PublicKey | None) -> Tombstone | None:
        """The tombstone, if there is one that the key signed for this release; no other excuses missing rows."""
        try:
            found = tombstone.read_tombstone(self._path)
        except VerificationFailed as error:
            self._report("signature", tombstone.TOMBSTONE, str(error))
            return None
        if found is None:
            return None
        if key is None or not found.is_signed_by(key):
            self._report("signature", tombstone.TOMBSTONE, "is not what the key signed")
            return None
        if found.tombstone.release != release:
            self._report("signature", tombstone.TOMBSTONE, "is another release's", "$.release")
            return None
        return found.tombstone

    def _check_withdrawal(self, release: str) -> None:
        """A release that is withdrawn must say so to whoever has it, and hold no row any more."""
        if self._withdrawn is not None and layout.has_rows(self._path):
            message = "rows lie here still, although it was withdrawn; the publisher: repeat dpsynth release withdraw"
            self._report("withdrawn", f"{layout.DATA}/", message)
        if self._withdrawn is None and self._chain is not None and release in self._chain.withdrawn:
            message = f"does not say so, but {self._chain.source} records that this release was withdrawn"
            self._report("withdrawn", tombstone.TOMBSTONE, message)

    def _check_files(self, listed: dict[str, str]) -> int:
        """Compares every file; returns how many are there of those that are listed."""
        later = tombstone.FILES if self._withdrawn else frozenset()
        for name in sorted(set(self._files) - set(listed) - {layout.ATTESTATION} - later):
            self._report("unlisted", name, "is not listed in the attestation")
        for name, digest in listed.items():
            if name not in self._files:
                if self._withdrawn is None or not name.startswith(f"{layout.DATA}/"):
                    self._report("missing", name, "is missing")
            elif self._is_read(name) and self._digest(name) != digest:
                self._report("hash", name, "its content is not what was signed (SHA-256 differs)")
        return sum(name in self._files and self._is_read(name) for name in listed)

    def _is_read(self, name: str) -> bool:
        return self._reads_rows or not name.startswith(f"{layout.DATA}/")

    def _digest(self, name: str) -> str | None:
        try:
            return digest_file(self._files[name])
        except OSError:
            return None

    def _dossier(self, predicate: dict[str, Any]) -> dict[str, Any] | None:
        """The dossier, if it is the one that was signed and has the form of one; else what differs, by JSON path."""
        if layout.DOSSIER not in self._files:
            return None  # reported as missing
        try:
            dossier = json.loads(self._files[layout.DOSSIER].read_bytes())
            parts = part_digests(dossier)
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            kind: Kind = "hash" if self._damaged(layout.DOSSIER) else "schema"
            line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            self._report(kind, layout.DOSSIER, f"is no JSON object{line}")
            return None
        signed = predicate["dossier"]["parts"]
        for name in sorted(set(parts) | set(signed)):
            if parts.get(name) != signed.get(name):
                self._report("hash", layout.DOSSIER, "differs from what was signed", f"$.{name}")
        if self._damaged(layout.DOSSIER):
            return None
        return dossier if self._fits_schema(dossier) else None

    def _fits_schema(self, dossier: dict[str, Any]) -> bool:
        name = schema.DOSSIERS.get(str(dossier.get("format")))
        if name is None:
            known = ", ".join(schema.DOSSIERS)
            self._report(
                "schema", layout.DOSSIER, f"is of a format that this version does not know: {known}", "$.format"
            )
            return False
        breaches = schema.breaches(dossier, name)
        for breach in breaches:
            self._report("schema", layout.DOSSIER, breach.message, breach.where)
        return not breaches

    def _check_names(self, dossier: dict[str, Any], predicate: dict[str, Any]) -> DatedHead:
        """What stands in dossier and attestation must be the same, and the head one of the chain that is known."""
        release, head = dossier["release"], dossier["ledger"]["head"]
        pairs = (
            ("$.release.id", release["id"], predicate["release"]),
            ("$.commitments.candidate", dossier["commitments"]["candidate"], predicate["candidate"]),
            ("$.format", dossier["format"], predicate["dossier"]["format"]),
        )
        for where, value, signed in pairs:
            if value != signed:
                self._report("schema", layout.DOSSIER, "is not what the attestation says", where)
        if head != predicate["ledgerHead"]:
            message = "is another head than the attestation's"
            self._report("chain-head", layout.DOSSIER, message, "$.ledger.head")
        elif self._chain is not None and (problem := self._chain.problem(head)):
            self._report("chain-head", layout.DOSSIER, problem, "$.ledger.head")
        return DatedHead(release["id"], release["created_at"], head["sequence"], head["hash"])

    def _check_table(self, synthetic: dict[str, Any]) -> int | None:
        """Opens the table, which is safe once each of its files is the signed one."""
        if self._damaged(layout.DATA, f"{layout.DATA}/", layout.ATTESTATION, layout.PUBLIC_KEY):
            return None
        names = [name.removeprefix(f"{layout.DATA}/") for name in self._files if name.startswith(f"{layout.DATA}/")]
        try:
            facts = table.read_facts(self._path / layout.DATA, names)
        except VerificationFailed as error:
            self._report("table", layout.DATA, str(error))
            return None
        if facts.rows != synthetic["rows"]:
            self._report("table", layout.DATA, f"has {facts.rows} rows, the dossier says {synthetic['rows']}")
        said = {(column["name"], column["type"]) for column in synthetic["columns"] if column["type"]}
        there = set(facts.columns)
        for name, kind in sorted(there ^ said):
            side = "the table" if (name, kind) in there else "the dossier"
            self._report("table", layout.DATA, f"column {name} is of type {kind} in {side} only", "$.synthetic.columns")
        return facts.rows


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name


def main(arguments: Sequence[str] | None = None) -> int:
    """The command for machines without the rest of the platform. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dpsynth_platform.release.verify",
        description="Verifies releases offline: signature, every byte, schema, ledger heads and table.",
    )
    parser.add_argument("release", nargs="+", type=Path, help="directory of a release")
    parser.add_argument("--public-key", type=Path, help="the publisher's key (PEM), got over another channel")
    parser.add_argument("--ledger", type=Path, help="an export of the publisher's ledger that the heads must stand in")
    parser.add_argument("--json", action="store_true", help="one JSON value instead of text")
    given = parser.parse_args(arguments)
    try:
        key = read_regular(given.public_key) if given.public_key else None
        chain = KnownChain.of_export(given.ledger) if given.ledger else None
        reports = verify_releases(given.release, key, chain=chain)
    except OSError as error:
        print(f"{given.public_key}: the key cannot be read: {file_problem(error)}", file=sys.stderr)
        return 2
    except DpsynthError as error:
        print(visible(str(error)), file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        for report in reports:
            print(report.words)
    return exit_status(reports)


if __name__ == "__main__":
    sys.exit(main())
