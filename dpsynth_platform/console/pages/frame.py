"""The frame of every page: who is here, where they are, where they can go, and what an error looks like.

What belongs here: header, navigation, the way back, the page's heading, and asking a read model on behalf of whoever is
signed in. What does not: what any one page says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from nicegui import ui
from starlette.concurrency import run_in_threadpool

from dpsynth_platform.console.identity import Identity, signed_in
from dpsynth_platform.console.pages.markup import ICON, PRODUCT, render, stylesheet
from dpsynth_platform.console.roles import ROLES, Action
from dpsynth_platform.foundation.errors import DpsynthError, NotAllowed, NotFound
from dpsynth_platform.foundation.settings import Settings

_View = TypeVar("_View")

SECTIONS = (
    ("Overview", "/"),
    ("Families", "/families"),
    ("Datasets", "/datasets"),
    ("Releases", "/releases"),
    ("Lineage", "/lineage"),
    ("Ledger", "/ledger"),
)
_MONTH = dt.timedelta(days=30)
_LAST_PAGE = 10**6
_SLOWEST = 60.0
"""Seconds that a page may take before it is given up; what verifies much can need many."""


@dataclass(frozen=True)
class Here:
    """One page as it is being made.

    Attributes:
        section: the name in the navigation that it belongs to.
    """

    settings: Settings
    request: Request
    section: str
    identity: Identity

    @property
    def asked(self) -> dict[str, str]:
        """What the address asks for after its question mark; of a name that comes twice the last."""
        return dict(self.request.query_params)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A number that the address asks for, within bounds; the default where it is none."""
        text = self.asked.get(name, "")
        return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 10 else default

    @property
    def page_number(self) -> int:
        """Which page of a long list the address asks for."""
        return self.number("page", 1, 1, _LAST_PAGE)

    def ticked(self, name: str, default: bool) -> bool:
        """A tick in a form. An empty form was not sent, and has the default."""
        return self.asked.get(name) == "yes" if "sent" in self.asked else default

    def text(self, template: str, **values: object) -> str:
        """A template's text; it may ask what this person may see."""
        return render(template, may=self.identity.may, Action=Action, settings=self.settings, **values)

    def html(self, template: str, **values: object) -> None:
        """A part of the page from a template."""
        ui.html(self.text(template, **values), sanitize=False)  # everything is escaped by `render`

    def heading(self, title: str, trail: Sequence[tuple[str, str]] = ()) -> None:
        """The page's title and heading, below the way back."""
        ui.page_title(f"{title} - {PRODUCT}")
        self.html("heading.html.j2", title=title, trail=trail)


async def shown(
    settings: Settings,
    request: Request,
    section: str,
    load: Callable[[Here], _View],
    build: Callable[[Here, _View], None],
) -> None:
    """Makes a page: its frame, what `load` reads (beside the server's other work), and what `build` says of it.

    What the library refuses is told in the page's place, in the library's own words, which are safe.
    """
    here = _framed(settings, request, section)
    try:
        view = await run_in_threadpool(load, here)
    except NotFound as error:
        _told(here, "Not found", error, 404)
    except NotAllowed as error:
        _told(here, "Not for your role", error, 403)
    except DpsynthError as error:
        _told(here, "This cannot be shown", error, 500 if error.code == "error" else 409)
    else:
        build(here, view)


def month_ago() -> str:
    """The day 30 days ago, of UTC."""
    return (dt.datetime.now(dt.UTC) - _MONTH).date().isoformat()


def page(path: str) -> ui.page:
    """A page at a path, with the settings that all have."""
    return ui.page(path, title=PRODUCT, favicon=ICON, response_timeout=_SLOWEST)


def _framed(settings: Settings, request: Request, section: str) -> Here:
    here_now = signed_in(request)
    here = Here(settings, request, section, here_now.identity)
    ui.add_css(stylesheet())
    with ui.context.client.layout:
        header = ui.element("header").classes("console-header")
    header.move(target_index=0)
    ui.skip_link("Skip to the content", target=ui.context.client.content)
    with header:
        ui.html(
            render(
                "header.html.j2",
                product=PRODUCT,
                sections=SECTIONS,
                section=section,
                name=here.identity.name,
                roles=[role for role in ROLES if role in here.identity.roles],
                csrf=here_now.csrf,
            ),
            sanitize=False,
        ).classes("console-bar")
    return here


def _told(here: Here, title: str, error: DpsynthError, status: int) -> None:
    ui.status_code(status)
    here.heading(title)
    here.html("error.html.j2", message=here.settings.shown(str(error)))
