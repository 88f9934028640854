"""URIs in contracts: whether one may hold a secret, and its name in lineage.

What belongs here: what sources and publication targets share. What does not: opening them.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

PARAMETERS = (
    "application_name",
    "connect_timeout",
    "host",
    "mode",
    "port",
    "service",
    "sslcert",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "uri",
)
"""Parameters of a URI that hold no secret; others are refused."""
S3_PARAMETERS = ("endpoint_override", "region", "scheme")
"""Further ones of S3, whose requests are signed. Others send a token, which would go to the host of a contract."""
KNOWN_PARAMETERS = f"{', '.join(PARAMETERS)}; of s3:// {', '.join(S3_PARAMETERS)}"

STORES = ("s3", "gs", "abfss")
"""Schemes of object stores."""
READABLE = (*STORES, "abfs", "gcs", "hdfs", "viewfs", "file")
"""Schemes by which Arrow finds files."""
_AZURE = ("az", "azure", "adl", "wasb", "wasbs")
_AZURE_PLACE = re.compile(
    r"[\w$-]+@([a-z0-9]+\.(dfs|blob)\.core\.windows\.net|onelake\.dfs\.fabric\.microsoft\.com)(/|\?|$)"
)
FOREIGN_ACCOUNT = (
    "uri: its host is no account of Azure's, and would get a token; accepted: "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
)
CATALOG = "default"
"""Name of an Iceberg catalog unless another one is declared."""


_PASSWORD = re.compile(r"(^|[\s;])(password|passwd|pwd)\s*=", re.IGNORECASE)
"""As in the connection strings of PostgreSQL and ODBC, which are no URIs."""


def local_path(uri: str) -> Path:
    """The path of a local table."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri)


def may_be_secret(text: str) -> bool:
    """Whether a text that stands anywhere in a contract is a URI that may hold a secret, or a connection string."""
    return bool(_PASSWORD.search(text)) or ("://" in text and has_credentials(text))


def has_credentials(uri: str) -> bool:
    """Whether a URI may hold a secret: libraries do not agree on what is a password if it has odd characters."""
    _, divided, rest = uri.partition("://")
    if _PASSWORD.search(uri):
        return True
    if not divided:
        return "@" in uri and ":" in uri and not uri.startswith("/")
    user, at, _ = rest.rpartition("@")
    query = rest.partition("?")[2].partition("#")[0]
    names = {part.partition("=")[0].lower() for part in re.split("[&;]", query) if part}
    token = bool(at) and uri.lower().startswith(("http://", "https://"))  # a name alone is one there
    known = {*PARAMETERS, *(S3_PARAMETERS if uri.lower().startswith("s3://") else ())}
    return token or bool(at and re.search("[:/?#\\[\\]]", user)) or not names <= known


def foreign_account(uri: str) -> bool:
    """Whether the host of an Azure URI is none of Microsoft's: Arrow sends its token to any."""
    scheme, _, rest = uri.partition("://")
    return scheme.lower() in ("abfs", "abfss") and _AZURE_PLACE.match(rest) is None


def named_stores(scheme: str) -> str:
    """The accepted schemes of object stores, for who has given another one."""
    azure = "; Azure's: abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, which names the account"
    return f"a URI of {', '.join(STORES)}{azure if scheme in _AZURE else ''}"


def database_place(uri: str, what: str) -> str:
    """A table of a database as lineage names it: `postgres://host:5432/db.schema.table`."""
    parts = urlsplit(uri)
    backend = parts.scheme.partition("+")[0]
    host = parts.netloc.rpartition("@")[2] or "localhost"
    scheme, port = ("postgres", ":5432") if backend == "postgresql" else (backend, "")
    host += "" if ":" in host else port
    return f"{scheme}://{host}/{parts.path.strip('/')}.{what}"


def catalog_place(uri: str, catalog: str | None, table: str) -> str:
    """A table of an Iceberg catalog as lineage names it."""
    return f"{uri.partition('?')[0].rstrip('/')}/{catalog or CATALOG}.{table}"
