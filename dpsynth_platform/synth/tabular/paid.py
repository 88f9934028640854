"""Bought measures: how useful the model's rows are for the private records, with noise, under the generation's entry.

What belongs here: the sealed settings (`quality.paid`), the measures with their sensitivity, their noise, and the file
that keeps them. What does not: their part of the budget (`privacy.partitions`), intervals (`release.paid`), and the
report for reviewers, whose figures nobody paid for (`quality`).

The second mechanism of a plan. After the fit it draws a sample from the model, of a sealed number of rows, as a release
is drawn. The sample is post-processing of the first mechanism, and fixed from then on. Then the records are read once
more. Figures are of that sample, not of the released rows, which nobody has drawn yet.

- `accuracy`: a classifier learns the target from the sample alone. Each record with a target then falls into one of
  four cells by itself: whether the classifier is right, and whether the sample's most frequent value is. One unit moves
  this table as it moves any table of counts over disjoint cells (`privacy.units.count_sensitivity`). Of a target of
  two values, F1 and balanced accuracy follow from the same cells.
- `regression`: a regressor learns a numeric target from the sample alone. Each record with a target is off by a part e
  of the declared range, into which the prediction is cut, and the sample's median by u. The record is divided among
  four cells: e u, e (1 - u), (1 - e) u and (1 - e) (1 - u), in whole parts of a record. They are not negative and their
  sum is the record, so one unit moves the table no farther than one of disjoint cells: its records' vectors have an L1
  norm of b at most, hence an L2 norm of b, and two of them differ by sqrt(2) b. Errors are absolute: squares of small
  parts would be lost in the noise.
- `pairs`: for each pair of columns, the L1 distance d of the records' counts from the sample's, which are scaled to the
  noisy number of records and rounded first, so that they are fixed numbers. One unit moves each d by at most L1
  (`selection.scale_of_distances`), hence their sum over P pairs by P L1, and the mean, rounded down to whole parts of a
  record, by L1: with a whole number k of parts, floor((S + P k) / P) = floor(S / P) + k, and floor is monotone. The
  mean is one distance, with the noise of one.

Each measure gets an equal part of the precision of one table of counts. A plan's grant is claimed once, and only a run
with a claim measures; an interrupted run leaves no figures, and its model is used without.

A noisy histogram of scores by class would give the area under the ROC curve, too, and is not bought. Accuracy and F1
would then add the noise of many cells, and the area is a ratio of products of noisy counts, without an exact interval.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.quality import MOST_TARGET_VALUES
from dpsynth_platform.contracts.tuning import HeldOut
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import Partitions
from dpsynth_platform.privacy.selection import PrecisionBudget, scale_of_distances
from dpsynth_platform.privacy.units import RECORD_PARTS, Sensitivity
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.estimation import estimate_total
from dpsynth_platform.synth.tabular.model import MODEL_FILE, load_model
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian

PAID = "paid"
"""The measures' key in a plan's parameters; plans without them have no such key, and keep their digests."""
FILE = "paid.json"
"""In a model's directory."""
ROWS = 50_000
"""Rows of the sample."""
_HELD_OUT = ("held_out", "clip")
OF_TARGET = frozenset({"accuracy", "regression"})
MOST_PAIR_CELLS = 2**25
"""Exact and expected counts of all pairs are in memory at once: 256 MiB of each."""


@dataclass(frozen=True)
class SealedMeasures:
    """The settings of bought measures, sealed in a plan.

    Attributes:
        measures: names, sorted.
        share: of the plan's zCDP cost.
        sigma: noise of a table of counts that costs as much as all of them together, in records.
        rows: of the sample; `constraints` hold for it, as JSON.
        target: of `accuracy` or `regression`; None without either.
        held_out: of `likelihood`, which is a score only (`tabular.held_out`): the share of owners on whom no run is
            trained; None of others. Then `rows` is 0, since nothing is drawn.
        clip: of `likelihood`: its bound, as a multiple of that of equally likely cells.
    """

    measures: list[str]
    share: float
    sigma: float
    rows: int
    target: str | None
    constraints: list[Any]
    held_out: float | None = None
    clip: float = 0.0

    @classmethod
    def of(cls, contract: DataContract, domain: Domain, guarantee: Guarantee, rho: float) -> dict[str, Any] | None:
        """What a plan seals for a contract, as JSON; None without `quality.paid`.

        Args:
            rho: zCDP cost of the mechanism beside them.

        Raises:
            ContractError: the columns have too many cells for a measure.
            AccountingError: no noise in range.
        """
        paid = contract.quality.paid
        if paid is None:
            return None
        if not isinstance(paid, HeldOut):
            _check_cells(contract, paid.measures, domain)
        sealed = cls(
            measures=sorted(paid.measures),
            share=paid.share,
            sigma=partitions_of(contract, domain).sigma_of_measures(guarantee, rho),
            rows=0 if isinstance(paid, HeldOut) else ROWS,
            target=contract.quality.target if OF_TARGET.intersection(paid.measures) else None,
            constraints=contract.snapshot()["generate"]["constraints"],
            held_out=paid.held_out if isinstance(paid, HeldOut) else None,
            clip=paid.clip if isinstance(paid, HeldOut) else 0.0,
        )
        if "pairs" in sealed.measures:  # refused here, before anything is spent
            scale_of_distances(1, sealed.noises["pairs"], guarantee.sensitivity)
        return sealed.to_json()

    def to_json(self) -> dict[str, Any]:
        """Without the keys of `likelihood` where it is another measure, so that other plans keep their digests."""
        return {key: value for key, value in asdict(self).items() if self.held_out is not None or key not in _HELD_OUT}

    @classmethod
    def in_plan(cls, plan: SealedPlan) -> SealedMeasures | None:
        found = plan.parameters.get(PAID)
        return None if found is None else cls(**found)

    @property
    def noises(self) -> dict[str, float]:
        """Noise of each measure, as of a table of counts: together within the precision of `sigma`, exactly."""
        left, found = PrecisionBudget.of(self.sigma), {}
        for measured, name in enumerate(self.measures):
            sigma = left.sigma(1 / (len(self.measures) - measured))
            if sigma is None:
                raise AccountingError("quality.paid: more noise than can be drawn; accepted: a larger epsilon or share")
            left, found[name] = left.spend(sigma), sigma
        return found

    @property
    def kept(self) -> list[Constraint]:
        """The constraints that the sample keeps."""
        return TypeAdapter(list[Constraint]).validate_python(self.constraints)

    def memory(self, domain: Domain) -> int:
        """Bytes of what all pairs are counted in: exact, of the sample, and a difference."""
        return 3 * 8 * _pair_cells(domain) if "pairs" in self.measures else 0

    def __str__(self) -> str:
        if self.held_out is not None:
            return f"likelihood of the records of {self.held_out:.0%} of the owners, held out, with Gaussian noise"
        return f"{' and '.join(self.measures)} of {self.rows:,} rows drawn from the model, with Gaussian noise"


def check_measures(contract: DataContract) -> None:
    """Refuses measures of too much or too little, by the contract alone; a period narrows columns, so its plan decides.

    Raises `ContractError`.
    """
    if contract.source.period_column is not None:
        return
    if contract.quality.paid is not None:
        _check_cells(contract, contract.quality.paid.measures, planned_domain(contract))
    if (tune := contract.generate.tune) is not None and tune.score.measure != "likelihood":
        _check_cells(contract, [tune.score.measure], planned_domain(contract), "generate.tune.score.measure")


def partitions_of(contract: DataContract, domain: Domain) -> Partitions:
    """What a contract's plan pays for beside the mechanism over the domain."""
    paid = contract.quality.paid
    return Partitions(len(domain.unknown), 0.0 if paid is None else paid.share)


def of_mechanism(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's parameters without those of bought measures."""
    return {key: value for key, value in parameters.items() if key != PAID}


def measure(run: MechanismRun, sealed: SealedMeasures, sample: pa.Table) -> None:
    """Draws the noisy figures of a sample from the run's model, once, and writes them into its directory.

    Raises:
        MechanismFailed: the directory has figures already.
    """
    if (run.directory / FILE).exists():
        raise MechanismFailed("this model directory already holds bought measures; they are not drawn twice")
    guarantee, model = Guarantee.from_json(run.plan.guarantee), load_model(run.directory)
    one_way = model.measurements.one_way
    total = estimate_total([as_measurement(noisy) for noisy in one_way])
    records = Records(run.bounded, model.domain, guarantee.weighting, run.engine)
    found = []
    for measured, (name, sigma) in enumerate(sealed.noises.items()):
        run.progress("measuring quality", measured, len(sealed.measures))
        if name in OF_TARGET:
            assert sealed.target is not None  # noqa: S101  (sealed with it)
            noisy = noisy_accuracy if name == "accuracy" else noisy_regression
            found.append({"target": sealed.target, **noisy(records, sample, sealed.target, sigma)})
        else:
            pairs = noisy_pairs(records, sample, total, sigma, guarantee.sensitivity)
            found.append({**pairs, "by_chance": by_chance(model.domain, sample, max(1, round(total)))})
    document = {
        "share": sealed.share,
        "rows": sealed.rows,
        "unit": guarantee.weighting.replace("rows", "records"),
        "total": total,
        "total_sigma": math.sqrt(1 / sum(1 / (noisy.variance * noisy.counts.size) for noisy in one_way)),
        "measures": found,
    }
    write_durably(run.directory / FILE, json.dumps({"model": digest_file(run.directory / MODEL_FILE), **document}))
    run.progress("measuring quality", len(sealed.measures), len(sealed.measures))


def read_drawn(directory: Path, sealed: SealedMeasures | None) -> dict[str, Any] | None:
    """The noisy figures of the model in a directory, or `not_available` in words; None without bought measures."""
    if sealed is None:
        return None
    lost = "the mechanism was interrupted after it had counted and before it measured; their cost remains spent"
    try:
        document: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"share": sealed.share, "rows": sealed.rows, "not_available": lost}
    if document.pop("model") != digest_file(directory / MODEL_FILE):
        lost = "the model was fitted again since, so that the figures are of another one"
        return {"share": sealed.share, "rows": sealed.rows, "not_available": lost}
    return document


def score_of(directory: Path) -> int:
    """How good a complete model is by its one noisy measure; more is better. Free, and comparable within one plan.

    The negative distance of pairs, how many records (or parts of them) a model of the target predicts right, or the
    likelihood of those held out.
    """
    (measured,) = json.loads((directory / FILE).read_text(encoding="utf-8"))["measures"]
    noisy = measured["noisy"]
    if measured["name"] == "likelihood":
        return int(noisy)
    return -int(noisy) if measured["name"] == "pairs" else int(sum(noisy[1]))


def noisy_accuracy(records: Records, sample: pa.Table, target: str, sigma: float) -> dict[str, Any]:
    """Records by whether a classifier (rows) and the most frequent value (columns) are right: no, yes; with noise."""
    noisy = sample_rounded_gaussian(exact_accuracy(records, sample, target), sigma * records.parts)
    classes = records.domain.columns[records.domain.names.index(target)].missing
    return {"name": "accuracy", "classes": classes, "sigma": sigma, "noisy": _to_records(noisy, records.parts).tolist()}


def noisy_regression(records: Records, sample: pa.Table, target: str, sigma: float) -> dict[str, Any]:
    """Parts of records by whether a regressor (rows) and the median (columns) are right: no, yes; with noise."""
    noisy = sample_rounded_gaussian(exact_regression(records, sample, target), sigma * RECORD_PARTS)
    return {"name": "regression", "sigma": sigma, "noisy": _to_records(noisy, RECORD_PARTS).tolist()}


def noisy_pairs(
    records: Records, sample: pa.Table, total: float, sigma: float, sensitivity: Sensitivity
) -> dict[str, Any]:
    """The mean distance of all pairs, in records, with noise of deviation `noise`, which costs what `sigma` does."""
    scale = scale_of_distances(1, sigma, sensitivity)
    exact = np.array([exact_pairs(records, sample, total)], dtype=np.int64)
    noisy = _to_records(sample_rounded_gaussian(exact, scale), RECORD_PARTS)
    number = math.comb(len(records.domain), 2)
    noise = scale / RECORD_PARTS
    return {"name": "pairs", "pairs": number, "sigma": sigma, "noise": noise, "noisy": int(noisy[0])}


def exact_accuracy(records: Records, sample: pa.Table, target: str) -> Counts:
    """As `noisy_accuracy` without noise, in the records' parts. Sensitive."""
    from xgboost import XGBClassifier

    domain = records.domain
    goal = domain.names.index(target)
    missing = domain.columns[goal].missing
    used = _predicting(domain, target)
    drawn = domain.encode(sample)
    drawn = drawn[drawn[:, goal] != missing]
    classes, labels, often = np.unique(drawn[:, goal], return_inverse=True, return_counts=True)
    usual = classes[often.argmax()] if classes.size else missing
    classifier = None
    if classes.size > 1:
        kinds = ["q" if domain.columns[index].ordered else "c" for index in used]
        # One thread gives the same trees, and the fixed state protects nothing: the sample is post-processing.
        classifier = XGBClassifier(random_state=0, n_jobs=1, enable_categorical=True, feature_types=kinds)
        classifier.fit(_features(domain, used, drawn), labels)
    cells = np.zeros((2, 2), dtype=np.int64)
    for batch, weights in records.rows(domain.reads):
        codes = domain.encode(batch)
        known = codes[:, goal] != missing
        codes, truth = codes[known], codes[known, goal]
        if not len(codes):
            continue
        guessed = usual if classifier is None else classes[classifier.predict(_features(domain, used, codes))]
        weighed = np.ones(len(codes), dtype=np.int64) if weights is None else weights[known]
        np.add.at(cells, ((guessed == truth).astype(np.int64), (truth == usual).astype(np.int64)), weighed)
    return cells


def exact_regression(records: Records, sample: pa.Table, target: str) -> Counts:
    """As `noisy_regression` without noise, in 1/RECORD_PARTS record. Sensitive."""
    from xgboost import XGBRegressor

    domain = records.domain
    column = domain.columns[domain.names.index(target)].released
    low, high = column.limits
    used = _predicting(domain, target)

    def truths(table: pa.Table | pa.RecordBatch) -> npt.NDArray[np.float64]:
        return (column.numbers(table.column(target)) - low) / ((high - low) or 1.0)

    learned = truths(sample)
    known = ~np.isnan(learned)
    usual, regressor = 0.5, None
    if known.any():
        usual = float(np.median(learned[known]))
        kinds = ["q" if domain.columns[index].ordered else "c" for index in used]
        regressor = XGBRegressor(
            objective="reg:absoluteerror", random_state=0, n_jobs=1, enable_categorical=True, feature_types=kinds
        )
        regressor.fit(_features(domain, used, domain.encode(sample)[known]), learned[known])
    cells = np.zeros((2, 2), dtype=np.int64)
    for batch, weights in records.rows(domain.reads):
        truth = truths(batch)
        known = ~np.isnan(truth)
        if not known.any():
            continue
        truth, features = truth[known], _features(domain, used, domain.encode(batch)[known])
        guessed = np.full(truth.size, usual) if regressor is None else np.clip(regressor.predict(features), 0, 1)
        whole = np.full(truth.size, RECORD_PARTS) if weights is None else weights[known]
        off, usually = (np.rint(np.abs(named - truth) * whole).astype(np.int64) for named in (guessed, usual))
        both = off * usually // np.maximum(whole, 1)
        divided = [[both, off - both], [usually - both, whole - off - usually + both]]
        cells += np.sum(divided, axis=2)
    return cells


def exact_pairs(records: Records, sample: pa.Table, total: float) -> int:
    """The mean over all pairs of columns of the distance of counts from the sample's, in 1/RECORD_PARTS record.

    Sensitive.

    Args:
        total: number of records by the noisy counts, to which the sample's counts are scaled.
    """
    exact, drawn = _pair_counts(records), _pair_counts(Records(sample, records.domain))
    parts = RECORD_PARTS // records.parts
    scale = total * RECORD_PARTS / sample.num_rows
    distances = 0
    for pair, counts in exact.items():
        expected = np.rint(drawn[pair] * scale).astype(np.int64)
        distances += int(np.abs(counts * parts - expected).sum())
    return distances // len(exact)


def by_chance(domain: Domain, sample: pa.Table, records: int) -> float:
    """Mean total variation of all pairs between a sample and so many records drawn at random from its rows. Free."""
    rng, found = np.random.default_rng(), []
    for counts in _pair_counts(Records(sample, domain)).values():
        shares = counts.ravel() / sample.num_rows
        found.append(np.abs(rng.multinomial(records, shares) / records - shares).sum() / 2)
    return float(np.mean(found))


def _pair_counts(records: Records) -> dict[tuple[int, ...], Counts]:
    """Records by the cells of every pair of columns, in their parts. Sensitive, where they are."""
    states = [ColumnStates(np.arange(size, dtype=np.int32), np.ones(size)) for size in records.domain.sizes]
    return records.cliques(states, itertools.combinations(range(len(states)), 2))


def _predicting(domain: Domain, target: str) -> list[int]:
    """The columns that a classifier of the target sees, which are neither the target nor parts of it."""
    return [index for index, column in enumerate(domain) if target not in (column.name, column.part_of)]


def _features(domain: Domain, used: list[int], codes: Codes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Cells as numbers, with NaN for missing or unlisted values."""
    found = codes[:, used].astype(np.float32)
    found[codes[:, used] == np.array([domain.columns[index].missing for index in used])] = np.nan
    return found


def _to_records(noisy: Counts, parts: int) -> Counts:
    return (noisy + parts // 2) // parts


def _pair_cells(domain: Domain) -> int:
    return sum(a * b for a, b in itertools.combinations(domain.sizes, 2))


def _is_small(domain: Domain, name: str) -> bool:
    """Whether accuracy of a column can be measured."""
    return domain.columns[domain.names.index(name)].missing <= MOST_TARGET_VALUES and bool(_predicting(domain, name))


def _check_cells(
    contract: DataContract, measures: Sequence[str], domain: Domain, path: str = "quality.paid.measures"
) -> None:
    where = f"{contract.dataset}: {path}"
    if len(domain) < 2:
        raise ContractError(f"{where}: one column is modelled; accepted: with two or more")
    if "accuracy" in measures:
        size = domain.columns[domain.names.index(str(contract.quality.target))].missing
        if size > MOST_TARGET_VALUES:
            few = [name for name in contract.modelled if name in domain.names and _is_small(domain, name)]
            raise ContractError(
                f"{where}: accuracy of {contract.quality.target}, which has {size} values or bins; accepted: up to "
                f"{MOST_TARGET_VALUES}, so {', '.join(few) or 'a target of fewer'}; or pairs alone"
            )
    for name in sorted(OF_TARGET.intersection(measures)):
        if not _predicting(domain, str(contract.quality.target)):
            raise ContractError(
                f"{where}: {name} of {contract.quality.target}, beside which no column is modelled; accepted: with "
                "another column, or pairs alone"
            )
    if "pairs" in measures and (cells := _pair_cells(domain)) > MOST_PAIR_CELLS:
        raise ContractError(
            f"{where}: pairs, which have {cells} cells together; accepted: up to {MOST_PAIR_CELLS}, so fewer bins or "
            "shorter lists of values, or accuracy alone"
        )
