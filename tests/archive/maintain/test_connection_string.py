"""Passwords are hidden wherever a connection string is shown, however it is written."""

import pytest

from laredo_archive.errors import DatabaseUnusable
from laredo_archive.maintain import compare_postgres
from laredo_archive.maintain.compare_postgres import Database
from laredo_fanout.source_config import Source

_STRINGS = (
    "postgresql://reader:hunter2@127.0.0.1:1/app",
    "postgresql://reader:hun%40ter2@127.0.0.1:1/app",
    "postgresql://reader@127.0.0.1:1/app?password=hunter2",
    "postgres://127.0.0.1:1/app?user=reader&sslpassword=hunter2&sslmode=disable",
    "host=127.0.0.1 port=1 user=reader password=hunter2",
    "host=127.0.0.1 port=1 user=reader password='hun ter2 \\' x'",
    "host=127.0.0.1 port=1 password = hunter2",
    "host=127.0.0.1 port=1 options='-c my.secret=hunter2'",
    "postgresql://reader:hun/ter2@127.0.0.1:1/app",
    "postgresql://reader:hunter2@127.0.0.1:1/app?passwrd=ter2",
    "host=127.0.0.1 port=1 hunter2",
    "host=127.0.0.1 port=hunter2",
    "host=127.0.0.1 port=1 password='hunter2",
    "hunter2",
)


@pytest.mark.parametrize("dsn", _STRINGS)
def test_no_password_is_shown(dsn: str) -> None:
    assert "ter2" not in compare_postgres.shown(dsn)
    with pytest.raises(DatabaseUnusable) as raised, Database.connected(dsn):
        pass
    assert "ter2" not in str(raised.value)
    try:
        source = Source(connection=dsn)
    except ValueError as refused:
        assert "ter2" not in "".join(error["msg"] for error in refused.errors())  # type: ignore[attr-defined]
    else:
        assert "ter2" not in f"{source!r}{source.model_dump_json()}"


def test_what_names_the_database_is_shown() -> None:
    shown = compare_postgres.shown("postgresql://reader:x@db.internal:5433/app?sslmode=require")
    assert sorted(shown.split()) == ["dbname=app", "host=db.internal", "port=5433", "user=reader"]
    assert compare_postgres.shown("") == "the default connection"
