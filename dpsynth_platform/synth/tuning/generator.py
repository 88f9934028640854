"""The generator of plans that choose among settings: the runs one after the other, and the best one's model.

What belongs here: the order of runs, choice and deletion, and the interface of generators. What does not: the plan
(`sealing`), what was drawn (`runs`), and the methods.

Nothing says how many runs there are, which setting a run has or how it scored: no progress, no message, no file that
stays. How long the whole takes is not hidden. A run that an interruption left without its score continues as far as its
method can continue: a training by its own paid steps; counts that were interrupted never. A run with its score is not
made again.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.methods import TUNED
from dpsynth_platform.foundation.errors import DpsynthError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.interface import (
    ERRORS,
    Checkpoints,
    Drawing,
    DrawRequest,
    Generator,
    MechanismRun,
    PlanInputs,
    PlanParts,
    SealedPlan,
    generator,
)
from dpsynth_platform.synth.tabular import measurements, paid
from dpsynth_platform.synth.tabular.held_out import Parts
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.text.generator import read_base_model
from dpsynth_platform.synth.text.trained import handed
from dpsynth_platform.synth.tuning import runs
from dpsynth_platform.synth.tuning.runs import Runs
from dpsynth_platform.synth.tuning.sealing import SealedTuning, calibrated

STAGE = "choosing a setting"


class Tuned(Generator):
    """The generator of `generate.tune`."""

    method = TUNED

    def parts(self, inputs: PlanInputs) -> PlanParts:
        sealed, plans = calibrated(inputs)
        return PlanParts(plans[0].columns, plans[0].release, sealed.to_json(), sealed.event)

    def check(self, plan: SealedPlan) -> None:
        SealedTuning.of(plan).check(plan)

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        """Of every setting: any of them may run."""
        found = [generator(each.method).check_public(each) for each in SealedTuning.of(plan).plans(plan)]
        return tuple(dict.fromkeys(path for paths in found for path in paths))

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """Of errors and memory, the most that any setting has."""
        sealed = SealedTuning.of(plan)
        described = [generator(each.method).describe(each) for each in sealed.plans(plan)]
        errors = {key: max(found.get(key, 0.0) for found in described) for key in _keys(described, ERRORS)}
        settings = "; ".join(
            f"setting {number} ({method}): {found['event']}"
            for number, (method, found) in enumerate(zip(sealed.methods, described, strict=True), 1)
        )
        return {
            "event": f"{_in_words(sealed)}. What a run does: {settings}",
            "columns": described[0]["columns"],
            "epsilon_of_a_run": sealed.epsilon,
            "settings": sealed.methods,
            **({} if (base := sealed.base) is None else {"base_model": base[0]}),
            **errors,
            "predicted_memory_bytes": max(found["predicted_memory_bytes"] for found in described),
        }

    def run(self, run: MechanismRun) -> None:
        """Makes the runs that have no score yet, keeps the best one, and deletes the others."""
        self.check(run.plan)
        sealed = SealedTuning.of(run.plan)
        run.progress(STAGE, 0, 1)
        if not self.is_complete(run.directory):
            drawn = Runs.of(run.directory, run.plan.digest, sealed.methods, sealed.number)
            plans, run = sealed.plans(run.plan), _in_parts(run, sealed)
            for number, setting in enumerate(drawn.settings):
                _scored(_inner(run, plans[setting], number))
            scores = [paid.score_of(runs.place(run.directory, number)) for number in range(len(drawn.settings))]
            kept = runs.best(scores)
            setting = drawn.settings[kept]
            runs.keep_best(run.directory, kept, setting, sealed.methods[setting])
        runs.finish(run.directory)
        run.progress(STAGE, 1, 1)

    def is_complete(self, directory: Path) -> bool:
        return runs.is_chosen(directory)

    def can_resume(self, directory: Path) -> bool:
        """Whether runs were drawn, and each can still get its score."""
        if self.is_complete(directory):
            return False
        try:
            drawn = Runs.kept(directory)
        except MechanismFailed:
            return False
        return drawn is not None and all(
            _can_be_scored(drawn.methods[setting], runs.place(directory, number))
            for number, setting in enumerate(drawn.settings)
        )

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        runs.finish(directory)
        kept = self.kept_plan(plan, directory)
        generator(kept.method).estimate(kept, directory, device=device, progress=progress)

    def kept_plan(self, plan: SealedPlan, directory: Path) -> SealedPlan:
        """The plan of the setting whose model is in a directory.

        Raises:
            MechanismFailed: there is no complete model.
            GrantRefused: it is of another plan.
        """
        setting, method = runs.kept_setting(directory)
        plans = SealedTuning.of(plan).plans(plan)
        if setting >= len(plans) or plans[setting].method != method:
            raise GrantRefused("the model in the directory is of another plan")
        return plans[setting]

    def drawn(self, request: DrawRequest) -> Drawing:
        """Rows of the best run's model, without its score and noisy counts: the noise of a run that is kept for its
        score does not have the distribution that intervals assume.
        """
        setting, method = runs.kept_setting(request.directory)
        return replace(generator(method).drawn(request), paid=None, measured=None, kept=setting)


def _keys(described: list[dict[str, Any]], prefix: str) -> list[str]:
    return sorted({key for found in described for key in found if key.startswith(prefix)})


def _in_words(sealed: SealedTuning) -> str:
    best = f"the run with the best noisy score ({sealed.measure})"
    if sealed.number is None:
        return (
            f"{best} of {len(sealed.candidates)} settings, each of which runs once; all are paid for, and nothing of "
            "the others is kept"
        )
    event: Any = sealed.event
    rarely = runs.rarely_above(*sealed.number)
    return (
        f"{best} of a random number of runs, each of one of {len(sealed.candidates)} settings at random: "
        f"{event.mean:.3g} in expectation, more than {rarely} once in a hundred times (truncated negative binomial "
        f"distribution of shape {event.shape:g}); nothing of the others is kept"
    )


def _in_parts(run: MechanismRun, sealed: SealedTuning) -> MechanismRun:
    """The run with its owners in two parts, where the score needs it; no run then reads the bounded table itself."""
    share = sealed.held_out(run.plan)
    if share is None:
        return run
    parts = Parts.of(run, share)
    nowhere = run.bounded.with_name(f"{run.bounded.name} in parts")
    return replace(run, bounded=nowhere, engine=None, training=parts.training, held_out=parts.held_out)


def _inner(run: MechanismRun, plan: SealedPlan, number: int) -> MechanismRun:
    """One run, in a directory of its own and without progress."""
    directory = private_directory(runs.place(run.directory, number))
    checkpoints = run.checkpoints
    if checkpoints is not None:
        checkpoints = _checkpoints(checkpoints, number, resume=measurements.is_complete(directory))
    return replace(run, plan=plan, directory=directory, progress=silent, checkpoints=checkpoints)


def _checkpoints(given: Checkpoints, number: int, *, resume: bool) -> Checkpoints:
    """Those of one run: with a key of its own, so that no run continues another one's training."""
    return replace(given, key=hmac.digest(given.key, f"run {number}".encode(), "sha256"), resume=resume)


def _scored(run: MechanismRun) -> None:
    """Makes a run, or continues it, until it has its score.

    Raises:
        DpsynthError: of the run's kind, and without what it says: that may be about one setting, or one run.
    """
    try:
        _score(run)
        return
    except DpsynthError as error:
        kind = type(error)
    raise kind("a run of generate.tune stopped; which one, of which setting and why is not shown")


def _score(run: MechanismRun) -> None:
    if (run.directory / paid.FILE).exists():
        return
    made = generator(run.plan.method)
    assert isinstance(made, MarginalGenerator)  # noqa: S101  (all methods that a setting may have)
    described = None if run.checkpoints is None else run.checkpoints.base_model
    with handed(None if described is None else read_base_model(described)):
        if made.is_complete(run.directory):
            made.estimate(run.plan, run.directory, device=run.device)
            made.measure_quality(run)
        else:
            made.run(run)


def _can_be_scored(method: str, directory: Path) -> bool:
    """Whether a run has its score, needs no more than that, has not begun, or may continue."""
    if (directory / paid.FILE).exists() or not (directory / measurements.FILE_NAME).exists():
        return True
    made = generator(method)
    return made.is_complete(directory) or made.can_resume(directory)
