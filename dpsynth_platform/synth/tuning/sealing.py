"""The sealed plan of several settings, and what it costs to run them and to choose one.

What belongs here: the settings' own plans, calibrated so that all runs and the choice together meet the guarantee, and
the event of the whole. What does not: the runs (`runs`, `generator`), and the cost of events (`privacy.accounting`).

Every setting gets the same part of the guarantee, which includes its score. The whole is one of these:

- **each once**: all results and scores are paid for, in one composition; the choice is post-processing.
- **the best of a random number of runs**, each of a random setting (Papernot & Steinke 2022): `BestRunEvent`, whose
  run costs at each order what the costliest setting does. That holds since the number K and the settings of all K runs
  are drawn first, from nothing but the plan; since a run's score is part of its event; and since only the best run is
  kept.

A setting's part of epsilon is found by inverting the cost of the whole.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import LANGUAGE_METHODS
from dpsynth_platform.contracts.quality import Paid
from dpsynth_platform.contracts.tuning import HeldOut, Tune
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import BestRunEvent, DpEvent, best_run_event, event_from_json, event_to_json
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan, generator
from dpsynth_platform.synth.largest import largest
from dpsynth_platform.synth.tabular.paid import SealedMeasures


@dataclass(frozen=True)
class SealedTuning:
    """The parameters of a plan of several settings. Public; JSON values only.

    Attributes:
        candidates: the plan of each setting, as far as it differs from the whole one.
        epsilon: of each, with its score, at the plan's delta.
        measure: what the score measures (`tabular.paid`).
        shape, gamma: of the number of runs (`BestRunEvent`); None: each setting runs once.
    """

    candidates: list[dict[str, Any]]
    epsilon: float
    measure: str
    shape: float | None = None
    gamma: float | None = None

    @classmethod
    def of(cls, plan: SealedPlan) -> SealedTuning:
        """Reads them from a plan. Raises `GrantRefused` if they are of another kind."""
        try:
            return cls(**plan.parameters)
        except TypeError:
            raise GrantRefused("the sealed plan is not for a choice of settings; materialize raw again") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def number(self) -> tuple[float, float] | None:
        """Shape and gamma of the number of runs; None: each setting runs once."""
        return None if self.shape is None or self.gamma is None else (self.shape, self.gamma)

    @property
    def methods(self) -> list[str]:
        return [candidate["method"] for candidate in self.candidates]

    @property
    def base(self) -> tuple[str, str] | None:
        """Name and digest of the language model that settings start from; None without one.

        Raises:
            GrantRefused: they start from several, of which lineage knows one.
        """
        found = {
            (str(each["parameters"]["base_model"]), str(each["parameters"]["base_digest"]))
            for each in self.candidates
            if each["method"] in LANGUAGE_METHODS
        }
        if len(found) > 1:
            raise GrantRefused("settings start from several language models; materialize the line from raw")
        return found.pop() if found else None

    def held_out(self, plan: SealedPlan) -> float | None:
        """The share of owners that no run is trained on; None where all are. Raises `GrantRefused` if runs differ."""
        measures = [SealedMeasures.in_plan(each) for each in self.plans(plan)]
        shares = {None if each is None else each.held_out for each in measures}
        if len(shares) != 1 or (None in shares) == (self.measure == "likelihood"):
            raise GrantRefused("settings hold out other owners; materialize the line from raw")
        return shares.pop()

    @property
    def event(self) -> DpEvent:
        """What all runs and the choice cost."""
        events = [event_from_json(candidate["event"]) for candidate in self.candidates]
        if self.number is None:
            return dp_event.ComposedDpEvent(events)
        return BestRunEvent(events, *self.number)

    def plans(self, plan: SealedPlan) -> tuple[SealedPlan, ...]:
        """The plan of each setting; what they have in common is only in the whole one."""
        guarantee = plan.guarantee | {"epsilon": self.epsilon}
        return tuple(replace(plan, guarantee=guarantee, **candidate) for candidate in self.candidates)

    def check(self, plan: SealedPlan) -> None:
        """Raises `GrantRefused` if the whole event is not that of the settings' plans, or one has no paid score."""
        if event_to_json(self.event) != plan.event:
            raise GrantRefused("the plan's privacy event is not that of its runs; materialize the line from raw")
        for each in self.plans(plan):
            generator(each.method).check(each)
            measures = SealedMeasures.in_plan(each)
            if measures is None or measures.measures != [self.measure]:
                raise GrantRefused("a setting's plan does not pay for the score; materialize the line from raw")
        _ = self.base, self.held_out(plan)


def calibrated(inputs: PlanInputs) -> tuple[SealedTuning, list[SealedPlan]]:
    """The settings of a contract with the largest part of the guarantee, and their plans.

    Raises:
        ContractError: a setting cannot do what the contract asks for.
        AccountingError: no noise meets the guarantee.
    """
    contract, whole = inputs.contract, inputs.guarantee
    tune = contract.generate.tune
    assert tune is not None  # noqa: S101  (`method_for` asks)
    found: dict[float, tuple[SealedTuning, list[SealedPlan]]] = {}

    def spent(part: float) -> float:
        plans = [_planned(inputs, f"generate.{path}", setting, part) for path, setting in contract.generate.settings]
        sealed = SealedTuning([_own(plan, plans[0]) for plan in plans], part, tune.score.measure, *_number(tune, plans))
        found[part] = sealed, plans
        return epsilon(sealed.event, whole.delta).epsilon

    first = whole.epsilon / (len(tune.candidates) if tune.runs == "each" else 3)
    return found[largest(spent, whole.epsilon, first, "generate.tune", "fewer runs")]


def _own(plan: SealedPlan, first: SealedPlan) -> dict[str, Any]:
    """What the plan of a setting has of its own; learned values may have another threshold in each."""
    columns = {} if plan.columns == first.columns else {"columns": plan.columns}
    return {"method": plan.method, "parameters": plan.parameters, "event": plan.event} | columns


def _number(tune: Tune, plans: list[SealedPlan]) -> tuple[float, float] | tuple[()]:
    """Shape and gamma; none where each setting runs once."""
    if tune.runs == "each":
        return ()
    event = best_run_event([event_from_json(plan.event) for plan in plans], tune.runs, tune.shape)
    return event.shape, event.gamma


def _planned(inputs: PlanInputs, where: str, setting: Generate, part: float) -> SealedPlan:
    """The plan of one setting, with its score, for a part of epsilon."""
    contract, guarantee = _alone(inputs.contract, setting, part), replace(inputs.guarantee, epsilon=part)
    try:
        return generator(setting.method).plan(contract, inputs.schema, guarantee, period=inputs.period)
    except (ContractError, AccountingError) as error:
        problem, kind = str(error), type(error)
    start = f"{inputs.contract.dataset}: "
    raise kind("\n".join(start + _at(where, line.removeprefix(start)) for line in problem.split("\n")))


def _at(where: str, fault: str) -> str:
    """A fault of a setting, by the key in the contract that has it."""
    if fault.startswith("quality.paid.measures"):
        return fault.replace("quality.paid.measures", "generate.tune.score.measure", 1)
    if fault.startswith(("generate.public", "generate.base_model")):
        return fault
    if fault.startswith("generate."):
        return where + fault.removeprefix("generate.")
    return f"{where.removesuffix('.')}: {fault}"


def _alone(contract: DataContract, setting: Generate, part: float) -> DataContract:
    """The contract as if it had declared this setting alone, and bought its score."""
    tune = contract.generate.tune
    assert tune is not None  # noqa: S101  (`calibrated` asks)
    score = tune.score
    if score.measure == "likelihood":
        assert score.held_out is not None and score.clip is not None  # noqa: S101  (`Score.faults` asks)
        paid: Paid = HeldOut(measures=["likelihood"], share=score.share, held_out=score.held_out, clip=score.clip)
    else:
        paid = Paid(measures=[score.measure], share=score.share)
    guarantee = contract.privacy.guarantee.model_copy(update={"epsilon": part})
    changed: dict[str, Any] = {
        "generate": setting,
        "quality": contract.quality.model_copy(update={"paid": paid}),
        "privacy": contract.privacy.model_copy(update={"guarantee": guarantee}),
    }
    return contract.model_copy(update=changed)
