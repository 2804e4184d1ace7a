"""The ``sources`` block of the configuration: database, slot, publication, copies, fall-behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from laredo_service.settings import Duration, Secret, Section, Size
from laredo_service.settings.values import with_secret


class PublicationConfig(Section):
    """The publication that the slot's stream follows; with ``create`` it is made when missing.

    Tables that are append-only are in one of their own; its name is the other's with
    ``_append`` behind it.
    """

    name: str = Field(default="laredo", min_length=1, max_length=63)
    """The publication of the tables that have a key."""
    append_only_name: str | None = Field(default=None, min_length=1, max_length=63)
    """The publication of tables that are ``append_only``; by default ``name`` and
    ``_append``."""
    create: bool = True
    """Create the publication if it doesn't exist, and alter it as ``tables`` changes. False: an
    owner does that, and ``check`` prints the statements."""


class Copy(Section):
    """Limits of copies: connections, rows a second, memory.

    A table is copied by at most ``workers`` connections at once, all tables together by at most
    ``max_connections`` (``workers`` by default). ``max_rows_per_second`` limits all copies
    together, ``max_memory`` the rows that were read and not yet written.
    """

    workers: int = Field(default=2, ge=1, le=16)
    """Connections that copy one table at first, by key ranges, while the stream runs."""
    max_rows_per_second: int | None = Field(default=None, ge=1)
    """Most rows per second of all copies together; no limit by default. A new key range waits; each
    range is read at full speed, so that no lock and no snapshot is held longer for it."""
    max_memory: Size = Field(default=64 << 20, ge=1 << 20)
    """Bytes that all copies together have read and not yet written."""
    max_connections: int | None = Field(default=None, ge=1, le=64)
    """Most connections of all copies together; ``workers`` by default."""


class Catchup(Section):
    """Fall-behind mode: a backlog is split into segments, each decoded from a copy of the slot.
    They are released in commit order.

    ``reserve_slots`` free slots and walsenders are left alone. ``spool_dir`` is a
    directory for nothing else; what is spooled there stays at about ``spool_max_bytes``.
    """

    mode: Literal["off", "auto", "manual"] = "manual"
    """auto: a backlog above ``threshold_bytes`` is split; manual: one is split when
    ``laredo-fanout catchup`` or POST /catchup asks for it; off: never."""
    threshold_bytes: Size = Field(default=1 << 30, ge=1)
    """A backlog of more WAL than this, at three checks in a row, is split in ``auto``; below a
    quarter of it the one slot is read again."""
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
                "`strict` is the only order: `relaxed` had 0.77 of the rate of the one slot without"
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


class Upstream(Section):
    """Another laredo-fanout, which this one relays: clients are served alike by both. The
    tables must be configured there too."""

    type: Literal["fanout"]
    """The kind of source."""
    server: str = Field(min_length=1)
    """``host:port`` of the upstream's gRPC side."""
    tls: UpstreamTls | None = None
    token: Secret | None = None
    """The token that the upstream asks for."""
    token_file: Path | None = None
    """A file with the token alone, read for each connection: in place of ``token``."""
    client_id: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of this server at the upstream; by default ``laredo-relay:`` and the host's name."""

    @field_validator("server")
    @classmethod
    def _address(cls, server: str) -> str:
        host, colon, port = server.rpartition(":")
        if server.startswith("unix:"):
            return server
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{server!r} is not a server's address; expected host:port")
        return server

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
    a proxy that stopped forwarding."""
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
