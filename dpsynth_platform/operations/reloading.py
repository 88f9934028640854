"""Contract files that changed since Dagster loaded the code location, and asking Dagster's web server to load it again.

What belongs here: what identifies the files, and the request. What does not: when to look (`sensors`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from urllib.request import Request, urlopen

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.settings import Settings

_SECONDS = 10.0
_RELOAD = """mutation($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { __typename } }
  }
}"""


def files_digest(settings: Settings) -> str:
    """Identifies the present files of contracts and families, by name, size and time. Opens none of them."""
    return canonical_digest(sorted(_files(settings)))


def _files(settings: Settings) -> Iterator[list[object]]:
    for directory in (settings.contracts, settings.families):
        for path in directory.glob("*.yaml"):
            with suppress(OSError):
                found = path.stat()
                yield [os.fsencode(path).hex(), found.st_size, found.st_mtime_ns]  # a name may be no text


def reload_location(url: str, location: str) -> bool:
    """Asks Dagster's web server to load a code location again; whether it did.

    Args:
        url: the web server's address.
        location: the code location's name.
    """
    body = json.dumps({"query": _RELOAD, "variables": {"name": location}}).encode()
    try:
        # The setting that names it accepts http and https alone.
        request = Request(f"{url.rstrip('/')}/graphql", body, {"content-type": "application/json"})  # noqa: S310
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            reloaded = json.load(answer)["data"]["reloadRepositoryLocation"]
            return bool(reloaded["locationOrLoadError"]["__typename"] == "RepositoryLocation")
    except (OSError, ValueError, LookupError, TypeError):
        return False
