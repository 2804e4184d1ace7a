"""The HTTP application of a program: its endpoints, whose refusals are JSON."""

from collections.abc import Awaitable, Callable

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Endpoint = Callable[[Request], Awaitable[Response]]

_FLAG = TypeAdapter(bool)


class Endpoints(Starlette):
    """An ASGI application of endpoints that are added one by one.

    Nothing describes the endpoints to strangers, and no redirect repeats a Host.
    """

    def __init__(self) -> None:
        super().__init__(exception_handlers={HTTPException: _refused})
        self.router.redirect_slashes = False

    def get(self, path: str, endpoint: Endpoint) -> None:
        """Answer GET requests for ``path``."""
        self._add(path, endpoint, "GET")

    def post(self, path: str, endpoint: Endpoint) -> None:
        """Answer POST requests for ``path``."""
        self._add(path, endpoint, "POST")

    def _add(self, path: str, endpoint: Endpoint, method: str) -> None:
        route = Route(path, endpoint)
        # Starlette adds HEAD to GET by itself; these endpoints have one method each.
        route.methods = {method}
        self.router.routes.append(route)


class BadQuery(HTTPException):
    """A query parameter has a value of another type; answered with 422."""


def flag(request: Request, name: str) -> bool:
    """A boolean query parameter; False if it is absent.

    :raises BadQuery: if the value is no boolean.
    """
    try:
        return _FLAG.validate_python(request.query_params.get(name, False))
    except ValidationError as wrong:
        (found,) = wrong.errors(include_url=False, include_context=False)
        raise BadQuery(422, [{**found, "loc": ["query", name]}]) from None  # type: ignore[arg-type]


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    return JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)
