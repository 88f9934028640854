"""Verification of published releases, offline and by anyone who has their directories.

What belongs here: comparing a release with its signed attestation, reporting every difference by kind of failure, and
the command for machines without the platform (`python -m dpsynth_platform.release.verify`). What does not: checking the
evidence, which precedes publication. A release is treated as hostile: links are not followed, names that lead outside
are refused, the table is opened only if all its files match the attestation, and control characters are written out.
Dependencies: cryptography, jsonschema, and pyarrow for the table.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import DpsynthError, VerificationFailed, file_problem
from dpsynth_platform.foundation.kept_setting import kept_setting
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.release import paid, schema, table, tombstone
from dpsynth_platform.release.attestation import Envelope, part_digests
from dpsynth_platform.release.heads import DatedHead, KnownChain, contradictions
from dpsynth_platform.release.tombstone import Tombstone

Kind = Literal["signature", "identity", "missing", "unlisted", "hash", "schema", "chain-head", "table", "withdrawn"]

KIND_WORDS: dict[Kind, str] = {
    "signature": "the key did not sign this attestation: the publisher is unknown",
    "identity": "signed, but not the expected release",
    "missing": "a signed file is missing",
    "unlisted": "a file was not signed",
    "hash": "content differs from what was signed",
    "schema": "signed, but not in the format of a release",
    "chain-head": "the head of the ledger's chain that it names cannot be right",
    "table": "a table differs from the dossier",
    "withdrawn": "it was withdrawn, and its directory does not say so, or still has rows",
}
"""The meaning of each kind of failure, in the order of reports."""


WITHDRAWN = 4
"""Exit status if everything is as signed, but a release was withdrawn."""


@dataclass(frozen=True)
class Problem:
    """A difference from what was signed, in a file (relative name) and, if known, at a JSON path.

    In all texts control characters are written out (`\\n`).
    """

    kind: Kind
    file: str
    message: str
    where: str | None = None

    @classmethod
    def of(cls, kind: Kind, file: str, message: str, where: str | None = None) -> Problem:
        """Escapes the texts, since parts of them come from the release."""
        return cls(kind, visible(file), visible(message), None if where is None else visible(where))

    def __str__(self) -> str:
        return f"{self.file}{f' at {self.where}' if self.where else ''}: {self.message}"


@dataclass(frozen=True)
class VerificationReport:
    """The result of verification.

    Attributes:
        key_trusted: the caller gave the key; otherwise it came from the release itself, which proves only that the
            release was not changed by someone without that key.
        files: how many listed files were compared.
        rows, head: of all synthetic rows, and the ledger's head that the release names; None if they could not be read.
        tables: the rows of each table that could be read; a single one is `layout.SINGLE`.
        withdrawn: the signed tombstone if the release was withdrawn; then its rows may be missing.
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
    tables: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def key_note(self) -> str:
        """What the signature proves, in one sentence."""
        if self.key_fingerprint is None:
            return "No usable key was found, so the signature was not checked."
        if self.key_trusted:
            return f"Signed by the key that you gave (fingerprint {self.key_fingerprint})."
        return (
            "The key came from the release itself, so this shows only that nothing changed since the holder of that "
            f"key signed it; compare its fingerprint with the publisher's: {self.key_fingerprint}"
        )

    def __str__(self) -> str:
        return self.words

    @property
    def words(self) -> str:
        """The report for people: one line if there is no problem, else every problem below its kind of failure."""
        return self.words_with(None)

    def words_with(self, key_note: str | None) -> str:
        """Like `words`, with a note that replaces `key_note` if the caller knows more about the key."""
        path, note = visible(str(self.path)), key_note or self.key_note
        if self.ok and self.withdrawn is not None:
            return f"{path}: {self.withdrawn.words}. Its dossier still verifies; {self.files} files. {note}"
        if self.ok:
            tables = "" if layout.SINGLE in self.tables else f" in {len(self.tables)} tables that join"
            return f"{path}: verified; {self.files} files, {self.rows} rows{tables if self.tables else ''}. {note}"
        lines = [f"{path}: FAIL, not what was signed"]
        for kind, meaning in KIND_WORDS.items():
            problems = [f"    {problem}" for problem in self.problems if problem.kind == kind]
            lines += [f"  {kind} failure ({meaning}):", *problems] if problems else []
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "path": visible(str(self.path)),
            "release": None if self.release_id is None else visible(self.release_id),
            "files": self.files,
            "rows": self.rows,
            **({} if {*self.tables} <= {layout.SINGLE} else {"tables": dict(self.tables)}),
            "withdrawn": asdict(self.withdrawn) if self.withdrawn else None,
            "key_trusted": self.key_trusted,
            "key_fingerprint": self.key_fingerprint,
            "ledger_head": {"sequence": self.head.sequence, "hash": self.head.hash} if self.head else None,
            "failures": [kind for kind in KIND_WORDS if any(problem.kind == kind for problem in self.problems)],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def raise_for_problems(self) -> None:
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
    """Compares a release with its attestation, dossier, schema and table.

    Args:
        public_key: the publisher's key as PEM or 32 raw bytes, from another channel. Without it the release's own key
            is used, and the report says so.
        chain: the publisher's ledger, which must contain the release's head and records withdrawals.
        rows: if False, the table's files must exist but are not read: for lists of many releases.
        release: the expected id; without it any release is accepted.

    Raises `VerificationFailed` if there is no such directory, or the given key is not valid.
    """
    trusted = signature.read_public_key(public_key) if public_key is not None else None
    if path.is_symlink() or not path.is_dir():
        raise VerificationFailed(f"{path}: there is no release directory")
    return _Verification(path, trusted, chain, rows, release).run()


def verify_releases(
    paths: Sequence[Path],
    public_key: bytes | None = None,
    *,
    chain: KnownChain | None = None,
    expected: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[VerificationReport, ...]:
    """Verifies releases of one publisher, and that their heads can belong to one chain.

    `expected` has the ids that some of the paths must have. Raises like `verify_release`.
    """
    reports = [verify_release(path, public_key, chain=chain, release=expected.get(path)) for path in paths]
    # A release that failed is no evidence about others.
    for release, message in contradictions(report.head for report in reports if report.ok and report.head):
        found = Problem.of("chain-head", layout.DOSSIER, message, "$.ledger.head")
        reports = [
            replace(report, problems=(*report.problems, found)) if report.release_id == release else report
            for report in reports
        ]
    return tuple(reports)


def exit_status(reports: Sequence[VerificationReport]) -> int:
    """A command's exit status: 0 all verified, 1 some failed, `WITHDRAWN` verified but some were withdrawn."""
    if not all(report.ok for report in reports):
        return 1
    return WITHDRAWN if any(report.withdrawn for report in reports) else 0


@dataclass
class _Verification:
    """One verification: its inputs, the problems found so far, and the regular files by relative name."""

    path: Path
    trusted: Ed25519PublicKey | None
    chain: KnownChain | None
    reads_rows: bool
    expected: str | None
    problems: list[Problem] = field(default_factory=list)
    regular: dict[str, Path] = field(default_factory=dict)
    withdrawn: Tombstone | None = None
    tables: dict[str, int] = field(default_factory=dict)

    def run(self) -> VerificationReport:
        self._look_around()
        key = self._key()
        envelope = self._envelope()
        if envelope is not None and key is not None:
            self._check_signature(envelope, key)
        statement = self._statement(envelope)
        files, rows, head = 0, None, None
        if statement is not None:
            release = statement["predicate"]["release"]
            if self.expected is not None and release != self.expected:
                self._report("identity", layout.ATTESTATION, f"it is of the release {release}, not of {self.expected}")
            self.withdrawn = self._tombstone(release, key)
            self._check_withdrawal(release)
            files = self._check_files({item["name"]: item["digest"]["sha256"] for item in statement["subject"]})
            dossier = self._dossier(statement["predicate"])
            if dossier is not None:
                head = self._check_names(dossier, statement["predicate"])
                for where, message in paid.breaches(
                    dossier["quality"],
                    dossier["statement"]["event"],
                    dossier.get("fidelity"),
                    chosen="tune" in dossier["contract"]["generate"],
                ):
                    self._report("schema", layout.DOSSIER, message, where)
                self._check_setting(dossier)
                whole = self.reads_rows and not self.withdrawn
                rows = self._check_tables(dossier) if whole else None
        return VerificationReport(
            path=self.path,
            release_id=statement["predicate"]["release"] if statement else None,
            problems=tuple(self.problems),
            key_fingerprint=signature.fingerprint(key) if key else None,
            key_trusted=self.trusted is not None,
            files=files,
            rows=rows,
            head=head,
            withdrawn=self.withdrawn,
            tables=self.tables,
        )

    def _report(self, kind: Kind, file: str, message: str, where: str | None = None) -> None:
        self.problems.append(Problem.of(kind, file, message, where))

    def _damaged(self, *files: str) -> bool:
        """Whether a problem was found in these files, or in these directories (`data/`)."""
        return any(
            problem.file == file or (file.endswith("/") and problem.file.startswith(file))
            for problem in self.problems
            for file in files
        )

    def _check_setting(self, dossier: Mapping[str, Any]) -> None:
        """The setting that the mechanism kept is one of the contract's, as the contract has it."""
        setting = dossier["mechanism"].get("setting")
        if setting is None:
            return
        try:
            candidates = dossier["contract"]["generate"]["tune"]["candidates"]
            same = kept_setting(candidates, setting["number"] - 1) == setting
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            same = False
        if not same:
            self._report("schema", layout.DOSSIER, "is none of the contract's candidates", "$.mechanism.setting")

    def _look_around(self) -> None:
        """Lists regular files, and reports what no release contains: links, devices, empty directories."""
        for parent, directories, files in os.walk(self.path, onerror=self._unreadable):
            for name in [*directories, *files]:
                entry = Path(parent, name)
                relative = entry.relative_to(self.path).as_posix()
                mode = entry.lstat().st_mode
                if stat.S_ISREG(mode):
                    self.regular[relative] = entry
                elif not stat.S_ISDIR(mode):
                    self._report("unlisted", relative, "is not a regular file")
            if not directories and not files and Path(parent) != self.path:
                relative = Path(parent).relative_to(self.path).as_posix()
                self._report("unlisted", relative, "is an empty directory, not listed")

    def _unreadable(self, error: OSError) -> None:
        self._report("missing", Path(str(error.filename)).name, f"cannot be read ({type(error).__name__})")

    def _read(self, name: str) -> bytes | None:
        if name not in self.regular:
            self._report("missing", name, "is missing")
            return None
        try:
            return self.regular[name].read_bytes()
        except OSError as error:
            self._report("missing", name, f"cannot be read ({type(error).__name__})")
            return None

    def _key(self) -> Ed25519PublicKey | None:
        """The trusted key, or the release's own. The release's own must be well formed and equal to the trusted one."""
        content = self._read(layout.PUBLIC_KEY)
        own = None
        if content is not None:
            try:
                own = signature.read_public_key(content)
            except VerificationFailed as error:
                self._report("signature", layout.PUBLIC_KEY, str(error))
            if own is not None and signature.public_pem(own) != content:
                self._report("signature", layout.PUBLIC_KEY, "is not in its canonical form")
        if self.trusted and own and signature.fingerprint(own) != signature.fingerprint(self.trusted):
            self._report("signature", layout.PUBLIC_KEY, "is another key than the trusted one")
        return self.trusted or own

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
            self._report("signature", layout.ATTESTATION, "its statement was not signed by the key")
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
        """The tombstone if the key signed it for this release. Without one, missing rows are a problem."""
        try:
            found = tombstone.read_tombstone(self.path)
        except VerificationFailed as error:
            self._report("signature", tombstone.TOMBSTONE, str(error))
            return None
        if found is None:
            return None
        if key is None or not found.is_signed_by(key):
            self._report("signature", tombstone.TOMBSTONE, "was not signed by the key")
            return None
        if found.tombstone.release != release:
            self._report("signature", tombstone.TOMBSTONE, "belongs to another release", "$.release")
            return None
        return found.tombstone

    def _check_withdrawal(self, release: str) -> None:
        """A withdrawn release must have a tombstone and no rows."""
        message = "rows remain although it was withdrawn; the publisher must repeat dpsynth release withdraw"
        for name in layout.ROWS if self.withdrawn is not None else ():
            if os.path.lexists(self.path / name):
                self._report("withdrawn", f"{name}/" if name == layout.DATA else name, message)
        if self.withdrawn is None and self.chain is not None and release in self.chain.withdrawn:
            message = f"is missing, but {self.chain.source} records that this release was withdrawn"
            self._report("withdrawn", tombstone.TOMBSTONE, message)

    def _check_files(self, listed: dict[str, str]) -> int:
        """Compares every file. Returns how many listed files were read."""
        later = tombstone.FILES if self.withdrawn else frozenset()
        for name in sorted(set(self.regular) - set(listed) - {layout.ATTESTATION} - later):
            self._report("unlisted", name, "is not listed in the attestation")
        for name, digest in listed.items():
            if name not in self.regular:
                if self.withdrawn is None or not layout.holds_rows(name):
                    self._report("missing", name, "is missing")
            elif self._is_read(name) and self._digest(name) != digest:
                self._report("hash", name, "its content is not what was signed (SHA-256 differs)")
        return sum(name in self.regular and self._is_read(name) for name in listed)

    def _is_read(self, name: str) -> bool:
        return self.reads_rows or not layout.holds_rows(name)

    def _digest(self, name: str) -> str | None:
        try:
            return digest_file(self.regular[name])
        except OSError:
            return None

    def _dossier(self, predicate: dict[str, Any]) -> dict[str, Any] | None:
        """The dossier if it was signed and matches its schema; else reports differences by JSON path."""
        if layout.DOSSIER not in self.regular:
            return None  # reported as missing
        try:
            dossier = json.loads(self.regular[layout.DOSSIER].read_bytes())
            parts = part_digests(dossier)
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            kind: Kind = "hash" if self._damaged(layout.DOSSIER) else "schema"
            line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            self._report(kind, layout.DOSSIER, f"is not a JSON object{line}")
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
            message = f"has a format that this version cannot read; accepted: {', '.join(schema.DOSSIERS)}"
            self._report("schema", layout.DOSSIER, message, "$.format")
            return False
        try:
            breaches = schema.breaches(dossier, name)
        except RecursionError:
            breaches = [schema.Breach("$", "is nested too deeply")]
        for breach in breaches:
            self._report("schema", layout.DOSSIER, breach.message, breach.where)
        return not breaches

    def _check_names(self, dossier: dict[str, Any], predicate: dict[str, Any]) -> DatedHead:
        """Dossier and attestation must agree, and a given chain must contain the head."""
        release, head = dossier["release"], dossier["ledger"]["head"]
        pairs = (
            ("$.release.id", release["id"], predicate["release"]),
            ("$.commitments.candidate", dossier["commitments"]["candidate"], predicate["candidate"]),
            ("$.format", dossier["format"], predicate["dossier"]["format"]),
        )
        for where, value, signed in pairs:
            if value != signed:
                self._report("schema", layout.DOSSIER, "differs from the attestation", where)
        if head != predicate["ledgerHead"]:
            self._report("chain-head", layout.DOSSIER, "differs from the attestation's head", "$.ledger.head")
        elif self.chain is not None and (problem := self.chain.problem(head)):
            self._report("chain-head", layout.DOSSIER, problem, "$.ledger.head")
        return DatedHead(release["id"], release["created_at"], head["sequence"], head["hash"])

    def _check_tables(self, dossier: dict[str, Any]) -> int | None:
        """Opens the tables, which is safe only if all files match the attestation. Returns their synthetic rows."""
        synthetic = dossier["synthetic"]
        if self._damaged(layout.DATA, f"{layout.DATA}/", layout.ATTESTATION, layout.PUBLIC_KEY):
            return None
        linked = synthetic.get("tables", [])
        described = {table["name"]: table for table in linked}
        if len(described) < len(linked):
            self._report("schema", layout.DOSSIER, "names a table twice", "$.synthetic.tables")
            return None
        files = {name: layout.table_files(self.regular, name) for name in described or (layout.SINGLE,)}
        if linked:
            placed = {f"{layout.DATA}/{table}/{name}" for table, names in files.items() for name in names}
            for name in sorted(set(layout.table_files(self.regular, layout.SINGLE))):
                if f"{layout.DATA}/{name}" not in placed:
                    self._report("table", f"{layout.DATA}/{name}", "belongs to no table that the dossier names")
        for name in files:
            self._check_table(dossier, name, described.get(name, synthetic)["rows"], files[name])
        if set(self.tables) != set(files):
            return None
        self._check_rows(dossier, files)
        if linked:
            self._check_links(linked, files)
        rows = sum(number for name, number in self.tables.items() if not _is_public(described.get(name)))
        if linked and rows != synthetic["rows"]:
            self._report("table", layout.DATA, f"has {rows} synthetic rows, the dossier says {synthetic['rows']}")
        return rows

    def _check_table(self, dossier: dict[str, Any], name: str, rows: int, files: Sequence[str]) -> None:
        """One table has the rows and columns that the dossier says."""
        place, start = _place(name), f"{name}." if name else ""
        try:
            facts = table.read_facts(self.path / layout.DATA / name, files)
        except VerificationFailed as error:
            self._report("table", place, str(error))
            return
        self.tables[name] = facts.rows
        if facts.rows != rows:
            self._report("table", place, f"has {facts.rows} rows, the dossier says {rows}")
        described = {
            (column["name"].removeprefix(start), column["type"])
            for column in dossier["synthetic"]["columns"]
            if column["type"] and column["name"].startswith(start)
        }
        actual = set(facts.columns)
        for column, kind in sorted(actual ^ described):
            side = "the table" if (column, kind) in actual else "the dossier"
            self._report("table", place, f"column {column} is of type {kind} in {side} only", "$.synthetic.columns")

    def _check_links(self, linked: Sequence[Mapping[str, Any]], files: Mapping[str, Sequence[str]]) -> None:
        """Keys are distinct, and every foreign key joins."""
        from pyarrow import ArrowException

        keys = {each["name"]: each["key"] for each in linked}

        def read(name: str, columns: Sequence[str]) -> Any:
            return table.read_columns(self.path / layout.DATA / name, files[name], columns)

        for each in linked:
            name, place = each["name"], _place(each["name"])
            parent = each["parent"]
            links = [([column], other, True) for column, other in each["lookups"].items()]
            links += [(parent["columns"], parent["table"], False)] if parent else []
            try:
                if each["key"] and (lost := table.repeated(read(name, each["key"]))):
                    self._report(
                        "table", place, f"{lost} rows have a missing or repeated key ({', '.join(each['key'])})"
                    )
                for columns, other, may_miss in links:
                    lost = table.without_row(read(name, columns), read(other, keys[other]), may_miss=may_miss)
                    if lost:
                        joined = f"{', '.join(columns)} refers to no row of {other}"
                        self._report("table", place, f"of {lost} rows, {joined}")
            except (ArrowException, LookupError, TypeError, ValueError, VerificationFailed):
                self._report("table", place, "its keys are not those that the dossier names", "$.synthetic.tables")

    def _check_rows(self, dossier: dict[str, Any], files: Mapping[str, Sequence[str]]) -> None:
        """What release and dossier show of the rows must follow from them. Earlier formats show less."""
        from pyarrow import ArrowException

        from dpsynth_platform.release import fidelity, sample

        comparison, data = dossier.get("fidelity"), self.path / layout.DATA
        try:
            if layout.SAMPLE in self.regular and not self._damaged(layout.SAMPLE):
                for name, shown in sample.read_samples(self.regular[layout.SAMPLE].read_bytes()).items():
                    rows = table.batches(data / name, files[name], shown["columns"])
                    start = f"$.tables.{name}" if name else "$"
                    for place in sample.not_found(shown, rows):
                        self._report("table", layout.SAMPLE, "is no row of the table", f"{start}.rows[{place}]")
        except (ArrowException, LookupError, OSError, TypeError, ValueError, RecursionError, VerificationFailed):
            self._report("table", layout.SAMPLE, "does not have rows of the table")
        if layout.SINGLE not in files:
            if comparison or dossier["synthetic"].get("pictures"):
                self._report("schema", layout.DOSSIER, "compares or shows one of several tables", "$.synthetic")
            return
        names = files[layout.SINGLE]
        pictures = dossier["synthetic"].get("pictures")
        if pictures and not self._damaged(layout.SHEET):
            self._check_sheet(pictures, names)
        try:
            if comparison:
                counted = table.batches(data, names, fidelity.columns_of(comparison))
                for where, message in fidelity.breaches(comparison, counted, dossier["statement"]["event"]):
                    self._report("table", layout.DOSSIER, message, where)
        except (ArrowException, LookupError, TypeError, ValueError, VerificationFailed):
            self._report("table", layout.DOSSIER, "its comparison is not of the table's columns")

    def _check_sheet(self, pictures: dict[str, Any], names: Sequence[str]) -> None:
        """The contact sheet must be that of the table's first pictures. Only this needs a library for pictures."""
        from pyarrow import ArrowException

        try:
            from dpsynth_platform.foundation.errors import SourceError
            from dpsynth_platform.release import first_pictures
        except ModuleNotFoundError as missing:
            self._report("table", layout.SHEET, f"cannot be compared with the table without {missing.name}")
            return
        try:
            shown_by = first_pictures.layout_of(pictures)
            columns = [*(condition.column for condition in shown_by.conditions), shown_by.column]
            found = table.batches(self.path / layout.DATA, names, columns)
            if not first_pictures.shows(self.regular[layout.SHEET].read_bytes(), shown_by, found):
                self._report("table", layout.SHEET, "does not have the table's first pictures")
        except (ArrowException, LookupError, OSError, TypeError, ValueError, SourceError, VerificationFailed):
            self._report("table", layout.SHEET, "does not have pictures of the table")


def _place(table: str) -> str:
    return f"{layout.DATA}/{table}" if table else layout.DATA


def _is_public(described: Mapping[str, Any] | None) -> bool:
    return described is not None and described["role"] == "public"


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name


def main(arguments: Sequence[str] | None = None) -> int:
    """The command for machines without the platform. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dpsynth_platform.release.verify",
        description="Verifies releases offline: signature, every byte, schema, ledger heads and table.",
    )
    parser.add_argument("release", nargs="+", type=Path, help="directory of a release")
    parser.add_argument("--public-key", type=Path, help="the publisher's key (PEM), from another channel")
    parser.add_argument("--ledger", type=Path, help="an export of the publisher's ledger, which must contain the heads")
    parser.add_argument("--json", action="store_true", help="one JSON value instead of text")
    options = parser.parse_args(arguments)
    try:
        key = read_regular(options.public_key) if options.public_key else None
        chain = KnownChain.of_export(options.ledger) if options.ledger else None
        reports = verify_releases(options.release, key, chain=chain)
    except OSError as error:
        print(f"{options.public_key}: the key cannot be read: {file_problem(error)}", file=sys.stderr)
        return 2
    except DpsynthError as error:
        print(visible(str(error)), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        for report in reports:
            print(report.words)
    return exit_status(reports)


if __name__ == "__main__":
    sys.exit(main())
