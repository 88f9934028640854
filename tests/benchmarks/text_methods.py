"""Who writes the texts of `bench_text_utility.py`: the product's generators, by its plans, and what they compute.

What belongs here: contracts and plans of cells, the mechanism without its noise, counting a model's work. What does
not: real texts (`text_cells`), judging synthetic ones (`text_figures`), a generator of its own.

Of DP inference, contexts have as many owners as epsilon needs to pay for one document of each, and no more contexts are
made than there are documents to be written (`Effort.contexts`): what it reads and writes would cost several times the
work of the others. So at a large epsilon it reads a part of the units, and at a small one it writes fewer documents.
Without noise, contexts are those of `PATCHED_EPSILON`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from text_cells import (
    NO_NOISE,
    PUBLIC,
    RETRIEVED,
    SCHEMA,
    SHARED,
    UNTRAINED,
    VOTES,
    Cell,
    Effort,
    Source,
    of_owners,
    others,
)

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.interface import Checkpoints, PlanInputs, SealedPlan, generator
from dpsynth_platform.synth.text.base_models import DEFAULT, BaseModel
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.inference_choice import DIFFERENCE, PARTS, log_probabilities
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters
from dpsynth_platform.synth.text.labelling import LabelSums
from dpsynth_platform.synth.text.resampling import Choice, ClusterVotes
from dpsynth_platform.synth.text.sealing import PlanParameters, TextParameters
from dpsynth_platform.synth.text.terms import terms_of
from dpsynth_platform.synth.text.trained import deployed

KEYWORDS_TOKENS = 44
"""What the longest keywords of a topic take: with so much more, texts may be as long as where none are told."""
LABEL_TOKENS = 7
"""What a label takes: no method writes longer texts than an example has room for beside it, as real ones are cut."""
PATCHED_EPSILON = 8.0
"""Of the plans of trainings that are run without noise, or not at all."""
ROUNDS, VARIATIONS = 3, 3
CLIPPING_NORM = 1.0
OWNERS = range(12, 400, 4)
"""Of a context of DP inference: the fewest that epsilon pays for. A dozen mostly fit into one batch of the model."""
RETRIEVAL, SHARERS = {"population": "auto"}, 3
"""Of texts of a public table, which take no time, as many live on as the plan chooses; and candidates of a vote."""
POOL, PAID_POOL = 3.0, 1.5
"""Texts written for each one that is taken, and documents of DP inference, of which each is paid for and takes time."""
TOLD = ("noise_multiplier", "vote_noise", "population", "contexts", "tokens_of_a_context", "next_tokens_asked_for")
"""Of a plan's description."""


@dataclass(frozen=True)
class Planned:
    """A cell's mechanism, and what it reads.

    Attributes:
        units: so many may be read.
        told: of the plan's description, what says how much noise or work there is.
    """

    contract: DataContract
    plan: SealedPlan
    units: int | None
    told: dict[str, Any]


def planned(cell: Cell, source: Source, effort: Effort) -> Planned:
    """The plan of a cell by the product's sealing, without the trial of the model that `Generator.plan` makes."""
    units = None
    if cell.generator == "dp_inference":
        contract, units = affordable(cell, source, effort)
    else:
        contract = contract_of(cell, source, effort)
    plan = sealed(contract)
    described = generator(plan.method).describe(plan)
    return Planned(contract, plan, units, {key: described[key] for key in TOLD if key in described})


def affordable(cell: Cell, source: Source, effort: Effort) -> tuple[DataContract, int]:
    """The contract of DP inference with the smallest contexts that are paid for, and how many units they take."""
    contexts = round(effort.contexts * (PAID_POOL if cell.chooses else 1))
    for owners in OWNERS:
        units = min(source.units, owners * contexts)
        contract = contract_of(cell, replace(source, units=units), effort, owners, source.units**-1.1)
        try:
            sealed(contract)
        except ContractError:
            continue
        return contract, units
    raise ValueError(f"{cell}: no document is paid for")


def sealed(contract: DataContract) -> SealedPlan:
    """What `Generator.plan` seals."""
    method, base = contract.generate.method, base_of(contract)
    inputs = PlanInputs(contract, SCHEMA, Guarantee.target(contract))
    parameters: PlanParameters
    if method == "aug_pe":
        parameters = EvolutionParameters.calibrated(inputs, None if contract.generate.asks_no_model else base)
    elif method == "dp_inference":
        parameters = InferenceParameters.calibrated(inputs, base, row_bytes=0)
    else:
        parameters = TextParameters.calibrated(inputs, base)
    return SealedPlan.of(method, inputs, parameters.parts(inputs), "the benchmark's")


def base_of(contract: DataContract) -> BaseModel:
    """The base model of a cell; where no model is asked, the default one, which `fit` describes all the same."""
    return deployed(contract.generate.base_model or DEFAULT)


def contract_of(
    cell: Cell, source: Source, effort: Effort, context: int = 1, delta: float | str = "auto"
) -> DataContract:
    """The contract by which a cell's texts are written.

    Args:
        context: owners of one, of DP inference.
        delta: of the guarantee.
    """
    owned = source.most > 1
    text: dict[str, Any] = {"column": "text", "given": ["label"], "max_tokens": source.max_tokens}
    longest = source.max_tokens - LABEL_TOKENS
    generate: dict[str, Any] = {"method": cell.generator, "base_model": cell.base, "rows": effort.texts, "text": text}
    if cell.trains:
        generate["training"] = training_of(cell, source, effort)
    if cell.generator == "ctcl":
        text |= {"max_tokens": source.max_tokens + KEYWORDS_TOKENS, "most_tokens": longest}
    pool = 1.0
    if cell.chooses:
        pool = PAID_POOL if cell.generator == "dp_inference" else POOL
        by = {"clusters": effort.population} if cell.method.endswith(VOTES) else {"by": "labels"}
        text["resample"] = by | {"pool": pool}
    if cell.generator == "aug_pe":
        evolution: dict[str, Any] = {"population": effort.population, "rounds": ROUNDS, "variations": VARIATIONS}
        if PUBLIC in cell.method or RETRIEVED in cell.method:
            generate["public"] = {"uri": str(public_table(cell)), "why": "texts of other public tables"}
        if RETRIEVED in cell.method:
            evolution |= RETRIEVAL | {"ways": ["retrieve"]}
            del generate["base_model"]
        if SHARED in cell.method:
            evolution["nearest"] = SHARERS
        text |= {"max_tokens": longest, "evolution": evolution}
    if cell.generator == "dp_inference":
        generate["rows"] = int(source.units // context / pool)
        text["inference"] = {
            "batch_size": context,
            "document_tokens": source.document_tokens,
            "clipping_norm": CLIPPING_NORM,
        }
    document = {
        "dataset": "benchmark",
        "description": source.about,
        "owners": ["benchmarks@example.org"],
        "source": {"uri": "/nowhere", "key": ["record"]},
        "family": "benchmarks",
        "privacy": {
            "unit": "user" if owned else "example",
            "owner_columns": ["owner" if owned else "record"],
            "namespace": "benchmark",
            "max_contributions": source.most,
            "guarantee": {"epsilon": PATCHED_EPSILON if cell.claim is None else cell.claim, "delta": delta},
            "expected_units": source.units,
        },
        "columns": {
            "record": {"type": "identifier"},
            "owner": {"type": "identifier"},
            "label": {"type": "categorical", "values": list(source.labels)},
            "text": {"type": "text", "pii": "replace"},
        },
        "generate": generate,
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="benchmark", variables={})


def public_table(cell: Cell) -> Path:
    """The table of public texts of other kinds, written once."""
    place = Path(os.environ["DPSYNTH_HOME"]) / f"public-{cell.source}.parquet"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        texts = others(cell.source, Path(os.environ["DPSYNTH_BENCH_DATA"]))
        pq.write_table(pa.table({"text": texts}), place)
    return place


def training_of(cell: Cell, source: Source, effort: Effort) -> dict[str, Any]:
    """The part `generate.training` of a contract."""
    by_user = cell.sampled == "user"
    return {
        "sampled": "owners" if by_user else "records",
        "batch_size": round(effort.batch * source.units / source.records) if by_user else effort.batch,
        "steps": effort.steps,
        "replay_steps": 0,
        "learning_rate": effort.learning_rate,
        "adapter": {"rank": effort.rank, "alpha": 2 * effort.rank},
        **({"expected_records": source.records} if source.most > 1 and not by_user else {}),
    }


@contextmanager
def as_asked(cell: Cell) -> Iterator[None]:
    """Without noise or training where a cell says so; always without the gate on models, which reads no data.

    Without noise, DP inference draws tokens by what its contexts say in full: nothing is clipped.
    """
    if cell.epsilon == UNTRAINED and not cell.trains:
        raise ValueError(f"{cell}: this method trains nothing")
    with ExitStack() as patches:
        patches.enter_context(mock.patch("dpsynth_platform.training.soundness.refuse_unsound"))
        if cell.epsilon == NO_NOISE:
            patches.enter_context(mock.patch("dpsynth_platform.training.noise.GaussianNoise.add_"))
            patches.enter_context(mock.patch("dpsynth_platform.training.health.Watch.step"))
            voted = "dpsynth_platform.synth.evolution.votes.sample_rounded_gaussian"
            patches.enter_context(mock.patch(voted, lambda votes, deviation: votes))
            patches.enter_context(mock.patch("dpsynth_platform.synth.text.inference_writing.owner_score", unclipped))
        if cell.epsilon == UNTRAINED:
            patches.enter_context(mock.patch("dpsynth_platform.training.loop.train"))
        yield


def unclipped(logits: torch.Tensor, public: torch.Tensor, *, clip: str, clipping_norm: float) -> torch.Tensor:
    """In the place of `inference_choice.owner_score`: by how much one owner's records change what comes next."""
    if clip != DIFFERENCE:
        raise ValueError(f"clip {clip!r}; accepted: {DIFFERENCE}")
    moved = torch.nan_to_num(log_probabilities(logits).mean(dim=0) - public, nan=0.0)
    return (moved * (PARTS / clipping_norm)).round().to(torch.int64)


def read_by(way: Planned, real: pa.Table) -> pa.Table:
    """The records of the units that a cell's mechanism reads."""
    return real if way.units is None else of_owners(real, 0, way.units)


def fit(way: Planned, real: pa.Table, place: Path) -> Path:
    """A model's directory, made of the bounded records."""
    numbers = {owner: f"{number:032x}" for number, owner in enumerate(sorted(set(real["owner"].to_pylist())))}
    owners = [numbers[owner] for owner in real["owner"].to_pylist()]
    bounded = real.select(["label", "text"]).append_column(OWNER_COLUMN, pa.array(owners))
    bounded = bounded.append_column(RECORD_COLUMN, real["record"])
    write_table(place / "bounded", bounded.schema, bounded.to_batches())
    base = base_of(way.contract)
    described = place / "base.json"
    described.write_text(json.dumps(asdict(base) | {"directory": str(base.directory)}))
    directory = place / "model"
    directory.mkdir()
    grant: Any = SimpleNamespace(plan_digest=way.plan.digest, entry_id="b" * 32)  # there is no ledger here
    generator(way.plan.method).fit(
        way.plan, place / "bounded", grant, directory, checkpoints=Checkpoints(described, os.urandom(32), resume=False)
    )
    return directory


def draw(way: Planned, model: Path, rows: int) -> pa.Table:
    """Synthetic rows, as many as are asked for or, of DP inference, as were paid for."""
    asked = None if way.units is not None else rows
    return generator(way.plan.method).draw(model, asked, texts=terms_of(way.contract)).table()


@contextmanager
def unchosen() -> Iterator[None]:
    """Of the texts among which votes or sums choose, some are taken at random; no more are written than are taken."""

    def taken(result: Any, texts: Mapping[Any, Sequence[str]], counts: Mapping[Any, int], encoder: Any) -> Any:
        random = np.random.default_rng()
        return {
            label: [own[at] for at in sorted(random.permutation(len(own))[: counts[label]].tolist())]
            for label, own in texts.items()
        }

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(Choice, "pools", lambda plan, counts: dict(counts)))
        for kind in (ClusterVotes, LabelSums):
            patches.enter_context(mock.patch.object(kind, "taken", taken))
        yield


@dataclass
class Spent:
    """What stages of a cell take.

    Attributes:
        vocabulary: of the language model whose work is counted; of a sentence encoder, it is not.
        seconds: of the processor, by stage.
        work: what the model is asked, by stage: texts and tokens that it reads, padding included, and next tokens of
            texts that it has read.
    """

    vocabulary: int
    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Counts what is done within."""
        work, embedded, begun = Counter[str](), torch.nn.Embedding.forward, time.process_time()

        def forward(module: torch.nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
            if module.num_embeddings == self.vocabulary:
                if tokens.shape[-1] == 1:
                    work["next_tokens"] += tokens.numel()
                else:
                    work["texts_read"] += tokens.numel() // tokens.shape[-1]
                    work["tokens_read"] += tokens.numel()
            return embedded(module, tokens)

        with mock.patch.object(torch.nn.Embedding, "forward", forward):
            yield
        self.seconds[stage] = round(time.process_time() - begun)
        self.work[stage] = dict(work)
