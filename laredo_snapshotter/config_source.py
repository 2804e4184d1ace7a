"""The ``source`` block: the table, or the pattern of tables, and the server that streams it."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from laredo_fanout.client.stream.endpoint import Endpoint, Tls
from laredo_service.settings import SchemaName, Secret, Section
from laredo_service.settings.values import with_secret
from laredo_service.table_pattern import STAR, TablePattern
from laredo_snapshotter.errors import ConfigRefused


class TlsBlock(Section):
    """TLS towards the server; all PEM files."""

    ca: Path | None = None
    """The CA that signed the server's certificate."""
    cert: Path | None = None
    """The client's certificate."""
    key: Path | None = None
    """Its private key."""
    server_name: str | None = None
    """The name in the server's certificate, if it isn't the one in ``source.server``."""

    @model_validator(mode="after")
    def _pair(self) -> "TlsBlock":
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; give both or neither")
        return self


class SourceBlock(Section):
    """Which table, and the laredo-fanout server that streams it."""

    server: str | None = None
    """``host:port`` of the server's gRPC side; required."""
    schema_name: Annotated[SchemaName, Field(alias="schema")] = "public"
    """The table's schema. With a ``*``, as in ``table``, a pattern."""
    table: str | None = None
    """The table's name; required. With a ``*``, which matches any characters, the block is a
    pattern: all matching tables of the server are written, also those that are added later."""
    exclude: tuple[str, ...] = ()
    """Of a pattern: tables that it doesn't match, as ``table`` or ``schema.table``, which may
    have a ``*``."""
    max_tables: Annotated[int, Field(ge=1)] = 500
    """Of a pattern: the most tables to write; the log names the others."""
    client_id: str | None = None
    """Name of this writer at the server; by default ``laredo-snapshotter:<schema>.<table>``."""
    local_snapshot_path: Path | None = None
    """Directory for a transaction larger than memory; by default $TMPDIR."""
    tls: TlsBlock | None = None
    token: Secret | None = None
    """The token that the server asks for."""
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``."""

    @model_validator(mode="before")
    @classmethod
    def _token_from_file(cls, data: Any) -> Any:
        return with_secret(data, "token")

    @property
    def is_pattern(self) -> bool:
        """True if it is a pattern, for all of the server's tables whose names match."""
        return STAR in self.schema_name or STAR in (self.table or "")

    @property
    def pattern(self) -> TablePattern:
        """The pattern, if it is one."""
        return TablePattern(self.schema_name, self.table or "", self.exclude)

    def endpoint(self, path: str) -> Endpoint:
        """The server; ``path`` is the configuration path of the table.

        :raises ConfigRefused: if it can't be one.
        """
        tls = self.tls
        try:
            return Endpoint(
                self.server or "",
                None if tls is None else Tls(tls.ca, tls.cert, tls.key, tls.server_name),
                None if self.token is None else self.token.get_secret_value(),
            )
        except Exception as wrong:
            raise ConfigRefused(f"{path}.source.server: {wrong}") from wrong
