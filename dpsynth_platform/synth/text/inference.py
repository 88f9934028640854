"""The generator `dp_inference`: a text column that a language model writes while it reads records, token by token.

What belongs here: the order of its parts, in all three steps. What does not: the parts: the plan
(`inference_sealing`, `inference_plan`), contexts (`inference_contexts`), the model's predictions (`inference_model`),
the draw (`inference_choice`), the loop (`inference_writing`), votes for documents (`resampling`), and the other columns
(`synth.tabular`).

Nothing is trained. The mechanism reads the data twice: for noisy counts of the columns, which give the number of
contexts of each label; then for the documents. Its result is these documents, so that there are no more than were paid
for: rows are drawn from the columns' model, as many as there are documents for. Where no column is counted (`counted`),
contexts have no label, and every document makes a row. Where documents are chosen among more than are requested,
records finally vote for clusters of them. A model directory holds

    claim.json      the ledger entry's one-time claim
    columns/        measurements and model of the columns, where some are counted
    texts.jsonl     the documents
    written.json    says that they are complete
    resampling.json the noisy votes or sums by which documents are chosen, where the plan has some

An interrupted mechanism does not continue: its documents are lost, and another attempt is a new spend. Only if all
documents are there and the votes are not, the same attempt continues with the vote.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed, StaleInput
from dpsynth_platform.foundation.storage import read_table, write_durably
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.interface import Drawing, DrawRequest, MechanismRun, PlanInputs, PlanParts, SealedPlan
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.text import resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel, load, refuse_decoder, special_tokens
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.examples import bounded_columns
from dpsynth_platform.synth.text.filtering import Rules, filtered
from dpsynth_platform.synth.text.generator import (
    COLUMNS,
    PLAN,
    TextGenerator,
    by_given,
    given_rows,
    then_votes,
    with_texts,
)
from dpsynth_platform.synth.text.inference_contexts import Contexts, placed
from dpsynth_platform.synth.text.inference_model import Prompts
from dpsynth_platform.synth.text.inference_plan import records_in_prompt
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters, about_of
from dpsynth_platform.synth.text.inference_writing import Writer, shape_of
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.rows import check_rows
from dpsynth_platform.synth.text.sampling import TEXTS, TEXTS_FILE, SyntheticText, read_texts
from dpsynth_platform.synth.text.sealing import layout_of, topics_of
from dpsynth_platform.synth.text.topic_sorting import sorted_records, topics_in_words
from dpsynth_platform.synth.text.unread import begin_reading, is_unread
from dpsynth_platform.training.precision import precision_of

_WRITTEN = "written.json"
_ROWS_FOR_SHARES = 10_000
"""Rows of the columns' model, by whose labels contexts are divided; cheaper to draw than the model's exact shares."""
_RULES = Rules(duplicates="kept")
"""A text that occurs twice was paid for twice, and no other can be drawn in its place."""
_ROWS_FOR_A_DOCUMENT = 4
"""Rows of the columns' model for each document; rows whose label has no document left are left out."""


class DpInference(TextGenerator[InferenceParameters]):
    """The generator `dp_inference`."""

    method = "dp_inference"
    kind = InferenceParameters
    incomplete = "the documents are not complete"

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Computes how many tokens and documents the guarantee has room for, and tries the model.

        Raises:
            ContractError: the budget buys fewer documents than the contract asks for.
            ConfigurationError: the base model is not there, or cannot be used.
        """
        contract, generate = inputs.contract, inputs.contract.generate
        if generate.base_model is None or generate.text is None or generate.text.inference is None:
            raise ContractError(f"{contract.dataset}: generate: accepted are base_model and text.inference")
        base = trained.deployed(generate.base_model)
        refuse_decoder(base, f"method {self.method}")
        tokens = generate.text.inference.document_tokens
        records = records_in_prompt(generate.text.inference, inputs.guarantee.max_contributions)
        layout = layout_of(contract, topics_of(contract, inputs.guarantee))
        checked = _CheckedModel.prepared(base, layout, about_of(contract), tokens, records)
        if generate.text.resample is not None or generate.text.topics is not None:
            SentenceEncoder("cpu")  # topics and votes need it: after the payment it would be too late
        return InferenceParameters.calibrated(inputs, base, checked.row_bytes).parts(inputs)

    def description(self, plan: SealedPlan, parameters: InferenceParameters) -> tuple[str, dict[str, Any]]:
        drawn, delta = parameters.inference, Guarantee.from_json(plan.guarantee).delta
        mechanism = (
            f"{drawn.tokens} tokens from each of {drawn.contexts} contexts of disjoint owners, each drawn by the "
            f"exponential mechanism (range {drawn.epsilon_of_choice:.3g})"
            f"{then_votes(parameters.resampling, 'the documents')}"
        )
        return mechanism, {
            "training_in_words": _in_words(parameters, delta),
            "contexts": drawn.contexts,
            "tokens_of_a_context": drawn.tokens,
            "documents_at_least": drawn.documents,
            "epsilon_of_documents_alone": epsilon(drawn.event, delta).epsilon,
            "next_tokens_asked_for": _calls(parameters),
        }

    def run(self, run: MechanismRun) -> None:
        """Counts the columns, writes documents, and has records vote for them.

        It continues if no record was read, or only the votes are missing.

        Raises:
            ConfigurationError: the base model is not the plan's, or cannot be used.
        """
        # All faults of the models are found before the data are read.
        parameters, base = self.begun(run)
        chosen, directory = parameters.resampling, run.directory
        encoder = None if chosen is None and parameters.topics is None else SentenceEncoder("cpu")
        if parameters.topics is not None:
            parameters.topics.load()
        begun = _writer(parameters, base, run.device) if is_unread(directory) else None
        if begun is not None:
            begin_reading(directory)
        with sorted_records(parameters, run) as records:
            if begun is not None:
                _write(run, parameters, *begun, records)
            if chosen is not None and encoder is not None:

                def documents() -> list[str]:
                    texts, special = _read(directory)
                    return [body for own in _documents(texts, parameters.layout, special).values() for body in own]

                def count() -> resampling.NoisyResult:
                    voters = chosen.voters(records, parameters.layout, encoder, by_owner=True)
                    return chosen.measured(documents, voters, encoder)

                resampling.vote_once(directory, directory / resampling.VOTING, count)

    def is_complete(self, directory: Path) -> bool:
        return (directory / _WRITTEN).is_file() and not self.lacks_votes(directory)

    def can_resume(self, directory: Path) -> bool:
        """Whether no record was read, or all documents are written and only the votes are missing.

        Interrupted documents are lost with what they cost.
        """
        return is_unread(directory) or ((directory / _WRITTEN).is_file() and not self.is_complete(directory))

    def drawn(self, request: DrawRequest) -> Drawing:
        """Rows from the model of the columns, each with a document of its label.

        Where records voted for clusters, a part of each label's documents is chosen. Documents that break the rules
        (`filtering.Rules`) are left out, and so are rows without a document. `request.texts` is not used: the mechanism
        has drawn the documents.

        Raises:
            ContractError: more rows are requested than documents were paid for.
        """
        directory, rows = request.directory, request.rows
        plan, parameters = self.complete_plan(directory)
        written, special = _read(directory)
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
            votes = resampling.read_votes(directory, chosen, layout)
            counts = _shares(documents, most if rows is None else rows)
            documents = votes.taken(documents, counts, SentenceEncoder("cpu"))
        release, many = ReleaseSchema.from_json(plan.release), _ROWS_FOR_A_DOCUMENT * len(written)
        columns = DrawRequest(directory / COLUMNS, many, request.constraints, request.given)
        drawn = counted.draw(parameters.columns, release, columns)
        table = drawn.table()
        prompts = given_rows(table, layout)
        documents = {prompt: [] for prompt in prompts} | documents  # not every label has a document
        whole = with_texts(table, release, layout.fields[0], prompts, documents)
        whole = whole.slice(0, most if rows is None else rows)
        request.progress(TEXTS, whole.num_rows, whole.num_rows)
        return Drawing(
            whole.schema, whole.num_rows, iter(whole.to_batches()), missing=drawn.missing, measured=drawn.measured
        )


@dataclass(frozen=True)
class _CheckedModel:
    """The model that writes, checked on random tokens.

    Attributes:
        model: in evaluation mode, on its device.
        never: tokens that no text has: special ones, and those that the tokenizer does not know.
        blank: tokens of blanks and breaks only, with which no document begins: it might end at once.
        row_bytes: memory of one record's keys and values.
    """

    model: Any
    encoder: Encoder
    prompts: Prompts
    never: tuple[int, ...]
    blank: tuple[int, ...]
    row_bytes: int

    @classmethod
    def prepared(
        cls,
        base: BaseModel,
        layout: TextLayout,
        about: str,
        document_tokens: int,
        records: int = 1,
        device: str = "cpu",
    ) -> _CheckedModel:
        """Loads and checks it.

        Args:
            records: the most of one prompt.

        Raises:
            ConfigurationError: it cannot be loaded, computes other numbers with kept keys and values, or sees fewer
                tokens than a prompt and a document have.
        """
        model, tokenizer = load(base)
        model = model.to(device, precision_of(torch.device(device)))
        encoder = Encoder(layout, tokenizer)
        prompts = Prompts(encoder, about, records)
        tokens = sum(shape_of(prompts, document_tokens).values())
        check_rows(model, tokens)
        known = len(tokenizer)
        spare = range(known, int(model.get_input_embeddings().weight.shape[0]))
        never = {*special_tokens(tokenizer), *spare} - {encoder.eos}
        blank = tuple(token for token in range(known) if not encoder.text([token]).strip())
        return cls(model, encoder, prompts, tuple(sorted(never)), blank, tokens * _bytes_of_a_token(model))


def _bytes_of_a_token(model: Any) -> int:
    """Of a token's keys and values in all layers."""
    config = model.config
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kept * size * model.dtype.itemsize)


def _in_words(parameters: InferenceParameters, delta: float) -> str:
    """What the model writes, and how much one owner can change of it, for readers who are no experts."""
    drawn, layout, chosen = parameters.inference, parameters.layout, parameters.resampling
    among = "" if chosen is None else f", of which {chosen.chosen_by} choose {chosen.share_in_words}"
    conditions = ", ".join(condition.column for condition in layout.conditions)
    alike = f" that are alike in {conditions}" if conditions else ""
    return (
        f"{parameters.base_model} is not trained. It reads records{alike}, of about {drawn.batch_size} owners in each "
        f"of {drawn.contexts} contexts, and writes {layout.fields[0]} of another one, which all of them choose "
        f"together, token by token. An owner, of however many records, is in one context, and changes a token's "
        f"score by at most {drawn.clipping_norm:g} of {drawn.batch_size}. {drawn.tokens} tokens are paid for in "
        f"each context: at least {drawn.documents} documents of up to {drawn.document_tokens} tokens{among}, and no "
        f"more can be drawn later. For them the model is asked for a next token up to {_calls(parameters):,} times"
        f"{topics_in_words(parameters, delta)}"
    )


def _calls(parameters: InferenceParameters) -> int:
    """About how many next tokens the model computes: one for each prompt of a context, and one without records."""
    drawn = parameters.inference
    return drawn.contexts * drawn.tokens * (1 + drawn.batch_size * drawn.prompts_per_owner)


def _writer(parameters: InferenceParameters, base: BaseModel, device: str) -> tuple[Writer, Encoder]:
    """What writes a plan's documents, and its encoder. Raises as `_CheckedModel.prepared`."""
    drawn = parameters.inference
    tokens, records = drawn.document_tokens, records_in_prompt(drawn, drawn.max_contributions)
    checked = _CheckedModel.prepared(base, parameters.layout, parameters.about, tokens, records, device)
    prompts, never, blank = checked.prompts, checked.never, checked.blank
    return Writer(checked.model, checked.encoder, prompts, drawn, never=never, blank=blank), checked.encoder


def _write(run: MechanismRun, parameters: InferenceParameters, writer: Writer, encoder: Encoder, table: Path) -> None:
    """Counts the columns, and writes all documents; durable on return."""
    drawn, directory = parameters.inference, run.directory
    columns, place = parameters.columns, directory / COLUMNS
    counted.measure(columns, table, place, run.progress, run.engine)
    counted.estimate(columns, place, progress=run.progress)
    rows = counted.draw(columns, ReleaseSchema.from_json(run.plan.release), DrawRequest(place, _ROWS_FOR_SHARES))
    contexts = Contexts.shared(drawn.contexts, Counter(given_rows(rows.table(), parameters.layout)))
    records = _records_of(table, parameters.layout)
    owners = placed(records, contexts, secrets.token_bytes(32), most=drawn.records_per_owner)
    _save(directory, run.plan, writer.texts(contexts, owners, run.progress), encoder.special)


def _shares(documents: Mapping[Given, Sequence[str]], rows: int) -> dict[Given, int]:
    """How many documents of each label are taken for so many rows: at least its share, or all of them."""
    total = max(1, sum(map(len, documents.values())))
    return {given: min(len(own), math.ceil(rows * len(own) / total)) for given, own in documents.items()}


def _documents(texts: Sequence[SyntheticText], layout: TextLayout, special: Sequence[str]) -> dict[Given, list[str]]:
    """The documents that keep the rules, by label."""
    counts = Counter(text.given for text in texts)
    return by_given(filtered(texts, counts, layout, _RULES, special).rows, layout, counts)


def _records_of(bounded: Path, layout: TextLayout) -> Iterator[tuple[str, Given, str]]:
    """Owner, label and body of each record that has them. Raises `StaleInput` if the table lacks a column."""
    names = [*layout.columns, OWNER_COLUMN]
    bounded_columns(bounded, names)
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
    written = {"texts": digest_file(directory / TEXTS_FILE), "special": list(special)}
    write_durably(directory / _WRITTEN, json.dumps(written))


def _read(directory: Path) -> tuple[list[SyntheticText], list[str]]:
    """The documents, and the model's special tokens. Raises `MechanismFailed` if they are damaged."""
    try:
        written = json.loads((directory / _WRITTEN).read_text(encoding="utf-8"))
        if written["texts"] != digest_file(directory / TEXTS_FILE):
            raise ValueError
        return list(read_texts(directory)), list(written["special"])
    except (OSError, ValueError, KeyError, TypeError, StaleInput):
        raise MechanismFailed("the documents are damaged") from None
