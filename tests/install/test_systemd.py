"""Type=notify: both programs tell a real datagram socket when they are ready, alive and ending."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laredo_service.systemd import ServiceNotifier
from tests.install.bare import server_configuration, writer_configuration
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


@pytest.mark.parametrize(
    ("command", "block", "configuration"),
    [
        ("laredo-fanout", "http", server_configuration),
        ("laredo-snapshotter", "snapshotter.http", writer_configuration),
    ],
)
def test_a_program(
    tmp_path: Path,
    systemd: socket.socket,
    command: str,
    block: str,
    configuration: Callable[[Path], Path],
) -> None:
    file, port = configuration(tmp_path), free_port()
    with file.open("a") as more:
        more.write(f"{block}.port = {port}\n")
    program = Program(command, file, port, log=tmp_path / "log")
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
