"""The server's configuration (docs/server/configuration.md): HOCON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field, PrivateAttr, field_validator, model_validator

from laredo_archive.manifest import object_keys
from laredo_fanout.source_config import (
    AnySource,
    ArchiveConfig,
    Source,
    Upstream,
    UpstreamTls,
    checked_address,
)
from laredo_service import settings
from laredo_service.http import settings as settings_
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import Duration, SchemaName, Secret, Section, Size
from laredo_service.table_pattern import STAR, TableName, TablePattern

ENV_PREFIX = "LAREDO_"


class ScrubConfig(Section):
    """The scrub reads the whole store in the background, and finds what was damaged on disk."""

    bytes_per_second: Size = Field(default=8 * 10**6, ge=0)
    """Most bytes of rows and journal to read in a second; 0: no scrub."""
    interval: Duration = Field(default=86400.0, gt=0)
    """Interval at which scrubs begin; the first begins a minute after the server's start."""


class StateConfig(Section):
    """Location of the server's state: the LMDB environment."""

    path: Path = Path("./.laredo-fanout")
    """Directory of the durable store (LMDB)."""
    max_size: Size = Field(default=64 * 10**9, ge=1 << 20)
    """Address space of the map, in bytes; disk is used only for what is stored."""
    scrub: ScrubConfig = ScrubConfig()


class TlsConfig(Section):
    """PEM files; with ``client_ca`` clients must present a certificate that this CA signed."""

    cert: Path
    """The server's certificate."""
    key: Path
    """Its private key."""
    client_ca: Path | None = None
    """Clients need a certificate that this CA signed."""


class Grpc(Section):
    """The listener: ``workers`` processes share the port; ``max_clients`` is their total.

    ``max_clients_per_identity`` is the share of one identity: of a token if there are several, else
    of a client certificate, else of an address other than this machine's. By default it is nine
    tenths, so that a fleet with one token has room. ``max_clients_per_client_id`` is the share of
    one client id, by default half: many processes of one host may share an id.
    """

    host: str | None = None
    """Address to listen on. By default 127.0.0.1; with ``tokens_file`` or ``tls`` every
    address."""
    port: int = Field(default=4002, ge=0, le=65535)
    """Port that clients connect to; 0: any free one."""
    workers: int = Field(default=1, ge=1, le=64)
    """Serving processes that share the port."""
    max_clients: int = Field(default=500, ge=1)
    """Most clients of all serving processes together; another one gets RESOURCE_EXHAUSTED."""
    max_clients_per_identity: int | None = Field(default=None, ge=1)
    """Most clients of one identity; by default nine tenths of ``max_clients``."""
    max_clients_per_client_id: int | None = Field(default=None, ge=1)
    """Most clients with the same client id; by default half of ``max_clients``."""
    tls: TlsConfig | None = None
    tokens_file: Path | None = None
    """File with one token a line; clients send theirs as ``authorization: Bearer``."""

    @property
    def listening_host(self) -> str:
        """The address to listen on."""
        protected = self.tokens_file is not None or self.tls is not None
        return settings_.listening_host(self.host, protected=protected)

    def warnings(self, key: str, host: str) -> list[str]:
        """The dangers of listening on ``host``, as ``path: text``; ``key`` is its path."""
        if self.tokens_file is not None or (self.tls is not None and self.tls.client_ca):
            return []
        danger = "may read every table: no token and no certificate is required"
        cure = "set fanout.grpc.tokens_file, or tls with a client_ca"
        found = settings_.warning(key, host, danger, cure)
        return [] if found is None else [found]


class Connect(Section):
    """A second port, for the Connect protocol over HTTP/1.1; off unless it is configured.

    Workers, limits, tokens and TLS are those of ``fanout.grpc``.
    """

    host: str | None = None
    """Address to listen on; by default the one of ``fanout.grpc``."""
    port: int = Field(default=4003, ge=0, le=65535)
    """Port that clients connect to; 0: any free one."""


class Fanout(Section):
    """The clients' side."""

    grpc: Grpc = Grpc()
    connect: Connect | None = None
    drain_grace: Duration = Field(default=10.0, ge=0)
    """Time that clients have to leave after GoAway."""
    spool_max_size: Size = Field(default=32 * 10**9, ge=1 << 20)
    """Disk below ``state.path`` for snapshots that slow clients haven't taken yet."""


class Http(HttpSettings):
    """HTTP port for health, /status, /metrics, and orders such as POST /reload."""

    port: int = Field(default=8081, ge=0, le=65535)
    """Port of the HTTP side; 0: any free one."""


class JournalConfig(Section):
    """Limits of a table's journal for clients that resume; the earlier limit prunes."""

    max_entries: int = Field(default=1_000_000, ge=1)
    """Most changes in the journal."""
    max_age: Duration = Field(default=86400.0, gt=0)
    """Age after which changes leave the journal."""


class LocalStore(Section):
    """A directory."""

    path: Path | None = None
    """Directory of the snapshots; by default below ``state.path``."""


class SnapshotRetention(Section):
    """Limits for keeping periodic snapshots; the newest one always stays."""

    keep_count: int = Field(default=5, ge=1)
    """Number of snapshots to keep."""
    max_age: Duration = Field(default=3600.0, gt=0)
    """Age after which a snapshot is removed, unless it is the newest one."""


class SnapshotConfig(Section):
    """Periodic snapshots, for ListSnapshots and FetchSnapshot. Without the block there are none."""

    interval: Duration = Field(default=300.0, ge=1)
    """Interval between snapshots."""
    store: Literal["local"] = "local"
    """Kind of the snapshots' storage."""
    store_config: LocalStore = LocalStore()
    serializer: Literal["jsonl"] = "jsonl"
    """Format of the snapshots."""
    retention: SnapshotRetention = SnapshotRetention()


class TargetGrpc(Section):
    """The short form of ``fanout.grpc``, in a target: it applies to the one listener."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """``fanout.grpc.port``."""
    max_clients: int | None = Field(default=None, ge=1)
    """``fanout.grpc.max_clients``."""


class ClientBuffer(Section):
    """Most transactions that a live client may lag by, and the policy beyond that."""

    max_size: int = Field(default=50_000, ge=1)
    """Most transactions that a live client may lag by, however many rows each changed."""
    policy: Literal["drop_disconnect", "slow_down"] = "drop_disconnect"
    """Policy for a client that lags by more: ``drop_disconnect`` ends its stream, and it resumes by
    position; ``slow_down`` lets it go on, and sends a new snapshot in the same stream once the
    journal no longer reaches back to it."""


class Target(Section):
    """A target of a table: this server's clients."""

    type: Literal["replication-fanout"] = "replication-fanout"
    """The kind of target."""
    journal: JournalConfig = JournalConfig()
    snapshot: SnapshotConfig | None = None
    grpc: TargetGrpc = TargetGrpc()
    client_buffer: ClientBuffer = ClientBuffer()
    heartbeat_interval: Duration = Field(default=10.0, ge=0.05)
    """Interval at which a quiet stream reports its position."""
    archive: ArchiveConfig | None = None


class ReplicatedTableConfig(Section):
    """A table to replicate, and its target."""

    source: str | None = None
    """Name of the source; may be left out when there is one only."""
    namespace: SchemaName = Field(default="public", alias="schema")
    """The table's schema; names are case-sensitive. With a ``*``, as in ``table``, a pattern."""
    table: str = Field(min_length=1)
    """The table's name. With a ``*``, which matches any characters, the entry is a pattern: all
    matching tables are followed, also those that are created later."""
    exclude: tuple[str, ...] = ()
    """For a pattern: tables that it leaves out, as ``table`` or ``schema.table``, in which a ``*``
    matches any characters."""
    max_tables: int = Field(default=500, ge=1)
    """For a pattern: most tables to follow; the log lists the others."""
    append_only: bool = False
    """For a table without a key, whose rows are only ever inserted."""
    targets: tuple[Target, ...] = (Target(),)
    _by_pattern: bool = PrivateAttr(default=False)

    @property
    def by_pattern(self) -> bool:
        """True if a pattern in the configuration matched this table."""
        return self._by_pattern

    def of_pattern(self, name: TableName) -> ReplicatedTableConfig:
        """One of the tables that this pattern matches."""
        update: dict[str, object] = {
            "namespace": name.schema,
            "table": name.table,
            "exclude": (),
        }
        archive = self.target.archive
        if archive is not None and STAR in self.namespace:
            # As the writer does: two schemas may have a table of the same name.
            prefix = object_keys.default_prefix(f"{name.schema}.{name.table}")
            archive = archive.model_copy(update={"key_prefix": prefix})
            update["targets"] = (self.target.model_copy(update={"archive": archive}),)
        table = self.model_copy(update=update)
        table._by_pattern = True
        return table

    @property
    def name(self) -> str:
        """``schema.table``, as the wire and messages write it."""
        return f"{self.namespace}.{self.table}"

    @property
    def is_pattern(self) -> bool:
        """True if it is a pattern, for all tables whose names match."""
        return STAR in self.namespace or STAR in self.table

    @property
    def pattern(self) -> TablePattern:
        """The pattern, if it is one."""
        return TablePattern(self.namespace, self.table, self.exclude)

    @property
    def target(self) -> Target:
        return self.targets[0]

    @field_validator("targets")
    @classmethod
    def _one_target(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if len(targets) != 1:
            raise ValueError(
                f"a table has exactly one replication-fanout target, this one has {len(targets)};"
                " leave targets out, or leave one"
            )
        return targets

    @model_validator(mode="after")
    def _of_a_pattern(self) -> ReplicatedTableConfig:
        if self.is_pattern:
            archive = self.target.archive
            if archive is not None and archive.key_prefix is not None:
                raise ValueError("a pattern's tables have an archive each: leave key_prefix out")
            return self
        for key in ("exclude", "max_tables"):
            if key in self.model_fields_set:
                raise settings.WrongAt((key,), "is for a pattern, a table with a * in its name")
        return self


class StandbyConfig(Section):
    """Other servers of the same slot: one reads it, the others follow that one and can take over.

    All of them have this block and the same source, publication and tables.
    """

    peers: tuple[str, ...] = Field(min_length=1)
    """Addresses (``host:port``) of the servers' gRPC sides. A server's own may be among them."""
    synchronous: int = Field(default=1, ge=0)
    """Number of standbys that must have a position durably before it is confirmed to PostgreSQL. 0:
    a standby may lack confirmed changes, and can't take over then."""
    patience: Duration = Field(default=30.0, ge=0)
    """Time without enough standbys after which ``alone`` decides."""
    alone: Literal["continue", "wait"] = "continue"
    """``continue``: without enough standbys positions are confirmed all the same, and reported;
    ``wait``: PostgreSQL keeps its WAL until there are enough."""
    takeover_after: Duration = Field(default=3.0, ge=0)
    """If no holder answers that can reach PostgreSQL, a standby takes over a slot that nobody has
    read for this long; one behind another standby waits twice as long. 0: it is taken over only by
    ``laredo-fanout promote`` and at the holder's SIGTERM."""
    tls: UpstreamTls | None = None
    token: Secret | None = None
    """The token that the servers show to each other: who has it may report as a standby, and is
    sent the secret of the slot's claims. Where clients need tokens, the tokens file must have it,
    for all tables."""
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``."""

    @field_validator("peers")
    @classmethod
    def _addresses(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(checked_address, peers))

    @model_validator(mode="after")
    def _one_token(self) -> StandbyConfig:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; give one of them")
        if self.token is None and self.token_file is None:
            raise ValueError(
                "token or token_file is missing: servers of one slot recognize each other by it;"
                " give all of them the same token"
            )
        return self


class Config(Section):
    """The whole configuration of a server."""

    state: StateConfig = StateConfig()
    sources: dict[str, AnySource]
    fanout: Fanout = Fanout()
    http: Http = Http()
    standby: StandbyConfig | None = None
    tables: tuple[ReplicatedTableConfig, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        self._check_sources()
        self._check_tables()
        self._check_standby()
        for key in ("port", "max_clients"):
            self._check_listener(key)
        return self

    def _check_sources(self) -> None:
        if len(self.sources) != 1:
            message = (
                f"a server has exactly one source, this one has {len(self.sources)}"
                f" ({', '.join(self.sources) or 'none'}); run one laredo-fanout for each database"
            )
            raise settings.WrongAt(("sources",), message)

    def _check_tables(self) -> None:
        if not self.tables:
            message = "no table to replicate; write tables = [ { table = users } ]"
            raise settings.WrongAt(("tables",), message)
        first: dict[str, int] = {}
        for number, table in enumerate(self.tables):
            if table.source is not None and table.source not in self.sources:
                message = f'no source "{table.source}"; the known one is "{self.source_name}"'
                raise settings.WrongAt(("tables", number, "source"), message)
            if table.is_pattern and self.upstream is not None:
                message = "a relay can't follow a pattern: list the tables"
                raise settings.WrongAt(("tables", number), message)
            if table.name in first:
                message = f"{table.name} is already tables[{first[table.name]}]"
                raise settings.WrongAt(("tables", number), message)
            first[table.name] = number

    def _check_standby(self) -> None:
        if self.standby is None:
            return
        if self.source is None:
            message = "a relay reads no slot: remove the block"
            raise settings.WrongAt(("standby",), message)
        catchup = self.source.catchup
        if "mode" in catchup.model_fields_set and catchup.mode != "off":
            message = (
                "a server with standbys has no fall-behind mode: remove the key, or the standby"
                " block"
            )
            raise settings.WrongAt(("sources", self.source_name, "catchup", "mode"), message)
        for number, table in enumerate(self.tables):
            if table.is_pattern:
                message = "a server with standbys can't follow a pattern: list the tables"
                raise settings.WrongAt(("tables", number), message)

    def _check_listener(self, key: str) -> None:
        """There is one listener: two different values for it are an error."""
        configured = list(self._values(key))
        for path, value in configured[1:]:
            first = configured[0]
            if value != first[1]:
                message = (
                    f"{value} disagrees with {settings.path_text(first[0])} = {first[1]}:"
                    " all tables share one listener; set it once, in fanout.grpc"
                )
                raise settings.WrongAt(path, message)

    def _values(self, key: str) -> Iterator[tuple[settings.Path, int]]:
        """Each path that sets ``key`` of the listener, with its value; fanout.grpc first."""
        if key in self.fanout.grpc.model_fields_set:
            yield ("fanout", "grpc", key), getattr(self.fanout.grpc, key)
        for number, table in enumerate(self.tables):
            value = getattr(table.target.grpc, key)
            if value is not None:
                yield ("tables", number, "targets", 0, "grpc", key), value

    @property
    def source_name(self) -> str:
        """The name of the one source."""
        return next(iter(self.sources))

    @property
    def source(self) -> Source | None:
        """The one source, if it is PostgreSQL."""
        source = self.sources[self.source_name]
        return source if isinstance(source, Source) else None

    @property
    def upstream(self) -> Upstream | None:
        """The one source, if it is another laredo-fanout."""
        source = self.sources[self.source_name]
        return source if isinstance(source, Upstream) else None

    @property
    def port(self) -> int:
        """The listener's port, from wherever it is set; 0 is any free one."""
        return next((value for _, value in self._values("port")), self.fanout.grpc.port)

    @property
    def connect_host(self) -> str:
        """The address of the Connect port, if there is one."""
        connect = self.fanout.connect
        return (connect and connect.host) or self.fanout.grpc.listening_host

    @property
    def max_clients(self) -> int:
        """Most clients of all serving processes together."""
        return next(
            (value for _, value in self._values("max_clients")), self.fanout.grpc.max_clients
        )

    @property
    def max_clients_per_identity(self) -> int:
        """Most clients with the same token, certificate or address."""
        configured = self.fanout.grpc.max_clients_per_identity
        return configured or -(-self.max_clients * 9 // 10)

    @property
    def max_clients_per_client_id(self) -> int:
        """Most clients with the same client id."""
        configured = self.fanout.grpc.max_clients_per_client_id
        return configured or -(-self.max_clients // 2)

    def snapshot_path(self, table: ReplicatedTableConfig) -> Path | None:
        """Directory of the table's periodic snapshots; None if it has none."""
        snapshot = table.target.snapshot
        if snapshot is None:
            return None
        directory = snapshot.store_config.path or self.state.path / "snapshots"
        # A table's name may hold a slash.
        return directory / quote(table.name, safe="")

    def _reader_warnings(self) -> list[str]:
        """The dangers of ports that others reach without a token or a certificate."""
        found = self.fanout.grpc.warnings("fanout.grpc.host", self.fanout.grpc.listening_host)
        if self.fanout.connect is not None:
            found += self.fanout.grpc.warnings("fanout.connect.host", self.connect_host)
        return found

    def warnings(self) -> list[str]:
        """The settings that are accepted but dangerous or deprecated, as ``path: text``."""
        danger = "may read the status and have tables copied again: no token is required"
        found = [*self._reader_warnings(), *self.http.warnings("http", danger)]
        if self.standby is not None and not self.standby.synchronous:
            found.append(
                "standby.synchronous: 0 confirms changes that no standby has: a standby that lacks"
                " them can't take over, and if the holder's disk is lost, every table is copied"
                " again"
            )
        if self.source is not None and "stream_transactions" in self.source.model_fields_set:
            key = f"sources.{self.source_name}.stream_transactions"
            found.append(f"{key}: always on; remove the key")
        return found


def load(path: Path | str | None, sets: Sequence[str] = ()) -> Config:
    """The configuration of the file, ``conf.d`` and ``sets``.

    :raises settings.SettingsError: with every problem, its file and line, and its path.
    """
    return settings.load(path, env_prefix=ENV_PREFIX, sets=sets, schema=Config)
