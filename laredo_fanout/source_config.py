"""The ``sources`` block of the configuration: database, slot, publication, tables, archives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from laredo_archive.aws import profile as profile_
from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import object_keys
from laredo_archive.storage import access
from laredo_archive.storage.s3.bucket import S3Location
from laredo_fanout.serving.options import ArchiveOptions
from laredo_service.settings import Duration, Secret, Section, Size
from laredo_service.settings.values import with_secret


def _identifier(name: str) -> str:
    size = len(name.encode())
    if size > _LONGEST_NAME:
        raise ValueError(
            f"{name!r} has {size} bytes in UTF-8; PostgreSQL would cut it off after"
            f" {_LONGEST_NAME}: give a shorter name"
        )
    return name


_LONGEST_NAME = 63
Identifier = Annotated[str, Field(min_length=1), AfterValidator(_identifier)]


class PublicationConfig(Section):
    """The publications that the slot's stream follows; ``create`` has the server make them.

    Append-only tables have a publication of their own.
    """

    name: Identifier = "laredo"
    """The publication of the tables that have a key."""
    append_only_name: Identifier | None = None
    """The publication of tables that are ``append_only``; by default ``name`` followed by
    ``_append``."""
    create: bool = True
    """Create the publication if it doesn't exist, and alter it as ``tables`` changes. False: an
    owner does that, and ``check`` prints the statements."""


class Copy(Section):
    """Limits of copies: connections, rows a second, memory."""

    workers: int = Field(default=2, ge=1, le=16)
    """Most connections that copy one table, by key ranges, while the stream runs."""
    max_rows_per_second: int | None = Field(default=None, ge=1)
    """Most rows per second of all copies together; no limit by default. The limit delays the next
    key range; each range is read at full speed, so that its lock and snapshot are held briefly."""
    max_memory: Size = Field(default=64 << 20, ge=1 << 20)
    """Most bytes that all copies together have read and not yet written."""
    max_connections: int | None = Field(default=None, ge=1, le=64)
    """Most connections of all copies together; ``workers`` by default."""


class Catchup(Section):
    """Fall-behind mode: a backlog is split into segments, each decoded from a copy of the slot.
    They are released in commit order."""

    mode: Literal["off", "auto", "manual"] = "manual"
    """auto: a backlog above ``threshold_bytes`` is split; manual: one is split when
    ``laredo-fanout catchup`` or POST /catchup asks for it; off: never."""
    threshold_bytes: Size = Field(default=1 << 30, ge=1)
    """Backlog of WAL that ``auto`` splits if three checks in a row find more; below a quarter of it
    the one slot is read again."""
    check_interval: Duration = Field(default=1.0, gt=0)
    """Interval at which the backlog is measured."""
    max_segments: int = Field(default=4, ge=1, le=64)
    """Most segments at once."""
    min_segment_bytes: Size = Field(default=64 * 10**6, ge=1)
    """Smallest size of a segment, in bytes of WAL."""
    ordering: Literal["strict"] = "strict"
    reserve_slots: int = Field(default=2, ge=0)
    """Number of free replication slots and walsenders to leave for others; with fewer of them there
    are fewer segments."""
    spool_dir: Path | None = None
    """Directory for decoded changes that aren't released yet, used for nothing else; by default
    below ``state.path``."""
    spool_max_bytes: Size = Field(default=8 * 10**9, ge=1 << 20)
    """Size of the spool at which the last segments pause."""

    @field_validator("ordering", mode="before")
    @classmethod
    def _relaxed_is_gone(cls, ordering: object) -> object:
        if ordering == "relaxed":
            raise ValueError(
                "`strict` is the only order: `relaxed` had 0.77 of the rate of one slot without"
                " segments; remove the key"
            )
        return ordering


class UpstreamTls(Section):
    """TLS towards the upstream; all PEM files."""

    ca: Path | None = None
    """The CA that signed the upstream's certificate; by default the system's."""
    cert: Path | None = None
    """The certificate that this server presents."""
    key: Path | None = None
    """Its private key."""
    server_name: str | None = None
    """The name in the upstream's certificate, if it isn't the one in ``server``."""

    @model_validator(mode="after")
    def _pair(self) -> UpstreamTls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; give both or neither")
        return self


def checked_address(server: str) -> str:
    """The address of a server's gRPC side.

    :raises ValueError: if it isn't an address.
    """
    host, colon, port = server.rpartition(":")
    if server.startswith("unix:"):
        return server
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{server!r} is not a server's address; expected host:port")
    return server


class Upstream(Section):
    """Another laredo-fanout, which this one relays to clients. The tables must be configured there
    too."""

    type: Literal["fanout"]
    """The kind of source."""
    server: str = Field(min_length=1)
    """``host:port`` of the upstream's gRPC side."""
    tls: UpstreamTls | None = None
    token: Secret | None = None
    """The token that the upstream asks for."""
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``; read for each connection."""
    client_id: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of this server at the upstream; by default ``laredo-relay:`` and the host's name."""

    @field_validator("server")
    @classmethod
    def _address(cls, server: str) -> str:
        return checked_address(server)

    @model_validator(mode="after")
    def _one_token(self) -> Upstream:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; give one of them")
        return self


class Source(Section):
    """A PostgreSQL database and the slot in it. The connection may hold a password."""

    type: Literal["postgresql"] = "postgresql"
    """The kind of database."""
    connection: Secret
    """Connection string of the one database; a password belongs in PGPASSFILE."""
    password: Secret | None = None
    """The role's password, for a ``connection`` without one."""
    password_file: Path | None = None
    """A file with the password alone, in place of ``password``."""
    slot_name: str = Field(default="laredo", pattern=r"^[a-z0-9_]{1,63}$")
    """Name of the replication slot; the server creates it if it doesn't exist."""
    publication: PublicationConfig = PublicationConfig()
    # `copy` would hide a method of pydantic's.
    copying: Copy = Field(default=Copy(), alias="copy")
    heartbeat_interval: Duration = Field(default=10.0, ge=0.1)
    """Interval at which an idle database's slot is advanced, and the catalog checked."""
    receive_timeout: Duration = Field(default=60.0, ge=1)
    """Silence after which a connection to PostgreSQL is closed and opened again, for example after
    a proxy that stopped forwarding. PostgreSQL ends a replication connection over TCP from which
    nothing was read for that long."""
    # Deprecated: big transactions are always sent while they run (protocol version 2).
    stream_transactions: bool = True
    on_slot_lost: Literal["recreate", "fail"] = "recreate"
    """Reaction to changes that are gone for good: ``recreate`` copies every table again, ``fail``
    waits for you."""
    # Removed; for one version it is an error of its own, not an unknown key.
    decode_workers: object = None
    catchup: Catchup = Catchup()

    @model_validator(mode="before")
    @classmethod
    def _password_from_file(cls, data: Any) -> Any:
        return with_secret(data, "password")

    @field_validator("decode_workers")
    @classmethod
    def _no_decode_workers(cls, value: object) -> object:
        del value
        raise ValueError("decoding is compiled now; remove the key")

    @field_validator("stream_transactions")
    @classmethod
    def _always_streamed(cls, value: bool) -> bool:
        if not value:
            raise ValueError("always on, it can't be turned off; remove the key")
        return value

    @field_validator("connection")
    @classmethod
    def _connection_parses(cls, connection: Secret) -> Secret:
        from laredo_archive.maintain import compare_postgres

        compare_postgres.parsed(connection.get_secret_value())
        return connection


def _type_of(source: Any) -> str:
    """The ``type`` of a source; it may be left out for PostgreSQL."""
    kind = source.get("type") if isinstance(source, dict) else getattr(source, "type", None)
    return "fanout" if kind == "fanout" else "postgresql"


AnySource = Annotated[
    Annotated[Source, Tag("postgresql")] | Annotated[Upstream, Tag("fanout")],
    Discriminator(_type_of),
]

# The ``archive`` block of a target: the location of the archive that late clients replay.


class ArchiveStore(Section):
    """The archive's store: a directory (``path``), or a bucket's prefix and the role that reads it.

    ``role_arn`` is assumed with ``profile``, or with the environment's credentials.
    """

    path: Path | None = None
    """Directory of the writer's destination."""
    bucket: str | None = None
    """Bucket of the writer's destination."""
    prefix: str = ""
    """Prefix of the destination in the bucket."""
    region: str | None = None
    """The bucket's region."""
    endpoint: str | None = None
    """Endpoint of another store with S3's API."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """``path``, or ``virtual``: the bucket in the host's name."""
    profile: str | None = None
    """Profile of ~/.aws for requests."""
    role_arn: str | None = None
    """A role to assume."""
    external_id: Secret | None = None
    """The external id that the role's trust policy asks for."""


class ArchiveConfig(Section):
    """The table's archive, as laredo-snapshotter writes it: for clients whose position the journal
    no longer has."""

    store: Literal["local", "s3"] = "local"
    """Kind of the archive's storage."""
    store_config: ArchiveStore = ArchiveStore()
    key_prefix: str | None = None
    """The writer's ``key_prefix``; by default ``<table>/``, and ``<schema>.<table>/`` if ``schema``
    is a pattern."""
    formats: tuple[Literal["jsonl", "jsonl.zst", "protobuf", "protobuf.zst"], ...] = Field(
        default=("jsonl", "jsonl.zst", "protobuf", "protobuf.zst"), min_length=1
    )
    """Formats of the diffs to read; the first that the archive has is used."""

    @field_validator("key_prefix")
    @classmethod
    def _directory(cls, prefix: str | None) -> str | None:
        return None if prefix is None else object_keys.directory_prefix(prefix)

    @model_validator(mode="after")
    def _fits_the_store(self) -> ArchiveConfig:
        store = self.store_config
        wanted, others = (
            _OF_STORE[self.store],
            _OF_STORE["s3" if self.store == "local" else "local"],
        )
        foreign = sorted(store.model_fields_set & set(others))
        if foreign:
            raise ValueError(
                f"store_config.{foreign[0]} doesn't apply to store = {self.store}, which takes"
                f" {', '.join(wanted)}"
            )
        if not getattr(store, wanted[0]):
            raise ValueError(f"store = {self.store} needs store_config.{wanted[0]}")
        if self.store == "s3":
            _check_s3(store)
        return self

    def options(self, table: str) -> ArchiveOptions:
        """The block as the serving processes' options; ``table`` without its schema."""
        store = self.store_config
        secret = store.external_id
        return ArchiveOptions(
            key_prefix=(
                object_keys.default_prefix(table) if self.key_prefix is None else self.key_prefix
            ),
            formats=self.formats,
            path=None if store.path is None else store.path.absolute(),
            bucket=store.bucket,
            prefix=store.prefix,
            region=store.region,
            endpoint=store.endpoint,
            addressing=store.addressing,
            profile=store.profile,
            role_arn=store.role_arn,
            external_id=None if secret is None else secret.get_secret_value(),
        )


_OF_STORE = {
    "local": ("path",),
    "s3": tuple(name for name in ArchiveStore.model_fields if name != "path"),
}


def _check_s3(store: ArchiveStore) -> None:
    """:raises ValueError: if the bucket, its prefix or the role has no valid name."""
    try:
        S3Location(
            store.bucket or "",
            store.prefix,
            endpoint=store.endpoint,
            addressing=store.addressing,
        )
        secret = store.external_id
        profiles, _ = access.profiles(
            store.profile,
            store.role_arn,
            None if secret is None else secret.get_secret_value(),
            store.region,
        )
        profile_.check(profiles)
    except ArchiveError as wrong:
        raise ValueError(str(wrong)) from wrong
    if store.external_id is not None and store.role_arn is None:
        raise ValueError("store_config.external_id needs role_arn")
