"""Parses manifest.json: every field is checked, every error names its path in the file."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from laredo_archive.errors import ManifestDamaged, ManifestNewer
from laredo_archive.manifest.model import (
    VERSION,
    Artifact,
    ArtifactKind,
    EpochPosition,
    Follows,
    FormatEntry,
    Manifest,
    Retired,
)
from laredo_archive.storage.destination import is_plain
from laredo_model import column as columns
from laredo_model import history as histories
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.errors import ModelError
from laredo_model.history import History
from laredo_model.position import Position

T = TypeVar("T")

_LARGEST = (1 << 63) - 1
_MD5 = re.compile(r"[0-9a-f]{32}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def parse(data: bytes, where: str) -> Manifest:
    """Parse a manifest; ``where`` is its URI, for messages.

    Structure only; rules.check checks that the artifacts follow each other.

    :raises ManifestDamaged: if it isn't JSON, or a known field is missing or mistyped.
    :raises ManifestNewer: if a later version of this program wrote it.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise ManifestDamaged(where, f"not JSON ({wrong})") from wrong
    if not isinstance(content, dict):
        raise ManifestDamaged(where, f"a JSON object is expected, not {_name_of(content)}")
    version = content.get("manifest_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise ManifestNewer(where, version, VERSION)
    if version != VERSION:
        raise ManifestDamaged(where, f"manifest_version is {version!r}, expected {VERSION}")
    try:
        return _manifest(_Fields(content, ""))
    except _Wrong as wrong:
        raise ManifestDamaged(where, str(wrong)) from wrong


class _Wrong(ValueError):
    pass


def _name_of(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


class _Fields:
    """One object's fields, taken out one by one; what is left over is unknown."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"{path}: an object is expected, not {_name_of(value)}")
        self._left = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str, read: Callable[[object, str], T]) -> T:
        """A field that must be there."""
        if name not in self._left:
            raise _Wrong(f"{self.path(name)} is missing")
        return read(self._left.pop(name), self.path(name))

    def take_or(self, name: str, read: Callable[[object, str], T], default: T) -> T:
        """A field that may be missing, or null."""
        value = self._left.pop(name, None)
        return default if value is None else read(value, self.path(name))

    def take_if_any(self, name: str, read: Callable[[object, str], T]) -> T | None:
        value = self._left.pop(name, None)
        return None if value is None else read(value, self.path(name))

    def unknown(self) -> Mapping[str, Any]:
        return self._left


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{path}: a string is expected, not {_name_of(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as wrong:
            raise _Wrong(f"{path}: {value!r} isn't Unicode text ({wrong.reason})") from wrong
    return value


def _count(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        found_value = value if isinstance(value, int | float) else _name_of(value)
        raise _Wrong(f"{path}: a whole number from 0 to {_LARGEST} is expected, not {found_value}")
    return value


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{path}: true or false is expected, not {_name_of(value)}")
    return value


def _position(value: object, path: str) -> Position:
    try:
        return positions.parse(_text(value, path))
    except ModelError as wrong:
        raise _Wrong(f"{path}: {wrong}") from wrong


def _history(value: object, path: str) -> History:
    try:
        return histories.parse(_text(value, path))
    except ModelError as wrong:
        raise _Wrong(f"{path}: {wrong}") from wrong


def _time(value: object, path: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value, path))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise _Wrong(f"{path}: {wrong}") from wrong


def _list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    def read_list(value: object, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _Wrong(f"{path}: a list is expected, not {_name_of(value)}")
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_list


def _map_of(read: Callable[[object, str], T]) -> Callable[[object, str], dict[str, T]]:
    def read_map(value: object, path: str) -> dict[str, T]:
        if not isinstance(value, dict):
            raise _Wrong(f"{path}: an object is expected, not {_name_of(value)}")
        return {_text(name, path): read(item, f"{path}.{name}") for name, item in value.items()}

    return read_map


def _checksum(value: object, path: str) -> str:
    text = _text(value, path)
    if not _MD5.match(text):
        raise _Wrong(f"{path}: 32 hex digits are expected, not {text!r}")
    return text


def _sha256(value: object, path: str) -> str:
    text = _text(value, path)
    if not _SHA256.match(text):
        raise _Wrong(f"{path}: 64 hex digits are expected, not {text!r}")
    return text


def _key(value: object, path: str) -> str:
    key = _text(value, path)
    if not is_plain(key):
        raise _Wrong(f"{path}: the key {key!r} doesn't lie inside a destination")
    return key


def _split(value: object, path: str) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong(f"{path}: a pair [key, offset] is expected")
    return _text(value[0], f"{path}[0]"), _count(value[1], f"{path}[1]")


def _block(value: object, path: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong(f"{path}: a pair [offset, CRC-32] is expected")
    return _count(value[0], f"{path}[0]"), _count(value[1], f"{path}[1]")


def _column(value: object, path: str) -> Column:
    if not isinstance(value, dict):
        raise _Wrong(f"{path}: an object is expected, not {_name_of(value)}")
    try:
        for name in ("name", "type"):
            _text(value.get(name), f"{path}.{name}")
        return columns.from_json(value)
    except ModelError as wrong:
        raise _Wrong(f"{path}: {wrong}") from wrong


def _columns(value: object, path: str) -> tuple[Column, ...]:
    found = _list_of(_column)(value, path)
    names = [column.name for column in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _Wrong(f"{path}: two columns are called {twice!r}")
    return found


def _format_entry(value: object, path: str) -> FormatEntry:
    fields = _Fields(value, path)
    return FormatEntry(
        uri=fields.take("uri", _text),
        size_bytes=fields.take("size_bytes", _count),
        key=fields.take("key", _key),
        sha256=fields.take_if_any("sha256", _sha256),
        sorted=fields.take_or("sorted", _flag, False),
        splits=fields.take_or("splits", _list_of(_split), ()),
        blocks=fields.take_or("blocks", _list_of(_block), ()),
        exact=fields.take_or("exact", _flag, True),
        source=fields.unknown(),
    )


def _follows(value: object, path: str) -> Follows:
    fields = _Fields(value, path)
    return Follows(
        epoch=fields.take("epoch", _count),
        position=fields.take("position", _position),
        history=fields.take_if_any("history", _history),
        rows=fields.take_if_any("rows", _count),
        state_checksum=fields.take_if_any("state_checksum", _checksum),
    )


_COLUMN_FIELDS = frozenset(Column("", "").to_json())


def _unknown_of_columns(artifact: object) -> list[dict[str, Any]]:
    described = artifact.get("columns") if isinstance(artifact, dict) else None
    return [
        {name: value for name, value in column.items() if name not in _COLUMN_FIELDS}
        for column in described or []
    ]


def _artifact(value: object, path: str) -> Artifact:
    fields = _Fields(value, path)
    kind = fields.take("kind", _text)
    if kind not in tuple(ArtifactKind):
        raise _Wrong(f"{path}.kind is {kind!r}, expected 'snapshot' or 'diff'")
    is_snapshot = kind == ArtifactKind.SNAPSHOT
    # Validated before its columns' unknown fields are picked out of the raw object.
    described = fields.take_if_any("columns", _columns) if is_snapshot else None
    unknown_of_columns = _unknown_of_columns(value) if described is not None else []
    artifact = Artifact(
        kind=ArtifactKind(kind),
        epoch=fields.take("epoch", _count),
        from_position=fields.take_if_any("from_position", _position),
        to_position=fields.take("to_position", _position),
        created_at=fields.take("created_at", _time),
        formats=fields.take("formats", _map_of(_format_entry)),
        row_count=fields.take("row_count", _count) if is_snapshot else None,
        change_count=None if is_snapshot else fields.take("change_count", _count),
        history=fields.take_if_any("history", _history),
        to_time=fields.take_if_any("to_time", _time),
        rows=fields.take_if_any("rows", _count),
        state_checksum=fields.take_if_any("state_checksum", _checksum),
        continues=fields.take_if_any("continues", _flag) if is_snapshot else None,
        columns=described,
        key_fields=fields.take_if_any("key_fields", _list_of(_text)) if is_snapshot else None,
        follows=fields.take_if_any("follows", _follows) if is_snapshot else None,
        reason=fields.take_if_any("reason", _text) if is_snapshot else None,
        truncate=False if is_snapshot else fields.take_or("truncate", _flag, False),
        cancelled=None if is_snapshot else fields.take_if_any("cancelled", _count),
        source=_source_of(fields.unknown(), unknown_of_columns),
    )
    if not is_snapshot and artifact.from_position is None:
        raise _Wrong(f"{path}.from_position is missing: a diff begins somewhere")
    return artifact


def _source_of(unknown: Mapping[str, Any], of_columns: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {**unknown, "columns": of_columns} if any(of_columns) else unknown


def _retired(value: object, path: str) -> Retired:
    fields = _Fields(value, path)
    return Retired(
        key=fields.take("key", _key),
        at=fields.take_if_any("at", _time),
        deleting=fields.take_if_any("deleting", _text),
        source=fields.unknown(),
    )


def _notified(value: object, path: str) -> EpochPosition | None:
    if value is None:
        return None
    fields = _Fields(value, path)
    return EpochPosition(fields.take("epoch", _count), fields.take("position", _position))


def _manifest(fields: _Fields) -> Manifest:
    fields.take("manifest_version", _count)
    no_artifacts: tuple[Artifact, ...] = ()
    none_retired: tuple[Retired, ...] = ()
    no_sinks: dict[str, EpochPosition | None] = {}
    return Manifest(
        table=fields.take("table", _text),
        epoch=fields.take("epoch", _count),
        updated_at=fields.take("updated_at", _time),
        head_position=fields.take_if_any("head_position", _position),
        artifacts=fields.take_or("artifacts", _list_of(_artifact), no_artifacts),
        history=fields.take_if_any("history", _history),
        writer_id=fields.take_if_any("writer_id", _text),
        writer_term=fields.take_or("writer_term", _count, 0),
        seen_position=fields.take_if_any("seen_position", _position),
        seen_at=fields.take_if_any("seen_at", _time),
        notified=fields.take_or("notified", _map_of(_notified), no_sinks),
        retired=fields.take_or("retired", _list_of(_retired), none_retired),
        revision=fields.take_or("revision", _count, 0),
        source=fields.unknown(),
    )
