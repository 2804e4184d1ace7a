"""The options of a relay, which the server's configuration is mapped onto."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from laredo_fanout.client.errors import BadEndpoint
from laredo_fanout.client.stream.endpoint import Endpoint, Tls
from laredo_fanout.relay.errors import UpstreamUnavailable
from laredo_fanout.source_options import CommitIntervals


@dataclass(frozen=True)
class RelayOptions:
    """Another laredo-fanout, and how it is followed. Times are in seconds."""

    #: ``host:port``.
    server: str
    client_id: str
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    #: A file with the token alone, which is read for each connection.
    token_file: Path | None = None
    #: How often the path to PostgreSQL is asked for.
    path_interval: float = 5.0
    commits: CommitIntervals = field(default_factory=CommitIntervals)
    #: What the source is called in the configuration: errors name its keys.
    source_name: str = "NAME"

    def endpoint(self) -> Endpoint:
        """Address of the upstream, with the token as it is now.

        :raises UpstreamUnavailable: if the token's file or a TLS file can't be used.
        """
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UpstreamUnavailable(
                    f"token_file {self.token_file} can't be read: {error}"
                ) from error
        if token is not None and not (token and token.isascii() and token.isprintable()):
            given = "token" if self.token_file is None else f"token_file {self.token_file}"
            raise UpstreamUnavailable(f"{given} has no token: one line of printable ASCII")
        try:
            if self.tls is not None:
                self.tls.credentials()
            return Endpoint(self.server, self.tls, token)
        except BadEndpoint as wrong:
            raise UpstreamUnavailable(str(wrong)) from wrong
