"""Registry, pins and wake-ups: what serving processes share with the main one."""

import asyncio
import socket

import pytest

from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import SocketWakeups, WakeUps
from laredo_fanout.serving.ports import ClientInfo, TooManyClients
from tests.support.processes import PATIENCE_S


def info(name: str, table: str = "public.a", at: int = 0) -> ClientInfo:
    return ClientInfo(name, table, "ipv4:127.0.0.1:1", True, False, at)


def test_a_dead_process_takes_its_clients_and_pins_with_it() -> None:
    clients = Clients(10)
    clients.register((1, 1), info("a"))
    clients.register((2, 1), info("b"))
    clients.pin((1, 1), 7, 100)
    clients.pin((2, 1), 7, 200)
    assert clients.pinned().get(7) == 100
    assert clients.pinned().get(8) is None
    assert clients.leave_all(1) == 1
    assert clients.pinned().get(7) == 200
    clients.unpin((2, 1))
    assert clients.pinned().get(7) is None
    clients.leave((1, 1), "client")
    assert clients.left()["process"] == 1
    assert clients.left()["client"] == 0


def test_figures_per_table() -> None:
    clients = Clients(10)
    clients.register((1, 1), info("late", at=2))
    clients.register((1, 2), info("early", at=1))
    clients.register((1, 3), info("other", "public.b", at=3))
    clients.update((1, 1), 50, 4, "live")
    clients.update((9, 9), 50, 99, "live")
    found = clients.of("public.a")
    assert [client.info.client_id for client in found] == ["early", "late"]
    assert (found[1].sequence, found[1].depth, found[1].state) == (50, 4, "live")


async def test_every_wait_that_began_before_a_notification_is_woken() -> None:
    wake_ups = WakeUps()
    ours, theirs = socket.socketpair()
    with theirs:
        wakeups = SocketWakeups(theirs)
        first = wakeups.current()
        wake_ups.add(ours)
        await asyncio.wait_for(asyncio.shield(first), PATIENCE_S)
        for _ in range(3):
            waiting = wakeups.current()
            assert not waiting.done()
            wake_ups.notify()
            await asyncio.wait_for(asyncio.shield(waiting), PATIENCE_S)
        wake_ups.remove(ours)


async def test_notifying_never_waits_and_loses_nothing_that_matters() -> None:
    wake_ups = WakeUps()
    ours, theirs = socket.socketpair()
    with theirs:
        wake_ups.add(ours)
        for _ in range(20_000):
            wake_ups.notify()
        wakeups = SocketWakeups(theirs)
        await asyncio.wait_for(asyncio.shield(wakeups.current()), PATIENCE_S)
        wake_ups.remove(ours)
        wake_ups.notify()


def of(owner: str, name: str = "a", host: str = "10.0.0.1") -> ClientInfo:
    return ClientInfo(name, "public.a", "ipv4:x", True, False, 0, owner, host)


def test_one_identity_has_its_share_only() -> None:
    clients = Clients(10, max_clients_per_identity=3)
    for number in range(3):
        clients.register((1, number), of("token 1", str(number)))
    with pytest.raises(TooManyClients, match=r"token 1 .* 3 clients of 10 .*per_identity"):
        clients.register((1, 3), of("token 1", "another"))
    clients.register((1, 4), of("token 2"))
    # Who shares with nobody may have them all.
    for number in range(5, 11):
        clients.register((1, number), of("", str(number)))
    with pytest.raises(TooManyClients, match=r"already has its 10 clients"):
        clients.register((1, 11), of(""))
    clients.leave((1, 0), "client")
    clients.register((1, 0), of("token 1", "another"))


def test_one_client_id_has_its_share_only_and_nobody_else_s() -> None:
    clients = Clients(10, max_clients_per_client_id=2)
    clients.register((1, 1), of("token 1"))
    clients.register((1, 2), of("token 1"))
    with pytest.raises(TooManyClients, match=r"'a' .* 2 streams .*per_client_id"):
        clients.register((1, 3), of("token 1"))
    # The same name said by another token, or elsewhere, is another client's.
    clients.register((1, 4), of("token 2"))
    clients.register((1, 5), of("token 1", host="10.0.0.2"))
