"""Blocks of the configuration that match tables of a server by name."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import structlog

from laredo_archive.manifest import object_keys
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_service.table_pattern import STAR, TableName, TablePattern
from laredo_snapshotter import config
from laredo_snapshotter.config import SnapshotterBlock, TableBlock, TableConfig
from laredo_snapshotter.errors import ConfigRefused

log = structlog.get_logger(__name__)


class ServedPattern(NamedTuple):
    """A pattern, and the server whose tables it matches."""

    endpoint: Endpoint
    pattern: TablePattern


Found = Mapping[ServedPattern, Collection[TableName]]
"""The tables that patterns match, of those whose server has answered."""


class _Entry(NamedTuple):
    path: str
    inner: TableBlock
    """As it is written."""
    whole: TableBlock
    """With what it inherits."""

    @property
    def served(self) -> ServedPattern:
        source = self.whole.source
        return ServedPattern(source.endpoint(self.path), source.pattern)


def patterns(block: SnapshotterBlock) -> dict[ServedPattern, str]:
    """The patterns of the configuration, each with its path.

    :raises ConfigRefused: if one lacks something, or has what each table needs for itself.
    """
    found = {}
    for entry in _entries(block):
        if entry.whole.source.is_pattern:
            _check_pattern(entry)
            found[entry.served] = entry.path
        else:
            _check_table(entry)
    return found


def tables(
    block: SnapshotterBlock, found: Found, written: Collection[TableName] = ()
) -> list[TableConfig]:
    """The tables that ``block`` comes to, those of patterns included.

    A pattern whose server hasn't answered yet stands for what is ``written`` already; beyond
    ``max_tables`` that comes first.

    :raises ConfigRefused: if one lacks something, or two would write to the same location.
    """
    entries = list(_entries(block))
    listed = [entry for entry in entries if not entry.whole.source.is_pattern]
    taken = {_name(entry.whole) for entry in listed}
    made = [TableConfig(entry.whole, entry.path) for entry in listed]
    for entry in entries:
        if not entry.whole.source.is_pattern:
            continue
        candidates = set(entry.whole.source.pattern.of(found.get(entry.served, written)))
        names = _bounded(entry, candidates - taken, written)
        taken.update(names)
        made += [TableConfig(_of_table(block, entry, name), entry.path) for name in names]
    config.check_apart(made)
    return made


def name_of(table: TableConfig) -> TableName:
    """The table, as PostgreSQL calls it."""
    return TableName(table.schema_name, table.table_name)


def _entries(block: SnapshotterBlock) -> Iterator[_Entry]:
    if not block.tables:
        yield _Entry("snapshotter", block, block)
        return
    config.check_forms(block)
    for number, inner in enumerate(block.tables):
        yield _Entry(f"snapshotter.tables[{number}]", inner, config.over(block, inner))


def _name(block: TableBlock) -> TableName:
    return TableName(block.source.schema_name, block.source.table or "")


def _check_pattern(entry: _Entry) -> None:
    """:raises ConfigRefused: it lacks something, or has what each table needs for itself."""
    TableConfig(entry.whole, entry.path)
    for key, value in (
        ("key_prefix", entry.whole.key_prefix),
        ("source.client_id", entry.whole.source.client_id),
    ):
        if value is not None:
            raise ConfigRefused(
                f"{entry.path}.{key}: each table of a pattern has its own; leave it out"
            )


def _check_table(entry: _Entry) -> None:
    """:raises ConfigRefused: it has what is for a pattern."""
    for key in sorted({"exclude", "max_tables"} & entry.inner.source.model_fields_set):
        raise ConfigRefused(
            f"{entry.path}.source.{key}: is for a pattern, a table with a * in its name"
        )


def _bounded(
    entry: _Entry, names: Collection[TableName], written: Collection[TableName]
) -> list[TableName]:
    most = entry.whole.source.max_tables
    ordered = sorted(names, key=lambda name: (name not in written, name))
    if len(ordered) > most:
        left_out = [".".join(name) for name in ordered[most:]]
        log.error(
            "tables left out: the pattern matches more than max_tables",
            pattern=entry.path,
            max_tables=most,
            left_out=left_out[:20],
            number=len(left_out),
            cure="raise max_tables, or exclude some, and reload",
        )
    return sorted(ordered[:most])


def _of_table(block: SnapshotterBlock, entry: _Entry, name: TableName) -> TableBlock:
    source = entry.whole.source
    update: dict[str, object] = {
        "source": source.model_copy(
            update={"schema_name": name.schema, "table": name.table, "exclude": ()}
        )
    }
    if STAR in source.schema_name:
        # Two schemas may have a table of the same name.
        prefix = object_keys.default_prefix(f"{name.schema}.{name.table}")
        update["key_prefix"] = _directory(entry, prefix)
    around = entry.whole if entry.whole is not block else config.over(block, TableBlock())
    return around.model_copy(update=update)


def _directory(entry: _Entry, prefix: str) -> str:
    try:
        return object_keys.directory_prefix(prefix)
    except ValueError as wrong:
        raise ConfigRefused(f"{entry.path}: {wrong}") from wrong
