"""What a coordinator asked and was answered, on disk, so that a run whose coordinator was stopped or killed continues.

What belongs here: exchanges by the digest of what was asked, and whose they are. What does not: what is asked
(`nodes`), and what a node says twice: to its last message, the same reply.

A coordinator draws nothing at random that participants see, or keeps what it has drawn (`central`): what it asks
follows from that, plan, key, the run's name and the replies so far. So a run that is made again gets the kept replies
first, and asks participants from where it ended. A participant opens each round once and takes each step once: what
differs from the first time is refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.federation.masks import framed
from dpsynth_platform.federation.secure_sum import Link
from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import write_durably

_RUN = "run.json"


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of one run in a directory of their own, as long as it is not complete."""

    place: Path

    def begun(self, plan_digest: str, **facts: str) -> str | None:
        """The name of the run that began here; None without one.

        Args:
            facts: that have to be as they were.

        Raises:
            ConfigurationError: it is another plan's, or had other facts.
        """
        if not self.has_begun:
            return None
        found = json.loads((self.place / _RUN).read_text(encoding="utf-8"))
        others = [name for name, value in (facts | {"plan": plan_digest}).items() if found.get(name) != value]
        if others:
            raise ConfigurationError(
                f"{self.place} has an interrupted run of another {' and '.join(sorted(others))}; accepted: a new run "
                "elsewhere, or what that run began with"
            )
        return str(found["run"])

    @property
    def has_begun(self) -> bool:
        return (self.place / _RUN).exists()

    def begin(self, plan_digest: str, run_id: str, **facts: str) -> None:
        """Notes whose exchanges these are, before anybody is asked to start.

        Reservations are in the memory of participants: what was said before is no part of a run that continues later.
        """
        known = {"run": run_id, "plan": plan_digest} | facts
        write_durably(private_directory(self.place) / _RUN, json.dumps(known))

    def over(self, link: Link) -> KeptExchanges:
        return KeptExchanges(self.place, link)

    def forget(self) -> None:
        """Deletes them: the run is complete, or cannot go on. Raises `ConfigurationError` where that fails."""
        if not self.place.exists():
            return
        try:
            (self.place / _RUN).unlink(missing_ok=True)  # first: without it, the others are of no run
            shutil.rmtree(self.place)
        except OSError as error:
            problem = file_problem(error)
        else:
            return
        raise ConfigurationError(
            f"{self.place}: {problem}; what was said in a run stays there, and may open its sums; accepted: delete it"
        )


@dataclass(frozen=True)
class KeptExchanges:
    """A link that asks nothing twice to which all replies are kept. Raises as the link, and OSError of a full disk."""

    place: Path
    link: Link

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        kept = self.place / hashlib.sha256(framed(*_parts(requests))).hexdigest()
        if kept.exists():
            return _read(kept.read_bytes())
        replies = self.link.ask(requests)
        private_directory(self.place)
        lengths = json.dumps({name: len(reply) for name, reply in replies.items()})
        write_durably(kept, b"\n".join([lengths.encode(), b"".join(replies.values())]))
        return replies


def _parts(requests: Mapping[str, bytes]) -> list[bytes]:
    return [part for name, body in sorted(requests.items()) for part in (name.encode(), body)]


def _read(content: bytes) -> dict[str, bytes]:
    """Replies in the order in which they came."""
    lengths, _, bodies = content.partition(b"\n")
    found, start = {}, 0
    for name, length in json.loads(lengths).items():
        found[name] = bodies[start : start + length]
        start += length
    return found
