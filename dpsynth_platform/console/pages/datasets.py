"""Pages of datasets: all of them, and one with its contract in words, its runs and its releases.

What belongs here: their order on the page. What does not: what they say (`views`).
"""

from __future__ import annotations

from dpsynth_platform.console.pages.frame import PageContext, add_page
from dpsynth_platform.console.views import datasets as views
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Registers the pages."""
    add_page(
        settings,
        "Datasets",
        "/datasets",
        lambda context: context.read(views.datasets, context.query.get("text", ""), context.page_number),
        _list,
    )
    add_page(
        settings,
        "Datasets",
        "/datasets/{name}",
        lambda context: (
            context.read(views.draft, context.path["name"])
            or context.read(views.gone, context.path["name"])
            or context.read(views.dataset, context.path["name"])
        ),
        _dataset,
    )


def _list(context: PageContext, view: views.DatasetsView) -> None:
    context.heading("Datasets")
    context.html("datasets.html.j2", view=view)


def _dataset(context: PageContext, view: views.DatasetView | views.DraftView | views.GoneView) -> None:
    if isinstance(view, views.DraftView):
        context.heading(f"Dataset {view.dataset}", (("Datasets", "/datasets"),))
        context.html("draft.html.j2", view=view)
        return
    if isinstance(view, views.GoneView):
        context.heading(f"Dataset {view.dataset}", (("Datasets", "/datasets"),))
        context.html("gone.html.j2", view=view)
        return
    context.heading(f"Dataset {view.row.dataset}", (("Datasets", "/datasets"),))
    context.html("dataset.html.j2", view=view)
