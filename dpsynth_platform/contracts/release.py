"""The contract's `release` and `retention`: where and when rows are published, and how long intermediates stay."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints, field_validator

from dpsynth_platform.contracts.base import ColumnName, Duration, Part, duration_of, refuse

_SHARE: Any = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


class Release(Part):
    """Where a release is published, who must agree, and how often it comes."""

    uri: str = Field(min_length=1)
    approvals: int = Field(default=1, ge=0, le=10)
    cadence: Literal["monthly"] | None = None
    start: Annotated[str, StringConstraints(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")] | None = Field(
        default=None, description="First period (YYYY-MM) of a dataset with a cadence."
    )
    time_zone: str = Field(
        default="UTC",
        description="Whose midnight ends a period, by its IANA name; a run is due from then on.",
        exclude_if=lambda zone: zone == "UTC",
    )
    on_new_version: Duration | None = Field(
        default=None,
        description="A new version of the source is run by itself, at most once in this time. Each one is a new spend.",
        exclude_if=lambda pace: pace is None,
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        """A time zone that this machine knows."""
        with suppress(ValueError, OSError, KeyError):
            ZoneInfo(name)
            return name
        raise ValueError("accepted: UTC, or a name such as Europe/Berlin (IANA)")

    @field_validator("max_missing", mode="before")
    @classmethod
    def _shares(cls, limit: Any) -> Any:
        shares = list(limit.items()) if isinstance(limit, dict) and limit else [(None, limit)]
        refuse(
            f"{'' if name is None else f'{name}: '}{'a dict' if isinstance(share, dict) else repr(share)}; accepted: a "
            "number above 0 and below 1, for every column, or one by column"
            for name, share in shares
            if limit is not None and not (isinstance(share, int | float) and 0 < share < 1)
        )
        return limit

    @property
    def limited(self) -> list[str]:
        """Columns that have a limit of missing values of their own."""
        return list(self.max_missing) if isinstance(self.max_missing, dict) else []

    @property
    def pace(self) -> dt.timedelta | None:
        """The least time between two runs for new versions of the source; None where nobody asked for any."""
        return None if self.on_new_version is None else duration_of(self.on_new_version)

    max_missing: float | dict[ColumnName, float] | None = Field(
        default=None,
        description=(
            "Share of a column's values that may be missing, unlisted or not learned: a number for every modelled "
            "column, or by column. Rows are refused where the noisy counts show surely more. Other limits are no new "
            "spend."
        ),
        exclude_if=lambda limit: limit is None,
        json_schema_extra={"anyOf": [_SHARE, {"type": "object", "additionalProperties": _SHARE}]},
    )
    license: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{1,63}$")] | None = Field(
        default=None, description="Under which terms the release may be used, as an SPDX identifier (CC-BY-4.0)."
    )


class Retention(Part):
    """How long sensitive intermediates are kept: a number of hours (`12h`) or days (`7d`).

    Canaries are kept as long as the model that was trained with them: no others can audit it. So are their raw scores,
    and a model that was trained apart for the audit.
    """

    raw: Duration = "30d"
    scrubbed: Duration = "7d"
    bounded: Duration = "1d"
    model: Duration = "7d"
    synthetic: Duration = "30d"

    def of(self, step: str) -> dt.timedelta | None:
        """The time-to-live of a step's output, or None where it is a report or record that stays."""
        text = getattr(self, "model" if step in ("audited", "canaries", "scores") else step, None)
        return None if text is None else duration_of(text)
