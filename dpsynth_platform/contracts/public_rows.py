"""The contract's `generate.public`: a public table that helps to model the private one.

What belongs here: its declaration, and which of the contract's columns are read from it. What does not: reading it, and
its use (`synth.tabular.public_rows`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import Part, refuse
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import local_path


class PublicRows(Part):
    """A public table with columns of the contract. No mechanism protects its rows."""

    uri: str = Field(min_length=1, max_length=1000, description="Path of the table; ${DPSYNTH_HOME} is replaced.")
    format: Literal["delta", "parquet", "csv"] = Field(
        default="delta", description="`delta`; `parquet` or `csv`: a file, or a directory of them."
    )
    why: str = Field(min_length=10, max_length=1000, description="Why it is public. Printed in every statement.")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, document: object) -> object:
        """Fills in the format that the end of the name says."""
        if not isinstance(document, dict) or document.get("format") is not None:
            return document
        ends: dict[str, str] = {".parquet": "parquet", ".csv": "csv"}
        found = ends.get(Path(str(document.get("uri", ""))).suffix.lower())
        return document if found is None else document | {"format": found}

    @model_validator(mode="after")
    def _readable(self) -> PublicRows:
        if not self.uri.startswith(("/", "${")) and "://" not in self.uri:
            refuse([f"uri: {self.uri!r}; accepted: an absolute path, such as ${{DPSYNTH_HOME}}/{self.uri}, or a URI"])
        if self.source.is_copied:
            refuse([f"uri: {self.uri!r} is not on this machine; accepted: a path, or a Delta table"])
        return self

    @property
    def source(self) -> Source:
        """The table as sources are opened. Raises `ValueError` for a URI that no source may have."""
        return Source(uri=self.uri, format=self.format, key=["key"])

    def faults(self, source: Source, called: str = "the source") -> Iterator[str]:
        """A line if it overlaps with a private source, whose rows would be used without protection."""
        if source.format == "sql":
            return
        overlap = self.uri == source.place
        if "://" not in self.uri.removeprefix("file://") and "://" not in source.uri.removeprefix("file://"):
            public, read = (Path(os.path.realpath(local_path(uri))) for uri in (self.uri, source.uri))
            overlap = read.is_relative_to(public) or public.is_relative_to(read)
        if overlap:
            yield f"{self.uri!r} and {called} overlap; accepted: a table that is public, apart from all sources"
