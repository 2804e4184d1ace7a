"""The HTTP endpoints of the server: the page at /, /health/live, /health/ready, /health/serving,
/status, /metrics; by POST /catchup, /reload and /tables/NAME/recopy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, Response

from laredo_fanout.app.page import content as page
from laredo_fanout.app.page.lag import LagHistory
from laredo_fanout.app.reload.reload import ReloadRefused
from laredo_fanout.errors import RecopyRefused
from laredo_fanout.postgres.errors import SourceUnavailable
from laredo_model.http.exposition import Exposition

_RECOPY_PATIENCE = 10.0


def application(
    *,
    problems: Callable[[], list[str]],
    unserved: Callable[[], list[str]],
    status: Callable[[], dict[str, Any]],
    metrics: Callable[[str], Awaitable[Exposition]],
    catch_up: Callable[[], None] | None,
    recopy: Callable[[str], Future[None]],
    reload: Callable[[], Awaitable[dict[str, Any]]],
    lag: LagHistory,
) -> FastAPI:
    """Make the HTTP application.

    :param problems: why the server isn't ready; empty if it is.
    :param unserved: why the server can't serve the rows that it has; empty if it does.
    :param status: what /status shows, as JSON values.
    :param metrics: what /metrics answers to a request with this Accept header.
    :param catch_up: what POST /catchup does; None: fall-behind mode is off.
    :param reload: what POST /reload does; what it returns is the answer.
    :param recopy: what POST /tables/NAME/recopy does; KeyError: no such table.
    :param lag: what the page draws.
    """
    # No page lists the endpoints to strangers, and no redirect repeats a Host.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    page.add(app, status, lag)

    @app.get("/health/live")
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/health/ready")
    async def ready() -> Response:
        found = problems()
        return _json({"ready": not found, "problems": found}, 503 if found else 200)

    @app.get("/health/serving")
    async def serving() -> Response:
        found = unserved()
        return _json({"serving": not found, "problems": found}, 503 if found else 200)

    @app.get("/status")
    async def show_status() -> Response:
        return _json(status())

    @app.get("/metrics")
    async def show_metrics(accept: Annotated[str, Header()] = "") -> Response:
        answer = await metrics(accept)
        return Response(answer.body, media_type=answer.content_type)

    @app.post("/catchup")
    async def split_backlog() -> Response:
        if catch_up is None:
            return _json({"error": "catchup.mode is off; set it to auto or manual"}, 409)
        catch_up()
        return _json({"asked": True}, 202)

    @app.post("/reload")
    async def take_up_configuration() -> Response:
        try:
            return _json(await reload())
        except ReloadRefused as refused:
            return _json({"error": str(refused)}, 422)

    def shown(name: str) -> Any:
        return status()["tables"][name]["recopy"]

    @app.post("/tables/{name:path}/recopy")
    async def copy_again(name: str) -> Response:
        try:
            await asyncio.wait_for(asyncio.wrap_future(recopy(name)), _RECOPY_PATIENCE)
        except KeyError:
            return _json({"error": f"no table {name} is configured; write schema.table"}, 404)
        except RecopyRefused as refused:
            return _json({"error": str(refused), "recopy": shown(name)}, 409)
        except SourceUnavailable as unavailable:
            return _json({"error": str(unavailable)}, 503)
        except TimeoutError:
            problem = (
                f"not begun within {_RECOPY_PATIENCE:.0f} s; /status shows whether it is later"
            )
            return _json({"error": problem}, 503)
        return _json({"asked": True, "table": name, "recopy": shown(name)}, 202)

    return app


def _json(content: dict[str, Any], code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=code, media_type="application/json")
