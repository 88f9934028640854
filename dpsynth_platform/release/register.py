"""The register of publications: where each release was published, and whom to ask about it. Restricted.

What belongs here: what withdrawals and the list of releases need, even after the dataset's contract has changed or
gone. What does not: the fact of publication; the ledger records that, without places, since its export is public. A
release is registered before it is shown, so its directory may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import write_durably

NAME = "releases"


@dataclass(frozen=True)
class Registered:
    """The places of a release (several if the deployment's home has moved), its contract's contacts, and its targets.

    `targets` says for each target that may hold a copy how its rows are deleted there.
    """

    directories: tuple[Path, ...] = ()
    contacts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


class Register:
    """One file per release, in the restricted zone."""

    def __init__(self, restricted: Path) -> None:
        self._root = restricted / NAME

    def note(self, release_id: str, directory: Path, contacts: Iterable[str]) -> None:
        """Adds a place where a release is about to be shown; durable on return."""
        found = self.find(release_id)
        directories = tuple(dict.fromkeys((*found.directories, directory.absolute())))
        self._write(release_id, replace(found, directories=directories, contacts=tuple(contacts)))

    def note_target(self, release_id: str, removal: str) -> None:
        """Adds a target that is about to get a copy; durable on return."""
        found = self.find(release_id)
        if removal not in found.targets:
            self._write(release_id, replace(found, targets=(*found.targets, removal)))

    def _write(self, release_id: str, found: Registered) -> None:
        document = {"directories": [str(item) for item in found.directories], "contacts": list(found.contacts)}
        document |= {"targets": list(found.targets)} if found.targets else {}
        write_durably(self.path(release_id), json.dumps(document, indent=1))

    def path(self, release_id: str) -> Path:
        return self._root / f"{release_id}.json"

    def find(self, release_id: str) -> Registered:
        """The entry of a release; empty if it was never registered. Raises `StaleInput` if its file is damaged."""
        path = self.path(release_id)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return Registered(
                tuple(map(Path, document["directories"])),
                tuple(document["contacts"]),
                tuple(document.get("targets", ())),
            )
        except FileNotFoundError:
            return Registered()
        except (ValueError, KeyError, TypeError):
            raise StaleInput(f"{path}: the register of publications is damaged; restore the file") from None

    def directories(self) -> list[Path]:
        return [place for release in self.releases() for place in self.find(release).directories]

    def releases(self) -> list[str]:
        return sorted(path.stem for path in self._root.glob("*.json"))
