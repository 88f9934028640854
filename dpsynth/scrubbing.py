"""Personal data in the texts of a table, found and replaced as far as possible.

What belongs here: the call and what it returns. What does not: what is scrubbed and how (`dpsynth_platform.scrub`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from dpsynth import frames
from dpsynth.words import in_python
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.sources.dialect import Dialect


@dataclass(frozen=True)
class Scrubbed:
    """A scrubbed table. This is no guarantee of privacy.

    Attributes:
        data: a frame like the given one; of a table at a path, the path of the written one.
        report: treated columns and counts by type, without small ones, and the limits of scrubbing.
        left_out: in words, what of a registry of Presidio has no counterpart.
    """

    data: Any = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)
    left_out: tuple[str, ...] = ()


@in_python
def scrub(
    data: Any,
    out: Path | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    action: Literal["replace", "mask", "hash", "drop"] = "replace",
    rules: Mapping[str, Any] | Path | str | None = None,
    owner: str | None = None,
    key: Path | str | None = None,
    processes: int = 1,
    **csv: Any,
) -> Scrubbed:
    """Scrubs the texts of a table. Best effort: what is left may still say who somebody is.

    Args:
        data: a frame or an Arrow table; or the path of a table or of a text file (.txt), which needs `out`.
        out: the new file (.parquet, .csv, .txt) or Delta table, for a path only.
        columns: the columns of texts to scrub; None: all. A column with a name such as `email` is replaced as a whole.
        keep: columns that stay as they are, without a check.
        drop: columns to leave out; their values are found in the texts of their row.
        action: what each finding becomes: a fictional value, its type, a keyed hash, or nothing.
        rules: as in a contract's `scrub`, or the path of a YAML file with them or with a registry of Presidio.
        owner: the column that names the owner of a row; an original then has one fictional value for each owner.
        key: file of the secret key for hashes, and with `owner` for the same values in several tables; made if it does
            not exist.
        processes: number of detector processes. With several, a script needs `if __name__ == "__main__":`.
        csv: the dialect of a CSV file, as `dpsynth scrub run` has it: `csv_header=True`, `csv_separator=";"`.

    Raises:
        ConfigurationError: the key's file cannot be used.
        ContractError: an option does not fit the table, or the rules are not as they should be.
        SourceError: the table cannot be read or written, or a column that would stay may hold personal data.

    Examples:
        >>> import pandas as pd
        >>> letters = pd.DataFrame({"letter": ["Dear Ann Lee, call 212-736-5001."], "pages": [1]})
        >>> found = dpsynth.scrub(letters, action="mask")
        >>> found.data["letter"][0]
        'Dear <PERSON>, call <PHONE_NUMBER>.'
        >>> found.report["findings"]
        {'letter': {'PERSON': 'fewer than 10', 'PHONE_NUMBER': 'fewer than 10'}}
    """
    from dpsynth_platform.contracts.scrubbing import Scrub
    from dpsynth_platform.contracts.validation import validated
    from dpsynth_platform.one_table.scrubbing import scrub_file, scrub_table
    from dpsynth_platform.scrub.alone import ScrubChoice
    from dpsynth_platform.scrub.presidio_rules import Converted
    from dpsynth_platform.scrub.rules_file import read_rules

    own = (
        read_rules(Path(rules))
        if isinstance(rules, str | Path)
        else Converted(validated(Scrub, dict(rules or {}), "rules"))
    )
    choice = ScrubChoice(
        columns=None if columns is None else _names(columns),
        keep=_names(keep),
        drop=_names(drop),
        action=action,
        rules=own.rules,
        owner=owner,
    )
    found, kind = frames.read(data)
    secret = None if key is None else Path(key)
    if isinstance(found, Path):
        if out is None:
            raise SourceError(f"{found}: without out; accepted: out, the name of a new table")
        made = scrub_file(found, Path(out), choice, dialect=_dialect(csv), key=secret, processes=processes)
        return Scrubbed(made.out, made.report, own.notes)
    if out is not None or csv:
        raise SourceError(f"{next(iter(csv), 'out')}: for a table at a path only; accepted: a frame without it")
    table, report = scrub_table(found, choice, key=secret, processes=processes)
    return Scrubbed(kind.frame(table), report, own.notes)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """A single name may stand without a list; its letters are not names of columns."""
    return (given,) if isinstance(given, str) else tuple(given)


def _dialect(options: Mapping[str, Any]) -> Dialect:
    known = [f"csv_{item.name}" for item in fields(Dialect)]
    if unknown := [name for name in options if name not in known]:
        raise ContractError(f"{unknown[0]}: unknown option; accepted: {', '.join(known)}")
    return Dialect(**{name.removeprefix("csv_"): value for name, value in options.items()})
