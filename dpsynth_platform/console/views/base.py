"""What all views share: pages of long lists, and checking the action that a part needs.

What belongs here: what the views of several pages use. What does not: the content of any page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from dpsynth_platform.console.roles import Action
from dpsynth_platform.foundation.errors import NotAllowed

_Item = TypeVar("_Item")
_Part = TypeVar("_Part")
_View = TypeVar("_View")

PER_PAGE = 25
"""Rows of a long list that one page shows."""


@dataclass(frozen=True)
class Paged:
    """The position of a page in a list of `total` items; there is at least one page."""

    page: int
    pages: int
    total: int


def page_of(items: Sequence[_Item], page: int) -> tuple[tuple[_Item, ...], Paged]:
    """The items of the requested page, or of the nearest that exists."""
    pages = max(1, -(-len(items) // PER_PAGE))
    page = min(max(page, 1), pages)
    return tuple(items[(page - 1) * PER_PAGE : page * PER_PAGE]), Paged(page, pages, len(items))


def view_of(kind: type[_View], *sources: object, **values: Any) -> _View:
    """A view with `values`; its other fields are the attributes of the same names of the first source that has them."""
    for name in {field.name for field in fields(kind)} - values.keys():  # type: ignore[arg-type]
        values[name] = getattr(next(source for source in sources if hasattr(source, name)), name)
    return kind(**values)


def require(allowed: Collection[Action], action: Action) -> None:
    """Raises `NotAllowed` if an action is not among the allowed ones."""
    if action not in allowed:
        raise NotAllowed(f"{action.value}: none of your roles allows this")


def part(allowed: Collection[Action], action: Action, make: Callable[[], _Part]) -> _Part | None:
    """A part of a page, made only for actors who may see it."""
    return make() if action in allowed else None
