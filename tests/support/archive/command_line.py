"""laredo-archive's command line, as a test runs it: in this process, if nothing is against it.

A process of its own costs a second of imports; tests/install starts the console script.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from laredo_archive.cli import main
from tests.support.postgres import Database
from tests.support.processes import completed

PROGRAM = Path(sys.executable).with_name("laredo-archive")


def run(
    *arguments: object, env: Mapping[str, str] | None = None, alone: bool = False, **more
) -> "subprocess.CompletedProcess[str]":
    command = [str(PROGRAM), *map(str, arguments)]
    if alone or more:
        return completed(command, env=env, **more)
    # click takes None for a variable that is to be missing.
    variables = {} if env is None else {**dict.fromkeys(os.environ), **env}
    done = CliRunner().invoke(main, command[1:], prog_name=PROGRAM.name, env=variables)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def printed(*arguments: object) -> list[str]:
    """Lines of a command that succeeds."""
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout_bytes.decode().split("\n")[:-1]


def rows(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


def lines(of: dict[bytes, bytes]) -> list[str]:
    return [line.decode() for line in of.values()]


def on_terminal(
    *arguments: object,
    columns: int = 100,
    term: str = "xterm-256color",
    only_stderr: bool = False,
    status: int | None = 0,
) -> str:
    """Output of a process of its own on a terminal, and its exit status, if one is wanted."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    stdout = subprocess.DEVNULL if only_stderr else theirs
    with subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=theirs,
        env=environment | {"TERM": term},
    ) as shown:
        os.close(theirs)
        drawn = _drawn_on(ours)
    assert status in (None, shown.returncode), drawn
    return drawn


def _drawn_on(terminal: int) -> str:
    """All that comes until the other end is closed."""
    text = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # EIO: the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(terminal)
    return text.decode()


def wrong_hash(directory: Path) -> None:
    file = directory / "epoch=3" / "snapshot-0_258.jsonl"
    file.write_bytes(file.read_bytes().replace(b"Ada", b"Eva"))


def users_in(database: Database) -> str:
    """A table with Ada in it; the database's history."""
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text, doc jsonb)")
        connection.execute("INSERT INTO users VALUES (1, 'Ada', NULL)")
        ((history,),) = connection.execute(
            "SELECT system_identifier || ':1:' || oid FROM pg_control_system(), pg_database"
            " WHERE datname = current_database()"
        ).fetchall()
    return str(history)
