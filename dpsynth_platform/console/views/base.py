"""What all read models share: their JSON form, and asking whether somebody may see a part.

What belongs here: the two, and parts that several pages show alike. What does not: anything of one page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dpsynth_platform.console.roles import Action
from dpsynth_platform.foundation.errors import NotAllowed

_Part = TypeVar("_Part")

PER_PAGE = 25
"""Rows of a long list that one page shows."""


@dataclass(frozen=True)
class View:
    """A read model: plain values, and other read models."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Paged(View):
    """Where in a long list a page is.

    Attributes:
        page: from 1 on.
        pages: how many there are, at least 1.
        total: how many items the whole list has.
    """

    page: int
    pages: int
    total: int

    @classmethod
    def of(cls, total: int, page: int, per_page: int = PER_PAGE) -> Paged:
        """The page that was asked for, or the nearest that there is."""
        pages = max(1, -(-total // per_page))
        return cls(min(max(page, 1), pages), pages, total)

    def slice(self, per_page: int = PER_PAGE) -> slice:
        """The places of its items in the whole list."""
        return slice((self.page - 1) * per_page, self.page * per_page)


def require(allowed: Collection[Action], action: Action) -> None:
    """Raises `NotAllowed` where an action is not among those that somebody may do."""
    if action not in allowed:
        raise NotAllowed(f"{action.value}: none of your roles allows this")


def part(allowed: Collection[Action], action: Action, make: Callable[[], _Part]) -> _Part | None:
    """A part of a page, made only for those who may see it."""
    return make() if action in allowed else None
