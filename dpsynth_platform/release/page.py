"""Dossiers as pages that people can read: one HTML file each, no script, nothing from elsewhere.

What belongs here: handing a dossier to its template, with the few words and drawings that the template asks for. What
does not: facts; the page shows what the dossier says and nothing else. Everything is escaped, but the drawings: those
of the audit were checked when the evidence was put together (`dossier.check_svg`), the others are made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsynth_platform.foundation.figures import moment, upper_bound
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.release.drawing import lineage_graph, sparkline, sparkline_text

TREATMENTS = {
    "modelled": "modelled with differential privacy",
    "written": "written by a language model, with differential privacy",
    "regenerated": "fresh surrogate ids, unrelated to the source's",
    "empty": "present for the schema's sake, without values",
    "absent": "not part of the release",
}
_TIERS = {
    "strong": "Strong: epsilon at most 1.",
    "reasonable": "Reasonable: epsilon above 1 and at most 10.",
    "weak": "Weak: epsilon above 10.",
}
_UNITS = {"example": "one record", "user": "one person", "group": "one group"}


def render(dossier: Mapping[str, Any], key_fingerprint: str) -> str:
    """The page of a public dossier.

    Raises:
        ReleaseRefused: an audit plot is not plain SVG.
    """
    from markupsafe import Markup

    return _page(
        "dossier.html.j2",
        dossier,
        **dossier,
        key_fingerprint=key_fingerprint,
        graph=Markup(  # noqa: S704 - made and escaped in `drawing`
            lineage_graph(dossier["lineage"]["steps"], dossier["lineage"]["upstream"])
        ),
        plots=_drawings(dossier["audit"]["plots"]),
        spark=lambda histogram: Markup(sparkline(histogram)),  # noqa: S704 - made and escaped in `drawing`
        treatments=TREATMENTS,
        tier_words=_TIERS[dossier["guarantee"]["tier"]],
        unit_words=_UNITS[dossier["guarantee"]["unit"]],
    )


def render_reviewers(dossier: Mapping[str, Any]) -> str:
    """The page of a reviewers' dossier. Restricted, as that is. Raises like `render`."""
    return _page(
        "reviewers.html.j2",
        dossier,
        audit_plots=_drawings(dossier["audit"]["plots"]),
        quality_plots=_drawings(dossier["quality"]["plots"] if dossier["quality"] else {}),
    )


def _page(template: str, dossier: Mapping[str, Any], **more: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dpsynth_platform.release", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=moment, small=small, upper_bound=upper_bound, words=words, spark_text=sparkline_text
    )
    return environment.get_template(template).render(d=dossier, **more)


def _drawings(plots: Mapping[str, str]) -> dict[str, Any]:
    """Plots that may stand in a page as they are, since they are shapes and text only."""
    from markupsafe import Markup

    for title, svg in plots.items():
        check_svg(title, svg)
    return {title: Markup(svg) for title, svg in plots.items()}  # noqa: S704 - checked above


def small(number: float) -> str:
    """A small probability as `1 in 140,000`: two significant digits, rounded to the larger probability."""
    if number <= 0:
        return "0"
    times = int(1 / number)
    digits = max(0, len(str(times)) - 2)
    return f"1 in {times // 10**digits * 10**digits:,}"


def words(name: str) -> str:
    """A JSON key as words: `not_covered` is `Not covered`."""
    text = name.replace("_", " ").replace("-", " ").strip()
    return text[:1].upper() + text[1:]
