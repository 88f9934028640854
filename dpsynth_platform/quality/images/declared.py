"""The pictures' part of a dataset's quality report.

What belongs here: which pictures and classes are compared, the figures as rows of the quality report, and the nearest
real pictures as a drawing for reviewers. What does not: measures (`report`), or gates.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.contact_sheet import as_svg
from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.images.report import ImageQualityReport, compare_images
from dpsynth_platform.quality.images.samples import Labels
from dpsynth_platform.quality.report_rows import Row
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth.images.layout import NO_CLASS, ImageLayout

MOST_BYTES = 500_000_000
"""Pixels of a table that are compared; of a larger one, a fixed random sample."""


def measure_pictures(
    contract: DataContract, real: pa.Table, held_out: pa.Table, synthetic: pa.Table, *, progress: Progress = silent
) -> ImageQualityReport | str:
    """Measures the image column, or says why pictures cannot be compared.

    Args:
        real, held_out: rows of the bounded and scrubbed tables, with pixels; the mechanism read the owners of the
            first only.
        synthetic: rows with encoded pictures.
        progress: called with public stages.
    """
    layout = ImageLayout.of(contract)
    (train, train_labels), (test, test_labels) = (_pixels(layout, table) for table in (real, held_out))
    some = _some(layout, synthetic)
    pixels, good, _ = read_pictures(some.column(layout.column), layout.form, "refuse", raw=False)
    classes = layout.classes_of(some)[good]
    kept = classes != NO_CLASS
    classified = layout.number > 1
    try:
        return compare_images(
            train,
            train_labels if classified else None,
            test,
            test_labels if classified else None,
            pixels[kept],
            classes[kept] if classified else None,
            layout.names,
            progress=progress,
        )
    except (ConfigurationError, SourceError) as error:
        return str(error)


def picture_rows(report: ImageQualityReport | str) -> list[Row]:
    """The figures as rows of the quality report (`report_rows.HEADER`)."""
    if isinstance(report, str):
        return [("pictures", f"cannot be compared: {report}", "", "")]
    return [(f"pictures: {name} ({better})", synthetic, real, "") for name, better, synthetic, real in report.table()]


def nearest_drawing(report: ImageQualityReport) -> str | None:
    """The nearest real pictures of some synthetic ones as SVG, for reviewers; None where there are none."""
    title = "Synthetic pictures and the nearest real ones. Restricted: it holds real pictures."
    return None if report.nearest is None else as_svg(report.nearest.png(), title)


def _pixels(layout: ImageLayout, table: pa.Table) -> tuple[Pixels, Labels]:
    """Pixels and classes of a table of raw pixels, without rows that have no class."""
    some = _some(layout, table)
    classes = layout.classes_of(some)
    kept = np.flatnonzero(classes != NO_CLASS)
    column = some.column(layout.column).take(pa.array(kept)).combine_chunks()
    return layout.form.read(column), classes[kept]


def _some(layout: ImageLayout, table: pa.Table) -> pa.Table:
    most = max(1, MOST_BYTES // layout.form.values)
    if table.num_rows <= most:
        return table
    return table.take(pa.array(np.sort(np.random.default_rng(0).choice(table.num_rows, most, replace=False))))
