"""The frame of every page: who is signed in, navigation, the page's heading, and what an error looks like.

What belongs here: registering a page, and reading a view on behalf of the signed-in person. What does not: what any one
page says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import Request
from nicegui import ui
from starlette.concurrency import run_in_threadpool

from dpsynth_platform.console.identity import Identity, signed_in
from dpsynth_platform.console.pages.markup import ICON, PRODUCT, plain, render, stylesheet
from dpsynth_platform.console.roles import ROLES, Action
from dpsynth_platform.foundation.errors import DpsynthError, NotAllowed, NotFound
from dpsynth_platform.foundation.settings import Settings

_Arguments = ParamSpec("_Arguments")
_View = TypeVar("_View")

_LISTS = ("Families", "Datasets", "Releases", "Lineage", "Ledger")
SECTIONS = (("Overview", "/"), *((name, f"/{name.lower()}") for name in _LISTS))
_MONTH = dt.timedelta(days=30)
_LAST_PAGE = 10**6
_SLOWEST = 60.0
"""Seconds after which a page is given up; pages that verify much can need many."""


@dataclass(frozen=True)
class PageContext:
    """One request of a page; `section` is the page's name in the navigation."""

    settings: Settings
    request: Request
    section: str
    identity: Identity

    @property
    def path(self) -> Mapping[str, Any]:
        return self.request.path_params

    @property
    def query(self) -> dict[str, str]:
        """The address's query parameters; the last value of a repeated one."""
        return dict(self.request.query_params)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A query parameter as a number within bounds; the default if it is none."""
        text = self.query.get(name, "")
        return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 10 else default

    @property
    def page_number(self) -> int:
        return self.number("page", 1, 1, _LAST_PAGE)

    def ticked(self, name: str, default: bool) -> bool:
        """A checkbox of a form; the default if the form was not sent."""
        return self.query.get(name) == "yes" if "sent" in self.query else default

    def read(
        self,
        view: Callable[Concatenate[Settings, frozenset[Action], _Arguments], _View],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _View:
        """A view as the signed-in person may see it."""
        return view(self.settings, self.identity.actions, *args, **kwargs)

    def text(self, template: str, **values: object) -> str:
        """A template's text; the template can check what this person may see."""
        return render(template, may=self.identity.may, Action=Action, settings=self.settings, **values)

    def html(self, template: str, **values: object) -> None:
        ui.html(self.text(template, **values), sanitize=False)  # everything is escaped by `render`

    def heading(self, title: str, trail: Sequence[tuple[str, str]] = ()) -> None:
        """Sets the page's title and adds its heading below the links of `trail`."""
        ui.page_title(f"{title} - {PRODUCT}")
        self.html("heading.html.j2", title=title, trail=trail)


def add_page(
    settings: Settings,
    section: str,
    path: str,
    load: Callable[[PageContext], _View],
    build: Callable[[PageContext, _View], None],
) -> None:
    """Registers a page: `load` reads its view in a worker thread, `build` adds its content below the frame.

    A refusal by the library takes the place of the content, in the library's own words, which are safe.
    """

    @ui.page(path, title=PRODUCT, favicon=ICON, response_timeout=_SLOWEST)
    async def show(request: Request) -> None:
        context = _framed(settings, request, section)
        try:
            view = await run_in_threadpool(load, context)
        except NotFound as error:
            _show_error(context, "Not found", error, 404)
        except NotAllowed as error:
            _show_error(context, "Not for your role", error, 403)
        except DpsynthError as error:
            _show_error(context, "This cannot be shown", error, 500 if error.code == "error" else 409)
        else:
            build(context, view)


def month_ago() -> str:
    """The day 30 days ago, in UTC."""
    return (dt.datetime.now(dt.UTC) - _MONTH).date().isoformat()


def _framed(settings: Settings, request: Request, section: str) -> PageContext:
    session = signed_in(request)
    identity = session.identity
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
                name=identity.name,
                roles=[role for role in ROLES if role in identity.roles],
                csrf=session.csrf,
            ),
            sanitize=False,
        ).classes("console-bar")
    return PageContext(settings, request, section, identity)


def _show_error(context: PageContext, title: str, error: DpsynthError, status: int) -> None:
    ui.status_code(status)
    context.heading(title)
    context.html("error.html.j2", message=plain(context.settings.shown(str(error))))
