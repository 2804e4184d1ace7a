"""HTTP: the page at /, health, status, metrics, POST /snapshot and POST /reload."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from laredo_archive.manifest.model import Manifest
from laredo_model.http.endpoints import Endpoints, flag
from laredo_service import build
from laredo_snapshotter.app.page import content as page
from laredo_snapshotter.errors import ReloadImpossible, SnapshotNotReady
from laredo_snapshotter.metrics import Metrics
from laredo_snapshotter.status import TableWriterStatus


class Writers(Protocol):
    """The tables, as the HTTP side sees them."""

    def statuses(self) -> Sequence[TableWriterStatus]:
        """Every table's."""

    def manifest(self, table: str) -> Manifest | None:
        """The archive's, as last committed everywhere; None before it is claimed."""

    def request_snapshot(self, table: str) -> "asyncio.Future[int]":
        """Ask for a new base; the future brings its epoch once committed.

        :raises SnapshotNotReady: if the table can't make any.
        """

    @property
    def waiting_patterns(self) -> Mapping[str, str]:
        """The patterns whose server hasn't answered yet: path and reason."""

    async def reload(self) -> dict[str, Any]:
        """Take up the configuration as it is now; what was done.

        :raises ReloadImpossible: if it is wrong.
        """


def app(writers: Writers, metrics: Metrics, *, asks_token: bool = False) -> Endpoints:
    """The application. ``asks_token``: whether requests need one, so that the page asks for it."""
    api = Endpoints()
    page.add(api, writers.statuses, writers.manifest, build.version(), asks_token=asks_token)

    async def live(_: Request) -> JSONResponse:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> JSONResponse:
        statuses = writers.statuses()
        missing = {s.table: s.problem or s.state.value for s in statuses if not s.ready}
        missing.update(writers.waiting_patterns)
        body = {"ready": not missing, "not_ready": missing}
        return JSONResponse(body, 503 if missing else 200)

    async def serving(_: Request) -> JSONResponse:
        ended = {s.table: s.problem or s.state.value for s in writers.statuses() if s.state.ended}
        body = {"serving": not ended, "ended": ended}
        return JSONResponse(body, 503 if ended else 200)

    async def status(_: Request) -> JSONResponse:
        statuses = writers.statuses()
        body = {
            "version": build.version(),
            "commit": build.commit(),
            "ready": all(table.ready for table in statuses),
            "tables": {table.table: table.to_json() for table in statuses},
        }
        return JSONResponse(body)

    async def scrape(request: Request) -> Response:
        answer = await metrics.answer(request.headers.get("accept", ""))
        return Response(answer.body, media_type=answer.content_type)

    async def snapshot(request: Request) -> JSONResponse:
        table, wait = request.query_params.get("table"), flag(request, "wait")
        known = [status.table for status in writers.statuses()]
        if table is not None and table not in known:
            return JSONResponse({"error": f"no table {table} here; there are {known}"}, 404)
        if table is None:
            return await _snapshot_all(writers, known, wait=wait)
        return await _snapshot_one(writers, table, wait=wait)

    async def reload(_: Request) -> JSONResponse:
        try:
            return JSONResponse(await writers.reload())
        except ReloadImpossible as wrong:
            return JSONResponse({"error": str(wrong)}, 422)

    api.get("/health/live", live)
    api.get("/health/ready", ready)
    api.get("/health/serving", serving)
    api.get("/status", status)
    api.get("/metrics", scrape)
    api.post("/snapshot", snapshot)
    api.post("/reload", reload)
    return api


async def _snapshot_one(writers: Writers, table: str, *, wait: bool) -> JSONResponse:
    try:
        asked = writers.request_snapshot(table)
    except SnapshotNotReady as refused:
        return JSONResponse({"error": str(refused)}, 409)
    if not wait:
        return JSONResponse({"requested": [table]}, 202)
    try:
        return JSONResponse({"epochs": {table: await asyncio.shield(asked)}})
    except SnapshotNotReady as failed:
        return JSONResponse({"epochs": {}, "errors": {table: str(failed)}}, 503)


async def _snapshot_all(writers: Writers, tables: Sequence[str], *, wait: bool) -> JSONResponse:
    """Ask every table; one that can't make a base holds up none of the others."""
    asked: dict[str, asyncio.Future[int]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for table in tables:
        try:
            asked[table] = writers.request_snapshot(table)
            answers[table] = {"status": "requested"}
        except SnapshotNotReady as refused:
            answers[table] = {"status": "refused", "error": str(refused)}
    if wait:
        answers |= await _written(asked)
    good = [table for table in tables if "error" not in answers[table]]
    if wait:
        body: dict[str, Any] = {"epochs": {table: answers[table]["epoch"] for table in good}}
    else:
        body = {"requested": good}
    if len(good) == len(tables):
        return JSONResponse(body, 200 if wait else 202)
    errors = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
    body |= {"tables": answers, "errors": errors}
    if good:
        return JSONResponse(body, 207)
    body["error"] = "; ".join(errors.values())
    return JSONResponse(body, 503 if asked else 409)


async def _written(asked: Mapping[str, "asyncio.Future[int]"]) -> dict[str, dict[str, Any]]:
    """Result of each base that was requested."""
    waiting = (asyncio.shield(future) for future in asked.values())
    results = await asyncio.gather(*waiting, return_exceptions=True)
    return {
        table: {"status": "written", "epoch": result}
        if isinstance(result, int)
        else {"status": "failed", "error": str(result)}
        for table, result in zip(asked, results, strict=True)
    }
