"""Addresses of the console's pages, relative to the console, and of assets in Dagster.

What belongs here: paths with quoted names of datasets, families, releases, ledger entries and lineage nodes: never any
data. What does not: the pages.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode


def family_page(family: str) -> str:
    """One family's budget."""
    return f"/families/{_name(family)}"


def dataset_page(dataset: str) -> str:
    """One dataset's contract, runs and releases."""
    return f"/datasets/{_name(dataset)}"


def release_page(release: str) -> str:
    """One release's dossier."""
    return f"/releases/{_name(release)}"


def candidate_page(dataset: str, period: str | None = None) -> str:
    """The current candidate of a dataset and period, for approval or refusal."""
    return f"/candidates/{_name(dataset)}" + (f"/{_name(period)}" if period else "")


def entry_page(entry: str) -> str:
    """One ledger entry."""
    return f"/ledger/{_name(entry)}"


def node_page(node: str) -> str:
    """The lineage graph around a node."""
    return f"/lineage?{urlencode({'node': node})}"


def column_page(node: str, column: str | None) -> str:
    """Where a column comes from and what is drawn from it; without a column, what is drawn from the whole node."""
    return f"/lineage?{urlencode({'node': node, 'column': column} if column else {'node': node, 'drawn': 'yes'})}"


def asset_in_dagster(dagster: str, dataset: str, step: str, period: str | None = None) -> str:
    """The page of a step's asset in the Dagster UI at the address `dagster`."""
    partition = f"?{urlencode({'partition': period})}" if period else ""
    return f"{dagster.removesuffix('/')}/assets/{_name(dataset)}/{_name(step)}{partition}"


def _name(text: str) -> str:
    return quote(text, safe="")
