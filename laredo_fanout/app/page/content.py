"""The names that the templates of the server's status page use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from laredo_fanout.app.page.lag import LagHistory
from laredo_model import position
from laredo_model.http.endpoints import Endpoints
from laredo_service.http import page


def add(app: Endpoints, status: Callable[[], dict[str, Any]], lag: LagHistory) -> None:
    """Give ``app`` the status page.

    :param status: what /status shows.
    """
    page.add(app, __package__ or "", lambda: _names(status(), lag))


def _names(status: dict[str, Any], lag: LagHistory) -> dict[str, Any]:
    bytes_now, seconds_now = lag.latest()
    return {
        "now": datetime.now(UTC).strftime("%H:%M:%S UTC"),
        "version": status["version"],
        "status": status,
        "tables": [
            (name, table, _copying(table), _kind(table)) for name, table in status["tables"].items()
        ],
        "segments": {
            name: [(segment, _decoded(segment)) for segment in source["catchup"]["segments"]]
            for name, source in status["sources"].items()
            if source["catchup"]
        },
        "lag_bytes": lag.in_bytes(),
        "lag_seconds": lag.in_seconds(),
        "bytes_now": bytes_now,
        "seconds_now": seconds_now,
        "size": page.size,
        "duration": page.duration,
    }


def _decoded(segment: dict[str, Any]) -> float | None:
    """Decoded share of a segment, 0 to 1; None for the last segment, which has no end."""
    if segment["stop"] is None:
        return None
    start, stop, reached = (position.parse(segment[key]) for key in ("start", "stop", "reached"))
    return min(1.0, max(0.0, (reached - start) / max(1, stop - start)))


def _copying(table: dict[str, Any]) -> dict[str, Any] | None:
    """The progress of the table's copy or re-copy; None: there is none."""
    recopy = table["recopy"] or {}
    copy: dict[str, Any] | None = table["copy"] or recopy.get("progress")
    return copy


def _kind(table: dict[str, Any]) -> str:
    """Urgency of a table's state: good, busy or bad."""
    if table["error"]:
        return "bad"
    return "good" if table["status"] == "live" else "busy"
