"""Pages of the ledger: the chain's events, one entry, verification and export.

What belongs here: their order, and the button that verifies. What does not: what they say (`views`).
"""

from __future__ import annotations

from nicegui import ui

from dpsynth_platform.console.identity import acting
from dpsynth_platform.console.pages.frame import PageContext, add_page
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import ledger as views
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Registers the pages."""
    add_page(settings, "Ledger", "/ledger", _events, _ledger)
    add_page(
        settings,
        "Ledger",
        "/ledger/{entry}",
        lambda context: context.read(views.entry, context.path["entry"]),
        _entry,
    )


def _events(context: PageContext) -> views.LedgerView:
    text, kind = context.query.get("text", ""), context.query.get("kind") or None
    return context.read(views.entries, text, kind, context.page_number)


def _ledger(context: PageContext, view: views.LedgerView) -> None:
    context.heading("Ledger")
    if context.identity.may(Action.EXPORT):
        context.html("export.html.j2")
    if context.identity.may(Action.VERIFY):
        _verifying(context)
    context.html("ledger.html.j2", view=view)


def _verifying(context: PageContext) -> None:
    async def verify() -> None:
        button.props("loading")
        try:
            who = acting(context.request, Action.VERIFY)
            found = await context.request.state.services.compute(views.verify, context.settings, who.actions)
        except DpsynthError as error:
            result.set_content(context.text("verified.html.j2", found=None, message=str(error)))
        else:
            result.set_content(context.text("verified.html.j2", found=found))
        finally:
            button.props(remove="loading")

    button = ui.button("Verify the whole ledger", on_click=verify, color=None).classes("go").props("no-caps unelevated")
    result = ui.html("", sanitize=False).props("role=status")


def _entry(context: PageContext, view: views.EntryView) -> None:
    context.heading(f"Ledger entry {view.entry}", (("Ledger", "/ledger"),))
    context.html("entry.html.j2", view=view)
