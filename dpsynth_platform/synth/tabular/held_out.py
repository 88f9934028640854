"""The score `likelihood`: owners in two parts, and the noisy likelihood of those that no run is trained on.

What belongs here: who is in which part, what a record's likelihood counts, and its noise. What does not: a model's
likelihood (`tabular.model`), and the score's part of the budget (`tabular.paid`).

**Parts.** Each owner is in one part, by a hash of its own keyed fingerprint (`scrub.fingerprints.holdout_mask`) and
of the whole plan's digest: so the part is a function of that owner alone, and the same for all runs. A run counts and
trains on the training part.

**Sensitivity.** A held-out owner counts by the mean of its records' log-likelihoods, each clipped to [-L, 0], in whole
parts of L. So a unit moves the sum by one at most, under `add-or-remove` and `zero-out`. Other adjacencies are refused,
since a unit might change parts. L is public: it follows from the declared cells. Each distinct record is read alone: in
a batch, rounding in the arithmetic of one record could depend on the others.

**Cost.** An owner reaches the training or the score of a run, never both. Parallel composition would cost no more than
the dearer of both. What is claimed is their sequential composition, as for other scores, which is never less: a score
has a small share, so that little would be gained.

**Comparable runs.** A record's likelihood is that of its cells in the declared domain: its states' probability, and the
part of each cell in its state. So it does not depend on which states a run's noisy counts tell apart. Learned values
have a domain of their own in each run, and are refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.storage import table_schema, write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, fingerprints_of, holdout_mask
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.model import MODEL_FILE, Model, load_model, log_likelihood
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian
from dpsynth_platform.synth.tabular.paid import FILE, SealedMeasures


@dataclass(frozen=True)
class Parts:
    """The records of both parts, with their owners. Sensitive."""

    training: pa.Table
    held_out: pa.Table

    @classmethod
    def of(cls, run: MechanismRun, share: float) -> Parts:
        """The bounded table of the whole plan's run, in parts."""
        domain, weighting = Domain.from_json(run.plan.columns), Guarantee.from_json(run.plan.guarantee).weighting
        names = [*domain.reads, OWNER_COLUMN]
        batches = [batch for batch, _ in Records(run.bounded, domain, weighting).rows(names)]
        # Without a batch the parts are empty, and the run goes on: whether there are records must not show.
        kept = [table_schema(run.bounded).field(name) for name in names]
        table = pa.Table.from_batches(batches) if batches else pa.schema(kept).empty_table()
        out = pa.array(is_held_out(table, run.plan, share))
        return cls(table.filter(pc.invert(out)), table.filter(out))


def is_held_out(table: pa.Table, plan: SealedPlan, share: float) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Of each record, whether its owner is in the held-out part of a whole plan."""
    return holdout_mask(fingerprints_of(table.column(OWNER_COLUMN)), plan.digest.encode(), share)


def score(run: MechanismRun, sealed: SealedMeasures) -> None:
    """Draws the noisy score of a run's complete model, once, and writes it as other measures are.

    Raises:
        MechanismFailed: the directory has a score already.
        GrantRefused: the run has no held-out part, or its plan another adjacency.
    """
    if (run.directory / FILE).exists():
        raise MechanismFailed("this model directory already holds a score; it is not drawn twice")
    guarantee = Guarantee.from_json(run.plan.guarantee)
    if run.held_out is None or guarantee.adjacency not in ADJACENCIES:
        raise GrantRefused("the score is of held-out owners, and the run has none; materialize the line from raw")
    model = load_model(run.directory)
    bound = bound_of(model.domain, sealed.clip)
    (sigma,) = sealed.noises.values()
    # `sigma` is that of a table of counts, which a unit moves by its L2 sensitivity; the sum moves by one.
    scale = sigma * RECORD_PARTS / guarantee.sensitivity.l2
    noisy = sample_rounded_gaussian(np.array([exact_score(model, run.held_out, bound)], dtype=np.int64), scale)
    measured = {"name": "likelihood", "sigma": sigma, "bound": bound, "noisy": int(noisy[0])}
    document = {"model": digest_file(run.directory / MODEL_FILE), "share": sealed.share, "measures": [measured]}
    write_durably(run.directory / FILE, json.dumps(document))


ADJACENCIES = ("add-or-remove", "zero-out")
"""Under which a unit cannot change parts."""


def bound_of(domain: Domain, clip: float) -> float:
    """L: so many times the negative log-likelihood of a record if all cells were equally likely."""
    return clip * math.fsum(map(math.log, domain.sizes))


def exact_score(model: Model, held_out: pa.Table, bound: float) -> int:
    """The sum over held-out owners of their mean log-likelihood, clipped to [-bound, 0]; in bound / RECORD_PARTS.

    Sensitive. It is not divided by the expected number of owners, which is the same for all runs.
    """
    if held_out.num_rows == 0:
        return 0
    owners = np.unique(fingerprints_of(held_out.column(OWNER_COLUMN)), return_inverse=True)[1]
    records = np.bincount(owners)
    sums = np.zeros(len(records), dtype=np.int64)
    np.add.at(sums, owners, record_parts(model, held_out, bound))
    return int((sums // records).sum())


def record_parts(model: Model, table: pa.Table, bound: float) -> Counts:
    """Each record's clipped log-likelihood, shape (records,), in bound / RECORD_PARTS: from -RECORD_PARTS to 0."""
    _, first, same = np.unique(model.domain.encode(table), axis=0, return_index=True, return_inverse=True)
    found = np.array([float(log_likelihood(model, table.slice(row, 1))[0]) for row in first.tolist()])
    clipped = np.clip(np.nan_to_num(found, nan=-bound, neginf=-bound), -bound, 0.0)
    parts = np.clip(np.floor(clipped / bound * RECORD_PARTS), -RECORD_PARTS, 0).astype(np.int64)
    return np.asarray(parts[same.ravel()])
