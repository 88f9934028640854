"""Recording the reports of other producers: from the bytes that they send to an event in the graph.

What belongs here: reading JSON strictly, the form of run, job and dataset events in the OpenLineage specification,
limits on one event, and files of events. What does not: the network (`server`), and what an event may report and adds
to the graph (`store`).

Ambiguous bytes are refused: a repeated key, NaN, numbers beyond 64 bits, another encoding. Other readers could read
another event. A refusal quotes nothing that was sent, not even the name of a facet: it names places in the
specification's terms.

Values with several spellings are recorded in one (`normal`), so that the same event is recognized in any spelling:
times, run ids, the type of an event, and null for an absent value.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused, file_problem
from dpsynth_platform.foundation.people import is_control
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.lineage.intake import LONGEST_NAME, LONGEST_TIME, MOST_DATASETS
from dpsynth_platform.lineage.nodes import Recorded
from dpsynth_platform.lineage.store import LineageStore

MOST_BYTES = 8_000_000
"""A table of 12,000 columns with types, descriptions and the origin of each column takes 4 MB."""
MOST_VALUES = 400_000
"""Objects, lists and their items; the same table has 200,000. They take some 100 MB while an event is read."""
MOST_EVENTS = 1000
MOST_DEPTH = 40
MOST_FACETS = 100
_GZIP = b"\x1f\x8b"
_PRODUCER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# ISO 8601 and RFC 3339; Java omits zero seconds and may add the zone's name (RFC 9557).
_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ](?P<minute>\d\d:\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"(?:(?P<utc>[Zz])|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?"
    r"(?(utc)(?:\[[\w/+-]{1,40}\])?|(?(sign)(?:\[[\w/+-]{1,40}\])?))",
    re.ASCII,
)
_UUID = re.compile(
    r"(?:urn:uuid:)?(?P<brace>\{)?(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32})(?(brace)\})",
    re.IGNORECASE,
)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_JSON = (
    f"one JSON value in UTF-8 without a byte order mark, at most {MOST_BYTES:,} bytes, {MOST_VALUES:,} values and "
    f"{MOST_DEPTH} levels deep, each key once, whole numbers of at most 64 bits, no NaN or Infinity; of a larger "
    "event, leave out facets, or spread its datasets over several events of its run (eventType RUNNING)"
)

_LAST_MINUTE = 59

State = Literal["recorded", "known", "refused", "conflict"]


@dataclass(frozen=True)
class Outcome:
    """The outcome for one of several events.

    Attributes:
        number: of the line, or of the event in a list, from 1.
        state: `known` was recorded before; `conflict` contradicts what is recorded.
        reason: why it is refused, a safe sentence; empty otherwise.
        place: what `number` counts.
    """

    number: int
    state: State
    reason: str = ""
    place: Literal["line", "event"] = "line"

    @property
    def accepted(self) -> bool:
        """Whether the graph has it now."""
        return self.state in ("recorded", "known")


def record(store: LineageStore, data: bytes, producer: str) -> Recorded:
    """Records one event as a producer sent it; the same event again changes nothing.

    Raises:
        LineageRefused: it cannot be read, is no event of the specification, is too large, or reports what only this
            platform or another producer may report (`conflict`).
        LedgerError: the database is out of reach; nothing was recorded.
    """
    return _record_read(store, read(data), producer)


def _record_read(store: LineageStore, event: Any, producer: str) -> Recorded:
    canonical = normal(event)
    check(canonical)
    return store.record(canonical, origin="ingested", source=producer, as_sent=event)


def record_all(store: LineageStore, data: bytes, producer: str) -> list[Outcome]:
    """Records a list of events, each separately and in order: a refused one does not affect the others.

    Raises:
        LineageRefused: it is no list of events.
        LedgerError: the database is out of reach; what was recorded before stays, and is `known` when sent again.
    """
    events = read(data)
    if not isinstance(events, list) or not 0 < len(events) <= MOST_EVENTS:
        raise LineageRefused(f"the batch cannot be recorded; accepted: a list of 1 to {MOST_EVENTS} events")
    return [
        replace(_outcome(number, partial(_record_read, store, event, producer)), place="event")
        for number, event in enumerate(events, 1)
    ]


def record_file(store: LineageStore, file: Path, producer: str) -> Iterator[Outcome]:
    """Records a file: one event, a list of events, or one event on each line. Blank lines are skipped.

    Raises:
        ConfigurationError: the file cannot be read, or is packed.
        LineageRefused: it is a list of no events, or of too many.
        LedgerError: the database is out of reach; what was recorded before stays.
    """
    try:
        check_regular(file)
        with file.open("rb") as lines:
            start = lines.read(MOST_BYTES + 1)
            if start.startswith(_GZIP):
                raise ConfigurationError(
                    f"{file} is packed by gzip; accepted: unpacked JSON; unpack it: gunzip -k {file}"
                )
            if _is_one(start):
                if start.lstrip().startswith(b"[") and len(start) <= MOST_BYTES:
                    yield from record_all(store, start, producer)
                else:
                    yield _outcome(1, partial(record, store, start, producer))
                return
            lines.seek(0)
            for number, line in enumerate(_lines(lines), 1):
                if line.strip():
                    yield _outcome(number, partial(record, store, line, producer))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {file_problem(error)}") from None


def producer_name(text: str) -> str:
    """A valid producer's name. Raises `ConfigurationError`."""
    if not _PRODUCER.fullmatch(text):
        raise ConfigurationError(
            f"producer {text!r}; accepted: up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return text


def read(data: bytes) -> Any:
    """Reads unambiguous JSON.

    Raises:
        LineageRefused: it is none, or beyond our limits.
    """
    if len(data) > MOST_BYTES:
        raise _unreadable(f"it has more than {MOST_BYTES:,} bytes")
    if _at_most_values(data) > MOST_VALUES:
        raise _unreadable(f"it has more than {MOST_VALUES:,} values")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_each_once,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError:
        raise _unreadable("it is not UTF-8") from None
    except RecursionError:
        raise _unreadable(_TOO_DEEP) from None
    except ValueError:
        raise _unreadable("it is not one JSON value") from None
    _check_depth(value)
    return value


def normal(event: Any) -> Any:
    """The event in its recorded spelling; invalid values stay unchanged, and `check` refuses them.

    - `eventTime`: in UTC, as 2026-03-01T12:00:00.5Z. A time without an offset is UTC, as in older producers.
    - `runId`, also of a parent and root: a UUID in lower case with dashes.
    - `eventType`: in upper case.
    - null counts as absent: in the event, its run, job and datasets, and as a facet or directly in one.
    """
    if not isinstance(event, dict):
        return event
    found = _without_nulls(event)
    if isinstance(found.get("eventTime"), str):
        found["eventTime"] = moment(found["eventTime"]) or found["eventTime"]
    if isinstance(found.get("eventType"), str):
        found["eventType"] = found["eventType"].upper()
    for key in ("run", "job", "dataset"):
        if key in found:
            found[key] = _holder(found[key])
    for key in ("inputs", "outputs"):
        if isinstance(found.get(key), list):
            found[key] = [_holder(item) for item in found[key]]
    if isinstance(found.get("run"), dict):
        _spell_run(found["run"])
        parent = _inside(found["run"], "facets", "parent")
        for run in (_inside(parent, "run"), _inside(parent, "root", "run")):
            _spell_run(run)
    return found


def moment(text: str) -> str | None:
    """A time in UTC, as 2026-03-01T12:00:00.5Z, or None if the text is none; without an offset it is UTC."""
    match = _TIME.fullmatch(text)
    if match is None or len(text) > LONGEST_TIME:
        return None
    hours, minutes = (int(match[part] or 0) for part in ("hours", "minutes"))
    try:
        if minutes > _LAST_MINUTE:
            raise ValueError
        zone = dt.timezone(dt.timedelta(hours=hours, minutes=minutes) * (-1 if match["sign"] == "-" else 1))
        local = dt.datetime.fromisoformat(f"{match['day']}T{match['minute']}:{match['second'] or '00'}")
        there = local.replace(tzinfo=zone).astimezone(dt.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    fraction = (match["fraction"] or "").rstrip("0")
    return f"{there.isoformat()}{'.' if fraction else ''}{fraction}Z"


def _holder(item: Any) -> Any:
    """A run, job or dataset with its facets, without nulls."""
    if not isinstance(item, dict):
        return item
    found = _without_nulls(item)
    for key in _FACETS:
        if isinstance(found.get(key), dict):
            facets = {
                name: _without_nulls(facet) if isinstance(facet, dict) else facet
                for name, facet in _without_nulls(found[key]).items()
            }
            if found[key] and not facets:
                del found[key]
            else:
                found[key] = facets
    return found


def _without_nulls(holder: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in holder.items() if value is not None}


def _inside(holder: Any, *keys: str) -> Any:
    """The object at a path of keys, or None; each object on the way is copied so that it can be changed."""
    for key in keys:
        if not isinstance(holder, dict) or not isinstance(holder.get(key), dict):
            return None
        holder[key] = dict(holder[key])
        holder = holder[key]
    return holder


def _spell_run(run: Any) -> None:
    if isinstance(run, dict) and isinstance(run.get("runId"), str) and _UUID.fullmatch(run["runId"]):
        run["runId"] = str(uuid.UUID(run["runId"].lower()))


def check(event: Any) -> None:
    """Checks that a value is a run, job or dataset event of the specification, within our limits.

    Raises:
        LineageRefused: it is not; the message names the place.
    """
    if not isinstance(event, dict):
        raise _no_event("an event is a JSON object; a list of events is accepted as a batch, or as a file")
    if "dataset" in event and ("run" in event or "job" in event):
        raise _no_event("a dataset event has no run and no job")
    form = next((form for key, form in _FORMS.items() if key in event), None)
    if form is None:
        raise _no_event("an event has a run and a job, a job, or a dataset")
    try:
        form.model_validate(event)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        what = "is required" if found["type"] == "missing" else "has another form"
        raise _no_event(f"{_place(found['loc'])} {what}; accepted: {_form_of(found['loc'])}") from None


def _outcome(number: int, taking: Callable[[], Recorded]) -> Outcome:
    try:
        recorded = taking()
    except LineageRefused as refused:
        return Outcome(number, "conflict" if refused.conflict else "refused", str(refused))
    return Outcome(number, "recorded" if recorded.new else "known")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends; of one that is too long, enough for a refusal."""
    while part := file.readline(MOST_BYTES + 2):
        rest = part
        while not rest.endswith(b"\n") and (rest := file.readline(MOST_BYTES)):
            pass
        yield part.rstrip(b"\r\n")


def _is_one(start: bytes) -> bool:
    """Whether a file that begins like this holds one value, valid or not."""
    if _is_json(start):
        return True
    first = start.lstrip().partition(b"\n")[0]
    return len(first) < MOST_BYTES < len(start) and not _is_json(first)  # one value on many lines, too large


def _is_json(data: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(data)
        return True
    return False


_TOO_DEEP = f"it is more than {MOST_DEPTH} levels deep"


def _unreadable(reason: str) -> LineageRefused:
    return LineageRefused(f"what was sent cannot be read: {reason}; accepted: {_JSON}")


def _at_most_values(data: bytes) -> int:
    """An upper bound on the number of values, from the separators alone, before any value takes memory."""
    count = _separators(data)
    return count if count <= MOST_VALUES else _separators(_STRING.sub(b"", data))


def _separators(data: bytes) -> int:
    return sum(data.count(sign) for sign in (b",", b"[", b"{"))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _unreadable("a key is repeated in one object")
    return found


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise _unreadable("a whole number has more than 64 bits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> float:
    raise _unreadable("a number is NaN or infinite")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise _unreadable(_TOO_DEEP)
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]


def _no_event(why: str) -> LineageRefused:
    return LineageRefused(f"it is no OpenLineage event: {why}")


def _place(location: tuple[int | str, ...]) -> str:
    """A place in an event; `*` stands for names that the sender chose."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part if part in _KEYS else '*'}" for part in location)
    return "".join(parts).lstrip(".")


def _form_of(location: tuple[int | str, ...]) -> str:
    """What is accepted at a place."""
    keys = [part for part in location if isinstance(part, str)]
    if keys and keys[-1] in _ACCEPTED:
        return _ACCEPTED[keys[-1]]
    return _ACCEPTED["facets"] if any(key in _FACETS for key in keys) else "a JSON object"


# The form of events (OpenLineage.json, 2-0-2), as far as the specification fixes it.


def _visible(text: str) -> str:
    if any(map(is_control, text)):
        raise ValueError
    return text


def _moment(text: str) -> str:
    if moment(text) is None:
        raise ValueError
    return text


_Name = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_NAME), AfterValidator(_visible)]
_FacetName = Annotated[str, Field(strict=True, min_length=1, max_length=200), AfterValidator(_visible)]
_Time = Annotated[str, Field(strict=True, max_length=LONGEST_TIME), AfterValidator(_moment)]
_RunId = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class _Facet(BaseModel):
    producer: _Name = Field(alias="_producer")
    schema_url: _Name = Field(alias="_schemaURL")


_Facets = Annotated[dict[_FacetName, _Facet], Field(max_length=MOST_FACETS)]


class _Run(BaseModel):
    run_id: _RunId = Field(alias="runId")
    facets: _Facets = {}


class _Job(BaseModel):
    namespace: _Name
    name: _Name
    facets: _Facets = {}


class _Dataset(_Job):
    input_facets: _Facets = Field({}, alias="inputFacets")
    output_facets: _Facets = Field({}, alias="outputFacets")


_Datasets = Annotated[list[_Dataset], Field(max_length=MOST_DATASETS)]


class _Event(BaseModel):
    event_time: _Time = Field(alias="eventTime")
    producer: _Name
    schema_url: _Name = Field(alias="schemaURL")


class _JobEvent(_Event):
    job: _Job
    inputs: _Datasets = []
    outputs: _Datasets = []


class _RunEvent(_JobEvent):
    event_type: Literal["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"] = Field("OTHER", alias="eventType")
    run: _Run


class _DatasetEvent(_Event):
    dataset: _Dataset


_FORMS: dict[str, type[_Event]] = {"run": _RunEvent, "job": _JobEvent, "dataset": _DatasetEvent}
_FACETS = ("facets", "inputFacets", "outputFacets")
_TEXT = f"a text of 1 to {LONGEST_NAME} characters, none of which is a control character"
_DATASETS = f"a list of at most {MOST_DATASETS} objects with namespace and name"
_ACCEPTED = {
    "eventTime": "a date and time, as 2026-03-01T12:00:00.5Z or 2026-03-01T13:00:00+01:00; without an offset it is UTC",
    "eventType": "START, RUNNING, COMPLETE, ABORT, FAIL, OTHER",
    "runId": "a UUID, as 0195a8f2-7c1e-7b3a-9f60-2d9e4c7a1b05",
    "inputs": _DATASETS,
    "outputs": _DATASETS,
} | dict.fromkeys(("namespace", "name", "producer", "schemaURL", "_producer", "_schemaURL"), _TEXT)
_ACCEPTED |= dict.fromkeys(_FACETS, f"at most {MOST_FACETS} objects by name, each with _producer and _schemaURL")
_KEYS = {
    field.alias or name
    for form in (_Facet, _Run, _Job, _Dataset, _RunEvent, _DatasetEvent)
    for name, field in form.model_fields.items()
}
