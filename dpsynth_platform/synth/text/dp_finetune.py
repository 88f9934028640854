"""The generator `dp_finetune`: tables with a text column, which a language model learns to write from other columns.

What belongs here: the order of its parts, in all three moments. What does not: the parts: the plan (`sealing`), the
columns beside the text (`synth.tabular`), texts as tokens (`layout`, `examples`), training (`training`), sampling
(`sampling`, `filtering`), the trained weights (`trained`).

The mechanism reads the data twice: noisy counts of the columns, if there are any (`counted`), then training. A model
directory holds

    claim.json      the ledger entry's one-time claim
    columns/        measurements and model of the columns, where some are counted
    training/       the journal of executed steps, and the encrypted checkpoints while training goes on
    weights.safetensors, trained.json     what was trained, once it is complete
    resampling.json the noisy votes by which texts are chosen, where the plan has some

A training that was cut short goes on from its last checkpoint: the journal counts every executed step, and the plan
has paid for some more than it needs. Counts that were cut short are not drawn a second time.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed, StaleInput
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.restricted_log import note
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import DECLARED, Checkpoints, Drawing, Ranks, SealedPlan
from dpsynth_platform.synth.tabular.marginals import model_under
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.tabular.sampling import drawing_counted
from dpsynth_platform.synth.text import counted, resampling, sealing, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.examples import Examples, write_examples
from dpsynth_platform.synth.text.filtering import Kept, sample_records
from dpsynth_platform.synth.text.layout import Encoder, Given, TextLayout, text_of
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.terms import TextsDrawn, TextTerms
from dpsynth_platform.synth.text.topics import with_topics
from dpsynth_platform.synth.text.unread import begin_reading, declare_unread, is_unread

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.ledger.grants import Grant
    from dpsynth_platform.synth.text.endpoint_access import Transport

COLUMNS, TRAINING, CHECKPOINTS, PLAN = "columns", "training", "checkpoints", "plan.json"
SIZE = "physical-batch"
"""Names within a model directory."""


class DpFinetune:
    """The generator `dp_finetune`."""

    method = "dp_finetune"

    def plan(
        self,
        contract: DataContract,
        schema: pa.Schema,
        guarantee: Guarantee,
        *,
        period: str | None = None,
        why: str = DECLARED,
    ) -> SealedPlan:
        """Calibrates counts and training together, and tries the model on random texts; see `Generator.plan`.

        Raises:
            ConfigurationError: the base model is not there, or cannot be loaded.
            TrainingRefused: training it would not be differentially private, or learn nothing.
        """
        if contract.generate.base_model is None:
            raise ContractError(f"{contract.dataset}: generate.base_model: none is named; accepted: a language model")
        base = trained.deployed(contract.generate.base_model)
        plan = sealing.sealed(self.method, contract, schema, guarantee, base, period=period, why=why)
        _prepared(base, TextParameters.of(plan))
        return plan

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """The columns' description, and the training's; see `Generator.describe`."""
        parameters = TextParameters.of(plan)
        training = parameters.training
        what = "all weights" if training.adapter is None else f"an adapter of rank {training.adapter.rank}"
        unit = "records" if training.sampled == "record" else "owners"
        delta = Guarantee.from_json(plan.guarantee).delta
        cost = epsilon(training.event, delta)
        columns = counted.described(
            parameters.columns,
            (
                f"{training.paid_steps} steps of DP-SGD over {unit} "
                f"(sampled with probability {training.sampling_probability:.3g}, noise {training.noise_multiplier:.3g} "
                f"times the clipping norm), of which {training.replay_allowance} are for what an interruption repeats"
                f"{_vote_in_words(parameters)}"
            ),
        )
        return columns | {
            "base_model": parameters.base_model,
            "trained": what,
            "training_in_words": _in_words(parameters, what, delta),
            "noise_multiplier": training.noise_multiplier,
            "expected_batch": training.batch_size,
            "epsilon_of_training_alone": cost.epsilon,
            "predicted_memory_bytes": columns["predicted_memory_bytes"] + parameters.memory_bytes,
        }

    def check(self, plan: SealedPlan) -> None:
        """The sealed event is what the plan's parts cost; raises `GrantRefused` if it is not."""
        sealing.check(plan)

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
        """Counts the columns, then trains; or goes on with that, where no record was read or training had begun.

        See `Generator.fit`.

        Raises:
            ConfigurationError: the base model is another one than the plan's.
            TrainingRefused: the base model cannot be trained soundly.
        """
        if grant.plan_digest != plan.digest:
            raise GrantRefused("the grant is for another plan than the one to run")
        if checkpoints is None or checkpoints.base_model is None:
            raise GrantRefused("the job names no base model, which training starts from")
        parameters = sealing.check(plan)
        if not checkpoints.resume:
            declare_unread(directory)
        # Everything that can be wrong with the model is found before the data are read.
        base = read_base_model(checkpoints.base_model)
        trained.check_digest(base, parameters.base_digest)
        model, encoder = _prepared(base, parameters, device)
        begins = is_unread(directory)
        if begins:
            begin_reading(directory)
        checkpoints = replace(checkpoints, resume=not begins)
        with self.told(parameters, bounded, directory, progress) as records:
            if begins:
                counted.measure(parameters.columns, records, directory / COLUMNS, progress, engine)
                counted.estimate(parameters.columns, directory / COLUMNS, progress=progress)
            if not trained.is_trained(directory):
                _train(plan, grant, model, encoder, records, directory, checkpoints, device, progress)
            _vote(plan, base, records, directory, device, progress)

    @contextmanager
    def told(self, parameters: TextParameters, bounded: Path, directory: Path, progress: Progress) -> Iterator[Path]:
        """The table that is counted and learned from; of methods that derive columns, another one than the bounded.

        Each of its records hangs on the bounded one alone, so that one record more or less changes no other.
        """
        yield bounded

    def is_complete(self, directory: Path) -> bool:
        """Whether training ended, and the vote for its texts if there is one; see `Generator.is_complete`."""
        return trained.is_trained(directory) and (
            resampling.has_votes(directory) or TextParameters.of(read_plan(directory)).resampling is None
        )

    def can_resume(self, directory: Path) -> bool:
        """Whether training had begun (the columns are counted by then), and enough steps are paid for to finish it.

        Or it ended, and nobody has voted: votes are on disk as a whole before anything follows from them. Or no record
        was read yet.
        """
        from dpsynth_platform.training.checkpoints import newest_step
        from dpsynth_platform.training.journal import may_go_on

        place = directory / TRAINING
        if trained.is_trained(directory):
            return not self.is_complete(directory)
        return is_unread(directory) or may_go_on(place, newest_step(place / CHECKPOINTS))

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns again; trained weights stay as they are. See `Generator.estimate`."""
        if not self.is_complete(directory):
            raise MechanismFailed("training is not complete, so there is nothing to go on with")
        parameters = TextParameters.of(plan)
        counted.estimate(parameters.columns, directory / COLUMNS, device=device, progress=progress)
        shutil.rmtree(directory / TRAINING, ignore_errors=True)

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
        """Rows from the model of the columns, each with a text that is written for it; see `Generator.draw`.

        A row for which no text could be written that keeps the rules (`filtering.Rules`) is left out.

        Args:
            texts: how texts are drawn and kept; by default from the model's own distribution.
        """
        plan, terms = read_plan(directory), texts or TextTerms()
        parameters, release = TextParameters.of(plan), ReleaseSchema.from_json(plan.release)
        if terms.counts is None:
            drawn = counted.draw(
                parameters.columns,
                directory / COLUMNS,
                release,
                rows,
                constraints=constraints,
                given=given,
                progress=progress,
            )
        else:  # of a column that the model is told, so that there is one
            columns = model_under(directory / COLUMNS, constraints, progress=progress)
            drawn = drawing_counted(columns, terms.counts.column, terms.counts.rows, given)
        table = drawn.table()
        prompts = given_rows(table, parameters.layout)
        base = trained.deployed(parameters.base_model)
        written, kept = _written(parameters, base, prompts, directory, terms, device, progress)
        whole = with_texts(table, release, parameters.layout.fields[0], prompts, written)
        told = TextsDrawn.of(kept, asked=table.num_rows, made=whole.num_rows)
        return Drawing(whole.schema, whole.num_rows, iter(whole.to_batches()), told, drawn.missing)

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """Draws rows from the model; see `Generator.sample`."""
        return self.draw(directory, rows).table()


def _in_words(parameters: TextParameters, what: str, delta: float) -> str:
    """Who writes which texts, and what training does to learn it, for readers who are no experts."""
    training, layout = parameters.training, parameters.layout
    told = ", ".join(condition.column for condition in layout.conditions) or "nothing"
    unit = "record" if training.sampled == "record" else "owner"
    return (
        f"{parameters.base_model} is told {told} and writes {layout.fields[0]}, up to {layout.max_tokens} tokens for "
        f"both. It learns {what} in {training.steps} steps. Each draws about {training.batch_size} of some "
        f"{training.units} {unit}s by chance; however unusual one is, it moves the step by 1 at most, and noise of "
        f"{training.noise_multiplier:.3g} in every direction is added{_sorted_by(parameters, delta)}"
        f"{_then_chosen(parameters)}"
    )


def _sorted_by(parameters: TextParameters, delta: float) -> str:
    """What the topics are that a model is told, and what they cost."""
    counts = counted.event_of(parameters.columns)
    if parameters.topics is None or counts is None:
        return ""
    return (
        f". {KEYWORDS_COLUMN} are of the one of {parameters.topics.level} public topics that a record's text is "
        "nearest to, if it is near to any; counting all columns, these with them, costs epsilon "
        f"{upper_bound(epsilon(counts, delta).epsilon, 3)} alone"
    )


def _then_chosen(parameters: TextParameters) -> str:
    return "" if parameters.resampling is None else f". {parameters.resampling.choice_in_words}"


def _vote_in_words(parameters: TextParameters) -> str:
    plan = parameters.resampling
    return "" if plan is None else "; then " + plan.in_words("the model's texts")


def read_base_model(path: Path) -> BaseModel:
    """The description of a base model that a job names. Raises `GrantRefused` if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return BaseModel(**(document | {"directory": Path(document["directory"])}))
    except (OSError, ValueError, KeyError, TypeError):
        raise GrantRefused("the description of the base model cannot be read") from None


def read_plan(directory: Path) -> SealedPlan:
    """The plan that a model was trained by. Raises `MechanismFailed` if there is no complete model."""
    if not trained.is_trained(directory):
        raise MechanismFailed("training is not complete; there is no model to draw from")
    return SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))


def columns_model(directory: Path) -> Path:
    """Where the model of the columns beside the text lies."""
    return directory / COLUMNS


def as_learned(plan: SealedPlan, records: pa.Table) -> pa.Table:
    """Records with all columns that the mechanism went by: a topic beside them, where texts are sorted by topics.

    Args:
        plan: that the model was trained by.
        records: with the text column; milliseconds each where topics are added.
    """
    return _as_learned(TextParameters.of(plan), records)


def log_likelihoods(
    plan: SealedPlan, directory: Path, records: pa.Table
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The mean log-likelihood per token of each record's text, before training and after it.

    Args:
        plan: that the model was trained by.
        directory: of the complete model.
        records: the layout's columns.
    """
    parameters, base = _base_of(plan)
    texts = _texts(parameters, records)
    model, tokenizer = load(base)
    encoder = Encoder(parameters.layout, tokenizer)
    before = trained.mean_log_likelihoods(model, encoder, texts)
    model, _ = trained.load_trained(base, parameters.training, directory)
    return before, trained.mean_log_likelihoods(model, encoder, texts)


def model_with_rows(
    plan: SealedPlan, directory: Path, records: pa.Table
) -> tuple[Any, list[tuple[list[int], list[int]]]]:
    """The trained model as texts are drawn from it, and each record's prompt and text in its tokens.

    Args:
        plan: that the model was trained by.
        directory: of the complete model.
        records: the layout's columns.
    """
    parameters, base = _base_of(plan)
    texts = _texts(parameters, records)
    model, tokenizer = trained.load_for_sampling(base, parameters.training, directory, "cpu")
    return model, trained.encoded(Encoder(parameters.layout, tokenizer), texts)


def _base_of(plan: SealedPlan) -> tuple[TextParameters, BaseModel]:
    parameters = TextParameters.of(plan)
    base = trained.deployed(parameters.base_model)
    trained.check_digest(base, parameters.base_digest)
    return parameters, base


def _as_learned(parameters: TextParameters, records: pa.Table) -> pa.Table:
    if parameters.topics is None or KEYWORDS_COLUMN in records.column_names:
        return records
    return with_topics(records, parameters.layout.fields[0], parameters.topics.load(), SentenceEncoder("cpu"))


def _texts(parameters: TextParameters, records: pa.Table) -> list[tuple[Given, str]]:
    layout, records = parameters.layout, _as_learned(parameters, records)
    texts: list[tuple[Given, str]] = []
    for record in records.select(list(layout.columns)).to_pylist():
        given, body = layout.given(record), layout.body(record)
        if given is None or body is None:
            raise MechanismFailed("a canary's record is not one that training would read")
        texts.append((given, body))
    return texts


def _prepared(base: BaseModel, parameters: TextParameters, device: str = "cpu") -> tuple[Any, Encoder]:
    """The model as it will be trained, found sound on random texts, and the layout in its tokens, found to keep records
    apart on made-up ones.

    Where it will be trained, too: kernels and precision are those of the device. And texts can be drawn from it: to
    find otherwise after it was paid for would be too late.

    Raises:
        TrainingRefused: names everything that is wrong with it.
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
    plan: SealedPlan,
    grant: Grant,
    model: Any,
    encoder: Encoder,
    bounded: Path,
    directory: Path,
    checkpoints: Checkpoints,
    device: str,
    progress: Progress,
) -> None:
    """Trains until the weights are complete; what only training needed is gone by then."""
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

    parameters = TextParameters.of(plan)
    training = parameters.training
    place = directory / TRAINING
    with (
        StepJournal(place, training.steps, training.replay_allowance, resuming=checkpoints.resume) as counted,
        remembered_size(place / SIZE) as size,
    ):
        examples = _examples(bounded, directory / EXAMPLES, encoder, checkpoints.ranks)
        mine, units = World().share(examples, examples.units(training.sampled))
        states = States(place / CHECKPOINTS, checkpoints.key, plan_digest=plan.digest, entry_id=grant.entry_id)
        policy = CheckpointPolicy.for_allowance(training.replay_allowance)
        journal = ResumableJournal(counted, states, policy, lambda said: progress(said, 1, 1))
        train(
            model,
            training,
            mine,
            journal=journal,
            health=Watch(training, {name: value for name, value in model.named_parameters() if value.requires_grad}),
            units=units,
            rows=parameters.most_rows,
            progress=SpendingProgress(
                progress,
                parameters.event_of,
                Guarantee.from_json(plan.guarantee).delta,
                training,
                lambda: counted.executed,
            ),
            device=device,
            size=size,
        )
        write_durably(directory / PLAN, plan.to_json())
        trained.save_weights(model, directory, counted.executed)
        shutil.rmtree(place)  # while the journal is held: nobody else can go on with what is complete


def train_along(plan: SealedPlan, base_model: Path, examples: Path, device: str, meet: Callable[[], None]) -> None:
    """Trains as one of several processes, of which the first has the grant and keeps what is trained.

    Args:
        plan: that it was granted for.
        base_model: see `Checkpoints`.
        examples: directory of all examples, which the first one has written. Sensitive.
        device: of this process.
        meet: makes it one of them, and returns when all are there.
    """
    from dpsynth_platform.training.adapter import with_adapter
    from dpsynth_platform.training.loop import train
    from dpsynth_platform.training.world import Follower, World

    parameters = sealing.check(plan)
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
    """The records in tokens, which other processes have opened, too, by the time this returns.

    By then their files have no name, so they go when the processes end.

    However it ends: a training that was cut short may lie there for as long as a model, which real texts may not.
    """
    shutil.rmtree(directory, ignore_errors=True)
    try:
        # Private counts, of which the plan buys none with noise: for nobody but who may read the restricted log.
        note(write_examples(bounded, directory, encoder).in_words)
        examples = Examples(directory)
        if ranks is not None:
            ranks.meet(directory)
        return examples
    finally:  # where files in use cannot go (as on NFS), they go when training is complete, or is resumed
        shutil.rmtree(directory, ignore_errors=True)


def given_rows(table: pa.Table, layout: TextLayout) -> list[Given]:
    """What the model is told for each row."""
    columns = [[text_of(value) for value in table.column(part.column).to_pylist()] for part in layout.conditions]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _vote(plan: SealedPlan, base: BaseModel, records: Path, directory: Path, device: str, progress: Progress) -> None:
    """Private records vote for clusters of the trained model's texts, where the plan says so and nobody has."""
    parameters, adjacency = TextParameters.of(plan), Guarantee.from_json(plan.guarantee).adjacency
    chosen = parameters.resampling
    if chosen is None:
        return

    def count() -> resampling.ClusterVotes:
        encoder = SentenceEncoder("cpu")
        texts = _pool(plan, parameters, base, directory, device, progress)
        voters = resampling.all_voters(records, parameters.layout, encoder, by_owner=adjacency != "fixed-graph")
        return resampling.vote(chosen, texts, voters, encoder)

    resampling.vote_once(directory, directory / TRAINING, count)


def _pool(
    plan: SealedPlan, parameters: TextParameters, base: BaseModel, directory: Path, device: str, progress: Progress
) -> list[str]:
    """Texts of the trained model, by which clusters are made: post-processing.

    By terms that are the same for all runs: what shapes the candidates of a vote decides what it is about, and the
    contract's terms are no part of the plan.
    """
    assert parameters.resampling is not None  # noqa: S101  (`_vote` asks)
    release = ReleaseSchema.from_json(plan.release)
    drawn = counted.draw(parameters.columns, directory / COLUMNS, release, parameters.resampling.texts)
    prompts = given_rows(drawn.table(), parameters.layout)
    written, _ = _drawn(parameters, base, rows_by_given(prompts), directory, TextTerms(), device, progress)
    return [text for texts in written.values() for text in texts]


def _written(
    parameters: TextParameters,
    base: BaseModel,
    prompts: Sequence[Given],
    directory: Path,
    terms: TextTerms,
    device: str,
    progress: Progress,
) -> tuple[dict[Given, list[str]], Kept]:
    """Texts by what the model was told, as many as there are rows or fewer; chosen by votes, where there are any."""
    counts, plan = rows_by_given(prompts), parameters.resampling
    if plan is None:
        return _drawn(parameters, base, counts, directory, terms, device, progress)
    votes = resampling.read_votes(directory)
    written, kept = _drawn(parameters, base, plan.pools(counts), directory, terms, device, progress)
    return resampling.taken(votes, written, counts, SentenceEncoder("cpu")), kept


def rows_by_given(prompts: Sequence[Given]) -> dict[Given, int]:
    """How many rows there are for each thing that the model is told, in the order of the first ones."""
    return dict(Counter(prompts))


def _drawn(
    parameters: TextParameters,
    base: BaseModel,
    counts: Mapping[Given, int],
    directory: Path,
    terms: TextTerms,
    device: str,
    progress: Progress,
) -> tuple[dict[Given, list[str]], Kept]:
    """Texts by what the model was told, as many as are asked for or fewer, and what became of all that were drawn."""
    trained.check_digest(base, parameters.base_digest)
    model, tokenizer = trained.load_for_sampling(base, parameters.training, directory, device)
    # Beside the model, whose content hash the ledger holds; what a crash left there is gone on with.
    place, of = directory.with_name(f"{directory.name}-texts"), trained.digest_of(directory)
    try:
        kept = sample_records(
            model,
            Encoder(parameters.layout, tokenizer),
            counts,
            place,
            of=of,
            rules=terms.rules,
            sampling=terms.sampling,
            progress=progress,
        )
    except StaleInput:  # what lies there is damaged: who draws again must not find it again
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place)
    return by_given(kept.rows, parameters.layout, counts), kept


def by_given(
    rows: Sequence[Mapping[str, str | None]], layout: TextLayout, prompts: Iterable[Given]
) -> dict[Given, list[str]]:
    """The texts of rows that were kept, by what the model was told; of all these prompts, also where there are none."""
    texts: dict[Given, list[str]] = {given: [] for given in prompts}
    for row in rows:
        texts[tuple(row[part.column] for part in layout.conditions)].append(row[layout.fields[0]] or "")
    return texts


def with_texts(
    table: pa.Table, release: ReleaseSchema, written: str, prompts: Sequence[Given], texts: Mapping[Given, list[str]]
) -> pa.Table:
    """The rows that have a text, in their order, with it."""
    left = {given: iter(of_prompt) for given, of_prompt in texts.items()}
    chosen = [next(left[given], None) for given in prompts]
    places = [row for row, text in enumerate(chosen) if text is not None]
    if not places:
        raise MechanismFailed("no text was written that keeps the rules; the model learned too little")
    kept = table.take(pa.array(places, pa.int64()))
    arrays = [
        pa.array([chosen[row] for row in places], field.type) if field.name == written else kept.column(field.name)
        for field in release.schema
    ]
    return pa.table(arrays, schema=release.schema)
