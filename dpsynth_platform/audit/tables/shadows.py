"""Shadow models: the same mechanism on tables whose members the attacker knows.

What belongs here: fitting the mechanism repeatedly, by its sealed plan, on rows of a population with half of the
targets each time, and keeping every model's signals. What does not: the attacks (`lira`, `rmia`, `meta_classifier`).

If the population is the release itself, all of it is post-processing, and results on canaries may be published. If it
is a user's table of real people, they may not. Shadow models use the product's own generator and plan, with noise; they
are no access to the data, and never leave a temporary directory. Each target is in half of the models, chosen at random
(Carlini et al. 2022, section IV).
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.tables.agreement import Query, agreeing_rows
from dpsynth_platform.audit.tables.evidence import Evidence, Shadows
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.synth.tabular.placing import Placed
from dpsynth_platform.synth.tabular.restore import ReleaseSchema

LEAST_MODELS = 4
"""With fewer, only one model has a target, or lacks it, and shows no spread."""
MOST_REFERENCES = 4_000
"""Records of the population whose likelihood is kept for comparison."""


def fit_shadows(
    plan: SealedPlan,
    evidence: Evidence,
    *,
    models: int,
    records: int,
    queries: Sequence[Query] = (),
    workspace: Path | None = None,
    progress: Progress = silent,
) -> Shadows:
    """Fits the plan's mechanism on `models` tables, half of the targets in each.

    A model of AIM on adult takes ten seconds on one core, one of MST or PrivBayes one.

    Args:
        plan: of the attacked model.
        evidence: targets, and the population for other rows.
        models: even, and at least `LEAST_MODELS`.
        records: of each table, targets included; as many as the attacked model had.
        queries: sets of columns for counting agreeing rows of a sample; () draws none.
        workspace: directory for temporary tables and models; the system's by default.
        progress: receives the number of fitted models.

    Raises:
        AccountingError: the numbers are inconsistent, or the method does not measure marginals.
        MechanismFailed: a model could not be fitted.
    """
    method = generator(plan.method)
    targets = len(evidence.target_codes)
    others = records - evidence.records_per_target * ((targets + 1) // 2)
    if not isinstance(method, MarginalGenerator):
        raise AccountingError(f"audit: shadow models of the method {plan.method}; accepted: methods that make tables")
    if models < LEAST_MODELS or models % 2 or others < 0:
        raise AccountingError(
            f"audit: {models} shadow models of {records} records with half of {targets} targets; accepted: an even "
            f"number of models, at least {LEAST_MODELS}, and no more targets' records than records"
        )
    rng = np.random.default_rng(secrets.randbits(256))
    included = _half_each(models, targets, rng)
    population, wanted = (as_records(evidence.domain, plan, table) for table in (evidence.population, evidence.targets))
    references = population.take(rng.permutation(population.num_rows)[:MOST_REFERENCES])
    asked = pa.concat_tables([wanted, references])
    likelihoods = np.empty((models, asked.num_rows))
    agreements = np.zeros((models, targets, len(queries)), dtype=np.float32)
    for number in range(models):
        progress("fitting shadow models", number, models)
        rows = _drawn(population, wanted.filter(pa.array(included[number])), records, evidence.records_per_target, rng)
        with tempfile.TemporaryDirectory(dir=workspace) as place:
            write_table(Path(place) / "table", rows.schema, rows.to_batches())
            directory = private_directory(Path(place) / "model")
            method.measure(plan, Path(place) / "table", directory)
            method.estimate(plan, directory)
            likelihoods[number] = log_likelihood(load_model(directory), asked)
            if queries:
                sample = evidence.domain.encode(method.sample(directory, evidence.synthetic.num_rows))
                agreements[number] = agreeing_rows(evidence.target_codes, sample, queries)
    progress("fitting shadow models", models, models)
    return Shadows(
        included=included,
        likelihoods=likelihoods[:, :targets],
        references=references,
        reference_likelihoods=likelihoods[:, targets:],
        queries=tuple(queries),
        agreements=agreements,
        sampled=evidence.synthetic.num_rows,
    )


def _half_each(models: int, targets: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    order = rng.random((models, targets)).argsort(axis=0)
    return np.asarray(order < models // 2)


def as_records(domain: Domain, plan: SealedPlan, table: pa.Table) -> pa.Table:
    """The modelled columns alone, in the types of the release."""
    schema = ReleaseSchema.from_json(plan.release).schema
    codes, rng = domain.encode(table), np.random.default_rng(secrets.randbits(256))
    return pa.Table.from_batches([Placed(domain, codes, rng).batch(schema)])


def _drawn(population: pa.Table, joining: pa.Table, records: int, each: int, rng: np.random.Generator) -> pa.Table:
    """The joining targets' records, filled up to `records` with the population; each population row is one owner."""
    others = records - each * joining.num_rows
    rows = rng.choice(population.num_rows, others, replace=others > population.num_rows)
    owners = np.concatenate([np.arange(others), np.repeat(others + np.arange(joining.num_rows), each)])
    table = pa.concat_tables([population.take(rows), joining.take(np.repeat(np.arange(joining.num_rows), each))])
    fingerprints = pa.array([f"{owner:032x}" for owner in owners.tolist()], pa.string())
    return table.append_column(OWNER_COLUMN, fingerprints).combine_chunks()
