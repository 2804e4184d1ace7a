"""Every command that README, quickstart and clients print is run in its order, as it is printed.

A page's blocks run in a directory of the test, with a real PostgreSQL and the real programs. A
host, a port, a path or a position that can't be the printed one is replaced (SUBSTITUTED); what no
test can run is named with the reason (NOT_RUN).
"""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import orjson
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.client import FanoutClient
from tests.support.aws import REGION, AwsServer
from tests.support.forked import SCRIPTS, Forked
from tests.support.postgres import Database, data_directory
from tests.support.processes import BIN, PATIENCE_S, completed, free_port, wait_until
from tests.support.repository import DOCS, ROOT
from tests.support.server.fanout_program import fanout, started
from tests.support.writer.archiving_programs import Named, configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README, QUICKSTART, CLIENTS = ROOT / "README.md", DOCS / "quickstart.md", DOCS / "clients.md"
READERS = DOCS / "readers.md"
RUN = {"console", "python", "hocon"}
"""Languages of blocks that are run; one without a language is a drawing, or a part of a file."""
SUBSTITUTED = {
    "localhost:4002": "the server's gRPC port",
    "localhost:4003": "its port for Connect",
    "fanout.internal:4003": "the same",
    "localhost:8082": "the writer's HTTP port",
    "5433": "PostgreSQL's port",
    "/tmp/laredo-try": "PostgreSQL's data directory",
    "postgresql://reader@db/app": "the database of the test",
    "/var/lib/myapp/cache": "a directory of the test",
    "0/1A2B3C": "the archive's head",
    "/srv/archive": "a directory of the test, which the writer archives into",
    "'users.parquet'": "that file in the test's directory",
    "s3://company-archive/laredo/": "a bucket of moto's, which gets the archive",
}
"""Text of the pages that a test replaces, and what by."""
INSTALLS = "it installs from a package index; tests/install installs and runs what the tests need"
NOT_RUN = {
    "make demo": "it installs from a package index; tests/end_to_end/test_demo.py runs the demo",
    "python3 -m venv .venv": INSTALLS,
    ". .venv/bin/activate": "there is no such environment; the scripts of the tests' are in PATH",
    "pip install .": INSTALLS,
    "pip install '.[aws,parquet]'": INSTALLS,
    "pip install 'laredo-snapshotter[parquet,aws]'": INSTALLS,
    "pip install --no-deps laredo-snapshotter": INSTALLS,
    "pip install orjson pyarrow zlib-ng zstandard": (
        "tests/archive/arrow/test_table.py reads with these alone"
    ),
}
"""Printed commands that no test runs, and why."""
THOROUGH = {"promtool", "prometheus"}
"""Programs that only `make test-all` has."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    file: str
    """The file that it is the content of, as the line before names it; or empty."""


def blocks(page: Path) -> list[Block]:
    """The page's blocks that have a language."""
    found, before = [], ""
    lines = iter(page.read_text().splitlines(keepends=True))
    for line in lines:
        if line.startswith("```"):
            language = line.strip().removeprefix("```")
            text = "".join(iter(lines.__next__, "```\n"))
            name = re.search(r"`([\w.]+)`:$", before)
            if language:
                found.append(Block(language, text, name[1] if name else ""))
        elif line.strip():
            before = line.strip()
    return found


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, without their comments, and what it shows below each."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines()
        end = next((n for n, line in enumerate(lines) if not line.endswith(("|", "\\"))), 0)
        command = re.sub(r"\s{2,}# .*", "", "\n".join(lines[: end + 1]))
        yield command, "\n".join(lines[end + 1 :])


class Terminal:
    """Somebody who follows a page, in a directory of the test."""

    def __init__(self, directory: Path, replaced: Mapping[str, str]) -> None:
        assert set(replaced) <= set(SUBSTITUTED)
        self.directory = directory
        self.replaced = dict(replaced)
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.ready: dict[str, Callable[[], bool]] = {}
        """For a program that goes on: whether the reader can go on, too."""
        self.instead = {"export": self._export, "prometheus": self._prometheus}
        """By a command's first word: its output, if it isn't simply run."""
        self.settings: dict[str, str] = {}
        """By file: ports, and what else the page leaves to a default."""
        self.programs: dict[str, Forked] = {}
        self.names: dict[str, Any] = {}
        """Of the page's Python."""
        self.before_spark: Callable[[str], str] | None = None
        """Prepares Python that needs Spark; None: there is no Spark."""

    def follow(self, page: Path) -> None:
        """Run all blocks of the page."""
        for block in blocks(page):
            text = self._replace(block.text)
            if block.language == "console":
                for command, shown in commands(text):
                    output = self.run(command)
                    assert shown.strip() in output, (command, output)
            elif block.file:
                text += self.settings.get(block.file, "")
                (self.directory / block.file).write_text(text)
            else:
                self.execute(text)

    def run(self, command: str) -> str:
        """Run a command, which must succeed; its output."""
        word = command.split(maxsplit=1)[0]
        if command in NOT_RUN or (word in THOROUGH and self.before_spark is None):
            return ""
        if word in self.instead:
            return self.instead[word](command)
        if word in self.ready and re.fullmatch(r"\S+ --config \S+", command):
            self.start(command)
            return ""
        if word in SCRIPTS and "|" not in command:
            output = self.directory / "output"
            output.unlink(missing_ok=True)
            forked = self._fork(command, output)
            assert forked.wait(PATIENCE_S) == 0, (command, output.read_text())
            return output.read_text()
        return self.shell(command)

    def shell(self, command: str, user: str | None = None) -> str:
        """Run it in a shell, and press Enter when it asks; its output."""
        done = completed(
            ["bash", "-ec", command],
            cwd=self.directory,
            env=self.environment,
            user=user,
            input="\n",
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, command: str) -> None:
        """Start a program that goes on, and wait until it is ready."""
        word = command.split(maxsplit=1)[0]
        self.log(word).touch()
        program = self._fork(command, self.log(word))
        self.programs[word] = program

        def ready() -> bool:
            assert program.poll() is None, self.log(word).read_text()
            return self.ready[word]()

        wait_until(ready, f"{word} is ready")

    def execute(self, text: str) -> None:
        """Run Python; a client that is only made is tried too."""
        if "laredo_spark" in text:
            if self.before_spark is None:
                return
            text = self.before_spark(text)
        *before, last = ast.parse(text).body
        exec(compile(ast.Module(before, []), "page", "exec"), self.names)
        if isinstance(last, ast.Expr):
            made = eval(compile(ast.Expression(last.value), "page", "eval"), self.names)
            if isinstance(made, FanoutClient):
                with made:
                    made.await_ready(timeout=PATIENCE_S)
        else:
            exec(compile(ast.Module([last], []), "page", "exec"), self.names)

    def _export(self, command: str) -> str:
        name, _, value = command.removeprefix("export ").partition("=")
        self.environment[name] = value
        return ""

    def _prometheus(self, command: str) -> str:
        """Run it until it is ready; its port and its data are the test's."""
        port, log = free_port(), self.log("prometheus")
        own = f" --web.listen-address=127.0.0.1:{port} --storage.tsdb.path={self.directory}/data"
        with log.open("wb") as output:
            running = subprocess.Popen(
                shlex.split(command + own), cwd=self.directory, env=self.environment, stderr=output
            )
        try:
            wait_until(lambda: "Server is ready" in log.read_text(), "prometheus is ready")
        finally:
            running.terminate()
            running.wait(PATIENCE_S)
        return log.read_text()

    def log(self, program: str) -> Path:
        return self.directory / f"{program}.log"

    def stop(self) -> None:
        """Press Ctrl-C in each terminal."""
        try:
            for program in reversed(self.programs.values()):
                program.send_signal(signal.SIGINT)
                program.wait(PATIENCE_S)
        finally:
            for program in self.programs.values():
                program.kill()

    def _fork(self, command: str, output: Path) -> Forked:
        with_values = re.sub(r"\$(\w+)", lambda name: self.environment[name[1]], command)
        script, *arguments = shlex.split(with_values)
        return Forked(script, arguments, output, output, self.environment, directory=self.directory)

    def _replace(self, text: str) -> str:
        for printed, real in self.replaced.items():
            text = text.replace(printed, real)
        return text


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://localhost:{port}/health/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def head(archive: Path) -> str:
    """Position of the archive's head; empty before its base."""
    manifest = archive / "manifest.json"
    found = orjson.loads(manifest.read_bytes())["head_position"] if manifest.exists() else None
    return found or ""


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("grpc", "connect", "http", "writer", "postgres")}


def test_quickstart(tmp_path: Path, ports: dict[str, int]) -> None:
    archive = tmp_path / "archive" / "users"
    grpc, connect = ports["grpc"], ports["connect"]
    with ExitStack() as stack:
        data = stack.enter_context(data_directory())
        user = "pgserver" if os.geteuid() == 0 else None  # PostgreSQL doesn't run as root
        if user is not None:
            shutil.chown(data.parent, user)
        terminal = Terminal(
            tmp_path,
            {
                "localhost:4002": f"localhost:{grpc}",
                "localhost:4003": f"localhost:{connect}",
                "5433": str(ports["postgres"]),
                "/tmp/laredo-try": str(data),
            },
        )
        programs = EmbeddedPostgres(data).bin
        terminal.environment["PATH"] = f"{programs}:{terminal.environment['PATH']}"
        terminal.settings = {
            "fanout.conf": f"fanout.grpc.port = {grpc}\nhttp.port = {ports['http']}\n",
            "snapshotter.conf": f"snapshotter.http.port = {ports['writer']}\n",
        }
        terminal.ready = {
            "laredo-fanout": lambda: is_ready(ports["http"]),
            "laredo-snapshotter": lambda: (
                '"artifact committed"' in terminal.log("laredo-snapshotter").read_text()
            ),
        }

        def as_postgres(command: str) -> str:
            return terminal.shell(f"cd {data.parent}; {command}", user)

        def sleep(_: str) -> str:
            base = head(archive)
            wait_until(lambda: head(archive) != base, "a diff is in the archive")
            return ""

        def curl(command: str) -> str:
            return _connected(terminal, connect, command)

        terminal.instead |= {
            "initdb": as_postgres,
            "pg_ctl": as_postgres,
            "sleep": sleep,
            "printf": curl,
        }
        stack.callback(as_postgres, f"pg_ctl --pgdata={data} stop --mode=immediate")
        stack.callback(terminal.stop)
        terminal.follow(QUICKSTART)


UPDATE = "UPDATE users SET name = 'changed again' WHERE id = 9"


def _connected(terminal: Terminal, port: int, command: str) -> str:
    """Let curl show that the port is closed, then a table, and then a change."""
    assert "curl: (7)" in completed(["bash", "-c", command]).stderr
    with (terminal.directory / "fanout.conf").open("a") as file:
        file.write(f"fanout.connect.port = {port}\n")
    server = terminal.programs["laredo-fanout"]
    server.send_signal(signal.SIGINT)
    assert server.wait(PATIENCE_S) == 0
    terminal.start("laredo-fanout --config fanout.conf")
    shown = terminal.directory / "shown"
    with shown.open("wb") as output:
        call = subprocess.Popen(["bash", "-c", command], stdout=output, start_new_session=True)
    try:
        for name in ("user 10", "changed again"):
            text = f'"name":"{name}"'
            wait_until(
                lambda text=text: text in shown.read_text(errors="replace").replace('": "', '":"'),  # type: ignore[misc]
                f"{text} is shown",
            )
            terminal.shell(f'psql $DATABASE_URL -c "{UPDATE}"')
    finally:
        os.killpg(call.pid, signal.SIGTERM)
        call.wait(PATIENCE_S)
    return ""


@pytest.fixture
def readme(tmp_path: Path, database: Database, ports: dict[str, int]) -> Iterator[Terminal]:
    """The README's reader, with a database that has its tables."""
    database.run(
        "CREATE TABLE config_document (id bigint PRIMARY KEY, body jsonb)",
        "INSERT INTO config_document SELECT n, '{}' FROM generate_series(1, 9) n",
        "CREATE TABLE orders (id bigint PRIMARY KEY)",
    )
    grpc = f"localhost:{ports['grpc']}"
    terminal = Terminal(
        tmp_path,
        {
            "localhost:4002": grpc,
            "localhost:8082": f"localhost:{ports['writer']}",
            "postgresql://reader@db/app": shlex.quote(database.dsn),
        },
    )
    examples = tmp_path / "examples" / "snapshotter"
    shutil.copytree(ROOT / "examples" / "snapshotter", examples)
    shutil.copytree(ROOT / "examples" / "prometheus", tmp_path / "examples" / "prometheus")
    server, writer = ports["http"], ports["writer"]
    own = {
        "fanout.conf": f"fanout.grpc.port = {ports['grpc']}\nhttp.port = {server}\n",
        "minimal.conf": f'snapshotter {{ source.server = "{grpc}", http.port = {writer} }}\n',
    }
    for name, settings in own.items():
        with (examples / name).open("a") as file:
            file.write(settings)
    terminal.environment["DATABASE_URL"] = database.dsn
    archive = tmp_path / "archive" / "config_document"

    def has_base() -> bool:
        terminal.replaced["0/1A2B3C"] = head(archive)
        return head(archive) != ""

    terminal.ready = {
        "laredo-fanout": lambda: is_ready(ports["http"]),
        "laredo-snapshotter": has_base,
    }
    yield terminal
    terminal.stop()


def test_readme(readme: Terminal) -> None:
    readme.follow(README)


@pytest.mark.thorough
def test_readme_with_spark_and_prometheus(
    readme: Terminal, spark: "SparkSession", moto: AwsServer
) -> None:
    programs = os.environ.get("LAREDO_TEST_PROMETHEUS", str(ROOT / "build/prometheus/usr/bin"))
    readme.environment["PATH"] = f"{programs}:{readme.environment['PATH']}"
    readme.names["spark"] = spark
    bucket, begins = moto.new_bucket(), "s3://company-archive/laredo/"

    def put(text: str) -> str:
        """Put the archive, as it is now, where the page has one."""
        archive = readme.directory / "archive"
        for file in (each for each in archive.rglob("*") if each.is_file()):
            key = f"laredo/{file.relative_to(archive).as_posix()}"
            moto.client("s3").put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
        reached = f'endpoint="{moto.endpoint}", region="{REGION}", addressing="path", as_of'
        return text.replace(begins, f"s3://{bucket}/laredo/").replace("as_of", reached)

    readme.before_spark = put
    readme.follow(README)
    assert readme.names["documents"].count() == 9


def test_clients(tmp_path: Path, database: Database, ports: dict[str, int]) -> None:
    database.run(
        "CREATE TABLE config_document (instance_id text, key text, size int,"
        " PRIMARY KEY (instance_id, key))",
        "INSERT INTO config_document VALUES ('inst_abc', 'rulesets/default', 3)",
        "CREATE TABLE users (id bigint PRIMARY KEY)",
        "CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint)",
    )
    tables = "{ table = config_document }, { table = users }, { table = orders }"
    connect = f"fanout.connect.port = {ports['connect']}\n"
    server = fanout(tmp_path / "server", database, tables, connect)
    with started(server):
        terminal = Terminal(
            tmp_path,
            {
                "localhost:4002": f"localhost:{server.grpc_port}",
                "fanout.internal:4003": f"localhost:{ports['connect']}",
                "/var/lib/myapp/cache": str(tmp_path / "cache"),
            },
        )
        terminal.follow(CLIENTS)


def test_readers(tmp_path: Path, database: Database) -> None:
    """Every number that the page's Python finds is PostgreSQL's."""
    columns = "id, name, team, epoch, balance"
    database.run(
        "CREATE TABLE users (id bigint PRIMARY KEY, name text, team text, epoch int,"
        " balance numeric(12,2), joined timestamptz DEFAULT '2026-06-03 10:00+00')",
        f"INSERT INTO users ({columns}) SELECT n, 'user ' || n, chr(97 + n % 3), n % 5, n + 0.5"
        " FROM generate_series(100, 200) n",
    )
    users = Named("public", "users", None)
    programs = configured(tmp_path, database, [users], "jsonl, parquet")
    archive = tmp_path / "archive" / "users"
    terminal = Terminal(tmp_path, {})
    with programs.running():
        wait_until(lambda: head(archive) != "", "the base is there")
        at_base = head(archive)
        database.run("UPDATE users SET name = 'changed', balance = 999 WHERE id = 150")
        wait_until(lambda: head(archive) != at_base, "the diff is there")
    terminal.replaced = {
        "/srv/archive": str(archive.parent),
        "0/1A2B3C": at_base,
        "'users.parquet'": f"'{tmp_path}/users.parquet'",
    }
    terminal.follow(READERS)

    def asked(query: str) -> list[tuple[Any, ...]]:
        with database.connect() as connection:
            return connection.execute(query.encode()).fetchall()

    made = terminal.names
    everything = asked(f"SELECT {columns} FROM users ORDER BY id")

    def rows(frame: Any) -> list[tuple[Any, ...]]:
        return sorted(zip(*(frame[name].tolist() for name in columns.split(", ")), strict=True))

    table = made["table"].select(columns.split(", "))
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == everything
    assert made["per_team"] == asked("SELECT team, count(*) FROM users GROUP BY 1 ORDER BY 1")
    assert made["total"] == asked("SELECT sum(balance) FROM users")
    assert made["longest"] == asked("SELECT max(length(name)) FROM users")
    assert sorted(made["frame"].select(columns.split(", ")).rows()) == everything
    assert sorted(made["rich"].rows()) == asked(
        "SELECT id FROM users WHERE balance > 150 ORDER BY 1"
    )
    assert sorted(made["few"].rows()) == asked("SELECT name FROM users WHERE id > 190 ORDER BY 1")
    assert made["first"].height == 3
    assert rows(made["plain"]) == rows(made["exact"]) == everything
    assert made["changed"] == [("UPDATE", "150", "user 150", "changed")]
    assert [row["name"] for row in made["before"].to_pylist() if row["id"] == 150] == ["user 150"]
    assert [count for _, _, count in made["listed"]] == [len(everything)] * len(made["listed"])
    assert made["exported"] == [(len(everything),)]
    assert made["wrong"] == [(1,)]
    assert sorted(made["right"]) == asked("SELECT DISTINCT epoch FROM users ORDER BY 1")


def test_what_is_replaced_or_not_run_is_printed() -> None:
    pages = {page: page.read_text() for page in (README, QUICKSTART, CLIENTS, READERS)}
    printed = [
        command
        for page in pages
        for block in blocks(page)
        if block.language == "console"
        for command, _ in commands(block.text)
    ]
    assert [command for command in NOT_RUN if command not in printed] == []
    assert {command.split()[0] for command in printed} >= THOROUGH
    everything = "".join(pages.values())
    assert [text for text in SUBSTITUTED if text not in everything] == []
    assert {block.language for page in pages for block in blocks(page)} == RUN
