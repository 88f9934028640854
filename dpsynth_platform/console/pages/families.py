"""Pages of families: all budgets, and one of them over time.

What belongs here: their order on the page. What does not: what they say (`views`).
"""

from __future__ import annotations

from fastapi import Request

from dpsynth_platform.console.pages import charts
from dpsynth_platform.console.pages.frame import Here, page, shown
from dpsynth_platform.console.views import families as views
from dpsynth_platform.settings import Settings


def register(settings: Settings) -> None:
    """Puts the pages at their addresses."""

    @page("/families")
    async def families(request: Request) -> None:
        await shown(
            settings, request, "Families", lambda here: views.families(here.settings, here.identity.actions), _list
        )

    @page("/families/{name}")
    async def family(request: Request, name: str) -> None:
        await shown(
            settings,
            request,
            "Families",
            lambda here: views.family(here.settings, here.identity.actions, name),
            _family,
        )


def _list(here: Here, view: tuple[views.FamilyRow, ...]) -> None:
    here.heading("Families")
    here.html("families.html.j2", view=view)


def _family(here: Here, view: views.FamilyView) -> None:
    here.heading(f"Family {view.row.family}", (("Families", "/families"),))
    here.html(
        "family.html.j2",
        view=view,
        chart=charts.budget_over_time(view.spend) if view.spend else None,
        owners_chart=charts.owners_left(view.owners) if view.owners else None,
    )
