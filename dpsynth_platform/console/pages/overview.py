"""The first page: what waits for a person, the budgets, and recent releases.

What belongs here: its order. What does not: what it says (`views`).
"""

from __future__ import annotations

from dpsynth_platform.console.pages.frame import PageContext, add_page, month_ago
from dpsynth_platform.console.views import overview as views
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Registers the page."""
    add_page(settings, "Overview", "/", lambda context: context.read(views.overview), _overview)


def _overview(context: PageContext, view: views.Overview) -> None:
    context.heading("Overview")
    context.html("overview.html.j2", view=view, month_ago=month_ago())
