"""Checks of a source that is another laredo-fanout: it answers, for each table, and no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from laredo_fanout.app import options
from laredo_fanout.app.check import ServerFinding, Verdict
from laredo_fanout.client.errors import ClientError
from laredo_fanout.config import Config
from laredo_fanout.postgres.errors import SourceError
from laredo_fanout.relay import path
from laredo_fanout.source_config import Upstream
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import StoreReader


def findings(config: Config, configured: Upstream) -> Iterator[ServerFinding]:
    """Check the upstream with each table; nothing is changed."""
    chosen = options.relay_options(configured, config.source_name)
    key = f"sources.{config.source_name}.server"
    known = _server_id(config)
    for table in config.tables:
        try:
            found = asyncio.run(path.ask(chosen, table.name, known))
            path.check(found, chosen, known)
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
