"""Pages of datasets: all of them, and one with its contract in words, its runs and its releases.

What belongs here: their order on the page. What does not: what they say (`views`).
"""

from __future__ import annotations

from fastapi import Request

from dpsynth_platform.console.pages.frame import Here, page, shown
from dpsynth_platform.console.views import datasets as views
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Puts the pages at their addresses."""

    @page("/datasets")
    async def datasets(request: Request) -> None:
        await shown(
            settings,
            request,
            "Datasets",
            lambda here: views.datasets(
                here.settings, here.identity.actions, here.asked.get("text", ""), here.page_number
            ),
            _list,
        )

    @page("/datasets/{name}")
    async def dataset(request: Request, name: str) -> None:
        await shown(
            settings,
            request,
            "Datasets",
            lambda here: views.dataset(here.settings, here.identity.actions, name),
            _dataset,
        )


def _list(here: Here, view: views.DatasetsView) -> None:
    here.heading("Datasets")
    here.html("datasets.html.j2", view=view)


def _dataset(here: Here, view: views.DatasetView) -> None:
    here.heading(f"Dataset {view.row.dataset}", (("Datasets", "/datasets"),))
    here.html("dataset.html.j2", view=view)
