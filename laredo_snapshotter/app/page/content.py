"""The names that the templates of the writer's status page use."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from laredo_archive.manifest.model import Manifest
from laredo_model.http.endpoints import Endpoints
from laredo_service.http import page
from laredo_snapshotter.app.page.chain import ArtifactChain, ArtifactChains
from laredo_snapshotter.status import TableWriterStatus, WriterState

_GOOD = frozenset({WriterState.FOLLOWING})
_BAD = frozenset({WriterState.FENCED, WriterState.FAILED, WriterState.HOLDING})


def add(
    app: Endpoints,
    statuses: Callable[[], Sequence[TableWriterStatus]],
    manifest: Callable[[str], Manifest | None],
    version: str,
    *,
    asks_token: bool,
) -> None:
    """Give ``app`` the status page.

    :param manifest: the manifest of a table's archive; None before the archive is claimed.
    :param asks_token: whether requests need a token, so that the page asks for it.
    """
    chains = ArtifactChains()

    def names() -> dict[str, Any]:
        found = statuses()
        return {
            "now": datetime.now(UTC).strftime("%H:%M:%S UTC"),
            "version": version,
            "asks_token": asks_token,
            "problems": _problems(found),
            "tables": [
                _table(status, chains.of(status.table, manifest(status.table))) for status in found
            ],
        }

    page.add(app, __package__, names)


def _problems(statuses: Sequence[TableWriterStatus]) -> list[str]:
    return [f"{s.table}: {s.problem or s.state.value}" for s in statuses if not s.ready]


def _table(status: TableWriterStatus, chain: ArtifactChain | None) -> dict[str, Any]:
    """A table: its status, its chain, and an id for elements of the page, which no name breaks."""
    kind = "good" if status.state in _GOOD else "bad" if status.state in _BAD else "busy"
    return {
        "status": status,
        "json": status.to_json(),
        "chain": chain,
        "kind": kind,
        "id": hashlib.sha256(status.table.encode()).hexdigest()[:12],
    }
