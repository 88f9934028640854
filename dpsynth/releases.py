"""Published releases, as their recipients read them: verification, and the rows with what is promised of them.

What belongs here: the calls and what they return. What does not: the checks (`dpsynth_platform.release.verify`), and
publishing. No deployment is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narwhals as nw
import pyarrow as pa

from dpsynth import frames
from dpsynth.words import in_python
from dpsynth_platform.foundation.errors import ConfigurationError, VerificationFailed, file_problem
from dpsynth_platform.foundation.markdown import html_table
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.release_layout import SINGLE
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release import verify as verification
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.release.paid import in_words
from dpsynth_platform.release.row_counts import RowCount, counted
from dpsynth_platform.release.table import read_release
from dpsynth_platform.release.verify import VerificationReport

_KINDS = {
    "pandas": frames.PANDAS,
    "polars": frames.Kind(nw.Implementation.POLARS),
    "arrow": frames.Kind(),
}


@dataclass(frozen=True)
class Release:
    """A published release.

    Attributes:
        data: its synthetic rows; of linked tables a mapping by name, with public tables.
        dossier: all that it says of itself: guarantee, statement, columns, lineage, audit, approvals.
        verification: what was compared with its signature.
    """

    data: Any = field(repr=False)
    dossier: Mapping[str, Any] = field(repr=False)
    verification: VerificationReport
    _rows: Mapping[str, pa.Table] = field(repr=False)

    def count(self, where: Mapping[str, Any] | str, confidence: float = 0.95) -> RowCount:
        """How many of the rows that the mechanism counted fulfil conditions, with limits, by its noisy counts. Free.

        These are the source's rows after bounding, with canaries, so that a count of the source itself may lie outside.
        The limits hold for one question that was asked without looking at these counts; for k questions, ask each with
        1 - (1 - confidence) / k. What was never counted together has an upper limit at most.

        Args:
            where: conditions as after WHERE, joined by AND; or values, a list or a range {min, max} by column.
            confidence: of the limits.

        Raises:
            ConfigurationError: a column without noisy counts, other conditions, another confidence, or linked tables,
                whose noisy counts are not published.

        Examples:
            >>> release = dpsynth.load_release("received", public_key="publisher.pem")
            >>> found = release.count("minutes <= 30")
            >>> 0 <= found.low <= found.estimate <= found.high
            True
        """
        return in_python(counted)(self.dossier, self._rows, where, confidence)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised; its text is one sentence with the unit."""
        kept = Guarantee.__dataclass_fields__
        return Guarantee.from_json({name: value for name, value in self.dossier["guarantee"].items() if name in kept})

    def _repr_html_(self) -> str:
        release, measures = self.dossier["release"], in_words(self.dossier["quality"].get("paid"))
        items = {
            "release": release["id"],
            "description": release["description"],
            "guarantee": str(self.guarantee),
            "rows": f"{self.dossier['synthetic']['rows']:,}",
            **({} if SINGLE in self._rows else {"tables": ", ".join(self._rows)}),
            **({"bought measures": " ".join(measures)} if measures else {}),
            "verification": str(self.verification),
        }
        return html_table(items.items())


@in_python
def verify(
    path: str | Path, *, public_key: str | Path | None = None, ledger: str | Path | None = None
) -> VerificationReport:
    """Compares a release with its signed attestation: signature, every byte, schema, table and ledger head. Offline.

    Args:
        path: the directory of the release.
        public_key: the publisher's key (a PEM file), from another channel. Without it the release's own is used, which
            shows only that nothing changed since the holder of that key signed it.
        ledger: an export of the publisher's ledger, which must contain the release's ledger head.

    Returns:
        `ok`, `problems` and `withdrawn`; its text is a report for people.

    Raises:
        VerificationFailed: there is no such directory, or key or export cannot be read.

    Examples:
        >>> dpsynth.verify("received", public_key="publisher.pem").ok
        True
    """
    key = None
    if public_key is not None:
        try:
            key = read_regular(Path(public_key))
        except OSError as error:
            raise VerificationFailed(f"{public_key}: the key cannot be read: {file_problem(error)}") from None
    chain = None if ledger is None else KnownChain.of_export(Path(ledger))
    return verification.verify_release(Path(path), key, chain=chain)


@in_python
def load_release(
    path: str | Path,
    as_: str = "pandas",
    *,
    public_key: str | Path | None = None,
    ledger: str | Path | None = None,
    verified: bool = True,
) -> Release:
    """The rows of a published release and what is promised of them, after verification.

    Args:
        path: its directory.
        public_key: as for `verify`.
        ledger: as for `verify`.
        as_: the kind of frame: `pandas`, `polars` or `arrow`.
        verified: if False, a release is read even though something differs from what was signed, or it was withdrawn.

    Raises:
        VerificationFailed: it is not as it was signed, was withdrawn, or cannot be read.
        ConfigurationError: another kind of frame, or its library is not installed.

    Examples:
        >>> release = dpsynth.load_release("received", public_key="publisher.pem")
        >>> len(release.data) == release.dossier["synthetic"]["rows"]
        True
        >>> print(release.guarantee)
        (1, ...)-DP for one user (add-or-remove, at most 2 records)
    """
    if as_ not in _KINDS:
        raise ConfigurationError(f"as_={as_!r}; accepted: {', '.join(_KINDS)}")
    report = verify(path, public_key=public_key, ledger=ledger)
    if verified:
        report.raise_for_problems()
        if report.withdrawn is not None:
            raise VerificationFailed(f"{report}; accepted: verified=False, where its rows are still needed")
    dossier, tables = read_release(Path(path))
    try:
        frames_ = {name: _KINDS[as_].frame(table) for name, table in tables.items()}
        return Release(frames_.get(SINGLE, frames_), dossier, report, tables)
    except ModuleNotFoundError:
        raise ConfigurationError(f"as_={as_!r}: its library is not installed; do: pip install {as_}") from None
