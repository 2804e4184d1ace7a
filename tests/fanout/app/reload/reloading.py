"""A running server whose configuration file is written anew, and writers that don't stop for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.fanout_program import Fanout

_TABLES = "tables = ["


def rewrite(server: Fanout, tables: str, extra: str = "") -> None:
    """Other tables in its configuration file, and what is put behind them."""
    file = server.program.config
    before = file.read_text().partition(_TABLES)[0]
    file.write_text(f"{before}{_TABLES} {tables} ]\n{extra}")


def reload(server: Fanout) -> dict[str, Any]:
    """POST /reload; its answer."""
    answered = httpx.post(f"{server.program.http}/reload", timeout=PATIENCE_S)
    assert answered.status_code == 200, answered.text
    return answered.json()


def is_live(server: Fanout, table: str) -> bool:
    """True if clients are served the table's rows."""
    shown = server.status["tables"].get(table)
    return shown is not None and shown["status"] == "live"


def rows(database: Database, table: str) -> dict[bytes, bytes]:
    """PostgreSQL's rows: the lines of ``id`` and ``v`` by key."""
    with database.connect() as connection:
        found = connection.execute(f"SELECT id, v FROM {table}".encode()).fetchall()
    return {b"%d" % row[0]: b'{"id":%d,"v":"%s"}' % (row[0], str(row[1]).encode()) for row in found}


@contextmanager
def written(database: Database, *tables: str) -> Iterator[None]:
    """Transactions over all of these tables, one after the other, until the block ends."""
    ended, begun, failed = threading.Event(), threading.Event(), []

    def write() -> None:
        try:
            with database.connect() as connection:
                number = 0
                while not ended.is_set():
                    number += 1
                    _transaction(connection, tables, number)
                    begun.set()
        except Exception as error:  # noqa: BLE001  # shown by the test
            failed.append(error)
            begun.set()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        wait_until(begun.is_set, "it is written")
        yield
    finally:
        ended.set()
        writing.join(PATIENCE_S)
    assert not failed, failed


def _transaction(connection: Any, tables: tuple[str, ...], number: int) -> None:
    with connection.transaction():
        for table in tables:
            connection.execute(f"INSERT INTO {table} VALUES ({1_000_000 + number}, 'new')")
            connection.execute(f"UPDATE {table} SET v = 'u{number}' WHERE id = {number % 500}")
            connection.execute(f"DELETE FROM {table} WHERE id = {1_000_000 + number - 50}")
