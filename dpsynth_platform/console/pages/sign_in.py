"""The page at which people sign in: plain HTML without a script, for whoever is nobody yet.

What belongs here: its words. What does not: checking anybody (`access`). It has no widget and no websocket, since those
are for people with a session.
"""

from __future__ import annotations

from urllib.parse import quote

from dpsynth_platform.console.pages.markup import ICON, PRODUCT, render, stylesheet


def sign_in_page(
    *, csrf: str, onward: str, error: str = "", passwords: bool = True, provider: str | None = None
) -> str:
    """The whole page.

    Args:
        csrf: token that the form sends back.
        onward: address within the console that is shown afterwards.
        error: why the last attempt failed, in words that tell no more than they may.
        passwords: whether local users can sign in.
        provider: name of the OpenID Connect provider that can be asked instead, if there is one.
    """
    return render(
        "sign_in.html.j2",
        product=PRODUCT,
        icon=quote(ICON),
        style=stylesheet(),
        csrf=csrf,
        onward=onward,
        error=error,
        passwords=passwords,
        provider=provider,
    )
