"""The common part of all generators with a text column.

What belongs here: the description, check and estimation that all of them share, a job's base model, and putting texts
into the rows of the columns' model. What does not: where the texts come from (`dp_finetune`, `inference`, `evolution`).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dpsynth_platform.compute.plain_types import laid_out, plain, plain_type
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Given, text_of
from dpsynth_platform.synth.interface import Generator, MechanismRun, SealedPlan
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.text import resampling, trained
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.sealing import PlanParameters
from dpsynth_platform.synth.text.unread import declare_unread

COLUMNS, PLAN = "columns", "plan.json"
"""Names within a model directory."""

P = TypeVar("P", bound=PlanParameters)


class TextGenerator(Generator, Generic[P]):
    """A generator whose rows come from a model of the columns, and each of which gets a text.

    Attributes:
        kind: of the plan's parameters.
        incomplete: says that the mechanism's result is not complete.
    """

    kind: type[P]
    incomplete: str

    @abstractmethod
    def description(self, plan: SealedPlan, parameters: P) -> tuple[str, dict[str, Any]]:
        """The text's mechanism in words, and the plan's figures about it."""

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        parameters = self.kind.of(plan)
        mechanism, figures = self.description(plan, parameters)
        columns = counted.described(parameters.columns, mechanism)
        memory = columns["predicted_memory_bytes"] + parameters.memory_bytes
        named = {"base_model": parameters.base_model} if parameters.base_model else {}
        return columns | named | figures | {"predicted_memory_bytes": memory}

    def check(self, plan: SealedPlan) -> None:
        self.kind.checked(plan)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Fits the model of the columns again; texts and trained weights remain as they are."""
        self.refuse_incomplete(directory)
        counted.estimate(self.kind.of(plan).columns, directory / COLUMNS, device=device, progress=progress)

    def refuse_incomplete(self, directory: Path) -> None:
        """Raises `MechanismFailed` if the model in a directory is not complete."""
        if not self.is_complete(directory):
            raise MechanismFailed(f"{self.incomplete}; there is no model to draw from or to fit again")

    def complete_plan(self, directory: Path) -> tuple[SealedPlan, P]:
        """The plan of the complete model in a directory. Raises `MechanismFailed` if it is not complete."""
        self.refuse_incomplete(directory)
        plan = read_plan(directory)
        return plan, self.kind.of(plan)

    def lacks_votes(self, directory: Path) -> bool:
        """Whether the plan chooses texts by votes or sums that are not on disk."""
        return not resampling.has_votes(directory) and self.kind.of(read_plan(directory)).resampling is not None

    def begun(self, run: MechanismRun) -> tuple[P, BaseModel]:
        """The plan's parameters and the job's base model; declares that no record was read, unless the run resumes.

        Raises:
            GrantRefused: the plan's event is not what it costs, or the job names no base model.
            ConfigurationError: the base model is not the plan's.
        """
        checkpoints = run.language_model
        if checkpoints.base_model is None:
            raise GrantRefused(f"the job names no base model; accepted: the base model of the plan for {self.method}")
        parameters = self.kind.checked(run.plan)
        if not checkpoints.resume:
            declare_unread(run.directory)
        base = read_base_model(checkpoints.base_model)
        trained.check_digest(base, parameters.base_digest)
        return parameters, base


def then_votes(chosen: resampling.Choice | None, of: str) -> str:
    """The votes for clusters of some texts, or sums by label, as the last part of an event in words."""
    return "" if chosen is None else f"; then {chosen.in_words(of)}"


def read_base_model(path: Path) -> BaseModel:
    """The description of a job's base model. Raises `GrantRefused` if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return BaseModel(**(document | {"directory": Path(document["directory"])}))
    except (OSError, ValueError, KeyError, TypeError):
        raise GrantRefused("the description of the base model cannot be read") from None


def read_plan(directory: Path) -> SealedPlan:
    """The plan in a model directory."""
    return SealedPlan.from_json((directory / PLAN).read_text(encoding="utf-8"))


def given_rows(table: pa.Table, layout: TextLayout) -> list[Given]:
    """Each row's values of the layout's conditions."""
    columns = [[text_of(value) for value in table.column(part.column).to_pylist()] for part in layout.conditions]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def by_given(
    rows: Sequence[Mapping[str, str | None]], layout: TextLayout, prompts: Iterable[Given]
) -> dict[Given, list[str]]:
    """The texts of rows by their conditions' values; all prompts occur, also those without a text."""
    texts: dict[Given, list[str]] = {given: [] for given in prompts}
    for row in rows:
        texts[tuple(row[part.column] for part in layout.conditions)].append(row[layout.fields[0]] or "")
    return texts


def with_texts(
    table: pa.Table, release: ReleaseSchema, written: str, prompts: Sequence[Given], texts: Mapping[Given, list[str]]
) -> pa.Table:
    """The rows for which there is a text, in their order, with the text in the column `written`.

    Raises:
        MechanismFailed: there is no text for any row.
    """
    left = {given: iter(of_prompt) for given, of_prompt in texts.items()}
    chosen = [next(left[given], None) for given in prompts]
    places = [row for row, text in enumerate(chosen) if text is not None]
    if not places:
        raise MechanismFailed(
            "no text was written that keeps the rules: the model learned too little; accepted: other rules "
            "(`text.keep`) or a lower `text.temperature`, with which a trained model draws again at no cost, or a plan "
            "that trains longer, which costs again"
        )
    kept = pa.array(places, pa.int64())
    arrays = []
    for field in release.schema:
        if field.name == written:
            values = pa.array([chosen[row] for row in places], plain_type(field.type))
            arrays.append(laid_out(values, field.type))
        elif field.name in table.schema.names:  # Arrow takes rows of plain types only
            column = plain(table.column(field.name).combine_chunks()).take(kept)
            arrays.append(laid_out(column, field.type))
        else:  # pictures of the texts, drawn later
            arrays.append(pa.nulls(len(places), field.type))
    return pa.table(arrays, schema=release.schema)
