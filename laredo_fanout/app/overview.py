"""The parts of /status that people are shown first: what is broken, and who is furthest behind.

The terminal and the status page show the same; both are made from the JSON of /status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

KINDS = BAD, BUSY, GOOD = "bad", "busy", "good"
"""Kinds of states, the worst first. A copy or a wait that ends by itself is BUSY, never BAD."""
FAR_BEHIND = 1_000
"""Changes; a client with more of them to take isn't shown as GOOD."""


def table_kind(table: dict[str, Any]) -> str:
    """The kind of a table's state."""
    if table["error"]:
        return BAD
    is_well = table["status"] == "live" and not (table.get("archive") or {}).get("problem")
    return GOOD if is_well else BUSY


def client_kind(client: dict[str, Any]) -> str:
    """The kind of a client's state."""
    return GOOD if client["state"] == "live" and client["behind"] <= FAR_BEHIND else BUSY


def problems(status: dict[str, Any]) -> list[str]:
    """Problems as sentences. A table that is copied, or waits, is none."""
    tables = status["tables"]
    of_tables = tuple(f"table {name}: " for name in tables)
    found = [problem for problem in status["problems"] if not problem.startswith(of_tables)]
    for name, table in tables.items():
        found += (each for each in _of_table(name, table) if each not in found)
    return found


def _of_table(name: str, table: dict[str, Any]) -> Iterator[str]:
    if table["error"]:
        yield table["error"] if name in table["error"] else f"table {name}: {table['error']}"
    archive = table.get("archive") or {}
    if archive.get("problem"):
        yield f"archive of table {name}: {archive['problem']}"


def clients_by_lag(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The clients, those that are furthest behind first, then those that aren't live."""
    return sorted(
        status["clients"],
        key=lambda client: (-client["behind"], client["state"] == "live", client["client_id"]),
    )


def address(peer: str) -> str:
    """Host and port of a client, as gRPC writes them: ``ipv4:10.0.0.1:40000``."""
    return unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))
