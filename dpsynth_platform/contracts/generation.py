"""The contract's `generate`: method, workload, constraints and number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dpsynth_platform.contracts.base import MOST_ROWS, Part, TimeLimit, refuse
from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint
from dpsynth_platform.contracts.image_generation import ImageGeneration
from dpsynth_platform.contracts.methods import (
    ANSWERS,
    DRAWN_BY,
    IMAGE_METHODS,
    LANGUAGE_METHODS,
    NETWORK_METHODS,
    PARTS_OF_IMAGE,
    PARTS_OF_TEXT,
    PUBLIC_ROWS_METHODS,
    TEXT_METHODS,
    TRAINED_METHODS,
    MethodName,
    TableMethodName,
)
from dpsynth_platform.contracts.network_training import NETWORK_DEFAULTS, RowLanguage, TableNetwork
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.text_generation import RETRIEVE, DrawnPictures, Endpoint, TextGeneration, Training
from dpsynth_platform.contracts.tuning import Candidate, Tune, with_public_rows, with_settings
from dpsynth_platform.contracts.workload import Workload

NO_COLUMN = "none, so leave the key out"
DEFAULT_BASE_MODEL = "smollm2-135m"


class Generate(Part):
    """How the synthetic rows are made.

    The number of real rows is not public. `rows: auto` is the noisy estimate of the records that the mechanism reads
    (after holdout and bounding, with the included canaries). Where no column is modelled there is no estimate, and
    `rows` must be a number; `dp_inference` writes the documents that it pays for, or one per `text.resample.pool`.
    """

    method: MethodName = Field(
        default="auto",
        description=(
            "`aim` measures as many marginals as the budget allows, `jam` also takes a `public` table's where these "
            "are nearer, `mwem` measures nearly as many as `aim` in less time, `rap` and "
            "`gem` any that a workload names, whatever the size of a graphical model of them, `mst` the strongest "
            "links of a tree, `privsyn` chooses many pairs at once, `mrf` sets of two and three columns inside of a "
            "graph that it learns first, `grem` measures all pairs of a wide table, `appgm` any pairs where a "
            "graphical model of them would be too large, `privbayes` suits columns with very many values, "
            "`histogram` counts all columns of a small table together, `independent` measures no links. "
            "`arn` trains a network by DP-SGD that draws each column in the light of those before it, for what many "
            "columns say together, `tbart` a network of attention. `dp_vae` trains an autoencoder and "
            "`table_diffusion` a network that takes noise off rows, `dp_gan` two networks against each other; these "
            "draw a row at once (for comparison). "
            "`dp_2stage` trains a language model that writes rows, first without private data; `great` without such a "
            "first stage. "
            "`auto` chooses by public facts and gives its reason. Methods that also write a text column: "
            "`dp_finetune` fine-tunes a language model, `ctcl` does so with keywords of a public topic as prompts, "
            "`dp_inference` trains nothing and draws each token with privacy from a model that reads records, `aug_pe` "
            "lets private records vote among texts that a model writes from public words, or that a public table has. "
            "With `text`, `auto` chooses among these four. Methods that also make pictures: `image_moments` draws "
            "them from noisy moments of each class, `image_pe` lets private pictures vote among public or simulated "
            "ones, `image_mixed` does both, `image_diffusion` trains a diffusion model, `image_finetune` a part of a "
            "public one, `image_embedding` a network on noisy mean features of each class, `image_gan` two networks "
            "against each other (both for "
            "comparison: `image_moments` is better). With `image`, `auto` chooses among the methods for pictures."
        ),
    )
    rows: int | Literal["auto"] = Field(
        default="auto", json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}
    )
    base_model: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description=(
            "The checkpoint that training starts from, by name or path. Clearance checks its lineage, since its "
            "training data may be about the same people."
        ),
    )
    constraints: list[Constraint] = Field(
        default_factory=list,
        max_length=MOST_CONSTRAINTS,
        description=(
            "Which rows cannot occur. They cost nothing and change no mechanism. Changing them is no new spend, except "
            "with plausible audit.canary_rows, which are drawn by them."
        ),
    )
    workload: Workload = Field(default_factory=Workload, description="For `aim`, `jam`, `mwem`, `rap` and `gem` only.")
    public: PublicRows | None = Field(
        default=None,
        exclude_if=lambda public: public is None,
        description=(
            "A public table with columns of the same names, as a help for `aim`, `jam`, `mwem`, `rap`, `gem`; of "
            "`dp_2stage` one with any columns, whose rows the first stage learns; of `aug_pe` one with the column of "
            "texts, which are the first candidates and may be released as they are."
        ),
    )
    text: TextGeneration | None = Field(default=None, description="For methods that write texts.")
    image: ImageGeneration | None = Field(
        default=None,
        exclude_if=lambda image: image is None,
        description="For methods that make pictures.",
    )
    network: TableNetwork | None = Field(
        default=None,
        exclude_if=lambda network: network is None,
        description="For `arn`, `tbart`, `dp_vae`, `table_diffusion` and `dp_gan`.",
    )
    language: RowLanguage | None = Field(
        default=None,
        exclude_if=lambda language: language is None,
        description="For `great` and `dp_2stage`.",
    )
    training: Training | None = Field(default=None, description="For `dp_finetune` and `ctcl`.")
    tune: Tune | None = Field(
        default=None,
        exclude_if=lambda tune: tune is None,
        description="Settings of methods for tables among which the mechanism chooses, within the guarantee.",
    )
    time_limit: TimeLimit | None = Field(
        default=None,
        description=(
            "Approximate time for measuring, fitting and drawing (`90s`, `2m`, `1h`) with the expected number of "
            "units: the plan takes a smaller model, and the last fit ends on time. It does not depend on the data."
        ),
    )

    _why: str | None = PrivateAttr(default=None)

    @property
    def seconds(self) -> float | None:
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        return None if self.time_limit is None else int(self.time_limit[:-1]) * units[self.time_limit[-1]]

    @model_validator(mode="before")
    @classmethod
    def _finetuned(cls, document: Any) -> Any:
        """Fills in the defaults of methods for texts, pictures and networks, so that the sealed contract holds them."""
        document = _with_model_of_candidates(with_settings(document))
        if isinstance(document, dict) and document.get("method") in IMAGE_METHODS:
            return document | {"image": _with_part(document["method"], document.get("image"))}
        if isinstance(document, dict) and document.get("method") in NETWORK_METHODS:
            return document | {"network": _with_defaults(document["method"], document.get("network"))}
        if isinstance(document, dict) and document.get("method") in LANGUAGE_METHODS:
            language = _with_defaults(document["method"], document.get("language"))
            if isinstance(language, dict):
                language = with_public_rows(language, document.get("public"))
            return document | {"language": language, "base_model": document.get("base_model") or DEFAULT_BASE_MODEL}
        if not isinstance(document, dict) or document.get("method") not in TEXT_METHODS:
            return document
        method = document["method"]
        defaults: dict[str, Any] = {"base_model": DEFAULT_BASE_MODEL, "text": {}}
        if method in TRAINED_METHODS:
            defaults["training"] = {}
        elif _part_of_evolution(document, "endpoint") is not None or _only_retrieves(document):
            del defaults["base_model"]
        filled = document | {key: value for key, value in defaults.items() if document.get(key) is None}
        text = filled["text"]
        part = next((name for name, methods in PARTS_OF_TEXT.items() if method in methods), None)
        if part is not None and isinstance(text, dict) and text.get(part) is None:
            filled["text"] = text | {part: {}}
        return filled

    @property
    def answers(self) -> bool:
        """Whether queries are answered, and no rows are made."""
        return self.method == ANSWERS

    @property
    def method_unresolved(self) -> bool:
        """Whether `auto` has yet to choose the method of a text or of pictures."""
        return self.method == "auto" and (self.text is not None or self.image is not None)

    @property
    def checkpoint(self) -> str | None:
        """The declared checkpoint that training starts from, by name or path; clearance checks its lineage."""
        finetune = None if self.image is None else self.image.finetune
        return self.base_model if finetune is None else finetune.checkpoint

    @property
    def why(self) -> str | None:
        """Why `auto` chose this method. Not part of the contract, nor of a snapshot."""
        return self._why

    @model_validator(mode="after")
    def _of_the_method(self) -> Generate:
        refuse([*self._parts_of_other_methods(), *self._drawing_faults(), *self._tuning_faults()])
        return self

    @property
    def settings(self) -> tuple[tuple[str, Generate], ...]:
        """What a mechanism may run, each with its path in `generate`: the candidates, or the only setting there is."""
        if self.tune is None:
            return (("", self),)
        return tuple(
            (f"tune.candidates.{number}.", self._with(candidate))
            for number, candidate in enumerate(self.tune.candidates)
        )

    def _with(self, candidate: Candidate) -> Generate:
        settings = {
            "method": candidate.method,
            "network": candidate.network,
            "language": candidate.language,
            "base_model": self.base_model if candidate.method in LANGUAGE_METHODS else None,
            "public": self.public if _learns_public(candidate) else None,
            "workload": candidate.workload or Workload(),
            "tune": None,
        }
        return self.model_copy(update=settings)

    def _tuning_faults(self) -> Iterator[str]:
        """Settings beside `tune` that its runs cannot have."""
        if self.tune is None:
            return
        if self.method not in get_args(TableMethodName) or self.text is not None or self.image is not None:
            yield (
                "tune: is for tables without texts and pictures; accepted: with a method for tables, without text and "
                "image"
            )
        if self.public is not None and not any(map(_learns_public, self.tune.candidates)):
            yield (
                "public: with tune, and no candidate learns its rows; accepted: with a candidate of method dp_2stage, "
                "or one of both"
            )
        if self.time_limit is not None:
            yield "time_limit: with tune, which runs a method several times without it; accepted: one of both"

    def _parts_of_other_methods(self) -> Iterator[str]:
        parts: dict[str, tuple[Part | None, tuple[str, ...]]]
        parts = {"text": (self.text, TEXT_METHODS), "training": (self.training, TRAINED_METHODS)}
        parts |= {f"text.{name}": (getattr(self.text, name, None), methods) for name, methods in PARTS_OF_TEXT.items()}
        parts["image"] = (self.image, IMAGE_METHODS)
        parts["public"] = (None if self.tune else self.public, PUBLIC_ROWS_METHODS)  # see `_tuning_faults`
        parts["network"] = (self.network, NETWORK_METHODS)
        parts["language"] = (self.language, LANGUAGE_METHODS)
        parts |= {
            f"image.{name}": (getattr(self.image, name, None), methods) for name, methods in PARTS_OF_IMAGE.items()
        }
        if self.text is not None and self.image is not None:
            yield (
                "image: beside text; accepted: one of both, so declare the other column with ignore: true; or "
                "text.pictures, by which an endpoint draws pictures from the texts"
            )
        if self.method == "jam" and self.public is None:
            yield "public: missing, and 'jam' takes counts from it; accepted: a public table, or method aim"
        for key, (value, methods) in parts.items():
            if value is not None and self.method not in methods and (not self.method_unresolved or key == "public"):
                yield (
                    f"{key}: is for method {', '.join(methods)}, and the method is {self.method!r}; accepted: such a "
                    "method, or leave it out"
                )

    def _drawing_faults(self) -> Iterator[str]:
        """Settings of drawing that the method of a text does not have, and contradictory numbers of rows."""
        if self.text is None or not (self.method_unresolved or self.method in TEXT_METHODS):
            return
        drawn_by_mechanism = not (self.method_unresolved or self.method in TRAINED_METHODS)
        defaults = TextGeneration()
        for name in DRAWN_BY if drawn_by_mechanism else ():
            if getattr(self.text, name) != getattr(defaults, name):
                yield (
                    f"text.{name}: with method {self.method!r}, whose mechanism draws the texts; leave it out, or use "
                    f"{', '.join(TRAINED_METHODS)}"
                )
        counted = self.text.rows_counted
        if counted is not None and (self.rows not in ("auto", counted) or not 1 <= counted <= MOST_ROWS):
            yield (
                f"rows: {self.rows}, but text.counts adds up to {counted}; accepted: rows: auto, with counts of 1 to "
                f"{MOST_ROWS} rows in total"
            )
        if self.time_limit is not None:
            yield f"time_limit: {self.method!r} plans by steps, tokens or rounds; accepted: none"
        evolution = self.text.evolution
        if evolution is not None and RETRIEVE in evolution.ways and self.public is None:
            yield f"public: missing, and text.evolution.ways has {RETRIEVE!r}; accepted: a public table of texts"
        if self.asks_no_model and (self.base_model or self.endpoint):
            yield (
                f"base_model or text.evolution.endpoint: with text.evolution.ways: [{RETRIEVE}], which asks no model; "
                "accepted: neither, or another way"
            )
        elif self.endpoint is not None and self.base_model is None:
            yield "base_model: with text.evolution.endpoint; accepted: the name by which the endpoint knows its model"

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint whose model writes texts or makes pictures, if one is declared."""
        part = self.text or self.image
        return None if part is None or part.evolution is None else part.evolution.endpoint

    @property
    def asks_no_model(self) -> bool:
        """Whether texts are chosen from a public table alone."""
        evolution = None if self.text is None else self.text.evolution
        return evolution is not None and evolution.ways == [RETRIEVE]

    @property
    def drawn(self) -> DrawnPictures | None:
        """How pictures are drawn from written texts, if they are."""
        return None if self.text is None else self.text.pictures

    @field_validator("rows", mode="before")
    @classmethod
    def _number_of_rows(cls, rows: Any) -> Any:
        whole = isinstance(rows, int) and not isinstance(rows, bool)
        if rows != "auto" and not (whole and 1 <= rows <= MOST_ROWS):
            raise ValueError(f"{rows!r}; accepted: auto, or a number from 1 to {MOST_ROWS}")
        return rows


def _learns_public(candidate: Candidate) -> bool:
    """Whether a candidate's first stage learns the rows of `generate.public`."""
    first = None if candidate.language is None else candidate.language.first
    return first is not None and first.rows == "public"


def _with_model_of_candidates(document: Any) -> Any:
    """An unvalidated `generate` part with the base model of candidates that train one."""
    tune = document.get("tune") if isinstance(document, dict) else None
    candidates = tune.get("candidates") if isinstance(tune, dict) else None
    if not isinstance(candidates, list) or document.get("base_model") is not None:
        return document
    trained = any(isinstance(each, dict) and each.get("method") in LANGUAGE_METHODS for each in candidates)
    return document | {"base_model": DEFAULT_BASE_MODEL} if trained else document


def _with_part(method: str, image: Any) -> Any:
    """The unvalidated `image` part with the part of a method for pictures, by default an empty one."""
    image = {} if image is None else image
    part = next((name for name, methods in PARTS_OF_IMAGE.items() if method in methods), None)
    if part is None or not isinstance(image, dict) or image.get(part) is not None:
        return image
    return image | {part: {}}


def _with_defaults(method: str, network: Any) -> Any:
    """The unvalidated `network` or `language` part with the defaults of a method."""
    network = {} if network is None else network
    return NETWORK_DEFAULTS[method] | network if isinstance(network, dict) else network


def _part_of_evolution(document: Mapping[str, Any], name: str) -> Any:
    """A key of the evolution of texts in an unvalidated `generate` part; None without it."""
    part: Any = document
    for key in ("text", "evolution", name):
        part = part.get(key) if isinstance(part, dict) else None
    return part


def _only_retrieves(document: Mapping[str, Any]) -> bool:
    """Whether an unvalidated `generate` part asks no model for texts."""
    return bool(_part_of_evolution(document, "ways") == [RETRIEVE])


def with_generate(document: Any) -> Any:
    """A contract's document with the only `generate` that `kind: answers` has, where it declares none."""
    if isinstance(document, dict) and document.get("kind") == "answers" and document.get("generate") is None:
        return document | {"generate": {"method": ANSWERS}}
    return document
