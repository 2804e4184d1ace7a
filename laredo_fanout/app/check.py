"""``laredo-fanout check``: tries what the server needs, and prints how to cure what fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from laredo_archive.errors import ArchiveError, ArchiveMissing
from laredo_archive.manifest.object_keys import manifest_key
from laredo_archive.read.location import read_manifest
from laredo_fanout.app import check_tables, compiled, options
from laredo_fanout.app.check_tables import ServerFinding, Verdict
from laredo_fanout.client.errors import ClientError
from laredo_fanout.config import Config, StandbyConfig
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay import path as path_
from laredo_fanout.relay import peers
from laredo_fanout.serving.archives import destination_of
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.slot import health, ownership, slot
from laredo_fanout.source_config import Upstream
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_model import position
from laredo_service.certificates import WARN_DAYS, CertificateUnreadable, remaining

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions

# Checks of a source that is another laredo-fanout: it answers, for each table, and no loop.


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
            detail = " ".join(str(error).split())
            cure = "start the upstream with this table, or correct server, token and tls"
            yield ServerFinding(f"{key}, {table.name}", Verdict.MISSING, detail, cure)
        else:
            way = " -> ".join(hop.address for hop in found.hops)
            yield ServerFinding(f"{key}, {table.name}", Verdict.RIGHT, f"{way} -> PostgreSQL")


# Checks of the servers that share the slot: which of them answer, and what is confirmed without.


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
            yield ServerFinding(key, Verdict.WARNING, " ".join(str(error).split()), cure)
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
        "are confirmed without: a standby that lacks changes then can't take over"
        if configured.alone == "continue"
        else "wait, and PostgreSQL keeps its WAL"
    )
    return (
        f"the slot is taken over {taken}; positions are confirmed once {configured.synchronous}"
        f" standbys have them, and after {configured.patience:g} s with fewer they {then}"
    )


def _server_id(config: Config) -> str:
    """This server's id; empty before its first start."""
    try:
        with StoreReader.open(config.state.path) as reader:
            return reader.server_id()
    except StoreError:
        return ""


# Checks of the configured certificates: readable, and valid for a while.

_CURE = "replace the certificate's file; the server reads the new one without a restart"


def certificate_findings(config: Config) -> Iterator[ServerFinding]:
    """One for each certificate."""
    now = datetime.now(UTC)
    for certificate in options.configured(config):
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
            yield ServerFinding("connection", Verdict.RIGHT, _where(connection))
            yield from check_tables.of_patterns(connection, config)
            config = check_tables.expanded(connection, config)
            yield from check_tables.role_findings(connection, config, chosen)
            yield from _server(connection)
            yield from _replication(chosen)
            yield from _slot(connection, config, chosen)
            yield from check_tables.findings(connection, config, chosen)
    except (SourceError, psycopg.Error) as error:
        yield ServerFinding(
            f"sources.{config.source_name}.connection",
            Verdict.MISSING,
            _one_line(error),
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
        detail = f"{_one_line(missing)}; until there is one, late clients get a snapshot"
        cure = "start laredo-snapshotter for the table, or correct store_config or key_prefix"
        return ServerFinding(name, Verdict.WARNING, detail, cure)
    except ArchiveError as error:
        cure = "correct the archive block, or give this program the right to read there"
        return ServerFinding(name, Verdict.MISSING, _one_line(error), cure)
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
    return ServerFinding(name, Verdict.MISSING, detail, "make it, or choose another path")


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


def _replication(chosen: SourceOptions) -> Iterator[ServerFinding]:
    """Check a replication connection, which has its own line in pg_hba.conf."""
    try:
        connections.connect(chosen, role="check", replication=True).close()
    except SourceError as error:
        yield ServerFinding(
            "replication connection",
            Verdict.MISSING,
            _one_line(error),
            "allow the role in pg_hba.conf, and have a free max_wal_senders",
        )
    else:
        yield ServerFinding("replication connection", Verdict.RIGHT, "accepted")


def _slot(connection: Connection, config: Config, source: SourceOptions) -> Iterator[ServerFinding]:
    name = chosen = source.slot_name
    if not source.slot_name_given:
        name = ownership.name_for(connection, chosen)
    if name != chosen:
        others = slot.read(connection, chosen)
        detail = f"{others} isn't this database's: {name} is used in its place"
        yield ServerFinding("slot_name", Verdict.RIGHT, detail)
    found = slot.read(connection, name)
    if found is None:
        row = connection.execute(
            "SELECT count(*), current_setting('max_replication_slots')::int"
            " FROM pg_replication_slots"
        ).fetchone()
        used, most = row or (0, 0)
        if used >= most:
            detail = f"slot {name} doesn't exist, and all {most} slots are taken"
            cure = "drop one that isn't needed, or raise max_replication_slots and restart"
            yield ServerFinding("slot", Verdict.MISSING, detail, cure)
        else:
            yield ServerFinding("slot", Verdict.RIGHT, f"{name} will be made ({most - used} free)")
    elif not found.is_of_this_database:
        yield ServerFinding(
            "slot", Verdict.MISSING, f"{found} is another's", "choose another slot_name"
        )
    elif found.active_pid is None and not (config.standby or config.state.path.exists()):
        detail = f"{found} exists, and the store is empty: it has never used that slot"
        cure = f"SELECT pg_drop_replication_slot('{name}'); or choose another slot_name"
        yield ServerFinding("slot", Verdict.MISSING, detail, cure)
    elif found.wal_status == "lost":
        detail = f"{name} was invalidated: its WAL is gone"
        if found.invalidated:
            detail = f"{name} was invalidated: {found.invalidated}"
        cure = f"SELECT pg_drop_replication_slot('{name}');"
        yield ServerFinding("slot", Verdict.MISSING, detail, cure)
    else:
        holder = slot.holder(connection, name)
        user = f"in use by {holder}" if holder else "free"
        retained = f"{found.retained or 0:,} bytes of WAL kept"
        yield ServerFinding(
            "slot", Verdict.RIGHT, f"{name}: {user}, {found.wal_status}, {retained}"
        )
        for warning in health.warnings(found):
            yield ServerFinding("slot", Verdict.WARNING, warning.text, warning.cure)
    yield from _slot_limits(connection, found)


_LIMITS = """
SELECT (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
    (SELECT setting::int8 * CASE unit WHEN 'min' THEN 60 ELSE 1 END
        FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
    (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'),
    EXISTS (SELECT FROM pg_stat_replication r LEFT JOIN pg_replication_slots s
        ON s.active_pid = r.pid WHERE coalesce(s.slot_type, 'physical') = 'physical')
"""
_SHORT_IDLE_S = 86400


def _slot_limits(connection: Connection, found: slot.Slot | None) -> Iterator[ServerFinding]:
    """Check the settings that decide what becomes of the slot while this server is down."""
    keep_mb, idle_s, sender_ms, standby = connection.execute(_LIMITS).fetchone() or (0, 0, 1, False)
    if keep_mb < 0:
        yield ServerFinding(
            "max_slot_wal_keep_size",
            Verdict.RIGHT,
            "-1: WAL is kept without limit while this server is down; watch the database's"
            " disk, or set a limit",
        )
    else:
        yield ServerFinding(
            "max_slot_wal_keep_size",
            Verdict.RIGHT,
            f"{keep_mb:,} MB: a slot that keeps more is lost, and on_slot_lost decides",
        )
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
            "0: connections that were lost without being closed stay; this server ends its own",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    if standby and found is not None and found.failover is False:
        yield ServerFinding(
            "slot",
            Verdict.WARNING,
            f"{found.name} was made without failover: a promoted standby won't have it, and every"
            " table is copied again then",
            "stop this server, then over a replication connection:"
            f" ALTER_REPLICATION_SLOT {found.name}"
            " (FAILOVER true)",
        )


def _cure_of(problem: SourceError) -> tuple[str, str]:
    """Split a message of ``requirements``, which is ``problem: statement``."""
    detail, _, cure = str(problem).partition(": ")
    return (detail, cure) if cure else (str(problem), "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
