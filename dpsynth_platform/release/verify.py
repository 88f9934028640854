"""Verification of a published release, offline and by anyone who has its directory.

What belongs here: holding a release against its own signed manifest and telling every place that differs. What does
not: whether the evidence behind it was good; that was checked before publication. The release is read as if someone
meant harm: links are not followed, names that lead outside are refused, and the table is opened only when each of its
files is the one that was signed.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpsynth_platform.errors import VerificationFailed
from dpsynth_platform.release import manifest as manifests
from dpsynth_platform.release import signature
from dpsynth_platform.storage import digest_file


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was signed.

    Attributes:
        file: relative name of the file.
        message: what is wrong.
        where: JSON path inside the file, where one can be told.
    """

    file: str
    message: str
    where: str | None = None

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
    """

    path: Path
    release_id: str | None
    problems: tuple[Problem, ...]
    key_fingerprint: str | None
    key_trusted: bool
    files: int
    rows: int | None

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

    def raise_for_problems(self) -> None:
        """Raises `VerificationFailed` with every problem, one a line, if there is any."""
        if self.problems:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            raise VerificationFailed(f"{self.path} is not the release that was signed:\n{lines}")


def verify_release(path: Path, public_key: bytes | None = None) -> VerificationReport:
    """Holds a release against its manifest, signature, dossier and table.

    Args:
        path: the release's directory.
        public_key: the publisher's key as PEM or 32 raw bytes, got over another channel. Without it the release's own
            key is used, and the report says so.

    Raises:
        VerificationFailed: there is no such directory, or the given key is none.
    """
    trusted = signature.read_public_key(public_key) if public_key is not None else None
    if path.is_symlink() or not path.is_dir():
        raise VerificationFailed(f"{path}: there is no release directory")
    return _Verification(path, trusted).run()


_SIGNED_BY = (manifests.MANIFEST, manifests.SIGNATURE, manifests.PUBLIC_KEY)


class _Verification:
    """One verification: the problems found so far, and what later checks build on."""

    def __init__(self, path: Path, trusted: Ed25519PublicKey | None) -> None:
        self._path = path
        self._trusted = trusted
        self._problems: list[Problem] = []
        self._files: dict[str, Path] = {}

    def run(self) -> VerificationReport:
        self._look_around()
        content = self._read(manifests.MANIFEST)
        key = self._key()
        if content is not None and key is not None:
            self._check_signature(content, key)
        manifest = self._manifest(content)
        rows = None
        if manifest is not None:
            if key is not None and manifest["key_fingerprint"] != signature.fingerprint(key):
                self._report(manifests.MANIFEST, "names another key", "$.key_fingerprint")
            self._check_files(manifest)
            rows = self._check_dossier(manifest)
        return VerificationReport(
            path=self._path,
            release_id=manifest["release_id"] if manifest else None,
            problems=tuple(self._problems),
            key_fingerprint=signature.fingerprint(key) if key else None,
            key_trusted=self._trusted is not None,
            files=len(manifest["files"]) if manifest else 0,
            rows=rows,
        )

    def _report(self, file: str, message: str, where: str | None = None) -> None:
        self._problems.append(Problem(file, message, where))

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
                    self._report(relative, "is a link or no regular file")
            if not directories and not files and Path(parent) != self._path:
                self._report(Path(parent).relative_to(self._path).as_posix(), "is an empty directory, not listed")

    def _unreadable(self, error: OSError) -> None:
        self._report(Path(str(error.filename)).name, f"cannot be read ({type(error).__name__})")

    def _read(self, name: str) -> bytes | None:
        if name not in self._files:
            self._report(name, "is missing")
            return None
        try:
            return self._files[name].read_bytes()
        except OSError as error:
            self._report(name, f"cannot be read ({type(error).__name__})")
            return None

    def _key(self) -> Ed25519PublicKey | None:
        """The trusted key, or the release's own. The release's own must be well formed and the same in any case."""
        content = self._read(manifests.PUBLIC_KEY)
        own = None
        if content is not None:
            try:
                own = signature.read_public_key(content)
            except VerificationFailed as error:
                self._report(manifests.PUBLIC_KEY, str(error))
            if own is not None and signature.public_pem(own) != content:
                self._report(manifests.PUBLIC_KEY, "is not in the form in which it was written")
        key = self._trusted or own
        if self._trusted and own and signature.fingerprint(own) != signature.fingerprint(self._trusted):
            self._report(manifests.PUBLIC_KEY, "is another key than the trusted one")
        return key

    def _check_signature(self, content: bytes, key: Ed25519PublicKey) -> None:
        given = self._read(manifests.SIGNATURE)
        if given is not None and not signature.is_valid(key, content, given):
            # Which of the two was changed cannot be told, so both are named.
            self._report(manifests.MANIFEST, "is not what the key signed")
            self._report(manifests.SIGNATURE, f"is not the key's signature of {manifests.MANIFEST} as it is now")

    def _manifest(self, content: bytes | None) -> dict[str, Any] | None:
        if content is None:
            return None
        try:
            manifest = json.loads(content)
            canonical = manifests.to_bytes(manifest)
        except ValueError as error:
            self._report(manifests.MANIFEST, f"is no JSON ({type(error).__name__})")
            return None
        problem = _shape_problem(manifest)
        if problem:
            self._report(manifests.MANIFEST, *problem)
            return None
        if canonical != content:
            self._report(manifests.MANIFEST, "is not in canonical form")
        return dict(manifest)

    def _check_files(self, manifest: dict[str, Any]) -> None:
        listed = {entry["path"]: entry for entry in manifest["files"]}
        for name in sorted(set(self._files) - set(listed) - manifests.NOT_LISTED):
            self._report(name, "is not listed in the manifest")
        for name, entry in listed.items():
            if name not in self._files:
                self._report(name, "is missing")
            elif self._files[name].stat().st_size != entry["size"]:
                self._report(name, f"has {self._files[name].stat().st_size} bytes, signed were {entry['size']}")
            elif self._digest(name) != entry["sha256"]:
                self._report(name, "its content is not what was signed (SHA-256 differs)")

    def _digest(self, name: str) -> str | None:
        try:
            return digest_file(self._files[name])
        except OSError:
            return None

    def _check_dossier(self, manifest: dict[str, Any]) -> int | None:
        """Locates changes in the dossier, and holds it against manifest and table. Returns the table's rows."""
        content = self._files.get(manifests.DOSSIER)
        if content is None:
            return None  # reported as missing
        try:
            dossier = json.loads(content.read_bytes())
            sections = manifests.section_digests(dossier)
        except (OSError, ValueError, AttributeError) as error:
            line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            self._report(manifests.DOSSIER, f"is no JSON object{line}")
            return None
        for name in sorted(set(sections) | set(manifest["dossier"])):
            if sections.get(name) != manifest["dossier"].get(name):
                self._report(manifests.DOSSIER, "differs from what was signed", f"$.{name}")
        if any(problem.file == manifests.DOSSIER for problem in self._problems):
            return None
        try:
            self._check_names(dossier, manifest)
            return self._check_table(dossier["synthetic"]["rows"], dossier["synthetic"]["columns"])
        except (KeyError, TypeError):  # signed by someone, but not by this library
            self._report(manifests.DOSSIER, "does not have the parts of a dossier")
            return None

    def _check_names(self, dossier: dict[str, Any], manifest: dict[str, Any]) -> None:
        pairs = (
            ("$.release.id", dossier["release"]["id"], "release_id"),
            ("$.commitments.candidate", dossier["commitments"]["candidate"], "candidate"),
            ("$.ledger.head", dossier["ledger"]["head"], "ledger_head"),
        )
        for where, value, name in pairs:
            if value != manifest[name]:
                self._report(manifests.DOSSIER, f"is not the manifest's $.{name}", where)

    def _check_table(self, signed_rows: int, signed_columns: list[dict[str, Any]]) -> int | None:
        """Opens the table, which is safe once its log is the signed one and names no file outside."""
        if any(problem.file.startswith((f"{manifests.DATA}/", *_SIGNED_BY)) for problem in self._problems):
            return None
        from deltalake import DeltaTable

        data = self._path / manifests.DATA
        try:
            table = DeltaTable(str(data))
            outside = [uri for uri in table.file_uris() if not _is_below(uri, data)]
            if outside:
                self._report(manifests.DATA, "the table's log names files outside the release")
                return None
            dataset = table.to_pyarrow_dataset()
            rows = int(dataset.count_rows())
            columns = [(field.name, str(field.type)) for field in dataset.schema]
        except Exception as error:  # whatever the libraries make of a table that is none
            self._report(manifests.DATA, f"cannot be opened as a Delta table ({type(error).__name__})")
            return None
        if rows != signed_rows:
            self._report(manifests.DATA, f"has {rows} rows, the dossier says {signed_rows}")
        said = [(column["name"], column["type"]) for column in signed_columns if column["type"]]
        for name, kind in sorted(set(columns) ^ set(said)):
            side = "the table" if (name, kind) in columns else "the dossier"
            self._report(manifests.DATA, f"column {name} is of type {kind} in {side} only", "$.synthetic.columns")
        return rows


def _shape_problem(manifest: Any) -> tuple[str, str] | None:
    """What keeps a manifest from being read at all: message and JSON path."""
    if not isinstance(manifest, dict) or manifest.get("format") != manifests.FORMAT:
        return f"is not of the format {manifests.FORMAT}", "$.format"
    kinds = {
        "release_id": str,
        "candidate": str,
        "ledger_head": dict,
        "key_fingerprint": str,
        "files": list,
        "dossier": dict,
    }
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            return "is missing or of another kind", f"$.{name}"
    seen: set[str] = set()
    for index, entry in enumerate(manifest["files"]):
        where = f"$.files[{index}]"
        if (
            not isinstance(entry, dict)
            or set(entry) != {"path", "sha256", "size"}
            or not isinstance(entry["path"], str)
        ):
            return "is not a file's path, sha256 and size", where
        path = PurePosixPath(entry["path"])
        if path.is_absolute() or ".." in path.parts or str(path) != entry["path"] or entry["path"] in seen:
            return "names a file twice or outside the release", where
        seen.add(entry["path"])
    return None


def _is_below(uri: str, directory: Path) -> bool:
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return False
    place = Path(unquote(parts.path) if parts.scheme else uri)
    return place.resolve().is_relative_to(directory.resolve())
