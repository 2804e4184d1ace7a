"""``make demo``, shortened; and that its verdict can be no."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from examples.snapshotter import demo_workload
from examples.snapshotter.demo_proof import prove
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.column import Column
from laredo_model.position import History, Position
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
COLUMNS = 80
FIELDS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
)


def test_the_demo_proves_its_archive_equal(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    options = ["--seconds", "5", "--rows", "2000", "--directory", str(directory)]
    command = [sys.executable, "-m", "examples.snapshotter.demo", *options]
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, COLUMNS))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    running = subprocess.Popen(
        command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    # A terminal whose programs have ended can't be read.
    with contextlib.suppress(OSError):
        while some := os.read(ours, 1 << 16):
            shown += some
    os.close(ours)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    assert running.wait(PATIENCE_S) == 0, text
    for wanted in (
        "EQUAL: every row of the archive is PostgreSQL's",
        "laredo-archive ls",
        "kill -9 laredo-snapshotter",
        "kill -9 laredo-fanout",
        "TRUNCATE orders",
    ):
        assert wanted in text
    assert "None" not in text
    pictures, last = text.split("laredo demo: done")
    assert last.count("stopped, exit code 0") == 4 and "killed" in pictures
    archived = re.findall(r"rows (?:that it serves|in the archive) +([\d,]+) +([\d,]+)", last)
    assert archived[0] == archived[1]
    assert max(len(line) for line in pictures.splitlines() if str(tmp_path) not in line) <= COLUMNS
    for table in demo_workload.TABLES:
        assert (directory / "archive" / table / "manifest.json").exists()


@pytest.mark.parametrize(
    "disturb",
    drawn.first(
        1,
        [
            "UPDATE users SET name = 'other' WHERE id = 2",
            "DELETE FROM users WHERE id = 2",
            "INSERT INTO users VALUES (4, 'more')",
        ],
    ),
)
def test_the_verdict_tells_any_difference(tmp_path: Path, database: Database, disturb: str) -> None:
    archive = TableArchive.open([LocalDestination(tmp_path)], "public.users", key_prefix="users/")
    with archive.snapshot(
        position=Position(0x1000),
        history=History(1, 1, 1),
        columns=FIELDS,
        key_fields=["id"],
        formats=["jsonl"],
    ) as upload:
        lines = [b'{"id":%d,"name":"n%d"}' % (number, number) for number in (1, 2, 3)]
        upload.write([b"1", b"2", b"3"], lines)
        base = upload.finish(datetime.now(UTC))
    archive.commit_base(base, continues=False)
    archive.close()
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO users SELECT n, 'n' || n FROM generate_series(1, 3) n")
        assert prove(database.dsn, "users", tmp_path / "users").equal
        connection.execute(disturb.encode())
        assert not prove(database.dsn, "users", tmp_path / "users").equal
