"""Taking in what other producers report: from the bytes that they send to an event in the graph.

What belongs here: reading JSON strictly, the form that the OpenLineage specification gives to run, job and dataset
events, bounds on what one event may hold, and files of events. What does not: the network (`server`), and what an
event may say and adds to the graph (`store`).

Bytes that could be read in two ways are refused: a key that stands twice, NaN, numbers beyond 64 bits, another
encoding. Others would read another event than we. Of what was sent nothing is quoted in a refusal, not even the name
of a facet: places are told by the specification's words alone.

What has one meaning in several spellings is taken in and recorded in one (`normal`), so that the same event is known
again however its sender writes it: moments, run ids, the type of an event, and null for what is absent.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused, file_problem
from dpsynth_platform.foundation.people import is_control
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.lineage.intake import LONGEST_NAME, LONGEST_TIME, MOST_DATASETS
from dpsynth_platform.lineage.nodes import Recorded
from dpsynth_platform.lineage.store import LineageStore

MOST_BYTES = 8_000_000
"""A table of 12,000 columns with types, descriptions and the origin of each column takes 4 MB."""
MOST_VALUES = 400_000
"""Objects, lists and what stands in them; the same table has 200,000. They take some 100 MB while an event is read."""
MOST_EVENTS = 1000
MOST_DEPTH = 40
MOST_FACETS = 100
_GZIP = b"\x1f\x8b"
_PRODUCER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# As ISO 8601 and RFC 3339 have it; Java leaves out seconds that are zero and may add the zone's name (RFC 9557).
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
    """What became of one of several events.

    Attributes:
        number: of the line, or of the event in a list, from 1.
        state: `known` was recorded before; `conflict` contradicts what is recorded.
        reason: why it is not taken in, a safe sentence; empty otherwise.
        place: what is numbered.
    """

    number: int
    state: State
    reason: str = ""
    place: Literal["line", "event"] = "line"

    @property
    def taken(self) -> bool:
        """Whether the graph has it now."""
        return self.state in ("recorded", "known")


def take(store: LineageStore, data: bytes, producer: str) -> Recorded:
    """Takes in one event as a producer sent it; the same event again changes nothing.

    Raises:
        LineageRefused: it cannot be read, is no event of the specification, is too large, or says what only this
            platform or another producer may say (`conflict`).
        LedgerError: the database is away; nothing was recorded.
    """
    return take_read(store, read(data), producer)


def take_read(store: LineageStore, event: Any, producer: str) -> Recorded:
    """`take` of what `read` read."""
    told = normal(event)
    check(told)
    return store.record(told, origin="ingested", source=producer, as_sent=event)


def take_all(store: LineageStore, data: bytes, producer: str) -> list[Outcome]:
    """Takes in a list of events, each by itself and in order: one that is refused leaves the others alone.

    Raises:
        LineageRefused: it is no list of events.
        LedgerError: the database is away; what was recorded before stays, and is known when it is sent again.
    """
    events = read(data)
    if not isinstance(events, list) or not 0 < len(events) <= MOST_EVENTS:
        raise LineageRefused(f"the batch cannot be taken in; accepted: a list of 1 to {MOST_EVENTS} events")
    return [
        replace(_outcome(number, lambda event=event: take_read(store, event, producer)), place="event")  # type: ignore[misc]
        for number, event in enumerate(events, 1)
    ]


def take_file(store: LineageStore, file: Path, producer: str) -> Iterator[Outcome]:
    """Takes in a file: one event, a list of events, or one event on each line. Blank lines are passed over.

    Raises:
        ConfigurationError: the file cannot be read, or is packed.
        LineageRefused: it is a list of no events, or of too many.
        LedgerError: the database is away; what was recorded before stays.
    """
    try:
        check_regular(file)
        with file.open("rb") as lines:
            start = lines.read(MOST_BYTES + 1)
            if start.startswith(_GZIP):
                raise ConfigurationError(
                    f"{file} is packed by gzip; accepted: JSON as it is; unpack it: gunzip -k {file}"
                )
            if _is_one(start):
                if start.lstrip().startswith(b"[") and len(start) <= MOST_BYTES:
                    yield from take_all(store, start, producer)
                else:
                    yield _outcome(1, lambda: take(store, start, producer))
                return
            lines.seek(0)
            for number, line in enumerate(_lines(lines), 1):
                if line.strip():
                    yield _outcome(number, lambda line=line: take(store, line, producer))  # type: ignore[misc]
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {file_problem(error)}") from None


def producer_name(text: str) -> str:
    """A producer's name as it is recorded beside its events. Raises `ConfigurationError`."""
    if not _PRODUCER.fullmatch(text):
        raise ConfigurationError(
            f"producer {text!r}; accepted: up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return text


def read(data: bytes) -> Any:
    """Reads JSON that can be read in one way only.

    Raises:
        LineageRefused: it is none, or beyond our bounds.
    """
    try:
        if len(data) > MOST_BYTES:
            raise _Unreadable(f"it has more than {MOST_BYTES:,} bytes")
        if _at_most_values(data) > MOST_VALUES:
            raise _Unreadable(f"it has more than {MOST_VALUES:,} values")
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_each_once,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_no_number,
        )
        _check_depth(value)
    except _Unreadable as why:
        raise _not_read(str(why)) from None
    except UnicodeDecodeError:
        raise _not_read("it is not UTF-8") from None
    except RecursionError:
        raise _not_read(_TOO_DEEP) from None
    except ValueError:
        raise _not_read("it is not one JSON value") from None
    return value


def normal(event: Any) -> Any:
    """The event in the one spelling that is recorded; what has no such spelling stays as it is, for `check` to refuse.

    - `eventTime`: in UTC, as 2026-03-01T12:00:00.5Z. Without an offset it is UTC, as older producers mean it.
    - `runId`, also of a parent and root: a UUID in small letters with dashes.
    - `eventType`: in capitals.
    - null counts as absent: in the event, its run, job and datasets, and as a facet or directly in one.
    """
    if not isinstance(event, dict):
        return event
    told = _without_nulls(event)
    if isinstance(told.get("eventTime"), str):
        told["eventTime"] = moment(told["eventTime"]) or told["eventTime"]
    if isinstance(told.get("eventType"), str):
        told["eventType"] = told["eventType"].upper()
    for key in ("run", "job", "dataset"):
        if key in told:
            told[key] = _holder(told[key])
    for key in ("inputs", "outputs"):
        if isinstance(told.get(key), list):
            told[key] = [_holder(item) for item in told[key]]
    if isinstance(told.get("run"), dict):
        _spell_run(told["run"])
        parent = _inside(told["run"], "facets", "parent")
        for run in (_inside(parent, "run"), _inside(parent, "root", "run")):
            _spell_run(run)
    return told


def moment(text: str) -> str | None:
    """A moment in UTC, as 2026-03-01T12:00:00.5Z, or None if the text is none; without an offset it is UTC."""
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
    told = _without_nulls(item)
    for key in ("facets", "inputFacets", "outputFacets"):
        if isinstance(told.get(key), dict):
            facets = {
                name: _without_nulls(facet) if isinstance(facet, dict) else facet
                for name, facet in _without_nulls(told[key]).items()
            }
            if told[key] and not facets:
                del told[key]
            else:
                told[key] = facets
    return told


def _without_nulls(holder: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in holder.items() if value is not None}


def _inside(holder: Any, *keys: str) -> Any:
    """What stands there, each object on the way copied so that it can be changed; None if nothing does."""
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
    """Checks that a value is a run, job or dataset event as the specification has it, within our bounds.

    Raises:
        LineageRefused: it is not; the message says where.
    """
    if not isinstance(event, dict):
        raise _no_event("an event is a JSON object; a list of events is accepted as a batch, or as a file")
    if "dataset" in event and ("run" in event or "job" in event):
        raise _no_event("a dataset stands alone, without run and job")
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
    """Lines without their ends; of one that is too long just so much that it shows."""
    while part := file.readline(MOST_BYTES + 2):
        rest = part
        while not rest.endswith(b"\n") and (rest := file.readline(MOST_BYTES)):
            pass
        yield part.rstrip(b"\r\n")


def _is_one(start: bytes) -> bool:
    """Whether a file that begins like this holds one value, whatever else is wrong with it."""
    if _is_json(start):
        return True
    first = start.lstrip().partition(b"\n")[0]
    return len(first) < MOST_BYTES < len(start) and not _is_json(first)  # one value on many lines, too large for us


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


class _Unreadable(ValueError):
    """Why something cannot be read: a safe sentence."""


_NO_NUMBER = "a number is none, or infinite"
_TOO_DEEP = f"it is more than {MOST_DEPTH} levels deep"


def _not_read(why: str) -> LineageRefused:
    return LineageRefused(f"what was sent cannot be read: {why}; accepted: {_JSON}")


def _at_most_values(data: bytes) -> int:
    """At least as many as there are values, before any of them takes memory: by the signs that stand between them."""
    count = _separators(data)
    return count if count <= MOST_VALUES else _separators(_STRING.sub(b"", data))


def _separators(data: bytes) -> int:
    return sum(data.count(sign) for sign in (b",", b"[", b"{"))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Unreadable("a key stands twice in one object")
    return found


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise _Unreadable("a whole number has more than 64 bits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Unreadable(_NO_NUMBER)
    return number


def _no_number(text: str) -> float:
    raise _Unreadable(_NO_NUMBER)


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise _Unreadable(_TOO_DEEP)
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]


def _no_event(why: str) -> LineageRefused:
    return LineageRefused(f"it is no OpenLineage event: {why}")


def _place(location: tuple[int | str, ...]) -> str:
    """Where in an event; what the sender named is told as `*`."""
    words = ""
    for part in location:
        if isinstance(part, int):
            words += f"[{part}]"
        else:
            words += f".{part if part in _WORDS else '*'}"
    return words.lstrip(".")


def _form_of(location: tuple[int | str, ...]) -> str:
    """What is accepted at a place."""
    words = [part for part in location if isinstance(part, str)]
    if words and words[-1] in _ACCEPTED:
        return _ACCEPTED[words[-1]]
    return _ACCEPTED["facets"] if any(word in _FACETS for word in words) else "a JSON object"


# The form of events (OpenLineage.json, 2-0-2), as far as the specification fixes it. What it leaves open stays open.


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


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=False)


class _Facet(_Form):
    producer: _Name = Field(alias="_producer")
    schema_url: _Name = Field(alias="_schemaURL")


_Facets = Annotated[dict[_FacetName, _Facet], Field(max_length=MOST_FACETS)]


class _Run(_Form):
    run_id: _RunId = Field(alias="runId")
    facets: _Facets = {}


class _Job(_Form):
    namespace: _Name
    name: _Name
    facets: _Facets = {}


class _Dataset(_Form):
    namespace: _Name
    name: _Name
    facets: _Facets = {}
    input_facets: _Facets = Field({}, alias="inputFacets")
    output_facets: _Facets = Field({}, alias="outputFacets")


_Datasets = Annotated[list[_Dataset], Field(max_length=MOST_DATASETS)]


class _Event(_Form):
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
_WORDS = {
    field.alias or name
    for form in (_Facet, _Run, _Job, _Dataset, _RunEvent, _DatasetEvent)
    for name, field in form.model_fields.items()
}
