"""The parser of manifest.json: every field is checked, every error names its path in the file."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from laredo_archive.errors import ManifestDamaged, ManifestNewer
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import (
    PARTS_VERSION,
    VERSION,
    Artifact,
    ArtifactKind,
    EpochPosition,
    Follows,
    FormatEntry,
    Former,
    Manifest,
    Parts,
    Retired,
)
from laredo_archive.storage.destination import is_plain
from laredo_model import column as columns
from laredo_model import position as histories
from laredo_model.column import Column
from laredo_model.errors import ModelError
from laredo_model.position import Position
from laredo_service import files

T = TypeVar("T")

LARGEST = (1 << 63) - 1


class WrongField(ValueError):
    """A field that isn't as it should be; the message names its path."""


def name_of(value: object) -> str:
    """Name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


class Fields:
    """One object's fields, taken out one by one; what is left over is unknown."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise WrongField(f"{path}: an object is expected, not {name_of(value)}")
        self._left = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field exists, and wasn't taken yet."""
        return name in self._left

    def take(self, name: str, read: Callable[[object, str], T]) -> T:
        """A field that must be there."""
        if name not in self._left:
            raise WrongField(f"{self.path(name)} is missing")
        return read(self._left.pop(name), self.path(name))

    def take_or(self, name: str, read: Callable[[object, str], T], default: T) -> T:
        """A field that may be missing, or null."""
        value = self._left.pop(name, None)
        return default if value is None else read(value, self.path(name))

    def take_if_any(self, name: str, read: Callable[[object, str], T]) -> T | None:
        """A field that may be missing."""
        value = self._left.pop(name, None)
        return None if value is None else read(value, self.path(name))

    def unknown(self) -> Mapping[str, Any]:
        """The fields that weren't taken."""
        return self._left


def text(value: object, path: str) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise WrongField(f"{path}: a string is expected, not {name_of(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as wrong:
            raise WrongField(f"{path}: {value!r} isn't Unicode text ({wrong.reason})") from wrong
    return value


def _parsed_by(parse_text: Callable[[str], T]) -> Callable[[object, str], T]:
    """Reads a string and parses it."""

    def read(value: object, path: str) -> T:
        try:
            return parse_text(text(value, path))
        except ModelError as wrong:
            raise WrongField(f"{path}: {wrong}") from wrong

    return read


time = _parsed_by(files.parse)
"""Parses a time in ISO 8601, in UTC."""
position = _parsed_by(histories.parse)
history = _parsed_by(histories.parse_history)


def count(value: object, path: str) -> int:
    """A whole number, not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        found_value = value if isinstance(value, int | float) else name_of(value)
        raise WrongField(
            f"{path}: a whole number from 0 to {LARGEST} is expected, not {found_value}"
        )
    return value


def flag(value: object, path: str) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise WrongField(f"{path}: true or false is expected, not {name_of(value)}")
    return value


def list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    """Reads a list, each item by ``read``."""

    def read_list(value: object, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise WrongField(f"{path}: a list is expected, not {name_of(value)}")
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_list


def map_of(read: Callable[[object, str], T]) -> Callable[[object, str], dict[str, T]]:
    """Reads an object, each value by ``read``."""

    def read_map(value: object, path: str) -> dict[str, T]:
        if not isinstance(value, dict):
            raise WrongField(f"{path}: an object is expected, not {name_of(value)}")
        return {text(name, path): read(item, f"{path}.{name}") for name, item in value.items()}

    return read_map


DEEPEST_PARTS = 32
"""The levels of merged diffs within merged diffs that one list may have."""


def parse(data: bytes, where: str, key_prefix: str = "") -> Manifest:
    """Parse a manifest; ``where`` is its URI, for messages.

    Entries of the original writer have no keys: these are computed, below ``key_prefix``. Only the
    structure is checked; rules.check() checks that the artifacts follow each other.

    :raises ManifestDamaged: if it isn't JSON, or a known field is missing or mistyped.
    :raises ManifestNewer: if a later version of this program wrote it.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise ManifestDamaged(where, f"not JSON ({wrong})") from wrong
    if not isinstance(content, dict):
        raise ManifestDamaged(where, f"a JSON object is expected, not {name_of(content)}")
    version = content.get("manifest_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > PARTS_VERSION:
        raise ManifestNewer(where, version, PARTS_VERSION)
    if version not in (VERSION, PARTS_VERSION):
        raise ManifestDamaged(
            where, f"manifest_version is {version!r}, expected {VERSION} or {PARTS_VERSION}"
        )
    try:
        return _manifest(Fields(content, ""), key_prefix)
    except WrongField as wrong:
        raise ManifestDamaged(where, str(wrong)) from wrong


def _hex_digits(length: int) -> Callable[[object, str], str]:
    """Reads a string of ``length`` lower-case hex digits."""
    match = re.compile(rf"[0-9a-f]{{{length}}}\Z").match

    def read(value: object, path: str) -> str:
        digits = text(value, path)
        if not match(digits):
            raise WrongField(f"{path}: {length} hex digits are expected, not {digits!r}")
        return digits

    return read


_checksum, _sha256 = _hex_digits(32), _hex_digits(64)


def _key(value: object, path: str) -> str:
    key = text(value, path)
    if not is_plain(key):
        raise WrongField(f"{path}: the key {key!r} isn't inside the destination")
    return key


def _split(value: object, path: str) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise WrongField(f"{path}: a pair [key, offset] is expected")
    return text(value[0], f"{path}[0]"), count(value[1], f"{path}[1]")


def _block(value: object, path: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise WrongField(f"{path}: a pair [offset, CRC-32] is expected")
    return count(value[0], f"{path}[0]"), count(value[1], f"{path}[1]")


def _blocks(value: object, path: str) -> tuple[tuple[int, int], ...]:
    found = list_of(_block)(value, path)
    if any(after <= before for (before, _), (after, _) in pairwise(found)):
        raise WrongField(f"{path}: the blocks' offsets don't ascend")
    return found


def column(value: object, path: str) -> Column:
    """Parse a column's object."""
    if not isinstance(value, dict):
        raise WrongField(f"{path}: an object is expected, not {name_of(value)}")
    try:
        for name in ("name", "type"):
            text(value.get(name), f"{path}.{name}")
        return columns.from_json(value)
    except ModelError as wrong:
        raise WrongField(f"{path}: {wrong}") from wrong


def _columns(value: object, path: str) -> tuple[Column, ...]:
    found = list_of(column)(value, path)
    names = [column.name for column in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WrongField(f"{path}: two columns are called {twice!r}")
    return found


def _position_or_none_yet(value: object, path: str) -> Position:
    """A position; empty in the original's manifests before its client knows one."""
    return histories.ZERO if value == "" else position(value, path)


def _formats(fields: Fields, folder: str, name: str) -> dict[str, FormatEntry]:
    """``name``: the objects' name without extension, for entries that have no keys."""

    def read(value: object, path: str) -> FormatEntry:
        return _format_entry(value, path, f"{folder}{name}")

    return fields.take("formats", map_of(read))


def _format_entry(value: object, path: str, stem: str) -> FormatEntry:
    fields = Fields(value, path)
    # Writers of a sha256 write a key too: an entry with a sha256 and no key is damaged.
    by_original = not fields.has("key") and not fields.has("sha256")
    return FormatEntry(
        uri=fields.take("uri", text),
        size_bytes=fields.take("size_bytes", count),
        key=_computed_key(stem, path) if by_original else fields.take("key", _key),
        by_original=by_original,
        sha256=fields.take_if_any("sha256", _sha256),
        sorted=fields.take_or("sorted", flag, False),
        splits=fields.take_or("splits", list_of(_split), ()),
        blocks=fields.take_or("blocks", _blocks, ()),
        exact=fields.take_or("exact", flag, True),
        lost=fields.take_or("lost", flag, False),
        source=fields.unknown(),
    )


def _computed_key(stem: str, path: str) -> str:
    return _key(f"{stem}{object_keys.extension(path.rpartition('.formats.')[2])}", path)


def _follows(value: object, path: str) -> Follows:
    fields = Fields(value, path)
    return Follows(
        epoch=fields.take("epoch", count),
        position=fields.take("position", position),
        history=fields.take_if_any("history", history),
        rows=fields.take_if_any("rows", count),
        state_checksum=fields.take_if_any("state_checksum", _checksum),
    )


_COLUMN_FIELDS = frozenset(Column("", "").to_json())


def _unknown_of_columns(artifact: object) -> list[dict[str, Any]]:
    described = artifact.get("columns") if isinstance(artifact, dict) else None
    return [
        {name: value for name, value in column.items() if name not in _COLUMN_FIELDS}
        for column in described or []
    ]


def _original_name(value: object) -> str:
    """An artifact's name as the original makes it, from the positions as they are written."""
    given = value if isinstance(value, dict) else {}
    ends = [str(given.get(name) or "0") for name in ("from_position", "to_position")]
    start, end = (text.replace("/", "_") for text in ends)
    kind = given.get("kind")
    return f"{kind}-{end}" if kind == ArtifactKind.SNAPSHOT else f"{kind}-{start}-{end}"


def artifact(value: object, path: str, key_prefix: str, depth: int = 0) -> Artifact:
    """Parse an artifact's entry; ``depth``: number of merged diffs that it is nested in.

    :raises WrongField: if a known field is missing or mistyped.
    """
    fields = Fields(value, path)
    kind = fields.take("kind", text)
    if kind not in tuple(ArtifactKind):
        raise WrongField(f"{path}.kind is {kind!r}, expected 'snapshot' or 'diff'")
    is_snapshot = kind == ArtifactKind.SNAPSHOT
    # Validated before its columns' unknown fields are picked out of the raw object.
    described = fields.take_if_any("columns", _columns) if is_snapshot else None
    unknown_of_columns = _unknown_of_columns(value) if described is not None else []
    epoch = fields.take("epoch", count)
    folder = f"{key_prefix}epoch={epoch}/"
    formats = _formats(fields, folder, _original_name(value))
    by_original = any(entry.by_original for entry in formats.values())
    read_position = _position_or_none_yet if by_original else position
    found = Artifact(
        kind=ArtifactKind(kind),
        epoch=epoch,
        from_position=fields.take_if_any("from_position", read_position),
        to_position=fields.take("to_position", read_position),
        created_at=fields.take("created_at", time),
        formats=formats,
        row_count=_records(fields, "row_count", by_original) if is_snapshot else None,
        change_count=None if is_snapshot else _records(fields, "change_count", by_original),
        history=fields.take_if_any("history", history),
        to_time=fields.take_if_any("to_time", time),
        rows=fields.take_if_any("rows", count),
        state_checksum=fields.take_if_any("state_checksum", _checksum),
        continues=fields.take_if_any("continues", flag) if is_snapshot else None,
        columns=described,
        key_fields=fields.take_if_any("key_fields", list_of(text)) if is_snapshot else None,
        follows=fields.take_if_any("follows", _follows) if is_snapshot else None,
        reason=fields.take_if_any("reason", text) if is_snapshot else None,
        truncate=False if is_snapshot else fields.take_or("truncate", flag, False),
        cancelled=None if is_snapshot else fields.take_if_any("cancelled", count),
        unchanged_until=None if is_snapshot else fields.take_if_any("unchanged_until", position),
        parts=None if is_snapshot else fields.take_if_any("parts", _parts_below(key_prefix, depth)),
        source=_source_of(fields.unknown(), unknown_of_columns),
    )
    if not is_snapshot and found.from_position is None:
        raise WrongField(f"{path}.from_position is missing: a diff begins somewhere")
    return found


def _parts_below(key_prefix: str, depth: int) -> Callable[[object, str], Parts]:
    def read(value: object, path: str) -> Parts:
        if depth == DEEPEST_PARTS:
            raise WrongField(f"{path}: diffs within diffs, more than {DEEPEST_PARTS} levels")

        def read_diff(value: object, path: str) -> Artifact:
            return artifact(value, path, key_prefix, depth + 1)

        fields = Fields(value, path)
        found = Parts(
            count=fields.take("count", count),
            diffs=fields.take_or("diffs", list_of(read_diff), ()),
            file=fields.take_if_any("file", _file),
        )
        if (found.file is None) != bool(found.diffs):
            there = "both are" if found.diffs else "neither is"
            raise WrongField(f"{path}: either diffs or file is expected, but {there} there")
        return found

    return read


def _file(value: object, path: str) -> FormatEntry:
    fields = Fields(value, path)
    return FormatEntry(
        uri=fields.take("uri", text),
        size_bytes=fields.take("size_bytes", count),
        key=fields.take("key", _key),
        sha256=fields.take("sha256", _sha256),
        source=fields.unknown(),
    )


def _records(fields: Fields, name: str, by_original: bool) -> int:
    # The original leaves out what is 0, as Go's encoding/json does with omitempty.
    return fields.take_or(name, count, 0) if by_original else fields.take(name, count)


def _source_of(unknown: Mapping[str, Any], of_columns: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {**unknown, "columns": of_columns} if any(of_columns) else unknown


def _key_fields(value: object, path: str) -> tuple[str, ...]:
    """The primary key's columns, by the columns that ``laredo archive export`` records."""

    def read(column: object, at: str) -> tuple[int, str]:
        fields = Fields(column, at)
        return fields.take_or("PrimaryKeyOrdinal", count, 0), fields.take("Name", text)

    return tuple(name for ordinal, name in sorted(list_of(read)(value, path)) if ordinal)


def _with_key_fields(
    artifacts: tuple[Artifact, ...], key_fields: tuple[str, ...]
) -> tuple[Artifact, ...]:
    if not key_fields:
        return artifacts
    return tuple(
        replace(artifact, key_fields=key_fields) if artifact.is_snapshot else artifact
        for artifact in artifacts
    )


def _retired(value: object, path: str) -> Retired:
    fields = Fields(value, path)
    return Retired(
        key=fields.take("key", _key),
        at=fields.take_if_any("at", time),
        deleting=fields.take_if_any("deleting", text),
        source=fields.unknown(),
    )


def _former(value: object, path: str) -> Former:
    fields = Fields(value, path)
    return Former(
        key=fields.take("key", _key), epoch=fields.take("epoch", count), source=fields.unknown()
    )


def _notified(value: object, path: str) -> EpochPosition | None:
    if value is None:
        return None
    fields = Fields(value, path)
    return EpochPosition(fields.take("epoch", count), fields.take("position", position))


def _manifest(fields: Fields, key_prefix: str) -> Manifest:
    fields.take("manifest_version", count)

    def read_artifact(value: object, path: str) -> Artifact:
        return artifact(value, path, key_prefix)

    artifacts: tuple[Artifact, ...] = fields.take_or("artifacts", list_of(read_artifact), ())
    by_original = any(each.by_original for each in artifacts)
    head = _position_or_none_yet if by_original else position
    if by_original:
        artifacts = _with_key_fields(artifacts, fields.take_or("columns", _key_fields, ()))
    return Manifest(
        table=fields.take("table", text),
        epoch=fields.take("epoch", count),
        updated_at=fields.take("updated_at", time),
        head_position=fields.take_if_any("head_position", head),
        artifacts=artifacts,
        history=fields.take_if_any("history", history),
        writer_id=fields.take_if_any("writer_id", text),
        writer_term=fields.take_or("writer_term", count, 0),
        seen_position=fields.take_if_any("seen_position", position),
        seen_at=fields.take_if_any("seen_at", time),
        unchanged_until=fields.take_if_any("unchanged_until", position),
        notified=fields.take_or("notified", map_of(_notified), {}),
        retired=fields.take_or("retired", list_of(_retired), ()),
        former=fields.take_or("former", list_of(_former), ()),
        revision=fields.take_or("revision", count, 0),
        source=fields.unknown(),
    )
