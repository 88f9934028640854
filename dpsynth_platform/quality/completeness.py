"""What a contract asks a quality report to compare, and the report lacks.

What belongs here: the list of comparisons that were not possible, with reasons. What does not: a verdict on how good a
figure is. Contracts have no limits for quality: choosing among runs by a comparison with real rows is an unpaid access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpsynth_platform.contracts.contract import DataContract


def missing_comparisons(contract: DataContract, report: Mapping[str, Any]) -> list[str]:
    """A line for each comparison that is not available; empty for a complete report. Restricted, like the report."""
    return [f"{what}: {reason}" for what, reason in _reasons(contract, report) if reason]


def _reasons(contract: DataContract, report: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    if contract.generate.answers:
        yield "answers", None if report["answers"]["compared"] else "no exact answer is known"
        return
    if contract.tables:
        yield from _linked_reasons(contract, report)
        return
    if contract.modelled:
        yield "distances of columns", report["fidelity"]["not_available"]
        yield "similarity to held-out rows", None if report["similarity"] else "a table has no rows"
        yield "closeness to real rows", None if report["closeness"] else "a table has no rows"
        # A target alone is predicted from pictures or texts; their classifiers are in their own parts.
        shown = contract.image_column is not None or contract.text_column is not None
        if contract.quality.target is not None and (len(contract.modelled) > 1 or not shown):
            regression = contract.quality.task == "regression"
            what = "models" if regression else "classifiers"
            found = report["regression" if regression else "utility"]
            yield f"{what} of {contract.quality.target}", found["not_available"]
            for kind in ("synthetic", "real"):
                yield f"{what} trained on {kind} rows", (found[kind] or {}).get("not_available")
        if contract.quality.findings:
            yield "conclusions of findings", None if report["parity"] else "a table has no rows"
        for item in report["fairness"]:
            yield f"fairness by {item['column']}", item["not_available"]
    if contract.image_column is not None:
        yield "pictures", None if report["pictures"] else "too few, or the features' weights are not installed"
    if contract.text_column is not None:
        yield "texts", None if report["texts"] else "too few, or too few of a kind"


def _linked_reasons(contract: DataContract, report: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    found = report["linked"]
    for name, table in found["tables"].items():
        modelled = contract.linked.own_columns(name)
        yield f"distances of columns of {name}", "a table has no rows" if modelled and not table["columns"] else None
    target, models = contract.quality.target, report.get("utility") or report.get("regression")
    if target is not None:
        yield f"models of {target}", "no owner is held out" if models is None else models["not_available"]
        for kind in ("synthetic", "real"):
            yield f"models trained on {kind} rows", ((models or {}).get(kind) or {}).get("not_available")
    for name, query in found["queries"].items():
        yield f"query {name}", query.get("not_available")
