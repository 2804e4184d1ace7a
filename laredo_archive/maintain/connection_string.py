"""Parses PostgreSQL's connection strings with libpq, and shows them without secrets.

A password may be in several places, and where a string is mistyped anywhere. So only what names the
database is shown, and libpq's error for a string that it can't read, never.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
"""

import re
from typing import Any

import psycopg
from psycopg import conninfo

_SHOWN = ("host", "hostaddr", "port", "dbname", "user")
_PORTS = re.compile(r"[0-9, ]*")

UNREADABLE = "not a PostgreSQL connection; write postgresql://user@host:5432/database"


def parsed(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string or URI.

    :raises ValueError: if it is neither; the message has nothing of it.
    """
    try:
        parameters: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ValueError(UNREADABLE) from None
    if not _PORTS.fullmatch(str(parameters.get("port") or "")):
        # A password with a slash: libpq would say what it took for the port.
        raise ValueError(f"{UNREADABLE}; in a password write %2F for /, %40 for @, %3A for :")
    return parameters


def shown(dsn: str) -> str:
    """The parameters without a secret: host, database and user."""
    try:
        parameters = parsed(dsn)
    except ValueError:
        return "the connection string"
    given = {name: parameters[name] for name in _SHOWN if parameters.get(name)}
    return conninfo.make_conninfo("", **given) or "the default connection"
