"""Writes an archive as the original program does, by what docs/archive-format.md says of it.

Nothing here comes from laredo_archive, nor from the golden archives' own writer, but for the
generated protobuf classes: it stands for another program. It writes changes as they are described,
not as they follow from states.
"""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from google.protobuf.struct_pb2 import Struct

from laredo_archive.wire.artifact_pb2 import DiffChange, SnapshotRow

FIRST_DESTINATION = "file:///srv/first destination/"
"""Its manifests say these URIs in every destination."""
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
Row = Mapping[str, Any]


def written(name: str, described: Mapping[str, Any], states: Sequence[Sequence[str]]) -> Any:
    """Its files by path; ``states`` are the rows at the end of each artifact, as JSON."""
    files: dict[str, bytes] = {}
    artifacts: list[dict[str, Any]] = []
    key_fields = described.get("key_fields", ["id"])
    start: str | None = None
    for step, rows in zip(described["artifacts"], states, strict=True):
        is_base = step["kind"] == "snapshot"
        end = step["to"]
        stem = f"snapshot-{_sane(end)}" if is_base else f"diff-{_sane(start or '')}-{_sane(end)}"
        records = [json.loads(row) for row in rows] if is_base else step["changes"]
        formats = {}
        for format_id in described["formats"]:
            jsonl = format_id == "jsonl"
            path = f"{name}/epoch={step['epoch']}/{stem}{'.jsonl' if jsonl else '.pb'}"
            encode = (_row if is_base else _change) if jsonl else (_message if is_base else _diff)
            files[path] = b"".join(encode(record, key_fields) for record in records[::-1])
            formats[format_id] = {"uri": FIRST_DESTINATION + path, "size_bytes": len(files[path])}
        artifacts.append(
            {
                "kind": step["kind"],
                "epoch": step["epoch"],
                "from_position": None if is_base else start,
                "to_position": end,
                "created_at": f"2026-06-03T{step['time']}.123456789Z",
                **({"row_count" if is_base else "change_count": len(records)} if records else {}),
                "formats": formats,
            }
        )
        start = end
    manifest = {
        "manifest_version": 1,
        "table": described["table"],
        "epoch": artifacts[-1]["epoch"],
        "updated_at": "2026-06-03T12:00:00.5Z",
        "head_position": artifacts[-1]["to_position"],
        "artifacts": artifacts,
        **({"columns": described["columns"]} if "columns" in described else {}),
    }
    files[f"{name}/manifest.json"] = json.dumps(manifest, indent=2).encode()
    return files


def _sane(position: str) -> str:
    return re.sub("[/: ]", "_", position) or "0"


def _go_json(value: Any) -> str:
    """encoding/json: members by name, <, > and & escaped."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "".join(_HTML.get(character, character) for character in text)


def go_v(value: Any) -> str:
    """fmt.Sprintf("%v"): numbers are float64, after a Struct."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(go_v, value))}]"
    if isinstance(value, str):
        return value
    return _float(float(value))


def _float(number: float) -> str:
    """%v of a float64: the shortest digits, with an exponent below 1e-4 and from 1e+06 up."""
    exact = Decimal(repr(number)).normalize()
    exponent = exact.adjusted()
    if number == 0 or -5 < exponent < 6:
        return f"{exact:f}"
    digits = "".join(map(str, exact.as_tuple().digits))
    fraction = f".{digits[1:]}" if digits[1:] else ""
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _key(row: Row | None, key_fields: Sequence[str]) -> str:
    values = [(row or {}).get(name) for name in key_fields]
    return go_v(values[0] if len(values) == 1 else values)


def _row(row: Row, _: Sequence[str]) -> bytes:
    return f"{_go_json(row)}\n".encode()


def _change(change: Sequence[Any], key_fields: Sequence[str]) -> bytes:
    action, old, new = change
    parts = {"action": action, "key": _key(new or old, key_fields)}
    parts |= {name: row for name, row in (("old", old), ("new", new)) if row}
    inside = ",".join(f'"{name}":{_go_json(part)}' for name, part in parts.items())
    return f"{{{inside}}}\n".encode()


def _struct(row: Row) -> Struct:
    struct = Struct()
    struct.update(row)
    return struct


def _with_length(message: bytes) -> bytes:
    size, prefix = len(message), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*prefix, size]) + message


def _message(row: Row, _: Sequence[str]) -> bytes:
    return _with_length(SnapshotRow(row=_struct(row)).SerializeToString(deterministic=True))


def _diff(change: Sequence[Any], key_fields: Sequence[str]) -> bytes:
    action, old, new = change
    message = DiffChange(action=action, key=_key(new or old, key_fields))
    if old:
        message.old.CopyFrom(_struct(old))
    if new:
        message.new.CopyFrom(_struct(new))
    return _with_length(message.SerializeToString(deterministic=True))
