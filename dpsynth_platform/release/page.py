"""Dossiers as HTML pages: one file each, without scripts or external resources.

What belongs here: rendering a dossier's template, with the labels and drawings that it needs. What does not: facts; the
page shows the dossier only. Everything is escaped except drawings, which `check_svg` checks or `drawing` makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.figures import moment, number_of, upper_bound
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.release.drawing import (
    budget_bar,
    compared,
    compared_text,
    lineage_graph,
    sparkline,
    sparkline_text,
)

if TYPE_CHECKING:
    from jinja2 import Environment

TREATMENTS = {
    "modelled": "modelled with differential privacy",
    "written": "written by a language model, with differential privacy",
    "pictured": "made by a model of pictures or drawn from synthetic texts, with differential privacy",
    "answered": "part of the answers, with differential privacy",
    "regenerated": "fresh surrogate ids, unrelated to the source's",
    "public": "of a public table, released as it is",
    "empty": "kept for the schema, without values",
    "absent": "not part of the release",
}


def render(dossier: Mapping[str, Any], key_fingerprint: str) -> str:
    """The page of a public dossier. Raises `ReleaseRefused` if an audit plot is not plain SVG."""
    from markupsafe import Markup

    from dpsynth_platform.synth.automatic import why_in_words  # late: verifiers need this module without it

    return (
        environment(html=True)
        .get_template("dossier.html.j2")
        .render(
            d=dossier,
            key_fingerprint=key_fingerprint,
            graph=Markup(  # noqa: S704 - made and escaped in `drawing`
                lineage_graph(dossier["lineage"]["steps"], dossier["lineage"]["upstream"])
            ),
            plots=_drawings(dossier["audit"]["plots"]),
            columns=_column_rows(dossier),
            measured_together=_measured_together(dossier),
            budget=_budget(dossier),
            why_method=why_in_words(dossier["mechanism"]["why"], "under Columns together"),
            treatments=TREATMENTS,
            linked=[(table, table_in_words(table)) for table in dossier["synthetic"].get("tables", [])],
        )
    )


def table_in_words(table: Mapping[str, Any]) -> str:
    """What a linked table is, as its dossier says it."""
    joined = [f"{column} refers to {other}" for column, other in table["lookups"].items()]
    if parent := table["parent"]:
        joined.insert(0, f"{', '.join(parent['columns'])} refers to {parent['table']}")
    what = {
        "root": "The root: synthetic rows",
        "child": "Synthetic rows",
        "public": f"Public, released as it is, because: {(table['public_because'] or '').strip().removesuffix('.')}",
    }[table["role"]]
    key = f"; key {', '.join(table['key'])}" if table["key"] else ""
    links = f"; {'; '.join(joined)}" if joined else ""
    most = ""
    if table["bound"] is not None:
        most = f"; of one owner at most {number_of(table['bound'], 'row')} reached the mechanism"
    return f"{what}{key}{links}{most}."


def _column_rows(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each published column its drawing, and how far it is from the noisy counts.

    No row's values: the page stays after a withdrawal.
    """
    from markupsafe import Markup

    fidelity = dossier["fidelity"]
    axes = fidelity["axes"] if fidelity else []
    single = {
        axes[table["axes"][0]]["column"]: table
        for table in (fidelity["tables"] if fidelity else [])
        if not table["order"] and "difference" in table
    }
    rows = []
    for column in dossier["synthetic"]["columns"]:
        if column["treatment"] == "absent":
            continue
        name, histogram, drawing, in_words = column["name"], column.get("histogram"), None, ""
        table = single.get(name)
        if table is not None:
            drawing, in_words = compared(table, axes[table["axes"][0]]), compared_text(table, axes[table["axes"][0]])
        elif histogram is not None:
            drawing, in_words = sparkline(histogram), sparkline_text(histogram)
        rows.append(
            {
                **column,
                "drawing": drawing and Markup(drawing),  # noqa: S704 - made and escaped in `drawing`
                "in_words": in_words,
                "table": table,
            }
        )
    return rows


def _measured_together(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sets of columns that were counted together: of each set the table that differs most beyond what noise explains.

    `tables` is how many tables of the set there are; `rule` says that a constraint of the contract determines one
    column from the other. Sets that differ most come first.
    """
    fidelity = dossier["fidelity"]
    if fidelity is None:
        return []
    determined = [
        {rule["column"], rule["determines"]}
        for rule in dossier["contract"]["generate"]["constraints"]
        if rule.get("determines")
    ]
    sets: dict[frozenset[str], list[dict[str, Any]]] = {}
    for table in fidelity["tables"]:
        if table["order"] and "difference" in table:
            columns = tuple(fidelity["axes"][place]["column"] for place in table["axes"])
            sets.setdefault(frozenset(columns), []).append({**table, "columns": columns})

    def beyond_noise(table: Any) -> float:
        return float(table["difference"] - table["by_noise"])

    found = [
        {**max(tables, key=beyond_noise), "tables": len(tables), "rule": columns in determined}
        for columns, tables in sets.items()
    ]
    return sorted(found, key=beyond_noise, reverse=True)


def _budget(dossier: Mapping[str, Any]) -> Any:
    from markupsafe import Markup

    budget = dossier["ledger"]["budget"]
    if budget is None:
        return None
    shares = {name: budget[name] for name in ("earlier", "this_release", "left")}
    return Markup(budget_bar(shares))  # noqa: S704 - made and escaped in `drawing`


def render_reviewers(dossier: Mapping[str, Any]) -> str:
    """The page of a reviewers' dossier. Restricted, like the dossier. Raises like `render`."""
    return (
        environment(html=True)
        .get_template("reviewers.html.j2")
        .render(
            d=dossier,
            audit_plots=_drawings(dossier["audit"]["plots"]),
            quality_plots=_drawings(dossier["quality"]["plots"] if dossier["quality"] else {}),
        )
    )


@cache
def environment(*, html: bool) -> Environment:
    """The templates of releases, each compiled once in a process. Without `html` nothing is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("dpsynth_platform.release", "templates"),
        autoescape=html,  # noqa: S701 - Markdown has filters of its own
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )
    made.filters.update(moment=moment, small=small, upper_bound=upper_bound, words=words)
    return made


def _drawings(plots: Mapping[str, str]) -> dict[str, Any]:
    """Plots that need no escaping, since they contain shapes and text only."""
    from markupsafe import Markup

    for title, svg in plots.items():
        check_svg(title, svg)
    return {title: Markup(svg) for title, svg in plots.items()}  # noqa: S704 - checked above


def small(number: float) -> str:
    """A small probability as `1 in 140,000`: two significant digits, rounded up."""
    if number <= 0:
        return "0"
    times = int(1 / number)
    digits = max(0, len(str(times)) - 2)
    return f"1 in {times // 10**digits * 10**digits:,}"


def words(name: str) -> str:
    """A JSON key as words: `not_covered` is `Not covered`."""
    text = name.replace("_", " ").replace("-", " ").strip()
    return text[:1].upper() + text[1:]
