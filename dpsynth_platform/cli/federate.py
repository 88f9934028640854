"""`dpsynth federate`: plans federated runs, and runs them as their coordinator.

What belongs here: arguments, progress and output. What does not: plan and run (`one_table.federated_plan`,
`one_table.federated_run`), and what participants do (`dpsynth node`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsynth_platform.cli.table_run import INTERRUPTED
from dpsynth_platform.cli.terminal import Commands, TerminalOutput, workspace
from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.foundation.progress import bars

if TYPE_CHECKING:
    from dpsynth_platform.federation.plans import FederatedPlan

federate_app = Commands(
    no_args_is_help=True, help="Federated runs at their coordinator: one synthetic table of rows that stay apart."
)
Keys = Annotated[
    Path,
    typer.Option(help="YAML file with `participants:`, the public key of each by its name (64 hexadecimal digits)."),
]


@federate_app.command("keys")
def keys(output: TerminalOutput) -> None:
    """Prints the public keys of this deployment as coordinator of contracts with `source.federation`.

    The participants' policies name both: `coordinator:`, and `auditor:` among `participants:`. Each key is made at its
    first use and kept in the vault.
    """
    from dpsynth_platform.foundation.settings import Settings
    from dpsynth_platform.operations.federating import federation_keys
    from dpsynth_platform.secrets.vault import Vault

    found = federation_keys(Vault(Settings.from_environment().vault))
    public = {name: key.public_key().public_bytes_raw().hex() for name, key in found.items()}
    output.json(public)
    for name, key in public.items():
        output.print(f"{name}: {key}")


@federate_app.command("plan")
def plan(
    output: TerminalOutput,
    schema: Annotated[
        Path, typer.Option(help="YAML file with `columns:` as in a contract, the same at all participants.")
    ],
    participants: Keys,
    dataset: Annotated[str, typer.Option(help="By which the participants' policies name what they give.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the whole run; up to 1 is strong, up to 10 reasonable.")],
    expected_units: Annotated[
        int, typer.Option(help="A public estimate of the number of owners, or of rows, of all participants together.")
    ],
    minimum: Annotated[
        int, typer.Option(help="The fewest participants that finish a round: more than half of them.", min=1)
    ],
    most_records: Annotated[
        int,
        typer.Option(help="The most records of a participant that are counted in one cell; more are clipped.", min=1),
    ],
    out: Annotated[Path, typer.Option(help="New file of the sealed plan (JSON).")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the guarantee; default: 1/n^1.1 with n = --expected-units.")
    ] = None,
    owners: Annotated[
        str | None,
        typer.Option(help="The column that names the owner of each row; default: each row is its own unit."),
    ] = None,
    contributions: Annotated[
        int | None, typer.Option(help="The most rows of each owner that a participant uses; with --owners.")
    ] = None,
    method: Annotated[
        Literal["mst", "aim", "independent", "arn", "image_moments", "image_pe", "aug_pe"],
        typer.Option(
            help="The generator: mst, aim (chooses among noisy tables of all pairs), independent, or arn (a network "
            "that noisy sums of gradients train); image_moments, or image_pe (candidates evolve by votes), for "
            "pictures; aug_pe (the same), for texts."
        ),
    ] = "mst",
    colluders: Annotated[
        int,
        typer.Option(help="So many participants may be curious together, also with the coordinator.", min=0),
    ] = 1,
    silos: Annotated[
        int, typer.Option(help="In so many participants' rows one person may be: the guarantee is for all.", min=1)
    ] = 1,
    trust: Annotated[
        Literal["distributed", "central", "local"],
        typer.Option(
            help="Who adds the noise: each participant a share (distributed); the coordinator, which sees exact sums "
            "(central: no guarantee against it); or each unit's own report (local, with independent)."
        ),
    ] = "distributed",
    text: Annotated[str | None, typer.Option(help="The column of texts, with aug_pe.")] = None,
    about: Annotated[
        str | None, typer.Option(help="What the texts are, in public words from which candidates are written.")
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="The language model here that writes candidates, by name or path; default: the bundled one."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="A public table here whose texts are the first candidates; with --public-why.")
    ] = None,
    public_why: Annotated[str | None, typer.Option(help="Why it is public; it stands in the statement.")] = None,
) -> None:
    """Seals the plan of a federated run, from public declarations alone, and says what it promises against whom."""
    from dpsynth_platform.foundation.storage import write_durably
    from dpsynth_platform.one_table.federated_plan import FederatedOptions, federated_plan, plan_shown, read_roster

    if out.exists():
        raise ConfigurationError(f"--out {out} exists; accepted: a new file")
    options = FederatedOptions(
        schema=schema,
        dataset=dataset,
        epsilon=epsilon,
        delta=delta,
        expected_units=expected_units,
        owners=owners,
        contributions=contributions,
        method=method,
        minimum=minimum,
        colluders=colluders,
        most_records=most_records,
        silos=silos,
        trust=trust,
        text=text,
        about=about,
        base_model=base_model,
        public=public,
        public_why=public_why,
    )
    made = federated_plan(options, read_roster(participants))
    try:
        write_durably(out, made.to_json())
    except OSError as error:
        problem = file_problem(error)
    else:
        output.json(plan_shown(made) | {"plan": str(out)})
        _show(output, made)
        output.print(f"plan: {out}")
        return
    raise ConfigurationError(f"--out {out}: {problem}; accepted: a place that this user can write to")


@federate_app.command("run")
def run(
    output: TerminalOutput,
    plan: Annotated[Path, typer.Argument(help="File of a sealed plan.")],
    participants: Keys,
    key: Annotated[Path, typer.Option(help="Directory with the coordinator's key, as dpsynth node key makes it.")],
    socket: Annotated[Path, typer.Option(help="Local socket to make, to which the Flower app connects.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Directory of the result; made if it does not exist. Only your user account can read what is written "
            "there (mode 0700)."
        ),
    ],
    rows: Annotated[
        int | None,
        typer.Option(
            help="Number of synthetic rows; default: estimated from the noisy counts, where a column is counted."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="In which a participant has to reply: the Flower app's timeout.", min=1)
    ] = 60.0,
    name: Annotated[
        str | None, typer.Option("--run", help="Name of the run for all who take part; default: a new one.")
    ] = None,
) -> None:
    """Runs a plan over a relay, and writes the synthetic table and its statement. No row comes here."""
    from dpsynth_platform.federation.relays import relayed, start_of_flower
    from dpsynth_platform.one_table.federated_plan import read_plan, read_roster
    from dpsynth_platform.one_table.federated_run import announced, coordinator_key, run_federated
    from dpsynth_platform.one_table.federated_statement import without

    sealed, roster = read_plan(plan), read_roster(participants)
    identity = coordinator_key(key)
    no_core_dumps()
    try:
        with bars(output.console) as progress, workspace("dpsynth-federate-"):
            waiting = f"waiting at {socket} for the Flower app; start it now: {start_of_flower(socket, seconds)}"
            output.print(announced(sealed, out))
            link = relayed(socket, seconds, sealed.most_reply_bytes, lambda: output.print(waiting))
            made = run_federated(sealed, roster, identity, link, out, run=name, rows=rows, progress=progress)
    except KeyboardInterrupt as stopped:
        output.print(f"Interrupted. {stopped or 'No participant was asked: nothing is spent.'}")
        raise typer.Exit(INTERRUPTED) from None
    output.json(made.to_json())
    output.print(f"{made.rows} synthetic rows: {made.synthetic}")
    paid = "was paid by its participants" if made.spent else "was paid before: nothing new was spent"
    output.print(f"{made.guarantee}; run {made.run} {paid}")
    for line in (*made.took_part.lines(), *without(sealed, made.took_part)):
        output.print(f"- {line}")
    output.print(f"privacy statement: {made.statement}")
    for warning in made.warnings:
        output.print(f"lineage: {warning}")


def _show(output: TerminalOutput, made: FederatedPlan) -> None:
    from dpsynth_platform.one_table.federated_plan import (
        protections_in_words,
        read_in_words,
        table_of_rounds,
        terms_in_words,
    )
    from dpsynth_platform.privacy.federated_words import units

    terms = made.terms
    output.heading(f"A federated run for {made.sealed.dataset}")
    output.print(
        f"participants: {', '.join(terms.participants)}; at least {terms.minimum} finish each round, of whom "
        f"{terms.colluders} may be curious together"
    )
    for line in read_in_words(made):
        output.print(line)
    header = ("round", "what is summed", "tables", "numbers, at most", "noise of each (deviation, records or units)")
    output.table(header, list(table_of_rounds(made)))
    output.heading("The guarantee of the whole")
    output.print(str(made.guarantee))
    if made.trust == "local":
        output.print("Of each report it is pure: delta is 0.")
    for line in units(terms_in_words(made)):
        output.print(line)
    output.heading("Against whom")
    rows = [(item.party, *item.numbers, item.rests_on) for item in protections_in_words(made)]
    output.table(("party", "epsilon", "delta", "rests on"), rows)
    output.print(f"\ndigest: {made.digest}")
