"""Mistakes planted in mechanisms, and their examiners: the laboratory, and the checks before a mechanism.

What belongs here: each mistake as a patch of the product's own functions, the settings of its examination, and the
examiners that must find it. What does not: judging the findings (`test_planted_mistakes`).

Sizes, pairs (epsilon, delta) and examiners are fixed here, before any run. `chance` gives the power of a run by the
rates of its attack; bounds hold at `CONFIDENCE`, and every power is for a miss of `MISS`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from audit_cases import plan_for, run, table_of
from pytest import MonkeyPatch
from scipy.stats import norm
from test_text_examples import made as text_examples
from test_text_examples import record as text_record
from text_cases import tiny_llama

from dpsynth_platform.audit.gradient_canaries import CanaryModel, CanaryRecords, TrainingAudit
from dpsynth_platform.audit.laboratory import audit, epsilon_to_expect
from dpsynth_platform.bounding import single_owner
from dpsynth_platform.bounding.output import INCLUDED_COLUMN
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.foundation.errors import BoundingError, ContractError, MechanismFailed, TrainingRefused
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import BoundedRangeSelectionEvent, DpEvent, GaussianCountsEvent, event_from_json
from dpsynth_platform.privacy.selection import PrecisionBudget
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN, distinct_owners
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.text.examples import Examples
from dpsynth_platform.training import hooked, loop, stream, validators
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.health import Watch
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.soundness import losses, refuse_unsound
from dpsynth_platform.training.trial import NoJournal

CONFIDENCE, MISS = 1 - 1e-7, 1e-7
LABORATORY, GATE, WATCH, BATCHES, CONTRACT, BOUNDING = (
    "laboratory",
    "gate",
    "watch",
    "check of batches",
    "contract",
    "bounding",
)
Plant = Callable[[MonkeyPatch], None]


@dataclass(frozen=True)
class Finding:
    """The result of one examiner, with an empty message if it found nothing; the laboratory adds both epsilons."""

    examiner: str
    message: str = ""
    proven: float | None = None
    claimed: float | None = None

    @property
    def found(self) -> bool:
        return bool(self.message)


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        examine: runs all examiners on the mechanism with the mistake (True) or on the right one.
        found_by: examiners that must find it. Others may.
        chance: the claimed epsilon, and the one that the laboratory proves with probability 1 - 2 `MISS`; None where it
            does not examine.
    """

    name: str
    setting: str
    found_by: tuple[str, ...]
    examine: Callable[[bool], list[Finding]]
    chance: Callable[[], tuple[float, float]] | None = None


@contextmanager
def planting(plant: Plant, planted: bool) -> Iterator[None]:
    with MonkeyPatch.context() as patch:
        if planted:
            plant(patch)
        yield


def judged(proven: float, claimed: float, attack: str) -> Finding:
    return Finding(LABORATORY, attack if proven > claimed else "", proven, claimed)


def refusal(examiner: str, work: Callable[[], Any], *errors: type[Exception]) -> Finding:
    try:
        work()
    except errors as error:
        return Finding(examiner, str(error))
    return Finding(examiner)


# Training.

# All canaries in one batch: one coordinate each of one Gaussian mechanism, mu = 2.
ONE_STEP = TrainingPlan(units=4000, batch_size=4000, steps=1, noise_multiplier=0.5, optimizer="sgd", learning_rate=1e-6)
# Half of them in each of eight batches.
SAMPLED = replace(ONE_STEP, batch_size=2000, steps=8, noise_multiplier=1.0)
# Ten batches, as many as shuffling would make of one epoch.
EPOCH = replace(ONE_STEP, batch_size=400, steps=10, noise_multiplier=0.2)
GATED = TrainingPlan(units=100, batch_size=10, steps=3, noise_multiplier=1.0, warmup_steps=1000)


@dataclass(frozen=True)
class Training:
    """A mistake in training, with gate, watch and laboratory as examiners; it gives each canary `records` records."""

    plant: Plant
    plan: TrainingPlan = ONE_STEP
    delta: float = 0.5
    records: int = 1

    def __call__(self, planted: bool) -> list[Finding]:
        with planting(self.plant, planted):
            before = gate(tiny_llama()) if planted else gate_of_the_right_training()
            return [before, self._watch(), self._laboratory(self.records if planted else 1)]

    @property
    def claimed(self) -> float:
        return epsilon(self.plan.event, self.delta).epsilon

    def expected(self, true_rate: float, false_rate: float) -> tuple[float, float]:
        """With 45% of the canaries in each world, where half are expected: six deviations less."""
        runs = int(0.45 * self.plan.units)
        proven = epsilon_to_expect(
            true_rate=true_rate, false_rate=false_rate, runs=runs, delta=self.delta, confidence=CONFIDENCE, miss=MISS
        )
        return self.claimed, proven

    def _watch(self) -> Finding:
        """With realistic gradients, which are sparse: here in one coordinate of a hundred."""
        model = CanaryModel(self.plan.units, 10 * self.plan.clipping_norm)
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        records = CanaryRecords(np.arange(0, self.plan.units, 100))
        watch = Watch(self.plan, parameters)
        return refusal(
            WATCH, lambda: train(model, self.plan, records, journal=NoJournal(), health=watch), MechanismFailed
        )

    def _laboratory(self, records: int) -> Finding:
        proof = TrainingAudit(self.plan, self.plan.units, records).prove(delta=self.delta, confidence=CONFIDENCE)
        return judged(proof.epsilon, self.claimed, proof.attack)


def gate(model: Any) -> Finding:
    vocabulary = model.config.vocab_size
    return refusal(GATE, lambda: refuse_unsound(model, GATED, vocabulary=vocabulary, longest=24), TrainingRefused)


@cache
def gate_of_the_right_training() -> Finding:
    """Equal for all mistakes, so it is computed once."""
    return gate(tiny_llama())


def no_clipping(patch: MonkeyPatch) -> None:
    patch.setattr(hooked, "clipping_coefficients", lambda norms, plan: torch.ones_like(norms).float())


def clipping_per_batch(patch: MonkeyPatch) -> None:
    """Clips the mean gradient of a batch instead of each gradient."""

    def add(self: ClippedSums, batch: Any, weights: torch.Tensor) -> None:
        before = {name: total.clone() for name, total in self.totals.items()}
        uses = self._gradients(batch, weights)
        units = len(weights)
        self._accumulate(uses, torch.ones(units), torch.zeros(units, dtype=torch.bool))
        squares = [(total - before[name]).square().sum() for name, total in self.totals.items()]
        mean = float(torch.stack(squares).sum().sqrt()) / units
        factor = min(1.0, self._plan.clipping_norm / mean) if mean else 1.0
        for name, total in self.totals.items():
            total.sub_(before[name]).mul_(factor).add_(before[name])

    patch.setattr(ClippedSums, "add", add)


def noise_times(factor: float) -> Plant:
    add = GaussianNoise.add_

    def plant(patch: MonkeyPatch) -> None:
        patch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, factor * deviation))

    return plant


def same_seed_each_step(patch: MonkeyPatch) -> None:
    noised = loop._Training._noised_means

    def seeded(self: Any) -> Any:
        with MonkeyPatch.context() as fixed:
            fixed.setattr(stream, "random_key", lambda: bytes(32))
            self._noise = GaussianNoise()
        return noised(self)

    patch.setattr(loop._Training, "_noised_means", seeded)


def noise_on_some_parameters(patch: MonkeyPatch) -> None:
    def noised(self: Any) -> dict[str, torch.Tensor]:
        totals = self._sums.totals
        for total in list(totals.values())[::2]:
            self._noise.add_(total, self._plan.noise_deviation)
        return {name: (total / self._plan.batch_size).float() for name, total in totals.items()}

    patch.setattr(loop._Training, "_noised_means", noised)


def noise_before_scaling(patch: MonkeyPatch) -> None:
    """Adds noise for the mean to the sum, which is then divided."""

    def noised(self: Any) -> dict[str, torch.Tensor]:
        totals = self._sums.totals
        for total in totals.values():
            self._noise.add_(total, self._plan.noise_deviation / self._plan.batch_size)
        return {name: (total / self._plan.batch_size).float() for name, total in totals.items()}

    patch.setattr(loop._Training, "_noised_means", noised)


def shuffled_batches(patch: MonkeyPatch) -> None:
    """Each epoch is a shuffled list, cut into batches of equal size: as many of them as 1/q."""
    init = PoissonSampler.__init__

    def remember(self: Any, plan: TrainingPlan, number: int) -> None:
        init(self, plan, number)
        self._batches, self._queue = plan.units // plan.batch_size, []

    def draw(self: Any) -> np.ndarray:
        if not self._queue:
            self._queue = np.array_split(np.random.default_rng().permutation(self._number), self._batches)
        return np.sort(self._queue.pop())

    patch.setattr(PoissonSampler, "__init__", remember)
    patch.setattr(PoissonSampler, "draw", draw)


def nothing(patch: MonkeyPatch) -> None:
    """The mistake is in the mechanism's input."""


def gaussian_rates(threshold: float, *, adds: float = 1.0, factor: float = 1.0) -> tuple[float, float]:
    """Of guessing "in" above `threshold` where a canary adds so much and noise is `factor` times that of `ONE_STEP`."""
    deviation = factor * ONE_STEP.noise_multiplier
    return float(norm.sf((threshold - adds) / deviation)), float(norm.sf(threshold / deviation))


def batch_normalization(planted: bool) -> list[Finding]:
    if not planted:
        return [gate_of_the_right_training()]
    model = tiny_llama()
    model.model.norm = torch.nn.BatchNorm1d(model.config.hidden_size)
    return [gate(model)]


def packed_sequences(planted: bool) -> list[Finding]:
    """Examples of two owners in one row, one after the other."""
    texts = ["a box", "the team was late", "a", "the patient came back with a cough"]

    def packed(self: Examples, indices: Any) -> dict[str, torch.Tensor]:
        rows = alone(self, indices)
        if len(indices) != 2:
            return rows
        return {name: torch.cat([values[:1], values[1:]], dim=1) for name, values in rows.items()}

    alone = Examples.batch
    with tempfile.TemporaryDirectory() as place, planting(lambda p: p.setattr(Examples, "batch", packed), planted):
        examples, _, encoder = text_examples(Path(place), [text_record(text) for text in texts])
        bodies = encoder.bodies([f" {text}" for text in texts])
        tokens = [[*encoder.prompt(("mail",)), *body, encoder.eos] for body in bodies]
        faults = validators.faults_of_batches(examples.batch, tokens)
    return [Finding(BATCHES, " ".join(faults))]


LIMIT = 1.0
RUNS, CHOOSING = 100, 12
"""In each world. An attack that never errs proves 1.6 of them."""
STOPPED_RUNS = 70
"""The same of trainings, which take long: it proves 1.30, where 1.04 are claimed."""
STOPPED = TrainingPlan(units=16, batch_size=8, steps=4, noise_multiplier=4.0, optimizer="sgd", learning_rate=1e-6)


def early_stopping(planted: bool) -> list[Finding]:
    """Training ends as soon as the mean loss of the records is low; one record alone can keep it high."""
    execute = loop._Training.execute

    def stopping(self: Any, step: int, *others: Any) -> int:
        if getattr(self, "_low", False):
            return step
        executed = execute(self, step, *others)
        model = CanaryModel(STOPPED.units, 10.0)
        model.load_state_dict(self._sums._model.state_dict())
        with torch.no_grad():
            found = losses(model, self._examples.batch(range(len(self._examples))))
        self._low = bool(found.mean() < LIMIT)
        return executed

    def once(present: bool) -> dict[str, float]:
        model = CanaryModel(STOPPED.units, 10.0)
        for part in model.parts:
            torch.nn.init.ones_(part.weight)  # all are known well
        torch.nn.init.constant_(model.parts[0].weight[:1], -5.0)  # but the first
        steps = SimpleNamespace(taken=0.0)

        def step(number: int, gradients: Any) -> None:
            steps.taken = float(number)

        records = CanaryRecords(np.arange(0 if present else 1, STOPPED.units))
        train(model, STOPPED, records, journal=NoJournal(), health=SimpleNamespace(step=step))
        return {"steps taken": steps.taken}

    with planting(lambda patch: patch.setattr(loop._Training, "execute", stopping), planted):
        return [worlds(once, STOPPED.event, STOPPED_RUNS)]


# Tables.


def worlds(once: Callable[[bool], dict[str, float]], event: DpEvent, runs: int = RUNS) -> Finding:
    """The laboratory's verdict by so many runs in each world, an attack being chosen by a few more."""
    proof = audit(once, runs=runs, trial_runs=CHOOSING, delta=DELTA, confidence=CONFIDENCE)
    return judged(proof.epsilon, epsilon(event, DELTA).epsilon, proof.attack)


DELTA = 1e-5
"""At which these claims are tried, as contracts make them."""


def certain(claimed: DpEvent | float, runs: int = RUNS) -> Callable[[], tuple[float, float]]:
    """What is claimed, and what so many runs in each world prove by an attack that never errs."""
    return lambda: (
        claimed if isinstance(claimed, float) else epsilon(claimed, DELTA).epsilon,
        epsilon_to_expect(true_rate=1, false_rate=0, runs=runs, delta=DELTA, confidence=CONFIDENCE, miss=MISS),
    )


CONTRACTED = 1.0
"""Epsilon of contracts."""
PEOPLE = np.stack([np.arange(200) % 2, np.arange(200) % 50], axis=1)
OUTLIER = np.array([[2, 99]])
"""A person with a unique city and age."""
CITIES = {"type": "categorical", "values": ["0", "1", "2"]}
AGES = {"type": "integer", "min": 0, "max": 99, "bins": 4}


def learned(columns_of: Callable[[np.ndarray], dict[str, Any]], undeclared: dict[str, Any]) -> list[Finding]:
    """A mechanism whose columns are declared by `columns_of` its records, and a contract without that declaration."""
    records = {False: PEOPLE, True: np.vstack([PEOPLE, OUTLIER])}
    columns = {present: columns_of(rows) for present, rows in records.items()}
    plans = {present: plan_for("mst", columns[present], epsilon=CONTRACTED, b=1) for present in records}
    tables = {
        present: table_of(["city"], rows).append_column("age", pa.array(rows[:, 1]))
        for present, rows in records.items()
    }

    def once(present: bool) -> dict[str, float]:
        """The public columns, and the noisy count of the outlier's cell."""
        cities = run(plans[present], tables[present]).of("noise")[0].answer
        edges = columns[present]["age"]["bins"]
        return {
            "values": float(cities.size),
            "edges": float(np.max(edges)),
            "count": float(cities[2:].sum()),
        }

    return [
        worlds(once, event_from_json(plans[False].event)),
        refusal(CONTRACT, lambda: plan_for("mst", undeclared, epsilon=CONTRACTED, b=1), ContractError),
    ]


def domain_from_the_data(planted: bool) -> list[Finding]:
    """The values of a column are those that occur. A column without values is refused."""

    def columns_of(records: np.ndarray) -> dict[str, Any]:
        found = {"type": "categorical", "values": [str(value) for value in np.unique(records[:, 0])]}
        return {"city": found if planted else CITIES, "age": AGES}

    return learned(columns_of, {"city": {"type": "categorical"} if planted else CITIES, "age": AGES})


def bins_from_the_data(planted: bool) -> list[Finding]:
    """The bins of a column lie between its least and its largest value. A column without a range is refused."""

    def columns_of(records: np.ndarray) -> dict[str, Any]:
        low, high = records[:, 1].min(), records[:, 1].max()
        edges = [int(low + (high - low) * part // 5) for part in range(1, 5)]
        return {"city": CITIES, "age": AGES | {"bins": edges} if planted else AGES}

    return learned(columns_of, {"city": CITIES, "age": {"type": "integer"} if planted else AGES})


def draws(*, choices: int = 0, sigma: float = 1.0) -> drawing.Draws:
    """The product's draws, with a log in memory."""
    log = SimpleNamespace(
        choice=lambda clique, levels: None,
        counts=lambda kind, noisy: None,
        kept_choice=lambda: None,
        kept_counts=lambda kind, asked: None,
    )
    return drawing.Draws(log, PrecisionBudget.of(sigma), choices, CHOOSES.epsilon, sensitivity=1)  # type: ignore[arg-type]


CHOOSES = BoundedRangeSelectionEvent(0.5, "add-or-remove", 1)
FIRST, SECOND = View.finest((0, 1)), View.finest((0, 2))


def selection_without_noise(planted: bool) -> list[Finding]:
    """Takes the best of two; one person changes it."""

    def once(present: bool) -> dict[str, float]:
        scores = {FIRST: 10 + present, SECOND: 10 + (not present)}
        return {"choice": float(draws(choices=1).choice(scores) == FIRST)}

    def best(scores: Any, epsilon: float, sensitivity: int) -> int:
        return int(np.argmax(scores))

    with planting(lambda patch: patch.setattr(drawing, "select_by_exponential_mechanism", best), planted):
        return [worlds(once, CHOOSES)]


SIGMA = 4.0
MEASURES = GaussianCountsEvent(SIGMA, "add-or-remove", 1)


def reuse_after_a_peek(planted: bool) -> list[Finding]:
    """A table is measured every month; where the counts have not changed, last month's answer is given out again."""
    sample = drawing.sample_rounded_gaussian

    def once(present: bool) -> dict[str, float]:
        kept: dict[bytes, np.ndarray] = {}

        def noisy(counts: np.ndarray, sigma: float) -> np.ndarray:
            key = np.asarray(counts).tobytes()
            if key not in kept:
                kept[key] = sample(counts, sigma)
            return kept[key]

        before = np.full(8, 30, dtype=np.int64)
        now = before + (np.arange(8) == 0) * present
        with planting(lambda patch: patch.setattr(drawing, "sample_rounded_gaussian", noisy), planted):
            first, second = (draws(sigma=SIGMA).joint(FIRST, counts, SIGMA).counts for counts in (before, now))
        return {"new answer": float(not np.array_equal(first, second)), "count": float(second[0])}

    return [worlds(once, MEASURES)]


def canaries_past_bounding(planted: bool) -> list[Finding]:
    """Canaries join after records were ranked, with all that they have."""

    def rows_of(owner: int, records: int) -> list[dict[str, Any]]:
        return [
            {"age": 30, OWNER_COLUMN: f"{owner:032x}", RECORD_COLUMN: f"{1000 * owner + record:032x}"}
            for record in range(records)
        ]

    schema = pa.schema([("age", pa.int32()), (OWNER_COLUMN, pa.string()), (RECORD_COLUMN, pa.string())])
    people = pa.Table.from_pylist([*rows_of(1, 5), *rows_of(2, 1)], schema)
    canaries = pa.Table.from_pylist(rows_of(9, 4), schema).append_column(INCLUDED_COLUMN, pa.array([True] * 4))
    past = single_owner._BOUND_SQL.replace("_rank <= ?", "_rank <= ? OR _owner IN (SELECT _owner FROM canaries)")
    with (
        tempfile.TemporaryDirectory() as place,
        DuckDBChoice(threads=1).open(Path(place) / "spill") as engine,
        planting(lambda patch: patch.setattr(single_owner, "_BOUND_SQL", past), planted),
    ):
        write_table(Path(place) / "in", schema, people.to_batches())

        def bound() -> None:
            single_owner.write_bounded(
                Path(place) / "in",
                Path(place) / "out",
                engine=engine,
                columns=["age"],
                participants=distinct_owners(people.to_batches()),
                max_contributions=2,
                key=b"k" * 32,
                canaries=canaries,
            )

        return [refusal(BOUNDING, bound, BoundingError)]


FIFTH = replace(ONE_STEP, units=24_000, batch_size=24_000)
PAIRS = f"{RUNS} runs in each world, delta {DELTA:g}"
ONE, EIGHT, TEN = "4,000 canaries, one step", "4,000 canaries, 8 sampled steps", "4,000 canaries, 10 sampled steps"
BEST = (1 - 1e-6, 1e-6)
"""Rates of attacks on what is without noise, or nearly so."""


def trained(
    name: str, found_by: tuple[str, ...], work: Training, rates: tuple[float, float], setting: str = ONE
) -> Mistake:
    return Mistake(name, f"{setting}, delta {work.delta:g}", found_by, work, lambda: work.expected(*rates))


MISTAKES = (
    trained("no clipping", (GATE, LABORATORY), Training(no_clipping), gaussian_rates(5, adds=10)),
    trained(
        # A batch of n gradients of equal length and all directions: each counts sqrt(n) times C; n is 400 or more.
        "clipping per batch",
        (GATE, LABORATORY),
        Training(clipping_per_batch),
        gaussian_rates(10, adds=20),
    ),
    trained("noise at half", (GATE, WATCH, LABORATORY), Training(noise_times(0.5)), gaussian_rates(0.7, factor=0.5)),
    trained(
        "noise at 80%",
        (GATE, WATCH, LABORATORY),
        Training(noise_times(0.8), FIFTH, delta=0.6),
        gaussian_rates(0.6, factor=0.8),
        "24,000 canaries, one step",
    ),
    trained(
        # The highest step is above the lowest unless a canary is in all eight, or in none.
        "same seed each step",
        (LABORATORY,),
        Training(same_seed_each_step, SAMPLED, delta=0.2),
        (1 - 2 / 2**8, 1e-6),
        EIGHT,
    ),
    trained(
        # Half of the canaries are without noise; of the others, hardly one is above 2.9.
        "noise only on some parameters",
        (WATCH, LABORATORY),
        Training(noise_on_some_parameters, replace(ONE_STEP, noise_multiplier=1.0), delta=0.2),
        (0.5, 0.5 * float(norm.sf(2.9))),
    ),
    trained("noise added before the sum is scaled", (WATCH, LABORATORY), Training(noise_before_scaling), BEST),
    trained(
        # Once an epoch for certain, where 1 - 0.9^10 = 0.65 are drawn at all by coins: its one step above 0.6.
        "shuffled batches accounted as Poisson",
        (GATE, LABORATORY),
        Training(shuffled_batches, EPOCH, delta=0.66),
        (float(norm.sf((0.6 - 1) / 0.2)), 10 * float(norm.sf(0.6 / 0.2))),
        TEN,
    ),
    trained("b records in, accounted as one", (LABORATORY,), Training(nothing, records=4), gaussian_rates(2, adds=4)),
    Mistake("batch normalization in the model", "random tokens", (GATE,), batch_normalization),
    Mistake("two owners packed into one sequence", "made-up texts", (BATCHES,), packed_sequences),
    Mistake("domain from the data", PAIRS, (CONTRACT, LABORATORY), domain_from_the_data, certain(CONTRACTED)),
    Mistake("bins from the data", PAIRS, (CONTRACT, LABORATORY), bins_from_the_data, certain(CONTRACTED)),
    Mistake("selection step without noise", PAIRS, (LABORATORY,), selection_without_noise, certain(CHOOSES)),
    Mistake("measurements reused after another peek", PAIRS, (LABORATORY,), reuse_after_a_peek, certain(MEASURES)),
    Mistake("canaries bypassing bounding", "made-up rows", (BOUNDING,), canaries_past_bounding),
    Mistake(
        "early stopping on real loss",
        f"{STOPPED_RUNS} runs in each world, delta {DELTA:g}",
        (LABORATORY,),
        early_stopping,
        certain(STOPPED.event, STOPPED_RUNS),
    ),
)
