"""The generator `dp_finetune`: tables with a text column, which a language model learns to write from other columns.

What belongs here: the order of its parts, in all three steps. What does not: the parts: the plan (`sealing`), the
other columns (`synth.tabular`), texts as tokens (`layout`, `examples`), training (`training`), sampling (`sampling`,
`filtering`), the trained weights (`trained`).

The mechanism reads the data twice: for noisy counts of the columns, if there are any (`counted`), then for training. A
model directory holds

    claim.json      the ledger entry's one-time claim
    columns/        measurements and model of the columns, where some are counted
    training/       the journal of executed steps and the encrypted checkpoints, during the training
    weights.safetensors, trained.json     the result of the training, once it is complete
    resampling.json the noisy votes or sums by which texts are chosen, where the plan has some

An interrupted training continues from its last checkpoint: the journal counts every executed step, and the plan has
paid for some more than it needs. Interrupted counts are not drawn a second time.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.errors import ContractError, MechanismFailed, StaleInput
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.restricted_log import note
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.interface import (
    Drawing,
    DrawRequest,
    MechanismRun,
    PlanInputs,
    PlanParts,
    Ranks,
    SealedPlan,
)
from dpsynth_platform.synth.tabular.marginals import model_under
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.tabular.sampling import drawing_counted
from dpsynth_platform.synth.text import resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.examples import Examples, write_examples
from dpsynth_platform.synth.text.filtering import Kept, sample_records
from dpsynth_platform.synth.text.generator import (
    COLUMNS,
    PLAN,
    TextGenerator,
    by_given,
    given_rows,
    read_base_model,
    then_votes,
    with_texts,
)
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.sealing import TextParameters, whole_event
from dpsynth_platform.synth.text.terms import TextsDrawn, TextTerms
from dpsynth_platform.synth.text.topic_sorting import as_learned, sorted_records, topics_in_words
from dpsynth_platform.synth.text.unread import begin_reading, is_unread
from dpsynth_platform.training.weights import digest_of, is_trained

TRAINING, CHECKPOINTS, SIZE = "training", "checkpoints", "physical-batch"
"""Names within a model directory."""


class DpFinetune(TextGenerator[TextParameters]):
    """The generator `dp_finetune`."""

    method = "dp_finetune"
    kind = TextParameters
    incomplete = "training is not complete"

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates counts and training together, and tries the model on random texts.

        Raises:
            ConfigurationError: the base model is not there, or cannot be loaded.
            TrainingRefused: training it would not be differentially private, or learn nothing.
        """
        contract = inputs.contract
        if contract.generate.base_model is None:
            raise ContractError(f"{contract.dataset}: generate.base_model: none is named; accepted: a language model")
        base = trained.deployed(contract.generate.base_model)
        parameters = TextParameters.calibrated(inputs, base)
        parts = parameters.parts(inputs)
        _prepared(base, parameters)
        return parts

    def description(self, plan: SealedPlan, parameters: TextParameters) -> tuple[str, dict[str, Any]]:
        training = parameters.training
        trains = "all weights" if training.adapter is None else f"an adapter of rank {training.adapter.rank}"
        unit = "records" if training.sampled == "record" else "owners"
        delta = Guarantee.from_json(plan.guarantee).delta
        mechanism = (
            f"{training.paid_steps} steps of DP-SGD over {unit} "
            f"(sampled with probability {training.sampling_probability:.3g}, noise {training.noise_multiplier:.3g} "
            f"times the clipping norm), of which {training.replay_allowance} are for what an interruption repeats"
            + then_votes(parameters.resampling, "the model's texts")
        )
        return mechanism, {
            "trained": trains,
            "training_in_words": _in_words(parameters, trains, delta),
            "noise_multiplier": training.noise_multiplier,
            "expected_batch": training.batch_size,
            "epsilon_of_training_alone": epsilon(training.event, delta).epsilon,
        }

    def run(self, run: MechanismRun) -> None:
        """Counts the columns, then trains; continues if no record was read or training had begun.

        Raises:
            ConfigurationError: the base model is not the plan's.
            TrainingRefused: training the base model would not be differentially private.
        """
        parameters, base = self.begun(run)
        # All faults of the model are found before the data are read.
        model, encoder = _prepared(base, parameters, run.device)
        begins = is_unread(run.directory)
        if begins:
            begin_reading(run.directory)
        with sorted_records(parameters, run) as records:
            if begins:
                place = run.directory / COLUMNS
                counted.measure(parameters.columns, records, place, run.progress, run.engine)
                counted.estimate(parameters.columns, place, progress=run.progress)
            if not is_trained(run.directory):
                _train(run, parameters, model, encoder, records, resuming=not begins)
            _vote(run, parameters, base, records)

    def is_complete(self, directory: Path) -> bool:
        return is_trained(directory) and not self.lacks_votes(directory)

    def can_resume(self, directory: Path) -> bool:
        """Whether no record was read, or training had begun and enough steps are paid for, or only votes are missing.

        When training begins the columns are counted. Votes are on disk as a whole before anything follows from them.
        """
        from dpsynth_platform.training.checkpoints import newest_step
        from dpsynth_platform.training.journal import can_resume

        place = directory / TRAINING
        if is_trained(directory):
            return not self.is_complete(directory)
        return is_unread(directory) or can_resume(place, newest_step(place / CHECKPOINTS))

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns again, and deletes what only training needed."""
        super().estimate(plan, directory, device=device, progress=progress)
        shutil.rmtree(directory / TRAINING, ignore_errors=True)

    def drawn(self, request: DrawRequest) -> Drawing:
        """Rows from the model of the columns, each with a text that is written for it.

        A row is left out if no text for it keeps the rules (`filtering.Rules`).
        """
        plan, parameters = self.complete_plan(request.directory)
        release, terms = ReleaseSchema.from_json(plan.release), request.texts or TextTerms()
        columns = replace(request, directory=request.directory / COLUMNS)
        if terms.counts is None:
            drawn = counted.draw(parameters.columns, release, columns)
        else:  # rows of a column that the model is conditioned on, so that columns are counted
            model = model_under(columns.directory, request.constraints, progress=request.progress)
            drawn = drawing_counted(model, terms.counts.column, terms.counts.rows, request.given)
        table = drawn.table()
        prompts = given_rows(table, parameters.layout)
        base = trained.deployed(parameters.base_model)
        texts = _TrainedTexts(parameters, base, request.directory, request.device, request.progress, terms)
        written, kept = texts.chosen(Counter(prompts))
        whole = with_texts(table, release, parameters.layout.fields[0], prompts, written)
        counts = TextsDrawn.of(kept, requested=table.num_rows, made=whole.num_rows)
        return Drawing(whole.schema, whole.num_rows, iter(whole.to_batches()), counts, drawn.missing, drawn.measured)


def _in_words(parameters: TextParameters, trains: str, delta: float) -> str:
    """What the model writes, and what training does, for readers who are no experts."""
    training, layout, chosen = parameters.training, parameters.layout, parameters.resampling
    conditions = ", ".join(condition.column for condition in layout.conditions) or "nothing"
    unit = "record" if training.sampled == "record" else "owner"
    return (
        f"{parameters.base_model} is given {conditions} and writes {layout.fields[0]}, up to {layout.max_tokens} "
        f"tokens for both. It learns {trains} in {training.steps} steps. Each draws about {training.batch_size} of "
        f"some {training.units} {unit}s at random; however unusual one is, it moves the step by 1 at most, and noise "
        f"of {training.noise_multiplier:.3g} in every direction is added{topics_in_words(parameters, delta)}"
        f"{'' if chosen is None else f'. {chosen.choice_in_words}'}"
    )


def columns_model(directory: Path) -> Path:
    """Where the model of the columns is."""
    return directory / COLUMNS


def log_likelihoods(
    plan: SealedPlan, directory: Path, records: pa.Table
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The mean log-likelihood per token of each record's text, before training and after it.

    Args:
        records: the layout's columns.
    """
    parameters, base, texts = _scored(plan, records)
    model, tokenizer = load(base)
    encoder = Encoder(parameters.layout, tokenizer)
    rows = trained.encoded(encoder, texts)
    before = trained.rows_log_likelihoods(model, rows, encoder.eos)
    model, _ = trained.load_trained(base, parameters.training, directory)
    return before, trained.rows_log_likelihoods(model, rows, encoder.eos)


def model_with_rows(
    plan: SealedPlan, directory: Path, records: pa.Table
) -> tuple[Any, list[tuple[list[int], list[int]]]]:
    """The trained model as texts are drawn from it, and each record's prompt and text in its tokens.

    Args:
        records: the layout's columns.
    """
    parameters, base, texts = _scored(plan, records)
    model, tokenizer = trained.load_for_sampling(base, parameters.training, directory, "cpu")
    return model, trained.encoded(Encoder(parameters.layout, tokenizer), texts)


def _scored(plan: SealedPlan, records: pa.Table) -> tuple[TextParameters, BaseModel, list[tuple[Given, str]]]:
    """A plan's parameters and base model, and the records' conditions and bodies."""
    parameters = TextParameters.of(plan)
    base, layout = trained.deployed(parameters.base_model), parameters.layout
    trained.check_digest(base, parameters.base_digest)
    texts: list[tuple[Given, str]] = []
    for record in as_learned(plan, records).select(list(layout.columns)).to_pylist():
        given, body = layout.given(record), layout.body(record)
        if given is None or body is None:
            raise MechanismFailed("a canary's record has an undeclared value or no text; training would skip it")
        texts.append((given, body))
    return parameters, base, texts


def _prepared(base: BaseModel, parameters: TextParameters, device: str = "cpu") -> tuple[Any, Encoder]:
    """The model as it will be trained, checked on random texts, and the layout's encoder, checked on made-up records.

    The check uses the device of the training, with its kernels and precision. It also checks that texts can be drawn:
    after the payment it would be too late.

    Raises:
        TrainingRefused: names all faults of the model.
        ConfigurationError: it cannot be loaded, or no text can be drawn from it.
    """
    from dpsynth_platform.synth.text.batch_trial import refuse_batches
    from dpsynth_platform.synth.text.rows import check_rows
    from dpsynth_platform.training.adapter import with_adapter
    from dpsynth_platform.training.soundness import refuse_unsound

    model, tokenizer = load(base)
    encoder = Encoder(parameters.layout, tokenizer)
    refuse_batches(encoder)
    model = with_adapter(model, parameters.training).to(device)
    refuse_unsound(model, parameters.training, vocabulary=len(tokenizer), longest=parameters.layout.max_tokens)
    check_rows(model, parameters.layout.max_tokens)
    return model, encoder


def _train(
    run: MechanismRun, parameters: TextParameters, model: Any, encoder: Encoder, records: Path, *, resuming: bool
) -> None:
    """Trains until the weights are complete, then deletes what only training needed."""
    from dpsynth_platform.foundation.storage import EXAMPLES, write_durably
    from dpsynth_platform.training.checkpoints import CheckpointPolicy
    from dpsynth_platform.training.checkpoints import Checkpoints as States
    from dpsynth_platform.training.health import Watch
    from dpsynth_platform.training.journal import StepJournal
    from dpsynth_platform.training.loop import train
    from dpsynth_platform.training.memory import remembered_size
    from dpsynth_platform.training.resuming import ResumableJournal
    from dpsynth_platform.training.spending_progress import SpendingProgress
    from dpsynth_platform.training.world import World

    training, directory, checkpoints = parameters.training, run.directory, run.language_model
    guarantee, place = Guarantee.from_json(run.plan.guarantee), directory / TRAINING
    with (
        StepJournal(place, training.steps, training.replay_allowance, resuming=resuming) as steps,
        remembered_size(place / SIZE) as size,
    ):
        examples = _examples(records, directory / EXAMPLES, encoder, checkpoints.ranks)
        mine, units = World().share(examples, examples.units(training.sampled))
        states = States(place / CHECKPOINTS, checkpoints.key, plan_digest=run.plan.digest, entry_id=run.grant.entry_id)
        policy = CheckpointPolicy.for_allowance(training.replay_allowance)
        journal = ResumableJournal(steps, states, policy, lambda stage: run.progress(stage, 1, 1))
        train(
            model,
            training,
            mine,
            journal=journal,
            health=Watch(training, {name: value for name, value in model.named_parameters() if value.requires_grad}),
            units=units,
            rows=parameters.most_rows,
            progress=SpendingProgress(
                run.progress,
                lambda executed: whole_event(
                    parameters.columns, training.event_of(executed), parameters.resampling, guarantee
                ),
                guarantee.delta,
                training,
                lambda: steps.executed,
            ),
            device=run.device,
            size=size,
        )
        write_durably(directory / PLAN, run.plan.to_json())
        trained.save_weights(model, directory, steps.executed)
        shutil.rmtree(place)  # while the journal is held: no other process can continue what is complete


def train_along(plan: SealedPlan, base_model: Path, examples: Path, device: str, meet: Callable[[], None]) -> None:
    """Trains as one of several processes, of which the first has the grant and keeps the result.

    Args:
        base_model: see `Checkpoints`.
        examples: directory of all examples, which the first process has written. Sensitive.
        device: of this process.
        meet: connects this process; returns when all are connected.
    """
    from dpsynth_platform.training.adapter import with_adapter
    from dpsynth_platform.training.loop import train
    from dpsynth_platform.training.world import Follower, World

    parameters = TextParameters.checked(plan)
    base = read_base_model(base_model)
    trained.check_digest(base, parameters.base_digest)
    model, _ = load(base)
    model = with_adapter(model, parameters.training)
    opened = Examples(examples)
    meet()
    mine, units = World().share(opened, opened.units(parameters.training.sampled))
    follower = Follower()
    train(
        model,
        parameters.training,
        mine,
        journal=follower,
        health=follower,
        units=units,
        rows=parameters.most_rows,
        device=device,
    )


def _examples(bounded: Path, directory: Path, encoder: Encoder, ranks: Ranks | None) -> Examples:
    """The records in tokens, which the other processes have opened, too, on return.

    By then the files have no name, so that they are deleted when the processes end, however they end: an interrupted
    training may lie there for as long as a model, which real texts may not.
    """
    shutil.rmtree(directory, ignore_errors=True)
    try:
        # Exact counts, which the plan does not pay for: only for readers of the restricted log.
        note(write_examples(bounded, directory, encoder).in_words)
        examples = Examples(directory)
        if ranks is not None:
            ranks.meet(directory)
        return examples
    finally:  # files in use that cannot be deleted (as on NFS) go when training is complete or resumed
        shutil.rmtree(directory, ignore_errors=True)


def _vote(run: MechanismRun, parameters: TextParameters, base: BaseModel, records: Path) -> None:
    """Votes for clusters of the trained model's texts, or sums by label, if the plan has some and none are drawn."""
    chosen = parameters.resampling
    if chosen is None:
        return

    def count() -> resampling.NoisyResult:
        encoder, by_owner = SentenceEncoder("cpu"), run.plan.guarantee["adjacency"] != "fixed-graph"
        texts = _TrainedTexts(parameters, base, run.directory, run.device, run.progress)
        voters = chosen.voters(records, parameters.layout, encoder, by_owner=by_owner)
        release = ReleaseSchema.from_json(run.plan.release)
        return chosen.measured(lambda: texts.pool(release, chosen.texts), voters, encoder)

    resampling.vote_once(run.directory, run.directory / TRAINING, count)


@dataclass(frozen=True)
class _TrainedTexts:
    """Texts of a trained model: post-processing."""

    parameters: TextParameters
    base: BaseModel
    directory: Path
    device: str
    progress: Progress
    terms: TextTerms = field(default_factory=TextTerms)

    def pool(self, release: ReleaseSchema, number: int) -> list[str]:
        """Texts for clusters, by terms that are the same in all runs.

        The contract's terms are no part of the plan, and what shapes the candidates decides what the vote is about.
        """
        rows = counted.draw(self.parameters.columns, release, DrawRequest(self.directory / COLUMNS, number)).table()
        written, _ = self.drawn(Counter(given_rows(rows, self.parameters.layout)))
        return [text for texts in written.values() for text in texts]

    def chosen(self, counts: Mapping[Given, int]) -> tuple[dict[Given, list[str]], Kept]:
        """At most so many texts of each prompt; chosen by votes or sums, if there are any."""
        plan = self.parameters.resampling
        if plan is None:
            return self.drawn(counts)
        votes = resampling.read_votes(self.directory, plan, self.parameters.layout)
        written, kept = self.drawn(plan.pools(counts))
        return votes.taken(written, counts, SentenceEncoder("cpu")), kept

    def drawn(self, counts: Mapping[Given, int]) -> tuple[dict[Given, list[str]], Kept]:
        """At most so many texts of each prompt, and the counts of all that were drawn."""
        parameters, directory = self.parameters, self.directory
        trained.check_digest(self.base, parameters.base_digest)
        model, tokenizer = trained.load_for_sampling(self.base, parameters.training, directory, self.device)
        # Not in the model directory, whose content hash the ledger holds. After a crash, the next try continues there.
        place, of = directory.with_name(f"{directory.name}-texts"), digest_of(directory)
        try:
            kept = sample_records(
                model,
                Encoder(parameters.layout, tokenizer),
                counts,
                place,
                of=of,
                rules=self.terms.rules,
                sampling=self.terms.sampling,
                progress=self.progress,
            )
        except StaleInput:  # the files there are damaged: the next try must not find them
            shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place)
        return by_given(kept.rows, parameters.layout, counts), kept
