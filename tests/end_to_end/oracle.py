"""What PostgreSQL held at every position, known without any of our own code.

One writer a table: in each of its transactions, as the last thing before the
commit, it notes the transaction's id and the table's rows as PostgreSQL prints
them. A second slot, decoded by the few lines here, says where each transaction
id's commit ends. https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import json
import struct
from bisect import bisect_right
from collections import Counter
from typing import Any, Protocol

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]
Rows = Counter[str]


class Directory(Protocol):
    """What of Path an archive is read with; a bucket can have it too."""

    @property
    def parent(self) -> "Directory":
        """One level up."""

    def __truediv__(self, name: str) -> "Directory":
        """What is below it."""

    def read_bytes(self) -> bytes:
        """The object's bytes."""


SESSION = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=3 -c intervalstyle=postgres"


class Oracle:
    """The states of one database's tables, by position."""

    def __init__(self, dsn: str, slot: str = "oracle") -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, options=SESSION)
        self._slot = slot
        self._connection.execute(f"CREATE PUBLICATION {slot} FOR ALL TABLES")
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
        )
        self._notes: dict[str, list[tuple[int, Rows]]] = {}
        self._ends: dict[int, int] = {}

    def note(self, writer: Connection, table: str) -> None:
        """Inside the writer's transaction, just before its commit: the table's rows."""
        noted = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert noted is not None
        rows: Rows = Counter(row[0] for row in writer.execute(f"SELECT t::text FROM {table} t"))
        self._notes.setdefault(table, []).append((noted[0] & 0xFFFFFFFF, rows))

    def start(self, table: str) -> None:
        """The table's rows before the first noted transaction."""
        rows = self._connection.execute(f"SELECT t::text FROM {table} t")
        self._notes.setdefault(table, []).append((0, Counter(row[0] for row in rows)))
        self._ends[0] = 0

    def rows_at(self, table: str, position: int) -> Rows:
        """The table's rows at ``position``: every transaction whose commit ends there or before."""
        self._read_commits()
        states = sorted(
            (self._ends[xid], number, rows)
            for number, (xid, rows) in enumerate(self._notes[table])
            if xid in self._ends
        )
        ends = [end for end, _, _ in states]
        return states[bisect_right(ends, position) - 1][2]

    def last_commit(self) -> int:
        """Where the last noted transaction's commit ends."""
        self._read_commits()
        noted = {xid for notes in self._notes.values() for xid, _ in notes}
        return max(end for xid, end in self._ends.items() if xid in noted)

    def rows_of(self, table: str, lines: list[bytes]) -> Rows:
        """The lines as rows of the table, made and printed by PostgreSQL."""
        printed = self._connection.execute(
            f"SELECT row::text FROM unnest(%s::json[]) WITH ORDINALITY AS l(line, n), "
            f"json_populate_record(NULL::{table}, line) AS row",
            ([line.decode() for line in lines],),
        )
        return Counter(row[0] for row in printed)

    def close(self) -> None:
        self._connection.execute("SELECT pg_drop_replication_slot(%s)", (self._slot,))
        self._connection.close()

    def _read_commits(self) -> None:
        messages = self._connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', %s)",
            (self._slot, self._slot),
        )
        xid = 0
        for (message,) in messages:
            if message[:1] == b"B":
                _, _, xid = struct.unpack_from(">QqI", message, 1)
            elif message[:1] == b"C":
                _, _, end, _ = struct.unpack_from(">BQQq", message, 1)
                self._ends[xid] = end


def assert_same(oracle: Oracle, table: str, position: int, lines: list[bytes]) -> None:
    """A boundary's lines are what PostgreSQL held there."""
    archived, held = oracle.rows_of(table, lines), oracle.rows_at(table, position)
    assert archived == held, (
        f"{table} differs at {position >> 32:X}/{position & 0xFFFFFFFF:X}\n"
        f"only in the archive: {sorted(archived - held)}\n"
        f"only in PostgreSQL: {sorted(held - archived)}"
    )


def boundaries(archive: Directory, key_fields: list[str]) -> list[tuple[int, list[bytes]]]:
    """Every boundary of a JSONL archive with its lines, folded as FORMAT's page says."""
    manifest = json.loads((archive / "manifest.json").read_bytes())
    destination = archive.parent
    found: list[tuple[int, list[bytes]]] = []
    state: dict[Any, bytes] = {}
    epoch, reached = None, None
    for artifact in manifest["artifacts"]:
        lines = (destination / artifact["formats"]["jsonl"]["key"]).read_bytes().split(b"\n")[:-1]
        if artifact["kind"] == "snapshot":
            epoch = artifact["epoch"]
            state = {_key(json.loads(line), key_fields): line for line in lines}
        else:
            assert artifact["epoch"] == epoch, "a diff of another epoch than its snapshot"
            assert artifact["from_position"] == reached, "diffs are not contiguous"
            _fold(state, lines, key_fields)
        reached = artifact["to_position"]
        high, low = reached.split("/")
        assert artifact["rows"] == len(state), f"rows of the artifact up to {reached}"
        found.append((int(high, 16) << 32 | int(low, 16), list(state.values())))
    return found


def _fold(state: dict[Any, bytes], lines: list[bytes], key_fields: list[str]) -> None:
    for line in lines:
        change = json.loads(line)
        if change["action"] == "TRUNCATE":
            state.clear()
        elif change["action"] == "DELETE":
            del state[_key(change["old"], key_fields)]
        else:
            known = _key(change["new"], key_fields)
            assert (known in state) == (change["action"] == "UPDATE"), change
            state[known] = _new(line)


def _new(line: bytes) -> bytes:
    """The bytes of the member "new", verbatim."""
    text = line.decode()
    decoder = json.JSONDecoder()
    at = 1
    while True:
        name, at = decoder.raw_decode(text, at)
        start = at + 1
        _, at = decoder.raw_decode(text, start)
        if name == "new":
            return text[start:at].encode()
        at += 1


def _key(row: dict[str, Any], key_fields: list[str]) -> Any:
    return tuple(json.dumps(row[name]) for name in key_fields)
