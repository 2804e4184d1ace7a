"""HTTP: health, status, metrics, and POST /snapshot."""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from laredo_snapshotter.config import HttpBlock
from laredo_snapshotter.errors import SnapshotNotReady
from laredo_snapshotter.metrics import Metrics
from laredo_snapshotter.status import TableStatus


class Writers(Protocol):
    """The tables, as the HTTP side sees them."""

    def statuses(self) -> Sequence[TableStatus]:
        """Every table's."""

    def request_snapshots(self, tables: Sequence[str]) -> Mapping[str, "asyncio.Future[int]"]:
        """Ask for a new base of each; the futures bring the epochs once committed.

        :raises SnapshotNotReady: if one of them can't make any.
        """


def app(writers: Writers, metrics: Metrics, settings: HttpBlock, version: str) -> FastAPI:
    """The application."""
    api = FastAPI(title="laredo-snapshotter", version=version, docs_url=None, redoc_url=None)
    token = None if settings.token is None else settings.token.get_secret_value()

    @api.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @api.get("/health/ready")
    async def ready() -> JSONResponse:
        statuses = writers.statuses()
        missing = {s.table: s.problem or s.state.value for s in statuses if not s.ready}
        body = {"ready": not missing, "not_ready": missing}
        return JSONResponse(body, 503 if missing else 200)

    @api.get("/status")
    async def status() -> dict[str, Any]:
        statuses = writers.statuses()
        return {
            "version": version,
            "ready": all(table.ready for table in statuses),
            "tables": {table.table: table.to_json() for table in statuses},
        }

    @api.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.post("/snapshot")
    async def snapshot(
        request: Request, table: str | None = None, wait: bool = False
    ) -> JSONResponse:
        if token is not None and not _knows(request, token):
            return JSONResponse(
                {"error": "a token is needed: Authorization: Bearer ..."},
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        known = [status.table for status in writers.statuses()]
        if table is not None and table not in known:
            return JSONResponse({"error": f"no table {table} here; there are {known}"}, 404)
        wanted = known if table is None else [table]
        try:
            asked = writers.request_snapshots(wanted)
        except SnapshotNotReady as refused:
            return JSONResponse({"error": str(refused)}, 409)
        if not wait:
            return JSONResponse({"requested": wanted}, 202)
        return await _epochs(asked)

    return api


async def _epochs(asked: Mapping[str, "asyncio.Future[int]"]) -> JSONResponse:
    results = await asyncio.gather(
        *(asyncio.shield(future) for future in asked.values()), return_exceptions=True
    )
    epochs = {t: r for t, r in zip(asked, results, strict=True) if isinstance(r, int)}
    errors = {t: str(r) for t, r in zip(asked, results, strict=True) if not isinstance(r, int)}
    body = {"epochs": epochs, **({"errors": errors} if errors else {})}
    return JSONResponse(body, 503 if errors else 200)


def _knows(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


class Server(uvicorn.Server):
    """uvicorn inside our own event loop, leaving the signals to us."""

    def __init__(self, application: FastAPI) -> None:
        self.port: int | None = None
        """Where it listens; None before it does."""
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def listen(self, settings: HttpBlock) -> socket.socket:
        """The socket to serve on.

        :raises OSError: if the address can't be had.
        """
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.create_server((settings.host, settings.port), family=family)
        self.port = int(listening.getsockname()[1])
        return listening
