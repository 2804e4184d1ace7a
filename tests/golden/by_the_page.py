"""A reader written by docs/archive-format.md alone, as somebody else would write one.

It holds a table in memory and reads jsonl and protobuf, compressed too. What it shares with
the program is the generated protobuf classes; with the golden archives' writer, how a row and
a compressed file are taken apart.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from laredo_archive.wire.artifact_pb2 import DiffChange, SnapshotRow
from tests.golden.frames import plain_of
from tests.support.golden.written import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    JSON_TYPES,
    key_of,
    members,
    original_key_of,
    postgres_float,
)

Json = Mapping[str, Any]
State = dict[str, str]
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


class Page:
    """An archive below ``destination``."""

    def __init__(self, destination: Path, key_prefix: str, format_id: str) -> None:
        self._destination = destination
        self._format = format_id
        self.manifest: Json = json.loads((destination / f"{key_prefix}manifest.json").read_text())
        assert self.manifest["manifest_version"] in (1, 2)
        self._prefix = key_prefix
        entries = [e for a in self.manifest["artifacts"] for e in a["formats"].values()]
        self._is_originals = any("key" not in entry for entry in entries)

    def states(self, *, merged: bool = False) -> Iterator[tuple[Json, State]]:
        """Each artifact, and the rows by key where it ends; with ``merged`` those of the list as
        it is, else every diff as it was committed."""
        base: Json = {}
        state: State = {}
        position = ""
        for artifact in self.manifest["artifacts"] if merged else self.committed():
            if artifact["kind"] == "snapshot":
                base = artifact
                state = dict(self._keyed(self._rows(artifact), base))
            else:
                assert (artifact["epoch"], artifact["from_position"]) == (base["epoch"], position)
                after = self._after_original if self._is_originals else self._after
                state = after(state, artifact, base)
            position = artifact["to_position"]
            _check(artifact, state)
            yield artifact, state

    def committed(self) -> Iterator[Json]:
        """The artifacts with the parts of merged diffs in their places, all levels down."""
        for artifact in self.manifest["artifacts"]:
            for part in self._parts(artifact):
                yield {**part, "epoch": artifact["epoch"]}

    def _parts(self, artifact: Json) -> Iterator[Json]:
        parts = artifact.get("parts")
        if parts is None:
            yield artifact
            return
        diffs = parts.get("diffs") or self._listed(parts["file"])
        found = [part for diff in diffs for part in self._parts(diff)]
        assert len(found) == parts["count"]
        yield from found

    def _listed(self, entry: Json) -> Sequence[Json]:
        data = (self._destination / entry["key"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (
            entry["size_bytes"],
            entry["sha256"],
        )
        return json.loads(gzip.decompress(data))["diffs"]

    def _rows(self, artifact: Json) -> Iterator[str]:
        data, is_lines = self._bytes(artifact)
        if is_lines:
            yield from map(_compact, _lines(data))
            return
        for message in _messages(data):
            yield _line(SnapshotRow.FromString(message).row, artifact.get("columns"))

    def _after(self, state: State, diff: Json, base: Json) -> State:
        """TRUNCATE empties it; INSERT and UPDATE put, DELETE removes."""
        state = dict(state)
        for action, key, new in self._changes(diff, base.get("columns")):
            if action == "TRUNCATE":
                state.clear()
            elif action == "DELETE":
                del state[key]
            else:
                assert (key in state) == (action == "UPDATE")
                state[key] = new
        return state

    def _after_original(self, state: State, diff: Json, base: Json) -> State:
        """Of an archive of the original's."""
        fields = self._fields(base)
        records = list(self._originals(diff))
        if any(action == "TRUNCATE" for action, _, _ in records):
            state = {}
        puts, moved, removed = {}, {}, set()
        for action, old, new in records:
            if action == "TRUNCATE":
                continue
            key = original_key_of(new or old, fields)
            if new:
                puts[key] = new
            else:
                removed.add(key)
            if old and new and original_key_of(old, fields) != key:
                moved[original_key_of(old, fields)] = old
        for key, row in moved.items():
            if puts.get(key, row) == row:
                removed.add(key)
        return {key: row for key, row in {**state, **puts}.items() if key not in removed}

    def _originals(self, diff: Json) -> Iterator[tuple[str, str, str]]:
        data, is_lines = self._bytes(diff)
        if is_lines:
            for parts in map(members, map(_unescaped, _lines(data))):
                yield json.loads(parts["action"]), parts.get("old", ""), parts.get("new", "")
            return
        for message in map(DiffChange.FromString, _messages(data)):
            old = _line(message.old, None) if message.HasField("old") else ""
            new = _line(message.new, None) if message.HasField("new") else ""
            yield message.action, old, new

    def _changes(self, diff: Json, columns: Any) -> Iterator[tuple[str, str, str]]:
        data, is_lines = self._bytes(diff)
        if is_lines:
            for line in _lines(data):
                parts = members(_compact(line))
                key = json.loads(parts.get("key", '""'))
                yield json.loads(parts["action"]), key, parts.get("new", "")
            return
        for message in map(DiffChange.FromString, _messages(data)):
            new = _line(message.new, columns) if message.HasField("new") else ""
            yield message.action, message.key, new

    def _bytes(self, artifact: Json) -> tuple[bytes, bool]:
        formats = artifact["formats"]
        known = [self._format, f"{self._format}.zst", "jsonl", "protobuf"]
        format_id = next(wanted for wanted in known if wanted in formats)
        entry = formats[format_id]
        data = (self._destination / self._key(artifact, format_id)).read_bytes()
        assert len(data) == entry["size_bytes"]
        assert entry.get("sha256") in (None, hashlib.sha256(data).hexdigest())
        if format_id.endswith(".zst"):
            data = plain_of(data)
        return data, format_id.startswith("jsonl")

    def _key(self, artifact: Json, format_id: str) -> str:
        given: str | None = artifact["formats"][format_id].get("key")
        if given is not None:
            return given
        ends = [artifact["from_position"], artifact["to_position"]][artifact["kind"] != "diff" :]
        name = "-".join([artifact["kind"], *(end.replace("/", "_") or "0" for end in ends)])
        extension = {"jsonl": ".jsonl", "protobuf": ".pb"}[format_id]
        return f"{self._prefix}epoch={artifact['epoch']}/{name}{extension}"

    def _fields(self, base: Json) -> Sequence[str]:
        columns = self.manifest.get("columns", ())
        key = sorted((c["PrimaryKeyOrdinal"], c["Name"]) for c in columns if c["PrimaryKeyOrdinal"])
        return base.get("key_fields") or [name for _, name in key] or ["id"]

    def _keyed(self, rows: Iterator[str], base: Json) -> Iterator[tuple[str, str]]:
        fields = self._fields(base)
        if self._is_originals:
            return ((original_key_of(row, fields), row) for row in map(_unescaped, rows))
        return ((key_of(row, fields), row) for row in rows)


def _check(artifact: Json, state: State) -> None:
    if "state_checksum" in artifact:
        digests = [hashlib.md5(line.encode()).hexdigest() for line in state.values()]
        total = sum(int(digest, 16) for digest in digests) % 2**128
        assert artifact["rows"] == len(state)
        assert artifact["state_checksum"] == f"{total:032x}"


def _lines(data: bytes) -> Sequence[str]:
    return data.decode().removesuffix("\n").split("\n") if data else []


def _unescaped(line: str) -> str:
    """Without Go's escapes of <, >, &, U+2028 and U+2029; the golden rows have no others."""
    return re.sub(r"\\u(003[ce]|0026|202[89])", lambda found: chr(int(found[1], 16)), line)


def _compact(line: str) -> str:
    """Without blanks outside of values, for files of other writers; rows are one level deep."""
    try:
        members(line)
    except (ValueError, AssertionError):
        return json.dumps(json.loads(line), separators=(",", ":"), ensure_ascii=False)
    return line


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = shift = 0
        more = True
        while more:
            size |= (data[at] & 0x7F) << shift
            more = data[at] > 0x7F
            at, shift = at + 1, shift + 7
        yield data[at : at + size]
        at += size


def _line(row: Struct, columns: Sequence[Json] | None) -> str:
    types = {column["name"]: column["type"] for column in columns or ()}
    names = list(types) or sorted(row.fields)
    values = [
        _text(row.fields[name], types.get(name)) if name in row.fields else "null" for name in names
    ]
    parts = [f"{_string(name)}:{value}" for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(parts) + "}"


def _text(value: Value, type_name: str | None) -> str:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return _of_string(value.string_value, type_name)
    if kind == "number_value":
        return _of_number(value.number_value, type_name)
    if kind == "list_value":
        element = type_name and type_name.removeprefix("_")
        return "[" + ",".join(_text(item, element) for item in value.list_value.values) + "]"
    if kind == "struct_value":
        return value.struct_value.fields["json"].string_value
    return "null" if kind == "null_value" else json.dumps(value.bool_value)


def _of_string(text: str, type_name: str | None) -> str:
    is_number = type_name in INTEGER_TYPES or type_name in FLOAT_TYPES
    if type_name in JSON_TYPES or (is_number and _NUMBER.fullmatch(text)):
        return text
    return _string(text)


def _of_number(number: float, type_name: str | None) -> str:
    if type_name not in FLOAT_TYPES and number.is_integer():
        return str(int(number))
    return postgres_float(number, FLOAT_TYPES.get(type_name or "", 15))


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
