"""The demonstration source `visits`: a small clinic whose data are released every month.

What belongs here: 8,000 fictional patients and their visits over four months. What does not: writing tables (`tables`).
Many patients come in one month only and some every month, so that per-owner budgets are spent unevenly. Department,
urgency and length of a visit depend on each other, so that a model has structure to learn.
"""

from __future__ import annotations

import calendar
import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.demo.tables import Progress, keep_table, no_progress, source_path

SEED = 2_026
PATIENTS = 8_000
MONTHS = ((2026, 1), (2026, 2), (2026, 3), (2026, 4))
DESCRIPTION = "Visits to a small clinic, made up entirely. There are no such patients."

# Shares of patients who come at most once, sometimes, every month.
_HABITS = (0.45, 0.40, 0.15)
_VISITS_PER_MONTH = (0.25, 0.6, 2.2)
_DEPARTMENTS = np.array(["general", "cardiology", "dermatology", "orthopaedics", "paediatrics"])
_URGENCIES = np.array(["routine", "soon", "urgent"])
_DEPARTMENT_SHARES = (0.45, 0.15, 0.15, 0.15, 0.10)
_URGENCY_SHARES = np.array([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.85, 0.12, 0.03], [0.4, 0.4, 0.2], [0.5, 0.3, 0.2]])
_MINUTES_BY_DEPARTMENT = np.array([15, 35, 12, 30, 20])
_MINUTES_BY_URGENCY = np.array([1.0, 1.2, 1.7])
_INSURED_BY_HABIT = np.array([0.8, 0.9, 0.97])


def prepare_visits(home: Path, progress: Progress = no_progress) -> Path:
    """Makes the Delta table `<home>/sources/visits` unless it exists; returns its path.

    Raises:
        SourceError: another table is in the place.
    """
    progress(0, 1)
    path = source_path(home, "visits")
    keep_table(path, visits_table(), key=("patient_id", "visit_number"), description=DESCRIPTION)
    progress(1, 1)
    return path


def visits_table() -> pa.Table:
    """One row per visit, ordered by day. Deterministic."""
    random = np.random.default_rng(SEED)
    habit = random.choice(3, PATIENTS, p=_HABITS)
    usual_department = random.choice(5, PATIENTS, p=_DEPARTMENT_SHARES)
    insured = random.random(PATIENTS) < _INSURED_BY_HABIT[habit]
    patient_id = 10_000 + random.permutation(PATIENTS)

    counts = random.poisson(np.array(_VISITS_PER_MONTH)[habit], (len(MONTHS), PATIENTS))
    once = (habit == 0) & (counts.sum(axis=0) > 0)
    counts[:, once] = np.eye(len(MONTHS), dtype=int)[counts.argmax(axis=0)[once]].T
    month, patient = np.nonzero(counts)
    repeats = counts[month, patient]
    month, patient = np.repeat(month, repeats), np.repeat(patient, repeats)

    rows = len(patient)
    lengths = np.array([calendar.monthrange(*when)[1] for when in MONTHS])
    day = np.floor(random.random(rows) * lengths[month]).astype(int)
    starts = np.array([dt.date(*when, 1).toordinal() for when in MONTHS])
    ordinal = starts[month] + day
    elsewhere = random.choice(5, rows, p=_DEPARTMENT_SHARES)
    department = np.where(random.random(rows) < 0.7, usual_department[patient], elsewhere)
    urgency = (random.random(rows)[:, None] > _URGENCY_SHARES[department].cumsum(axis=1)[:, :2]).sum(axis=1)
    expected = _MINUTES_BY_DEPARTMENT[department] * _MINUTES_BY_URGENCY[urgency]
    minutes = np.clip(np.rint(expected * random.lognormal(0, 0.35, rows)), 5, 120).astype(int)

    order = np.lexsort((patient_id[patient], ordinal))
    ids = patient_id[patient][order]
    return pa.table(
        {
            "patient_id": pa.array(ids, pa.int64()),
            "visit_number": pa.array(np.arange(1, rows + 1), pa.int64()),
            "visit_date": pa.array([dt.date.fromordinal(int(number)) for number in ordinal[order]], pa.date32()),
            "contact_email": pa.array([f"patient.{number}@example.org" for number in ids], pa.string()),
            "department": pa.array(_DEPARTMENTS[department[order]].tolist(), pa.string()),
            "urgency": pa.array(_URGENCIES[urgency[order]].tolist(), pa.string()),
            "insured": pa.array(insured[patient][order]),
            "minutes": pa.array(minutes[order], pa.int64()),
        }
    )
