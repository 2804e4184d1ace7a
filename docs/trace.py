"""The way of one UPDATE, followed at run time from the replication socket to the diff object.

``python -m docs.trace`` starts a PostgreSQL, laredo-fanout and laredo-snapshotter as anybody would,
has both programs record their calls, and prints the files that the UPDATE enters, part by part, and
the calls back. With ``--write`` it writes them into docs/architecture.md; what a file takes and
gives is kept, and is written by hand where a file is new.

A part is one or more legs. A leg is what one thread, or one task of an event loop, does from a
function that begins it to one that ends it. So what other tasks and threads do meanwhile (the
metrics, the heartbeat, the catalog check that the commit waits for) isn't in it.

A *call back* is a call from one file into another that was entered before in the same part and
has been left since: a file that was new to the part has been entered after it, and it isn't on the
stack. Each such call counts, also of a function that was called before. These don't count: a
second call while nothing new was entered, a call into a file that waits for the caller's return,
and a generator or coroutine that goes on where it stopped.

The UPDATE is the second one of its connection to the programs, so that the relation is known.
"""

import argparse
import json
import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg

from docs.call_recorder import ROOT
from examples.snapshotter.demo_programs import Program, free_port
from examples.snapshotter.embedded_postgres import EmbeddedPostgres

PAGE = ROOT / "docs" / "architecture.md"
PATIENCE_S = 240.0
LOOK_S = 0.05
SERVER = """
state {{ path = "{directory}/state", max_size = 1 GB }}
sources {{ pg {{ connection = "{dsn}", heartbeat_interval = 60s }} }}
fanout {{ grpc {{ port = {grpc} }}, drain_grace = 1s }}
http {{ port = {http} }}
tables = [ {{ table = users }} ]
"""
WRITER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}", table = users }}
  diff {{ interval = 1s }}
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  http {{ port = {http} }}
}}
"""
FOLLOWED = """
from pathlib import Path
from docs.call_recorder import install
install(Path({directory!r}))
"""


class Leg(NamedTuple):
    """A stretch of one thread or task, by the names of functions."""

    begin: str
    mark: str
    """Called for a change only."""
    end: str | None
    """None: the leg ends as ``begin`` returns."""


PARTS: dict[str, Sequence[Leg]] = {
    "Ingest": (Leg("IngestLoop._read", "Transaction.set_position", "ReplicationStream.confirm"),),
    "Serving": (
        Leg("SocketWakeups.current", "Session.notify", "WakeUp.notify"),
        Leg("Session._step", "JournalSender._send_record", "_GrpcExchange.send"),
    ),
    "Client": (Leg("_Parser.parsed", "Translator._change_batch", "Changes.beyond"),),
    "The writer's buffer": (
        Leg("Feed.take", "ChangeBuffer.take", "CutBuffer.reached"),
        Leg("CutSchedule.cut_due", "ChangeBuffer.freeze", "Committer.put"),
    ),
    "Commit": (
        Leg("Committer._finish", "Committer._attempt", "FrozenBuffer.spilled_bytes"),
        Leg("DiffCommit.run", "TableArchive.commit_diff", None),
    ),
}


class Function(NamedTuple):
    """One of the packages'."""

    file: str
    name: str


class Call(NamedTuple):
    """A call that a program recorded."""

    time_ns: int
    thread: tuple[int, int]
    """The process's id and the thread's."""
    stack: Sequence[Function]
    """The packages' functions, the called one last."""

    @property
    def called(self) -> Function:
        return self.stack[-1]

    @property
    def lane(self) -> object:
        """Equal for calls of one task or thread."""
        return self.thread, self.stack[0]


@dataclass
class Part:
    """The files that an UPDATE enters in one part, in order, and its calls back."""

    files: list[str] = field(default_factory=list)
    calls_back: list[tuple[str, Function]] = field(default_factory=list)
    """The file that calls, and what it calls."""


def way_of(calls: Sequence[Call]) -> dict[str, Part]:
    """The parts of the first UPDATE in ``calls``, which are in the order of time.

    :raises LookupError: if a leg isn't there, as a function that begins or ends it has another
        name now.
    """
    way, at = {}, 0
    for title, legs in PARTS.items():
        part_calls: list[Call] = []
        for leg in legs:
            at, found = _leg(calls, at, leg)
            part_calls += found
        way[title] = _part(part_calls)
    return way


def _leg(calls: Sequence[Call], after: int, leg: Leg) -> tuple[int, list[Call]]:
    """The leg's mark after this index, and its calls."""
    names = [call.called.name for call in calls]
    if leg.mark not in names[after:]:
        raise LookupError(f"{leg.mark} isn't called: name what is called instead, in docs/trace.py")
    mark = names.index(leg.mark, after)
    begun = [n for n in range(mark) if calls[n].lane == calls[mark].lane and names[n] == leg.begin]
    if not begun:
        raise LookupError(f"{leg.begin} isn't called before {leg.mark}: mend docs/trace.py")
    found: list[Call] = []
    for number, call in enumerate(calls[begun[-1] :], begun[-1]):
        if call.lane != calls[mark].lane:
            continue
        if leg.end is None and leg.begin not in [each.name for each in call.stack]:
            return mark, found
        found.append(call)
        if number >= mark and call.called.name == leg.end:
            return mark, found
    if leg.end is None:
        return mark, found
    raise LookupError(f"{leg.end} isn't called after {leg.mark}: mend docs/trace.py")


def _part(calls: Sequence[Call]) -> Part:
    part = Part()
    last: dict[str, int] = {}
    """Number of files that the part had entered when each was called last."""
    for call in calls:
        file = call.called.file
        if file not in last:
            part.files.append(file)
        elif file not in {each.file for each in call.stack[:-1]} and last[file] < len(part.files):
            caller = call.stack[-2].file if len(call.stack) > 1 else ""
            part.calls_back.append((caller, call.called))
        last[file] = len(part.files)
    return part


def followed(dsn: str, directory: Path) -> list[Call]:
    """The calls of both programs from an UPDATE of this database until its diff is committed."""
    (directory / "switch").write_bytes(b"\0")
    (directory / "calls").touch()
    (directory / "sitecustomize.py").write_text(FOLLOWED.format(directory=str(directory)))
    grpc, ports = free_port(), (free_port(), free_port())
    for name, text, http in zip(("server", "writer"), (SERVER, WRITER), ports, strict=True):
        settings = text.format(directory=directory, dsn=dsn, grpc=grpc, http=http)
        (directory / f"{name}.conf").write_text(settings)
    server, writer = (
        Program(script, directory / f"{name}.conf", {}, directory / f"{name}.log", http)
        for script, name, http in zip(
            ("laredo-fanout", "laredo-snapshotter"), ("server", "writer"), ports, strict=True
        )
    )
    with psycopg.connect(dsn, autocommit=True) as owner, (directory / "switch").open("r+b") as file:
        owner.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
        owner.execute("INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 3) n")
        switch = mmap.mmap(file.fileno(), 1)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{ROOT}"
        try:
            server.start()
            writer.start()
            _wait_until(writer.is_ready, (server, writer))
            for number in (1, 2):
                switch[0] = number == 2
                owner.execute("UPDATE users SET name = 'changed' WHERE id = %s", (number,))
                _wait_until(lambda number=number: _diffs(writer) == number, (server, writer))  # type: ignore[misc]
            switch[0] = 0
        finally:
            writer.stop()
            server.stop()
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before
    return sorted(_recorded(directory / "calls"))


def _diffs(writer: Program) -> int:
    return writer.log.read_text().count('"diff committed"')


def _wait_until(condition: Callable[[], bool], programs: Sequence[Program]) -> None:
    """Wait for it.

    :raises RuntimeError: if a program has ended, or nothing comes; the message has its log.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        for program in programs:
            if program.pid is None or time.monotonic() > deadline:
                log = program.log.read_text()[-2000:]
                raise RuntimeError(f"{program.name} ended, or does nothing more:\n{log}")
        time.sleep(LOOK_S)


def _recorded(file: Path) -> Iterator[Call]:
    for line in file.read_text().splitlines():
        time_ns, process, thread, stack = json.loads(line)
        yield Call(time_ns, (process, thread), [Function(*each) for each in stack])


def written(text: str, way: dict[str, Part]) -> str:
    """The page with the tables of ``way``; rows keep what they take and give.

    :raises ValueError: if a part has no marker in the page.
    """
    known: set[str] = set()
    for title, part in way.items():
        begin, end = f"<!-- part: {title} -->\n", "<!-- end of part -->\n"
        before, marker, rest = text.partition(begin)
        old, other, after = rest.partition(end)
        if not marker or not other:
            raise ValueError(f'no "{begin.strip()}" with an "{end.strip()}" after it; put both in')
        text = f"{before}{begin}\n{_table(part, old, known)}\n{end}{after}"
        known |= set(part.files)
    total = f"{len(known)} files of the packages"
    return re.sub(r"\d+ files of the packages", total, text, count=1)


def _table(part: Part, old: str, known: set[str]) -> str:
    """The files that no part before has entered as rows, the others as a line."""
    rows = _rows(old)
    lines = ["| | file | takes | gives |", "|---|---|---|---|"]
    lines += [rows.get(file, f"| | `{file}` | | |") for file in part.files if file not in known]
    again = [f"`{file}`" for file in part.files if file in known]
    if again:
        lines += ["", f"Entered again: {', '.join(again)}."]
    back = len(part.calls_back)
    lines += ["", f"{len(part.files)} files, {back} call{'s' * (back != 1)} back."]
    return "\n".join(lines) + "\n"


def _rows(old: str) -> dict[str, str]:
    found = re.findall(r"^(\|[^|]*\| `([\w/.]+)` \|.*)$", old, re.M)
    return {file: row for row, file in found}


def _by_pair(
    calls_back: Sequence[tuple[str, Function]],
) -> list[tuple[tuple[str, str], list[str]]]:
    """Names of the called functions by both files, the largest number first."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for caller, function in calls_back:
        pairs.setdefault((caller, function.file), []).append(function.name)
    return sorted(pairs.items(), key=lambda pair: -len(pair[1]))


def main() -> None:
    """Follows one UPDATE and prints its way."""
    options = argparse.ArgumentParser(description="Follow one UPDATE from socket to diff object.")
    options.add_argument("--write", action="store_true", help="write docs/architecture.md")
    with tempfile.TemporaryDirectory(prefix="laredo-trace-", ignore_cleanup_errors=True) as made:
        arguments, directory = options.parse_args(), Path(made)
        directory.chmod(0o755)  # PostgreSQL's own user is to reach its data
        with EmbeddedPostgres(directory / "postgres") as postgres:
            way = way_of(followed(postgres.dsn(), directory))
    for title, part in way.items():
        print(f"{title}: {len(part.files)} files, {len(part.calls_back)} calls back")
        print("".join(f"  {file}\n" for file in part.files), end="")
        for (caller, file), names in _by_pair(part.calls_back):
            print(f"  {len(names)} back from {caller} to {file}: {', '.join(names)}")
    files = {file for part in way.values() for file in part.files}
    print(f"{len(files)} files")
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(), way))


if __name__ == "__main__":
    main()
