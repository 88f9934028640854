"""The interface of all generators, in three steps, so that an uncalibrated mechanism cannot run.

What belongs here: the class `Generator` with the parts that all methods share, the sealed plan, and the registry of
methods. What does not: any one method.

    plan = generator("mst").plan(contract, schema, guarantee)          # public inputs only
    generator(plan.method).fit(plan, bounded, grant, directory)        # the mechanism, in the worker
    drawing = generator(plan.method).draw(directory, rows)             # post-processing
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import LANGUAGE_METHODS, LINKED, TUNED
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.units import WEIGHTINGS

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.ledger.grants import Grant
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.synth.endpoint_access import Access, Transport
    from dpsynth_platform.synth.tabular.joint import Joint
    from dpsynth_platform.synth.tabular.missing import MissingShare
    from dpsynth_platform.synth.text.terms import TextsDrawn, TextTerms


ERRORS = "expected_error_per_"
"""Start of the names of expected errors in a plan's description."""
DECLARED = "it is declared"
"""The reason for a method that the contract names."""


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made from; all of it is public. See `Generator.plan`."""

    contract: DataContract
    schema: pa.Schema
    guarantee: Guarantee
    period: str | None = None


@dataclass(frozen=True)
class PlanParts:
    """A method's own part of a sealed plan; see `SealedPlan`."""

    columns: list[dict[str, Any]]
    release: dict[str, Any]
    parameters: dict[str, Any]
    event: DpEvent
    time_limit: float | None = None


@dataclass(frozen=True)
class SealedPlan:
    """Everything that decides what a mechanism does, fixed before any record is read. Public; JSON values only.

    The digest covers every field except `why`, so that sampler, noise and accounting cannot differ: the ledger entry
    and the grant name the digest, and the worker runs no other plan.

    Attributes:
        period: such as `2026-01`, for datasets with a cadence.
        mechanism_digest: digest of `DataContract.mechanism_snapshot()`.
        columns: the modelled columns' public domains (`tabular.domain`).
        release: the released table's schema and the treatment of each column (`tabular.restore`).
        parameters: noise scales and other numbers, by name.
        event: the privacy event in JSON form (`privacy.events`).
        guarantee: the guarantee in JSON form (`privacy.guarantee`).
        time_limit: seconds that the plan was made for; the clock may end the last fit after them (`tabular.cost`).
    """

    method: str
    why: str
    dataset: str
    period: str | None
    mechanism_digest: str
    columns: list[dict[str, Any]]
    release: dict[str, Any]
    parameters: dict[str, Any]
    event: dict[str, Any]
    guarantee: dict[str, Any]
    time_limit: float | None = None

    @classmethod
    def of(cls, method: str, inputs: PlanInputs, parts: PlanParts, why: str = DECLARED) -> SealedPlan:
        from dpsynth_platform.privacy.events import event_to_json

        return cls(
            method=method,
            why=why,
            dataset=inputs.contract.dataset,
            period=inputs.period,
            mechanism_digest=canonical_digest(inputs.contract.mechanism_snapshot()),
            columns=parts.columns,
            release=parts.release,
            parameters=parts.parameters,
            event=event_to_json(parts.event),
            guarantee=inputs.guarantee.to_json(),
            time_limit=parts.time_limit,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the plan in canonical JSON without `why`: a reworded reason does not make another run."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}  # plain JSON: no copy is needed
        return canonical_digest({name: part for name, part in parts.items() if name != "why"})

    def to_json(self) -> str:
        """The plan with its digest, as `from_json` reads it."""
        return json.dumps({"plan": asdict(self), "digest": self.digest}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, expected_digest: str | None = None) -> SealedPlan:
        """Reads a plan back.

        Raises:
            GrantRefused: the text is no sealed plan, or the plan does not match its digest or the expected one.
        """
        try:
            document = json.loads(text)
            plan = cls(**document["plan"])
            digest = plan.digest
        except (KeyError, TypeError, ValueError):
            raise GrantRefused("the sealed plan cannot be read; materialize the line from raw again") from None
        if digest != document.get("digest") or expected_digest not in (None, digest):
            raise GrantRefused("the sealed plan was altered after it was sealed; materialize the line from raw again")
        return plan

    def describe(self) -> dict[str, Any]:
        """`Generator.describe` of this plan.

        Where columns are counted and an owner may have several records, it includes the expected errors by either
        weighting: of counts of rows, in rows, and of counts of owners, in owners.
        """
        from dpsynth_platform.privacy.guarantee import Guarantee

        described = generator(self.method).describe(self)
        guarantee = Guarantee.from_json(self.guarantee)
        if guarantee.weighting == "owners":
            described["event"] += "; owners are counted: the rows of each weigh one row together"
        if self.columns and guarantee.max_contributions > 1 and guarantee.adjacency != "fixed-graph":
            described |= {
                "weighting": guarantee.weighting,
                "expected_error_by_weighting": _by_weighting(described, guarantee),
            }
        return described


def _by_weighting(described: Mapping[str, Any], guarantee: Guarantee) -> dict[str, dict[str, float]]:
    """Expected errors of counts by each weighting. At the same cost, noise is proportional to the L2 sensitivity."""
    errors = {key: value for key, value in described.items() if key.startswith(ERRORS)}
    return {
        weighting: {
            key: value * replace(guarantee, weighting=weighting).sensitivity.l2 / guarantee.sensitivity.l2
            for key, value in errors.items()
        }
        for weighting in WEIGHTINGS
    }


@dataclass(frozen=True)
class Drawing:
    """Synthetic rows that are drawn in batches, once, while they are read.

    Attributes:
        batches: drawn one by one; raises `ContractError` where next to no row keeps all constraints.
        texts: counts of the texts that were drawn for the rows, where a trained model writes texts.
        missing: the share of each counted column that was missing or unlisted in the mechanism's input.
        measured: the noisy counts for publication (`tabular.measured`), where columns are counted.
        paid: bought measures of a sample of the same model (`tabular.paid`), where the plan has any.
        kept: index of the setting that the mechanism kept (`tuning`), where it chose.
    """

    schema: pa.Schema
    rows: int
    batches: Iterator[pa.RecordBatch]
    texts: TextsDrawn | None = None
    missing: tuple[MissingShare, ...] = ()
    measured: Mapping[str, Any] | None = None
    paid: Mapping[str, Any] | None = None
    kept: int | None = None

    def table(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches, self.schema)


class Ranks(Protocol):
    """Processes that train one model together with this one (`training.world`)."""

    def meet(self, examples: Path) -> None:
        """Starts them; returns when each has opened the examples and all are connected.

        Args:
            examples: directory of all examples (`text.examples.Examples`). Sensitive.
        """


@dataclass(frozen=True)
class Checkpoints:
    """What a generator with a language model needs in addition to the plan, of which it is no part.

    Attributes:
        base_model: file that describes the base model (`text.base_models.BaseModel`, as JSON); None where an endpoint
            has the model.
        key: 32 bytes that encrypt the training's checkpoints, for this ledger entry only.
        resume: continue from the last checkpoint, within the steps that the plan has paid for.
        ranks: starts processes that train along; None: there are none.
        endpoint: file that says how to reach the endpoint that makes samples (`endpoint_access.Access`), including its
            key; None: no endpoint does.
    """

    base_model: Path | None
    key: bytes = field(repr=False)
    resume: bool = False
    ranks: Ranks | None = None
    endpoint: Path | None = None


@dataclass(frozen=True)
class MechanismRun:
    """One run of a mechanism whose grant is for its plan; see `Generator.fit`."""

    plan: SealedPlan
    bounded: Path
    grant: Grant
    directory: Path
    device: str = "cpu"
    progress: Progress = silent
    engine: Engine | None = None
    checkpoints: Checkpoints | None = None
    training: pa.Table | None = field(default=None, repr=False)
    """The records that it counts and trains on, if these are not all of `bounded` (`tabular.held_out`). Sensitive."""
    held_out: pa.Table | None = field(default=None, repr=False)
    """The others, which the score reads. Sensitive."""

    @property
    def read(self) -> Path | pa.Table:
        """The records that a network counts and trains on."""
        return self.bounded if self.training is None else self.training

    @property
    def language_model(self) -> Checkpoints:
        """`checkpoints`, for methods that need them. Raises `GrantRefused` if the job has none."""
        if self.checkpoints is None:
            raise GrantRefused("the job names no language model; accepted: a base model or an endpoint")
        return self.checkpoints


@dataclass(frozen=True)
class DrawRequest:
    """Which rows to draw, and how; see `Generator.draw`."""

    directory: Path
    rows: int | None = None
    constraints: Sequence[Constraint] = ()
    given: Mapping[str, Values] | None = None
    texts: TextTerms | None = None
    transport: Transport | None = None
    device: str = "cpu"
    progress: Progress = silent


class Generator(ABC):
    """One method of making synthetic rows. Its state is in the plan and in the model directory, never in the object."""

    method: str

    def plan(
        self,
        contract: DataContract,
        schema: pa.Schema,
        guarantee: Guarantee,
        *,
        period: str | None = None,
        why: str = DECLARED,
    ) -> SealedPlan:
        """Calibrates and seals a plan from public inputs.

        Args:
            schema: of the source.
            period: of a dataset with a cadence.
            why: the reason for this method.

        Raises:
            ContractError: the method cannot do what the contract asks for.
            AccountingError: no noise scale meets the guarantee.
        """
        inputs = PlanInputs(contract, schema, guarantee, period)
        return SealedPlan.of(self.method, inputs, self.parts(inputs), why)

    @abstractmethod
    def parts(self, inputs: PlanInputs) -> PlanParts:
        """The method's own part of `plan`, with the same errors."""

    def given(self, plan: SealedPlan, evidence: Collection[str]) -> SealedPlan:
        """The plan, at the same cost, where all rows are drawn given these columns (`synth.relational`)."""
        return plan

    @abstractmethod
    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """Event, noise, expected error and predicted memory of a plan, in public words and numbers."""

    def fit(
        self,
        plan: SealedPlan,
        bounded: Path,
        grant: Grant,
        directory: Path,
        *,
        device: str = "cpu",
        progress: Progress = silent,
        engine: Engine | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Runs the mechanism over the bounded Delta table and leaves a complete model in `directory`.

        Args:
            grant: proves the started ledger entry.
            device: where the model is fitted.
            progress: receives public stages.
            engine: an open SQL engine that counts instead of this process.
            checkpoints: for generators that train or query a language model.

        Raises:
            GrantRefused: the grant is for another plan.
            MechanismFailed: the mechanism stopped; its cost remains spent.
        """
        if grant.plan_digest != plan.digest:
            raise GrantRefused("the grant is for another plan than the one to run")
        self.run(MechanismRun(plan, bounded, grant, directory, device, progress, engine, checkpoints))

    @abstractmethod
    def run(self, run: MechanismRun) -> None:
        """The method's own part of `fit`."""

    def inputs(self, plan: SealedPlan, bounded: Path) -> Mapping[Path, int]:
        """The Delta tables that the mechanism reads, and the most records of one owner in each."""
        return {bounded: int(plan.guarantee["max_contributions"])}

    @abstractmethod
    def check(self, plan: SealedPlan) -> None:
        """Raises `GrantRefused` if a plan's sealed event is not what its parameters cost (invariant: no drift)."""

    @abstractmethod
    def is_complete(self, directory: Path) -> bool:
        """Whether `directory` holds the mechanism's whole result, so that nothing needs the data any more."""

    def joint(self, plan: SealedPlan, directory: Path) -> Joint | None:
        """The distribution of states in a complete model's directory, of methods whose model of rows is a network."""
        return None

    def tried_endpoint(self, plan: SealedPlan, transport: Transport) -> Access | None:
        """How to reach the plan's endpoint, after it has made one sample on trial; None if the plan has no endpoint.

        Raises:
            ConfigurationError: the deployment does not list the endpoint, its key cannot be read, or no sample came.
        """
        return None

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        """Compares public material that the mechanism reads with that of the plan, before anything is spent.

        Returns:
            The directories and files with it, which a worker must see as well.

        Raises:
            ConfigurationError: it is not there, or another.
        """
        return ()

    @abstractmethod
    def can_resume(self, directory: Path) -> bool:
        """Whether a mechanism that was interrupted there may continue at no further cost: its plan has paid for it."""

    @abstractmethod
    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model again from the complete measurements in `directory`: post-processing, free of charge.

        Raises:
            MechanismFailed: the measurements are missing, incomplete or of another plan.
        """

    def draw(
        self,
        directory: Path,
        rows: int | None = None,
        *,
        constraints: Sequence[Constraint] = (),
        given: Mapping[str, Values] | None = None,
        texts: TextTerms | None = None,
        transport: Transport | None = None,
        device: str = "cpu",
        progress: Progress = silent,
    ) -> Drawing:
        """Rows of the source's schema from the model in `directory`: post-processing, free of charge.

        Args:
            rows: how many; None: the number of records that the noisy counts show.
            constraints: hold for every row; the model is fitted again from its measurements under them.
            given: values that all rows have, by column: rows follow the model's distribution given these.
            texts: how texts are drawn and kept, of generators that train a language model; by default from the model's
                own distribution. If it says how many rows each label gets, `rows` is ignored.
            transport: how an endpoint is queried, of generators whose texts an endpoint writes.
            device: torch's, for the fit.
            progress: receives public stages and counts of steps.

        Raises:
            ContractError: a constraint or a given value does not fit this table, or no row can keep them all.
            MechanismFailed: there is no complete model.
        """
        return self.drawn(DrawRequest(directory, rows, constraints, given, texts, transport, device, progress))

    @abstractmethod
    def drawn(self, request: DrawRequest) -> Drawing:
        """The method's own part of `draw`."""

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """`draw` without any terms, in memory."""
        return self.draw(directory, rows).table()


_CLASSES = {
    "aim": "tabular.aim.Aim",
    "jam": "tabular.jam.Jam",
    "mst": "tabular.mst.Mst",
    "mwem": "tabular.mwem.Mwem",
    "rap": "tabular.rap.Rap",
    "gem": "tabular.gem.Gem",
    "grem": "tabular.grem.Grem",
    "appgm": "tabular.appgm.Appgm",
    "privsyn": "tabular.privsyn.PrivSyn",
    "mrf": "tabular.mrf.Mrf",
    "privbayes": "tabular.privbayes.PrivBayes",
    "histogram": "tabular.histogram.Histogram",
    "independent": "tabular.independent.Independent",
    "arn": "neural.arn.Arn",
    "tbart": "neural.tbart.Tbart",
    "dp_vae": "neural.dp_vae.DpVae",
    "table_diffusion": "neural.table_diffusion.TableDiffusion",
    "dp_gan": "neural.dp_gan.DpGan",
    "great": "neural.great.Great",
    "dp_2stage": "neural.dp_2stage.Dp2Stage",
    "dp_finetune": "text.dp_finetune.DpFinetune",
    "ctcl": "text.ctcl.Ctcl",
    "dp_inference": "text.inference.DpInference",
    "aug_pe": "text.evolution.AugPe",
    "image_moments": "images.image_moments.ImageMoments",
    "image_pe": "images.image_pe.ImagePe",
    "image_mixed": "images.image_mixed.ImageMixed",
    "image_diffusion": "images.diffusion.ImageDiffusion",
    "image_finetune": "images.finetune.ImageFinetune",
    "image_embedding": "images.image_embedding.ImageEmbedding",
    "image_gan": "images.image_gan.ImageGan",
    "answers": "answers.generator.AnswerGenerator",
    TUNED: "tuning.generator.Tuned",
    LINKED: "relational.generator.Linked",
}
"""The class of each method."""
METHODS = tuple(method for method in _CLASSES if method not in (TUNED, LINKED))
"""Those that a contract can name."""
TABLE_METHODS = tuple(
    method
    for method, place in _CLASSES.items()
    if place.startswith(("tabular.", "neural.")) and method not in LANGUAGE_METHODS
)
"""Methods that make tables without texts, and need no language model."""


def generator(method: str) -> Generator:
    """The generator of that name. Raises `ContractError` if there is none."""
    if method not in _CLASSES:
        raise ContractError(f"generate.method: {method!r}; accepted: {', '.join(METHODS)}")
    module, _, name = _CLASSES[method].rpartition(".")
    made: Generator = getattr(importlib.import_module(f"dpsynth_platform.synth.{module}"), name)()
    return made
