"""Contradictions between the parts of a contract, each valid by itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.contracts.audit import COLUMN_ATTACKS, Audit, canaries_of
from dpsynth_platform.contracts.base import MOST_ROWS, ColumnName, Part, caseless, key_path
from dpsynth_platform.contracts.columns import (
    MODELLED_TYPES,
    MOST_CONDITIONING_VALUES,
    WEIGHT_TYPES,
    Column,
    conditioning_values,
    modelled_columns,
)
from dpsynth_platform.contracts.federation import (
    FEDERATED_COLUMN,
    HEEDED_OF_AUDIT,
    HEEDED_OF_GENERATE,
    HEEDED_OF_NETWORK,
    HEEDED_OF_PRIVACY,
    HEEDED_OF_RELEASE,
    HEEDED_WITH_TEXTS,
    METHODS_BY_TRUST,
)
from dpsynth_platform.contracts.generation import NO_COLUMN, Generate, with_generate
from dpsynth_platform.contracts.image_generation import MOST_CLASSES, ImageGeneration, conditions_of, image_column_of
from dpsynth_platform.contracts.linked_contract import root_of, table_faults, with_tables
from dpsynth_platform.contracts.methods import (
    BASE_MODEL_METHODS,
    IMAGE_METHODS,
    INFERENCE_METHODS,
    LANGUAGE_METHODS,
    MIXTURE_NETWORK_METHODS,
    NETWORK_METHODS,
    TEXT_METHODS,
)
from dpsynth_platform.contracts.network_training import TableNetwork
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.contracts.quality import MOST_TARGET_VALUES, Quality
from dpsynth_platform.contracts.query_checks import query_faults
from dpsynth_platform.contracts.release import (
    DATABASE_FILES,
    LONGEST_COLUMN,
    PERIOD,
    RELEASE,
    SYSTEM_COLUMNS,
    Release,
)
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.text_generation import (
    KEYWORDS_COLUMN,
    Inference,
    TextGeneration,
    text_column_of,
    training_units,
)
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.contracts.tuning import Tune
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.contracts.workload import Workload

_NO_NUMBERS = frozenset({"categorical", "boolean"})


@dataclass(frozen=True)
class Parts:
    """The parts of a contract that refer to each other; None for a part that is invalid by itself."""

    source: Source | None
    privacy: Privacy | None
    columns: Mapping[str, Any]
    scrub: Scrub | None
    quality: Quality | None
    release: Release | None
    generate: Generate | None
    audit: Audit | None
    queries: Mapping[str, Query | None] = field(default_factory=dict)
    kind: str | None = "rows"
    tables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Parts:
        """The valid parts of a document."""
        with suppress(ValueError):  # the document's own fault
            document = with_tables(document)
        columns, queries, tables = (document.get(key) for key in ("columns", "queries", "tables"))
        return cls(
            parse_or_none(Source, document.get("source")),
            parse_or_none(Privacy, document.get("privacy")),
            {
                str(name): parse_or_none(Column, value)
                for name, value in (columns.items() if isinstance(columns, dict) else ())
                if parse_or_none(ColumnName, str(name)) is not None
            },
            parse_or_none(Scrub, document.get("scrub", {})),
            parse_or_none(Quality, document.get("quality", {})),
            parse_or_none(Release, document.get("release")),
            parse_or_none(Generate, with_generate(document).get("generate")),
            parse_or_none(Audit, document.get("audit", {})),
            {
                str(name): parse_or_none(Query, query)
                for name, query in (queries.items() if isinstance(queries, dict) else ())
            },
            document.get("kind", "rows"),
            tables if isinstance(tables, dict) else {},
        )

    def contradictions(self) -> Iterator[str]:
        """Contradictions between the valid parts, one line each."""
        yield from self._undeclared()
        yield from self._owners()
        yield from self._order()
        yield from self._periods()
        yield from self._measured_numbers()
        yield from self._paid_measures()
        yield from self._network()
        yield from self._targets()
        yield from self._base_model()
        yield from self._text()
        yield from self._image()
        if self.source and self.generate and self.generate.public:
            yield from (f"generate.public.uri: {fault}" for fault in self.generate.public.faults(self.source))
        yield from table_faults(
            self.tables,
            self.source,
            self.privacy,
            self.scrub,
            self.generate,
            self.audit,
            self.quality,
            self.release,
        )
        yield from self._canary_kinds()
        yield from self._separate_audit_model()
        yield from self._federated()
        modelled = modelled_columns(self.columns, self.privacy)
        yield from query_faults(
            self.kind, self.queries, self.generate, self.columns, modelled, self.quality, self.release
        )
        if not modelled and all(self.columns.values()):
            yield from self._unmodelled()

    def _undeclared(self) -> Iterator[str]:
        """Names of undeclared, ignored or unmodelled columns."""
        source, quality, modelled = self.source, self.quality, modelled_columns(self.columns, self.privacy)
        named = {
            "source.key": source.key if source else [],
            "source.period_column": [source.period_column] if source and source.period_column else [],
            "privacy.owner_columns": self.privacy.owner_columns if self.privacy else [],
            "quality.target": [quality.target] if quality and quality.target else [],
            "quality.protected": quality.protected if quality else [],
            "quality.findings": [name for each in quality.findings for name in each.columns] if quality else [],
            "release.max_missing": self.release.limited if self.release else [],
        }
        for path, names in named.items():
            for name in dict.fromkeys(names):
                of_rows = path.startswith(("quality.", "release."))
                fit = [*filter(self._is_target, modelled)] if path == "quality.target" else modelled
                if name not in self.columns:
                    accepted = ", ".join(fit if of_rows else self.columns) or NO_COLUMN
                    yield f"{path}: column {name!r} is not declared; accepted: {accepted}"
                elif self.columns[name] and self.columns[name].type == "ignored":
                    yield f"{path}: column {name!r} is declared ignore: true; accepted: a column that is read"
                elif of_rows and self.columns[name] and name not in modelled:
                    yield f"{path}: column {name!r} is not modelled; accepted: {', '.join(fit) or NO_COLUMN}"

    def _is_target(self, name: str) -> bool:
        """Whether a modelled column can be the target, for its task and bought measures."""
        quality, column = self.quality, self.columns[name]
        if self.tables and not name.startswith(f"{root_of(self.tables)}."):
            return False
        if quality is None or column is None:
            return True
        if quality.task == "regression":
            return column.type not in _NO_NUMBERS
        if quality.paid is None or "accuracy" not in quality.paid.measures or column.type == "boolean":
            return True
        if column.type == "categorical":
            return (column.most_learned or len(column.listed)) <= MOST_TARGET_VALUES
        bins = getattr(column, "bins", None)  # others are cut finely
        cells = len(bins) + 1 if isinstance(bins, list) else bins
        return isinstance(cells, int) and cells <= MOST_TARGET_VALUES

    def _measured_numbers(self) -> Iterator[str]:
        """Texts that the quality report would have to take for numbers."""
        if self.quality is None:
            return
        target = [self.quality.target] if self.quality.target and self.quality.task == "regression" else []
        used = [name for finding in self.quality.findings for name in finding.numbers]
        for path, names, unfit in (
            ("quality.task: regression", target, _NO_NUMBERS),
            ("quality.findings", used, {"categorical"}),
        ):
            for name in dict.fromkeys(names):
                column = self.columns.get(name)
                if column is not None and column.type in unfit:
                    yield f"{path}: column {name!r} is {column.type}; accepted: a column of numbers, dates or times"

    def _paid_measures(self) -> Iterator[str]:
        """Bought measures that the method cannot take, or without what they measure."""
        paid, tune = self.quality and self.quality.paid, self.generate and self.generate.tune
        if tune and paid:
            yield (
                "quality.paid: with generate.tune; measures of the run that scored best would be biased; accepted: one "
                "of both"
            )
        if tune:
            yield from self._measured_target("generate.tune.score.measure", [tune.score.measure])
            yield from self._learned_in_runs(tune)
            yield from self._parted_owners(tune)
        if not paid:
            return
        if self.generate and (self.generate.text or self.generate.image):
            yield "quality.paid: with generate.text or generate.image; accepted: for tables without texts and pictures"
        yield from self._measured_target("quality.paid.measures", paid.measures)

    def _measured_target(self, path: str, measures: Sequence[str]) -> Iterator[str]:
        """Measures of a target of another kind, or of none."""
        if not self.quality:
            return
        for measure, task, what in (
            ("accuracy", "classification", "cells"),
            ("regression", "regression", "numbers"),
        ):
            if measure in measures and (self.quality.target is None or self.quality.task != task):
                yield (
                    f"{path}: {measure}, which needs a target of {what}; accepted: with quality.target and "
                    f"task: {task}, or pairs alone"
                )

    def _learned_in_runs(self, tune: Tune) -> Iterator[str]:
        """Values that a random number of runs cannot learn: a threshold has no finite Renyi curve."""
        for name in modelled_columns(self.columns, self.privacy) if tune.runs != "each" else ():
            column = self.columns[name]
            if column is not None and column.type == "categorical" and column.most_learned is not None:
                yield (
                    f"generate.tune.runs: {tune.runs:g}, but the values of {name} are learned, which a random number "
                    "of runs cannot pay for; accepted: each, or the values of all columns declared"
                )

    def _parted_owners(self, tune: Tune) -> Iterator[str]:
        """Units that the score `likelihood` cannot hold out, or columns whose cells differ between runs."""
        if tune.score.measure != "likelihood":
            return
        path = "generate.tune.score.measure: likelihood"
        if self.privacy and (self.privacy.unit == "example" or self.privacy.multi_owner):
            yield f"{path} holds owners out, and a record has not one; accepted: one owner of each record (unit: user)"
        elif self.privacy and self.privacy.adjacency not in ("add-or-remove", "zero-out"):
            yield f"{path} with adjacency {self.privacy.adjacency!r}; accepted: add-or-remove, zero-out"
        for name in modelled_columns(self.columns, self.privacy):
            column = self.columns[name]
            if column is not None and column.type == "categorical" and column.most_learned is not None:
                yield (
                    f"{path} compares runs by declared values, and those of {name} are learned; accepted: another "
                    "measure, or the values of all columns declared"
                )

    def _network(self) -> Iterator[str]:
        """A network that owners cannot train, or a limit that shortens no training."""
        for path, each in self.generate.settings if self.generate else ():
            if each.network is None:
                continue
            default = TableNetwork.model_fields["fixed_order"].default
            if each.method in MIXTURE_NETWORK_METHODS and each.network.fixed_order != default:
                yield (
                    f"generate.{path}network.fixed_order: {each.method!r} draws all columns of a row at once; "
                    "accepted: none"
                )
            if self.privacy:
                yield from _sampled_owners(f"{path}network", each.network.sampled, self.privacy)
        yield from self._language()
        planned = (*NETWORK_METHODS, *LANGUAGE_METHODS)
        if self.generate and self.generate.method in planned and self.generate.time_limit is not None:
            yield f"generate.time_limit: {self.generate.method!r} plans by its own parameters; accepted: none"

    def _language(self) -> Iterator[str]:
        """A first stage that the method does not have, or whose public rows are missing or not used."""
        for path, each in self.generate.settings if self.generate else ():
            if each.language is None:
                continue
            if self.privacy:
                yield from _sampled_owners(f"{path}language", each.language.sampled, self.privacy)
            first = each.language.first
            if (first is None) == (each.method == "dp_2stage"):
                word = "missing with" if first is None else "declared with"
                yield (
                    f"generate.{path}language.first: {word} method {each.method!r}; accepted: declared with dp_2stage, "
                    "and left out with great"
                )
            if first and (first.rows == "public") != (each.public is not None):
                yield (
                    f"generate.{path}language.first.rows: {first.rows!r} "
                    f"{'without' if each.public is None else 'beside'} generate.public; accepted: public, with such a "
                    "table; or another kind of rows, without"
                )

    def _targets(self) -> Iterator[str]:
        """Targets that are the source, or whose own columns the table has, too."""
        if self.release is None or not self.release.publish:
            return
        read = "" if self.source is None else f"{self.source.place.rstrip('/')}/"
        for target in self.release.publish:
            written = f"{target.place.rstrip('/')}/"
            if read and (written.startswith(read) or read.startswith(written)):
                yield f"release.publish: {target.place!r} and the source overlap; accepted: a separate place"
        pictures = self.generate and (self.generate.image or self.generate.drawn)
        if self.generate and not pictures and any(target.format == "images" for target in self.release.publish):
            yield "release.publish: format images, but generate makes no pictures; accepted: another format"
        if all(target.format in ("files", "images", *DATABASE_FILES) for target in self.release.publish):
            return
        for name, column in self.columns.items():
            own = caseless(name.partition(".")[2] if self.tables else name)
            if own in map(caseless, (PERIOD, RELEASE)) and (column is None or column.type != "ignored"):
                yield (
                    f"release.publish: the target's table has a column {own!r} of its own beside "
                    f"{name!r}; accepted: ignore: true for that column, or no target"
                )

        if any(target.format == "postgresql" for target in self.release.publish):
            for name, column in self.columns.items():
                short = len(name.encode()) <= LONGEST_COLUMN and name not in SYSTEM_COLUMNS
                if not short and (column is None or column.type != "ignored"):
                    yield (
                        f"release.publish: a table in PostgreSQL cannot have the column {name!r}; accepted: a name of "
                        f"at most {LONGEST_COLUMN} bytes, other than {', '.join(SYSTEM_COLUMNS)}"
                    )

    def _unmodelled(self) -> Iterator[str]:
        """Settings for modelled columns where there are none."""
        generate, none = self.generate, "no column is modelled"
        if generate is None:
            return  # whether a text is written cannot be said yet
        if generate.text is None and generate.image is None:
            kept = any(column.type == "text" and column.pii != "drop" for column in self.columns.values())
            texts = f"; texts alone are written for a contract with generate.text, by auto or {', '.join(TEXT_METHODS)}"
            what = "count" if generate.answers else "model"
            needed = f"columns: at least one of {', '.join(MODELLED_TYPES)} is needed to {what} anything"
            yield needed + (texts if kept else "")
            return
        if generate.rows == "auto" and generate.method not in INFERENCE_METHODS:
            yield (
                f"generate.rows: 'auto', but {none} whose counts would say how many rows there are: declare "
                f"such a column, or give generate.rows a number; accepted: 1 to {MOST_ROWS}"
            )
        part: TextGeneration | ImageGeneration | None = generate.text or generate.image
        key, what = ("text", "text has") if generate.text is not None else ("image", "pictures have")
        assert part is not None  # noqa: S101  (one of both is declared)
        if part.columns_share != type(part).model_fields["columns_share"].default:
            yield (
                f"generate.{key}.columns_share: {part.columns_share:g}, but {none}, and the {what} the whole budget; "
                "accepted: none"
            )
        if generate.constraints:
            yield f"generate.constraints: {none}; accepted: none"
        if generate.workload != Workload():
            yield f"generate.workload: {none}; accepted: none"
        yield from self._audited_by_columns(none)

    def _audited_by_columns(self, none: str) -> Iterator[str]:
        """Audit settings for columns where none is modelled."""
        if self.audit is None:
            return
        if self.audit.canary_rows:
            yield (
                f"audit.canary_rows: {', '.join(self.audit.canary_rows)}, but {none}: canaries are texts alone; "
                "accepted: none"
            )
        text = None if self.generate is None else self.generate.text
        if self.generate is None or self.generate.method == "auto" or (text and text.topics):
            return  # topics are counted, as a column is
        for gate in self.audit.gates or ():
            if gate in COLUMN_ATTACKS:
                yield f"audit.gates: {gate!r} does not apply, since {none}; accepted: attacks on texts"

    def _base_model(self) -> Iterator[str]:
        """A checkpoint that the method does not start from: its lineage would not be the model's."""
        named = self.generate.base_model if self.generate else None
        starts = self.generate and (
            self.generate.method_unresolved
            or any(each.method in BASE_MODEL_METHODS for _, each in self.generate.settings)
        )
        if self.generate and named is not None and not starts:
            yield (
                f"generate.base_model: {named!r}, but method {self.generate.method!r} starts from no model; accepted "
                f"with {', '.join(BASE_MODEL_METHODS)}"
            )

    def _canary_kinds(self) -> Iterator[str]:
        """Kinds of canaries that do not apply, or are named twice."""
        kinds = self.audit.canary_texts if self.audit else None
        if kinds and self.generate and self.generate.text is None:
            yield f"audit.canary_texts: no text is written; accepted: with one of {', '.join(TEXT_METHODS)}"
        if self.audit and self.audit.shared_secrets and self.generate and self.generate.text is None:
            yield f"audit.shared_secrets: no text is written; accepted: with one of {', '.join(TEXT_METHODS)}"
        if kinds and set(kinds) != {"made-up"} and self.generate and self.generate.endpoint is not None:
            yield f"audit.canary_texts: {', '.join(kinds)} with an endpoint, whose model is remote; accepted: made-up"
        elif kinds and set(kinds) != {"made-up"} and self.generate and self.generate.asks_no_model:
            yield f"audit.canary_texts: {', '.join(kinds)} with texts that no model writes; accepted: made-up"
        if kinds and len(set(kinds)) < len(kinds):
            yield f"audit.canary_texts: {', '.join(kinds)} contains duplicates; accepted: distinct kinds"
        rows = (self.audit.canary_rows if self.audit else None) or []
        if len(set(rows)) < len(rows):
            yield f"audit.canary_rows: {', '.join(rows)} contains duplicates; accepted: distinct kinds"
        if "plausible" in rows and self.generate and not self.generate.constraints:
            yield (
                "audit.canary_rows: 'plausible' without generate.constraints, which define it; accepted: random, or "
                "with constraints"
            )

    def _separate_audit_model(self) -> Iterator[str]:
        """Where a second model cannot be trained for the audit, or makes the common guarantee a weak one."""
        if self.audit is None or self.audit.model == "shared":
            return
        privacy = self.privacy
        if privacy and privacy.on_overlap != "compose":
            yield (
                f"audit.model: 'separate' with on_overlap: {privacy.on_overlap}, which excludes the owners of the "
                "audited model from the released one; accepted: shared, or on_overlap: compose"
            )
        if privacy and 2 * privacy.guarantee.epsilon > WEAK_EPSILON and not privacy.accept_weak_guarantee:
            yield (
                f"audit.model: 'separate' with privacy.guarantee.epsilon: {privacy.guarantee.epsilon:g} for each of "
                f"two models, which together may be a weak guarantee (above {WEAK_EPSILON:g}); accepted: shared, an "
                f"epsilon up to {WEAK_EPSILON / 2:g}, or a reason in privacy.accept_weak_guarantee"
            )

    def _federated(self) -> Iterator[str]:
        """What a run over rows of participants does not have."""
        if self.source is None or self.source.federation is None:
            return
        federation, where = self.source.federation, "with source.federation"
        accepted_methods, trust = METHODS_BY_TRUST[federation.trust], federation.trust
        if self.generate and self.generate.method not in accepted_methods:
            of = where if trust == "distributed" else f"{where} and trust: {trust}"
            yield f"generate.method: {self.generate.method!r} {of}; accepted: {', '.join(accepted_methods)}"
        if trust == "local" and self.privacy:
            for key, found, only in (
                ("privacy.adjacency", self.privacy.adjacency, "replace-one"),
                ("privacy.max_contributions", self.privacy.max_contributions, 1),
                ("source.federation.silos", federation.silos, 1),
            ):
                if found != only:
                    yield f"{key}: {found} with source.federation.trust: local; accepted: {only}"
        if self.scrub not in (None, Scrub()):
            yield f"scrub: declared {where}; accepted: none: participants scrub their own rows"
        if self.quality not in (None, Quality()):
            yield f"quality: declared {where}; accepted: none: no real row is here to compare with"
        text = self.generate.text if self.generate else None
        written = None if text is None else text_column_of(text, self.columns)
        if text is not None and text.resample is not None:
            yield f"generate.text.resample: declared {where}; accepted: none"
        # All that a federated run would not heed, so that no statement rests on it and no change of it is paid for.
        heeded: tuple[tuple[str, Part | None, Collection[str]], ...] = (
            ("source", self.source, ("uri", "format", "version", "key", "asset", "federation")),
            ("privacy", self.privacy, HEEDED_OF_PRIVACY),
            ("generate", self.generate, HEEDED_OF_GENERATE if written is None else HEEDED_WITH_TEXTS),
            ("generate.network", self.generate.network if self.generate else None, HEEDED_OF_NETWORK),
            ("audit", self.audit, HEEDED_OF_AUDIT),
            ("release", self.release, HEEDED_OF_RELEASE),
        )
        for key, part, names in heeded:
            for name, declared in type(part).model_fields.items() if part is not None else ():
                default = declared.get_default(call_default_factory=True, validated_data={})
                if name not in names and (found := getattr(part, name)) != default:
                    shown = f"{found!r} " if isinstance(found, str) else "declared "
                    accepted = default if isinstance(default, str) else "none"
                    yield f"{key}.{name}: {shown}{where}; accepted: {accepted}"
        if privacy := self.privacy:
            if privacy.adjacency == "fixed-graph":
                yield f"privacy.adjacency: {privacy.adjacency!r} {where}; accepted: one owner of each record"
            b, number = privacy.max_contributions, len(federation.participants)
            canaries = canaries_of(self.audit.canaries if self.audit else None, privacy.expected_units)
            # The audit would miss canaries that are clipped away, whatever the mechanism leaks.
            least = max(math.ceil(privacy.expected_units / number), canaries * b * federation.silos)
            if federation.most_records < least:
                yield (
                    f"source.federation.most_records: {federation.most_records}, so that counts of one cell, or of the "
                    f"audit's canaries, would be clipped; accepted: from {least}; "
                    f"{max(least, b * privacy.expected_units)} is always enough"
                )
        for name, column in self.columns.items():
            if not re.fullmatch(FEDERATED_COLUMN, name):
                yield f"columns: {name!r} {where}; accepted: letters, digits, _ and -, a letter first"
            elif column is not None and column.type == "text" and name != written:
                yield f"columns.{name}: text {where}; accepted: ignore: true, or the text of method aug_pe"
            elif column is not None and column.type == "text" and column.pii != "replace":
                yield f"columns.{name}.pii: {column.pii!r} {where}; accepted: none: participants scrub their own texts"
            elif column is not None and column.type == "categorical" and column.most_learned is not None:
                yield f"columns.{name}.values: learned {where}; accepted: a list, the same at all participants"

    def _text(self) -> Iterator[str]:
        """Text, conditioning columns and training that do not fit the other parts."""
        generate, privacy = self.generate, self.privacy
        if generate is None or generate.text is None or not all(self.columns.values()):
            return
        owners = privacy.owner_columns if privacy else ()
        kept = [
            name
            for name, column in self.columns.items()
            if column.type == "text" and column.pii != "drop" and name not in owners
        ]
        written = text_column_of(generate.text, self.columns)
        if written is None:
            yield f"generate.text.column: missing; accepted: one of {', '.join(kept) or 'no declared column'}"
        elif written not in kept or self.columns[written].pii == "hash":
            yield (
                f"generate.text.column: {written!r}; accepted: a column of type text that scrubbing leaves readable "
                "(pii: replace or mask), and that names no owners"
            )
        modelled = modelled_columns(self.columns, privacy)
        for name in generate.text.given or []:
            if name not in modelled:
                yield f"generate.text.given: {name!r} is not modelled; accepted: {', '.join(modelled) or NO_COLUMN}"
            elif not conditioning_values(self.columns[name]):
                yield (
                    f"generate.text.given: {name!r} has no list of values; accepted: categories with listed values, "
                    f"booleans, integers with at most {MOST_CONDITIONING_VALUES} values"
                )
        yield from self._counted(generate.text, modelled)
        yield from self._labels(generate.text, modelled)
        if privacy is None:
            return
        if privacy.weighting == "owners":
            yield f"privacy.weighting: 'owners' with method {generate.method!r}; accepted: rows"
        if generate.text.inference is not None and not generate.method_unresolved:
            yield from self._inference(generate.text, generate.text.inference, privacy)
        if generate.text.evolution is not None and generate.text.chunks > 1 and not generate.method_unresolved:
            yield f"generate.text.chunks: {generate.text.chunks} with method {generate.method!r}; accepted: 1"
        if generate.text.topics is not None and KEYWORDS_COLUMN in self.columns:
            yield (
                f"columns.{KEYWORDS_COLUMN}: with method {generate.method!r}, whose prompts use that name for topics; "
                "accepted: another name"
            )
        if generate.training is None:
            return
        training = generate.training
        if training.sampled == "owners" and training.expected_records is not None:
            yield "generate.training.expected_records: with sampled 'owners'; accepted: none (expected_units is used)"
        sampled = training_units(privacy, training)
        if training.batch_size is not None and training.batch_size > sampled:
            yield f"generate.training.batch_size: {training.batch_size} of {sampled}; accepted: at most {sampled}"
        yield from _sampled_owners("training", training.sampled, privacy)

    def _image(self) -> Iterator[str]:
        """An image column without a method, or pictures, classes and settings that do not fit the other parts."""
        generate = self.generate
        if generate is None or not all(self.columns.values()):
            return
        found = [name for name, column in self.columns.items() if column.type == "image"]
        yield from self._source_of_pictures(found)
        made = generate.image or generate.drawn
        if made is None:
            if found:
                yield (
                    f"columns.{found[0]}: type image, but generate.method {generate.method!r} makes no pictures; "
                    f"accepted: generate.image with method auto or {', '.join(IMAGE_METHODS)}, generate.text.pictures "
                    f"with method auto or {', '.join(TEXT_METHODS)}, or ignore: true for the column"
                )
            return
        column = image_column_of(made, self.columns)
        if column not in found:
            key, shown = "image" if generate.image else "text.pictures", "missing" if column is None else repr(column)
            yield f"generate.{key}.column: {shown}; accepted: one of {', '.join(found) or 'no declared column'}"
        elif len(found) > 1:
            others = ", ".join(name for name in found if name != column)
            yield f"columns: {others}: a second image column; accepted: one, so declare the others with ignore: true"
        if generate.image is None:
            yield from self._drawn()
            return
        yield from self._classes(generate.image)
        if self.privacy and self.privacy.weighting == "owners":
            yield f"privacy.weighting: 'owners' with method {generate.method!r}; accepted: rows"
        yield from self._public_pictures(generate.image)
        for part in ("diffusion", "finetune", "gan"):
            training, privacy = getattr(generate.image, part), self.privacy
            if training is None or privacy is None:
                continue
            yield from _sampled_owners(f"image.{part}", training.sampled, privacy)
        if generate.time_limit is not None:
            yield f"generate.time_limit: {generate.method!r} plans by its own parameters; accepted: none"
        if self.audit and self.audit.canary_rows and "plausible" in self.audit.canary_rows:
            yield "audit.canary_rows: 'plausible' with pictures; accepted: random"

    def _source_of_pictures(self, found: list[str]) -> Iterator[str]:
        """Image columns that the source cannot have, or that it names as its key."""
        if self.source is None:
            return
        for name in found:
            if self.source.format == "images" and self.columns[name].stored == "raw":
                yield f"columns.{name}.stored: 'raw' with source.format images, which are files; accepted: files"
            if name in self.source.key:
                yield f"source.key: column {name!r} holds pictures; accepted: columns whose values identify a record"

    def _public_pictures(self, image: ImageGeneration) -> Iterator[str]:
        """Public pictures, fonts or networks that overlap with the source: what is private would be read in clear."""
        if self.source is None or self.source.format == "sql":
            return
        places = {
            f"{name}.table.directory": part.table.directory
            for name, part in (("evolution", image.evolution), ("diffusion", image.diffusion))
            if part is not None and part.table is not None
        }
        if image.evolution is not None and image.evolution.fonts is not None:
            places["evolution.fonts.directory"] = image.evolution.fonts.directory
        if image.evolution is not None and image.evolution.encoder is not None:
            places["evolution.encoder"] = image.evolution.encoder
        for key, place in places.items():
            read, public = (os.path.realpath(path) for path in (local_path(self.source.uri), place))
            if Path(read).is_relative_to(public) or Path(public).is_relative_to(read):
                yield (
                    f"generate.image.{key}: {place!r} and the source overlap; accepted: a place of what is public, "
                    "apart from the source"
                )

    def _classes(self, image: ImageGeneration) -> Iterator[str]:
        """Columns that cannot condition pictures, or too many classes."""
        modelled = modelled_columns(self.columns, self.privacy)
        for name in image.given or []:
            if name not in modelled:
                yield f"generate.image.given: {name!r} is not modelled; accepted: {', '.join(modelled) or NO_COLUMN}"
            elif not conditioning_values(self.columns[name]):
                yield (
                    f"generate.image.given: {name!r} has no list of values; accepted: categories with listed values, "
                    f"booleans, integers with at most {MOST_CONDITIONING_VALUES} values"
                )
        listed = [name for name in modelled if conditioning_values(self.columns[name])]
        if image.given is None and len(listed) > 1:
            yield (
                f"generate.image.given: missing, and {', '.join(listed)} have lists of values; accepted: the columns "
                "by which pictures are made, or [] for none"
            )
        named = conditions_of(image, self.columns, modelled)
        yield from self._too_many("image", named)

    def _drawn(self) -> Iterator[str]:
        """Classes of pictures that are drawn from texts, whose conditioning columns are the texts' own."""
        modelled = modelled_columns(self.columns, self.privacy)
        given = self.generate.text.given if self.generate and self.generate.text else None
        yield from self._too_many("text", [name for name in modelled if given is None or name in given])

    def _too_many(self, part: str, named: Sequence[str]) -> Iterator[str]:
        """More classes of pictures than there may be."""
        listed = [name for name in named if conditioning_values(self.columns[name])]
        classes = math.prod(len(conditioning_values(self.columns[name])) for name in listed)
        if classes > MOST_CLASSES:
            yield (
                f"generate.{part}.given: {', '.join(listed)} make {classes} classes; accepted: at most {MOST_CLASSES}, "
                "so fewer columns"
            )

    def _counted(self, text: TextGeneration, modelled: Sequence[str]) -> Iterator[str]:
        """Numbers of rows for values that condition no text."""
        conditioning = [name for name in (modelled if text.given is None else text.given) if name in modelled]
        for name, rows in (text.counts or {}).items():
            values = (
                [value for value in conditioning_values(self.columns[name]) if value is not None]
                if name in conditioning
                else []
            )
            if not values:
                accepted = ", ".join(conditioning) or NO_COLUMN
                yield f"generate.text.counts: {name!r} is no conditioning column; accepted: {accepted}"
                continue
            unknown = [value for value in rows if value not in values]
            if unknown:
                yield (
                    f"generate.text.counts.{key_path(name)}: {', '.join(map(repr, unknown[:5]))}; accepted: "
                    f"{', '.join(values[:20])}{', ...' if len(values) > 20 else ''}"
                )

    def _labels(self, text: TextGeneration, modelled: Sequence[str]) -> Iterator[str]:
        """No one conditioning column by whose labels texts could be chosen."""
        if text.resample is None or text.resample.by != "labels":
            return
        named = modelled if text.given is None else text.given
        conditioning = [name for name in modelled if name in named and conditioning_values(self.columns[name])]
        column = text.resample.column or (conditioning[0] if len(conditioning) == 1 else None)
        accepted = ", ".join(conditioning) or NO_COLUMN
        if column is None:
            yield f"generate.text.resample.column: missing, with by 'labels'; accepted: {accepted}"
        elif column not in conditioning:
            yield f"generate.text.resample.column: {column!r} is no conditioning column; accepted: {accepted}"

    def _inference(self, text: TextGeneration, inference: Inference, privacy: Privacy) -> Iterator[str]:
        """Adjacency and contexts that DP inference does not allow, and settings without effect."""
        if privacy.adjacency not in ("add-or-remove", "zero-out"):
            yield (
                f"privacy.adjacency: {privacy.adjacency!r} with method 'dp_inference', which assigns each owner to one "
                "context; accepted: add-or-remove, zero-out"
            )
        for name in ("temperature", "top_k", "top_p", "chunks"):
            default = TextGeneration.model_fields[name].default
            if getattr(text, name) != default:
                yield (
                    f"generate.text.{name}: {getattr(text, name)} with method 'dp_inference'; accepted: {default} (the "
                    "mechanism draws the texts: generate.text.inference)"
                )
        contexts = privacy.expected_units // inference.batch_size
        named = modelled_columns(self.columns, privacy) if text.given is None else text.given
        labels = math.prod(
            len(conditioning_values(self.columns[name])) or 1 for name in named if self.columns.get(name)
        )
        if labels > contexts:
            yield (
                f"generate.text.inference.batch_size: {inference.batch_size} of {privacy.expected_units} expected "
                f"units makes {contexts} contexts, and the conditioning columns (generate.text.given) have {labels} "
                "combinations of values, each of which needs one; accepted: fewer columns in given, or smaller batches"
            )

    def _owners(self) -> Iterator[str]:
        """Owner columns whose type cannot identify owners."""
        privacy = self.privacy
        if privacy and privacy.unit == "example":
            yield from self._records(privacy)
        for name in privacy.owner_columns if privacy else []:
            column = self.columns.get(name)
            if privacy is None or column is None:
                continue
            unowned = column.nullable and not privacy.multi_owner
            # Lists of ids are not texts, and a contract does not know which of the two a source holds.
            accepted = ("identifier",) if privacy.multi_owner else ("identifier", "text")
            if column.type not in accepted or unowned:
                kind = f"nullable {column.type}" if unowned else column.type
                article = "an" if kind[0] in "aeiou" else "a"
                yield (
                    f"privacy.owner_columns: {name!r} is {article} {kind} column; "
                    f"accepted: a column of type {' or '.join(accepted)}"
                    + (", with fixed-graph" if privacy.multi_owner else " that is not nullable")
                )

    def _records(self, privacy: Privacy) -> Iterator[str]:
        """With unit 'example', owners that several records could share.

        Of several records with one owner, bounding keeps one. Removing that record lets another in: the mechanism's
        input changes by two records, while the guarantee is for one.
        """
        if self.source and privacy.owner_columns != self.source.key:
            yield (
                f"privacy.owner_columns: {', '.join(privacy.owner_columns)} with unit 'example', where each record is "
                f"a unit; accepted: the source's key ({', '.join(self.source.key)}), or unit user"
            )
        if privacy.owner_normalization:
            yield (
                f"privacy.owner_normalization: {', '.join(privacy.owner_normalization)} with unit 'example', where it "
                "could merge several records into one unit; accepted: none"
            )

    def _order(self) -> Iterator[str]:
        """With fixed-graph, the order of records must not depend on what the release protects."""
        if self.privacy is None:
            return
        weight = self.privacy.weight
        column = self.columns.get(weight) if weight else None
        if weight and (weight not in self.columns or (column and column.type not in WEIGHT_TYPES)):
            yield f"privacy.record_order: weight {weight!r}; accepted: a column of type {', '.join(WEIGHT_TYPES)}"
        if not self.privacy.multi_owner:
            return
        if self.scrub and self.scrub.consistent == "owner":
            yield "scrub.consistent: 'owner', but records have several owners; accepted with fixed-graph: document"
        for name in self.source.key if self.source else []:
            if name in modelled_columns(self.columns, self.privacy):
                yield (
                    f"source.key: column {name!r} is modelled; with fixed-graph, the key decides whose records "
                    "are kept; accepted: columns of type identifier or text"
                )

    def _periods(self) -> Iterator[str]:
        """Cadence, first period and period column."""
        source, release = self.source, self.release
        if source and release and (release.cadence is None) != (source.period_column is None):
            yield "release.cadence and source.period_column go together: declare both or neither"
        if release and (release.cadence is None) != (release.start is None):
            yield "release.cadence and release.start go together: declare both or neither"
        if release and release.cadence and release.start and not CADENCES[release.cadence].first_day(release.start):
            cadence = CADENCES[release.cadence]
            yield f"release.start: {release.start!r}; accepted for the cadence {release.cadence}: {cadence.form}"
        column = self.columns.get(source.period_column) if source and source.period_column else None
        if column and column.type != "date":
            yield f"source.period_column: of type {column.type}; accepted: a column of type date"
        if release and release.cadence is not None and release.on_new_version is not None:
            yield "release.on_new_version: with release.cadence, which pays for each period once; accepted: one of both"
        if release and release.on_new_version is not None and source and source.is_copied:
            yield (
                f"release.on_new_version: a source of the format {source.format} that is not on this machine does not "
                "show new versions; accepted: a Delta table, or local files"
            )
        for key in ("schedule", "overdue_after"):
            if release and release.cadence is None and getattr(release, key) is not None:
                yield f"release.{key}: without release.cadence no release is expected; accepted: with a cadence"
        if release and release.cadence is None and release.time_zone != "UTC":
            yield "release.time_zone: without release.cadence there are no periods; accepted: with a cadence"


def _sampled_owners(part: str, sampled: str, privacy: Privacy) -> Iterator[str]:
    """Owners that DP-SGD samples, where records have several or none."""
    if sampled == "owners" and (privacy.multi_owner or privacy.unit == "example"):
        yield (
            f"generate.{part}.sampled: 'owners' with several owners a record, or with unit 'example'; accepted: records"
        )


def parse_or_none(model: Any, value: Any) -> Any:
    """A part of a contract, or None if it is invalid by itself."""
    try:
        return _adapter(model).validate_python(value)
    except ValidationError:
        return None


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
