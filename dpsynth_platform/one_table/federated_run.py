"""A federated run at the coordinator: from a sealed plan to a synthetic table with its statement.

What belongs here: the coordinator's place, the order of its steps, and what is said of spending. What does not: rounds
and messages (`federation`), the plan (`federated_plan`), and participants' rows, which never come here.

    OUT/synthetic.parquet             the rows
    OUT/statement.md, statement.json  the guarantee in words, and for programs
    OUT/restricted/models/<run>/      opened sums, who took part, and the fitted model
    OUT/restricted/exchanges/         what was asked and answered in a run that is not complete, so that it continues
    OUT/restricted/run.json           the run that is complete, so that rows can be drawn if that failed
    OUT/restricted/lineage/           lineage, where there is no deployment that records it
"""

from __future__ import annotations

import datetime as dt
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.exchanges import Exchanges
from dpsynth_platform.federation.nodes import START, Coordinator
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.secure_sum import Link
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    DpsynthError,
    LedgerError,
    NotFound,
    RoundRefused,
)
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.lineage.emitter import Delivery, LineageEmitter
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_lineage import coordinator_emitter, coordinator_run, drawing_run
from dpsynth_platform.one_table.federated_plan import check_public_texts
from dpsynth_platform.one_table.federated_statement import FederatedStatement
from dpsynth_platform.one_table.output import write_rows, write_statement
from dpsynth_platform.one_table.paying import Interrupted
from dpsynth_platform.one_table.place import EXCHANGES, STATEMENT, Place, held, synthetic_path
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.synth.interface import Drawing, generator
from dpsynth_platform.synth.tabular.missing import missing_in_words

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class FederatedSynthesis:
    """The result of a run.

    Attributes:
        synthetic: the table.
        statement: its privacy statement in Markdown; beside it in JSON.
        spent: whether participants paid now, or before.
        warnings: of the emission of its lineage.
    """

    synthetic: Path
    statement: Path
    run: str
    plan_digest: str
    rows: int
    guarantee: Guarantee
    took_part: TookPart
    spent: bool
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"synthetic": str(self.synthetic), "statement": str(self.statement)}


def new_run_name() -> str:
    """A name that no other run has, and that sorts by time."""
    return f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def announced(plan: FederatedPlan, out: Path) -> str:
    """What a call of `run_federated` will do there, and who pays for it, in words."""
    place = Place(out)
    if _record(place).exists():
        return "A run is paid for here: the table is drawn from its model, and no participant is asked."
    if (run := Exchanges(place.restricted / EXCHANGES).begun(plan.digest)) is not None:
        return f"Continuing run {run}, which was interrupted: what was paid for it is not paid again."
    return "A new run: each participant that starts pays, also where it has paid for an earlier run of this plan."


def coordinator_key(directory: Path) -> Ed25519PrivateKey:
    """The coordinator's key, which has to be there: participants name it in their policies.

    Raises:
        NotFound: there is none.
        ConfigurationError: the directory cannot be used, or its key is damaged.
    """
    if not Vault(directory / "keys").has("identity"):
        raise NotFound(
            f"--key {directory}: there is no key; accepted: a directory with the coordinator's, whose public key the "
            "participants' policies name"
        )
    return federation_key(directory)


def run_federated(
    plan: FederatedPlan,
    roster: Roster,
    key: Ed25519PrivateKey,
    link: AbstractContextManager[Link],
    out: Path,
    *,
    run: str | None = None,
    rows: int | None = None,
    progress: Progress = silent,
) -> FederatedSynthesis:
    """Runs a plan, and writes the synthetic table and its statement to the directory `out`.

    Where an earlier call has paid and failed to write the table, it is drawn from the model, and nothing is asked.
    Where one was stopped or killed, its run continues with those participants that are still up.

    Args:
        roster: the participants' public keys.
        key: the coordinator's.
        link: entered when all else is ready.
        run: its name for all who take part, new for each run; None: a new one, or that of the run that continues.
        rows: how many; None: as many as the noisy counts show, where a column is counted.

    Raises:
        ConfigurationError: `out` has a finished run, or cannot be used; or the relay fails.
        ContractError: an impossible name or number of rows.
        DpsynthError: as `Coordinator.run`. The message says what is spent.
        Interrupted: the user stopped it. The message says what is spent.
    """
    if run is not None and not _RUN.fullmatch(run):
        raise ContractError(f"--run {run!r}; accepted: up to 100 letters, digits, '_', '-' and '.', no sign first")
    if rows is not None and rows < 1:
        raise ContractError(f"--rows {rows}; accepted: 1 or more")
    if rows is None and not plan.domain:
        raise ContractError(
            "--rows: missing, and the plan counts no column whose noisy counts would show a number; accepted: 1 or more"
        )
    roster.of(plan.terms.participants)
    with private_files(), held(out) as place:
        return place.guarded(lambda: _synthesized(plan, roster, key, link, place, run, rows, progress))


def _synthesized(
    plan: FederatedPlan,
    roster: Roster,
    key: Ed25519PrivateKey,
    link: AbstractContextManager[Link],
    place: Place,
    run: str | None,
    rows: int | None,
    progress: Progress,
) -> FederatedSynthesis:
    if (place.root / f"{STATEMENT}.md").exists():
        raise ConfigurationError(f"--out {place.root} has the table of a finished run; accepted: a new directory")
    check_public_texts(plan, Settings.from_environment())
    paid, emitter = _paid(plan, place), coordinator_emitter(place, Settings.from_environment())
    spent, deliveries, exchanges = paid is None, list[Delivery](), Exchanges(place.restricted / EXCHANGES)
    if paid is None:
        begun = exchanges.begun(plan.digest)
        if begun is not None and run not in (None, begun):
            raise ContractError(f"--run {run}: run {begun} was interrupted here; accepted: its name, or another --out")
        run = begun or run or new_run_name()
        attempt = None if begun is None else new_run_name()
        with link as opened, _reported(emitter, coordinator_run(plan, run, attempt=attempt), deliveries):
            followed = _Following(opened, run, exchanges)
            took_part = _took_part(plan, roster, key, followed, place, progress, continues=begun is not None)
        write_durably(_record(place), json.dumps({"run": run, "plan": plan.digest}))
        ended = coordinator_run(plan, run, took_part.started, place.model(run), attempt=attempt)
        deliveries.append(emitter.complete(ended))
    else:
        run, took_part = paid
    exchanges.forget()
    synthetic = synthetic_path(place.root, "parquet")
    with _saying(lambda: f"Run {run} is paid for, and its model is kept: the same command draws from it, at no cost."):
        drawing = generator(plan.sealed.method).draw(place.model(run), rows, progress=progress)
        write_rows(synthetic, drawing, _names(plan, drawing), "parquet")
        made = FederatedStatement(plan, run, took_part, drawing.rows, tuple(missing_in_words(drawing.missing)))
        statement = write_statement(place.root, made)
    drawn = drawing_run(plan, run, place.model(run), synthetic, drawing.schema)
    deliveries.append(emitter.complete(drawn))
    return FederatedSynthesis(
        synthetic=synthetic,
        statement=statement,
        run=run,
        plan_digest=plan.digest,
        rows=drawing.rows,
        guarantee=made.guarantee,
        took_part=took_part,
        spent=spent,
        warnings=tuple(warning for delivery in deliveries for warning in delivery.warnings),
    )


@contextmanager
def _reported(emitter: LineageEmitter, run: StepRun, deliveries: list[Delivery]) -> Iterator[None]:
    """Reports the start of a run, and its end if it fails or is stopped."""
    deliveries.append(emitter.start(run))
    try:
        yield
    except KeyboardInterrupt:
        emitter.abort(run)
        raise
    except Exception as error:
        emitter.fail(run, error)
        raise


def _took_part(
    plan: FederatedPlan,
    roster: Roster,
    key: Ed25519PrivateKey,
    link: _Following,
    place: Place,
    progress: Progress,
    *,
    continues: bool,
) -> TookPart:
    private_directory(place.models)
    with _saying(lambda: link.in_words):
        if not continues:
            link.exchanges.forget()  # of a run that was interrupted before it began
        try:
            made = Coordinator(roster, key, link).run(
                link.run,
                plan,
                place.model(link.run),
                progress,
                before_start=lambda _: link.exchanges.begin(plan.digest, link.run),
                continues=continues,
            )
        except (LedgerError, RoundRefused):  # too few are left, and that does not change
            link.exchanges.forget()
            raise
    return TookPart(made.participants, made.finished, made.dropped)


@contextmanager
def _saying(words: Callable[[], str]) -> Iterator[None]:
    """Adds what is spent to the message of what ends the block."""
    caught: DpsynthError | Interrupted
    try:
        yield
        return
    except KeyboardInterrupt:
        caught = Interrupted(words())
    except DpsynthError as error:
        caught = type(error)(f"{error}. {words()}")
    raise caught


class _Following:
    """A link that notes how far a run has come, for what is said of spending."""

    def __init__(self, link: Link, run: str, exchanges: Exchanges) -> None:
        self.run, self.exchanges = run, exchanges
        self._link = exchanges.over(link)
        self._kinds: set[str] = set()

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        self._kinds |= {json.loads(body.partition(b"\n")[0])["kind"] for body in requests.values()}
        return self._link.ask(requests)

    @property
    def in_words(self) -> str:
        if START in self._kinds:
            spent = f"Participants were asked to start run {self.run}: what they started is spent in their ledgers."
            if self.exchanges.has_begun:
                return f"{spent} The same command continues this one as long as they are up; another run costs again."
            return f"{spent} Another run costs again, also one by the same command."
        if self._kinds:
            return "No participant was asked to start: nothing is spent, and reservations end at their deadline."
        return "No participant was asked: nothing is spent."


def _record(place: Place) -> Path:
    return place.restricted / "run.json"


def _paid(plan: FederatedPlan, place: Place) -> tuple[str, TookPart] | None:
    """The run whose model is here, and who took part; None without one."""
    if not _record(place).exists():
        return None
    found = json.loads(_record(place).read_text(encoding="utf-8"))
    if found["plan"] != plan.digest:
        raise ConfigurationError(f"--out {place.root} has the model of another plan; accepted: a new directory")
    return found["run"], TookPart.read(place.model(found["run"]))


def _names(plan: FederatedPlan, drawing: Drawing) -> dict[str, str]:
    """The columns to write. Where each row is its own unit, the last one has ids of rows, which say nothing."""
    names = drawing.schema.names
    if plan.guarantee.unit == "example" and plan.sealed.release["treatments"].get(names[-1]) == "regenerated":
        names = names[:-1]
    return {name: name for name in names}
