"""The register of publications: where each release was shown, and whom to ask about it. Restricted.

What belongs here: what a withdrawal and the list of releases must know of every release, whatever became of its
dataset's contract since. What does not: that a release was published, which is the ledger's to say, without places:
its export goes to strangers. A release is registered before it is shown, so its directory may not be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import write_durably

NAME = "releases"


@dataclass(frozen=True)
class Registered:
    """What is known of one release.

    Attributes:
        directories: every place where it was shown; more than one where the deployment's home has moved.
        contacts: people to ask, as its own contract named them.
    """

    directories: tuple[Path, ...] = ()
    contacts: tuple[str, ...] = ()


class Register:
    """One file a release, below the restricted zone."""

    def __init__(self, restricted: Path) -> None:
        self._root = restricted / NAME

    def note(self, release_id: str, directory: Path, contacts: Iterable[str]) -> None:
        """Adds a place where a release is about to be shown; durable on return."""
        place = directory.absolute()
        known = dict.fromkeys((*self.find(release_id).directories, place))
        document = {"directories": [str(item) for item in known], "contacts": list(contacts)}
        write_durably(self.path(release_id), json.dumps(document, indent=1))

    def path(self, release_id: str) -> Path:
        """The file of a release."""
        return self._root / f"{release_id}.json"

    def find(self, release_id: str) -> Registered:
        """What is known of a release; nothing where it was never registered.

        Raises:
            StaleInput: its file is damaged.
        """
        path = self.path(release_id)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return Registered(tuple(map(Path, document["directories"])), tuple(document["contacts"]))
        except FileNotFoundError:
            return Registered()
        except (ValueError, KeyError, TypeError):
            raise StaleInput(f"{path}: the register of publications is damaged; restore the file") from None

    def directories(self) -> list[Path]:
        """Every place where any release was shown."""
        return [place for release in self.releases() for place in self.find(release).directories]

    def releases(self) -> list[str]:
        """Ids of all that are registered."""
        return sorted(path.stem for path in self._root.glob("*.json"))
