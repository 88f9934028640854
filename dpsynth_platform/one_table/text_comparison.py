"""Methods that write texts side by side on public texts: utility, fidelity, and SynBench's membership attack.

What belongs here: the cells of method and epsilon, each written, measured and attacked, and what is kept of them. What
does not: figures (`text_figures`), the attack (`audit.texts.synbench`), the result for people (`text_result`).

Each cell is a run of `dpsynth synth text` in a process of its own, on texts that are declared public. As in
`comparison`, nothing is paid for. A cell is a directory, in which each finished part is a file; a repeated command does
what is missing. Other texts or settings need another directory.

There is no cell without noise: no option of the product turns noise off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsynth_platform.audit.texts import synbench
from dpsynth_platform.contracts.methods import TEXT_METHODS
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed, SourceError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import HeldByAnother, held, write_durably
from dpsynth_platform.one_table.comparison import HELD_OUT, LEAST_ROWS, Try, tried
from dpsynth_platform.one_table.public_material import checked_public
from dpsynth_platform.one_table.task import LEAST_UNITS, Options, declared_run
from dpsynth_platform.one_table.text_figures import Judge
from dpsynth_platform.one_table.text_result import TextComparison, TextTry
from dpsynth_platform.one_table.text_sources import LABEL, TEXT, TextSet, labelled_texts, remarks_on, unlearned
from dpsynth_platform.quality.text.corpora import LEAST_TEXTS
from dpsynth_platform.synth.text.base_models import DEFAULT

EPSILONS = (0.5, 1.0, 2.0, 4.0)
"""SynBench's, section 4."""
METHODS = ("dp_finetune", "aug_pe")
"""Of the kinds that SynBench compares: DP-SGD of a language model, and private evolution."""
FORMAT = 1
_CHANGING = ("table", "why", "membership", "pretraining", "known")
"""Settings on which no finished part depends; the content of the table counts instead of its place."""
_WHY_WEAK = "a benchmark on public texts"


@dataclass(frozen=True)
class TextBench:
    """What is compared. All of it is public.

    Attributes:
        table: a Parquet, CSV or JSON lines file, or a Delta table.
        why: why it is public; printed in the result.
        text, label: columns; labels may be lists, or several in one text, divided by `separator`.
        held_out: a file of held-out texts with the same columns; None: a fifth of the table.
        about: what the texts are, in public words, for methods that write from words.
        delta: of each run; None: 1/n^1.1 with n texts.
        rows: synthetic texts of each run; None: as many as are read.
        base_model: of all methods, and of perplexity.
        settings: parts `text`, `training` and `scrub` of a schema for texts, by method; those of `all` for each.
        membership: number of releases of SynBench's attack, each a run of the method; 0: no attack.
        pretraining: whether to test if the base model has read the texts (`audit.texts.pretraining`).
        trials, sample: of the quality report: draws, and the most texts of each table.
        known: the set of SynBench that it is said to be.
    """

    table: Path
    why: str
    text: str
    label: str
    separator: str | None = None
    held_out: Path | None = None
    about: str | None = None
    delta: float | None = None
    rows: int | None = None
    base_model: str = DEFAULT
    settings: Mapping[str, Mapping[str, Any]] | None = None
    membership: int = 0
    pretraining: bool = False
    trials: int = 3
    sample: int = 1000
    known: TextSet | None = None

    def options(self, method: str, epsilon: float, units: int, values: Sequence[str]) -> Options:
        """Of one run on about so many texts, in the columns `LABEL` and `TEXT`; `values` are all labels."""
        parts: dict[str, Any] = {}
        for name in ("all", method):
            parts |= dict((self.settings or {}).get(name, {}))
        columns = {LABEL: {"type": "categorical", "values": list(values)}, TEXT: {"type": "text"}}
        return Options(
            epsilon=epsilon,
            delta=self.delta_of(units),
            expected_units=max(LEAST_UNITS, units),
            method=method,  # type: ignore[arg-type]
            schema={"columns": columns} | parts,
            text=TEXT,
            condition=[LABEL],
            about=self.words,
            base_model=self.base_model,
            rows=self.rows or units,
            accept_weak_guarantee=_WHY_WEAK,
        )

    @property
    def words(self) -> str | None:
        """What the texts are: as declared, or those of a known set."""
        return self.about or (self.known.about if self.known else None)

    def delta_of(self, units: int) -> float:
        return self.delta or 1 / units**1.1


def compare_texts(
    bench: TextBench,
    out: str | Path,
    *,
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress = silent,
) -> TextComparison:
    """Writes, measures and attacks each cell that the directory `out` lacks.

    Raises:
        ContractError: the table is not declared as it should be or is guarded by the deployment, methods or epsilons
            cannot be run, or the directory is of other texts or settings.
        SourceError: the texts cannot be read, are too few, or have one label only.
        ConfigurationError: the sentence model or the language model is not installed.
        MechanismFailed: no method has written texts; the message has each reason.
    """
    unknown = sorted({*methods} - {*TEXT_METHODS}) + sorted({*(bench.settings or {})} - {"all", *TEXT_METHODS})
    if unknown or not methods or not epsilons:
        raise ContractError(
            f"methods: {', '.join(unknown) or 'none'}; accepted: {', '.join(TEXT_METHODS)}; and one epsilon at least"
        )
    for file in filter(None, (bench.table, bench.held_out)):
        checked_public(Settings.from_environment(), file, bench.why, "the public texts")
    with private_files(), _alone_in(private_directory(Path(out))) as place:
        real, held_out, missing = _parts(bench)
        _check_runs(bench, real, methods, epsilons)
        _sealed(place, bench, real, held_out)
        judge = Judge(real, held_out, bench.base_model, bench.trials, bench.sample, progress)
        asked = [(method, float(epsilon)) for epsilon in epsilons for method in dict.fromkeys(methods)]
        cells = []
        for number, (method, epsilon) in enumerate(asked):
            progress("cells", number, len(asked))
            cell = place / "cells" / f"{method}-epsilon-{epsilon:g}"
            cells.append(_Cell(bench, judge, cell, method, epsilon, progress).result())
        progress("cells", len(asked), len(asked))
        result = TextComparison(
            public=str(bench.table),
            why=bench.why,
            texts=real.num_rows,
            held_out=held_out.num_rows,
            left_out=missing,
            labels=len(_values(real)),
            delta=bench.delta_of(real.num_rows),
            baselines=judge.baselines(),
            real=next((cell.real for cell in cells if cell.real), {}),
            tries=tuple(cells),
            pretraining=once(place / "pretraining.json", judge.pretraining) if bench.pretraining else None,
            remarks=(*unlearned(real, held_out), *remarks_on(bench.known, real, held_out)),
        )
        if not any(cell.measures for cell in cells):
            raise MechanismFailed("\n".join(["no method has written texts", *result.refused]))
        result.write(place)
    return result


@contextmanager
def _alone_in(place: Path) -> Iterator[Path]:
    """Refuses a directory that another command uses."""
    with ExitStack() as lock:
        try:
            lock.enter_context(held(place))
        except HeldByAnother:
            problem = f"--out {place}: another command uses it; accepted: to wait for its end, or another directory"
        else:
            yield place
            return
    raise ContractError(problem)


def once(file: Path, made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A part of the result, which is made if its file is missing, and kept unless it was refused."""
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    found = made()
    if found.get("refused") is None:
        write_durably(file, json.dumps(found, indent=1))
    return found


@dataclass(frozen=True)
class _Cell:
    """One method at one epsilon, in its directory."""

    bench: TextBench
    judge: Judge
    place: Path
    method: str
    epsilon: float
    progress: Progress

    def result(self) -> TextTry:
        private_directory(self.place.parent)
        private_directory(self.place)
        kept = once(self.place / "written.json", self._written)
        found = TextTry(self.method, self.epsilon, **kept)
        if found.refused is not None:
            return found
        figures = once(self.place / "figures.json", self._figures)
        if "refused" in figures:
            return replace(found, refused=figures["refused"])
        found = replace(found, measures=figures["measures"], real=figures["real"])
        if not self.bench.membership:
            return found
        return replace(found, membership=once(self.place / f"membership-{self.bench.membership}.json", self._attacked))

    def _written(self) -> dict[str, Any]:
        made, table = self._run(self.judge.real, self.judge.real.num_rows)
        if table is not None:
            _keep(table, self.place / "synthetic.parquet")
        return {name: getattr(made, name) for name in ("seconds", "megabytes", "refused")}

    def _figures(self) -> dict[str, Any]:
        try:
            measures, real = self.judge.figures(pq.read_table(self.place / "synthetic.parquet"))
        except SourceError as error:  # too few texts
            return {"refused": str(error)}
        return {"measures": measures, "real": real}

    def _attacked(self) -> dict[str, Any]:
        """SynBench's attack; each release is kept as soon as it is made."""
        real = self.judge.of_real("real")
        try:
            plan = synbench.design(real.features, runs=self.bench.membership)
            # All plans are for so many texts: a run with its target has the same plan as one without.
            units = plan.subsets.shape[1]
            release = partial(self._release, units=units)
            scores = synbench.attack(real.texts, plan, release, progress=self.progress)
            found = synbench.evaluate(
                scores[synbench.WORD], plan, epsilon=self.epsilon, delta=self.bench.delta_of(units)
            )
        except (AccountingError, MechanismFailed) as error:
            return {"refused": str(error)}
        return found.to_json() | {"words": found.in_words()}

    def _release(self, rows: Sequence[int], run: int, units: int) -> list[str]:
        kept = private_directory(self.place / "releases") / f"{run}.parquet"
        if not kept.exists():
            made, table = self._run(self.judge.real.take(pa.array(rows)), units)
            if table is None:
                raise MechanismFailed(f"release {run}: {made.refused}")
            _keep(table, kept)
        return [text for text in pq.read_table(kept)[TEXT].to_pylist() if text]

    def _run(self, table: pa.Table, units: int) -> tuple[Try, pa.Table | None]:
        options = self.bench.options(self.method, self.epsilon, units, _values(self.judge.real))
        with scratch_directory("dpsynth-bench-") as work:
            learned = work / "learned.parquet"
            pq.write_table(table, learned)
            made, file = tried(learned, work / "run", options)
            return made, None if file is None else pq.read_table(file)


def _keep(table: pa.Table, file: Path) -> None:
    """Writes a file that is whole if it exists."""
    part = file.with_suffix(f".{os.getpid()}.part")
    pq.write_table(table, part)
    part.replace(file)


def _values(table: pa.Table) -> list[str]:
    return sorted(pc.unique(table[LABEL]).to_pylist())


def _parts(bench: TextBench) -> tuple[pa.Table, pa.Table, int]:
    """Texts to learn, held-out ones, and the number of rows without a text or a label: the same for the same file."""
    whole, missing = labelled_texts(bench.table, bench.text, bench.label, bench.separator)
    if bench.held_out is not None:
        others, more = labelled_texts(bench.held_out, bench.text, bench.label, bench.separator)
        real, held_out, missing = whole, others, missing + more
    else:
        order = np.random.default_rng(0).permutation(whole.num_rows)
        cut = round(HELD_OUT * whole.num_rows)
        held_out, real = (whole.take(pa.array(np.sort(part))) for part in (order[:cut], order[cut:]))
    if real.num_rows < LEAST_ROWS or held_out.num_rows < LEAST_TEXTS:
        raise SourceError(
            f"{bench.table}: {real.num_rows} texts to learn and {held_out.num_rows} held out; accepted: "
            f"{LEAST_ROWS} and {LEAST_TEXTS} at least"
        )
    if len(_values(real)) < 2:
        raise SourceError(f"label: all texts of {bench.table} have one label; accepted: two at least")
    return real, held_out, missing


_OF_SETTINGS = {"text", "training", "scrub"}


def _check_runs(bench: TextBench, real: pa.Table, methods: Sequence[str], epsilons: Sequence[float]) -> None:
    """Refuses what any run would refuse before its plan: a cell takes hours, and other settings another directory."""
    for name, parts in (bench.settings or {}).items():
        if not isinstance(parts, Mapping) or set(parts) - _OF_SETTINGS:
            raise ContractError(f"--settings, {name}: accepted: a mapping of {', '.join(sorted(_OF_SETTINGS))}")
    for method in methods:
        for epsilon in epsilons:
            try:
                declared_run(real, bench.options(method, float(epsilon), real.num_rows, _values(real)))
            except (ContractError, SourceError) as error:
                raise ContractError(f"{method}, epsilon {epsilon:g}: {error}") from None


def _sealed(place: Path, bench: TextBench, real: pa.Table, held_out: pa.Table) -> None:
    """Refuses a directory of other texts or settings."""
    given = {name: value for name, value in asdict(bench).items() if name not in _CHANGING} | {"about": bench.words}
    texts = [canonical_digest(table.to_pylist()) for table in (real, held_out)]
    digest = canonical_digest(json.loads(json.dumps([FORMAT, given, texts], default=str)))
    file = place / "settings.json"
    if not file.exists():
        write_durably(file, json.dumps({"digest": digest, "settings": given}, default=str, indent=1))
    elif json.loads(file.read_text(encoding="utf-8"))["digest"] != digest:
        raise ContractError(
            f"--out {place}: its cells are of other texts or settings (settings.json); accepted: another directory"
        )
