"""Type=notify: both programs tell a real datagram socket when they are ready, alive and ending."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_service.systemd import ServiceNotifier
from tests.support.processes import PATIENCE_S, Program, free_port


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE_S)
        yield listener


def environment(listener: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "200000"}


def follow(program: Program, systemd: socket.socket) -> None:
    """Ready before it is asked to end, alive again and again, stopping in the end."""
    received: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while received.count("WATCHDOG=1") < 4 or "READY=1" not in received:
        assert time.monotonic() < deadline, received[-10:]
        received.append(systemd.recv(100).decode())
    assert received.count("READY=1") == 1
    assert program.stop() == 0
    systemd.setblocking(False)
    try:
        while True:
            received.append(systemd.recv(100).decode())
    except BlockingIOError:
        assert received.count("STOPPING=1") == 1 and received.count("READY=1") == 1


def test_the_server(tmp_path: Path, systemd: socket.socket) -> None:
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{tmp_path}/state"\nfanout.grpc.port = {free_port()}\n'
        f'sources.pg.connection = "host=127.0.0.1 port={free_port()} dbname=none"\n'
        f"http.port = {(port := free_port())}\ntables = [{{ table = users }}]\n"
        "fanout.drain_grace = 0s\n"
    )
    program = Program("laredo-fanout", file, port, log=tmp_path / "log")
    program.environment = environment(systemd)
    with program:
        follow(program, systemd)


def test_the_writer(tmp_path: Path, systemd: socket.socket) -> None:
    file = tmp_path / "writer.conf"
    file.write_text(
        f'snapshotter {{\n  source {{ server = "127.0.0.1:{free_port()}", table = users }}\n'
        f'  destinations = [{{ type = local, path = "{tmp_path}/archive" }}]\n'
        f"  http.port = {(port := free_port())}\n}}\n"
    )
    program = Program("laredo-snapshotter", file, port, log=tmp_path / "log")
    program.environment = environment(systemd)
    with program:
        follow(program, systemd)


def test_children_inherit_nothing_and_a_socket_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    given = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000000", "OTHER": "1"}
    ServiceNotifier(given).stopping()
    assert given == {"OTHER": "1"}


def test_an_abstract_address_and_the_watchdog_of_another_process() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"laredo-{os.getpid()}"
        listener.bind(f"\0{name}")
        listener.settimeout(PATIENCE_S)
        notifier = ServiceNotifier({"NOTIFY_SOCKET": f"@{name}"})
        notifier.stopping()
        assert listener.recv(100) == b"STOPPING=1"
    others = ServiceNotifier({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"})
    assert others._watchdog_s is None
