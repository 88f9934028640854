"""Pages of the ledger: the chain's events, one entry, verification and export.

What belongs here: their order, and the button that verifies. What does not: what they say (`views`).
"""

from __future__ import annotations

from fastapi import Request
from nicegui import ui

from dpsynth_platform.console.identity import acting
from dpsynth_platform.console.pages.frame import Here, page, shown
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import ledger as views
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Puts the pages at their addresses."""

    @page("/ledger")
    async def ledger(request: Request) -> None:
        await shown(settings, request, "Ledger", _listed, _ledger)

    @page("/ledger/{entry}")
    async def entry(request: Request, entry: str) -> None:
        await shown(
            settings,
            request,
            "Ledger",
            lambda here: views.entry(here.settings, here.identity.actions, entry),
            _entry,
        )


def _listed(here: Here) -> views.LedgerView:
    return views.entries(
        here.settings,
        here.identity.actions,
        text=here.asked.get("text", ""),
        kind=here.asked.get("kind") or None,
        page=here.page_number,
    )


def _ledger(here: Here, view: views.LedgerView) -> None:
    here.heading("Ledger")
    if here.identity.may(Action.EXPORT):
        here.html("export.html.j2")
    if here.identity.may(Action.VERIFY):
        _verifying(here)
    here.html("ledger.html.j2", view=view)


def _verifying(here: Here) -> None:
    """A button that recomputes the whole chain; what was found stands below it."""

    async def verify() -> None:
        button.props("loading")
        try:
            who = acting(here.request, Action.VERIFY)
            found = await here.request.state.desk.compute(views.verify, here.settings, who.actions)
        except DpsynthError as error:
            said.set_content(here.text("verified.html.j2", found=None, message=str(error)))
        else:
            said.set_content(here.text("verified.html.j2", found=found))
        finally:
            button.props(remove="loading")

    button = ui.button("Verify the whole ledger", on_click=verify, color=None).classes("go").props("no-caps unelevated")
    said = ui.html("", sanitize=False).props("role=status")


def _entry(here: Here, view: views.EntryView) -> None:
    here.heading(f"Ledger entry {view.entry}", (("Ledger", "/ledger"),))
    here.html("entry.html.j2", view=view)
