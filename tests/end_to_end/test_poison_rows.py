"""Rows that something may choke on reach the archive, by copy and by stream, and are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.writer.archiving_programs import Named, configured

DEEP = 5000
KEYS = [
    "",
    " ",
    "k" * 511,
    "k" * 512,
    "k" * 2000,
    "é" * 300,
    "line\nbreak",
    "\u2028\u2029\x85",
    'quo"te\\',
    '["a","b"]',
    "null",
    "\x01\x1f\x7f",
    "\U0001f600\ufeff\uffff",
    "\\u0000",
    "../..",
    "1e999",
]
JSON = [
    "1e99999999999999999999",
    "-1e-99999999999999999999",
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
    r'"\ud800"',
    r'{"\udfff": "\ud83d"}',
    r'"\u0000"',
    "123456789012345678901234567890",
    "0." + "123456789" * 30,
    '{"a": 1, "a": 2, "": {}}',
    "  [1 ,\r\n\t2]  ",
    '"\u2028\u2029<\x7f"',
    "-0",
    "-0.0E+5",
    '"' + "x" * 1_000_000 + '"',
]
TEXTS = ["\u2028", "\x01" * 1000, "é" * 500_000, '"\\' * 1000, "\ufffe\uffff", "", "\\x00", "\r\n"]
NUMERICS = ["123456789012345678901234567890", "1e-1000", "-0.00", "NaN", "9" * 5000, "Infinity"]
FLOATS = ["-0", "5e-324", "1.7976931348623157e308", "NaN", "-Infinity", "0.1"]
BINARY = ["\\x", "\\x00", "\\x" + "00ff5c22" * 250_000, "\\x5c"]
STAMPS = ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"]

TABLE = Named("public", "poison", "poison/")


def _rows(tag: str) -> list[tuple[str, str, str, str, str, str, str]]:
    """Every value at least once; the keys of different tags differ."""
    count = max(map(len, (KEYS, JSON, TEXTS, NUMERICS, FLOATS, BINARY, STAMPS)))
    columns = (JSON, TEXTS, NUMERICS, FLOATS, BINARY, STAMPS)
    return [
        (f"{tag}{KEYS[n % len(KEYS)]}", *(column[n % len(column)] for column in columns))
        for n in range(count)
    ]


def _insert(database: Database, tag: str) -> None:
    with database.connect() as owner:
        owner.cursor().executemany(
            "INSERT INTO poison VALUES (%s, %s, %s, %s, %s, %s, %s)", _rows(tag)
        )


@pytest.mark.thorough
@on_versions(15, 18)
def test_poison_rows_are_archived_and_proven_equal(tmp_path: Path, database: Database) -> None:
    database.run(
        "CREATE TABLE poison (k text PRIMARY KEY, j json, t text, n numeric, f float8,"
        " b bytea, s timestamp)"
    )
    _insert(database, "")
    programs = configured(tmp_path, database, [TABLE])
    with programs.running():
        programs.equal(TABLE)
        _insert(database, "streamed ")
        with database.connect() as owner:
            owner.execute("UPDATE poison SET k = k || 'moved', j = '{}' WHERE length(k) > 400")
            owner.execute("UPDATE poison SET f = 0 WHERE k LIKE '%line%'")
            owner.execute("DELETE FROM poison WHERE k IN ('', 'streamed null', 'null')")
            count = int(str((owner.execute("SELECT count(*) FROM poison").fetchone() or (0,))[0]))
        wait_until(lambda: _archived_rows(programs) == count, "all are archived")
        programs.equal(TABLE)
        assert programs.server.is_running() and programs.writer.is_running()
    for program in (programs.server, programs.writer):
        assert "Traceback" not in program.log.read_text(errors="replace")


def _archived_rows(programs) -> int:  # type: ignore[no-untyped-def]
    archive = programs.archive(TABLE)
    return sum(len(lines) for _, lines in archive.rows(archive.boundary()))
