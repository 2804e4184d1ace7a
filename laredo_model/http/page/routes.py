"""A program's status page at ``/``, and what belongs to it.

``/page/content`` is the part of it that its script fetches again and again. Nothing comes from
elsewhere and nothing is inline: the Content-Security-Policy forbids both, so that a name that
brings markup along could do nothing even if it weren't escaped.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from laredo_model.http.endpoints import Endpoints
from laredo_model.http.page import figures, line_chart

_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_FILES = Path(__file__).parent


def add(app: Endpoints, package: str, context: Callable[[], Mapping[str, Any]]) -> None:
    """Give ``app`` the status page.

    :param package: the one whose ``templates`` have ``page.html`` and ``content.html``.
    :param context: the names that these templates use, made for each request.
    """
    templates = _environment(package)
    style = (_FILES / "page.css").read_text()
    script = (_FILES / "page.js").read_text()

    def rendered(name: str) -> Response:
        text = templates.get_template(name).render(context())
        return Response(text, media_type="text/html", headers=_SECURITY)

    async def show_page(_: Request) -> Response:
        return rendered("page.html")

    async def show_content(_: Request) -> Response:
        return rendered("content.html")

    async def show_style(_: Request) -> Response:
        return Response(style, media_type="text/css", headers=_SECURITY)

    async def show_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript", headers=_SECURITY)

    app.get("/", show_page)
    app.get("/page/content", show_content)
    app.get("/page/page.css", show_style)
    app.get("/page/page.js", show_script)


def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": figures.size,
        "duration": figures.duration,
        "count": figures.count,
        "ago": figures.ago,
    }
    environment.globals |= {"width": line_chart.WIDTH, "height": line_chart.HEIGHT}
    return environment
