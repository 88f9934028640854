"""The generator `dp_inference`: a text column that a language model writes while it reads records, token by token.

What belongs here: the order of its parts, in all three moments. What does not: the parts: the plan
(`inference_sealing`, `inference_plan`), contexts (`inference_contexts`), what the model says (`inference_model`), the
draw (`inference_choice`), the loop (`inference_writing`), votes for documents (`resampling`), and the columns beside
the text (`synth.tabular`).

Nothing is trained. The mechanism reads the data twice: noisy counts of the columns, from which follows how many
contexts each label has; then records, of which the documents are drawn. What it leaves is these documents, so that
there are no more than were paid for: rows are drawn from the columns' model, as many as there are documents for. Where
no column is counted (`counted`), contexts have no label, and every document makes a row. Where documents are chosen
among more than are asked for, records vote for clusters of them at last. A model directory holds

    claim.json      the ledger entry's one-time claim
    columns/        measurements and model of the columns, where some are counted
    texts.jsonl     the documents
    written.json    says that they are complete
    resampling.json the noisy votes by which documents are chosen, where the plan has some

A mechanism that was cut short is not gone on with: its documents are lost, and another attempt is a new spend. But
where all documents are there, and nobody has voted for them, the same attempt goes on with the vote.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed, StaleInput
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import read_table, table_schema, write_durably
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import DECLARED, Checkpoints, Drawing, SealedPlan
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.text import counted, inference_sealing, resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load, refuse_decoder, special_tokens
from dpsynth_platform.synth.text.dp_finetune import (
    COLUMNS,
    PLAN,
    by_given,
    given_rows,
    read_base_model,
    with_texts,
)
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.filtering import Rules, filtered
from dpsynth_platform.synth.text.inference_contexts import Contexts, placed
from dpsynth_platform.synth.text.inference_model import Prompts
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters, about_of
from dpsynth_platform.synth.text.inference_writing import Writer, shape_of
from dpsynth_platform.synth.text.layout import Encoder, Given, TextLayout
from dpsynth_platform.synth.text.rows import check_rows
from dpsynth_platform.synth.text.sampling import TEXTS, TEXTS_FILE, SyntheticText, read_texts
from dpsynth_platform.synth.text.sealing import layout_of
from dpsynth_platform.synth.text.terms import TextTerms
from dpsynth_platform.synth.text.unread import begin_reading, declare_unread, is_unread
from dpsynth_platform.training.precision import precision_of

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.ledger.grants import Grant
    from dpsynth_platform.synth.text.endpoint_access import Transport

_WRITTEN = "written.json"
_ROWS_FOR_SHARES = 10_000
"""By their labels contexts are shared out: rows of the columns' model, which is cheaper to draw from than to sum up."""
_RULES = Rules(duplicates="kept")
"""A text that came twice was paid for twice, and none could be drawn in its place."""
_ROWS_FOR_A_DOCUMENT = 4
"""Of the columns' model: those whose label has no document left are left out."""


class DpInference:
    """The generator `dp_inference`."""

    method = "dp_inference"

    def plan(
        self,
        contract: DataContract,
        schema: pa.Schema,
        guarantee: Guarantee,
        *,
        period: str | None = None,
        why: str = DECLARED,
    ) -> SealedPlan:
        """Counts tokens and documents that the guarantee has room for, and tries the model; see `Generator.plan`.

        Raises:
            ContractError: the budget buys fewer documents than the contract asks for.
            ConfigurationError: the base model is not there, or cannot be used.
        """
        generate = contract.generate
        if generate.base_model is None or generate.text is None or generate.text.inference is None:
            raise ContractError(f"{contract.dataset}: generate: accepted are base_model and text.inference")
        base = trained.deployed(generate.base_model)
        refuse_decoder(base, f"method {self.method}")
        tokens = generate.text.inference.document_tokens
        asked = _Asked.prepared(base, layout_of(contract), about_of(contract), tokens)
        if generate.text.resample is not None:
            SentenceEncoder("cpu")  # votes need it: to miss it once documents are paid for would be too late
        return inference_sealing.sealed(
            self.method, contract, schema, guarantee, base, row_bytes=asked.row_bytes, period=period, why=why
        )

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """The columns' description, and what is drawn; see `Generator.describe`."""
        parameters = InferenceParameters.of(plan)
        drawn = parameters.inference
        cost = epsilon(drawn.event, Guarantee.from_json(plan.guarantee).delta)
        columns = counted.described(
            parameters.columns,
            (
                f"{drawn.tokens} tokens from each of {drawn.contexts} contexts of disjoint "
                f"owners, each drawn by the exponential mechanism (range {drawn.epsilon_of_choice:.3g})"
                f"{_vote_in_words(parameters)}"
            ),
        )
        return columns | {
            "base_model": parameters.base_model,
            "training_in_words": _in_words(parameters),
            "contexts": drawn.contexts,
            "tokens_of_a_context": drawn.tokens,
            "documents_at_least": drawn.documents,
            "epsilon_of_documents_alone": cost.epsilon,
            "next_tokens_asked_for": _calls(parameters),
            "predicted_memory_bytes": columns["predicted_memory_bytes"] + parameters.memory_bytes,
        }

    def check(self, plan: SealedPlan) -> None:
        """The sealed event is what the plan's parts cost; raises `GrantRefused` if it is not."""
        inference_sealing.check(plan)

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
        """Counts the columns, writes documents, and has them voted for; or goes on with that. See `Generator.fit`.

        It goes on where no record was read, or nobody has voted for the documents.

        Raises:
            ConfigurationError: the base model is another one than the plan's, or cannot be used.
        """
        if grant.plan_digest != plan.digest:
            raise GrantRefused("the grant is for another plan than the one to run")
        if checkpoints is None or checkpoints.base_model is None:
            raise GrantRefused("the job names no base model, which writes the texts")
        parameters = inference_sealing.check(plan)
        if not checkpoints.resume:
            declare_unread(directory)
        # Everything that can be wrong with the models is found before the data are read.
        base = read_base_model(checkpoints.base_model)
        trained.check_digest(base, parameters.base_digest)
        chosen = parameters.resampling
        encoder = None if chosen is None else SentenceEncoder("cpu")
        if is_unread(directory):
            _write(plan, parameters, base, bounded, directory, device, progress, engine)
        if chosen is not None and encoder is not None:
            _vote(chosen, parameters.layout, bounded, directory, encoder)

    def is_complete(self, directory: Path) -> bool:
        """Whether all documents are written, and voted for where they are to be; see `Generator.is_complete`."""
        return _is_written(directory) and (resampling.has_votes(directory) or not _votes_follow(directory))

    def can_resume(self, directory: Path) -> bool:
        """Whether all documents are written, and nobody has voted for them, or no record was read yet.

        Documents that were cut short are lost with what they cost. See `Generator.can_resume`.
        """
        return is_unread(directory) or (_is_written(directory) and not self.is_complete(directory))

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns again; documents stay as they are. See `Generator.estimate`."""
        if not self.is_complete(directory):
            raise MechanismFailed("the documents are not complete, so there is nothing to go on with")
        columns = InferenceParameters.of(plan).columns
        counted.estimate(columns, directory / COLUMNS, device=device, progress=progress)

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
        """Rows from the model of the columns, each with a document of its label; see `Generator.draw`.

        Where clusters were voted for, a part of each label's documents is chosen. A document that does not keep the
        rules (`filtering.Rules`) is left out, and so is a row for which none is left.

        Args:
            texts: has no part in it: documents were drawn by the mechanism.

        Raises:
            ContractError: more rows are asked for than documents were paid for.
        """
        if not self.is_complete(directory):
            raise MechanismFailed("the documents are not complete; there is no model to draw from")
        plan = SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))
        parameters, (written, special) = InferenceParameters.of(plan), _read(directory)
        chosen, layout = parameters.resampling, parameters.layout
        most = len(written) if chosen is None else chosen.taken_of(len(written))
        if rows is not None and rows > most:
            among = "" if chosen is None else f", of which {chosen.share_in_words} is taken"
            raise ContractError(
                f"{plan.dataset}: {rows} rows, but {len(written)} documents were paid for and written{among}, and "
                f"there is no more to draw; accepted: up to {most} rows, or a new run, which has a cost of its own"
            )
        documents = _documents(written, layout, special)
        if chosen is not None:
            votes, counts = resampling.read_votes(directory), _shares(documents, most if rows is None else rows)
            documents = resampling.taken(votes, documents, counts, SentenceEncoder("cpu"))
        release, many = ReleaseSchema.from_json(plan.release), _ROWS_FOR_A_DOCUMENT * len(written)
        drawn = counted.draw(
            parameters.columns, directory / COLUMNS, release, many, constraints=constraints, given=given
        )
        table = drawn.table()
        prompts = given_rows(table, layout)
        none: dict[Given, list[str]] = {given: [] for given in prompts}
        whole = with_texts(table, release, layout.fields[0], prompts, none | documents)
        whole = whole.slice(0, most if rows is None else rows)
        progress(TEXTS, whole.num_rows, whole.num_rows)
        return Drawing(whole.schema, whole.num_rows, iter(whole.to_batches()), missing=drawn.missing)

    def sample(self, directory: Path, rows: int) -> pa.Table:
        """Draws rows from the model; see `Generator.sample`."""
        return self.draw(directory, rows).table()


@dataclass(frozen=True)
class _Asked:
    """The model that is asked, found fit for it on random tokens.

    Attributes:
        model: in evaluation mode, on its device.
        encoder: the layout in its tokens.
        prompts: of records in that layout.
        never: tokens that no text has: special ones, and those that the tokenizer does not know.
        blank: tokens of blanks and breaks alone, with which no document begins: it might be over at once.
        row_bytes: that keys and values of one record take.
    """

    model: Any
    encoder: Encoder
    prompts: Prompts
    never: tuple[int, ...]
    blank: tuple[int, ...]
    row_bytes: int

    @classmethod
    def prepared(
        cls, base: BaseModel, layout: TextLayout, about: str, document_tokens: int, device: str = "cpu"
    ) -> _Asked:
        """Loads it.

        Raises:
            ConfigurationError: it cannot be loaded, computes something else with kept keys and values, or sees fewer
                tokens than a prompt and a document have.
        """
        model, tokenizer = load(base)
        model = model.to(device, precision_of(torch.device(device)))
        encoder = Encoder(layout, tokenizer)
        prompts = Prompts(encoder, about)
        tokens = sum(shape_of(prompts, document_tokens).values())
        check_rows(model, tokens)
        known = len(tokenizer)
        spare = range(known, int(model.get_input_embeddings().weight.shape[0]))
        never = {*special_tokens(tokenizer), *spare} - {encoder.eos}
        blank = tuple(token for token in range(known) if not encoder.text([token]).strip())
        return cls(model, encoder, prompts, tuple(sorted(never)), blank, tokens * _bytes_of_a_token(model))


def _bytes_of_a_token(model: Any) -> int:
    """Of its keys and values in all layers."""
    config = model.config
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kept * size * model.dtype.itemsize)


def _vote_in_words(parameters: InferenceParameters) -> str:
    plan = parameters.resampling
    return "" if plan is None else "; then " + plan.in_words("the documents")


def _in_words(parameters: InferenceParameters) -> str:
    """Who writes which texts, and how much anyone can change of it, for readers who are no experts."""
    drawn, layout, chosen = parameters.inference, parameters.layout, parameters.resampling
    among = "" if chosen is None else f", of which votes choose {chosen.share_in_words}"
    told = ", ".join(condition.column for condition in layout.conditions)
    alike = f" that are alike in {told}" if told else ""
    return (
        f"{parameters.base_model} is not trained. It reads records{alike}, of about {drawn.batch_size} owners in each "
        f"of {drawn.contexts} contexts, and goes on with {layout.fields[0]} of another one, which all of them choose "
        f"together, token by token. An owner, however many records there are, is in one context, and changes a token's "
        f"score by at most {drawn.clipping_norm:g} of {drawn.batch_size}. {drawn.tokens} tokens are paid for in "
        f"each context: at least {drawn.documents} documents of up to {drawn.document_tokens} tokens{among}, and no "
        f"more can be drawn later. For them the model is asked for a next token up to {_calls(parameters):,} times"
    )


def _calls(parameters: InferenceParameters) -> int:
    """How often the model is asked for a next token, about: by each record of a context, and without any."""
    drawn = parameters.inference
    records = drawn.batch_size * min(drawn.records_per_owner, drawn.max_contributions)
    return drawn.contexts * drawn.tokens * (1 + records)


def _write(
    plan: SealedPlan,
    parameters: InferenceParameters,
    base: BaseModel,
    bounded: Path,
    directory: Path,
    device: str,
    progress: Progress,
    engine: Engine | None,
) -> None:
    """Counts the columns, and writes all documents; durable on return."""
    drawn = parameters.inference
    asked = _Asked.prepared(base, parameters.layout, parameters.about, drawn.document_tokens, device)
    writer = Writer(asked.model, asked.encoder, asked.prompts, drawn, never=asked.never, blank=asked.blank)
    begin_reading(directory)
    columns, place = parameters.columns, directory / COLUMNS
    counted.measure(columns, bounded, place, progress, engine)
    counted.estimate(columns, place, progress=progress)
    drawn_rows = counted.draw(columns, place, ReleaseSchema.from_json(plan.release), _ROWS_FOR_SHARES).table()
    shares = Counter(given_rows(drawn_rows, parameters.layout))
    contexts = Contexts.shared(drawn.contexts, shares)
    records = _records_of(bounded, parameters.layout)
    owners = placed(records, contexts, secrets.token_bytes(32), most=drawn.records_per_owner)
    _save(directory, plan, writer.texts(contexts, owners, progress), asked.encoder.special)


def _vote(
    chosen: resampling.Resampling, layout: TextLayout, bounded: Path, directory: Path, encoder: SentenceEncoder
) -> None:
    """Records vote for clusters of the documents, unless they have."""

    def count() -> resampling.ClusterVotes:
        texts, special = _read(directory)
        documents = [body for own in _documents(texts, layout, special).values() for body in own]
        voters = resampling.all_voters(bounded, layout, encoder, by_owner=True)
        return resampling.vote(chosen, documents, voters, encoder)

    resampling.vote_once(directory, directory / resampling.VOTING, count)


def _is_written(directory: Path) -> bool:
    return (directory / _WRITTEN).is_file()


def _votes_follow(directory: Path) -> bool:
    """Whether documents that are written are to be voted for."""
    plan = SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))
    return InferenceParameters.of(plan).resampling is not None


def _shares(documents: Mapping[Given, Sequence[str]], rows: int) -> dict[Given, int]:
    """How many documents of each label are taken for so many rows: at least its share, or all that there are."""
    total = max(1, sum(map(len, documents.values())))
    return {given: min(len(own), math.ceil(rows * len(own) / total)) for given, own in documents.items()}


def _documents(texts: Sequence[SyntheticText], layout: TextLayout, special: Sequence[str]) -> dict[Given, list[str]]:
    """The documents that keep the rules, by label."""
    counts = Counter(text.given for text in texts)
    return by_given(filtered(texts, counts, layout, _RULES, special).rows, layout, counts)


def _records_of(bounded: Path, layout: TextLayout) -> Iterator[tuple[str, Given, str]]:
    """Owner, label and body of each record that has them. Raises `StaleInput` if the table lacks a column."""
    names = [*layout.columns, OWNER_COLUMN]
    there = table_schema(bounded).names
    missing = [name for name in names if name not in there]
    if missing:
        raise StaleInput(f"the bounded table has no column {missing[0]!r}; materialize bounded again")
    for batch in read_table(bounded, columns=names):
        for record in batch.to_pylist():
            given, body = layout.given(record), layout.body(record)
            if given is not None and body is not None:
                yield record[OWNER_COLUMN], given, body


def _save(directory: Path, plan: SealedPlan, texts: Sequence[SyntheticText], special: Sequence[str]) -> None:
    """The documents, then the file that says that they are complete. Durable on return."""
    write_durably(directory / PLAN, plan.to_json())
    lines = [json.dumps(asdict(text), ensure_ascii=False) + "\n" for text in texts]
    write_durably(directory / TEXTS_FILE, "".join(lines))
    said = {"texts": digest_file(directory / TEXTS_FILE), "special": list(special)}
    write_durably(directory / _WRITTEN, json.dumps(said))


def _read(directory: Path) -> tuple[list[SyntheticText], list[str]]:
    """The documents, and the model's special tokens. Raises `MechanismFailed` if they are damaged."""
    try:
        said = json.loads((directory / _WRITTEN).read_text(encoding="utf-8"))
        if said["texts"] != digest_file(directory / TEXTS_FILE):
            raise ValueError
        return list(read_texts(directory)), list(said["special"])
    except (OSError, ValueError, KeyError, TypeError, StaleInput):
        raise MechanismFailed("the documents are damaged") from None
