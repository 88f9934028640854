"""Answers of the console that are no success: problem JSON (RFC 9457) for programs, a plain page for people.

What belongs here: their form, and which error has which status. What does not: raising them. Their words are ours and
safe; of an error that is not ours its type is logged and nothing is told.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from dpsynth_platform.foundation.errors import (
    BudgetExceeded,
    ConfigurationError,
    ContractError,
    DpsynthError,
    LedgerError,
    LineageRefused,
    NotAllowed,
    NotFound,
    ReleaseRefused,
    SignedOut,
)

MEDIA_TYPE = "application/problem+json"
_STATUS: tuple[tuple[type[DpsynthError], int], ...] = (
    (SignedOut, 401),
    (NotAllowed, 403),
    (ReleaseRefused, 409),
    (BudgetExceeded, 409),
    (NotFound, 404),
    (LineageRefused, 409),
    (ContractError, 422),
    (ConfigurationError, 422),
    (LedgerError, 409),
)


class Problem(HTTPException):
    """An answer that is no success.

    Attributes:
        code: a short stable word.
        detail: what is wrong and what is accepted.
    """

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.status = status
        self.code = code

    def response(self) -> Response:
        """For programs."""
        return JSONResponse(self.to_json(), self.status, self.headers, media_type=MEDIA_TYPE)

    def to_json(self) -> dict[str, str | int]:
        """Its members."""
        kind = f"urn:dpsynth-platform:problem:{self.code}"
        return {"type": kind, "title": self.code, "status": self.status, "detail": self.detail}

    def page(self) -> Response:
        """For people."""
        title = HTTPStatus(self.status).phrase
        return HTMLResponse(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
            f"<body><main><h1>{title}</h1><p>{html.escape(self.detail)}</p>"
            '<p><a href="/">Overview</a></p></main></body></html>',
            self.status,
            self.headers,
        )


def problem_of(error: DpsynthError, shown: Callable[[str], str]) -> Problem:
    """What one of our errors is answered with.

    Args:
        shown: makes a text one for people who need not know where on this machine things are.
    """
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 409)
    return Problem(status, error.code, shown(str(error)))


UNEXPECTED = Problem(500, "unexpected", "the console's log names the error")
