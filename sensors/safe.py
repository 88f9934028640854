"""Sensors and schedules whose errors are safe.

What belongs here: what a sensor or a schedule raises where it fails. What does not: steps and checks (`assets.guard`).

Dagster stores and shows what a tick raises, with text, cause and context. So a tick raises only safe errors, without a
context. Of any other error it names the type, and the traceback goes to a restricted log. Standard output is not
redirected: ticks run concurrently in one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import detached, safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, logs_of, new_log
from dpsynth_platform.foundation.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


def safe_sensor(
    settings: Settings,
    name: str,
    description: str,
    *,
    seconds: int,
    jobs: Sequence[UnresolvedAssetJobDefinition] | None = None,
) -> Callable[[Callable[..., Any]], dg.SensorDefinition]:
    """Decorates the function of a sensor that is on by default and runs every so many seconds; its errors are safe."""

    def decorate(look: Callable[..., Any]) -> dg.SensorDefinition:
        return dg.sensor(
            name=name,
            description=description,
            jobs=jobs,
            minimum_interval_seconds=seconds,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )(safe_tick(logs_of(settings.restricted))(look))

    return decorate


def safe_tick(logs: Path) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes the errors of a tick's function safe. A generator yields all its requests, or none and fails."""

    def safe(look: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(look)
        def tick(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                found = look(*args, **kwargs)
                return _again(list(found)) if isinstance(found, Iterator) else found  # type: ignore[return-value]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # panics of Rust libraries are no `Exception`
                caught = error
            # Outside of `except`, a further error does not carry this one as its context.
            if isinstance(caught, DpsynthError):
                detached(caught)
                raise caught
            code, what = safe_error(caught)
            failure = DpsynthError(f"{what} ({keep_traceback(new_log(logs, 'tick'), caught)})")
            failure.code = code
            raise failure

        return tick

    return safe


def _again(found: list[T]) -> Iterator[T]:
    """A generator: Dagster accepts no other iterator."""
    yield from found
