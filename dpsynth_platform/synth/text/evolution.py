"""The generator `aug_pe`: private evolution of texts, by a language model that is not trained.

What belongs here: the order of its parts, in all three moments. What does not: the parts: the plan
(`evolution_sealing`), the columns beside the text (`synth.tabular`), the rounds (`evolution_loop`), votes
(`evolution_votes`, `resampling`), prompts (`evolution_prompts`), and who answers them (`evolution_writers`,
`endpoints`).

Aug-PE (Xie et al. 2024; algorithm 6 of the guide): a language model writes texts from public words; private records
vote, with noise, for the ones that are nearest to them; the best live on beside variations of them. The mechanism reads
the data for noisy counts of the columns, and for the votes of each round; and once more where texts are chosen among
more than are asked for, when records vote for clusters of what lived on and its variations. A model directory holds

    claim.json          the ledger entry's one-time claim
    columns/            measurements and model of the columns, where some are counted (`counted`)
    evolution.jsonl     candidates and noisy votes of every round
    resampling.json     the noisy votes by which texts are chosen, where the plan has some
    plan.json, survivors.json     what lived on, once the last vote is there

An evolution that was cut short goes on where it was, at no further cost: votes that were drawn are on disk before
anything follows from them. Counts that were cut short are not drawn a second time.

Requests to an endpoint are made by the mechanism's own process, which has private records in memory: between two rounds
there is nobody else to make them. What they hold is public by its type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.interface import DECLARED, Checkpoints, Drawing, SealedPlan
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.text import counted, evolution_sealing, resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load, refuse_decoder, special_tokens
from dpsynth_platform.synth.text.dp_finetune import (
    COLUMNS,
    PLAN,
    given_rows,
    read_base_model,
    rows_by_given,
    with_texts,
)
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.text.endpoints import EndpointWriter
from dpsynth_platform.synth.text.evolution_journal import EvolutionJournal, has_begun, has_counted
from dpsynth_platform.synth.text.evolution_loop import Survivors, enough, evolve, weights
from dpsynth_platform.synth.text.evolution_prompts import TRIES, TextFoundation, Writer
from dpsynth_platform.synth.text.evolution_sealing import ROWS_PER_TEXT, EvolutionParameters
from dpsynth_platform.synth.text.evolution_votes import Voters, noisy_votes, read_voters
from dpsynth_platform.synth.text.evolution_writers import LocalWriter
from dpsynth_platform.synth.text.layout import Given
from dpsynth_platform.synth.text.private_text import Features
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.sampling import TEXTS, apportioned
from dpsynth_platform.synth.text.terms import TextTerms

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.ledger.grants import Grant

Lived = Mapping[Given, Sequence[tuple[PublicText, int]]]
"""Texts that lived on with their noisy votes, by what they were written for."""
SURVIVORS = "survivors.json"
"""Within a model directory, what is written last."""
READING = "sentence features of the records"
"""Stage of progress; told of its beginning and its end alone."""


class AugPe:
    """The generator `aug_pe`."""

    method = "aug_pe"

    def plan(
        self,
        contract: DataContract,
        schema: pa.Schema,
        guarantee: Guarantee,
        *,
        period: str | None = None,
        why: str = DECLARED,
    ) -> SealedPlan:
        """Calibrates counts and votes together; see `Generator.plan`.

        Raises:
            ConfigurationError: the model that writes is not there, or the endpoint is none of the deployment's, or its
                key cannot be read.
        """
        base = None
        if contract.generate.endpoint is None:
            base = trained.deployed(str(contract.generate.base_model))
            refuse_decoder(base, f"method {self.method}")
        else:
            endpoint = Endpoint(contract.generate.endpoint.url, str(contract.generate.base_model))
            Access.of(endpoint, Transport(), Settings.from_environment())
        return evolution_sealing.sealed(self.method, contract, schema, guarantee, base, period=period, why=why)

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """The columns' description, and the evolution's; see `Generator.describe`."""
        parameters = EvolutionParameters.of(plan)
        columns = counted.described(
            parameters.columns,
            (
                f"{parameters.rounds.rounds} histograms of votes with noise of {parameters.sigma:.3g} votes, where "
                f"{_weighed(plan)}{_vote_in_words(parameters)}"
            ),
        )
        return columns | {
            "base_model": parameters.base_model,
            "training_in_words": _in_words(plan, parameters),
            "vote_noise": parameters.sigma,
            "population": parameters.population,
            "predicted_memory_bytes": columns["predicted_memory_bytes"] + parameters.memory_bytes,
        }

    def check(self, plan: SealedPlan) -> None:
        """The sealed event is what the plan's parts cost; raises `GrantRefused` if it is not."""
        evolution_sealing.check(plan)

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
        """Counts the columns, evolves, and has clusters voted for; or goes on where it was. See `Generator.fit`.

        Raises:
            ConfigurationError: the model that writes is another one than the plan's, or an endpoint refuses.
        """
        if grant.plan_digest != plan.digest:
            raise GrantRefused("the grant is for another plan than the one to run")
        if checkpoints is None:
            raise GrantRefused("the job names nobody who writes texts")
        parameters = evolution_sealing.check(plan)
        place = directory / COLUMNS
        with EvolutionJournal.opened(directory, plan.digest, resuming=checkpoints.resume) as journal:
            base = None if checkpoints.base_model is None else read_base_model(checkpoints.base_model)
            writer, special = _writer(parameters, base, checkpoints.endpoint, device)
            if parameters.columns is not None and not measurements.is_complete(place):
                journal.begin_counting()
                counted.measure(parameters.columns, bounded, place, progress, engine)
            counted.estimate(parameters.columns, place, progress=progress)
            if journal.groups is None:
                journal.settle(_sizes(plan, parameters, place))
            groups, encoder = dict(journal.groups or {}), SentenceEncoder("cpu")
            foundation = _foundation(parameters, writer, list(groups), special, encoder)
            voters = _voters(plan, parameters, bounded, groups, encoder, progress)
            lived = _lived(_evolved(parameters, voters, groups, foundation, journal, progress), list(groups))
            _vote(parameters, lived, groups, foundation, voters, encoder, directory, progress)
            write_durably(directory / PLAN, plan.to_json())
            _write_survivors(directory, lived)

    def is_complete(self, directory: Path) -> bool:
        """Whether the last vote is there; see `Generator.is_complete`."""
        return (directory / SURVIVORS).is_file()

    def can_resume(self, directory: Path) -> bool:
        """Whether the journal is there, and the columns are counted or nothing of them was begun.

        What was drawn is in it, so no vote is ever drawn twice.
        """
        if self.is_complete(directory) or not has_begun(directory):
            return False
        return measurements.is_complete(directory / COLUMNS) or not has_counted(directory)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns again; texts that lived on stay as they are. See `Generator.estimate`."""
        if not self.is_complete(directory):
            raise MechanismFailed("the evolution is not complete, so there is nothing to go on with")
        parameters = EvolutionParameters.of(plan)
        counted.estimate(parameters.columns, directory / COLUMNS, device=device, progress=progress)

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
        """Rows from the model of the columns, each with a text that lived on, or a variation of one.

        Texts are shared out by their noisy votes. The first row that one falls to has the text itself, and each
        further one a variation, which the plan's model writes without any data; where clusters were voted for, more are
        written than there are rows, and chosen. A row for which none came is left out.

        Args:
            texts: not looked at: how texts are drawn is part of the plan.
            transport: how an endpoint is asked for variations, if one has the model.

        Raises:
            ConfigurationError: the endpoint is none of the deployment's any more, or refuses.
        """
        plan = _read_plan(directory)
        parameters, release = EvolutionParameters.of(plan), ReleaseSchema.from_json(plan.release)
        drawn = counted.draw(
            parameters.columns,
            directory / COLUMNS,
            release,
            rows,
            constraints=constraints,
            given=given,
            progress=progress,
        )
        table = drawn.table()
        prompts = given_rows(table, parameters.layout)
        written = _written(directory, parameters, prompts, transport or Transport(), device, progress)
        whole = with_texts(table, release, parameters.layout.fields[0], prompts, written)
        return Drawing(whole.schema, whole.num_rows, iter(whole.to_batches()), missing=drawn.missing)

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """Draws rows from the model; see `Generator.sample`."""
        return self.draw(directory, rows).table()


def _in_words(plan: SealedPlan, parameters: EvolutionParameters) -> str:
    """Who writes which texts, and what records vote for, for readers who are no experts."""
    rounds, endpoint = parameters.rounds, parameters.endpoint
    where = "" if endpoint is None else f", behind {endpoint.host},"
    told = ", ".join(condition.column for condition in parameters.layout.conditions)
    alike = f", among those of its {told}," if told else ""
    chosen = "" if parameters.resampling is None else f". {parameters.resampling.choice_in_words}"
    each = "one" if parameters.resampling is None else f"{parameters.resampling.pool:g}"
    each_round = "In the one round" if rounds.rounds == 1 else f"In each of {rounds.rounds} rounds"
    ahead = f", by the mean of {rounds.lookahead} variations" if rounds.lookahead else ""
    return (
        f"{parameters.base_model}{where} writes {parameters.layout.fields[0]} from public words and from texts of its "
        f"own that were chosen, and is not trained. {each_round} every record votes for the one "
        f"of about {parameters.candidates} texts that{alike} is nearest to its own{ahead}; {_weighed(plan)}, and noise "
        f"of {parameters.sigma:.3g} votes is added for every text. About {parameters.living} texts live on, and "
        f"are varied{chosen}. That takes some {parameters.prompts:,} prompts, and each time that rows are drawn {each} "
        f"for each row, less those that live on; a prompt that no text comes of is asked up to {TRIES} times"
    )


def _vote_in_words(parameters: EvolutionParameters) -> str:
    plan = parameters.resampling
    if plan is None:
        return ""
    return f"; then {plan.in_words(f'{plan.texts} texts, those that live on and variations of them')}"


def _weighed(plan: SealedPlan) -> str:
    """What one owner's votes weigh; see `evolution_votes.Voters`."""
    if plan.guarantee["adjacency"] == "fixed-graph":
        return "each record has one vote in full, whoever its owners are"
    return "all votes of one owner have the length (L2 norm) of one vote together"


def _writer(
    parameters: EvolutionParameters, base: BaseModel | None, access: Path | Access | None, device: str
) -> tuple[Writer, tuple[str, ...]]:
    """Who answers prompts, and the special tokens that no text may hold.

    Raises:
        GrantRefused: the plan's model is on this machine, and none is named, or behind an endpoint, and nobody says how
            that is reached.
        ConfigurationError: it is another one than the plan's, or cannot be sampled from.
    """
    longest = parameters.sampling.max_tokens or 1
    if parameters.endpoint is not None:
        known = access if isinstance(access, Access) else Access.read(access)
        return EndpointWriter(parameters.endpoint, known, parameters.sampling, longest), ()
    if base is None:
        raise GrantRefused("the job names no model that writes texts")
    import torch

    from dpsynth_platform.training.precision import precision_of

    trained.check_digest(base, parameters.base_digest)
    model, tokenizer = load(base)
    model = model.to(device, precision_of(torch.device(device)))
    special = tuple(special_tokens(tokenizer).values())
    return LocalWriter(model, tokenizer, parameters.sampling, longest), special


def tried_endpoint(plan: SealedPlan, transport: Transport) -> Access | None:
    """How the plan's endpoint is reached, after it has written one text on trial; None where there is none.

    Raises:
        ConfigurationError: the endpoint is none of the deployment's, its key cannot be read, or no text came.
    """
    parameters = EvolutionParameters.of(plan)
    access = _access(parameters, transport)
    if parameters.endpoint is not None and access is not None:
        EndpointWriter(parameters.endpoint, access, parameters.sampling, parameters.sampling.max_tokens or 1).trial()
    return access


def _access(parameters: EvolutionParameters, transport: Transport) -> Access | None:
    endpoint = parameters.endpoint
    return None if endpoint is None else Access.of(endpoint, transport, Settings.from_environment())


def _sizes(plan: SealedPlan, parameters: EvolutionParameters, columns: Path) -> dict[Given, int]:
    """How many texts of each label live on, by rows that the model of the noisy counts gives: at least one of each."""
    rows, release = ROWS_PER_TEXT * parameters.population, ReleaseSchema.from_json(plan.release)
    drawn = counted.draw(parameters.columns, columns, release, rows).table()
    counts: dict[Given, int] = {}
    for given in given_rows(drawn, parameters.layout):
        counts[given] = counts.get(given, 0) + 1
    return {given: max(1, size) for given, size in apportioned(parameters.population, counts).items()}


def _voters(
    plan: SealedPlan,
    parameters: EvolutionParameters,
    bounded: Path,
    groups: Iterable[Given],
    encoder: SentenceEncoder,
    progress: Progress,
) -> Voters:
    """The bounded table's records. Sensitive."""
    progress(READING, 0, 1)
    voters = read_voters(
        bounded,
        parameters.layout,
        {given: number for number, given in enumerate(groups)},
        encoder,
        by_owner=Guarantee.from_json(plan.guarantee).adjacency != "fixed-graph",
    )
    progress(READING, 1, 1)
    return voters


def _evolved(
    parameters: EvolutionParameters,
    voters: Voters,
    groups: Mapping[Given, int],
    foundation: TextFoundation,
    journal: EvolutionJournal,
    progress: Progress,
) -> Survivors[PublicText]:
    """The rounds, with votes of the records."""

    def ballot(features: Features, of: Sequence[int]) -> Counts:
        return noisy_votes(voters, features, of, parameters.sigma)

    return evolve(parameters.rounds, list(groups.values()), foundation, ballot, journal, progress)


def _vote(
    parameters: EvolutionParameters,
    lived: Lived,
    groups: Mapping[Given, int],
    foundation: TextFoundation,
    voters: Voters,
    encoder: SentenceEncoder,
    directory: Path,
    progress: Progress,
) -> None:
    """Records vote for clusters of what lived on and its variations, where the plan says so and nobody has."""
    chosen = parameters.resampling
    if chosen is None:
        return

    def count() -> resampling.ClusterVotes:
        asked = apportioned(chosen.texts, groups)
        pool = _shared_out(parameters, lived, asked, lambda labels: replace(foundation, groups=labels), progress)
        return resampling.vote(chosen, [text for own in pool.values() for text in own], voters, encoder)

    resampling.vote_once(directory, directory / resampling.VOTING, count)


def _foundation(
    parameters: EvolutionParameters,
    writer: Writer,
    groups: Sequence[Given],
    special: Sequence[str],
    encoder: SentenceEncoder | None = None,
) -> TextFoundation:
    encode = (encoder or SentenceEncoder("cpu")).encode
    return TextFoundation(writer, encode, parameters.wording, parameters.layout, groups, special)


def _lived(survivors: Survivors[PublicText], groups: Sequence[Given]) -> Lived:
    found: dict[Given, list[tuple[PublicText, int]]] = {}
    for text, group, votes in zip(survivors.samples, survivors.groups, survivors.votes, strict=True):
        found.setdefault(groups[group], []).append((text, votes))
    return found


def _write_survivors(directory: Path, lived: Lived) -> None:
    document = [
        {"text": text.words, "given": list(given), "votes": votes}
        for given, own in lived.items()
        for text, votes in own
    ]
    write_durably(directory / SURVIVORS, json.dumps(document))


def _read_plan(directory: Path) -> SealedPlan:
    """The plan of a complete evolution. Raises `MechanismFailed` if there is none."""
    if not (directory / SURVIVORS).is_file():
        raise MechanismFailed("the evolution is not complete; there is nothing to draw from")
    return SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))


def _written(
    directory: Path,
    parameters: EvolutionParameters,
    prompts: Sequence[Given],
    transport: Transport,
    device: str,
    progress: Progress,
) -> dict[Given, list[str]]:
    """Texts by what they were written for, as many as there are rows or fewer; chosen by votes, where there are any."""
    lived, counts, plan = _read_survivors(directory), rows_by_given(prompts), parameters.resampling

    def foundation(labels: Sequence[Given]) -> TextFoundation:
        base = None if parameters.endpoint is not None else trained.deployed(parameters.base_model)
        writer, special = _writer(parameters, base, _access(parameters, transport), device)
        return _foundation(parameters, writer, labels, special)

    if plan is None:
        return _shared_out(parameters, lived, counts, foundation, progress)
    votes = resampling.read_votes(directory)
    pools = _shared_out(parameters, lived, plan.pools(counts), foundation, progress)
    return resampling.taken(votes, pools, counts, SentenceEncoder("cpu"))


def _shared_out(
    parameters: EvolutionParameters,
    lived: Lived,
    asked: Mapping[Given, int],
    foundation: Callable[[Sequence[Given]], TextFoundation],
    progress: Progress,
) -> dict[Given, list[str]]:
    """So many texts of each label, or fewer, by the noisy votes of what lived on: each text once, then variations.

    Args:
        parameters: of the plan.
        lived: what lived on.
        asked: how many texts of each label.
        foundation: makes who varies texts of these labels; called if there are any to vary.
        progress: told of texts.
    """
    parents: list[tuple[Given, PublicText]] = []
    texts: dict[Given, list[str]] = {given: [] for given in asked}
    for given, number in asked.items():
        own = lived.get(given, [])
        weighed = weights([votes for _, votes in own], parameters.threshold * parameters.sigma * RECORD_PARTS)
        for at, times in (apportioned(number, dict(enumerate(weighed))) if own else {}).items():
            if times:
                texts[given].append(own[at][0].words)
                parents += [(given, own[at][0])] * (times - 1)
    total = sum(asked.values())
    progress(TEXTS, total - len(parents), total)
    if parents:
        labels = list(texts)
        numbers = {given: number for number, given in enumerate(labels)}
        found = foundation(labels).vary([text for _, text in parents], [numbers[given] for given, _ in parents])
        for (given, _), text in zip(parents, enough(found), strict=True):
            if text is not None:
                texts[given].append(text.words)
        progress(TEXTS, total, total)
    return texts


def _read_survivors(directory: Path) -> Lived:
    """Reads `_write_survivors` back. Raises `MechanismFailed` if it is damaged."""
    try:
        found: dict[Given, list[tuple[PublicText, int]]] = {}
        for line in json.loads((directory / SURVIVORS).read_text(encoding="utf-8")):
            found.setdefault(tuple(line["given"]), []).append((PublicText(line["text"]), int(line["votes"])))
    except (OSError, ValueError, LookupError, TypeError):
        raise MechanismFailed("what lived on is damaged") from None
    return found
