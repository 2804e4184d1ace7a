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
from laredo_fanout.app import check_slot, check_tables, compiled, options
from laredo_fanout.app.check_tables import ServerFinding, Verdict, one_line
from laredo_fanout.client.errors import ClientError
from laredo_fanout.config import Config
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay import path as path_
from laredo_fanout.serving.archives import destination_of
from laredo_fanout.serving.options import ArchiveOptions
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
            yield from check_slot.findings(connection, config, chosen)
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
    yield from check_slot.store_findings(config.state.path)
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


def _cure_of(problem: SourceError) -> tuple[str, str]:
    """Split a message of ``requirements``, which is ``problem: statement``."""
    detail, _, cure = str(problem).partition(": ")
    return (detail, cure) if cure else (str(problem), "")
