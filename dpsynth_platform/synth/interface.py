"""What every generator offers, in three moments, so that an uncalibrated mechanism cannot run.

What belongs here: the `Generator` protocol, the sealed plan that passes between the moments, and the registry of
methods. What does not: any one method.

    plan = generator("mst").plan(contract, schema, guarantee)          # public inputs only
    generator(plan.method).fit(plan, bounded, grant, directory)        # the mechanism, in the worker
    drawing = generator(plan.method).draw(directory, rows)             # post-processing
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.units import WEIGHTINGS

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.ledger.grants import Grant
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.synth.tabular.missing import MissingShare
    from dpsynth_platform.synth.text.endpoint_access import Transport
    from dpsynth_platform.synth.text.terms import TextsDrawn, TextTerms


DECLARED = "it is declared"
"""Why a method was chosen that somebody named."""


@dataclass(frozen=True)
class SealedPlan:
    """All that decides what a mechanism does, fixed before any record is read. Public, JSON throughout.

    The digest covers every field but `why`, so sampler, noise and accounting cannot drift apart: the ledger entry and
    the grant name the digest, and the worker runs nothing else.

    Attributes:
        method: the generator's name in the registry.
        why: why it is this one.
        dataset: name of the contract's dataset.
        period: `YYYY-MM` for datasets with a cadence.
        mechanism_digest: digest of `DataContract.mechanism_snapshot()`.
        columns: the modelled columns' public domains (`tabular.domain`).
        release: the released table's schema and what becomes of each column (`tabular.restore`).
        parameters: noise scales and the like, by name.
        event: the privacy event in JSON form (`privacy.events`).
        guarantee: the guarantee in JSON form (`privacy.guarantee`).
        time_limit: seconds that the plan was made for, after which the last fit may end by the clock (`tabular.cost`).
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

    @property
    def digest(self) -> str:
        """SHA-256 of the plan in canonical JSON, but for `why`: other words for a reason make no other run."""
        return canonical_digest({name: part for name, part in asdict(self).items() if name != "why"})

    def to_json(self) -> str:
        """The plan with its digest, as `from_json` reads it."""
        return json.dumps({"plan": asdict(self), "digest": self.digest}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, expected_digest: str | None = None) -> SealedPlan:
        """Reads a plan back.

        Raises:
            GrantRefused: it is no sealed plan, or some field does not match its digest or the expected one.
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
        """What the mechanism will do, in public words and numbers; see `Generator.describe`.

        Where columns are counted and an owner may have several records, also the expected errors by either weighting:
        of counts of rows, in rows, and of counts of owners, in owners.
        """
        from dpsynth_platform.privacy.guarantee import Guarantee

        described = generator(self.method).describe(self)
        guarantee = Guarantee.from_json(self.guarantee)
        if guarantee.weighting == "owners":
            described["event"] += WEIGHTED_WORDS
        if self.columns and guarantee.max_contributions > 1 and guarantee.adjacency != "fixed-graph":
            described |= {
                "weighting": guarantee.weighting,
                "expected_error_by_weighting": _by_weighting(described, guarantee),
            }
        return described


WEIGHTED_WORDS = "; owners are counted: the rows of each weigh one row together"


def _by_weighting(described: Mapping[str, Any], guarantee: Guarantee) -> dict[str, dict[str, float]]:
    """Expected errors of counts by each weighting. At the same cost, noise is in proportion to the L2 sensitivity."""
    errors = {key: value for key, value in described.items() if key.startswith("expected_error_per_")}
    return {
        weighting: {
            key: value * replace(guarantee, weighting=weighting).sensitivity.l2 / guarantee.sensitivity.l2
            for key, value in errors.items()
        }
        for weighting in WEIGHTINGS
    }


@dataclass(frozen=True)
class Drawing:
    """Synthetic rows that are drawn while they are read, in batches, once.

    Attributes:
        schema: the released one.
        rows: how many there will be.
        batches: drawn one by one; raises `ContractError` where next to no row keeps all constraints.
        texts: what became of the texts that were drawn for them, where a trained model writes some.
        missing: how much of each counted column was missing or unlisted in what the mechanism read.
    """

    schema: pa.Schema
    rows: int
    batches: Iterator[pa.RecordBatch]
    texts: TextsDrawn | None = None
    missing: tuple[MissingShare, ...] = ()

    def table(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches, self.schema)


class Ranks(Protocol):
    """Processes that train one model together with this one (`training.world`)."""

    def meet(self, examples: Path) -> None:
        """Starts them; returns when each has opened the examples and all have met.

        Args:
            examples: directory of all examples (`text.examples.Examples`). Sensitive.
        """


@dataclass(frozen=True)
class Checkpoints:
    """What a generator needs that has a language model and can go on after a crash; never part of a plan.

    Attributes:
        base_model: file that describes the model that it starts from (`text.base_models.BaseModel`, as JSON); None
            where an endpoint has it.
        key: 32 bytes that the training's own checkpoints are encrypted with, for this ledger entry alone.
        resume: go on from the last checkpoint, within the steps that the plan has paid for.
        ranks: starts processes that train along, where there are to be any.
        endpoint: file that says how the endpoint that writes texts is reached (`text.endpoint_access.Access`), its key
            included; None: no endpoint does.
    """

    base_model: Path | None
    key: bytes = field(repr=False)
    resume: bool = False
    ranks: Ranks | None = None
    endpoint: Path | None = None


class Generator(Protocol):
    """One way of making synthetic rows. Its state is in the plan and in the model directory, never in the object."""

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
        """Calibrates and seals a plan from public inputs: the contract, the source's schema and the target.

        Args:
            contract: declares the columns.
            schema: of the source.
            guarantee: what the plan may cost.
            period: of a dataset with a cadence.
            why: why this method was chosen.

        Raises:
            ContractError: the method cannot model these columns.
            AccountingError: no noise scale meets the guarantee.
        """

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
            plan: the sealed plan.
            bounded: the table.
            grant: proves the started ledger entry.
            directory: of the model.
            device: where the model is fitted.
            progress: called with public stages.
            engine: an open SQL engine that may count in this process's place.
            checkpoints: for generators that train or ask a language model.

        Raises:
            GrantRefused: the grant is for another plan.
            MechanismFailed: the mechanism stopped; what it cost stays spent.
        """

    def check(self, plan: SealedPlan) -> None:
        """Raises `GrantRefused` if a plan's sealed event is not what its parameters cost."""

    def is_complete(self, directory: Path) -> bool:
        """Whether `directory` holds all that the mechanism leaves, so that nothing needs the data any more."""

    def can_resume(self, directory: Path) -> bool:
        """Whether a mechanism that was cut short there may go on, at no further cost: its plan has paid for it."""

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
            directory: of the model.
            rows: how many; None: the number of records that the noisy counts say that there are.
            constraints: which every row keeps; the model is fitted again from its measurements under them.
            given: values that all rows shall have, by column: the model's distribution given these.
            texts: how texts are drawn and kept, of generators that write some; by default from the model's own
                distribution. Where it says how many rows each label gets, `rows` has no part in it.
            transport: how an endpoint is asked, of generators that have texts written by one.
            device: torch's, for the fit.
            progress: called with public stages and counts of steps.

        Raises:
            ContractError: a constraint or a given value is not of this table, or no row can keep them all.
            MechanismFailed: there is no complete model.
        """

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """Draws a table of the source's schema from the model in `directory`: post-processing."""


_CLASSES = {
    "aim": "tabular.aim.Aim",
    "mst": "tabular.mst.Mst",
    "mwem": "tabular.mwem.Mwem",
    "privbayes": "tabular.privbayes.PrivBayes",
    "independent": "tabular.independent.Independent",
    "dp_finetune": "text.dp_finetune.DpFinetune",
    "ctcl": "text.ctcl.Ctcl",
    "dp_inference": "text.inference.DpInference",
    "aug_pe": "text.evolution.AugPe",
}
"""Of every method, its class."""
METHODS = tuple(_CLASSES)
TABLE_METHODS = tuple(method for method, place in _CLASSES.items() if place.startswith("tabular."))
"""Those that make tables without texts, from noisy counts alone."""


def generator(method: str) -> Generator:
    """The generator of that name.

    Raises:
        ContractError: there is none.
    """
    if method not in _CLASSES:
        raise ContractError(f"generate.method: {method!r}; accepted: {', '.join(METHODS)}")
    module, _, name = _CLASSES[method].rpartition(".")
    made: Generator = getattr(importlib.import_module(f"dpsynth_platform.synth.{module}"), name)()
    return made
