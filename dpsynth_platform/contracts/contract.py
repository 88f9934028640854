"""The data contract: what a person declares about a dataset, in YAML. All of it is public.

What belongs here: the whole contract, what follows from it, and its snapshots. What does not: anything that looks at
the data.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.answers import ANSWER_COLUMNS, MOST_QUERIES, Queries
from dpsynth_platform.contracts.audit import Audit, canaries_of
from dpsynth_platform.contracts.base import (
    FamilyName,
    Name,
    NameOrNone,
    Part,
    Recipient,
    Sentences,
    caseless,
    refuse,
)
from dpsynth_platform.contracts.bases import PublicBase, bases_of, lookups_of
from dpsynth_platform.contracts.columns import (
    RESERVED_COLUMNS,
    Column,
    ImageColumn,
    conditioning_values,
    modelled_columns,
)
from dpsynth_platform.contracts.constraints import gap_orders
from dpsynth_platform.contracts.cross_checks import Parts
from dpsynth_platform.contracts.generation import Generate, with_generate
from dpsynth_platform.contracts.image_generation import (
    ImageFinetune,
    ImageGeneration,
    PublicPictures,
    conditions_of,
    image_column_of,
)
from dpsynth_platform.contracts.linked_contract import linked_of, with_tables
from dpsynth_platform.contracts.methods import (
    EVOLVED_BY,
    PARTS_OF_IMAGE,
    PARTS_OF_TEXT,
    TRAINED_METHODS,
    WORKLOAD_METHODS,
)
from dpsynth_platform.contracts.network_training import RowLanguage
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.contracts.quality import Quality
from dpsynth_platform.contracts.release import Release, Retention
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.tables import MOST_TABLES, LinkedTable, LinkedTables, TableName
from dpsynth_platform.contracts.text_generation import Evolution, Inference, TextGeneration, text_column_of
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.digests import canonical_digest

_OF_NO_ROW = ("asset", "password_file")
"""Keys of the source that change none of its rows."""
_OF_NO_TARGET = ("pairs", "likelihood")
"""Scores of `generate.tune` that are the same whatever the target is."""
_OF_NO_VALUE = ("accept_pii", "accept_unscrubbed", "damaged")
"""Keys of a column that change none of its values. `damaged` decides whether a run stops before anything is spent."""


class DataContract(Part):
    """One governed dataset: the declaration from which its asset line is built."""

    dataset: Name
    description: str = Field(min_length=1)
    kind: Literal["rows", "answers"] = Field(
        default="rows",
        exclude_if=lambda kind: kind == "rows",
        description="What is released: synthetic `rows`, or `answers` to `queries`, with their intervals.",
    )
    demo: bool = Field(default=False, description="Marks a demonstration dataset: its people are fictional.")
    owners: list[str] = Field(min_length=1, description="People to ask, not privacy units.")
    purpose: Sentences | None = Field(
        default=None,
        exclude_if=lambda purpose: purpose is None,
        description="What releases of this dataset are made for. Public; changes no row.",
    )
    recipients: list[Recipient] = Field(
        default_factory=list,
        max_length=100,
        exclude_if=lambda recipients: not recipients,
        description="Who is to receive the releases: organisations or groups of people. Public; changes no row.",
    )
    source: Source
    family: FamilyName
    privacy: Privacy
    tables: dict[TableName, LinkedTable] = Field(
        default_factory=dict,
        max_length=MOST_TABLES,
        exclude_if=lambda tables: not tables,
        description="Linked tables in place of one: a root, whose rows belong to owners, and what refers to it.",
    )
    columns: dict[NameOrNone, Column] = Field(
        min_length=1, description="What the public knows of each column. With `tables`, follows from them."
    )
    scrub: Scrub = Scrub()
    queries: Queries = Field(
        default_factory=dict,
        max_length=MOST_QUERIES,
        exclude_if=lambda queries: not queries,
        description="For `kind: answers`: what is asked, by name; each a declaration, or one SELECT statement.",
    )
    generate: Generate
    audit: Audit = Audit()
    quality: Quality = Quality()
    release: Release
    retention: Retention = Retention()

    @field_validator("columns")
    @classmethod
    def _names(cls, columns: dict[str, Any]) -> dict[str, Any]:
        seen: dict[str, str] = {}
        for name, column in columns.items():
            if not name and column.type != "ignored":
                raise ValueError(
                    "a column has an empty name, as pandas and R write it over an index; accepted: '': {ignore: true}, "
                    "or a name, so name the column in the source"
                )
            alike = caseless(name)
            if alike in RESERVED_COLUMNS:
                raise ValueError(
                    f"{name!r} is reserved by the platform, as are {', '.join(RESERVED_COLUMNS)}; accepted: another "
                    "name, so rename the column in the source"
                )
            if alike in seen:
                raise ValueError(
                    f"{seen[alike]!r} and {name!r} differ in case only, which Delta tables and SQL do not distinguish; "
                    "accepted: distinct names, so rename one of the two in the source"
                )
            seen[alike] = name
        return columns

    @model_validator(mode="before")
    @classmethod
    def _of_kind(cls, document: Any) -> Any:
        return with_tables(with_generate(document))

    @model_validator(mode="after")
    def _references(self) -> DataContract:
        refuse(self.parts.contradictions())
        return self

    @property
    def parts(self) -> Parts:
        return Parts(
            self.source,
            self.privacy,
            self.columns,
            self.scrub,
            self.quality,
            self.release,
            self.generate,
            self.audit,
            self.queries,
            self.kind,
            self.tables,
        )

    @cached_property
    def linked(self) -> LinkedTables:
        """The tables with their owner, which must exist."""
        return linked_of(self.tables, self.privacy)

    @property
    def modelled(self) -> list[str]:
        """Names of the columns that a tabular generator models, in the declared order.

        A weight that orders records with several owners is not among them: see `Privacy.record_order`.
        """
        return modelled_columns(self.columns, self.privacy)

    @property
    def ignored(self) -> list[str]:
        return [name for name, column in self.columns.items() if column.type == "ignored"]

    @property
    def text_column(self) -> str | None:
        """The text column that a language model writes, if any."""
        return None if self.generate.text is None else text_column_of(self.generate.text, self.columns)

    @property
    def image_column(self) -> str | None:
        """The column of pictures that a method makes, or that are drawn from texts, if any."""
        part = self.generate.image or self.generate.drawn
        return None if part is None else image_column_of(part, self.columns)

    @property
    def image(self) -> ImageColumn:
        """The declaration of `image_column`, which must exist."""
        column = self.columns[str(self.image_column)]
        assert isinstance(column, ImageColumn)  # noqa: S101  (`cross_checks` has refused others)
        return column

    @property
    def public_pictures(self) -> PublicPictures | None:
        """The declared public pictures that candidates are made from, or that a network learns from first, if any."""
        image = self.generate.image
        parts = () if image is None else (image.evolution, image.diffusion)
        return next((part.table for part in parts if part is not None and part.table is not None), None)

    @property
    def public_model(self) -> ImageFinetune | None:
        """The declared public diffusion model that training starts from, if any."""
        return None if self.generate.image is None else self.generate.image.finetune

    @property
    def bases(self) -> tuple[PublicBase, ...]:
        """The checkpoint and all else that is public and that the plan starts from; clearance checks their lineage."""
        return (*bases_of(self.generate), *lookups_of(self.source.uri, self.tables))

    @property
    def conditioning_columns(self) -> list[str]:
        """Names of the modelled columns that condition the text of a language model, or the pictures."""
        if self.generate.image is not None:
            return conditions_of(self.generate.image, self.columns, self.modelled)
        text = self.generate.text
        if text is None:
            return []
        named = self.modelled if text.given is None else text.given
        return [name for name in self.modelled if name in named and conditioning_values(self.columns[name])]

    @property
    def label_column(self) -> str | None:
        """The conditioning column by whose labels texts are chosen (`generate.text.resample`), if they are."""
        chosen = None if self.generate.text is None else self.generate.text.resample
        if chosen is None or chosen.by != "labels":
            return None
        return chosen.column or self.conditioning_columns[0]

    @property
    def read_by_mechanism(self) -> list[str]:
        """Names of the columns that the mechanism reads: no pictures where these are drawn from texts."""
        pictures = None if self.generate.drawn is not None else self.image_column
        return [*self.modelled, *(name for name in (self.text_column, pictures) if name is not None)]

    @property
    def answer_columns(self) -> tuple[str, ...]:
        """Names of the columns of the table of answers; empty where rows are made."""
        by = dict.fromkeys(name for query in self.queries.values() for name in query.by)
        return (ANSWER_COLUMNS[0], *by, *ANSWER_COLUMNS[1:]) if self.generate.answers else ()

    @property
    def canary_count(self) -> int:
        """Number of candidate canaries."""
        return canaries_of(self.audit.canaries, self.privacy.expected_units)

    @property
    def unit_records(self) -> int:
        """The most records of one unit that are used: b, and in federated runs b in each silo that it may be in."""
        federation = self.source.federation
        return self.privacy.max_contributions * (1 if federation is None else federation.silos)

    @property
    def mechanisms(self) -> int:
        """How many mechanisms a run starts and pays for."""
        return 2 if self.separate_audit_model else 1

    @property
    def separate_audit_model(self) -> bool:
        """Whether a second, equal model with canaries is audited, and never released."""
        return self.audit.model == "separate"

    @property
    def audit_terms(self) -> dict[str, Any]:
        """What an audit report must have been made with, to be evidence for this contract.

        Undeclared terms have no key, so that reports made before such terms existed stay valid.
        """
        claimed, audit = self.privacy.guarantee.epsilon, self.audit
        return {
            "claimed_epsilon": claimed,
            "delta": self.privacy.delta,
            "threshold": min(self.audit.max_epsilon_lower_bound or claimed, claimed),
            "confidence": self.audit.confidence,
            **({} if audit.gates is None else {"gates": list(audit.gates)}),
            **({"rate_limits": [limit.model_dump() for limit in audit.rate_limits]} if audit.rate_limits else {}),
            **({} if audit.cumulative == "gate" else {"cumulative": audit.cumulative}),
        }

    def with_method(self, method: str, why: str | None = None) -> DataContract:
        """This contract with a method for texts or pictures instead of `auto`, as if the method had been declared.

        Settings of other methods only are dropped.

        Args:
            method: one that writes texts or makes pictures.
            why: the reason for the choice.

        Raises:
            ContractError: the method does not fit the contract.
        """
        whole = self.snapshot()
        generate, text = whole["generate"], whole["generate"]["text"]
        image = generate.get("image")
        if image is not None:
            for part, methods in PARTS_OF_IMAGE.items():
                if method not in methods:
                    image.pop(part, None)
        if text is not None:
            text |= {part: None for part, methods in PARTS_OF_TEXT.items() if method not in methods}
        if method not in TRAINED_METHODS:
            generate["training"] = None
        generate["method"] = method
        found = validated(DataContract, whole, self.dataset)
        found.generate._why = why
        return found

    def snapshot(self) -> dict[str, Any]:
        """The contract as plain JSON values, as the `raw` step seals it."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the canonical snapshot."""
        return canonical_digest(self.snapshot())

    def mechanism_snapshot(self) -> dict[str, Any]:
        """The parts that decide what the mechanism does and to whom. Other changes are no new spend."""
        whole = self.snapshot()
        parts = {key: whole[key] for key in ("dataset", "source", "family", "privacy", "columns", "scrub")}
        parts["source"] = {key: value for key, value in parts["source"].items() if key not in _OF_NO_ROW}
        if self.source.federation is not None:  # a participant's new key makes no new run
            parts["source"]["federation"]["participants"] = self.source.federation.all_names
        for column in parts["columns"].values():
            for key in _OF_NO_VALUE:
                column.pop(key, None)
        if self.privacy.weighting == "rows":
            parts["privacy"].pop("weighting")  # the default has no key, so that earlier runs keep theirs
        if self.tables:
            parts["tables"] = self.linked.as_modelled().model_dump(mode="json")
        return parts | {
            "method": self.generate.method,
            "workload": whole["generate"]["workload"] if self.generate.method in WORKLOAD_METHODS else None,
            **({"queries": whole["queries"]} if self.queries else {}),
            "canaries": self.canary_count,
            "holdout": self.quality.holdout,
            # Present only where declared, so that earlier runs keep their keys.
            **({} if self.generate.time_limit is None else {"time_limit": self.generate.time_limit}),
            **({} if self.generate.base_model is None else {"base_model": self.generate.base_model}),
            **({} if self.generate.public is None else {"public": self.generate.public.model_dump(exclude={"why"})}),
            **({} if self.generate.network is None else {"network": self.generate.network.model_dump(mode="json")}),
            **({} if self.generate.language is None else self._rows_written_by(self.generate.language)),
            **({} if self.generate.text is None else self._written_by),
            **({} if self.generate.image is None else self._pictured_by(self.generate.image)),
            **({} if self.audit.canary_texts is None else {"canary_texts": list(self.audit.canary_texts)}),
            **({} if self.audit.canary_rows is None else {"canary_rows": list(self.audit.canary_rows)}),
            **({} if (secrets := self.audit.shared_secrets) is None else {"shared_secrets": secrets.model_dump()}),
            # They decide which canaries are possible: an earlier list might allow a few rows only, which hide much.
            **(
                {"canary_constraints": whole["generate"]["constraints"]}
                if "plausible" in (self.audit.canary_rows or ())
                else {}
            ),
            **({"audit_model": self.audit.model} if self.separate_audit_model else {}),
            **({"gaps": gaps} if (gaps := self.gaps) else {}),
            **self._paid_measures,
            **self._tuned,
        }

    @property
    def _tuned(self) -> dict[str, Any]:
        """What decides which settings run, and their scores; nothing without `generate.tune`."""
        if self.generate.tune is None:
            return {}
        return {
            "tune": self.generate.tune.model_dump(mode="json"),
            "tune_target": self.quality.target if self._target_decides else None,
            "tune_constraints": [item.model_dump(mode="json") for item in self.generate.constraints],
        }

    @property
    def _target_decides(self) -> bool:
        """Whether scores depend on the target, or a language model writes rows with the target first."""
        tune = self.generate.tune
        return tune is not None and (
            tune.score.measure not in _OF_NO_TARGET or any(each.language is not None for each in tune.candidates)
        )

    @property
    def _paid_measures(self) -> dict[str, Any]:
        """What decides bought measures; nothing without any."""
        quality = self.quality
        if quality.paid is None:
            return {}
        return {
            "paid": {
                "measures": sorted(quality.paid.measures),
                "share": quality.paid.share,
                "target": quality.target if {"accuracy", "regression"}.intersection(quality.paid.measures) else None,
                "constraints": [item.model_dump(mode="json") for item in self.generate.constraints],
            }
        }

    @property
    def gaps(self) -> dict[str, Any]:
        """The columns that are counted by their gap to earlier ones."""
        kinds = {name: self.columns[name].type for name in self.modelled}
        found = gap_orders(self.generate.constraints, kinds)
        return {later: {"after": list(earlier), "strict": strict} for later, (earlier, strict) in found.items()}

    def _rows_written_by(self, language: RowLanguage) -> dict[str, Any]:
        """What decides how a language model writes rows: the target is the first column of a row."""
        first = {} if self.quality.target is None else {"target": self.quality.target}
        absent = {"number_distance"} if language.number_distance == 0 else set[str]()  # as in earlier runs
        return {"language": language.model_dump(mode="json", exclude=absent)} | first

    def _pictured_by(self, image: ImageGeneration) -> dict[str, Any]:
        """What decides the mechanism of a method for pictures, without transport and reasons for publicity."""
        reason = {"public"}
        material: Any = {"evolution": {"table": reason}, "diffusion": {"table": reason}, "finetune": reason}
        whole = image.model_dump(mode="json", exclude=material)
        if image.evolution is not None and image.evolution.endpoint is not None:
            declared = image.evolution.endpoint
            whole["evolution"]["endpoint"] = {name: getattr(declared, name) for name in ("url", "model", "words")}
        return {"image": whole | {"column": self.image_column, "given": self.conditioning_columns}}

    @property
    def _written_by(self) -> dict[str, Any]:
        """What decides a text method's mechanism. Drawing from a trained model is post-processing, and not here."""
        text, training = self.generate.text, self.generate.training
        assert text is not None  # noqa: S101  (`mechanism_snapshot` asks)
        evolved = {} if text.evolution is None else self._evolved_by(text, text.evolution)
        return {
            "written": self.text_column,
            "given": self.conditioning_columns,
            "max_tokens": text.max_tokens,
            "chunks": text.chunks,
            "columns_share": text.columns_share,
            **({} if training is None else {"training": training.model_dump(mode="json")}),
            **({} if text.topics is None else {"topics": text.topics.model_dump(mode="json", exclude={"public"})}),
            # The number of documents decides how many tokens are drawn.
            **(
                {}
                if text.inference is None
                else {"inference": self._with_words(text.inference), "rows": self.generate.rows}
            ),
            **evolved,
            **({} if text.resample is None else {"resample": text.resample.model_dump(mode="json")}),
        }

    def _evolved_by(self, text: TextGeneration, evolution: Evolution) -> dict[str, Any]:
        """What decides which texts are voted on: the model behind an endpoint, but not how requests are sent."""
        whole = text.model_dump(mode="json", include=EVOLVED_BY)
        endpoint = None if evolution.endpoint is None else {"url": evolution.endpoint.url}
        return whole | {"evolution": self._with_words(evolution) | {"endpoint": endpoint}}

    def _with_words(self, part: Inference | Evolution) -> dict[str, Any]:
        return part.model_dump(mode="json") | {"about": self.public_words(part)}

    def public_words(self, part: Inference | Evolution) -> str:
        """What the texts are, for prompts: declared, or the contract's description."""
        return self.description if part.about is None else part.about
