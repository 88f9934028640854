"""An owner of a hundred documents moves what noise is added to by no more than the sealed event pays for.

Each method runs on two tables that differ by this owner, from the product's bounding on to what stands before the
noise; noise is replaced by something that is the same for both, so that what follows is the same, too. What moved is
held against the sealed event by the arithmetic of this file.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from inference_cases import reader
from text_cases import TOPICS, fitted, letters_contract, save_model, tiny_llama, two_topics

from dpsynth_platform.bounding.single_owner import write_bounded
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.privacy.accounting import cost
from dpsynth_platform.privacy.events import (
    GaussianSumsEvent,
    GaussianVotesEvent,
    SampledGaussianEvent,
    event_from_json,
    leaves,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN, distinct_owners
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.evolution import votes as evolution_votes
from dpsynth_platform.synth.interface import MechanismRun, generator
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.text import (
    dp_finetune,
    evolution,
    inference,
    inference_writing,
    labelling,
    resampling,
)
from dpsynth_platform.synth.text.inference_choice import PARTS
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.topic_sorting import sorted_records
from dpsynth_platform.training.noise import GaussianNoise

M = 4
"""Records of one owner that are used at most."""
KINDS = ("sport", "trade")
BODIES = ["the team was late again", "please send the parcel by monday", "the box was open", "a cough and a fever"]
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("kind", pa.string()), ("body", pa.string())])
SCHEMA = pa.schema([(name, pa.string()) for name in ("kind", "body", OWNER_COLUMN, RECORD_COLUMN)])
HOG = "f" * 32
TRAINING = {"steps": 2, "batch_size": 20, "adapter": {"rank": 2, "alpha": 4}}
ROUNDED = 1 + 1e-6


def others():
    """Twelve owners with a record or three."""
    for owner in range(12):
        for number in range(1 + 2 * (owner % 2)):
            yield KINDS[owner % 2], BODIES[(owner + number) % 4], f"{owner:032x}", f"{owner:016x}{number:016x}"


OWNED = {
    "alike": [(KINDS[0], BODIES[0])] * 100,
    "all sorts": [(KINDS[number % 2], BODIES[number % 4]) for number in range(100)],
}
"""A hundred documents of one owner."""


@pytest.fixture(params=OWNED)
def neighbours(request, tmp_path):
    """The bounded tables with this owner and without."""
    own = [(*document, HOG, f"{number:032x}") for number, document in enumerate(OWNED[request.param])]
    tables = tmp_path / "with", tmp_path / "without"
    for place, records in zip(tables, ([*own, *others()], list(others())), strict=True):
        rows = pa.table([list(column) for column in zip(*records, strict=True)], schema=SCHEMA).to_batches()
        write_table(place / "scrubbed", SCHEMA, rows)
        with DuckDBChoice(threads=1).open(place / "spill") as engine:
            write_bounded(
                place / "scrubbed",
                place / "bounded",
                engine=engine,
                columns=["kind", "body"],
                participants=distinct_owners(rows),
                max_contributions=M,
                key=b"k" * 32,
            )
    both, without = (records_of(place / "bounded") for place in tables)
    assert sum(record[OWNER_COLUMN] == HOG for record in both) == M
    assert [record for record in both if record[OWNER_COLUMN] != HOG] == without
    return request.param, tables[0] / "bounded", tables[1] / "bounded"


def records_of(place):
    return [record for batch in read_table(place) for record in batch.to_pylist()]


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """What tries the models has tests of its own."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr("dpsynth_platform.synth.text.batch_trial.refuse_batches", lambda *_: None)
    monkeypatch.setattr("dpsynth_platform.training.health.Watch.step", lambda *_: None)


class Letters:
    """An encoder that knows how often some letters stand in a text; milliseconds sooner than the real one."""

    def __init__(self, device="cpu"):
        self.letters = "abcdefghiklmnoprstuwy"

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in self.letters] for text in texts], dtype=np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=-1, keepdims=True), 1)


def planned(method, text, base, **generate):
    contract = letters_contract(
        {"kind": {"type": "categorical", "values": list(KINDS)}},
        {"method": method, "base_model": str(base), "rows": 12, "text": {"given": ["kind"]} | text, **generate},
        privacy={"max_contributions": M, "guarantee": {"epsilon": 8.0, "delta": 1e-4}},
    )
    return generator(method).plan(contract, SOURCE, Guarantee.target(contract))


class Noiseless:
    """Stands for both draws on exact counts: keeps what would have been drawn from, and gives what is public."""

    def __init__(self, monkeypatch, module):
        self.drawn = []
        monkeypatch.setattr(module, "sample_rounded_gaussian", self.gaussian)
        if hasattr(module, "select_by_exponential_mechanism"):
            monkeypatch.setattr(module, "select_by_exponential_mechanism", self.choice)

    def gaussian(self, counts, sigma):
        self.drawn.append((counts, lambda change: float((change**2).sum()) / (2 * sigma**2)))
        return np.arange(counts.size, dtype=np.int64).reshape(counts.shape) + 1000

    def choice(self, scores, epsilon, sensitivity):
        scored = np.array(scores, dtype=np.float64)
        self.drawn.append((scored, lambda change: (epsilon * np.ptp(change) / (2 * sensitivity)) ** 2 / 8))
        return 0

    def rho(self):
        """zCDP of all draws for this pair of tables: the first half are of one, the second half of the other."""
        half = len(self.drawn) // 2
        pairs = zip(self.drawn[:half], self.drawn[half:], strict=True)
        return sum(cost_of(one.astype(np.float64) - other) for (one, cost_of), (other, _) in pairs)


def paid(event, kind=object):
    """zCDP that the ledger is charged with for an event's parts of a kind: their Renyi curves, over the order."""
    curves = [(np.array(cost(leaf).curve.values), times) for leaf, times in leaves(event) if isinstance(leaf, kind)]
    return float(max(sum(times * curve for curve, times in curves) / ORDERS))


class Told:
    """Writes texts that are the same for both tables."""

    def __init__(self):
        self.number = 0

    def write(self, prompts):
        self.number += len(prompts)
        numbers = range(self.number - len(prompts), self.number)
        return [PublicText(f"{BODIES[number % 4]} {'abcdefgh'[number % 8] * (1 + number // 8)}") for number in numbers]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"), tiny_llama(positions=256))


CHOSEN = {"resample": {"clusters": 4, "noise": 2.0, "pool": 1.01}}
READ = {"document_tokens": 8, "batch_size": 25, "clipping_norm": 0.05, "records_per_owner": M}


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    model = two_topics(tmp_path_factory.mktemp("topics") / "topics.safetensors", BODIES[:2])
    return {"model": str(model), "public": "made of two sentences", "count": 16}


@pytest.mark.parametrize("chosen", [{}, CHOSEN])
def test_votes_of_private_evolution(neighbours, base, monkeypatch, chosen):
    counted, voted = Noiseless(monkeypatch, drawing), Noiseless(monkeypatch, evolution_votes)
    monkeypatch.setattr(evolution, "SentenceEncoder", Letters)
    monkeypatch.setattr(evolution, "_writer", lambda *_: (Told(), ()))
    monkeypatch.setattr(evolution, "sizes_of", lambda *_: {(kind,): 3 for kind in KINDS})
    monkeypatch.setattr(resampling, "clustered", lambda features, clusters: features[:clusters])
    evolved = {"about": "short letters", "population": 6, "variations": 1, "rounds": 3}
    plan = planned("aug_pe", {"max_tokens": 40, "evolution": evolved} | chosen, base)
    _, *tables = neighbours
    for bounded in tables:
        fitted(plan, bounded, bounded.parent / "model")
    event = event_from_json(plan.event)
    assert len(voted.drawn) == 2 * (4 if chosen else 3)
    assert 0.99 * paid(event, GaussianVotesEvent) < voted.rho() <= paid(event, GaussianVotesEvent) * ROUNDED
    assert counted.rho() + voted.rho() <= paid(event) * ROUNDED


def test_votes_for_clusters(neighbours, base, tmp_path, monkeypatch):
    voted = Noiseless(monkeypatch, evolution_votes)
    monkeypatch.setattr(dp_finetune, "SentenceEncoder", Letters)
    monkeypatch.setattr(dp_finetune._TrainedTexts, "pool", lambda *_: BODIES)
    monkeypatch.setattr(resampling, "clustered", lambda features, clusters: features)
    plan = planned("dp_finetune", CHOSEN, base, training=TRAINING)
    _, *tables = neighbours
    for bounded in tables:
        dp_finetune._vote(MechanismRun(plan, bounded, None, bounded.parent), TextParameters.of(plan), None, bounded)
    votes = paid(event_from_json(plan.event), GaussianVotesEvent)
    assert 0.99 * votes < voted.rho() <= votes * ROUNDED


def test_sums_by_label(neighbours, base, tmp_path, monkeypatch):
    summed = Noiseless(monkeypatch, labelling)
    monkeypatch.setattr(dp_finetune, "SentenceEncoder", Letters)
    plan = planned("dp_finetune", {"resample": {"by": "labels", "noise": 2.0}}, base, training=TRAINING)
    what, *tables = neighbours
    for bounded in tables:
        dp_finetune._vote(MechanismRun(plan, bounded, None, bounded.parent), TextParameters.of(plan), None, bounded)
    paid_for = paid(event_from_json(plan.event), GaussianSumsEvent)
    assert 0.5 * paid_for < summed.rho() <= paid_for * ROUNDED
    assert what != "alike" or summed.rho() > 0.98 * paid_for


@pytest.mark.parametrize("method", ["ctcl", "dp_inference"])
def test_the_histogram_of_topics(method, neighbours, base, topics, monkeypatch):
    noiseless = Noiseless(monkeypatch, drawing)
    own = {"training": TRAINING} if method == "ctcl" else {}
    inference = {} if own else {"inference": READ}
    plan = planned(method, {"max_tokens": 64, "topics": topics} | inference, base, **own)
    generator(method).check(plan)
    parameters = (TextParameters if own else InferenceParameters).of(plan)
    what, *tables = neighbours
    for bounded in tables:
        run = MechanismRun(plan, bounded, None, bounded.parent / "model")
        with sorted_records(parameters, run) as records:
            counted.measure(parameters.columns, records, bounded.parent / "columns", silent, None)
    charged = paid(event_from_json(parameters.columns.event))
    assert noiseless.rho() <= charged * ROUNDED
    # All records of one topic and kind: as far as counts can move.
    assert what != "alike" or noiseless.rho() > 0.5 * charged


@pytest.mark.parametrize(("sampled", "together"), [("owners", 1), ("records", M)])
def test_clipped_sums_of_training(neighbours, base, monkeypatch, sampled, together):
    """Everything is in the batch: an owner's mean gradient is clipped as one, or each of at most M records'."""
    sums, deviations = [], []

    def add_(self, total, deviation):
        sums.append(total.double().clone())
        deviations.append(deviation)
        total.zero_()

    Noiseless(monkeypatch, drawing)
    monkeypatch.setattr(GaussianNoise, "add_", add_)
    units = 100 * together
    training = TRAINING | {"sampled": sampled, "batch_size": units, "steps": 1, "replay_steps": 0}
    plan = planned("dp_finetune", {"max_tokens": 48}, base, training=training)
    what, *tables = neighbours
    for bounded in tables:
        torch.manual_seed(0)  # an adapter begins with random weights
        fitted(plan, bounded, bounded.parent / "model")
    ((leaf, steps),) = [
        (leaf, times) for leaf, times in leaves(event_from_json(plan.event)) if isinstance(leaf, SampledGaussianEvent)
    ]
    assert (steps, leaf.sampling_probability, leaf.max_contributions) == (1, 1.0, M)
    half, (deviation,) = len(sums) // 2, set(deviations)
    changes = [one - other for one, other in zip(sums[:half], sums[half:], strict=True)]
    moved = float(torch.stack([change.square().sum() for change in changes]).sum().sqrt()) / deviation
    assert moved <= together / leaf.noise_multiplier * (1 + 1e-5)
    assert what != "alike" or moved > 0.95 * together / leaf.noise_multiplier


def test_votes_for_clusters_of_documents(neighbours, base, monkeypatch):
    voted = Noiseless(monkeypatch, evolution_votes)
    Noiseless(monkeypatch, drawing)
    monkeypatch.setattr(inference, "SentenceEncoder", Letters)
    monkeypatch.setattr(inference.Writer, "texts", lambda *_: [])
    monkeypatch.setattr(inference, "_documents", lambda *_: {(kind,): BODIES for kind in KINDS})
    monkeypatch.setattr(resampling, "clustered", lambda features, clusters: features[:clusters])
    read = {"document_tokens": 8, "batch_size": 25}
    plan = planned("dp_inference", {"max_tokens": 40, "inference": read} | CHOSEN, base)
    _, *tables = neighbours
    for bounded in tables:
        fitted(plan, bounded, bounded.parent / "model")
    votes = paid(event_from_json(plan.event), GaussianVotesEvent)
    assert len(voted.drawn) == 2
    assert 0.99 * votes < voted.rho() <= votes * ROUNDED


@pytest.mark.parametrize("more", ["", "in series", "by topics"])
def test_scores_of_contexts(more, neighbours, topics, tmp_path, monkeypatch):
    """Whatever an owner has is in one context, and moves the log-ratio of any two tokens by one choice's range."""
    seen = []

    def told(scored, tokens, range_, *, barred=()):
        seen.append((scored.double(), range_))
        return 20 + len(seen) % 24

    Noiseless(monkeypatch, drawing)
    monkeypatch.setattr(inference, "secrets", SimpleNamespace(token_bytes=bytes))
    sorted_by = [TOPICS[:1], TOPICS[1:2]] if more == "by topics" else [()]
    labels = [(*topic, kind) for topic in sorted_by for kind in KINDS]
    monkeypatch.setattr(inference, "given_rows", lambda *_: labels)  # by which contexts are shared
    monkeypatch.setattr(inference_writing, "_shuffled", range)
    monkeypatch.setattr(inference_writing, "drawn", told)
    own = {"in series": {"max_tokens": 33, "inference": READ | {"in_series": True}}, "by topics": {"topics": topics}}
    base = save_model(tmp_path / "base", reader("kind", KINDS, "body"))
    plan = planned("dp_inference", {"max_tokens": 64, "inference": READ} | own.get(more, {}), base)
    _, *tables = neighbours
    for bounded in tables:
        fitted(plan, bounded, bounded.parent / "model")
    drawn = InferenceParameters.of(plan).inference
    ((leaf, tokens),) = leaves(drawn.event)
    half, each = len(seen) // 2, len(seen) // 2 // drawn.contexts
    assert each <= tokens
    assert {range_ for _, range_ in seen} == {leaf.epsilon}
    changes = [one - other for (one, _), (other, _) in zip(seen[:half], seen[half:], strict=True)]
    moved = [leaf.epsilon * float(change.max() - change.min()) / (2 * PARTS) for change in changes]
    assert len([at for at in range(drawn.contexts) if any(moved[at * each : (at + 1) * each])]) == 1
    assert 0.9 * leaf.epsilon < max(moved) <= leaf.epsilon * ROUNDED
