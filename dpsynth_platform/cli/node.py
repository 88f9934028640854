"""`dpsynth node key|up|status|approve`: a participant in federated runs.

What belongs here: arguments and output. What does not: what a node does (`one_table.federated_node`).
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import Commands, TerminalOutput, workspace
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.foundation.progress import bars

if TYPE_CHECKING:
    from dpsynth_platform.federation.plans import FederatedPlan

node_app = Commands(no_args_is_help=True, help="A participant in federated runs: rows that stay where they are.")

_NOISE = {
    "distributed": "each participant a share (distributed)",
    "central": "the coordinator, which sees exact sums: no guarantee against it (central)",
    "local": "each unit's own report (local)",
}
Directory = Annotated[Path, typer.Argument(help="The node's directory. Only your user account can read it.")]
_PolicyFile = Annotated[Path, typer.Option(help="YAML file with what this participant takes part in.")]


@node_app.command("key")
def node_key(output: TerminalOutput, directory: Directory) -> None:
    """Prints the public key of a participant or a coordinator; makes directory and key where there are none."""
    from dpsynth_platform.one_table.federated_keys import federation_key

    public = federation_key(directory).public_key().public_bytes_raw().hex()
    output.json({"public_key": public})
    output.print(public)


@node_app.command("up")
def node_up(
    output: TerminalOutput,
    directory: Directory,
    table: Annotated[
        Path, typer.Argument(help="Parquet file or a directory of them, Delta table, or CSV file: the own rows.")
    ],
    policy: _PolicyFile,
    schema: Annotated[
        Path,
        typer.Option(
            help="YAML file with `columns:` as in a contract, as in the plan; further ones with `ignore: true`."
        ),
    ],
    owners: Annotated[
        str | None, typer.Option(help="The column that names the owner of each row; default: each row is its own unit.")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Where a relay brings messages; default: node.sock in the directory.")
    ] = None,
    *,
    dialect: CsvDialect,
) -> None:
    """Answers a coordinator until it is stopped: takes part in what the policy allows, at most up to its cap.

    Reads the table once, when it starts. Whatever a coordinator says, only sums under masks leave this process: with
    noise, unless the policy takes part in runs whose coordinator adds it (trust).
    """
    from dpsynth_platform.federation.participants import load_policy
    from dpsynth_platform.one_table.federated_node import node_up as up

    declared = load_policy(policy)

    def report(line: str) -> None:
        output.print(f"{dt.datetime.now(dt.UTC).isoformat(timespec='seconds')} {line}")

    no_core_dumps()
    with bars(output.console) as progress, workspace("dpsynth-node-"):  # which also ends it orderly at SIGTERM
        up(
            directory,
            table,
            declared,
            schema,
            owners=owners,
            dialect=vars(dialect),
            socket=socket,
            report=report,
            progress=progress,
        )


@node_app.command("status")
def node_status(output: TerminalOutput, directory: Directory) -> None:
    """What a node has spent, and the plans that wait for a person."""
    from dpsynth_platform.one_table.federated_node import node_status as status

    found = status(directory)
    output.json(found.to_json())
    output.print(f"public key {found.public_key}")
    if found.cap is None or found.left is None:
        output.print("it was never up")
    else:
        output.print(f"epsilon {found.left:.3g} left of {found.cap:g}")
    if found.entries:
        output.table(
            ("ledger entry", "plan", "state", "epsilon", "reserved"),
            [
                (
                    entry.entry_id[:12],
                    str(entry.request.plan_digest)[:12],
                    "started: spent" if entry.state == "started" else entry.state,
                    f"{entry.request.guarantee.epsilon:g}",
                    entry.reserved_at,
                )
                for entry in found.entries
            ],
        )
    for plan in found.waiting:
        output.heading(f"plan {plan.digest[:12]} waits for a person")
        _show(output, plan)
        output.print(f"dpsynth node approve {directory} {plan.digest[:12]} --by NAME")
    for digest, by in found.approved:
        output.print(f"plan {digest[:12]} is approved by {by} for one run, which has not begun")


@node_app.command("approve")
def node_approve(
    output: TerminalOutput,
    directory: Directory,
    plan: Annotated[str, typer.Argument(help="The plan's digest, or its first 8 digits or more (node status).")],
    by: Annotated[str, typer.Option(help="Who approves.")],
) -> None:
    """Approves one run of a plan that waits. The policy and the ledger still have the last word."""
    from dpsynth_platform.one_table.federated_node import Approvals

    approvals = Approvals(directory)
    found = approvals.find(plan)
    approvals.approve(found, by)
    output.json({"plan": found.digest, "by": by})
    _show(output, found)
    output.print(f"approved by {by}, for one run")


def _show(output: TerminalOutput, plan: FederatedPlan) -> None:
    from dpsynth_platform.contracts.federation import AUDITOR
    from dpsynth_platform.foundation.figures import number_of
    from dpsynth_platform.one_table.federated_plan import read_in_words

    terms, guarantee = plan.terms, plan.guarantee
    besides = f" ({AUDITOR} of the coordinator among them)" if AUDITOR in terms.participants else ""
    each, silos = number_of(terms.max_contributions, "record"), number_of(terms.silos, "participant")
    output.table(
        ("what", "value"),
        [
            ("dataset", plan.sealed.dataset),
            ("method", plan.sealed.method),
            ("who adds the noise", _NOISE[plan.trust]),
            ("columns", ", ".join(plan.reads)),
            ("guarantee", f"epsilon {guarantee.epsilon:g}, delta {guarantee.delta:g}, {guarantee.adjacency}"),
            ("unit", f"{guarantee.unit}: up to {each} in the rows of one participant, and in those of {silos} at most"),
            ("participants", ", ".join(terms.participants)),
            ("finish at least", f"{terms.minimum}{besides}"),
            ("may collude", f"{terms.colluders}{besides}"),
            ("rounds", ", ".join(f"{name} ({number} tables)" if number > 1 else name for name, number in plan.rounds)),
        ],
    )
    for line in read_in_words(plan):
        output.print(line)
