"""What a generator takes, in seconds and bytes, predicted from public facts before a record is read.

What belongs here: the cost of the parts of a run, and the largest run of rounds that keeps a time limit. What does not:
clocks (`estimation` has the only one) and what the parts do.

**A time limit and privacy.** How long counting takes tells how many records there are. So no clock may decide anything
in a mechanism: what it does with the time that is left would be a result that nobody paid for. A limit acts in two
places, neither of which looks at the data. The sealed plan has only as many choices, fits and cells as the predictions
here allow for the *expected* number of records. And the last fit, which is given nothing but noisy counts, may stop by
the clock. A table with far more records than expected takes longer, and nothing is cut short.

**Constants** are processor seconds of one core of a 2.x GHz server, measured on three tables (14 columns with a model
of 450,000 cells, 30 and 80 columns with 20,000 and 320,000) and rounded up: predictions are one to three times what is
measured (`tests/benchmarks/bench_tabular.py --limits` prints both). Seconds to start a process are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

START_SECONDS = 0.05
"""Reading and writing small files."""
COUNT_SECONDS = 16e-9
"""To count a record in one clique."""
WEIGH_SECONDS = 90e-6
"""To find out for one clique whether it is admissible, what is expected of it, and what it is worth."""
DRAW_SECONDS = 2e-3
"""To draw the noise of a measurement and write it to disk."""
ARRANGE_SECONDS = 300e-6
"""To arrange the model anew with a measurement, and to ask what may come beside it; for each column."""
STEP_SECONDS = 0.3e-3
"""Of each step of a fit; and for each measured clique, and for each cell of the model."""
STEP_SECONDS_PER_CLIQUE = 16e-6
STEP_SECONDS_PER_CELL = 16e-9
EXPECT_SECONDS_PER_CELL = 35e-9
"""To read the expected counts of all cliques off the model."""
SAMPLE_SECONDS = 200e-9
"""To draw one value."""
EVALUATIONS = 1.25
"""Of the function that is minimized, for each step of a long fit; short fits take one or two more."""

ESTIMATE_SHARE = 0.3
"""Part of a time limit that the last fit may take, by the clock."""
LEAST_CELLS = 2**14

BASE_BYTES = 32 * 2**20
"""What a run takes however small it is: libraries, one batch of records, files."""
NUMBERS_PER_CELL = 10
"""Of eight bytes, for a cell of the model: two distributions while a step is tried, each with its conditionals, and
what is in between."""
NUMBERS_PER_MEASURED = 54
"""For a measured cell: pairs of step and slope that L-BFGS keeps, and potentials, slopes and curvatures twice."""
NUMBERS_PER_COUNT = 2.5
"""For a cell that may be chosen: its exact count, the expected one, and a copy of some while they are compared."""
VIEW_BYTES = 600
"""For a view that may be chosen."""


@dataclass(frozen=True)
class Work:
    """What a mechanism of rounds has to do. All of it is public.

    Attributes:
        records: that are expected.
        columns: number of modelled columns.
        cliques: sets of columns that may be measured.
        rounds: the most choices.
        choices_per_fit: rounds after which the model is fitted anew.
        model_cells: cells that the model may have.
        steps: of each fit in between.
        last_steps: of the last fit.
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
        """Seconds of drawing as many rows."""
        return START_SECONDS + self.records * self.columns * SAMPLE_SECONDS

    def seconds(self, limit: float | None = None) -> float:
        """Of all together, where the clock ends the last fit if there is a limit."""
        estimating = self.estimating if limit is None else min(self.estimating, ESTIMATE_SHARE * limit)
        return self.measuring + estimating + self.sampling

    def within(self, limit: float | None) -> Work:
        """The most work that keeps the limit; the least that there is, if none does."""
        chosen = self
        for chosen in self._smaller():
            if limit is None or chosen.seconds(limit) <= limit:
                break
        return chosen

    def _smaller(self) -> Iterator[Work]:
        """Ever less work: first fewer fits, which costs least quality, then smaller models, then fewer choices."""
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


def memory_bytes(*, counted: int = 0, views: int = 0, measured: int = 0, model_cells: int = 0) -> int:
    """The most memory that a run takes beside the program itself.

    Args:
        counted: cells of all that may be measured.
        views: number of views that may be chosen (`resolution`).
        measured: cells of all that is measured: hardly more than the model has, which covers them.
        model_cells: cells of the largest model.
    """
    numbers = NUMBERS_PER_COUNT * counted + NUMBERS_PER_MEASURED * measured + NUMBERS_PER_CELL * model_cells
    return round(BASE_BYTES + 8 * numbers + VIEW_BYTES * views)
