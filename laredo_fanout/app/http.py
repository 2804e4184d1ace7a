"""The HTTP endpoints of the server: the page at /, /health/live, /health/ready, /health/serving,
/status, /metrics; by POST /catchup, /reload and /tables/NAME/recopy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from laredo_fanout.app.page import content as page
from laredo_fanout.app.page.lag import LagHistory
from laredo_fanout.app.reload.reload import ReloadRefused
from laredo_fanout.errors import RecopyRefused
from laredo_fanout.postgres.errors import SourceUnavailable
from laredo_model.http.endpoints import Endpoints
from laredo_service.metrics import Exposition

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
) -> Endpoints:
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
    app = Endpoints()
    page.add(app, status, lag)

    async def live(_: Request) -> Response:
        return _json({"live": True})

    async def ready(_: Request) -> Response:
        found = problems()
        return _json({"ready": not found, "problems": found}, 503 if found else 200)

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
            return _json({"error": "catchup.mode is off; set it to auto or manual"}, 409)
        catch_up()
        return _json({"asked": True}, 202)

    async def take_up_configuration(_: Request) -> Response:
        try:
            return _json(await reload())
        except ReloadRefused as refused:
            return _json({"error": str(refused)}, 422)

    def shown(name: str) -> Any:
        return status()["tables"][name]["recopy"]

    async def copy_again(request: Request) -> Response:
        name: str = request.path_params["name"]
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

    app.get("/health/live", live)
    app.get("/health/ready", ready)
    app.get("/health/serving", serving)
    app.get("/status", show_status)
    app.get("/metrics", show_metrics)
    app.post("/catchup", split_backlog)
    app.post("/reload", take_up_configuration)
    app.post("/tables/{name:path}/recopy", copy_again)
    return app


def _json(content: dict[str, Any], code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=code, media_type="application/json")
