"""Access over HTTP, and limits for each connection."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from laredo_service.http import server as server_
from laredo_service.http import settings as settings_
from laredo_service.http.connections import EndReason, HttpCounts
from laredo_service.http.server import HttpServer
from laredo_service.http.settings import HttpSettings
from tests.support.processes import PATIENCE_S, wait_until


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Everything there is; its size is what the query says."""
    body = b"x" * int(scope["query_string"] or b"2")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Served:
    """The application in an event loop on a thread of its own."""

    def __init__(self, said: dict[str, Any]) -> None:
        settings = HttpSettings.model_validate(said)
        self.counts = HttpCounts()
        self._listener = settings_.listen("127.0.0.1", 0)
        self.port: int = self._listener.getsockname()[1]
        self._settings = settings
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        # A connection for each request.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(timeout=PATIENCE_S, limits=limits)

    def __enter__(self) -> Served:
        self._thread.start()

        async def start() -> HttpServer:
            server = HttpServer(answer, self._settings, self._listener, self.counts)
            server.start()
            return server

        self._server = asyncio.run_coroutine_threadsafe(start(), self.loop).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        asyncio.run_coroutine_threadsafe(self._server.stop(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    def ask(self, method: str = "GET", path: str = "/status", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}{path}"
        return self._client.request(method, url, headers=named)

    @contextmanager
    def opened(self, sent: bytes = b"") -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as opened:
            opened.sendall(sent)
            yield opened

    def ended(self, why: EndReason, times: int = 1) -> None:
        wait_until(lambda: self.counts.ended[why] >= times, f"{times} ended: {why}")


@contextmanager
def serving(**said: Any) -> Iterator[Served]:
    with Served(said) as served:
        yield served


OURS = (
    *("127.0.0.1", "10.1.2.3:8081", "[::1]:8081", "localhost:8081", "LocalHost."),
    *("fanout:8081", "fanout.data.svc.cluster.local", "our.host"),
)
POINTED_AT_US = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[evil]", "evil", "."),
    *("svc.cluster.local.evil", "xsvc.cluster.local", "127.0.0.1@evil", ""),
)
OF_ANOTHER_SITE = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
)


def test_a_request_by_address_or_known_name_is_answered() -> None:
    with serving(host="our.host", allowed_hosts=["fanout", ".svc.cluster.local"]) as served:
        for host in OURS:
            assert served.ask(Host=host).status_code == 200, host
            assert served.ask("POST", Host=host).status_code == 200, host


def test_a_name_that_was_pointed_at_us_is_refused() -> None:
    with serving(allowed_hosts=[".svc.cluster.local"]) as served:
        for host in POINTED_AT_US:
            for method in ("GET", "POST"):
                refused = served.ask(method, Host=host)
                assert refused.status_code == 403, host
                assert "http.allowed_hosts" in refused.json()["error"]
                assert "evil" not in refused.text


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_post_from_another_sites_page_is_refused(token: str | None) -> None:
    with serving(token=token) as served:
        for headers in OF_ANOTHER_SITE:
            told = {"Authorization": "Bearer secret", **headers}
            assert served.ask("POST", "/catchup", **told).status_code == 403, headers
            assert served.ask("GET", **told).status_code == 200, headers


def test_a_post_from_our_own_address_is_let_in() -> None:
    with serving() as served:
        own = f"http://127.0.0.1:{served.port}"
        assert served.ask("POST", Origin=own, Sec_Fetch_Site="same-origin").status_code == 200


def test_with_a_token_everything_asks_for_it() -> None:
    with serving(token="s3cret") as served:
        for path in ("/status", "/metrics", "/health/live", "/health/ready", "/nothing"):
            for given in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
                refused = served.ask("GET", path, **given)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert served.ask("POST", path, **given).status_code == 401
            right = {"Authorization": "Bearer s3cret", "Host": "any.name"}
            assert served.ask("GET", path, **right).status_code == 200
            assert served.ask("POST", path, **right).status_code == 200


PAGE = ("/", "/page/content", "/page/page.css", "/page/page.js")


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_a_browser_brings_the_token_as_a_password_to_read_the_page_and_for_nothing_else() -> None:
    with serving(token="s3cret:x", public=["health", "metrics"]) as served:
        for path in PAGE:
            for given in ({}, basic("any:s3cre"), basic("s3cret:x"), {"Authorization": "Basic !"}):
                refused = served.ask("GET", path, **given)
                assert refused.status_code == 401, (path, given)
                assert refused.headers["www-authenticate"].startswith("Basic realm=")
            for right in (basic("any:s3cret:x"), basic(":s3cret:x")):
                assert served.ask("GET", path, **right).status_code == 200
                # What a browser remembers, it also sends for another site's page.
                changing = served.ask("POST", path, **right)
                assert changing.status_code == 401
                assert changing.headers["www-authenticate"] == "Bearer"
            assert served.ask("GET", path, Authorization="Bearer s3cret:x").status_code == 200
        for path in ("/status", "/page", "/page/", "//", "/snapshot", "/page/content/"):
            refused = served.ask("GET", path, **basic("any:s3cret:x"))
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"


def test_without_a_token_the_page_is_shown_only_by_a_name_of_ours() -> None:
    with serving() as served:
        for path in PAGE:
            assert served.ask("GET", path).status_code == 200
            assert served.ask("GET", path, Host="evil.example").status_code == 403


def test_a_token_beyond_ascii_is_one_that_is_wrong() -> None:
    sent = b"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xe9\xff\r\n\r\n"
    with serving(token="s3cret") as served, served.opened(sent) as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 401")


def test_what_is_public_is_answered_to_everybody_but_not_changed_by_them() -> None:
    with serving(token="s3cret", public=["health", "metrics"]) as served:
        for path in ("/health/live", "/health/ready", "/metrics"):
            assert served.ask("GET", path).status_code == 200
            assert served.ask("POST", path).status_code == 401
        for path in ("/status", "/health", "/metrics/", "/health/live/../../status", "//metrics"):
            assert served.ask("GET", path).status_code == 401
    with serving(public=["metrics"]) as served:
        assert served.ask("GET", "/metrics", Host="any.name").status_code == 200
        assert served.ask("GET", "/status", Host="any.name").status_code == 403


def test_answers_tell_nothing_of_what_serves_them_and_arent_kept() -> None:
    with serving() as served:
        for told in (served.ask(), served.ask(Host="evil.example")):
            assert "server" not in told.headers
            assert told.headers["cache-control"] == "no-store"
            assert told.headers["x-content-type-options"] == "nosniff"
            assert not [name for name in told.headers if name.startswith("access-control")]


def test_other_methods_are_answered_by_nobody() -> None:
    with serving() as served:
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
            assert served.ask(method).status_code == 405
        tunnel = b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with served.opened(tunnel) as opened:
            assert opened.recv(100).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("token", ["", "with space", "zwölf", "x" * 513, "new\nline"])
def test_a_token_that_cant_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        HttpSettings.model_validate({"token": token})


@pytest.mark.parametrize("name", ["", ".", "*", "fanout:8081", "http://fanout", "a..b", "[::1]"])
def test_an_allowed_host_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="without a port"):
        HttpSettings.model_validate({"allowed_hosts": [name]})


def test_a_request_that_isnt_whole_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_, "REQUEST_S", 0.3)
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    parts = [b"", head, head + b"Content-Length: 9\r\n\r\n12", head + b"Content-Length: 0\r\n\r\nG"]
    with serving() as served:
        for number, part in enumerate(parts, start=1):
            with served.opened(part) as opened:
                served.ended(EndReason.SLOW, number)
                with pytest.raises(ConnectionResetError):
                    while opened.recv(4096):
                        pass
                    raise ConnectionResetError
        assert served.ask().status_code == 200


def test_a_request_that_comes_byte_by_byte_has_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_, "REQUEST_S", 0.5)
    with serving() as served, served.opened(b"GET / HTTP/1.1\r\nX: ") as opened:

        def refused() -> bool:
            try:
                opened.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(refused, "ended all the same")
        assert served.counts.ended[EndReason.SLOW] == 1


def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_, "WRITE_S", 0.3)
    asked = b"GET /?30000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving() as served, served.opened(asked):
        served.ended(EndReason.SLOW)


def test_a_request_of_too_many_bytes_is_ended() -> None:
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving() as served:
        declared = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1073741824\r\n\r\n"
        with served.opened(declared) as opened:
            assert opened.recv(100).startswith(b"HTTP/1.1 413")
        with served.opened(head) as opened, pytest.raises(OSError):
            for _ in range(10_000):
                opened.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        served.ended(EndReason.OVERSIZED)


def test_what_is_no_http_or_too_much_work_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    begun = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    chunked = begun + b"Transfer-Encoding: chunked\r\n"
    pipelined = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    refused = (
        b"\0\1\2\r\n\r\n",
        begun + b"a:\r\n" * 1000 + b"\r\n",
        chunked + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    )
    cut = (
        chunked + b"\r\nno number\r\n",
        chunked + b"\r\n" + b"1\r\nx\r\n" * 1000,
        chunked + b"\r\n0\r\n" + b"a:\r\n" * 1000 + b"\r\n",
        pipelined + b"\xff\r\n\r\n",
    )
    with serving() as served, caplog.at_level("DEBUG"):
        for sent in (*refused, *cut):
            with served.opened(sent) as opened:
                answer = b""
                while received := opened.recv(4096):
                    answer += received
            assert sent in cut or answer.startswith(b"HTTP/1.1 400"), sent
        assert served.ask().status_code == 200
    assert not [told for told in caplog.records if told.levelname == "ERROR"]


def test_whoever_opens_many_and_sends_nothing_closes_only_their_own() -> None:
    with serving() as served:
        idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(400)]
        try:
            for _ in range(20):
                assert served.ask().status_code == 200
        finally:
            for opened in idle:
                opened.close()
        assert served.counts.ended[EndReason.FULL] >= 400 - 128


@pytest.mark.parametrize(
    ("configured", "variable", "protected", "host"),
    [
        (None, None, False, "127.0.0.1"),
        (None, None, True, "0.0.0.0"),
        (None, "0.0.0.0", False, "0.0.0.0"),
        (None, "", False, "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", True, "127.0.0.1"),
        ("::", None, False, "::"),
    ],
)
def test_the_address_is_the_configured_one_else_a_safe_one(
    configured: str | None,
    variable: str | None,
    protected: bool,
    host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(settings_.DEFAULT_HOST_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(settings_.DEFAULT_HOST_VARIABLE, variable)
    assert settings_.listening_host(configured, protected=protected) == host


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("fanout", "http://fanout:80"),
    ],
)
def test_where_this_machine_finds_it(host: str, url: str) -> None:
    assert settings_.local_url(host, 80) == url


def test_only_what_others_reach_is_warned_of() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert HttpSettings.model_validate({"host": host}).warnings("http", "reads") == []
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "fanout.internal"):
        settings = HttpSettings.model_validate({"host": host})
        assert settings.warnings("http", "reads")[0].startswith("http.host: anyone who reaches ")
        assert settings.model_copy(update={"token": "x"}).warnings("http", "reads") == []
