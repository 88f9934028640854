"""Taking in what other producers report: from the bytes that they send to an event in the graph.

What belongs here: reading JSON strictly, the form that the OpenLineage specification gives to run, job and dataset
events, bounds on what one event may hold, and files of events. What does not: the network (`server`), and what an
event may say and adds to the graph (`store`).

Bytes that could be read in two ways are refused: a key that stands twice, NaN, numbers beyond 64 bits, another
encoding. Others would read another event than we. Of what was sent nothing is quoted in a refusal, not even the name
of a facet: places are told by the specification's words alone.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dpsynth_platform.errors import ConfigurationError, LineageRefused, file_problem
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.lineage.intake import LONGEST_NAME, LONGEST_TIME, MOST_DATASETS
from dpsynth_platform.lineage.nodes import Recorded
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.people import is_control

MOST_BYTES = 1_000_000
MOST_EVENTS = 1000
MOST_DEPTH = 40
MOST_FACETS = 100
_PRODUCER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_JSON = (
    f"one JSON value in UTF-8, at most {MOST_BYTES:,} bytes and {MOST_DEPTH} levels deep, each key once, whole numbers "
    "of at most 64 bits, no NaN or Infinity"
)

State = Literal["recorded", "known", "refused", "conflict"]


@dataclass(frozen=True)
class Outcome:
    """What became of one of several events.

    Attributes:
        number: of the line, or of the event in a list, from 1.
        state: `known` was recorded before; `conflict` contradicts what is recorded.
        reason: why it is not taken in, a safe sentence; empty otherwise.
    """

    number: int
    state: State
    reason: str = ""

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
    check(event)
    return store.record(event, origin="ingested", source=producer)


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
        _outcome(number, lambda event=event: take_read(store, event, producer))  # type: ignore[misc]
        for number, event in enumerate(events, 1)
    ]


def take_file(store: LineageStore, file: Path, producer: str) -> Iterator[Outcome]:
    """Takes in a file: one event, or one event on each line. Blank lines are passed over.

    Raises:
        ConfigurationError: the file cannot be read.
        LedgerError: the database is away; what was recorded before stays.
    """
    try:
        check_regular(file)
        with file.open("rb") as lines:
            if _is_one(lines.read(MOST_BYTES + 1)):
                yield _outcome(1, lambda: take(store, file.read_bytes(), producer))
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
            raise ValueError
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_each_once,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_no_number,
        )
        _check_depth(value)
    except (ValueError, RecursionError):
        raise LineageRefused(f"what was sent cannot be read; accepted: {_JSON}") from None
    return value


def check(event: Any) -> None:
    """Checks that a value is a run, job or dataset event as the specification has it, within our bounds.

    Raises:
        LineageRefused: it is not; the message says where.
    """
    if not isinstance(event, dict):
        raise _no_event("an event is a JSON object")
    if "dataset" in event and ("run" in event or "job" in event):
        raise _no_event("a dataset stands alone, without run and job")
    form = next((form for key, form in _FORMS.items() if key in event), None)
    if form is None:
        raise _no_event("an event has a run and a job, a job, or a dataset")
    try:
        form.model_validate(event)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        missing = found["type"] == "missing"
        raise _no_event(f"{_place(found['loc'])} {'is required' if missing else 'has another form'}") from None


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
    try:
        json.loads(start)
    except (ValueError, RecursionError):
        return False
    return True


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _no_number(text: str) -> float:
    raise ValueError


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError
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


# The form of events (OpenLineage.json, 2-0-2), as far as the specification fixes it. What it leaves open stays open.


def _visible(text: str) -> str:
    if any(map(is_control, text)):
        raise ValueError
    return text


def _moment(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise ValueError
    dt.datetime.fromisoformat(re.sub(r"\.\d+", "", text))
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
_WORDS = {
    field.alias or name
    for form in (_Facet, _Run, _Job, _Dataset, _RunEvent, _DatasetEvent)
    for name, field in form.model_fields.items()
}
