"""The contract's `generate.text` and `generate.training`: writing texts by a language model, and its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from dpsynth_platform.contracts.base import MOST_ROWS, ColumnName, Part
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.foundation.settings import is_plain, without_secrets
from dpsynth_platform.foundation.yaml_files import text_of

KEYWORDS_COLUMN = "keywords"
"""How a prompt names a text's topic."""
UNIVERSAL_TOPICS = "universal"
"""The topic model that comes with the platform."""
TOPIC_LEVELS = (16, 32, 64, 128, 256, 512)
"""Numbers of topics of a topic model: the fewer, the broader."""
DEFAULT_BATCH_SHARE, MOST_DEFAULT_BATCH = 8, 2048
"""By default a batch holds an eighth of all units in expectation, and at most 2048: few large batches learn more than
many small ones."""
MOST_BATCH = 1_000_000
"""Largest number of owners in one context of DP inference."""
CLUSTERS, VOTE_NOISE = 100, 10.0
"""Clusters of texts that records vote for, and the noise of their votes, by default."""
MOST_POPULATION = 100_000
"""Most texts that are kept after a vote of private evolution."""
RETRIEVE = "retrieve"
"""The way of varying a text that takes a near one from a public table."""


class Adapter(Part):
    """Low-rank adapters on all linear layers (LoRA, Hu et al. 2021): few parameters are trained, so little noise."""

    rank: int = Field(default=16, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=10_000)


class Training(Part):
    """How a language model is fine-tuned. All of it is public.

    Defaults follow the guide (section 7.3: large batches; section 5.2: an adapter) and the tutorial that it rests on
    (Ponomareva et al. 2023, "How to DP-fy ML"): a clipping norm that clips nearly all gradients, many passes rather
    than little noise.
    """

    sampled: Literal["records", "owners"] = Field(
        default="records",
        description=(
            "What a step samples and clips: records (DP-SGD-ELS, with b records an owner), or owners, whose records' "
            "mean gradient is clipped once (DP-SGD-ULS)."
        ),
    )
    expected_records: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description=(
            "Public estimate of the number of records after bounding, never a count; by default expected_units times "
            "max_contributions, or expected_units where records have several owners."
        ),
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Expected number of records (or owners) in a step's sample; by default an eighth, 2048 at most.",
    )
    steps: int = Field(default=100, ge=1, le=50_000)
    replay_steps: int | None = Field(
        default=None,
        ge=0,
        le=50_000,
        description="Steps paid for beyond `steps`, for repetitions by a resumed run; a tenth by default.",
    )
    clipping: Literal["flat", "automatic"] = "automatic"
    clipping_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    warmup_steps: int = Field(default=0, ge=0, le=50_000)
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adapter: Adapter | Literal["none"] = Field(default_factory=Adapter, description="`none` trains all parameters.")

    @property
    def allowance(self) -> int:
        """Number of `replay_steps`."""
        return math.ceil(self.steps / 10) if self.replay_steps is None else self.replay_steps


class Topics(Part):
    """The public topics by which texts are sorted. Their noisy counts cost budget; a topic's keywords are public."""

    model: str = Field(
        default=UNIVERSAL_TOPICS,
        min_length=1,
        max_length=500,
        description=(
            "`universal`, or the path of a model that `dpsynth synth topics` made from public phrases or documents."
        ),
    )
    public: str | None = Field(
        default=None, min_length=10, description="Why your own topic model is independent of the data."
    )
    count: Literal["auto", 16, 32, 64, 128, 256, 512] = Field(
        default="auto",
        description=(
            "How many topics; `auto`: as many as keep the average count at three times its noise, and with "
            "`dp_inference` as there are contexts."
        ),
    )
    noise: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description=(
            "Noise of the counts of topics and modelled columns, as a multiple of their sensitivity; training or "
            "tokens have the rest of the budget."
        ),
    )

    @model_validator(mode="after")
    def _declared_public(self) -> Topics:
        if self.model != UNIVERSAL_TOPICS and self.public is None:
            raise ValueError(
                f"model: {self.model!r} without `public`; accepted: with the reason why it is independent of the data"
            )
        return self


class Inference(Part):
    """How texts are drawn with privacy from a model that is not trained: contexts and clipping."""

    about: str | None = Field(
        default=None,
        max_length=500,
        description=(
            "What the texts are, in public words that begin each prompt; by default the description, and with an empty "
            "text no words."
        ),
    )
    batch_size: int = Field(
        default=100,
        ge=1,
        le=MOST_BATCH,
        description=(
            "Expected number of owners in a context. The larger it is, the less a token costs, the fewer contexts "
            "there are, and the longer a token takes."
        ),
    )
    records_per_owner: int = Field(
        default=1,
        ge=1,
        le=1000,
        description=(
            "Records of an owner that a context reads at most; of more, a fresh key chooses. What the model says by "
            "them is averaged and clipped as one, so that more cost time and no privacy."
        ),
    )
    in_series: bool = Field(
        default=False,
        exclude_if=lambda in_series: not in_series,
        description=(
            "Whether an owner's records are in one prompt, one after the other, instead of each in a prompt of its "
            "own. Costs no privacy, and less time."
        ),
    )
    document_tokens: int = Field(
        default=64, ge=4, le=4096, description="Longest text; each of its tokens costs budget."
    )
    clip: Literal["difference", "logits"] = Field(
        default="difference",
        description=(
            "What is clipped of an owner: the `difference` of the model's log-probabilities with and without the "
            "records (InvisibleInk), or the `logits` themselves (Amin et al. 2024), with norms about ten times as "
            "large."
        ),
    )
    clipping_norm: float = Field(default=1.0, ge=0.01, le=1000, description="Bound of each component of an owner.")
    temperature: float = Field(default=1.0, ge=0.1, le=5, description="The higher, the less a token costs.")
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description=(
            "Tokens are drawn from this many that are likeliest without any record, and those within twice the "
            "clipping norm of them. Costs nothing; for clip `difference`."
        ),
    )

    @model_validator(mode="after")
    def _several_in_series(self) -> Inference:
        if self.in_series and self.records_per_owner == 1:
            raise ValueError("in_series: true with records_per_owner 1; accepted: with 2 or more, or leave it out")
        return self

    @model_validator(mode="after")
    def _near_public(self) -> Inference:
        if self.top_k is not None and self.clip != "difference":
            raise ValueError(f"top_k: {self.top_k} with clip {self.clip!r}; accepted: none, or clip difference")
        return self


class Endpoint(Part):
    """A remote language model that writes texts. Requests hold public words and texts that it wrote before."""

    url: str = Field(
        max_length=500,
        description="Address of an OpenAI-compatible endpoint, without `/chat/completions`; https, or http on this "
        "machine.",
    )
    timeout: float = Field(default=60.0, gt=0, le=600, description="Most seconds for an answer.")
    attempts: int = Field(default=4, ge=1, le=20, description="Most attempts of a request.")
    at_once: int = Field(default=8, ge=1, le=64, description="Most concurrent requests.")

    @field_validator("url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        if not is_plain(url):
            raise ValueError(
                f"{without_secrets(url)}; accepted: https://HOST[:PORT]/PATH such as https://models.example.org/v1 "
                "(http for this machine only), without user, query or fragment"
            )
        return url


def published_name(model: str) -> str:
    """A model's name as releases show it: of a path, which names directories of a machine, the last part alone."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) else model


class CaptionEndpoint(Endpoint):
    """A remote public model that draws pictures. Requests hold written texts and public words, no picture."""

    url: str = Field(
        max_length=500,
        description="Address that answers POST requests for `/images/random`; https, or http on this machine.",
    )
    model: str = Field(
        min_length=1, max_length=200, description="Its name there, by which clearance looks for its origin."
    )


class DrawnPictures(Part):
    """Pictures that a public model draws from the written texts (captions), after the mechanism.

    No mechanism reads the real pictures: captions are paid for as any text, and drawing them is post-processing.
    """

    column: ColumnName | None = Field(default=None, description="The image column; by default the only one.")
    endpoint: CaptionEndpoint = Field(description="The remote public model that draws them.")
    style: str | None = Field(
        default=None, min_length=1, max_length=500, description="Public words before the caption in each request."
    )
    most_missing: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Share of rows that are left out if the endpoint draws no picture of their caption; of more, the "
        "step stops, keeps what is drawn, and continues in the next run.",
    )


class Evolution(Part):
    """Private evolution (Aug-PE): the writer of candidates, its public words, and the votes of private records."""

    about: str | None = Field(
        default=None,
        min_length=3,
        max_length=2000,
        description="What the texts are, in public words for each prompt; by default the description.",
    )
    hints: list[Annotated[str, StringConstraints(min_length=1, max_length=500)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Public subjects, styles or openings; the prompt of each new text has a random one.",
    )
    population: int | Literal["auto"] = Field(
        default="auto",
        json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
        description=(
            "Texts that are kept after a vote; `auto`: as many as keep the average candidate's votes at three times "
            "their noise."
        ),
    )
    variations: int = Field(default=3, ge=1, le=50, description="New variations of each kept text, per round.")
    rounds: int = Field(
        default=5, ge=1, le=100, description="Number of votes; the budget pays for all of them together."
    )
    lookahead: int = Field(
        default=0, ge=0, le=50, description="Variations whose mean features represent a text in a vote; 0: its own."
    )
    ways: list[Literal["rephrase", "fill-in", "retrieve"]] = Field(
        default=["rephrase", "fill-in"],
        min_length=1,
        description="How texts are varied. `retrieve`: by the nearest unused text of `generate.public`; alone, it asks "
        "no model.",
    )
    blanks: float = Field(default=0.5, gt=0, lt=1, description="Share of the words that `fill-in` replaces.")
    threshold: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Votes up to this multiple of the noise count as none.",
    )
    nearest: int = Field(
        default=1,
        ge=1,
        le=100,
        exclude_if=lambda nearest: nearest == 1,
        description="Texts that a record votes for: as many of the nearest ones, which share its vote.",
    )
    endpoint: Endpoint | None = Field(
        default=None,
        description="A remote model that writes the texts instead of a local one; base_model is its name there.",
    )

    @field_validator("population", mode="before")
    @classmethod
    def _size(cls, population: Any) -> Any:
        whole = isinstance(population, int) and not isinstance(population, bool)
        if population != "auto" and not (whole and 1 <= population <= MOST_POPULATION):
            raise ValueError(f"{population!r}; accepted: auto, or a number from 1 to {MOST_POPULATION}")
        return population

    @field_validator("ways")
    @classmethod
    def _distinct(cls, ways: list[str]) -> list[str]:
        if len(set(ways)) < len(ways):
            raise ValueError(f"{', '.join(ways)}: contains duplicates; accepted: distinct ways")
        return ways


class Resample(Part):
    """Choosing among more texts than requested, by private votes or by a private classifier, at an extra cost."""

    by: Literal["clusters", "labels"] = Field(
        default="clusters",
        exclude_if=lambda by: by == "clusters",
        description=(
            "What records say: which `clusters` of texts they are near to; or, for the `labels` of a conditioning "
            "column, the sums of their sentence features, by which each text gets the label that suits it best."
        ),
    )
    column: ColumnName | None = Field(
        default=None,
        exclude_if=lambda column: column is None,
        description="The conditioning column of `by: labels`; by default the only one.",
    )
    clusters: int | None = Field(
        default=None,
        exclude_if=lambda clusters: clusters is None,
        ge=2,
        le=10_000,
        description=(
            f"Number of clusters, {CLUSTERS} by default, of ten texts each that the same model writes; with "
            "`dp_inference`, of all documents, at most as many as there are distinct ones."
        ),
    )
    noise: Annotated[float, Field(gt=0, le=1e6)] | Literal["auto"] = Field(
        default="auto",
        description=(
            "Noise of each cluster's votes, or of each entry of the sums, as a multiple of their sensitivity; "
            "training, tokens or the other votes have the rest of the budget. `auto`, the default of labels: a tenth "
            f"of the budget. Clusters have {VOTE_NOISE:g} by default."
        ),
    )
    pool: float = Field(
        default=3.0,
        ge=1,
        le=100,
        description="Texts written for each one taken; with `dp_inference`, each of them costs budget.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_clusters(cls, part: Any) -> Any:
        """A number of clusters, and its own noise, where there are some: they decide what the mechanism does."""
        if not isinstance(part, dict) or part.get("by", "clusters") != "clusters":
            return part
        declared = {key: value for key, value in part.items() if value is not None}
        return {"clusters": CLUSTERS, "noise": VOTE_NOISE} | declared

    @model_validator(mode="after")
    def _of_one_kind(self) -> Resample:
        if self.by == "labels" and self.clusters is not None:
            raise ValueError(f"clusters: {self.clusters} with by 'labels'; accepted: none, or by clusters")
        if self.by == "clusters" and self.column is not None:
            raise ValueError(f"column: {self.column!r} with by 'clusters'; accepted: none, or by labels")
        return self


class KeptTexts(Part):
    """Which drawn texts are kept; the others are redrawn. Looks at synthetic texts only."""

    least_characters: int = Field(default=1, ge=1, le=100_000, description="Shortest text, without surrounding blanks.")
    words: int = Field(default=4, ge=1, le=100, description="Length of the n-grams of most_repeated.")
    most_repeated: float = Field(
        default=0.5, ge=0, le=1, description="Share of a text's n-grams that may repeat an earlier one of the text."
    )
    duplicates: Literal["kept", "exact", "words"] = Field(
        default="words",
        description="Drops texts that equal an earlier one by `words` or exactly (`exact`), or none (`kept`).",
    )
    whole: bool = Field(default=False, description="Whether to drop texts that were cut off.")


class TextGeneration(Part):
    """The column that the language model writes, its conditioning columns, and how texts are drawn."""

    column: ColumnName | None = Field(
        default=None, description="The text column; by default the only one that is not dropped."
    )
    given: list[ColumnName] | None = Field(
        default=None,
        description=(
            "Columns that condition the text: modelled ones with a list of values, or few whole numbers. By default "
            "all of these. Records with other values are not learned from."
        ),
    )
    max_tokens: int = Field(default=128, ge=8, le=8192, description="Longest example with its prefix, in tokens.")
    chunks: int = Field(
        default=1,
        ge=1,
        le=64,
        description=(
            "Most examples that a long record is split into; the rest is cut off. Examples of one record are sampled "
            "and clipped together, as one record."
        ),
    )
    columns_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Part of epsilon for the modelled columns; the text has the rest, or all where no column is modelled. "
            "With `topics`, topics.noise decides instead."
        ),
    )
    topics: Topics | None = Field(
        default=None, description="For `ctcl`, and for contexts of one topic with `dp_inference`."
    )
    inference: Inference | None = Field(default=None, description="For `dp_inference`.")
    evolution: Evolution | None = Field(default=None, description="For `aug_pe`.")
    resample: Resample | None = Field(
        default=None, description="Choose texts among more, by votes for clusters or by labels; by default not."
    )
    pictures: DrawnPictures | None = Field(
        default=None,
        exclude_if=lambda part: part is None,
        description="Pictures that a remote public model draws from the texts, for the image column.",
    )
    temperature: float = Field(default=1.0, gt=0, le=5)
    top_k: int | None = Field(default=None, ge=1, le=1_000_000)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_tokens: int = Field(default=1, ge=0, le=8192, description="Shortest drawn text, in tokens.")
    most_tokens: int | None = Field(
        default=None, ge=1, le=8192, description="Longest drawn text, in tokens; by default max_tokens."
    )
    keep: KeptTexts = Field(default_factory=KeptTexts, description="Which drawn texts are kept.")
    counts: dict[ColumnName, dict[str, Annotated[int, Field(ge=0, le=MOST_ROWS)]]] | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description=(
            "Public numbers of rows for the values of one conditioning column; other values get none. By default the "
            "noisy counts decide."
        ),
    )

    @field_validator("counts", mode="before")
    @classmethod
    def _as_texts(cls, counts: Any) -> Any:
        """Values in the spelling of prompts: YAML reads numbers, true and false."""
        if not isinstance(counts, dict):
            return counts
        return {
            column: {_text(value): number for value, number in rows.items()} if isinstance(rows, dict) else rows
            for column, rows in counts.items()
        }

    @model_validator(mode="after")
    def _lengths(self) -> TextGeneration:
        longest = self.max_tokens if self.most_tokens is None else min(self.most_tokens, self.max_tokens)
        if self.min_tokens > longest:
            raise ValueError(
                f"min_tokens: {self.min_tokens} with texts of up to {longest} tokens; accepted: at most as many"
            )
        return self

    @property
    def rows_counted(self) -> int | None:
        """The sum of `counts`; None without them."""
        return None if self.counts is None else sum(sum(rows.values()) for rows in self.counts.values())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else text_of(value)


def training_units(privacy: Privacy, training: Training) -> int:
    """The public expected number of the units that training samples: owners, or records."""
    if training.sampled == "owners" or privacy.unit == "example":
        return privacy.expected_units
    most = privacy.expected_units * (1 if privacy.multi_owner else privacy.max_contributions)
    return training.expected_records or most


def batch_size(training: Training, sampled: int) -> int:
    """Expected number of sampled units in a step: as declared, or the default."""
    return training.batch_size or min(MOST_DEFAULT_BATCH, max(1, sampled // DEFAULT_BATCH_SHARE))


def text_column_of(text: TextGeneration, columns: Mapping[str, Any]) -> str | None:
    """The named text column, else the only one that is not dropped, else None."""
    kept = [name for name, column in columns.items() if column and column.type == "text" and column.pii != "drop"]
    return text.column or (kept[0] if len(kept) == 1 else None)
