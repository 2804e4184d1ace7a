"""The ``snapshotter`` block: its schema and defaults, and the tables that its patterns match.

One table can be written in the short form, straight in the block; ``tables`` is a list of full
blocks, each of which inherits the keys that it lacks from the block around it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Literal, NamedTuple, TypeVar

import structlog
from pydantic import Field, field_validator, model_validator

from laredo_archive.manifest import object_keys
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_service import settings
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import Duration, Path, Section, Size, path_text
from laredo_service.table_pattern import STAR, TableName, TablePattern
from laredo_snapshotter.config_outputs import (
    CompactionBlock,
    Count,
    CredentialsBlock,
    DestinationConfig,
    FormatsBlock,
    RetentionBlock,
    SinkConfig,
    SourceBlock,
    check_names,
    profiles_of,
)
from laredo_snapshotter.errors import ConfigRefused
from laredo_snapshotter.triggers import Triggers

ENV_PREFIX = "LAREDO_SNAPSHOTTER_"
TOP: Path = ("snapshotter",)
"""Path of the block that contains all the others."""

Block = TypeVar("Block", bound=Section)
Positive = Annotated[float, Field(gt=0)]


class DiffBlock(Section):
    """Interval of diffs, and the most memory for changes that wait for one."""

    interval: Annotated[Duration, Field(gt=0)] = 60.0
    """Interval at which changes become a diff; the tables of one process are cut at the same
    position at every multiple of the longest interval."""
    max_memory: Annotated[Size, Field(ge=64 * 1024)] = 16 * 1024 * 1024
    """Most memory for changes that wait; more changes cause an early diff."""


class SnapshotBlock(Section):
    """Triggers of a new base; an omitted trigger is off, except for max_diffs."""

    min_interval: Annotated[Duration, Field(ge=0)] = 0.0
    """Shortest time between new bases, whatever the triggers; from 10,000 diffs on (or
    ``max_diffs``, if that is more) it no longer delays one."""
    max_interval: Annotated[Duration, Field(gt=0)] | None = None
    """Longest time between new bases, on a quiet table too."""
    max_diff_bytes: Annotated[Size, Field(gt=0)] | None = None
    """Sum of the diffs since the base, each in its largest format, that triggers a new base."""
    max_diff_fraction: Positive | None = None
    """Sum of the diffs since the base, as a part of the base's size, that triggers a new base."""
    max_churn_records: Count | None = None
    """Net changes of the diffs since the base that trigger a new base: a row counts once a diff."""
    max_churn_fraction: Positive | None = None
    """Net changes of the diffs since the base, as a part of the table's rows now, that trigger a
    new base."""
    max_diffs: Annotated[int, Field(ge=0)] = 2000
    """Number of diffs since the base that triggers a new base; 0: off."""


Destination = Annotated[DestinationConfig, Field(discriminator="type")]
Sink = Annotated[SinkConfig, Field(discriminator="type")]


class TableBlock(Section):
    """One table; keys that it lacks come from the block around it."""

    source: SourceBlock = SourceBlock()
    diff: DiffBlock = DiffBlock()
    snapshot: SnapshotBlock = SnapshotBlock()
    destinations: tuple[Destination, ...] = ()
    formats: FormatsBlock = FormatsBlock()
    events: tuple[Sink, ...] = ()
    credentials: dict[str, CredentialsBlock] = Field(default_factory=dict)
    retention: RetentionBlock = RetentionBlock()
    compaction: CompactionBlock = CompactionBlock()
    key_prefix: str | None = None
    """The archive's directory in each destination; by default ``<table>/``, and
    ``<schema>.<table>/`` if ``schema`` is a pattern. ``users`` and ``users/`` are the same."""
    key_fields: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The key's columns; checked against the table's key, and refused if different."""
    key_format: Literal["text", "go"] = "text"
    """``go``: jsonl diffs contain each key also as Go's %v prints it, for readers of the original
    program; needs ``formats.diff = [jsonl]`` and ``formats.compression = none``."""
    seen_interval: Annotated[Duration, Field(ge=0)] = 60.0
    """Interval at which a quiet table's manifest records that the table is still followed; 0:
    never."""

    @field_validator("key_prefix")
    @classmethod
    def _directory(cls, prefix: str | None) -> str | None:
        return None if prefix is None else object_keys.directory_prefix(prefix)


class HttpBlock(HttpSettings):
    """Health, status, metrics and POST /snapshot."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8082
    """Port of the HTTP side; 0: any free one."""

    @property
    def dangers(self) -> list[str]:
        """Dangerous settings of the HTTP port, as ``path: text``."""
        danger = "may read the status and have new bases written: no token is required"
        return self.warnings("snapshotter.http", danger)


class SnapshotterBlock(TableBlock):
    """The whole program's configuration."""

    http: HttpBlock = HttpBlock()
    tables: tuple[TableBlock, ...] = ()

    @model_validator(mode="after")
    def _names_are_known(self) -> "SnapshotterBlock":
        check_names(self.destinations, self.events, self.credentials)
        for number, table in enumerate(self.tables):
            known = {**self.credentials, **table.credentials}
            try:
                check_names(table.destinations, table.events, known)
            except settings.WrongAt as wrong:
                raise settings.WrongAt(("tables", number, *wrong.path), str(wrong)) from None
        return self

    @model_validator(mode="after")
    def _tables_fit_together(self) -> "SnapshotterBlock":
        try:
            patterns(self)
            matching_tables(self, {})
        except ConfigRefused as refused:
            raise settings.WrongAt(refused.path[len(TOP) :], refused.reason) from None
        return self


class Root(Section):
    """The root of the configuration file."""

    snapshotter: SnapshotterBlock


class TableConfig:
    """One table's configuration, complete."""

    def __init__(self, block: TableBlock, path: Path) -> None:
        """``path`` is its place in the configuration, for messages.

        :raises ConfigRefused: if something that has no default is missing.
        """
        source = block.source
        if source.server is None:
            reason = "is required: the server's host:port"
            raise ConfigRefused((*path, "source", "server"), reason)
        if source.table is None:
            raise ConfigRefused((*path, "source", "table"), "is required")
        if not block.destinations:
            raise ConfigRefused((*path, "destinations"), "is required: one at least")
        self.path, self._block = path, block
        self.served_name = TableName(source.schema_name, source.table)
        self.name = ".".join(self.served_name)
        self.client_id = source.client_id or f"laredo-snapshotter:{self.name}"
        self.endpoint = source.endpoint(path)
        self.spill_directory = source.local_snapshot_path
        self.diff = block.diff
        self.triggers = Triggers(**block.snapshot.model_dump())
        longest, shortest = self.triggers.max_interval, self.triggers.min_interval
        if longest is not None and longest < shortest:
            raise ConfigRefused(
                (*path, "snapshot", "max_interval"),
                f"{longest:g} s is shorter than min_interval, {shortest:g} s, which would hold it"
                " back",
            )
        self.destinations: list[DestinationConfig] = list(block.destinations)
        """As configured: notices name the first one's URIs."""
        self.sinks: list[SinkConfig] = list(block.events)
        self.profiles = profiles_of(block.credentials)
        self.formats = block.formats
        self.retention = block.retention
        self.compaction = block.compaction
        self.key_prefix = (
            _default_prefix(path, source.table) if block.key_prefix is None else block.key_prefix
        )
        if not self.key_prefix and block.retention.collect_interval:
            raise ConfigRefused(
                (*path, "key_prefix"),
                "is empty, so other objects in the destination can't be distinguished from this"
                " archive's garbage. Name a directory (default:"
                f' "{object_keys.default_prefix(source.table)}"), or switch the collector off:'
                " retention { collect_interval = 0 }",
            )
        self.key_fields = block.key_fields
        self.key_format = block.key_format
        if block.key_format == "go" and list(block.formats.diff) != ["jsonl"]:
            raise ConfigRefused(
                (*path, "key_format"),
                "go needs formats.diff = [jsonl]: a protobuf diff has room for one key only, so"
                " readers of the original program would find other rows. Remove protobuf from"
                " formats.diff, or remove key_format",
            )
        if block.key_format == "go" and block.formats.compression != "none":
            raise ConfigRefused(
                (*path, "key_format"),
                "go is for readers of the original program, which can't read compressed artifacts."
                " Remove key_format or formats.compression",
            )
        self.seen_interval = block.seen_interval

    def is_as(self, other: "TableConfig") -> bool:
        """True if both have the same settings, wherever they are in the file."""
        own, others = self._block, other._block
        return all(getattr(own, key) == getattr(others, key) for key in TableBlock.model_fields)


def load(path: FilePath | None, sets: Sequence[str] = ()) -> SnapshotterBlock:
    """The configuration from file, conf.d and ``--set``, in rising precedence.

    :raises SettingsError: naming file and line, or path, of everything that is wrong.
    """
    root = settings.load(
        path, env_prefix=ENV_PREFIX, env_root="snapshotter", sets=sets, schema=Root
    )
    return root.snapshotter


def _default_prefix(path: Path, name: str) -> str:
    """The directory of the table ``name``, whose block has no ``key_prefix``."""
    try:
        return object_keys.directory_prefix(object_keys.default_prefix(name))
    except ValueError as wrong:
        reason = f"the default for the table {name} is refused: {wrong}; set a key_prefix"
        raise ConfigRefused((*path, "key_prefix"), reason) from None


def _over(outer: TableBlock, inner: TableBlock) -> TableBlock:
    """``inner``, with the keys that it lacks from ``outer``."""
    around = TableBlock.model_construct(
        outer.model_fields_set & set(TableBlock.model_fields),
        **{name: getattr(outer, name) for name in TableBlock.model_fields},
    )
    return _merged(around, inner)


def _merged(outer: Block, inner: Block) -> Block:
    """``outer`` with the members of ``inner`` in place of its own.

    Sections and names are merged, lists are replaced.
    """
    update: dict[str, object] = {}
    for name in inner.model_fields_set:
        own, inherited = getattr(inner, name), getattr(outer, name)
        if isinstance(own, Section) and isinstance(inherited, type(own)):
            update[name] = _merged(inherited, own)
        elif isinstance(own, dict) and isinstance(inherited, dict):
            update[name] = {**inherited, **own}
        else:
            update[name] = own
    return outer.model_copy(update=update)


def _check_apart(found: list[TableConfig]) -> None:
    """Refuse a table, destination or sink that is listed twice, and an archive inside another."""
    names: dict[str, TableConfig] = {}
    archives: list[tuple[str, str, str]] = []
    for table in found:
        other = names.setdefault(table.name, table)
        if other is not table:
            reason = f"{table.name} is already written by {path_text(other.path)}"
            raise ConfigRefused(table.path, reason)
        _check_once(table.path, "destinations", [each.location for each in table.destinations])
        _check_once(table.path, "events", [sink.name for sink in table.sinks])
        for destination in table.destinations:
            store, path = destination.below(table.key_prefix)
            _check_own(table, store, path, archives)
            archives.append((store, path, path_text(table.path)))


def _check_once(path: Path, key: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigRefused((*path, key), f"{twice} is listed twice; remove one")


def _check_own(
    table: TableConfig, store: str, path: str, archives: list[tuple[str, str, str]]
) -> None:
    """Refuse an archive whose directory contains another's, or is inside it."""
    for other_store, other_path, other in archives:
        if store == other_store and (path.startswith(other_path) or other_path.startswith(path)):
            raise ConfigRefused(
                (*table.path, "key_prefix"),
                f'one of the archives "{path}" and "{other_path}" (of {other}) contains the other'
                f" in {store}; give each its own key_prefix",
            )


# Blocks of the configuration that match tables of a server by name.

log = structlog.get_logger(__name__)


class ServedPattern(NamedTuple):
    """A pattern, and the server whose tables it matches."""

    endpoint: Endpoint
    pattern: TablePattern


Found = Mapping[ServedPattern, Collection[TableName]]
"""The tables that patterns match, of those whose server has answered."""


class _Entry(NamedTuple):
    path: Path
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
            found[entry.served] = path_text(entry.path)
        else:
            _check_table(entry)
    return found


def matching_tables(
    block: SnapshotterBlock, found: Found, written: Collection[TableName] = ()
) -> list[TableConfig]:
    """The complete configuration of each table in ``block``, with the tables that patterns match.

    A pattern whose server hasn't answered yet matches the tables that are ``written`` already. If
    more than ``max_tables`` match, those that are ``written`` already are kept first.

    :raises ConfigRefused: if one lacks something, or two would write to the same location.
    """
    entries = list(_entries(block))
    listed = [entry for entry in entries if not entry.whole.source.is_pattern]
    made = [TableConfig(entry.whole, entry.path) for entry in listed]
    taken = {table.served_name for table in made}
    for entry in entries:
        if not entry.whole.source.is_pattern:
            continue
        candidates = set(entry.whole.source.pattern.of(found.get(entry.served, written)))
        names = _bounded(entry, candidates - taken, written)
        taken.update(names)
        made += [TableConfig(_of_table(block, entry, name), entry.path) for name in names]
    _check_apart(made)
    return made


def _entries(block: SnapshotterBlock) -> Iterator[_Entry]:
    if not block.tables:
        yield _Entry(TOP, block, block)
        return
    if block.source.table is not None:
        raise ConfigRefused(
            (*TOP, "source", "table"),
            "conflicts with snapshotter.tables, whose blocks have their own source; move it into"
            " one of them",
        )
    for number, inner in enumerate(block.tables):
        yield _Entry((*TOP, "tables", number), inner, _over(block, inner))


def _check_pattern(entry: _Entry) -> None:
    """:raises ConfigRefused: it lacks a setting, or has one that each table needs for itself."""
    TableConfig(entry.whole, entry.path)
    for key, value in (
        (("key_prefix",), entry.whole.key_prefix),
        (("source", "client_id"), entry.whole.source.client_id),
    ):
        if value is not None:
            reason = "each table of a pattern has its own; remove it"
            raise ConfigRefused((*entry.path, *key), reason)


def _check_table(entry: _Entry) -> None:
    """:raises ConfigRefused: the table has a setting that only a pattern can have."""
    for key in sorted({"exclude", "max_tables"} & entry.inner.source.model_fields_set):
        reason = "is for a pattern, a table with a * in its name; remove it"
        raise ConfigRefused((*entry.path, "source", key), reason)


def _bounded(
    entry: _Entry, names: Collection[TableName], written: Collection[TableName]
) -> list[TableName]:
    most = entry.whole.source.max_tables
    ordered = sorted(names, key=lambda name: (name not in written, name))
    if len(ordered) > most:
        left_out = [".".join(name) for name in ordered[most:]]
        log.error(
            "tables left out: the pattern matches more than max_tables",
            pattern=path_text(entry.path),
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
        update["key_prefix"] = _default_prefix(entry.path, f"{name.schema}.{name.table}")
    around = entry.whole if entry.whole is not block else _over(block, TableBlock())
    return around.model_copy(update=update)
