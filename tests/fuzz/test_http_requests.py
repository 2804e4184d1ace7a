"""Malformed HTTP on both programs' listeners: they go on, and answer the next who asks."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.fuzz import budget
from tests.fuzz.mutation import mutated
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, wait_until
from tests.support.server.fanout_program import fanout, started
from tests.support.writer.served import Served, rows
from tests.support.writer.writing import ReadyWriter

PATHS = (
    "/health/live",
    "/health/ready",
    "/status",
    "/metrics",
    "/snapshot",
    "/snapshot?table=%00",
    "/snapshot?wait=true&table=",
    "/tables/public.t/recopy",
    "/tables/%2e%2e/recopy",
    "/catchup",
    "/tables/%ff%fe/recopy",
    "/" + "a" * 70_000,
    "//",
    "*",
    "http://elsewhere/status",
    "/%",
    "/status?" + "a=b&" * 5000,
    "/\u00e9",
    "/openapi.json",
    "/docs",
)
WORDS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b": ",
    b"\0",
    b"\xff",
    b" ",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 9e9\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Expect: 100-continue\r\n",
    b"ffffffffff\r\n",
    b"Upgrade: websocket\r\n",
    b"Connection: upgrade, close\r\n",
    b"PRI * HTTP/2.0",
)
GROWTH_BYTES = 200 << 20
HELD = 30
"""Connections left open at a time, each with half a request."""


@pytest.fixture
def programs(tmp_path: Path, database: Database) -> Iterator[list[Program]]:
    """Both, each with one table."""
    database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    server = fanout(tmp_path / "server", database, "{ table = t }")
    with ExitStack() as stack:
        stack.enter_context(started(server))
        served = stack.enter_context(Served(tmp_path / "state"))
        served.add("users", rows(0, 20))
        served.start()
        writer = stack.enter_context(ReadyWriter(tmp_path, served))
        yield [server.program, writer.program]


@pytest.mark.timeout(3600)
def test_malformed_requests_end_no_listener(programs: list[Program]) -> None:
    sent = 0
    before = [_memory(program) for program in programs]
    held: list[socket.socket] = []
    for drawn in budget.inputs():
        with drawn as draw:
            for program in programs:
                held += [_sent(program, _request(draw), draw)]
                sent += 1
            while len(held) > HELD:
                _close(held.pop(draw.randrange(len(held))), draw)
            if not draw.randrange(50):
                _assert_alive(programs)
    for connection in held:
        connection.close()
    print(f"{sent} requests")
    _assert_alive(programs)
    for program, memory in zip(programs, before, strict=True):
        assert _memory(program) - memory < GROWTH_BYTES
        assert not _failures(program)


def _failures(program: Program) -> list[str]:
    """Exceptions in the log, but for uvicorn's own where what follows a request is malformed.

    It has answered 400 and closed before the request's answer is there
    (h11's LocalProtocolError).
    """
    lines = program.log.read_text(errors="replace").splitlines()
    return [line for line in lines if "Traceback" in line and "LocalProtocolError" not in line]


def _assert_alive(programs: list[Program]) -> None:
    for program in programs:
        assert program.is_running(), program.tail()

        def answers(program: Program = program) -> bool:
            answer = program.get("/health/live")
            return answer is not None and answer.status_code == 200

        wait_until(answers, f"{program.script} answers /health/live")


def _request(draw: random.Random) -> bytes:
    if not draw.randrange(12):
        return draw.randbytes(draw.choice((0, 1, 100, 100_000)))
    method = draw.choice(
        ("GET", "GET", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "get", "")
    )
    lines = [f"{method} {draw.choice(PATHS)} HTTP/1.1", "Host: 127.0.0.1"]
    for _ in range(draw.choice((0, 1, 3))):
        lines.append(
            draw.choice(
                (
                    "Content-Length: 5",
                    "Transfer-Encoding: chunked",
                    "Connection: close",
                    "Host: elsewhere",
                    "Origin: http://elsewhere",
                    "Authorization: Bearer x",
                    "X: " + "y" * 20_000,
                    "Expect: 100-continue",
                )
            )
        )
    if not draw.randrange(20):
        lines += [f"X-{number}: y" for number in range(2000)]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    whole = head + draw.choice(
        (b"", b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"fffffffff\r\n", head)
    )
    if draw.randrange(4):
        for _ in range(draw.choice((1, 2, 5))):
            whole = mutated(draw, whole, WORDS)
    return whole


def _sent(program: Program, request: bytes, draw: random.Random) -> socket.socket:
    """Sent whole or in two parts; what is answered is read or left lying."""
    port = int(program.http.rpartition(":")[2])
    connection = _connected(port)
    connection.settimeout(0.05)
    with suppress(OSError):
        cut = draw.randint(0, len(request)) if draw.randrange(2) else len(request)
        connection.sendall(request[:cut])
        if draw.randrange(3):
            connection.sendall(request[cut:])
        if draw.randrange(2):
            connection.recv(1 << 16)
    return connection


def _connected(port: int) -> socket.socket:
    """Connected at last: a listener may hold new connections back while it has so many."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        except OSError:
            assert time.monotonic() < deadline, "nobody listens any more"
            time.sleep(0.05)  # poll


def _close(connection: socket.socket, draw: random.Random) -> None:
    """By FIN, or by a reset in the middle."""
    if draw.randrange(2):
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def _memory(program: Program) -> int:
    return int(psutil.Process(program.pid).memory_info().rss)
