"""Hooks of `mkdocs build`: files of the repository that pages link to become files of the site.

Pages link to contracts and manifests by their place in the repository (`../../deploy/contracts/census.yaml`), so that
the links work on a code host, too. The site has a copy of each such file, and of no other.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(
    r"\]\((?P<target>(?:\.\./)+(?P<file>deploy/[^)#\s]+|CONTRIBUTING\.md|SECURITY\.md|LICENSE))(?P<rest>[)#])"
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Points links to repository files at their copies in the site."""

    def copied(match: re.Match[str]) -> str:
        file = match["file"]
        source = ROOT / file
        if posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match["target"])) != file:
            return match[0]  # leads elsewhere: the strict build says so
        place = file if source.suffix != ".md" else f"{file}.txt"  # no page of the site
        if source.is_file() and files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(source)))
        return f"]({posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or '.')}{match['rest']}"

    return _LINK.sub(copied, markdown)
