"""PostgreSQL's rows at every position, determined without any of our own code.

One writer a table: in each of its transactions, as the last thing before the
commit, it notes the transaction's id and the table's rows as PostgreSQL prints
them. A second slot, decoded by the few lines here, says where each transaction
id's commit ends. https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

A table whose columns change leaves an empty table of each form that it had, so
that lines of that time can be made rows of it.
"""

import gzip
import json
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import psycopg
import zstandard

Connection = psycopg.Connection[tuple[Any, ...]]
Rows = Counter[str]


class Directory(Protocol):
    """Methods of Path that reading an archive needs; a bucket can have them too."""

    @property
    def parent(self) -> "Directory":
        """One level up."""

    def __truediv__(self, name: str) -> "Directory":
        """Path of an entry."""

    def read_bytes(self) -> bytes:
        """The object's bytes."""


class State(NamedTuple):
    """Rows of a table.

    ``form`` is a table with the columns that it had. ``blind``: it was changed in a way that shows
    in no stream, so that others can't know it at once.
    """

    rows: Rows
    form: str
    blind: bool = False


SESSION = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=3 -c intervalstyle=postgres"


class Oracle:
    """The states of one database's tables, by position."""

    def __init__(self, dsn: str, slot: str = "oracle") -> None:
        self._dsn = dsn
        self._slot = slot
        self._connection = self._connect()
        # Without tables: each noted transaction has a message, so none is left out as empty, and
        # the application may do what it likes with tables that have no key.
        self._connection.execute(f"CREATE PUBLICATION {slot}")
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
        )
        self._notes: dict[str, list[tuple[int, State]]] = {}
        self._ends: dict[int, int] = {}
        self._looks: list[int] = []

    def _connect(self) -> Connection:
        return psycopg.connect(self._dsn, autocommit=True, options=SESSION)

    def is_cut(self) -> bool:
        """True if the database ended the session."""
        with suppress(psycopg.Error):
            self._connection.execute("SELECT 1")
        return self._connection.broken

    def reconnect(self) -> None:
        """The database was restarted."""
        self._connection.close()
        self._connection = self._connect()

    def move(self, dsn: str) -> None:
        """Another server goes on with the database; nothing is open, and :meth:`last_commit`
        was asked for at the end of the former one."""
        self._connection.close()
        self._dsn = dsn
        self._connection = self._connect()
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,)
        )

    def note(
        self,
        writer: Connection,
        table: str,
        form: str | None = None,
        *,
        shown: str | None = None,
        blind: bool = False,
    ) -> None:
        """Inside the writer's transaction, just before its commit: the table's rows, or what
        is ``shown`` of it."""
        noted = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert noted is not None
        writer.execute("SELECT pg_logical_emit_message(true, 'oracle', '')")
        found = writer.execute(f"SELECT t::text FROM {shown or table} t")
        state = State(Counter(row[0] for row in found), form or table, blind)
        self._notes.setdefault(table, []).append((noted[0] & 0xFFFFFFFF, state))

    def start(self, table: str, form: str | None = None, shown: str | None = None) -> None:
        """The table's rows before the first noted transaction, or what is ``shown`` of it."""
        rows = self._connection.execute(f"SELECT t::text FROM {shown or table} t")
        state = State(Counter(row[0] for row in rows), form or table)
        self._notes.setdefault(table, []).append((0, state))
        self._ends[0] = 0

    def state_at(self, table: str, position: int) -> State:
        """Rows of the table at ``position``: with each transaction whose commit ends at or before
        it.
        """
        self._read_commits()
        states = self._states(table)
        return states[bisect_right([end for end, _ in states], position) - 1][1]

    def states_at(self, table: str, positions: Iterable[int]) -> dict[int, State]:
        """Rows of the table at many positions."""
        self._read_commits()
        states = self._states(table)
        ends = [end for end, _ in states]
        return {each: states[bisect_right(ends, each) - 1][1] for each in positions}

    def rows_at(self, table: str, position: int) -> Rows:
        """The rows of that state."""
        return self.state_at(table, position).rows

    def is_blind(self, table: str, position: int) -> bool:
        """True if a reader of the stream alone can't know yet how the table was changed.

        Its catalog has been looked at since the change when a second look was noted in the WAL
        after it: the first may have read the catalog before.
        """
        self._read_commits()
        changes = [end for end, state in self._states(table) if state.blind and end <= position]
        return bool(changes) and (
            bisect_right(self._looks, position) - bisect_right(self._looks, changes[-1]) < 2
        )

    def changes_before(self, table: str, position: int) -> str:
        """The last that nobody could see in the stream, and the looks since, for a failure."""
        self._read_commits()
        changes = [end for end, state in self._states(table) if state.blind and end <= position]
        looks = [end for end in self._looks if changes and changes[-1] < end <= position]
        return f"last changed in form at {changes[-1:]}, looked at {looks[:4]}"

    def _states(self, table: str) -> list[tuple[int, State]]:
        """States of the table, each with the end of its commit."""
        known = [(self._ends[xid], state) for xid, state in self._notes[table] if xid in self._ends]
        return sorted(known, key=lambda each: each[0])

    def last_commit(self) -> int:
        """End of the last noted transaction's commit."""
        self._read_commits()
        noted = {xid for notes in self._notes.values() for xid, _ in notes}
        return max(end for xid, end in self._ends.items() if xid in noted)

    def rows_of(self, form: str, lines: list[bytes]) -> Rows:
        """The lines as rows of a table of this form, made and printed by PostgreSQL."""
        printed = self._connection.execute(
            f"SELECT row::text FROM unnest(%s::json[]) WITH ORDINALITY AS l(line, n), "
            f"json_populate_record(NULL::{form}, line) AS row",
            ([line.decode() for line in lines],),
        )
        return Counter(row[0] for row in printed)

    def close(self) -> None:
        self._connection.execute("SELECT pg_drop_replication_slot(%s)", (self._slot,))
        self._connection.close()

    def disconnect(self) -> None:
        """Leave; the slot goes with its server."""
        self._connection.close()

    def _read_commits(self) -> None:
        messages = self._connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'messages', 'true', 'publication_names', %s)",
            (self._slot, self._slot),
        )
        xid, looked = 0, False
        for (message,) in messages:
            if message[:1] == b"B":
                _, _, xid = struct.unpack_from(">QqI", message, 1)
                looked = False
            elif message[:1] == b"M":
                looked = looked or (b"laredo\0" in message and b":look:" in message)
            elif message[:1] == b"C":
                _, _, end, _ = struct.unpack_from(">BQQq", message, 1)
                self._ends[xid] = end
                # After a crash of the server the slot gives some of them again.
                if looked and end > (self._looks or [0])[-1]:
                    self._looks.append(end)


def assert_seen(oracle: Oracle, table: str, seen: Mapping[int, Mapping[bytes, bytes]]) -> int:
    """A client's rows at each position are what PostgreSQL held there; how many were compared."""
    before: object = None
    compared = 0
    for position, held in oracle.states_at(table, sorted(seen)).items():
        rows = seen[position]
        if (id(held), rows) != before:
            found = oracle.rows_of(held.form, list(rows.values()))
            assert found == held.rows, f"{table} at {position:#x}"
            compared += 1
        before = id(held), rows
    return compared


def assert_same(oracle: Oracle, table: str, position: int, lines: list[bytes]) -> None:
    """A boundary's lines are what PostgreSQL held there."""
    held = oracle.state_at(table, position)
    archived = oracle.rows_of(held.form, lines)
    assert archived == held.rows, (
        f"{table} differs at {position >> 32:X}/{position & 0xFFFFFFFF:X}\n"
        f"only in the archive: {_shown(archived - held.rows)}\n"
        f"only in PostgreSQL: {_shown(held.rows - archived)}"
    )


def _shown(rows: Rows) -> str:
    some = [row if len(row) <= 400 else f"{row[:400]}..." for row in sorted(rows)[:5]]
    return f"{rows.total()} rows, such as {some}"


def boundaries(
    archive: Directory, key_fields: list[str] | None = None
) -> list[tuple[int, list[bytes]]]:
    """Every boundary of a JSONL archive with its lines, folded as docs/archive-format.md says.

    ``key_fields``: as each epoch's snapshot says, unless given; none at all in a table without a
    key.
    """
    return [(position, lines) for _, position, lines in ends(archive, key_fields)]


def ends(
    archive: Directory, key_fields: list[str] | None = None
) -> list[tuple[dict[str, Any], int, list[bytes]]]:
    """Boundaries of the archive, each with the artifact that ends there, as it was written.

    The artifact is a base or a diff, wherever the diff was merged since. Level by level: merged
    diffs first, then their parts; at the boundaries that both have they must agree. The manifest
    is read once, as a writer may swap it.
    """
    chain = json.loads((archive / "manifest.json").read_bytes())["artifacts"]
    found = _folded(archive.parent, chain, key_fields)
    while any("parts" in artifact for artifact in chain):
        chain = [part for artifact in chain for part in _parts(archive.parent, artifact)]
        merged, found = found, _folded(archive.parent, chain, key_fields)
        known = {position: sorted(lines) for position, lines in found}
        for position, lines in merged:
            assert known[position] == sorted(lines), f"a merged diff leads elsewhere: {position:X}"
    return [(artifact, *end) for artifact, end in zip(chain, found, strict=True)]


def _parts(destination: Directory, artifact: dict[str, Any]) -> list[dict[str, Any]]:
    """Artifacts that this one was merged from, as parts of its epoch; or itself."""
    parts = artifact.get("parts")
    if parts is None:
        return [artifact]
    if "file" in parts:
        parts = json.loads(gzip.decompress((destination / parts["file"]["key"]).read_bytes()))
    return [{**part, "epoch": artifact["epoch"]} for part in parts["diffs"]]


def _folded(
    destination: Directory, artifacts: list[dict[str, Any]], key_fields: list[str] | None
) -> list[tuple[int, list[bytes]]]:
    found: list[tuple[int, list[bytes]]] = []
    state: _Fold = _Keyed([])
    epoch, reached = None, None
    for artifact in artifacts:
        lines = _jsonl(destination, artifact["formats"]).split(b"\n")[:-1]
        if artifact["kind"] == "snapshot":
            epoch = artifact["epoch"]
            by = artifact["key_fields"] if key_fields is None else key_fields
            state = _Keyed(by) if by else _Counted()
            state.fill(lines)
        else:
            assert artifact["epoch"] == epoch, "a diff of another epoch than its snapshot"
            assert artifact["from_position"] == reached, "diffs are not contiguous"
            for line in lines:
                state.take(line)
        reached = artifact["to_position"]
        high, low = reached.split("/")
        held = state.lines()
        assert artifact["rows"] == len(held), f"rows of the artifact up to {reached}"
        found.append((int(high, 16) << 32 | int(low, 16), held))
    return found


def _jsonl(destination: Directory, formats: dict[str, Any]) -> bytes:
    """The artifact's JSONL, which may be compressed, in one frame or several."""
    if "jsonl" in formats:
        return (destination / formats["jsonl"]["key"]).read_bytes()
    compressed = (destination / formats["jsonl.zst"]["key"]).read_bytes()
    reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
    return bytes(reader.readall())


class _Keyed:
    """Rows by their keys."""

    def __init__(self, key_fields: list[str]) -> None:
        self._key_fields = key_fields
        self._rows: dict[Any, bytes] = {}

    def fill(self, lines: list[bytes]) -> None:
        for line in lines:
            self._rows[self._key(json.loads(line))] = line
        assert len(self._rows) == len(lines), "a key comes twice"

    def take(self, line: bytes) -> None:
        change = json.loads(line)
        if change["action"] == "TRUNCATE":
            self._rows.clear()
        elif change["action"] == "DELETE":
            del self._rows[self._key(change["old"])]
        else:
            known = self._key(change["new"])
            assert (known in self._rows) == (change["action"] == "UPDATE"), change
            self._rows[known] = _member(line, "new")

    def lines(self) -> list[bytes]:
        return list(self._rows.values())

    def _key(self, row: dict[str, Any]) -> Any:
        return tuple(json.dumps(row[name]) for name in self._key_fields)


class _Counted:
    """Rows without keys: how often each is there."""

    def __init__(self) -> None:
        self._rows: Counter[bytes] = Counter()

    def fill(self, lines: list[bytes]) -> None:
        self._rows.update(lines)

    def take(self, line: bytes) -> None:
        action = json.loads(line)["action"]
        if action == "TRUNCATE":
            self._rows.clear()
        if action in ("UPDATE", "DELETE"):
            self._rows[_member(line, "old")] -= 1
        if action in ("UPDATE", "INSERT"):
            self._rows[_member(line, "new")] += 1
        assert min(self._rows.values(), default=0) >= 0, line

    def lines(self) -> list[bytes]:
        return list(self._rows.elements())


_Fold = _Keyed | _Counted


def _member(line: bytes, wanted: str) -> bytes:
    """The bytes of this member, verbatim."""
    text = line.decode()
    decoder = json.JSONDecoder()
    at = 1
    while True:
        name, at = decoder.raw_decode(text, at)
        start = at + 1
        _, at = decoder.raw_decode(text, start)
        if name == wanted:
            return text[start:at].encode()
        at += 1
