"""Error answers of the console: problem JSON (RFC 9457) for programs, a plain page for people.

What belongs here: their form, and the status of each error. What does not: raising them. Their texts are this
platform's and safe; of any other error the type is logged and nothing is shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from dpsynth_platform.foundation import errors

MEDIA_TYPE = "application/problem+json"
_STATUS: tuple[tuple[type[errors.DpsynthError], int], ...] = (
    (errors.SignedOut, 401),
    (errors.NotAllowed, 403),
    (errors.ReleaseRefused, 409),
    (errors.BudgetExceeded, 409),
    (errors.NotFound, 404),
    (errors.LineageRefused, 409),
    (errors.ContractError, 422),
    (errors.ConfigurationError, 422),
    (errors.LedgerError, 409),
)


class Problem(HTTPException):
    """An error answer.

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
        kind = f"urn:dpsynth-platform:problem:{self.code}"
        document = {"type": kind, "title": self.code, "status": self.status, "detail": self.detail}
        return JSONResponse(document, self.status, self.headers, media_type=MEDIA_TYPE)

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


def problem_of(error: errors.DpsynthError, shown: Callable[[str], str]) -> Problem:
    """The answer for one of the library's errors; `shown` removes this machine's paths from its text."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 409)
    return Problem(status, error.code, shown(str(error)))


UNEXPECTED = Problem(500, "unexpected", "the console's log names the error")
