"""Which password a database gets: only one that is kept for its host.

What belongs here: files of passwords, in the form of PostgreSQL's `.pgpass`, for any database, and the check of
`PGPASSWORD` and `MYSQL_PWD`. What does not: connecting (`database`, `release.postgresql_target`).

Contracts name hosts, and their editors have no password. So a password is sent only to the host that stands
beside it, and a file of any other form is not sent at all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.settings import has_mysql_password, host_of_pgpassword

if TYPE_CHECKING:
    import sqlalchemy as sa

FORM = "HOST:PORT:DATABASE:USER:PASSWORD"
_PORTS = {"postgresql": "5432", "mysql": "3306", "mariadb": "3306", "mssql": "1433", "oracle": "1521"}
_MYSQL = ("mysql", "mariadb")
_WITHOUT_LIBPQ = (*_MYSQL, "mssql", "oracle", "sqlite")
_FIELD = re.compile(r"((?:[^:\\]|\\.)*):", re.DOTALL)


def password_for(url: sa.URL, file: Path) -> str:
    """The password of the first line of a file that fits a URL.

    Raises:
        SourceError: the file cannot be read, or no line of the form `FORM` fits; nothing of it is shown.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        problem = f"no line of it is for {_host(url) or 'no host'}, its port, database and user"
    except (OSError, UnicodeError) as error:
        lines, problem = [], file_problem(error) if isinstance(error, OSError) else "it is not UTF-8"
    port = _only(url.port, url.query.get("port")) or _PORTS.get(url.get_backend_name(), "")
    wanted = (_host(url), port, url.database or "", url.username or "")
    for line in lines:
        fields = [_plain(found) for found in _FIELD.findall(line)[:4]]
        if len(fields) == 4 and all(given in ("*", value) for given, value in zip(fields, wanted, strict=True)):
            return _plain(line[sum(len(match[0]) for match in list(_FIELD.finditer(line))[:4]) :])
    raise SourceError(f"source.password_file: {file}: {problem}; accepted: a file with a line {FORM}, as ~/.pgpass has")


def check_environment(url: sa.URL) -> None:
    """Raises `SourceError` if a password of the environment would be sent to a host that it does not name."""
    service, backend = url.query.get("service"), url.get_backend_name()
    host = f"that of the service {service}" if service else _host(url)
    # Other databases than PostgreSQL speak its protocol by its own client, too.
    own = None if backend in _WITHOUT_LIBPQ else host_of_pgpassword()
    if own is not None and host not in ("", own):
        raise SourceError(
            f"the variable PGPASSWORD would be sent to {host}, and it does not say that it is for that host; accepted: "
            "PGHOST with the same host beside it, or ~/.pgpass or PGPASSFILE instead"
        )
    if backend in _MYSQL and has_mysql_password():
        raise SourceError(
            "the variable MYSQL_PWD would be sent to the host of the URL, and it does not say for which it is; "
            "accepted: source.password_file instead"
        )


def _host(url: sa.URL) -> str:
    """The host that a driver takes; empty: its own default."""
    return _only(url.host, url.query.get("host"))


def _only(*given: object) -> str:
    """What is given; several together, of which drivers take different ones, are no host and no port."""
    return ",".join(str(each) for each in given if each)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
