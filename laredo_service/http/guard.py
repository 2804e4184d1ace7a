"""Authorization of HTTP requests: by token, and against web pages of other sites.

With a token configured, a request must carry it, as ``Authorization: Bearer``. A browser can't do
that when a page's address is typed: so a request to read the status page may bring the token as the
password of HTTP Basic, too, with any user name. No other request may: a browser sends a remembered
password with every request to this address, also with those that another site's page makes.

Without a token, every request is answered except
those that a web page can make its reader's browser send:

* Every request's Host must be an IP address or a known name. A page whose name was pointed at this
  address (DNS rebinding) could read the answers as its own; its requests carry the page's name.
  An IP address can't be pointed elsewhere, so it is always accepted as Host: probes and
  Prometheus, which ask by address, need no configuration.
* A request that changes something, even with a token, must not come from another site's page.
  Browsers name the site in Origin and Sec-Fetch-Site; programs send neither.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import NamedTuple

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laredo_service.http.settings import HttpSettings, ip_address

MAX_BODY = 64 << 10
"""Bytes; no endpoint reads a body."""

_PUBLIC: Mapping[str, frozenset[str]] = {
    "health": frozenset({"/health/live", "/health/ready", "/health/serving"}),
    "metrics": frozenset({"/metrics"}),
}
_PAGE = frozenset({"/", "/page/content", "/page/page.css", "/page/page.js"})
_READING = frozenset({"GET", "HEAD"})
_OF_OUR_OWN = frozenset({"same-origin", "none"})


class _Refusal(NamedTuple):
    code: int
    reason: str
    challenge: bytes | None = None


class Guard:
    """ASGI middleware: refuses unauthorized requests, and adds security headers to answers."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self.change(settings)

    def change(self, settings: HttpSettings) -> None:
        """Ask for this token, and know these names, from the next request on."""
        token = settings.token
        self._token = None if token is None else token.get_secret_value().encode()
        self._public = frozenset[str]().union(*(_PUBLIC[name] for name in settings.public))
        names = ("localhost", settings.host or "", *settings.allowed_hosts)
        self._hosts = frozenset(name.lower().rstrip(".") for name in names if name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_marked)
        else:
            await _refuse(refusal, send_marked)

    def _refusal(self, scope: Scope) -> _Refusal | None:
        headers = Headers(scope=scope)
        return _unfit(scope["method"], headers) or self._unauthorized(scope, headers)

    def _unauthorized(self, scope: Scope, headers: Headers) -> _Refusal | None:
        """The refusal of a request without the token, or with a foreign Host; None if neither."""
        if scope["method"] in _READING and scope["path"] in self._public:
            return None
        if self._token is not None:
            is_page = scope["method"] in _READING and scope["path"] in _PAGE
            if self._brings_token(headers, as_password=is_page):
                return None
            return _NO_PASSWORD if is_page else _NO_TOKEN
        host = headers.get("host")
        if host is not None and not self._is_ours(_name(host)):
            return _FOREIGN_HOST
        return None

    def _brings_token(self, headers: Headers, *, as_password: bool) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        assert self._token is not None
        # As bytes of the wire: compare_digest takes no text beyond ASCII.
        given = credentials.strip().encode("latin-1")
        if scheme.lower() == "basic" and as_password:
            given = _password(given)
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self._token)

    def _is_ours(self, name: str) -> bool:
        if ip_address(name) is not None or name in self._hosts:
            return True
        parents = (name[at:] for at, char in enumerate(name) if char == ".")
        return any(parent in self._hosts for parent in parents)


_NO_TOKEN = _Refusal(401, "a token is needed: Authorization: Bearer ...", b"Bearer")
_NO_PASSWORD = _Refusal(
    401,
    "a token is needed: as the password, with any user name, or Authorization: Bearer ...",
    b'Basic realm="the token is the password", charset="UTF-8"',
)
_FOREIGN_HOST = _Refusal(
    403,
    "the request's Host isn't a name of this listener; use its IP address, add the name to"
    " http.allowed_hosts, or set http.token",
)


def _unfit(method: str, headers: Headers) -> _Refusal | None:
    """The refusal of a request that no token would help: method, origin or size; else None."""
    if method not in _READING:
        if method != "POST":
            return _Refusal(405, "only GET, HEAD and POST are answered")
        if (why := _of_another_site(headers)) is not None:
            return _Refusal(403, why)
    if _length(headers) > MAX_BODY:
        return _Refusal(413, f"a body of more than {MAX_BODY} bytes isn't taken")
    return None


def _of_another_site(headers: Headers) -> str | None:
    """The sign that a request comes from another site's page; None if it doesn't."""
    if headers.get("sec-fetch-site", "none") not in _OF_OUR_OWN:
        return "a web page of another site sent this (Sec-Fetch-Site)"
    origin = headers.get("origin")
    if origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower():
        return None
    return "a web page of another site sent this (Origin)"


def _password(credentials: bytes) -> bytes:
    """The password of HTTP Basic; empty if they are none."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    bracketed = host.startswith("[")
    name = host[1:].partition("]")[0] if bracketed else host.partition(":")[0]
    return name.strip().lower().rstrip(".")


def _length(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() else 0


async def _refuse(refusal: _Refusal, send: Send) -> None:
    body = orjson.dumps({"error": refusal.reason})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        # What comes after it on this connection isn't read.
        (b"connection", b"close"),
    ]
    if refusal.challenge is not None:
        headers.append((b"www-authenticate", refusal.challenge))
    await send({"type": "http.response.start", "status": refusal.code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
