"""catalog.json: the archives of one destination, and positions at which all of them are known.

It is made from the archives' manifests, so nothing is lost with it. Each writer process has a group
of tables in it, and leaves the groups of others.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from laredo_archive.errors import CatalogUnusable
from laredo_archive.manifest.model import text_of_time, with_unknown
from laredo_archive.manifest.parser import (
    Fields,
    WrongField,
    column,
    count,
    history,
    list_of,
    map_of,
    position,
    text,
    time,
)
from laredo_archive.storage.destination import is_plain
from laredo_model import position as histories
from laredo_model.column import Column
from laredo_model.position import History, Position

VERSION = 1
CATALOG = "catalog.json"
MOST_BOUNDARIES = 100
"""Boundaries of a group in the catalog; the manifests have the older ones."""


@dataclass(frozen=True)
class CatalogEntry:
    """The catalog's entry of one table's archive."""

    #: ``schema.name``.
    table: str
    #: The group of the process that writes it.
    group: str
    #: The columns at the archive's head.
    columns: tuple[Column, ...] = ()
    #: The key's columns; none for a table without a key.
    key_fields: tuple[str, ...] = ()
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The entry's object, known fields first."""
        known = {
            "table": self.table,
            "group": self.group,
            "columns": [column.to_json() for column in self.columns],
            "key_fields": list(self.key_fields),
        }
        return with_unknown(known, self.source)


@dataclass(frozen=True)
class GroupBoundary:
    """A position at which every table of a group is as at its last boundary at or before it."""

    #: What the position belongs to.
    history: History
    position: Position
    #: No transaction in the tables committed later.
    time: datetime

    def to_json(self) -> dict[str, Any]:
        """The boundary as JSON in ``groups``."""
        return {
            "history": str(self.history),
            "position": histories.text(self.position),
            "time": text_of_time(self.time),
        }


@dataclass(frozen=True)
class Inherited:
    """Positions at which a former process knew its archives."""

    #: The archives, by their prefixes.
    archives: frozenset[str] = frozenset()
    #: The positions.
    boundaries: tuple[GroupBoundary, ...] = ()

    def before(
        self, archives: Iterable[str], later: Sequence[GroupBoundary]
    ) -> list[GroupBoundary]:
        """These positions and the ``later`` ones of a process that has ``archives`` now."""
        if not self.archives.issuperset(archives):
            return list(later)
        kept = [
            each
            for each in self.boundaries
            if not any(
                new.history == each.history and new.position <= each.position for new in later
            )
        ]
        return [*kept, *later]


@dataclass(frozen=True)
class DatabaseCatalog:
    """The archives of one destination."""

    #: When it was last changed, by the writer's clock.
    updated_at: datetime
    #: The archives, by what is between the destination and their manifests: ``users/``.
    archives: Mapping[str, CatalogEntry] = field(default_factory=dict)
    #: The newest common boundaries of each group, oldest first.
    groups: Mapping[str, tuple[GroupBoundary, ...]] = field(default_factory=dict)
    #: Grows with every change, so that no two versions have the same bytes.
    revision: int = 0
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def names(self) -> dict[str, str]:
        """The archives' prefixes by their tables' names; by themselves where two have one name."""
        tables = [entry.table for entry in self.archives.values()]
        return {
            entry.table if tables.count(entry.table) == 1 else prefix.rstrip("/"): prefix
            for prefix, entry in sorted(self.archives.items())
        }

    def boundaries(self, prefix: str) -> tuple[GroupBoundary, ...]:
        """Boundaries at which the archive at ``prefix`` and its group are known."""
        return self.groups.get(self.archives[prefix].group, ())

    def with_group(
        self,
        group: str,
        archives: Mapping[str, CatalogEntry],
        boundaries: Iterable[GroupBoundary],
    ) -> "DatabaseCatalog":
        """The catalog with what one process writes; what others write stays.

        A group that loses an archive to this one is dropped, as its process has ended. A process
        that still runs enters its archives again.
        """
        over = {group, *self.taken_from(archives)}
        others = {
            prefix: entry for prefix, entry in self.archives.items() if entry.group not in over
        }
        known = {
            name: found
            for name, found in self.groups.items()
            if any(entry.group == name for entry in others.values())
        }
        newest = tuple(boundaries)[-MOST_BOUNDARIES:]
        mine = {group: newest} if archives else {}
        return replace(self, archives={**others, **archives}, groups={**known, **mine})

    def inherited_by(self, archives: Iterable[str]) -> "Inherited":
        """Boundaries and archives that a process takes over from the one before it.

        Nothing unless all of its archives were in one group.
        """
        taken = self.taken_from(archives)
        if len(taken) != 1:
            return Inherited()
        (group,) = taken
        prefixes = {prefix for prefix, entry in self.archives.items() if entry.group == group}
        return Inherited(frozenset(prefixes), self.groups.get(group, ()))

    def taken_from(self, archives: Iterable[str]) -> set[str]:
        """The groups that have these archives."""
        return {self.archives[prefix].group for prefix in archives if prefix in self.archives}

    def to_bytes(self) -> bytes:
        """The object's bytes: JSON, one archive and one group a line."""
        archives = {prefix: entry.to_json() for prefix, entry in sorted(self.archives.items())}
        groups = {name: [each.to_json() for each in found] for name, found in self.groups.items()}
        members = {
            "catalog_version": _json(VERSION),
            "updated_at": _json(text_of_time(self.updated_at)),
            "archives": _lines(archives),
            "groups": _lines(groups),
            "revision": _json(self.revision),
        }
        for name, value in self.source.items():
            members.setdefault(name, _json(value))
        body = ",\n".join(f"{_json(name)}:{value}" for name, value in members.items())
        return f"{{\n{body}\n}}\n".encode()


_json = json.JSONEncoder(separators=(",", ":")).encode


def _lines(members: Mapping[str, object]) -> str:
    lines = ",\n".join(f"{_json(name)}:{_json(value)}" for name, value in members.items())
    return f"{{\n{lines}\n}}" if lines else "{}"


def parse(data: bytes, where: str) -> DatabaseCatalog:
    """Parse a catalog; ``where`` is its URI, for messages.

    :raises CatalogUnusable: if it isn't one, or of a later version.
    """
    try:
        fields = Fields(json.loads(data), "")
        version = fields.take("catalog_version", count)
        if version != VERSION:
            raise WrongField(f"catalog_version is {version}, and this program knows {VERSION} only")
        return DatabaseCatalog(
            updated_at=fields.take("updated_at", time),
            archives=_prefixed(fields.take("archives", map_of(_entry))),
            groups=fields.take("groups", map_of(list_of(_boundary))),
            revision=fields.take_or("revision", count, 0),
            source=fields.unknown(),
        )
    except (ValueError, RecursionError) as wrong:
        raise CatalogUnusable(where, str(wrong)) from None


def _prefixed(archives: dict[str, CatalogEntry]) -> dict[str, CatalogEntry]:
    for prefix in archives:
        if prefix and not is_plain(prefix.removesuffix("/")):
            raise WrongField(f"archives: the prefix {prefix!r} isn't inside the destination")
    return archives


def _entry(value: object, path: str) -> CatalogEntry:
    fields = Fields(value, path)
    return CatalogEntry(
        table=fields.take("table", text),
        group=fields.take("group", text),
        columns=fields.take_or("columns", list_of(column), ()),
        key_fields=fields.take_or("key_fields", list_of(text), ()),
        source=fields.unknown(),
    )


def _boundary(value: object, path: str) -> GroupBoundary:
    fields = Fields(value, path)
    return GroupBoundary(
        fields.take("history", history),
        fields.take("position", position),
        fields.take("time", time),
    )
