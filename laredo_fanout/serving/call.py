"""A call of a client: its transport, its caller and token, and its checked request.

The tokens file has one token a line, followed by the tables that it may read (`schema.name`; none:
all); `#` begins a comment. A changed file is read again within two seconds. A token that was
removed is refused, and the streams that it opened end with UNAUTHENTICATED.

    3f9c...e1
    77ab...02  public.users public.orders   # the search team
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import structlog
from google.protobuf.message import DecodeError, Message

from laredo_fanout.serving.errors import (
    BadRequest,
    NoToken,
    Refused,
    ServingError,
    Stalled,
    TokenForbids,
)
from laredo_fanout.serving.ports import Lease
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.errors import BadHistory, BadPosition
from laredo_model.position import History, Position

# The caller of a gRPC call: its address, its identity, and whose streams count together.

_SHARED_PREFIX_V6 = 64
"""One IPv6 host usually has all addresses of such a network."""
_VERSION = 0xA0
"""Tag of the version in a certificate, which the oldest don't have."""
_EMPTY = b"\x30\0"


@dataclass(slots=True)
class Caller:
    """The client of a call, as its connection and metadata identify it."""

    peer: str
    #: The value of the metadata `authorization`; "" if there is none.
    authorization: str
    #: Identifies the subject of the client certificate; "" if there is none.
    certificate: str
    #: The name that the client gives itself, known once its request is read.
    client_id: str = ""

    @property
    def host(self) -> str:
        """The address without the port; for IPv6 the network, which is usually one host's."""
        kind, _, rest = unquote(self.peer).partition(":")
        if kind not in ("ipv4", "ipv6"):
            return kind
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            # Of an IPv4 client, on a port for both (::); all of them are in one network.
            address = address.ipv4_mapped or address
        if address.version == 6 and not address.is_loopback:
            return str(ipaddress.ip_network((address, _SHARED_PREFIX_V6), strict=False))
        return str(address)

    @property
    def is_local(self) -> bool:
        """True if the call comes from this machine, where a proxy may serve many clients."""
        return self.host in ("127.0.0.1", "::1", "unix")


def caller_of(context: Any) -> Caller:
    """The caller of this gRPC call."""
    metadata = dict(context.invocation_metadata() or ())
    given = metadata.get("authorization")
    pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
    return Caller(
        peer=str(context.peer()),
        authorization=given if isinstance(given, str) else "",
        certificate=_identity(ssl.PEM_cert_to_DER_cert(pem.decode()) if pem else None),
    )


def caller_from(address: tuple[str, int], authorization: str, certificate: bytes | None) -> Caller:
    """The caller at this TCP address, with this ``certificate`` (DER), or none."""
    host, port = address
    return Caller(
        peer=f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}",
        authorization=authorization,
        certificate=_identity(certificate),
    )


def _identity(certificate: bytes | None) -> str:
    """Digest of the subject, which is the same over gRPC and Connect; "" if there is none.

    The TLS library has parsed and verified the certificate.
    """
    if certificate is None:
        return ""
    # RFC 5280, 4.1: the subject follows version, serial number, algorithm, issuer and validity.
    within, _ = _bounds(certificate, 0)
    at, _ = _bounds(certificate, within)
    for _ in range(5 if certificate[at] == _VERSION else 4):
        _, at = _bounds(certificate, at)
    subject = certificate[at : _bounds(certificate, at)[1]]
    return "" if subject == _EMPTY else digest(subject)


def _bounds(der: bytes, at: int) -> tuple[int, int]:
    """Start and end of the content of the DER element at ``at``."""
    size, start = der[at + 1], at + 2
    if size >= 0x80:
        first, start = start, start + (size & 0x7F)
        size = int.from_bytes(der[first:start], "big")
    return start, start + size


def digest(secret: bytes) -> str:
    """A short name for a secret, or for a long value."""
    return sha256(secret).hexdigest()[:16]


# An open call: its end from outside, and the check for a stalled client.


class Call:
    """A handle on an open call, made in its task. `table` and `lease` are set later."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.table = ""
        self.lease: Lease | None = None
        self.verdict: Refused | None = None
        self._task = asyncio.current_task()

    def end(self, verdict: Refused) -> None:
        """Stop the call with this verdict, also while a write is blocked."""
        if self.verdict is None and self._task is not None:
            self.verdict = verdict
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the call has been answered, or its client is gone."""
        if self._task is not None:
            await asyncio.wait({self._task})


class StallGuard:
    """Ends a call whose client takes no message for `timeout_s`, although messages wait for it.

    `excused` returns whether the call waits for something other than its client.
    """

    def __init__(self, call: Call, timeout_s: float, excused: Callable[[], bool]) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self._excused = excused
        self._moved = True
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._check)

    def moved(self) -> None:
        """Note that the client took a message, or that the call waited for something else."""
        self._moved = True

    def stop(self) -> None:
        """Stop checking: the call is over."""
        self._timer.cancel()

    def _check(self) -> None:
        if not self._moved and not self._excused():
            client_id = self._call.caller.client_id
            self._call.end(
                Stalled(f"client {client_id!r} took no message for {self._timeout_s:g} s")
            )
        self._moved = False
        self._timer = self._loop.call_later(self._timeout_s, self._check)


def peer_token(token: str) -> str:
    """Digest of the token that the servers of a slot share, for a server's own processes."""
    return sha256(token.encode()).hexdigest()


def is_peer(authorization: str, known: str | None) -> bool:
    """True if the caller gave the token that the servers of one slot share; ``known`` is its digest
    (:func:`peer_token`), or None."""
    given = peer_token(_token_in(authorization).decode(errors="replace"))
    return known is not None and hmac.compare_digest(given, known)


# A streaming call as its transport carries it.


class DirectOutput(Protocol):
    """A stream that takes bytes at once, without a task that waits: a socket's transport.

    `framing` names how `frame` writes messages, so that streams with equal framings share its
    bytes.
    """

    framing: str

    def frame(self, messages: Sequence[bytes]) -> bytes:
        """The bytes that carry these messages."""
        ...

    def write(self, frame: bytes) -> None:
        """Send the bytes, or keep them until the socket takes them; never waits."""
        ...

    @property
    def full(self) -> bool:
        """True if the buffer is so full that nothing more should be written."""
        ...

    def when_full(self, notify: Callable[[], None] | None) -> None:
        """Have `notify` called, within `write`, when the stream becomes full; None: nobody."""
        ...


class Exchange(Protocol):
    """Transport of one session: gRPC or Connect, neither of which the session knows."""

    @property
    def caller(self) -> Caller:
        """The caller."""
        ...

    @property
    def direct(self) -> DirectOutput | None:
        """Output of this stream for writes that don't wait; None where the transport has none."""
        ...

    def packed(self, messages: Sequence[bytes]) -> Iterable[bytes]:
        """Group messages into units for `send`: some share a write."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message, or what `packed` made of some; returns once there is room for more."""
        ...


log = structlog.get_logger(__name__)

_SCHEME = "bearer "
CHECK_EVERY_S = 1.0
"""Interval at which the file is checked for changes, in seconds."""
UNUSABLE_S = 10.0
"""Time for which a file without a token counts as being written, in seconds."""


class BadTokensFile(ServingError):
    """The tokens file can't be read or has no token in it."""


@dataclass(frozen=True, slots=True)
class _Grant:
    token: bytes
    tables: frozenset[str]


class Tokens:
    """Checks the `authorization: Bearer <token>` of calls against the file as last read."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        :raises BadTokensFile: it can't be read, isn't UTF-8 or has no token.
        """
        self._path = path
        self._stamp = _stamp(path)
        self._grants = _read(path)
        self._unusable_since: float | None = None

    def move(self, path: Path) -> None:
        """Read another file from now on; an unusable one is treated as a bad change of this."""
        if path != self._path:
            self._path = path
            self._stamp = (0, 0, 0)

    def known(self, authorization: str) -> None:
        """Check that the token is in the file, whatever tables it may read.

        :raises NoToken: no token is given, or one that isn't in the file.
        """
        self._found(authorization)

    def check(self, authorization: str, table: str) -> None:
        """Check that the token may read the table.

        :raises NoToken: no token is given, or one that isn't in the file.
        :raises TokenForbids: the token may not read this table.
        """
        found = self._found(authorization)
        if not any(not grant.tables or table in grant.tables for grant in found):
            raise TokenForbids(f"this token may not read table {table}")

    def owner(self, authorization: str) -> str:
        """The token's name in messages; "" if it is the only one."""
        if len({grant.token for grant in self._grants}) < 2:
            return ""
        return f"token {digest(_token_in(authorization))}"

    async def follow(self, changed: Callable[[], None]) -> None:
        """Check the file every CHECK_EVERY_S, in a thread; never returns.

        `changed` is called one check after new content was read, if it is still the same: open
        streams are checked against a file that was written to its end.
        """
        settled = True
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            moved = await asyncio.to_thread(self.reread, time.monotonic())
            if not moved and not settled:
                changed()
            settled = not moved

    def reread(self, now: float) -> bool:
        """Read the file again if it has changed; returns whether the grants changed.

        A file that can't be read, or has no token, counts as being written for UNUSABLE_S, while
        the tokens that were read before stay valid. After that every call is refused.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp and self._unusable_since is None:
                return False
            grants = _read(self._path)
        except BadTokensFile as error:
            return self._unusable(error, now)
        self._stamp, self._unusable_since = stamp, None
        changed = grants != self._grants
        self._grants = grants
        log.info("tokens reloaded", path=str(self._path), tokens=len(grants))
        return changed

    def _unusable(self, error: BadTokensFile, now: float) -> bool:
        if self._unusable_since is None:
            self._unusable_since = now
            log.warning(
                "tokens file not usable; former tokens kept",
                error=str(error),
                seconds=UNUSABLE_S,
            )
        if not self._grants or now - self._unusable_since < UNUSABLE_S:
            return False
        log.error("tokens file not usable; every call refused", error=str(error))
        self._grants = []
        return True

    def _found(self, authorization: str) -> list[_Grant]:
        if not authorization.lower().startswith(_SCHEME):
            raise NoToken('a token is needed: send metadata "authorization: Bearer <token>"')
        given = _token_in(authorization)
        # Every token is compared, each in constant time, so that timing reveals nothing.
        found = [grant for grant in self._grants if hmac.compare_digest(grant.token, given)]
        if not found:
            raise NoToken("this token is unknown here (see fanout.grpc.tokens_file)")
        return found


def _token_in(authorization: str) -> bytes:
    return authorization[len(_SCHEME) :].strip().encode()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[_Grant]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path}: {error}") from error
    grants = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if words:
            grants.append(_Grant(words[0].encode(), frozenset(words[1:])))
    if not grants:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path} has no token; write one a line")
    return grants


# Parses and checks the request of a Sync call.

BATCH = "batch/json.v1"
BOUNDARY = "boundary.v1"
RELAY = "relay.v1"
STANDBY = "standby.v1"
TABLES = "tables.v1"
MAX_CLIENT_ID = 256
MAX_NAME = 256
MAX_SNAPSHOT_ID = 2 * MAX_NAME + 64
MAX_REQUEST_BYTES = 128 << 10
"""Decoding costs up to 40 ns and 20 bytes of memory a byte, before anything can be counted."""
MAX_PEER_REQUEST_BYTES = 1 << 20
"""For callers with the token of the slot's servers: the report of 6,900 tables with the longest
names, and of 19,000 with short ones. gRPC takes no longer request."""
MAX_PREDICATES = 64
MAX_VALUES = 10_000

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class CheckedSyncRequest:
    """A checked SyncRequest."""

    table: str
    client_id: str
    #: None where the client sent none.
    position: Position | None
    #: Only sent by clients that know the extension.
    history: History | None
    #: None where the client sent none.
    sequence: int | None
    snapshot_id: str
    filtered: bool
    batch: bool
    want_old: bool
    #: Whether the client wants the table's verified position.
    boundaries: bool
    #: Whether it is a relay, which wants the histories that this one goes on from.
    relay: bool = False
    #: Whether it is a standby, which wants the slot and the table's definition too.
    standby: bool = False


def decode(kind: type[M], data: bytes, most: int = MAX_REQUEST_BYTES) -> M:
    """The request in these bytes.

    :raises BadRequest: it is longer than ``most`` bytes, or can't be decoded.
    """
    name = kind.DESCRIPTOR.name
    if len(data) > most:
        raise BadRequest(
            f"the {name} is {len(data)} bytes long, more than {most}: give fewer or shorter filters"
        )
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"not a {name}: {error}") from error


def parse_sync(data: bytes) -> tuple[CheckedSyncRequest, Sequence[wire.FieldPredicate]]:
    """The request in these bytes, and its filters as they came, of bounded number and size.

    :raises BadRequest: it can't be decoded, or a field makes no sense; the message names it.
    """
    asked = decode(wire.SyncRequest, data)
    _check_filters(asked.filters)
    if len(asked.client_id) > MAX_CLIENT_ID:
        raise BadRequest(f"client_id is longer than {MAX_CLIENT_ID} characters")
    check_snapshot_id(asked.last_snapshot_id)
    if asked.last_known_sequence < 0:
        raise BadRequest(f"last_known_sequence is negative: {asked.last_known_sequence}")
    sequence = asked.last_known_sequence or None
    batch = BATCH in asked.capabilities
    parsed = CheckedSyncRequest(
        table=table_name(asked.schema, asked.table),
        client_id=asked.client_id,
        position=_position(asked.last_known_source_position, may_be_wrong=sequence is not None),
        history=_history(asked.history) if batch else None,
        sequence=sequence,
        snapshot_id=asked.last_snapshot_id,
        filtered=len(asked.filters) > 0,
        batch=batch,
        want_old=batch and asked.want_old,
        boundaries=batch and BOUNDARY in asked.capabilities,
        relay=batch and RELAY in asked.capabilities,
        standby=batch and {RELAY, STANDBY} <= set(asked.capabilities),
    )
    return parsed, asked.filters


def _check_filters(filters: Sequence[wire.FieldPredicate]) -> None:
    """Refuse too many predicates and values before they are parsed."""
    if len(filters) > MAX_PREDICATES:
        raise BadRequest(f"filters: {len(filters)} predicates, more than {MAX_PREDICATES}")
    values = sum(len(getattr(each, "in").values) for each in filters if each.HasField("in"))
    if values > MAX_VALUES:
        raise BadRequest(f"filters: {values} values to compare with, more than {MAX_VALUES}")


def check_snapshot_id(snapshot_id: str) -> None:
    """:raises BadRequest: a snapshot's id is too long."""
    if len(snapshot_id) > MAX_SNAPSHOT_ID:
        raise BadRequest(f"a snapshot id is no longer than {MAX_SNAPSHOT_ID} characters")


def table_name(schema: str, table: str) -> str:
    """The table's name, `schema.table`.

    :raises BadRequest: one of them is empty.
    """
    if not schema or not table:
        missing = "schema" if not schema else "table"
        raise BadRequest(f"{missing} is empty: name the table by schema and table")
    if max(len(schema), len(table)) > MAX_NAME:
        raise BadRequest(f"schema or table is longer than {MAX_NAME} characters")
    return f"{schema}.{table}"


def _position(text: str, *, may_be_wrong: bool) -> Position | None:
    if not text:
        return None
    try:
        return position_.parse(text)
    except BadPosition as error:
        if may_be_wrong:
            return None
        raise BadRequest(f"last_known_source_position: {error}") from error


def _history(text: str) -> History | None:
    if not text:
        return None
    try:
        return position_.parse_history(text)
    except BadHistory as error:
        raise BadRequest(f"history: {error}") from error
