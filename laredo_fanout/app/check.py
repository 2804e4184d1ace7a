"""``laredo-fanout check``: checks what the server needs, with a cure for each failure."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from laredo_archive.errors import ArchiveError, ArchiveMissing
from laredo_archive.manifest.object_keys import manifest_key
from laredo_archive.read.location import read_manifest
from laredo_fanout.app import check_tables, compiled, options
from laredo_fanout.app.check_tables import STORE_IN_USE, ServerFinding, Verdict, one_line
from laredo_fanout.client.errors import ClientError
from laredo_fanout.config import Config, StandbyConfig
from laredo_fanout.pg_catalog import publication, requirements
from laredo_fanout.pg_catalog.snapshot import LOCK_TIMEOUT
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.relay import path as path_
from laredo_fanout.relay import peers
from laredo_fanout.serving.archives import destination_of
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.slot import health, ownership, slot, timeline
from laredo_fanout.source_config import Upstream
from laredo_fanout.source_options import OnSlotLost
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import StoreError, StoreMissing
from laredo_fanout.store.reader import StoreReader
from laredo_model import position
from laredo_model.position import History
from laredo_service.certificates import WARN_DAYS, CertificateUnreadable, remaining
from laredo_service.figures import size

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.slot.slot import Slot
    from laredo_fanout.source_options import SourceOptions

# Checks of an upstream: it answers for each table, and doesn't follow this server.


def upstream_findings(config: Config, configured: Upstream) -> Iterator[ServerFinding]:
    """Check the upstream with each table; nothing is changed."""
    chosen = options.relay_options(configured, config.source_name)
    key = f"sources.{config.source_name}.server"
    known = _server_id(config)
    for table in config.tables:
        try:
            found = asyncio.run(path_.ask(chosen, table.name, known))
            path_.check(found, chosen, known)
        except (SourceError, ClientError) as error:
            cure = "start the upstream with this table, or correct server, token and tls"
            yield ServerFinding(f"{key}, {table.name}", Verdict.MISSING, one_line(error), cure)
        else:
            way = " -> ".join(hop.address for hop in found.hops)
            yield ServerFinding(f"{key}, {table.name}", Verdict.RIGHT, f"{way} -> PostgreSQL")


# Checks of the servers that share the slot: their rules, and each peer's role.


def standby_findings(config: Config) -> Iterator[ServerFinding]:
    """The rules of the standby block, and the role of each peer; nothing is changed."""
    assert config.standby is not None
    yield ServerFinding("standby", Verdict.RIGHT, _rules(config.standby))
    known = _server_id(config)
    for peer in options.peer_options(config):
        key = f"standby.peers, {peer.server}"
        try:
            role = asyncio.run(peers.role_of(peer, known))
        except SourceError as error:
            cure = "start it, or correct peers, tls and token; all servers have the same token"
            yield ServerFinding(key, Verdict.WARNING, one_line(error), cure)
            continue
        what = f"holds the slot, term {role.term}" if role.holder else "is a standby"
        who = "this server " if role.server_id == known else ""
        yield ServerFinding(key, Verdict.RIGHT, who + what)


def _rules(configured: StandbyConfig) -> str:
    after = configured.takeover_after
    taken = f"once it is free for {after:g} s" if after else "only by hand and at SIGTERM"
    if not configured.synchronous:
        return f"the slot is taken over {taken}; positions are confirmed without a standby"
    then = (
        "positions are confirmed all the same, and a standby that lacks them can't take over"
        if configured.alone == "continue"
        else "positions wait, and PostgreSQL keeps its WAL"
    )
    return (
        f"the slot is taken over {taken}; positions are confirmed once {configured.synchronous}"
        f" standbys have them; after {configured.patience:g} s with fewer standbys, {then}"
    )


def _server_id(config: Config) -> str:
    """This server's id; empty before its first start."""
    try:
        with StoreReader.open(config.state.path) as reader:
            return reader.server_id()
    except StoreError:
        return ""


# Checks of the configured certificates: readable, and not about to expire.

_CURE = "replace the certificate's file; the server reads the new one without a restart"


def certificate_findings(config: Config) -> Iterator[ServerFinding]:
    """One for each certificate."""
    now = datetime.now(UTC)
    for certificate in options.certificates(config):
        try:
            expiry = certificate.expiry()
        except CertificateUnreadable as error:
            cure = "correct the path, or let this user read it"
            yield ServerFinding(certificate.name, Verdict.MISSING, str(error), cure)
            continue
        detail = f"{certificate.path} {remaining(expiry, now)}"
        if expiry <= now:
            yield ServerFinding(certificate.name, Verdict.MISSING, detail, _CURE)
        elif expiry <= now + timedelta(days=max(WARN_DAYS)):
            yield ServerFinding(certificate.name, Verdict.WARNING, detail, _CURE)
        else:
            yield ServerFinding(certificate.name, Verdict.RIGHT, detail)


def findings(config: Config) -> Iterator[ServerFinding]:
    """Check everything; nothing is changed."""
    for warning in (*config.warnings(), *compiled.warnings()):
        path, _, detail = warning.partition(": ")
        yield ServerFinding(path, Verdict.WARNING, detail)
    yield from _files(config)
    yield from certificate_findings(config)
    yield from _archives(config)
    if config.upstream is not None:
        yield from upstream_findings(config, config.upstream)
    if config.standby is not None:
        yield from standby_findings(config)
    if config.source is not None:
        yield from _postgres(config, options.source_options(config))


def _postgres(config: Config, chosen: SourceOptions) -> Iterator[ServerFinding]:
    try:
        with connections.connect(chosen, role="check") as connection:
            connection.execute(LOCK_TIMEOUT)
            yield ServerFinding("connection", Verdict.RIGHT, _where(connection))
            yield from check_tables.of_patterns(connection, config)
            config = check_tables.expanded(connection, config)
            yield from check_tables.role_findings(connection, config, chosen)
            yield from _server(connection)
            yield from _slot_findings(connection, config, chosen)
            yield from check_tables.findings(connection, config, chosen)
    except (SourceError, psycopg.Error) as error:
        yield ServerFinding(
            f"sources.{config.source_name}.connection",
            Verdict.MISSING,
            one_line(error),
            "start the server, or correct the connection",
        )


def _files(config: Config) -> Iterator[ServerFinding]:
    grpc = config.fanout.grpc
    wanted: list[tuple[str, Path | None]] = [("fanout.grpc.tokens_file", grpc.tokens_file)]
    if grpc.tls is not None:
        wanted.append(("fanout.grpc.tls.key", grpc.tls.key))
    for path, file in wanted:
        if file is not None:
            yield _readable(path, file)
    yield from _store_findings(config.state.path)
    yield _writable("state.path", config.state.path)
    for number, table in enumerate(config.tables):
        directory = config.snapshot_path(table)
        if directory is not None:
            name = f"tables[{number}].targets[0].snapshot.store_config.path"
            yield _writable(name, directory)


def _archives(config: Config) -> Iterator[ServerFinding]:
    for number, table in enumerate(config.tables):
        chosen = options.archive_options(table)
        if chosen is not None:
            yield _archive(f"tables[{number}].targets[0].archive", table.name, chosen)


def _archive(name: str, table: str, chosen: ArchiveOptions) -> ServerFinding:
    """Check one archive: read it as the serving processes will."""
    try:
        destination = destination_of(chosen)
        where = destination.uri_of(manifest_key(chosen.key_prefix))
        manifest = read_manifest(destination, manifest_key(chosen.key_prefix))
    except ArchiveMissing as missing:
        detail = f"{one_line(missing)}; until there is one, late clients get a snapshot"
        cure = "start laredo-snapshotter for the table, or correct store_config or key_prefix"
        return ServerFinding(name, Verdict.WARNING, detail, cure)
    except ArchiveError as error:
        cure = "correct the archive block, or give this program the right to read there"
        return ServerFinding(name, Verdict.MISSING, one_line(error), cure)
    if manifest.table != table:
        detail = f"{where} is the archive of table {manifest.table}, not of {table}"
        return ServerFinding(name, Verdict.MISSING, detail, "correct key_prefix")
    last = manifest.last
    if last is not None and not set(chosen.formats) & set(last.formats):
        detail = f"{where} is written as {', '.join(last.formats)}"
        cure = f"add one of them to formats, which is {', '.join(chosen.formats)}"
        return ServerFinding(name, Verdict.MISSING, detail, cure)
    reach = "nothing yet" if last is None else f"up to {position.text(last.to_position)}"
    return ServerFinding(name, Verdict.RIGHT, f"{where}: {reach}")


def _readable(name: str, file: Path) -> ServerFinding:
    try:
        with file.open("rb"):
            return ServerFinding(name, Verdict.RIGHT, str(file))
    except OSError as error:
        detail = f"{file} can't be read: {error.strerror}"
        return ServerFinding(
            name, Verdict.MISSING, detail, "correct the path, or let this user read it"
        )


def _writable(name: str, directory: Path) -> ServerFinding:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return ServerFinding(name, Verdict.RIGHT, str(directory))
    detail = f"{directory}: {existing} can't be written by this user"
    return ServerFinding(
        name, Verdict.MISSING, detail, "let this user write it, or change the path"
    )


def _where(connection: Connection) -> str:
    info = connection.info
    version = info.server_version
    return (
        f"PostgreSQL {version // 10000}.{version % 10000}, database {info.dbname}, role {info.user}"
    )


def _server(connection: Connection) -> Iterator[ServerFinding]:
    problems = requirements.server_problems(connection)
    for problem in problems:
        detail, cure = _cure_of(problem)
        yield ServerFinding("server", Verdict.MISSING, detail, cure)
    if not problems:
        detail = "wal_level = logical; encoding UTF8; the role may replicate"
        yield ServerFinding("server", Verdict.RIGHT, detail)


def _cure_of(problem: SourceError) -> tuple[str, str]:
    """Split a message of ``requirements``, which is ``problem: statement``."""
    detail, _, cure = str(problem).partition(": ")
    return (detail, cure) if cure else (str(problem), "")


# Checks of the store and its slot: the server could resume, would begin anew, or would refuse.
#
# The server's own rules are in slot.ownership and ingest.startup. The server finds out two things
# only when it starts: a disk that was restored (by a marker in the WAL), and a slot that was made
# for a store just before its server died (by the slot's first message).


class StoredSource(NamedTuple):
    """The source and the position of a store; None and 0 in a fresh one."""

    source: SourceIdentity | None = None
    position: int = 0


def _store_findings(path: Path) -> Iterator[ServerFinding]:
    """Findings about a store that can't be read, or that a server has open."""
    try:
        _stored(path)
    except StoreError as error:
        yield ServerFinding("store", Verdict.MISSING, one_line(error))
    owner = _owner(path)
    if owner is not None:
        detail = f"process {owner} has the store {path}: no second server starts with it"
        cure = "stop that server before you start one, or give this one its own state.path"
        yield ServerFinding(STORE_IN_USE, Verdict.WARNING, detail, cure)


def _stored(path: Path) -> StoredSource:
    try:
        with StoreReader.open(path) as reader:
            return StoredSource(reader.source(), reader.position()[0])
    except StoreMissing:
        return StoredSource()


def _owner(path: Path) -> str | None:
    """The process that holds the store's lock; None: no server has the store."""
    try:
        descriptor = os.open(path / "server.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(descriptor)
    return None


def _slot_findings(
    connection: Connection, config: Config, source: SourceOptions
) -> Iterator[ServerFinding]:
    """Check a replication connection, which has its own line in pg_hba.conf, and the slot."""
    try:
        with closing(ReplicationStream.open(source)) as stream:
            server = _server_of(connection, stream)
    except SourceError as error:
        cure = "allow the role in pg_hba.conf, and have a free max_wal_senders"
        what = "replication connection"
        yield ServerFinding(what, Verdict.MISSING, one_line(error), cure)
        return
    yield ServerFinding("replication connection", Verdict.RIGHT, "accepted")
    try:
        stored = _stored(config.state.path)
    except StoreError:
        stored = StoredSource()  # a finding of its own
    name = chosen = source.slot_name
    if not source.slot_name_given:
        name = ownership.name_for(connection, chosen, stored.source)
    if name != chosen and (stored.source is None or stored.source.slot != name):
        others = slot.read(connection, chosen)
        detail = f"{others} isn't this database's: {name} is used in its place"
        yield ServerFinding("slot_name", Verdict.RIGHT, detail)
    found = slot.read(connection, name)
    # Of servers that share the slot, the one that reads it decides, not this store's position.
    is_shared = config.standby is not None
    lost = None
    if not is_shared:
        lost = _lost(connection, replace(source, slot_name=name), stored, server, found)
    is_needed = lost is not None or not (stored.position or is_shared)
    if found is not None and is_needed and not _is_own(stored, server, found):
        yield _foreign(found, is_empty=stored.source is None)
    elif lost is not None:
        yield _loss(source, lost, found)
    elif found is None:
        yield _to_be_made(connection, name)
    else:
        is_served = is_shared or _owner(config.state.path) is not None
        yield _existing(connection, found, is_served=is_served)
        for warning in health.warnings(found):
            yield ServerFinding("slot", Verdict.WARNING, warning.text, warning.cure)
    yield from _limits(connection, found)


def _server_of(connection: Connection, stream: ReplicationStream) -> timeline.Server:
    server = stream.identify()
    history = History(server.system_identifier, server.timeline, ownership.database(connection))
    return timeline.Server(history, server.position, stream.switches(server.timeline))


def _lost(
    connection: Connection,
    source: SourceOptions,
    stored: StoredSource,
    server: timeline.Server,
    found: Slot | None,
) -> str | None:
    """Reason why the slot can't give what follows the store's position; None: it can."""
    known = stored.source
    if known is None or not stored.position:
        return None
    if not known.slot:
        return "the store is that of a relay, which has no slot"
    published = publication.read(connection, source.publication.name)
    return timeline.judge(known, stored.position, server, int(time.time())).broken or slot.gap(
        slot.StoredSlot(known.slot, known.publication, stored.position),
        found,
        slot_name=source.slot_name,
        publication=f"{source.publication.name}:" if published is None else published.identity,
    )


def _is_own(stored: StoredSource, server: timeline.Server, found: Slot) -> bool:
    """True if the server may replace this slot, or begins with it."""
    known = stored.source
    is_begun = known is not None and not known.since and known.slot == found.name
    return is_begun or ownership.is_used_by(stored, server.history.system_identifier, found)


def _foreign(found: Slot, *, is_empty: bool) -> ServerFinding:
    detail = f"{found} exists, and this store has never used it, or another program has moved it"
    if is_empty:
        detail = f"{found} exists, and the store is empty: it has never used that slot"
    if not found.is_of_this_database:
        detail = f"{found} belongs to another database or program"
    cure = f"SELECT pg_drop_replication_slot('{found.name}'); or choose another slot_name"
    if found.active_pid is not None or not found.is_of_this_database:
        cure = "choose another slot_name, or the state.path of the server that uses this one"
    return ServerFinding("slot", Verdict.MISSING, detail, cure)


def _loss(source: SourceOptions, lost: str, found: Slot | None) -> ServerFinding:
    is_invalid = found is not None and found.wal_status == "lost"
    if found is not None and is_invalid and found.invalidated:
        lost = f"{found.name} was invalidated: {found.invalidated}"
    if source.on_slot_lost is OnSlotLost.FAIL:
        cure = "set on_slot_lost = recreate, which copies every table again"
        return ServerFinding("slot", Verdict.MISSING, f"{lost}; on_slot_lost is fail", cure)
    if found is not None and is_invalid:
        cure = f"SELECT pg_drop_replication_slot('{found.name}');"
        return ServerFinding("slot", Verdict.MISSING, lost, cure)
    detail = f"{lost}: the slot is created again, and every table copied again"
    return ServerFinding("slot", Verdict.WARNING, detail)


def _to_be_made(connection: Connection, name: str) -> ServerFinding:
    row = connection.execute(
        "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
    ).fetchone()
    used, most = row or (0, 0)
    if used < most:
        return ServerFinding("slot", Verdict.RIGHT, f"{name} will be created ({most - used} free)")
    detail = f"slot {name} doesn't exist, and all {most} slots are taken"
    cure = "drop one that isn't needed, or raise max_replication_slots and restart"
    return ServerFinding("slot", Verdict.MISSING, detail, cure)


def _existing(connection: Connection, found: Slot, *, is_served: bool) -> ServerFinding:
    holder = slot.holder(connection, found.name)
    if holder and not is_served:
        detail = f"{found.name} is in use by {holder}, and no server has this store"
        cure = "stop the other server; one of the two has a copy of the other's store"
        return ServerFinding("slot", Verdict.MISSING, detail, cure)
    user = f"in use by {holder}" if holder else "free"
    detail = f"{found.name}: {user}, {found.wal_status}, {size(found.retained or 0)} of WAL kept"
    return ServerFinding("slot", Verdict.RIGHT, detail)


_LIMITS = """
SELECT (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
    (SELECT setting::int8 * CASE unit WHEN 'min' THEN 60 ELSE 1 END
        FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
    (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'),
    EXISTS (SELECT FROM pg_stat_replication r LEFT JOIN pg_replication_slots s
        ON s.active_pid = r.pid WHERE coalesce(s.slot_type, 'physical') = 'physical')
"""
_SHORT_IDLE_S = 86400


def _limits(connection: Connection, found: slot.Slot | None) -> Iterator[ServerFinding]:
    """Check the settings that decide whether the slot survives while this server is down."""
    keep_mb, idle_s, sender_ms, standby = connection.execute(_LIMITS).fetchone() or (0, 0, 1, False)
    kept = (
        "-1: WAL is kept without limit while this server is down; watch the database's disk, or set"
        " a limit"
        if keep_mb < 0
        else f"{size(keep_mb << 20)}: a slot that keeps more is lost, and on_slot_lost decides"
    )
    yield ServerFinding("max_slot_wal_keep_size", Verdict.RIGHT, kept)
    if idle_s and idle_s < _SHORT_IDLE_S:
        yield ServerFinding(
            "idle_replication_slot_timeout",
            Verdict.WARNING,
            f"a server that is down for {idle_s:,} s loses its slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = '2d'; SELECT pg_reload_conf();",
        )
    if not sender_ms:
        yield ServerFinding(
            "wal_sender_timeout",
            Verdict.WARNING,
            "0: walsenders of lost connections stay; this server ends only its own",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    if standby and found is not None and found.failover is False:
        yield ServerFinding(
            "slot",
            Verdict.WARNING,
            f"{found.name} was created without failover: a promoted standby won't have it, and"
            " every table is copied again then",
            "stop this server, then over a replication connection:"
            f" ALTER_REPLICATION_SLOT {found.name}"
            " (FAILOVER true)",
        )
