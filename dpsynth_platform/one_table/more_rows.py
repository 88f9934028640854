"""More rows from the model of an earlier, paid run: post-processing, without spending and without the table.

What belongs here: the record that a run writes for this, and drawing rows, also with given values or other constraints,
for which the stored measurements are fitted again. What does not: the run (`run`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.base import MOST_ROWS
from dpsynth_platform.contracts.constraints import Constraint, Values, canonical_values, read_constraints
from dpsynth_platform.contracts.methods import INFERENCE_METHODS
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, MechanismFailed
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import digest_directory, write_durably
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.budget import runs_beside
from dpsynth_platform.one_table.declaration import in_options
from dpsynth_platform.one_table.place import ANSWERS, SYNTHETIC, Place, held, synthetic_path
from dpsynth_platform.one_table.statement import Further
from dpsynth_platform.one_table.witnesses import intact_ledger
from dpsynth_platform.synth.interface import generator

RANGE = ".."


@dataclass(frozen=True)
class Earlier:
    """The record of an output's last run for later draws. All of it is public.

    Attributes:
        names: the columns' names in the table, by those in the contract.
        constraints: in JSON form, by the contract's names.
        statement: in JSON form.
        ledger_head: the chain's last link then; records of earlier versions lack it.
        shape: `shape_text` of the table's structs; None: there are none.
        texts: `TextTerms` as JSON, where a language model writes a column; None: it does not.
    """

    entry_id: str
    method: str
    ledger: str
    names: dict[str, str]
    constraints: list[dict[str, Any]]
    statement: dict[str, Any]
    ledger_head: dict[str, Any] | None = None
    shape: str | None = None
    texts: dict[str, Any] | None = None

    def save(self, place: Place) -> None:
        """Replaces an earlier one."""
        write_durably(place.record, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, root: Path) -> Earlier:
        """Raises `ConfigurationError` if there is none."""
        try:
            return cls(**json.loads(Place(root).record.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise ConfigurationError(
                f"{root}: no model of an earlier run is here; accepted: the --out directory of a successful `dpsynth "
                "synth table` or `synth text`"
            ) from None


def shape_text(shape: pa.Schema | None) -> str | None:
    """The base64 of the Arrow IPC form of `structs.shape_of`."""
    return None if shape is None else base64.b64encode(shape.serialize().to_pybytes()).decode()


@dataclass(frozen=True)
class MoreRows:
    """Further rows.

    Attributes:
        synthetic: the table.
        statement: its privacy statement in Markdown; beside it in JSON.
        entry_id: the ledger entry that had paid.
    """

    synthetic: Path
    statement: Path
    rows: int
    entry_id: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"synthetic": str(self.synthetic), "statement": str(self.statement), "spent": False}


def more_rows(
    out: str | Path,
    rows: int,
    *,
    given: Mapping[str, Any] | None = None,
    constraints: str | Path | None = None,
    to: str | Path | None = None,
    progress: Progress = silent,
) -> MoreRows:
    """Draws further rows from the model in the directory of an earlier `synthesize`; spends nothing.

    Args:
        given: conditions on all rows by column: a value, a list, or a range {"min": ..., "max": ...}.
        constraints: a file with `constraints:` instead of those of the earlier run.
        to: the file (.parquet, .csv) or directory (Delta) of the rows; None: `rows.parquet` in `out`.
        progress: called with public stages and counts of steps.

    Raises:
        ConfigurationError: there is no model.
        ContractError: a constraint or a given value does not belong to this table, or no row can satisfy them all.
        MechanismFailed: the model or its measurements are missing, or were changed, or no text keeps the rules.
        LedgerError: the ledger is missing or outdated (`witnesses`).
        SourceError: the rows cannot be written there.
    """
    from dpsynth_platform.one_table.output import format_of, write_rows, write_statement

    if not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise ContractError(f"--rows {rows}; accepted: 1 to {MOST_ROWS}")
    earlier = Earlier.read(Path(out))
    if earlier.method in INFERENCE_METHODS:
        raise ContractError(
            f"{out}: method {earlier.method} paid for each text, and there is no model that writes more; accepted: the "
            "rows that are there, or a new run, which has a cost of its own"
        )
    target = Path(to) if to is not None else Path(out) / "rows.parquet"
    format_ = format_of(target)
    _check_target(Path(out), target)
    plain = {shown: name for name, shown in earlier.names.items()}
    wanted = {plain.get(name, name): canonical(name, values) for name, values in (given or {}).items()}
    kept = [Constraint(**item) for item in earlier.constraints]
    if constraints is not None:
        kept = [constraint.renamed(plain) for constraint in read_constraints(Path(constraints))]
    shown = given_in_words(given or {})

    def drawn(place: Place) -> MoreRows:
        ledger = intact_ledger(place, _ledger(place, earlier))
        drawing = generator(earlier.method).draw(
            _model(place, earlier, ledger),
            rows,
            constraints=kept,
            given=wanted,
            **drawn_by(earlier.texts and earlier.texts | {"counts": None}),  # those were for all rows of the run
            progress=progress,
        )
        shape = None if earlier.shape is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(earlier.shape)))
        write_rows(target, drawing, earlier.names, format_, shape)
        stated = Further(earlier.statement, rows, shown, len(kept), runs_beside(ledger, earlier.entry_id)[0])
        written = write_statement(target.parent, stated, f"{target.stem}.statement")
        return MoreRows(target, written, rows, earlier.entry_id)

    with private_files(), held(Path(out)) as place, in_options():
        return place.guarded(lambda: drawn(place))


def drawn_by(texts: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of `Generator.draw` for texts by their terms as JSON; none for a table without them."""
    if texts is None:
        return {}
    from dpsynth_platform.synth.text.terms import TextTerms
    from dpsynth_platform.worker.run import resolve_device

    return {"texts": TextTerms.from_json(texts), "device": resolve_device(Settings.from_environment().device)}


def paid_model(out: Path) -> tuple[Earlier, Path]:
    """The record of an output's last run, and the directory of its model, checked with the ledger.

    Raises:
        ConfigurationError: there is no model.
        LedgerError: its ledger is missing or outdated (`witnesses`).
        MechanismFailed: the model is missing, or was changed.
    """
    earlier, place = Earlier.read(out), Place(out)
    return earlier, _model(place, earlier, intact_ledger(place, _ledger(place, earlier)))


def read_given(texts: Sequence[str]) -> dict[str, Values]:
    """Parses --given: COLUMN=VALUE, COLUMN=LOW..HIGH (one end may be empty), or COLUMN= for a missing value.

    Rows have one of the values of a repeated column. Raises `ContractError` for another form.
    """
    found: dict[str, Values] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ContractError(f"--given {text!r}; accepted: COLUMN=VALUE, COLUMN=LOW..HIGH, or COLUMN= for missing")
        low, between, high = value.partition(RANGE)
        earlier = found.get(name)
        if not between:
            found[name] = [*(earlier if isinstance(earlier, list) else []), value or None]
        elif low or high:
            found[name] = {key: end for key, end in (("min", low), ("max", high)) if end}
        if earlier is not None and (between or isinstance(earlier, dict)):
            raise ContractError(f"--given {text!r}: {name} is repeated; accepted: one range, or several values")
    return found


def canonical(name: str, values: Any) -> Values:
    """The values or range of a condition. Raises `ContractError` for another form."""
    try:
        return canonical_values(values)
    except ValueError as error:
        problem = str(error)
    raise ContractError(f"given.{name}: {problem}")


def given_in_words(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Conditions on rows, such as `sex = F`."""
    return tuple(f"{name} = {_in_words(canonical(name, values))}" for name, values in given.items())


def _in_words(values: Values) -> str:
    if isinstance(values, dict):
        return f"{values.get('min', '')}{RANGE}{values.get('max', '')}"
    return " or ".join("missing" if value is None else str(value) for value in values)


def _check_target(out: Path, target: Path) -> None:
    """Protects the run's own table, restricted files, and files of other origin from being overwritten."""
    from dpsynth_platform.one_table.task import FORMATS

    tables = (SYNTHETIC, ANSWERS)
    taken = {synthetic_path(out, of, name).resolve() for of in FORMATS for name in tables}  # type: ignore[arg-type]
    if target.resolve() in taken or target.resolve().is_relative_to(Place(out).restricted.resolve()):
        raise ContractError(f"--to {target} belongs to the run that made {out}; accepted: another name")
    if not target.resolve().parent.is_dir():
        raise ContractError(
            f"--to {target}: there is no directory {target.parent}; accepted: a file in an existing directory"
        )
    # An earlier output has a statement beside it.
    if target.exists() and not (target.parent / f"{target.stem}.statement.json").is_file():
        raise ContractError(f"--to {target} exists and does not contain rows of an earlier run; accepted: another name")


def _ledger(place: Place, earlier: Earlier) -> Path:
    """Directory of the ledger that paid, also after the output was moved with its ledger."""
    directory = Path(earlier.ledger)
    return place.ledger if place.ledger.is_dir() and not directory.is_dir() else directory


def _model(place: Place, earlier: Earlier, ledger: Ledger) -> Path:
    """The model's directory. Raises `MechanismFailed` if the ledger's digest does not match."""
    model = place.model(earlier.entry_id)
    entry = ledger.entry(earlier.entry_id)
    if not model.is_dir() or digest_directory(model) != entry.model_digest:
        raise MechanismFailed(
            f"the model that ledger entry {earlier.entry_id} paid for is missing from {model}, or was changed; "
            "accepted: restore it, or make the same run again"
        )
    return model
