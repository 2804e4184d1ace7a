"""The server's HTTP endpoints: /, /health, /status and /metrics, and orders by POST.

The orders are /catchup, /promote, /reload and /tables/NAME/recopy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from laredo_fanout.app.reload import ReloadRefused
from laredo_fanout.app.terminal import (
    BAD,
    FAR_BEHIND,
    GOOD,
    KINDS,
    address,
    client_kind,
    clients_by_lag,
    problems,
    table_kind,
)
from laredo_fanout.batch.status import IngestStatus
from laredo_fanout.errors import RecopyRefused
from laredo_fanout.postgres.connections import SourceError, SourceUnavailable
from laredo_model import position
from laredo_service.figures import counted, duration, size
from laredo_service.http import page
from laredo_service.http.page import LastHour, LineChart, chart_of
from laredo_service.http.server import Endpoints
from laredo_service.metrics import Exposition

# The source's lag over the last hour, for the status page.

_EVERY_S = 1.0
_SIZES = tuple(n * 10**6 for n in (1, 5, 20, 100, 500, 2_000, 10_000))
_DURATIONS = (10.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)


class LagHistory:
    """Samples of the lag, in bytes and seconds; absent where PostgreSQL couldn't be asked."""

    def __init__(self, source: Callable[[], IngestStatus]) -> None:
        self._source = source
        self._bytes, self._seconds = LastHour(), LastHour()

    async def run(self) -> None:
        """Take a sample every second until cancelled."""
        while True:
            self.take(time.monotonic())
            await asyncio.sleep(_EVERY_S)

    def take(self, now: float) -> None:
        """Take a sample at ``now``, a monotonic time; none before PostgreSQL was first asked."""
        source = self._source()
        lag = source.known_lag_bytes
        if lag is None and source.error is None:
            return
        self._bytes.add(now, lag)
        self._seconds.add(now, None if lag is None else source.lag_seconds)

    def in_bytes(self) -> LineChart:
        """The chart of the lag in bytes of WAL."""
        return chart_of(self._bytes, time.monotonic(), _SIZES)

    def in_seconds(self) -> LineChart:
        """The chart of the lag in seconds."""
        return chart_of(self._seconds, time.monotonic(), _DURATIONS)

    def latest(self) -> tuple[str, str]:
        """The lag now, in bytes and as a duration, for people."""
        source = self._source()
        lag = source.known_lag_bytes
        if lag is None:
            return ("not known", "not known")
        return (size(lag), duration(source.lag_seconds))


# The status page, and the values that its templates use.


def add(app: Endpoints, status: Callable[[], dict[str, Any]], lag: LagHistory) -> None:
    """Give ``app`` the status page.

    :param status: what /status shows.
    """
    page.add(app, __package__ or "", lambda query: _names(status(), lag, query))


MOST_SHOWN = 20
"""Number of tables and of clients on the page, unless all are asked for; every table with a problem
is shown."""


def _names(status: dict[str, Any], lag: LagHistory, query: Mapping[str, str]) -> dict[str, Any]:
    bytes_now, seconds_now = lag.latest()
    tables = [
        (name, table, _copying(table), table_kind(table))
        for name, table in status["tables"].items()
    ]
    tables.sort(key=lambda each: KINDS.index(each[-1]))
    kinds = Counter(kind for *_, kind in tables)
    live = sum(table["status"] == "live" for table in status["tables"].values())
    clients = clients_by_lag(status)
    return {
        "show_all": "all" in query,
        "most_tables": max(MOST_SHOWN, len(tables) - kinds[GOOD]),
        "most_clients": MOST_SHOWN,
        "far": FAR_BEHIND,
        "broken": kinds[BAD],
        "live": live,
        "problems": problems(status),
        "waits": _waits(status),
        "tables": tables,
        "clients": [(client, client_kind(client)) for client in clients],
        "far_behind": sum(client["behind"] > FAR_BEHIND for client in clients),
        "address": address,
        "now": datetime.now(UTC).strftime("%H:%M:%S UTC"),
        "version": status["version"],
        "status": status,
        "segments": {
            name: [(segment, _decoded(segment)) for segment in source["catchup"]["segments"]]
            for name, source in status["sources"].items()
            if source["catchup"]
        },
        "lag_bytes": lag.in_bytes(),
        "lag_seconds": lag.in_seconds(),
        "bytes_now": bytes_now,
        "seconds_now": seconds_now,
        "size": size,
        "duration": duration,
    }


def _decoded(segment: dict[str, Any]) -> float | None:
    """Decoded share of a segment, 0 to 1; None for the last segment, which has no end."""
    if segment["stop"] is None:
        return None
    start, stop, reached = (position.parse(segment[key]) for key in ("start", "stop", "reached"))
    return min(1.0, max(0.0, (reached - start) / max(1, stop - start)))


def _copying(table: dict[str, Any]) -> dict[str, Any] | None:
    """The progress of the table's copy or re-copy; None if neither is under way."""
    recopy = table["recopy"] or {}
    copy: dict[str, Any] | None = table["copy"] or recopy.get("progress")
    return copy


def _waits(status: dict[str, Any]) -> list[str]:
    """Sentences about tables that aren't live yet and have no problem."""
    known = problems(status)
    waits = [each for each in status["problems"] if each not in known]
    if len(waits) <= 5:
        return waits
    return [f"{len(waits)} of {counted(len(status['tables']), 'table')} are copied, or wait"]


_RECOPY_PATIENCE = 10.0
_PROMOTE_PATIENCE = 10.0


def application(
    *,
    problems: Callable[[], list[str]],
    unserved: Callable[[], list[str]],
    silent: Callable[[], list[str]],
    status: Callable[[], dict[str, Any]],
    metrics: Callable[[str], Awaitable[Exposition]],
    catch_up: Callable[[], None] | None,
    recopy: Callable[[str], Future[None]],
    recopy_status: Callable[[str], dict[str, Any] | None],
    promote: Callable[[], Future[None]] | None,
    reload: Callable[[], Awaitable[dict[str, Any]]],
    lag: LagHistory,
) -> Endpoints:
    """Make the HTTP application.

    :param problems: reasons why the server isn't ready.
    :param unserved: reasons why the server can't serve the rows that it has.
    :param silent: texts about child processes that are silent.
    :param status: the JSON values of /status.
    :param metrics: the answer of /metrics to a request with this Accept header.
    :param catch_up: called by POST /catchup; None: the server has no fall-behind mode.
    :param reload: called by POST /reload; it returns the answer.
    :param recopy: called by POST /tables/NAME/recopy; KeyError: no such table.
    :param recopy_status: a table's re-copy as /status shows it; KeyError: no such table.
    :param promote: called by POST /promote; None: the server shares its slot with no other.
    :param lag: the lag that the page draws.
    """
    app = Endpoints()
    add(app, status, lag)

    async def live(_: Request) -> Response:
        return _json({"live": True})

    async def ready(_: Request) -> Response:
        found = problems()
        shown = {"ready": not found, "problems": found, "silent": silent()}
        return _json(shown, 503 if found else 200)

    async def serving(_: Request) -> Response:
        found = unserved()
        return _json({"serving": not found, "problems": found}, 503 if found else 200)

    async def show_status(_: Request) -> Response:
        return _json(status())

    async def show_metrics(request: Request) -> Response:
        answer = await metrics(request.headers.get("accept", ""))
        return Response(answer.body, media_type=answer.content_type)

    async def split_backlog(_: Request) -> Response:
        if catch_up is None:
            problem = (
                "fall-behind mode is off: set catchup.mode to auto or manual (a relay and a server"
                " with a standby block have no such mode)"
            )
            return _json({"error": problem}, 409)
        catch_up()
        return _json({"asked": True}, 202)

    async def take_over(_: Request) -> Response:
        if promote is None:
            return _json({"error": "this server is configured without a standby block"}, 409)
        try:
            taken = asyncio.shield(asyncio.wrap_future(promote()))
            await asyncio.wait_for(taken, _PROMOTE_PATIENCE)
        except SourceError as refused:
            return _json({"error": str(refused)}, 409)
        except TimeoutError:
            problem = (
                f"the takeover hasn't ended within {_PROMOTE_PATIENCE:.0f} s; /status shows when"
                " this server holds the slot"
            )
            return _json({"error": problem}, 503)
        return _json({"promoted": True})

    async def take_up_configuration(_: Request) -> Response:
        try:
            return _json(await reload())
        except ReloadRefused as refused:
            return _json({"error": str(refused)}, 422)

    async def copy_again(request: Request) -> Response:
        name: str = request.path_params["name"]
        try:
            return await copy_known_again(name)
        except KeyError:  # also if a reload removed it in the meantime
            return _json({"error": f"no table {name} is configured; write schema.table"}, 404)

    async def copy_known_again(name: str) -> Response:
        try:
            await asyncio.wait_for(asyncio.wrap_future(recopy(name)), _RECOPY_PATIENCE)
        except RecopyRefused as refused:
            return _json({"error": str(refused), "recopy": recopy_status(name)}, 409)
        except SourceUnavailable as unavailable:
            return _json({"error": str(unavailable)}, 503)
        except TimeoutError:
            problem = (
                f"the re-copy wasn't confirmed within {_RECOPY_PATIENCE:.0f} s; if /status doesn't"
                " show it, request it again"
            )
            return _json({"error": problem}, 503)
        return _json({"asked": True, "table": name, "recopy": recopy_status(name)}, 202)

    app.get("/health/live", live)
    app.get("/health/ready", ready)
    app.get("/health/serving", serving)
    app.get("/status", show_status)
    app.get("/metrics", show_metrics)
    app.post("/catchup", split_backlog)
    app.post("/promote", take_over)
    app.post("/reload", take_up_configuration)
    app.post("/tables/{name:path}/recopy", copy_again)
    return app


def _json(content: dict[str, Any], code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=code, media_type="application/json")
