"""The generator `aug_pe`: private evolution of texts, by a language model that is not trained.

What belongs here: the order of its parts, in all three steps. What does not: the parts: the plan
(`evolution_sealing`), the other columns (`synth.tabular`), the rounds (`synth.evolution.loop`), votes
(`evolution_votes`, `resampling`), prompts (`evolution_prompts`), the models that answer them (`evolution_writers`,
`endpoints`), and public texts (`public_texts`, `public_candidates`), which may come first, or alone.

Aug-PE (Xie et al. 2024; algorithm 6 of the guide): a language model writes texts from public words; private records
vote, with noise, for the texts nearest to them; the texts with most votes survive, and variations of them are added.
The mechanism reads the data for noisy counts of the columns and for the votes of each round. Where texts are chosen
among more than are requested, records also vote for clusters of the survivors and their variations. A model directory
holds

    claim.json          the ledger entry's one-time claim
    columns/            measurements and model of the columns, where some are counted (`counted`)
    evolution.jsonl     candidates and noisy votes of every round
    resampling.json     the noisy votes or sums by which texts are chosen, where the plan has some
    plan.json, survivors.json     the survivors of the last vote

An interrupted evolution continues at no further cost: drawn votes are on disk before anything follows from them.
Interrupted counts are not drawn a second time.

The mechanism's own process makes the requests to an endpoint, with private records in memory: no other process runs
between two rounds. The type of a request's content ensures that it is public.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.evolution.journal import EvolutionJournal, has_begun, has_counted
from dpsynth_platform.synth.evolution.loop import Survivors, enough, evolve, weights
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.interface import Drawing, DrawRequest, MechanismRun, PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.text import resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load, refuse_decoder, special_tokens
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.endpoints import SETTING, EndpointWriter
from dpsynth_platform.synth.text.evolution_prompts import TRIES, TextFoundation, Writer
from dpsynth_platform.synth.text.evolution_sealing import ROWS_PER_TEXT, EvolutionParameters
from dpsynth_platform.synth.text.evolution_votes import read_voters
from dpsynth_platform.synth.text.evolution_writers import LocalWriter
from dpsynth_platform.synth.text.generator import (
    COLUMNS,
    PLAN,
    TextGenerator,
    given_rows,
    read_base_model,
    then_votes,
    with_texts,
)
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.public_texts import read_candidates
from dpsynth_platform.synth.text.sampling import TEXTS, apportioned

SurvivingTexts = Mapping[Given, Sequence[tuple[PublicText, int]]]
"""Surviving texts with their noisy votes, by the values that they were written for."""
SURVIVORS = "survivors.json"
"""Within a model directory: the file that is written last."""
READING = "sentence features of the records"
"""Stage of progress; it reports its beginning and its end only."""


class AugPe(TextGenerator[EvolutionParameters]):
    """The generator `aug_pe`."""

    method = "aug_pe"
    kind = EvolutionParameters
    incomplete = "the evolution is not complete"

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates counts and votes together, and tries what the rounds need: once they are paid for, it is too late.

        Raises:
            ConfigurationError: the model is not there or sees too few tokens, the deployment does not list the
                endpoint, or its key cannot be read; or the public table has no text, or the sentence model is missing.
        """
        parameters = tried(inputs.contract, lambda base: EvolutionParameters.calibrated(inputs, base))
        return parameters.parts(inputs)

    def description(self, plan: SealedPlan, parameters: EvolutionParameters) -> tuple[str, dict[str, Any]]:
        chosen, public = parameters.resampling, parameters.public
        clustered = f"{0 if chosen is None else chosen.texts} texts, those that live on and variations of them"
        mechanism = (
            f"{parameters.rounds.rounds} histograms of votes with noise of {parameters.sigma:.3g} votes, where "
            f"{_weighed(plan)}{then_votes(chosen, clustered)}"
        )
        return mechanism, {
            "training_in_words": _in_words(plan, parameters),
            "vote_noise": parameters.sigma,
            "population": parameters.population,
            **({} if public is None else {"public": public.to_json(), "public_in_words": str(public)}),
        }

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        public = EvolutionParameters.of(plan).public
        if public is None:
            return ()
        public.read()
        return public.paths

    def run(self, run: MechanismRun) -> None:
        """Counts the columns, evolves, and has records vote for clusters; continues an interrupted evolution.

        Raises:
            ConfigurationError: the model or the public table is not the plan's, or an endpoint refuses.
        """
        checkpoints, directory = run.language_model, run.directory
        parameters = EvolutionParameters.checked(run.plan)
        place = directory / COLUMNS
        with EvolutionJournal.opened(directory, run.plan.digest, resuming=checkpoints.resume) as journal:
            base = None if checkpoints.base_model is None else read_base_model(checkpoints.base_model)
            writer, special = _writer(parameters, base, checkpoints.endpoint, run.device)
            encoder = SentenceEncoder("cpu")
            public = read_candidates(parameters.public, parameters.layout, encoder.encode)
            if parameters.columns is not None and not measurements.is_complete(place):
                journal.begin_counting()
                counted.measure(parameters.columns, run.bounded, place, run.progress, run.engine)
            counted.estimate(parameters.columns, place, progress=run.progress)
            if journal.groups is None:
                journal.settle(sizes_of(run.plan, parameters, place))
            groups = dict(journal.groups or {})
            foundation = TextFoundation(
                writer, encoder.encode, parameters.wording, parameters.layout, list(groups), special, public=public
            )
            run.progress(READING, 0, 1)
            numbers = {given: number for number, given in enumerate(groups)}
            by_owner = run.plan.guarantee["adjacency"] != "fixed-graph"
            shared_by = parameters.nearest or 1
            voters = read_voters(run.bounded, parameters.layout, numbers, encoder, by_owner=by_owner, nearest=shared_by)
            run.progress(READING, 1, 1)
            survivors = evolve(
                parameters.rounds,
                list(groups.values()),
                foundation,
                lambda features, of: noisy_votes(voters, features, of, parameters.sigma),
                journal,
                run.progress,
            )
            surviving = by_label(survivors, list(groups))
            chosen = parameters.resampling
            if chosen is not None:
                texts = _Texts(parameters, surviving, lambda labels: replace(foundation, groups=labels), run.progress)

                def pool() -> list[str]:
                    return [text for own in texts.divided(apportioned(chosen.texts, groups)).values() for text in own]

                def count() -> resampling.NoisyResult:
                    return chosen.measured(pool, chosen.among(voters, list(groups), parameters.layout), encoder)

                resampling.vote_once(directory, directory / resampling.VOTING, count)
            write_survivors(directory, run.plan, surviving)

    def tried_endpoint(self, plan: SealedPlan, transport: Transport) -> Access | None:
        parameters = EvolutionParameters.of(plan)
        access = _access(parameters, transport)
        if parameters.endpoint is not None and access is not None:
            longest = parameters.sampling.max_tokens or 1
            EndpointWriter(parameters.endpoint, access, parameters.sampling, longest).trial()
        return access

    def is_complete(self, directory: Path) -> bool:
        return (directory / SURVIVORS).is_file()

    def can_resume(self, directory: Path) -> bool:
        """Whether there is a journal, and the columns are counted or counting did not begin.

        The journal has all that was drawn, so no vote is drawn twice.
        """
        if self.is_complete(directory) or not has_begun(directory):
            return False
        return measurements.is_complete(directory / COLUMNS) or not has_counted(directory)

    def drawn(self, request: DrawRequest) -> Drawing:
        """Rows from the model of the columns, each with a surviving text or a variation of one.

        Texts are divided by their noisy votes. The first row of a text gets the text itself, and each further row a
        variation, which the plan's model writes, or is taken from the public table, without any data. Where records
        voted for clusters, more variations are written than there are rows, and some are chosen. Rows without a text
        are left out. `request.texts` is not used: the plan says how texts are drawn.

        Raises:
            ConfigurationError: the deployment does not list the endpoint any more, or the endpoint refuses.
        """
        directory = request.directory
        plan, parameters = self.complete_plan(directory)
        release = ReleaseSchema.from_json(plan.release)
        drawn = counted.draw(parameters.columns, release, replace(request, directory=directory / COLUMNS))
        table = drawn.table()
        prompts = given_rows(table, parameters.layout)

        def foundation(labels: Sequence[Given]) -> TextFoundation:
            transport = request.transport or Transport()
            return foundation_of(parameters, labels, transport, request.device, public=parameters.retrieves)

        counts, chosen = dict(Counter(prompts)), parameters.resampling
        texts = _Texts(parameters, _read_survivors(directory), foundation, request.progress)
        if chosen is None:
            written = texts.divided(counts)
        else:
            votes = resampling.read_votes(directory, chosen, parameters.layout)
            written = votes.taken(texts.divided(chosen.pools(counts)), counts, SentenceEncoder("cpu"))
        whole = with_texts(table, release, parameters.layout.fields[0], prompts, written)
        return Drawing(
            whole.schema, whole.num_rows, iter(whole.to_batches()), missing=drawn.missing, measured=drawn.measured
        )


def tried(
    contract: DataContract, parameters_of: Callable[[BaseModel | None], EvolutionParameters]
) -> EvolutionParameters:
    """The parameters for the contract's model, if it is there and can write.

    Raises:
        ConfigurationError: the model is not there or sees too few tokens, the deployment does not list the
            endpoint, or its key cannot be read; or the sentence model is missing.
    """
    base, generate = None, contract.generate
    if generate.endpoint is None and not generate.asks_no_model:
        base = trained.deployed(str(generate.base_model))
        refuse_decoder(base, f"method {AugPe.method}")
    elif generate.endpoint is not None:
        endpoint = Endpoint(generate.endpoint.url, str(generate.base_model))
        Access.of(endpoint, Transport(), Settings.from_environment(), SETTING)
    parameters = parameters_of(base)
    if base is not None:
        _writer(parameters, base, None, "cpu")
    SentenceEncoder("cpu")
    return parameters


def foundation_of(
    parameters: EvolutionParameters, labels: Sequence[Given], transport: Transport, device: str, *, public: bool
) -> TextFoundation:
    """What makes texts of these labels in this deployment, without any data.

    Args:
        public: whether texts of the plan's public table are among them.

    Raises:
        ConfigurationError: the model or the table is not the plan's, or the deployment does not list the endpoint.
    """
    here = parameters.asks_model and parameters.endpoint is None
    base = trained.deployed(parameters.base_model) if here else None
    writer, special = _writer(parameters, base, _access(parameters, transport), device)
    encoder = SentenceEncoder("cpu")
    table = read_candidates(parameters.public if public else None, parameters.layout, encoder.encode)
    return TextFoundation(writer, encoder.encode, parameters.wording, parameters.layout, labels, special, public=table)


def _in_words(plan: SealedPlan, parameters: EvolutionParameters) -> str:
    """What the model writes, and what records vote for, for readers who are no experts."""
    rounds, endpoint, resampled = parameters.rounds, parameters.endpoint, parameters.resampling
    public, written, shared = parameters.public, parameters.layout.fields[0], parameters.nearest
    where = "" if endpoint is None else f", behind {endpoint.host},"
    conditions = ", ".join(condition.column for condition in parameters.layout.conditions)
    alike = f", among those of its {conditions}," if conditions else ""
    chosen = "" if resampled is None else f". {resampled.choice_in_words}"
    each = "one" if resampled is None else f"{resampled.pool:g}"
    each_round = "In the one round" if rounds.rounds == 1 else f"In each of {rounds.rounds} rounds"
    ahead = f", by the mean of {rounds.lookahead} variations" if rounds.lookahead else ""
    model = f"{parameters.base_model}{where}"
    source = (
        f"{model} writes {written} from public words and from texts of its own that were chosen, and is not trained"
    )
    if public is not None:
        ways = [f"{model}, which is not trained, rewrites those that were chosen"] if parameters.asks_model else []
        ways += ["the nearest texts of the table follow those that were chosen"] if parameters.retrieves else []
        table = f"the public table {PurePath(public.uri).name} (SHA-256 of its rows: {public.digest})"
        source = f"{written} is first taken from {table}, word for word; then {', or '.join(ways)}"
    nearest = "the one" if shared is None else f"the {shared}"
    is_nearest = "is nearest to its own" if shared is None else "are nearest to its own, which share its vote"
    prompts = f"That takes some {parameters.prompts:,} prompts, and each time that rows are drawn {each} for each row, "
    prompts += f"less those that live on; a prompt without a text in its answer is sent up to {TRIES} times"
    return (
        f"{source}. {each_round} every record votes for {nearest} "
        f"of about {parameters.candidates} texts that{alike} {is_nearest}{ahead}; {_weighed(plan)}, and noise "
        f"of {parameters.sigma:.3g} votes is added for every text. About {parameters.survivors} texts live on, and "
        f"are varied{chosen}. {prompts if parameters.asks_model else 'No model is asked'}"
    )


def _weighed(plan: SealedPlan) -> str:
    """The weight of one owner's votes; see `evolution_votes.Voters`."""
    if plan.guarantee["adjacency"] == "fixed-graph":
        return "each record has one vote in full, independent of its owners"
    return "all votes of one owner have the length (L2 norm) of one vote together"


def _writer(
    parameters: EvolutionParameters, base: BaseModel | None, access: Path | Access | None, device: str
) -> tuple[Writer | None, tuple[str, ...]]:
    """The model that answers prompts, if one is asked, and the special tokens that no text of it may contain.

    Raises:
        GrantRefused: the job names no model, or does not say how to reach the endpoint.
        ConfigurationError: the model is not the plan's, or cannot be sampled from.
    """
    longest = parameters.sampling.max_tokens or 1
    if not parameters.asks_model:
        return None, ()
    if parameters.endpoint is not None:
        known = access if isinstance(access, Access) else Access.read(access)
        return EndpointWriter(parameters.endpoint, known, parameters.sampling, longest), ()
    if base is None:
        raise GrantRefused("the job names no model that writes texts; accepted: the plan's base model")
    import torch

    from dpsynth_platform.training.precision import precision_of

    trained.check_digest(base, parameters.base_digest)
    model, tokenizer = load(base)
    model = model.to(device, precision_of(torch.device(device)))
    special = tuple(special_tokens(tokenizer).values())
    return LocalWriter(model, tokenizer, parameters.sampling, longest), special


def _access(parameters: EvolutionParameters, transport: Transport) -> Access | None:
    endpoint = parameters.endpoint
    return None if endpoint is None else Access.of(endpoint, transport, Settings.from_environment(), SETTING)


def sizes_of(plan: SealedPlan, parameters: EvolutionParameters, columns: Path) -> dict[Given, int]:
    """How many texts of each label survive, in proportion to rows of the columns' model: at least one of each."""
    request = DrawRequest(columns, ROWS_PER_TEXT * parameters.population)
    drawn = counted.draw(parameters.columns, ReleaseSchema.from_json(plan.release), request).table()
    counts = Counter(given_rows(drawn, parameters.layout))
    return {given: max(1, size) for given, size in apportioned(parameters.population, counts).items()}


def by_label(survivors: Survivors[PublicText], groups: Sequence[Given]) -> SurvivingTexts:
    """The survivors by the values of each group."""
    found: dict[Given, list[tuple[PublicText, int]]] = {}
    for text, group, votes in zip(survivors.samples, survivors.groups, survivors.votes, strict=True):
        found.setdefault(groups[group], []).append((text, votes))
    return found


def write_survivors(directory: Path, plan: SealedPlan, surviving: SurvivingTexts) -> None:
    """Writes plan and survivors, and so completes a model directory."""
    write_durably(directory / PLAN, plan.to_json())
    document = [
        {"text": text.words, "given": list(given), "votes": votes}
        for given, own in surviving.items()
        for text, votes in own
    ]
    write_durably(directory / SURVIVORS, json.dumps(document))


@dataclass(frozen=True)
class _Texts:
    """The survivors, and variations of them.

    Attributes:
        foundation: varies texts of some labels; called only if there are texts to vary.
    """

    parameters: EvolutionParameters
    surviving: SurvivingTexts
    foundation: Callable[[Sequence[Given]], TextFoundation]
    progress: Progress

    def divided(self, counts: Mapping[Given, int]) -> dict[Given, list[str]]:
        """At most so many texts of each label, by the survivors' noisy votes: each text once, then variations."""
        parents: list[tuple[Given, PublicText]] = []
        texts: dict[Given, list[str]] = {given: [] for given in counts}
        taken: set[tuple[Given, str]] = set()
        threshold = self.parameters.threshold * self.parameters.sigma * RECORD_PARTS
        best: dict[str, int] = {}  # of public texts, which may survive for several labels: the most votes
        if self.parameters.public is not None:
            for public, votes in (each for survivors in self.surviving.values() for each in survivors):
                best[public.words] = max(votes, best.get(public.words, votes))
        for given, number in counts.items():
            whole = self.surviving.get(given, [])
            own = [each for each in whole if each[1] == best.get(each[0].words, each[1])] or whole
            weighed = weights([votes for _, votes in own], threshold)
            for at, times in (apportioned(number, dict(enumerate(weighed))) if own else {}).items():
                if times:
                    taken.add((given, own[at][0].words))
                    texts[given].append(own[at][0].words)
                    parents += [(given, own[at][0])] * (times - 1)
        total = sum(counts.values())
        self.progress(TEXTS, total - len(parents), total)
        if parents:
            labels = list(texts)
            numbers = {given: number for number, given in enumerate(labels)}
            varied = replace(self.foundation(labels), taken=taken).vary(
                [text for _, text in parents], [numbers[given] for given, _ in parents]
            )
            for (given, _), text in zip(parents, enough(varied), strict=True):
                if text is not None:
                    texts[given].append(text.words)
            self.progress(TEXTS, total, total)
        return texts


def _read_survivors(directory: Path) -> SurvivingTexts:
    """Reads `write_survivors` back. Raises `MechanismFailed` if it is damaged."""
    try:
        found: dict[Given, list[tuple[PublicText, int]]] = {}
        for line in json.loads((directory / SURVIVORS).read_text(encoding="utf-8")):
            found.setdefault(tuple(line["given"]), []).append((PublicText(line["text"]), int(line["votes"])))
    except (OSError, ValueError, LookupError, TypeError):
        raise MechanismFailed("the file of surviving texts is damaged") from None
    return found
