"""The contract's `generate.text` and `generate.training`: the text that a language model writes, and its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from dpsynth_platform.contracts.base import MOST_ROWS, ColumnName, Part
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.foundation.settings import is_plain, without_secrets
from dpsynth_platform.foundation.yaml_files import text_of

KEYWORDS_COLUMN = "keywords"
"""The name of the column with a text's topic, as a prompt has it."""
UNIVERSAL_TOPICS = "universal"
"""The topic model that comes with the platform."""
TOPIC_LEVELS = (16, 32, 64, 128, 256, 512)
"""Numbers of topics of a topic model: the fewer, the broader."""
DEFAULT_BATCH_SHARE, MOST_DEFAULT_BATCH = 8, 2048
"""By default a batch is expected to hold this fraction of all, and no more than so many: few large batches learn more
than many small ones."""
MOST_BATCH = 1_000_000
"""Owners of one context of DP inference."""
MOST_POPULATION = 100_000
"""Texts that may live on after a vote of private evolution."""


class Adapter(Part):
    """Low-rank adapters on all linear layers (LoRA, Hu et al. 2021): few parameters are trained, so little noise."""

    rank: int = Field(default=16, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=10_000)


class Training(Part):
    """How a language model is fine-tuned: whatever decides samples, clipping, noise and steps. All of it is public.

    Defaults follow the guide (section 7.3: large batches; section 5.2: an adapter) and the tutorial that it rests on
    (Ponomareva et al. 2023, "How to DP-fy ML"): a clipping norm that clips nearly all gradients, many passes rather
    than little noise.
    """

    sampled: Literal["records", "owners"] = Field(
        default="records",
        description=(
            "What a step draws by coin, and clips: records (DP-SGD-ELS, with b records an owner), or owners, whose "
            "records' mean gradient is clipped as one (DP-SGD-ULS)."
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
        description="Steps that are paid for beyond `steps`, for those that a resumed run repeats; a tenth by default.",
    )
    clipping: Literal["flat", "automatic"] = "automatic"
    clipping_norm: float = Field(default=1.0, gt=0, le=1e6)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    warmup_steps: int = Field(default=0, ge=0, le=50_000)
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adapter: Adapter | Literal["none"] = Field(default_factory=Adapter, description="`none` trains all parameters.")

    @property
    def allowance(self) -> int:
        """Steps that are paid for beyond the planned ones."""
        return math.ceil(self.steps / 10) if self.replay_steps is None else self.replay_steps


class Topics(Part):
    """The public topics that texts are sorted by. Their noisy counts are paid for; a topic's keywords are public."""

    model: str = Field(
        default=UNIVERSAL_TOPICS,
        min_length=1,
        max_length=500,
        description="`universal`, or the path of a model that `dpsynth synth topics` has made of public phrases.",
    )
    public: str | None = Field(
        default=None, min_length=10, description="Why a topic model of your own knows nothing of the data."
    )
    count: Literal["auto", 16, 32, 64, 128, 256, 512] = Field(
        default="auto",
        description="How many topics; `auto`: as many as hold, on average, three times the noise of their counts.",
    )
    noise: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description=(
            "Noise of the counts of topics and of the modelled columns together, as a multiple of what one unit can "
            "change; the training has the rest of the budget."
        ),
    )

    @model_validator(mode="after")
    def _declared_public(self) -> Topics:
        if self.model != UNIVERSAL_TOPICS and self.public is None:
            raise ValueError(
                f"model: {self.model!r} without `public`; accepted: with the reason why it knows nothing of the data"
            )
        return self


class Inference(Part):
    """How texts are drawn with privacy from a model that is not trained: what a context holds, and what is clipped."""

    about: str | None = Field(
        default=None,
        min_length=3,
        max_length=500,
        description="What the texts are, in public words that head every prompt; by default the description.",
    )
    batch_size: int = Field(
        default=100,
        ge=1,
        le=MOST_BATCH,
        description=(
            "Owners that a context is expected to hold, by which what they say is divided. The larger, the less a "
            "token costs, the fewer contexts there are, and the longer a token takes."
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
    document_tokens: int = Field(
        default=64, ge=4, le=4096, description="Longest text that is written; each of its tokens is paid for."
    )
    clip: Literal["difference", "logits"] = Field(
        default="difference",
        description=(
            "What is clipped of an owner: the `difference` that the records make to the model's log-probabilities "
            "without any (InvisibleInk), or the `logits` themselves (Amin et al. 2024), for norms about ten times as "
            "large."
        ),
    )
    clipping_norm: float = Field(default=1.0, ge=0.01, le=1000, description="Of each number of an owner's.")
    temperature: float = Field(default=1.0, ge=0.1, le=5, description="The higher, the less a token costs.")
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description=(
            "Tokens are drawn from so many that are likeliest without any record, and those within twice the "
            "clipping norm of them. Costs nothing; with clip `difference`."
        ),
    )

    @model_validator(mode="after")
    def _near_public(self) -> Inference:
        if self.top_k is not None and self.clip != "difference":
            raise ValueError(f"top_k: {self.top_k} with clip {self.clip!r}; accepted: none, or clip difference")
        return self


class Endpoint(Part):
    """A language model elsewhere that writes texts. Its requests hold public words, and texts that it wrote before."""

    url: str = Field(
        max_length=500,
        description="Where an OpenAI-compatible endpoint is, up to where `/chat/completions` follows; https.",
    )
    timeout: float = Field(default=60.0, gt=0, le=600, description="Seconds that an answer may take.")
    attempts: int = Field(default=4, ge=1, le=20, description="How often a request that fails is sent at most.")
    at_once: int = Field(default=8, ge=1, le=64, description="Requests that are under way together.")

    @field_validator("url")
    @classmethod
    def _unheard(cls, url: str) -> str:
        if not is_plain(url):
            raise ValueError(
                f"{without_secrets(url)}; accepted: https://HOST[:PORT]/PATH such as https://models.example.org/v1 "
                "(http for this machine alone), with no user, query or other marks"
            )
        return url


class Evolution(Part):
    """Private evolution (Aug-PE): who writes candidates by which public words, and how often records vote for them."""

    about: str | None = Field(
        default=None,
        min_length=3,
        max_length=2000,
        description="What the texts are, in public words that stand in every prompt; by default the description.",
    )
    hints: list[Annotated[str, StringConstraints(min_length=1, max_length=500)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Public subjects, styles or openings, of which each new text's prompt has one, drawn at random.",
    )
    population: int | Literal["auto"] = Field(
        default="auto",
        json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
        description=(
            "Texts that live on after a vote; `auto`: as many as leave each candidate, on average, three times the "
            "noise of its votes."
        ),
    )
    variations: int = Field(default=3, ge=1, le=50, description="New variations of each, in every round.")
    rounds: int = Field(default=5, ge=1, le=100, description="How often there is a vote; all are paid for together.")
    lookahead: int = Field(
        default=0, ge=0, le=50, description="Variations whose mean features stand for a text in a vote; 0: its own do."
    )
    ways: list[Literal["rephrase", "fill-in"]] = Field(
        default=["rephrase", "fill-in"], min_length=1, description="How texts are varied."
    )
    blanks: float = Field(default=0.5, gt=0, lt=1, description="Share of the words that `fill-in` leaves out.")
    threshold: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Votes that noise alone may reach, as a multiple of it: they weigh nothing.",
    )
    endpoint: Endpoint | None = Field(
        default=None,
        description="Who writes the texts in place of a model on this machine; base_model is its model's name there.",
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
            raise ValueError(f"{', '.join(ways)}; accepted: each once")
        return ways


class Resample(Part):
    """Choosing among more texts than are asked for, by private votes for clusters of them: paid for beside the rest."""

    clusters: int = Field(
        default=100,
        ge=2,
        le=10_000,
        description=(
            "Of texts by the same writer, ten for each; with `dp_inference`, of all documents, and no more than there "
            "are different ones."
        ),
    )
    noise: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description=(
            "Noise of each cluster's votes, as a multiple of what one unit can change; training, tokens or the other "
            "votes have the rest of the budget."
        ),
    )
    pool: float = Field(
        default=3.0,
        ge=1,
        le=100,
        description="Texts that are written for each one that is taken; with `dp_inference`, each of them is paid for.",
    )


class KeptTexts(Part):
    """Which drawn texts are kept; others are drawn in place of those that are not. Looks at synthetic texts only."""

    least_characters: int = Field(default=1, ge=1, le=100_000, description="Of a text, without blanks at its ends.")
    words: int = Field(default=4, ge=1, le=100, description="Of an n-gram, for most_repeated.")
    most_repeated: float = Field(
        default=0.5, ge=0, le=1, description="Share of a text's n-grams that may repeat an earlier one of the text."
    )
    duplicates: Literal["kept", "exact", "words"] = Field(
        default="words",
        description="Texts that equal an earlier one by their words, or letter by letter, are left out; or all stay.",
    )
    whole: bool = Field(default=False, description="Whether a text must have ended by itself, before it was cut off.")


class TextGeneration(Part):
    """Which column the language model writes, which columns condition it, and how texts are drawn."""

    column: ColumnName | None = Field(
        default=None, description="The text column; need not be named where one alone is not dropped."
    )
    given: list[ColumnName] | None = Field(
        default=None,
        description=(
            "Columns that condition the text: modelled ones with a list of values, or few whole "
            "numbers. By default all of these; a record with another value is not learned from."
        ),
    )
    max_tokens: int = Field(default=128, ge=8, le=8192, description="Longest example, prefix included; in tokens.")
    chunks: int = Field(
        default=1,
        ge=1,
        le=64,
        description=(
            "Examples that a longer record becomes; the rest is cut off. Those of one record are sampled and clipped "
            "together, so that it stays one record."
        ),
    )
    columns_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Part of epsilon for the modelled columns; the rest is for the text, and all of it where no column is "
            "modelled. `ctcl` goes by topics.noise."
        ),
    )
    topics: Topics | None = Field(default=None, description="Of `ctcl`.")
    inference: Inference | None = Field(default=None, description="Of `dp_inference`.")
    evolution: Evolution | None = Field(default=None, description="Of `aug_pe`.")
    resample: Resample | None = Field(
        default=None, description="Texts are chosen among more by votes for clusters; by default they are not."
    )
    temperature: float = Field(default=1.0, gt=0, le=5)
    top_k: int | None = Field(default=None, ge=1, le=1_000_000)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_tokens: int = Field(default=1, ge=0, le=8192, description="Of a drawn text; before, none ends.")
    most_tokens: int | None = Field(
        default=None, ge=1, le=8192, description="Of a drawn text, which is cut off there; by default at max_tokens."
    )
    keep: KeptTexts = Field(default_factory=KeptTexts, description="Which drawn texts are kept.")
    counts: dict[ColumnName, dict[str, Annotated[int, Field(ge=0, le=MOST_ROWS)]]] | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description=(
            "How many rows each value of one conditioning column gets; other values get none. Public "
            "numbers. By default as many as the noisy counts say."
        ),
    )

    @field_validator("counts", mode="before")
    @classmethod
    def _as_told(cls, counts: Any) -> Any:
        """Values as prompts have them: YAML reads numbers, true and false."""
        if not isinstance(counts, dict):
            return counts
        return {
            column: {_told(value): number for value, number in rows.items()} if isinstance(rows, dict) else rows
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
        """How many rows `counts` makes; None where there are none."""
        return None if self.counts is None else sum(sum(rows.values()) for rows in self.counts.values())


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else text_of(value)


def training_units(privacy: Privacy, training: Training) -> int:
    """The public, expected number of what training samples: owners, or records."""
    if training.sampled == "owners" or privacy.unit == "example":
        return privacy.expected_units
    most = privacy.expected_units * (1 if privacy.multi_owner else privacy.max_contributions)
    return training.expected_records or most


def batch_size(training: Training, sampled: int) -> int:
    """How many of those that training samples are expected in a step: as declared, or the default."""
    return training.batch_size or min(MOST_DEFAULT_BATCH, max(1, sampled // DEFAULT_BATCH_SHARE))


def text_column_of(text: TextGeneration, columns: Mapping[str, Any]) -> str | None:
    """The named text column, or the only one that is not dropped."""
    kept = [name for name, column in columns.items() if column and column.type == "text" and column.pii != "drop"]
    return text.column or (kept[0] if len(kept) == 1 else None)
