"""Plan of a reload: changed tables, and the settings that apply without a restart."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from laredo_fanout.app.reload.expansion import expand, followed
from laredo_fanout.config import Config
from laredo_service.settings.loading import below, take_up
from laredo_service.settings.tree import Path
from laredo_service.table_pattern import TableName

_SOURCE = ("sources", "*")
_GRPC = ("fanout", "grpc")
_NEEDS_RESTART = below(("state",), ("sources",), ("fanout",), ("http",))
_TAKEN_UP = below(
    *(
        (*_SOURCE, key)
        for key in (
            # The next session of the stream has them, and checks all that a start does.
            "connection",
            "password",
            "password_file",
            "copy",
            "heartbeat_interval",
            "receive_timeout",
            "on_slot_lost",
            # Of a relay.
            "token",
            "token_file",
        )
    ),
    (*_GRPC, "max_clients"),
    (*_GRPC, "max_clients_per_identity"),
    (*_GRPC, "max_clients_per_client_id"),
    ("fanout", "drain_grace"),
    ("http", "token_file"),
    ("http", "public"),
    ("http", "allowed_hosts"),
)
_REPLACED = below((*_GRPC, "tokens_file"), ("http", "token"))
"""Taken up where there was one and is one: whether one is asked for says where to listen."""


class ReloadPlan(NamedTuple):
    """The configuration that the server goes on with, and how it differs from the one before."""

    configured: Config
    """With patterns."""
    config: Config
    """With the tables that they match."""
    changed: tuple[str, ...]
    """Paths of what is taken up, but for tables."""
    needs_restart: tuple[str, ...]
    """Paths of what stays as it was until a restart."""
    added: tuple[str, ...]
    """Tables."""
    removed: tuple[str, ...]
    """Tables."""
    altered: tuple[str, ...]
    """Tables that stay, with other settings."""


def plan(
    configured: Config, running: Config, new: Config, found: Collection[TableName]
) -> ReloadPlan:
    """Plan the change from a running server's configuration to a new one.

    ``configured`` is the file that was loaded last, and ``running`` what it expanded to. ``found``
    are the tables that the catalog contains.
    """
    taken = take_up(configured, new, _needs_restart)
    config = expand(taken.config, found, followed(running))
    kept = list(taken.needs_restart)
    if new.port != configured.port and "fanout.grpc.port" not in kept:
        # A target's short form sets it, too.
        kept.append("fanout.grpc.port")
    former = {table.name: table for table in running.tables}
    now = {table.name: table for table in config.tables}
    return ReloadPlan(
        taken.config,
        config,
        tuple(path for path in taken.changed if path != "tables"),
        tuple(kept),
        added=tuple(now.keys() - former.keys()),
        removed=tuple(former.keys() - now.keys()),
        altered=tuple(name for name in former if name in now and now[name] != former[name]),
    )


def _needs_restart(path: Path, before: object, new: object) -> bool:
    if _REPLACED(path):
        return before is None or new is None
    return _NEEDS_RESTART(path) and not _TAKEN_UP(path)
