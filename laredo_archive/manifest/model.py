"""The model of manifest.json, versions 1 and 2: the list of an archive's artifacts.

An immutable value: every change makes a new manifest. Unknown fields are kept (in ``source``) and
written again, wherever they are; fields that this program adds to the original format (columns,
rows, checksums, histories) are None where they are missing. parser.py reads it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.position import History, Position


def text_of_time(moment: datetime) -> str:
    """A time as manifests write it: UTC, ``Z``, microseconds only where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def with_unknown(known: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """``known`` with the fields of ``source`` that it lacks."""
    for name, value in source.items():
        if name not in known:
            known[name] = value
    return known


@dataclass(frozen=True)
class Retired:
    """An object that no artifact names any more, and that the collector will delete."""

    key: str
    #: Since when, by the store's Date; None until the manifest's next change.
    at: datetime | None = None
    #: The run of the collector that deletes it.
    deleting: str | None = None
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The object as it is in ``retired``."""
        known: dict[str, Any] = {"key": self.key}
        if self.at is not None:
            known["at"] = text_of_time(self.at)
        if self.deleting is not None:
            known["deleting"] = self.deleting
        return with_unknown(known, self.source)


@dataclass(frozen=True)
class Former:
    """The object that a diff had before a re-base copied it into a later epoch's folder."""

    key: str
    #: The epoch whose folder it is in: the object is retired when that leaves the manifest.
    epoch: int
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The object as it is in ``former``."""
        return with_unknown({"key": self.key, "epoch": self.epoch}, self.source)


@dataclass(frozen=True)
class FormatEntry:
    """One object that holds an artifact in one format."""

    uri: str
    size_bytes: int
    #: Its key, relative to the destination.
    key: str
    #: Its sha256; None in archives of other writers.
    sha256: str | None = None
    #: Whether its rows are sorted by key.
    sorted: bool = False
    #: (row key, byte offset) pairs at which tasks can begin to read.
    splits: tuple[tuple[str, int], ...] = ()
    #: (byte offset, CRC-32) of each block.
    blocks: tuple[tuple[int, int], ...] = ()
    #: Whether the format gives the rows' lines back byte for byte.
    exact: bool = True
    #: Whether the object is known to be lost for good; a later base makes up for it.
    lost: bool = False
    #: Whether the original writer's manifest names it, which has no keys: ``key`` was computed.
    by_original: bool = field(default=False, compare=False)
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def same_content(self, other: "FormatEntry") -> bool:
        """True if size and sha256 are equal, wherever the objects are; without sha256, the size."""
        return self.size_bytes == other.size_bytes and self.sha256 == other.sha256

    def to_json(self) -> dict[str, Any]:
        """The entry's object, known fields first."""
        known: dict[str, Any] = {"uri": self.uri, "size_bytes": self.size_bytes, "key": self.key}
        if self.sha256 is not None:
            known["sha256"] = self.sha256
        known["sorted"] = self.sorted
        if self.splits:
            known["splits"] = [list(split) for split in self.splits]
        if self.blocks:
            known["blocks"] = [list(block) for block in self.blocks]
        if not self.exact:
            known["exact"] = False
        if self.lost:
            known["lost"] = True
        return with_unknown(known, self.source)


@dataclass(frozen=True)
class Follows:
    """The head that a base was put after. It shows that a new history isn't another archive."""

    #: The head's epoch.
    epoch: int
    #: The head's position.
    position: Position
    #: The head's history.
    history: History | None
    #: The table's rows at the head.
    rows: int | None = None
    #: The table's checksum at the head.
    state_checksum: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as it is in a snapshot's entry."""
        return {
            "epoch": self.epoch,
            "position": positions.text(self.position),
            "history": None if self.history is None else str(self.history),
            "rows": self.rows,
            "state_checksum": self.state_checksum,
        }


VERSION = 1
PARTS_VERSION = 2
"""Version of manifests in which merged diffs have parts. A program that doesn't know parts may
read, but would take their objects for garbage."""


class ArtifactKind(StrEnum):
    """The kind of an artifact: the whole table, or the changes since the artifact before."""

    SNAPSHOT = "snapshot"
    DIFF = "diff"


class EpochPosition(NamedTuple):
    """A point in an archive's history: its head, or the artifact that a sink was notified of."""

    epoch: int
    #: An artifact's to_position.
    position: Position


def _text_of_position(position: Position | None) -> str | None:
    return None if position is None else positions.text(position)


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True)
class Artifact:
    """A base snapshot at ``to_position``, or the net changes over (from, to]."""

    #: Base or diff.
    kind: ArtifactKind
    #: The epoch that it belongs to.
    epoch: int
    #: Where a diff begins; None for a base.
    from_position: Position | None
    #: Where it ends.
    to_position: Position
    #: When it was written, by the writer's clock.
    created_at: datetime
    #: Its objects, by format.
    formats: Mapping[str, FormatEntry]
    #: A base's rows.
    row_count: int | None = None
    #: A diff's changes.
    change_count: int | None = None
    #: The history of its positions.
    history: History | None = None
    #: PostgreSQL's commit time of the last transaction up to to_position.
    to_time: datetime | None = None
    #: The whole table's rows at to_position.
    rows: int | None = None
    #: The whole table's checksum at to_position.
    state_checksum: str | None = None
    #: Whether no change was missed between the epoch before and this base.
    continues: bool | None = None
    #: The table's columns, in a base.
    columns: tuple[Column, ...] | None = None
    #: The key's columns, in a base.
    key_fields: tuple[str, ...] | None = None
    #: The head that a base of a new history was put after.
    follows: Follows | None = None
    #: Why a base doesn't continue the epoch before, as a sentence.
    reason: str | None = None
    #: Whether the diff begins with a TRUNCATE.
    truncate: bool = False
    #: Upper bound of the keys that changed in the diff's window and changed back; None: unknown.
    #: At 0 the diff also leads from every position in its window to its end.
    cancelled: int | None = None
    #: The last position at which the table is known to be as it is at the diff's from_position;
    #: None: at that one only.
    unchanged_until: Position | None = None
    #: The diffs that a merged diff takes the place of; None: it is none, or they were dropped.
    parts: "Parts | None" = None
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_snapshot(self) -> bool:
        return self.kind is ArtifactKind.SNAPSHOT

    @property
    def by_original(self) -> bool:
        """True if the original writer wrote it (docs/archive-format.md)."""
        return any(entry.by_original for entry in self.formats.values())

    @property
    def knows_its_end(self) -> bool:
        """True if ``to_position`` is recorded: the original's first base lacks it."""
        return not (self.by_original and self.to_position == positions.ZERO)

    @property
    def records_truncation(self) -> bool:
        """True if ``truncate`` is recorded; other writers' diffs leave it out."""
        return self.truncate or self.history is not None

    @cached_property
    def size_bytes(self) -> int:
        """The size of its largest format."""
        return max((entry.size_bytes for entry in self.formats.values()), default=0)

    @property
    def keys(self) -> list[str]:
        """The keys of its objects."""
        return [entry.key for entry in self.formats.values()]

    def objects(self) -> Iterator[FormatEntry]:
        """Its objects, and those of its parts as far as the manifest holds their entries."""
        yield from self.formats.values()
        if self.parts is not None:
            yield from self.parts.objects()

    def with_parts(self) -> Iterator["Artifact"]:
        """It, and its parts as far as the manifest holds their entries."""
        yield self
        for part in self.parts.diffs if self.parts is not None else ():
            yield from part.with_parts()

    def lists_of_parts(self) -> list[str]:
        """The keys of the files that list its parts, and their parts, as far as known here."""
        parts = (each.parts for each in self.with_parts())
        return [each.file.key for each in parts if each is not None and each.file is not None]

    def same_as(self, other: "Artifact") -> bool:
        """True if both are the same artifact, wherever their objects are.

        A diff stays itself when a re-base gives it another epoch.
        """
        return (
            self.kind is other.kind
            and (self.epoch == other.epoch or not self.is_snapshot)
            and self.from_position == other.from_position
            and self.to_position == other.to_position
            and self.history == other.history
            and self.formats.keys() == other.formats.keys()
            and all(entry.same_content(other.formats[id_]) for id_, entry in self.formats.items())
        )

    def relabelled(self, epoch: int) -> "Artifact":
        """Copy the artifact into another epoch."""
        return replace(self, epoch=epoch)

    def moved(self, entries: Mapping[str, FormatEntry]) -> "Artifact":
        """Copy the artifact with other objects; ``entries`` has them by their former keys."""
        formats = {id_: entries.get(entry.key, entry) for id_, entry in self.formats.items()}
        parts = None if self.parts is None else self.parts.moved(entries)
        return replace(self, formats=formats, parts=parts)

    def to_json(self) -> dict[str, Any]:
        """The artifact's object, known fields first."""
        known: dict[str, Any] = {
            "kind": self.kind.value,
            "epoch": self.epoch,
            "from_position": _text_of_position(self.from_position),
            "to_position": positions.text(self.to_position),
            "created_at": text_of_time(self.created_at),
        }
        if self.is_snapshot:
            known["row_count"] = self.row_count
        else:
            known["change_count"] = self.change_count
        known["formats"] = {id_: entry.to_json() for id_, entry in self.formats.items()}
        for name, value in self._added().items():
            if value is not None:
                known[name] = value
        return with_unknown(known, self.source)

    def _added(self) -> dict[str, Any]:
        added: dict[str, Any] = {
            "history": _text_or_none(self.history),
            "to_time": None if self.to_time is None else text_of_time(self.to_time),
            "rows": self.rows,
            "state_checksum": self.state_checksum,
        }
        if not self.is_snapshot:
            added["truncate"] = self.truncate
            added["cancelled"] = self.cancelled
            added["unchanged_until"] = _text_of_position(self.unchanged_until)
            added["parts"] = None if self.parts is None else self.parts.to_json()
            return added
        added["continues"] = self.continues
        added["reason"] = self.reason
        added["columns"] = self._columns_to_json()
        added["key_fields"] = None if self.key_fields is None else list(self.key_fields)
        added["follows"] = None if self.follows is None else self.follows.to_json()
        return added

    def _columns_to_json(self) -> list[dict[str, Any]] | None:
        if self.columns is None:
            return None
        described = [column.to_json() for column in self.columns]
        unknown = self.source.get("columns") or [{}] * len(described)
        return [
            with_unknown(known, source) for known, source in zip(described, unknown, strict=True)
        ]

    @cached_property
    def text(self) -> str:
        """The artifact's object as JSON text, made once."""
        return _json(self.to_json())


@dataclass(frozen=True)
class Parts:
    """The diffs that a merged diff takes the place of, in their order: here, or in a file.

    They lead where the merged diff leads, in smaller steps, so each of their ends is a boundary.
    """

    #: Number of diffs as they were committed, at all levels.
    count: int
    #: The next level's diffs, each of which may be merged itself; none if they are in a file.
    diffs: tuple[Artifact, ...] = ()
    #: The file that lists them.
    file: FormatEntry | None = None

    @property
    def listed(self) -> int:
        """The number of diffs whose entries the manifest holds because of these parts."""
        return sum(1 + (diff.parts.listed if diff.parts else 0) for diff in self.diffs)

    def objects(self) -> Iterator[FormatEntry]:
        """The file, or the objects of the diffs here and of their parts."""
        if self.file is not None:
            yield self.file
        for diff in self.diffs:
            yield from diff.objects()

    def moved(self, entries: Mapping[str, FormatEntry]) -> "Parts":
        """Copy the parts with other objects; ``entries`` has them by their former keys."""
        file = None if self.file is None else entries.get(self.file.key, self.file)
        return replace(self, diffs=tuple(diff.moved(entries) for diff in self.diffs), file=file)

    def to_json(self) -> dict[str, Any]:
        """The object as it is in a diff's entry."""
        if self.file is not None:
            return {"count": self.count, "file": self.file.to_json()}
        return {"count": self.count, "diffs": [diff.to_json() for diff in self.diffs]}


@dataclass(frozen=True)
class Manifest:
    """One destination's list of artifacts, in (epoch, position) order, and its writer's claim."""

    #: The table, ``schema.name``.
    table: str
    #: When it was last changed, by the writer's clock.
    updated_at: datetime
    #: The newest epoch; 0: none yet.
    epoch: int = 0
    #: The newest artifact's to_position.
    head_position: Position | None = None
    #: The artifacts, oldest first.
    artifacts: tuple[Artifact, ...] = ()
    #: The history of the head.
    history: History | None = None
    #: The writer that has claimed it; None in a copy.
    writer_id: str | None = None
    #: The term of its claim, which grows with every claim.
    writer_term: int = 0
    #: Up to where the archive is known to be complete.
    seen_position: Position | None = None
    #: When that was raised.
    seen_at: datetime | None = None
    #: The last position at which the table is known to be as it is at the head; None: there only.
    unchanged_until: Position | None = None
    #: The newest artifact that each sink was notified of.
    notified: Mapping[str, EpochPosition | None] = field(default_factory=dict)
    #: The objects to delete.
    retired: tuple[Retired, ...] = ()
    #: The first objects of diffs that a re-base gave to later epochs.
    former: tuple[Former, ...] = ()
    #: Grows with every change, so that no two versions have the same bytes.
    revision: int = 0
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def version(self) -> int:
        """The format's version that it needs."""
        has_parts = any(artifact.parts is not None for artifact in self.artifacts)
        return PARTS_VERSION if has_parts else VERSION

    @property
    def head(self) -> EpochPosition | None:
        """Epoch and head_position; None while there is no artifact."""
        return None if self.head_position is None else EpochPosition(self.epoch, self.head_position)

    @property
    def last(self) -> Artifact | None:
        """The newest artifact."""
        return self.artifacts[-1] if self.artifacts else None

    @property
    def by_original(self) -> bool:
        """True if the original writer wrote any of its artifacts; it is never changed then."""
        return any(artifact.by_original for artifact in self.artifacts)

    def named(self) -> Iterator[FormatEntry]:
        """Every object that an artifact names, or its parts here; a file of parts names more."""
        for artifact in self.artifacts:
            yield from artifact.objects()

    def retired_keys(self) -> set[str]:
        """Every object on its way to be deleted."""
        return {entry.key for entry in self.retired}

    def kept_keys(self) -> set[str]:
        """Every object that stays: an artifact's, or a former one."""
        return {entry.key for entry in self.named()} | {entry.key for entry in self.former}

    def known_keys(self) -> set[str]:
        """Every object that the manifest mentions; no other gets such a name."""
        return self.kept_keys() | self.retired_keys()

    def to_bytes(self) -> bytes:
        """The object's bytes: JSON, one artifact a line."""
        members = {name: _json(value) for name, value in self._before().items()}
        lines = ",\n".join(artifact.text for artifact in self.artifacts)
        members["artifacts"] = f"[\n{lines}\n]" if lines else "[]"
        members |= {name: _json(value) for name, value in self._after().items()}
        for name, value in self.source.items():
            members.setdefault(name, _json(value))
        body = ",\n".join(f"{_json(name)}:{text}" for name, text in members.items())
        return f"{{\n{body}\n}}\n".encode()

    def _before(self) -> dict[str, Any]:
        return {
            "manifest_version": self.version,
            "table": self.table,
            "epoch": self.epoch,
            "updated_at": text_of_time(self.updated_at),
            "head_position": _text_of_position(self.head_position),
        }

    def _after(self) -> dict[str, Any]:
        return {
            "history": _text_or_none(self.history),
            "writer_id": self.writer_id,
            "writer_term": self.writer_term,
            "seen_position": _text_of_position(self.seen_position),
            "seen_at": None if self.seen_at is None else text_of_time(self.seen_at),
            **self._unchanged(),
            "notified": {
                sink: None
                if mark is None
                else {"epoch": mark.epoch, "position": positions.text(mark.position)}
                for sink, mark in self.notified.items()
            },
            "retired": [entry.to_json() for entry in self.retired],
            **({"former": [entry.to_json() for entry in self.former]} if self.former else {}),
            "revision": self.revision,
        }

    def _unchanged(self) -> dict[str, Any]:
        until = _text_of_position(self.unchanged_until)
        return {} if until is None else {"unchanged_until": until}


_json = json.JSONEncoder(separators=(",", ":")).encode
# ASCII only: a lone surrogate in someone's unknown field survives too.
