"""A generator's seconds and bytes, predicted from public facts before a record is read.

What belongs here: the cost of the parts of a run, and the largest run of rounds that keeps a time limit. What does not:
clocks (`estimation` has the only one) and the parts themselves.

**A time limit and privacy.** The time of counting reveals the number of records. So no clock may decide anything in a
mechanism: its use of the remaining time would be an unpaid result. Instead, the sealed plan has only the choices, fits
and cells that predictions allow for the *expected* number of records. Only the last fit, which reads noisy counts, may
stop by the clock. A table with more records takes longer.

**Constants** are processor seconds of one core of a 2.x GHz server, measured on three tables (14 columns with a model
of 450,000 cells, 30 and 80 columns with 20,000 and 320,000) and rounded up: predictions are one to three times the
measured time (`tests/benchmarks/bench_tabular.py --limits` prints both). They exclude the start of a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

START_SECONDS = 0.05  # reading and writing small files
COUNT_SECONDS = 16e-9  # to count a record in one clique
WEIGH_SECONDS = 90e-6  # to check whether a clique is admissible, with its expected counts and score
DRAW_SECONDS = 2e-3  # to draw the noise of a measurement and write it to disk
ARRANGE_SECONDS = 300e-6  # to add a measurement to the model and find the next candidates; per column
STEP_SECONDS = 0.3e-3  # of a step of a fit; also for each measured clique and each cell of the model
STEP_SECONDS_PER_CLIQUE = 16e-6
STEP_SECONDS_PER_CELL = 16e-9
EXPECT_SECONDS_PER_CELL = 35e-9  # to compute the expected counts of all cliques by the model
SAMPLE_SECONDS = 200e-9  # to draw one value
EVALUATIONS = 1.25  # of the minimized function per step of a long fit; short fits take one or two more

MIX_SECONDS_PER_NUMBER = 25e-9  # of a step of a mixture's fit, for each share of a component
NETWORK_SECONDS_PER_NUMBER = 100e-9  # the same, if a network computes the shares
MIX_SECONDS_PER_CLIQUE = 110e-6  # also for each measured clique, and each of its cells in each component
MIX_SECONDS_PER_PRODUCT = 0.3e-9

# Of DP-SGD: seconds for a column of a row, or a token, and for each weight beside it. Measured in one thread: networks
# of 8 to 80 columns (`tests/benchmarks/bench_network_speed.py`, for other tables, too; predictions are .9 to 3 times
# the time), and language models of 47,000 to 61 million weights (`bench_language.py`, and passes over random tokens).
ARN_PACE = 1.2e-6, 0.22e-9
TBART_PACE = 12e-6, 0.12e-9
MIXTURE_PACE = 1.2e-6, 0.008e-9
LANGUAGE_PACE = 35e-6, 0.075e-9

ESTIMATE_SHARE = 0.3  # part of a time limit that the last fit may take, by the clock
LEAST_CELLS = 2**14

BASE_BYTES = 32 * 2**20  # of the smallest run: libraries, one batch of records, files
NUMBERS_PER_CELL = 10  # of eight bytes, for a cell of the model: two distributions and temporary arrays
NUMBERS_PER_MEASURED = 54  # for a measured cell: the pairs of L-BFGS; potentials, slopes, curvatures twice
NUMBERS_PER_COUNT = 2.5  # for a cell that may be chosen: exact and expected counts, and copies of some
VIEW_BYTES = 600  # for a view that may be chosen


@dataclass(frozen=True)
class Work:
    """The work of a mechanism of rounds. All of it is public.

    Attributes:
        records: their expected number.
        cliques: number of sets of columns that may be measured.
        rounds: the most choices, with a fit after `choices_per_fit`.
        model_cells: limit of the model's cells.
        steps: of each fit between rounds; the last fit has `last_steps`.
    """

    records: int
    columns: int
    cliques: int
    rounds: int
    choices_per_fit: int
    model_cells: int
    steps: int
    last_steps: int

    @property
    def measuring(self) -> float:
        """Seconds of the mechanism."""
        fits = -(-self.rounds // self.choices_per_fit)
        # The model grows in proportion to the rounds: half of its cells on average, and of its cliques.
        cells, cliques = self.model_cells / 2, self.columns + self.rounds / 2
        fit = (self.steps + 2) * self._step(cells, cliques)
        weighing = self.cliques * WEIGH_SECONDS + cells * EXPECT_SECONDS_PER_CELL
        drawing = (self.columns + self.rounds) * DRAW_SECONDS + self.rounds * self.columns * ARRANGE_SECONDS
        counting = self.records * (self.columns + self.cliques) * COUNT_SECONDS
        return START_SECONDS + counting + drawing + fits * (weighing + fit)

    @property
    def estimating(self) -> float:
        """Seconds of the last fit."""
        return START_SECONDS + EVALUATIONS * self.last_steps * self._step(self.model_cells, self.columns + self.rounds)

    @property
    def sampling(self) -> float:
        """Seconds of drawing as many rows as records."""
        return START_SECONDS + self.records * self.columns * SAMPLE_SECONDS

    def seconds(self, limit: float | None = None) -> float:
        """Seconds of the whole run; with a limit, the clock ends the last fit."""
        estimating = self.estimating if limit is None else min(self.estimating, ESTIMATE_SHARE * limit)
        return self.measuring + estimating + self.sampling

    def within(self, limit: float | None) -> Work:
        """The most work that keeps the limit; the least work if none does."""
        chosen = self
        for chosen in self._smaller():
            if limit is None or chosen.seconds(limit) <= limit:
                break
        return chosen

    def _smaller(self) -> Iterator[Work]:
        """Decreasing work: first fewer fits, which costs least quality, then smaller models, then fewer choices."""
        work = self
        yield work
        while 2 * work.choices_per_fit <= self.columns // 3:
            work = replace(work, choices_per_fit=2 * work.choices_per_fit)
            yield work
        while work.model_cells > LEAST_CELLS:
            work = replace(work, model_cells=work.model_cells // 2)
            yield work
        while work.rounds > 1:
            work = replace(work, rounds=work.rounds // 2)
            yield work

    def _step(self, cells: float, cliques: float) -> float:
        return STEP_SECONDS + cliques * STEP_SECONDS_PER_CLIQUE + cells * STEP_SECONDS_PER_CELL


@dataclass(frozen=True)
class MixtureWork:
    """The work of rounds with a mixture. All of it is public.

    Attributes:
        records, columns, cliques, rounds, choices_per_fit, steps, last_steps: as of `Work`.
        states: of all columns together.
        cells: of the largest cliques, one for each round, together.
        per_number: seconds of a step for each share of a component.
    """

    records: int
    columns: int
    states: int
    cliques: int
    cells: int
    rounds: int
    choices_per_fit: int
    components: int
    steps: int
    last_steps: int
    per_number: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        fits = -(-self.rounds // self.choices_per_fit)
        base = self.components * self.states * self.per_number
        views = self.rounds * MIX_SECONDS_PER_CLIQUE + self.cells * self.components * MIX_SECONDS_PER_PRODUCT
        # On average, half of the cliques are measured.
        fitting = fits * (self.steps * (base + views / 2) + self.cliques * WEIGH_SECONDS)
        drawing = (self.columns + self.rounds) * DRAW_SECONDS
        counting = self.records * (self.columns + self.cliques) * COUNT_SECONDS
        sampling = self.records * self.columns * SAMPLE_SECONDS
        return 3 * START_SECONDS + counting + drawing + fitting + self.last_steps * (base + views) + sampling

    def within(self, limit: float | None, least: int) -> MixtureWork:
        """The most work that keeps the limit; the least if none does: fewer components, then fits, then rounds."""
        work = self
        while limit is not None and work.seconds > limit:
            if work.components > least:
                work = replace(work, components=max(least, work.components // 2))
            elif work.choices_per_fit < work.rounds:
                work = replace(work, choices_per_fit=2 * work.choices_per_fit)
            elif work.rounds > 1:
                work = replace(work, rounds=work.rounds // 2, cells=work.cells // 2)
            else:
                break
        return work


@dataclass(frozen=True)
class TrainingWork:
    """The work of training a network by DP-SGD, without counts and drawing. All of it is public.

    Attributes:
        rows: of all steps together.
        places: columns or tokens of a row.
        weights: that a row meets at each place.
        pace: seconds of a place, and further ones for each weight.
    """

    rows: int
    places: int
    weights: float
    pace: tuple[float, float]

    @property
    def seconds(self) -> float:
        """Of one core; an accelerator is faster."""
        of_place, of_weight = self.pace
        return START_SECONDS + self.rows * self.places * (of_place + self.weights * of_weight)


def memory_bytes(*, counted: int = 0, views: int = 0, measured: int = 0, model_cells: int = 0) -> int:
    """The most memory of a run, without the program itself.

    `counted` are the cells of all that may be measured in so many `views` (`resolution`). The cells of all measurements
    (`measured`) are hardly more than those of the largest model (`model_cells`), which covers them.
    """
    numbers = NUMBERS_PER_COUNT * counted + NUMBERS_PER_MEASURED * measured + NUMBERS_PER_CELL * model_cells
    return round(BASE_BYTES + 8 * numbers + VIEW_BYTES * views)
