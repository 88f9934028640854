"""The first page: what waits for somebody, the budgets, and what was released lately.

What belongs here: its order. What does not: what it says (`views`).
"""

from __future__ import annotations

from fastapi import Request

from dpsynth_platform.console.pages.frame import Here, month_ago, page, shown
from dpsynth_platform.console.views import overview as views
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Puts the page at its address."""

    @page("/")
    async def overview(request: Request) -> None:
        await shown(
            settings, request, "Overview", lambda here: views.overview(here.settings, here.identity.actions), _overview
        )


def _overview(here: Here, view: views.Overview) -> None:
    here.heading("Overview")
    here.html("overview.html.j2", view=view, month_ago=month_ago())
