"""Reading an event: its facts about runs and datasets, and whether it can be recorded at all.

What belongs here: the shape of events, and the few facets that relate datasets. What does not: whether an event may
report that (`store`, which knows what is ours), and validation against the specification's schemas.

Datasets get their canonical names (`naming.canonical`) here; the rest of an event stays unchanged (events of others
have the spelling of `ingest.normal`). Errors quote nothing of an event: it may hold any text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.naming import canonical as canonical_name

RUN_KINDS = ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER")
JOB, DATASET = "JOB", "DATASET"
MOST_DATASETS = 1000
LONGEST_NAME = 2000
LONGEST_ID = 200
LONGEST_TIME = 64
_NO_FACETS: Mapping[str, Any] = {}

Role = Literal["input", "output"]


@dataclass(frozen=True)
class Mention:
    """One dataset as one event reports it."""

    name: DatasetName
    role: Role
    facets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return _text(self.facets.get("version", _NO_FACETS).get("datasetVersion", ""), LONGEST_ID, "a version")

    @property
    def is_model(self) -> bool:
        return self._type == "MODEL"

    @property
    def is_material(self) -> bool:
        """Whether it is reported as a table or a file, and so no model."""
        return self._type in ("TABLE", "FILE")

    @property
    def _type(self) -> str:
        return str(self.facets.get("datasetType", _NO_FACETS).get("datasetType", "")).upper()

    @property
    def is_release(self) -> bool:
        return "dpsynth_release" in self.facets

    @cached_property
    def aliases(self) -> tuple[DatasetName, ...]:
        """Other names of the same dataset: its symlinks, and its name before it was renamed."""
        links = self.facets.get("symlinks", _NO_FACETS).get("identifiers", [])
        if not isinstance(links, list):
            raise _unusable("symlinks are a list")
        change = self.facets.get("lifecycleStateChange", _NO_FACETS)
        if change.get("lifecycleStateChange") == "RENAME" and change.get("previousIdentifier") is not None:
            links = [*links, change["previousIdentifier"]]
        names = (_dataset_name(link) for link in links)
        return tuple(name for name in dict.fromkeys(names) if name != self.name)

    @cached_property
    def tags(self) -> tuple[Mapping[str, Any], ...]:
        found = self.facets.get("tags", _NO_FACETS).get("tags", [])
        if not isinstance(found, list) or not all(isinstance(tag, Mapping) for tag in found):
            raise _unusable("tags are a list of objects")
        return tuple(found)

    @cached_property
    def bases(self) -> tuple[DatasetName, ...]:
        """The checkpoints that it was initialized from, as reported."""
        return self._named("dpsynth_baseModel", "baseModels")

    @cached_property
    def trained_on(self) -> tuple[DatasetName, ...]:
        """The datasets that it was trained on, as reported."""
        return self._named("dpsynth_training", "trainedOn")

    def _named(self, facet: str, key: str) -> tuple[DatasetName, ...]:
        items = self.facets.get(facet, _NO_FACETS).get(key, [])
        if not isinstance(items, list) or len(items) > MOST_DATASETS:
            raise _unusable(f"{key} is a list of at most {MOST_DATASETS}")
        return tuple(dict.fromkeys(map(_dataset_name, items)))

    @property
    def guarantee(self) -> Mapping[str, Any] | None:
        """The reported guarantee, if it names a ledger entry."""
        return _naming_an_entry(self.facets.get("dpsynth_guarantee"))


@dataclass(frozen=True)
class Facts:
    """The facts of one event.

    Attributes:
        kind: one of `RUN_KINDS`, or JOB or DATASET for an event without a run.
        run_id: empty for an event without a run.
        purpose: of a use that this event registers (`dpsynth_use`), or an empty string.
        participants: the run facet that refers to a mechanism's participants.
    """

    kind: str
    run_id: str
    job: DatasetName
    event_time: str
    mentions: tuple[Mention, ...]
    purpose: str
    participants: Mapping[str, Any] | None

    @property
    def names(self) -> list[DatasetName]:
        """All names of all datasets that it mentions."""
        found = ((item.name, *item.aliases, *item.bases, *item.trained_on) for item in self.mentions)
        return list(dict.fromkeys(chain.from_iterable(found)))


def canonical(event: Mapping[str, Any]) -> tuple[str, str]:
    """The stored text of an event, and its SHA-256. Raises `LineageRefused` if it is no JSON."""
    try:
        text = json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise _unusable("it is a JSON object without NaN") from None
    return text, hashlib.sha256(text.encode()).hexdigest()


def facts_of(event: Mapping[str, Any]) -> Facts:
    """Reads a run, job or dataset event.

    Raises:
        LineageRefused: it lacks a field that the specification requires, or is beyond our limits.
    """
    if not isinstance(event, Mapping):
        raise _unusable("it is a JSON object")
    time = _text(event.get("eventTime"), LONGEST_TIME, "eventTime")
    if "dataset" in event:
        mentions: tuple[Mention, ...] = (_mention(event["dataset"], "output"),)
        return _checked(Facts(DATASET, "", DatasetName("", ""), time, mentions, "", None))
    job = _part(event, "job")
    name = DatasetName(_name(job.get("namespace"), "job.namespace"), _name(job.get("name"), "job.name"))
    mentions = (*_mentions(event, "inputs", "input"), *_mentions(event, "outputs", "output"))
    if len(mentions) > MOST_DATASETS:
        raise _unusable(f"at most {MOST_DATASETS} datasets")
    if "run" not in event:
        return _checked(Facts(JOB, "", name, time, mentions, "", None))
    run = _part(event, "run")
    kind = event.get("eventType", "OTHER")
    if kind not in RUN_KINDS:
        raise _unusable(f"eventType is one of {', '.join(RUN_KINDS)}")
    run_id = _name(run.get("runId"), "run.runId", LONGEST_ID)
    facets = _facets(run)
    _check_parent(facets.get("parent", _NO_FACETS))
    purpose = str(facets.get("dpsynth_use", _NO_FACETS).get("purpose", ""))
    participants = _naming_an_entry(facets.get("dpsynth_participants"))
    return _checked(Facts(kind, run_id, name, time, mentions, purpose, participants))


def _checked(facts: Facts) -> Facts:
    """The same, after all of it was read once, so that later readers need not expect refusals."""
    for mention in facts.mentions:
        _ = mention.aliases, mention.tags, mention.bases, mention.trained_on, mention.version, mention.guarantee
    return facts


def _check_parent(parent: Mapping[str, Any]) -> None:
    if not all(isinstance(parent[key], Mapping) for key in ("run", "job") if key in parent):
        raise _unusable("a run's parent has a run and a job, which are objects")
    _text(parent.get("run", _NO_FACETS).get("runId", ""), LONGEST_ID, "the parent's runId")


def _mentions(event: Mapping[str, Any], key: str, role: Role) -> Iterator[Mention]:
    items = event.get(key)
    if items is None:
        return
    if not isinstance(items, list):
        raise _unusable(f"{key} is a list")
    for item in items:
        yield _mention(item, role)


def _mention(item: Any, role: Role) -> Mention:
    return Mention(_dataset_name(item), role, _facets(item))


def _dataset_name(item: Any) -> DatasetName:
    if not isinstance(item, Mapping):
        raise _unusable("a dataset is an object with namespace and name")
    namespace, name = item.get("namespace"), item.get("name")
    return canonical_name(DatasetName(_name(namespace, "a dataset's namespace"), _name(name, "a dataset's name")))


def _facets(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    facets = holder.get("facets")
    if facets is None:
        return _NO_FACETS
    if not isinstance(facets, Mapping) or not all(isinstance(facet, Mapping) for facet in facets.values()):
        raise _unusable("facets are objects")
    return facets


def _naming_an_entry(facet: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if facet is None or "ledgerEntry" not in facet:
        return None
    _name(facet["ledgerEntry"], "ledgerEntry", LONGEST_ID)
    return facet


def _part(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = event.get(key)
    if not isinstance(part, Mapping):
        raise _unusable(f"{key} is an object")
    return part


def _name(value: Any, place: str, longest: int = LONGEST_NAME) -> str:
    text = _text(value, longest, place)
    if not text:
        raise _unusable(f"{place} is not empty")
    return text


def _text(value: Any, longest: int, place: str) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise _unusable(f"{place} is a text of at most {longest} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _unusable(f"{place} can be written in UTF-8") from None
    if any(ord(character) < 32 for character in value):
        raise _unusable(f"{place} is without control characters")
    return value


def _unusable(accepted: str) -> LineageRefused:
    return LineageRefused(f"the lineage event cannot be recorded; accepted: {accepted}")
