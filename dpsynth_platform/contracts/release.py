"""The contract's `release` and `retention`: publication, and how long intermediates are kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.base import ColumnName, Duration, Name, Part, duration_of, key_path, refuse, text_like
from dpsynth_platform.contracts.periods import CADENCES, PERIOD_PATTERN, Cron
from dpsynth_platform.contracts.uris import (
    FOREIGN_ACCOUNT,
    KNOWN_PARAMETERS,
    STORES,
    catalog_place,
    database_place,
    foreign_account,
    has_credentials,
    may_be_secret,
    named_stores,
)

_SHARE: Any = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


PERIOD, RELEASE = "period", "release"
"""Columns that a target's table has besides those of the release."""
DATABASES = ("postgresql", "postgresql+psycopg")
DATABASE_FILES = ("duckdb", "sqlite")
"""Formats that are a database file for each release."""
CATALOGS = ("http", "https", "postgresql", "postgresql+psycopg", "sqlite")
"""Schemes of Iceberg catalogs: over REST, and in databases."""
TABLE = r"^([A-Za-z_][A-Za-z0-9_]{0,62}\.){0,8}[A-Za-z_][A-Za-z0-9_]{0,53}$"
_TABLE_WORDS = "names with dots between them, each of letters, digits and _, and no digit first; the last of 54 at most"
_PERIODS = "; ".join(f"{cadence.form} ({name})" for name, cadence in CADENCES.items())
"""A table's name that PostgreSQL does not shorten, also with `_releases` behind it."""
LONGEST_COLUMN = 63
"""Bytes of a column's name in PostgreSQL, which cuts longer ones."""
SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
"""Columns that every table of PostgreSQL has already."""

OVERDUE_AFTER = "3d"
"""Default of `release.overdue_after`."""


def _one_or_list(schema: dict[str, Any]) -> None:
    target = schema.pop("items")
    schema["anyOf"] = [target, {"type": schema.pop("type"), "items": target}]


class Target(Part):
    """A place outside of the public zone into which approved releases are copied."""

    format: Literal["delta", "duckdb", "files", "iceberg", "images", "postgresql", "sqlite"] = Field(
        default="delta",
        description="`delta`, `iceberg`: a table to which each release is added; `files`: a directory to which each is "
        "copied; `images`: a directory with the pictures of each as files; `postgresql`: a table in a database; "
        "`duckdb`, `sqlite`: a directory with a database file of each, whose tables have primary and foreign keys. "
        "With linked `tables`, `delta` is a directory with a table for each of them.",
    )
    uri: str = Field(
        min_length=1,
        description="Path, or URI of an object store (`s3://`, `gs://`, `abfss://`), of a database or of an Iceberg "
        "catalog, without credentials: these come from the environment. ${DPSYNTH_HOME} is replaced.",
    )
    table: Annotated[str, text_like(TABLE, _TABLE_WORDS)] | None = Field(
        default=None,
        exclude_if=lambda table: table is None,
        description="Table of a database, also as `schema.table`; `TABLE_releases` beside it has the dossiers. "
        "Table of an Iceberg catalog, as `namespace.table`.",
    )
    catalog: Name | None = Field(
        default=None,
        exclude_if=lambda catalog: catalog is None,
        description="Name of an Iceberg catalog, as for a source. Default: default.",
    )

    @model_validator(mode="after")
    def _check_place(self) -> Target:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        catalogs = {"postgresql": DATABASES, "iceberg": CATALOGS}.get(self.format)
        scheme, divided, _ = self.uri.partition("://")
        if has_credentials(self.uri):
            yield (
                "uri: has credentials, or a parameter that may be some (they are not shown); accepted: a URI without "
                f"them, with parameters of {KNOWN_PARAMETERS}; credentials come from the environment"
            )
        elif foreign_account(self.uri):
            yield FOREIGN_ACCOUNT
        elif divided and self.format in DATABASE_FILES:
            yield f"uri: no path; accepted: for the format {self.format}, a directory of this machine"
        elif (divided or self.in_database) and scheme not in (catalogs or STORES):
            accepted = f"a URI of {', '.join(catalogs)}" if catalogs else f"a path, or {named_stores(scheme)}"
            yield f"uri: no URI of the format {self.format}; accepted: {accepted}"
        if (self.table is None) == self.in_database:
            given = "not declared" if self.table is None else "declared"
            yield (
                f"table: {given} for the format {self.format}; accepted: a table for postgresql and iceberg, and for "
                "no other"
            )
        elif self.table is not None:
            spaces = self.table.count(".")
            if self.format == "iceberg" and not spaces:
                yield "table: has no namespace; accepted: namespace.table"
            if self.format == "postgresql" and spaces > 1:
                yield "table: has several schemas; accepted: table, or schema.table"
        if self.catalog is not None and self.format != "iceberg":
            yield f"catalog: declared for the format {self.format}; accepted: format: iceberg, or no such key"

    @property
    def in_database(self) -> bool:
        """Whether a database or a catalog knows where the rows are."""
        return self.format in ("iceberg", "postgresql")

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def place(self) -> str:
        """Path or URI, as messages name it: of a table in a database or catalog, too."""
        if self.table is None:
            return self.uri
        if self.format == "iceberg":
            return catalog_place(self.uri, self.catalog, self.table)
        return database_place(self.uri, self.table)

    def place_of(self, release: str) -> str:
        """The table with a release's rows, as lineage names it."""
        if self.format in DATABASE_FILES:
            return f"{self.uri.rstrip('/')}/{release}.{self.format}"
        return f"{self.uri.rstrip('/')}/{release}/data" if self.format == "files" else self.place


class Release(Part):
    """Where a release is published, how many approvals it needs, and its cadence."""

    uri: str = Field(min_length=1)
    approvals: int = Field(default=1, ge=0, le=10)
    cadence: Literal["weekly", "monthly", "quarterly"] | None = Field(
        default=None, description="How often there is a release, each of the records of one period."
    )
    start: Annotated[str, text_like(PERIOD_PATTERN, _PERIODS)] | None = Field(
        default=None,
        description="First period of a dataset with a cadence: a month (YYYY-MM), the Monday of a week "
        "(YYYY-MM-DD-week) or the first month of a quarter (YYYY-MM-quarter).",
    )
    schedule: str | None = Field(
        default=None,
        exclude_if=lambda cron: cron is None,
        description="When runs of periods that have ended are started, as cron with one minute and one hour, in the "
        'time zone: "0 6 3 * *" is the third of each month at 6. Default: the midnight that ends a period.',
    )
    overdue_after: Duration | None = Field(
        default=None,
        exclude_if=lambda grace: grace is None,
        description="How long after its run is due a period may be without a release before it is reported as overdue. "
        "Default: 3d.",
    )
    time_zone: str = Field(
        default="UTC",
        description="IANA name of the time zone whose midnight ends a period; a run is due from then on.",
        exclude_if=lambda zone: zone == "UTC",
    )
    on_new_version: Duration | None = Field(
        default=None,
        description="Run each new version of the source, at most once in this time. Each run is a new spend.",
        exclude_if=lambda pace: pace is None,
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        with suppress(ValueError, OSError, KeyError):
            ZoneInfo(name)
            return name
        raise ValueError(f"{name!r}; accepted: UTC, or an IANA name such as Europe/Berlin")

    @field_validator("schedule")
    @classmethod
    def _cron(cls, text: str | None) -> str | None:
        with suppress(ValueError):
            return text if text is None or Cron.parse(text) else None
        raise ValueError(
            f"{text!r}; accepted: cron with one minute, one hour, and * or numbers with commas for days (1 to 28), "
            "months and weekdays (0 to 6, without days), such as '0 6 3 * *'"
        )

    @field_validator("uri")
    @classmethod
    def _without_credentials(cls, uri: str) -> str:
        if may_be_secret(uri):
            raise ValueError("has credentials, or a parameter that may be some (they are not shown); accepted: a path")
        return uri

    @field_validator("max_missing", mode="before")
    @classmethod
    def _shares(cls, limit: Any) -> Any:
        shares = list(limit.items()) if isinstance(limit, dict) and limit else [(None, limit)]
        refuse(
            f"{'' if name is None else f'{key_path(str(name))}: '}"
            f"{'a dict' if isinstance(share, dict) else repr(share)}; accepted: a number above 0 and below 1, for "
            "every column, or one by column"
            for name, share in shares
            if limit is not None and not (isinstance(share, int | float) and 0 < share < 1)
        )
        return limit

    @field_validator("publish", mode="before")
    @classmethod
    def _targets(cls, given: Any) -> Any:
        return [given] if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _distinct(self) -> Release:
        places = [target.place for target in self.publish]
        refuse(
            f"publish: {place!r} is named twice; accepted: each target once"
            for place in dict.fromkeys(places)
            if places.count(place) > 1
        )
        return self

    @property
    def limited(self) -> list[str]:
        """Columns with a separate limit of missing values."""
        return list(self.max_missing) if isinstance(self.max_missing, dict) else []

    @property
    def cron(self) -> str:
        """When the schedule of a dataset with a cadence starts runs."""
        return self.schedule or CADENCES[str(self.cadence)].cron

    @property
    def grace(self) -> dt.timedelta:
        """How long after its run is due a period may be without a release."""
        return duration_of(self.overdue_after or OVERDUE_AFTER)

    @property
    def pace(self) -> dt.timedelta | None:
        """The least time between two runs for new versions of the source; None without such runs."""
        return None if self.on_new_version is None else duration_of(self.on_new_version)

    max_missing: float | dict[ColumnName, float] | None = Field(
        default=None,
        description=(
            "Share of a column's values that may be missing, unlisted or not learned: one number for all modelled "
            "columns, or by column. Rows are refused where the noisy counts significantly exceed it. Changing it is no "
            "new spend."
        ),
        exclude_if=lambda limit: limit is None,
        json_schema_extra={"anyOf": [_SHARE, {"type": "object", "additionalProperties": _SHARE}]},
    )
    publish: list[Target] = Field(
        default_factory=list,
        exclude_if=lambda targets: not targets,
        description="Where an approved release is copied to, with its dossier: one target, or a list.",
        json_schema_extra=_one_or_list,
    )
    license: (
        Annotated[str, text_like(r"^[A-Za-z0-9][A-Za-z0-9.+-]{1,63}$", "an SPDX identifier such as CC-BY-4.0")] | None
    ) = Field(default=None, description="License of the release, as an SPDX identifier (CC-BY-4.0).")


class Retention(Part):
    """How long sensitive intermediates are kept: a number of hours (`12h`) or days (`7d`).

    Canaries, their raw scores and a separate audit model are kept as long as the model: only these can audit it.
    """

    raw: Duration = "30d"
    scrubbed: Duration = "7d"
    bounded: Duration = "1d"
    model: Duration = "7d"
    synthetic: Duration = "30d"

    def of(self, step: str) -> dt.timedelta | None:
        """The time-to-live of a step's output, or None where it is a report or record that stays."""
        if step == "extract":  # unscrubbed rows
            return min(duration_of(self.raw), duration_of(self.scrubbed))
        kept_as = {"audited": "model", "canaries": "model", "scores": "model", "nearest": "bounded"}
        text = getattr(self, kept_as.get(step, step), None)
        return None if text is None else duration_of(text)
