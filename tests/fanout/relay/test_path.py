"""The path of a relay: loops are refused, status shows each hop, and a drained upstream is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Thread

import orjson
import pytest

from laredo_fanout import config
from laredo_fanout.app import check
from laredo_fanout.app.check_tables import ServerFinding, Verdict
from laredo_fanout.client.events import Mode
from laredo_fanout.client.stream.endpoint import Tls
from laredo_fanout.relay.path import RelayOptions, UpstreamUnavailable, ask
from laredo_fanout.relay.peers import role_of
from laredo_fanout.serving.options import ListenerOptions, TlsFiles
from tests.support.postgres import Database
from tests.support.processes import eventually, free_port, until, wait_until
from tests.support.server.fanout_program import fanout, relay, started
from tests.support.server.relayed import relaying
from tests.support.server.serving_world import USERS, rows, running, with_tokens
from tests.support.server.states import States


async def test_servers_that_follow_each_other_say_so(tmp_path: Path) -> None:
    names = ("public.a",)
    one, two, three = (relay(tmp_path / name, 1, "{ table = a }") for name in ("1", "2", "3"))
    text = two.program.config.read_text()
    two.program.config.write_text(text.replace('127.0.0.1:1"', f'127.0.0.1:{one.grpc_port}"'))
    async with AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(
                relaying(each.directory / "state", upstream.grpc_port, names, each.grpc_port)
            )
            for each, upstream in ((one, three), (two, one), (three, two))
        ]
        for each in relays:
            await until(lambda e=each: "follows this server" in (e.ingest.status().error or ""))
        said = relays[1].ingest.status().error or ""
        assert f"this server -> 127.0.0.1:{one.grpc_port} -> 127.0.0.1:{three.grpc_port}" in said
        assert "Have one of them follow PostgreSQL" in said
        checked = await asyncio.to_thread(two.run, "check", "--json")
        assert any(
            "follows this server" in found["detail"] for found in orjson.loads(checked.stdout)
        )


async def test_a_server_that_is_its_own_upstream_is_refused(tmp_path: Path) -> None:
    port = free_port()
    async with relaying(tmp_path / "relay", port, port=port) as relay_:
        await until(lambda: "follows this server" in (relay_.ingest.status().error or ""))
        assert not relay_.ingest.status().connected


async def test_a_table_that_the_upstream_doesn_t_have_is_named(tmp_path: Path) -> None:
    names = (USERS, "public.other")
    async with running(tmp_path / "up") as world:
        world.writer.publish(rows(0, 3))
        async with relaying(tmp_path / "relay", world.port, names) as relay_:
            await relay_.until(world.writer.position)
            await until(lambda: relay_.ingest.status().tables["public.other"].error)
            error = relay_.ingest.status().tables["public.other"].error
            assert error is not None
            assert "table public.other isn't served here; tables: public.users" in error


async def test_the_token_s_file_is_read_for_each_connection(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    listener = with_tokens(tokens, "right\n")
    async with running(tmp_path / "up", listener=listener) as world:
        world.writer.publish(rows(0, 3))
        async with relaying(tmp_path / "relay", world.port, token_file=token) as relay_:

            async def fails_with(text: str) -> None:
                await until(lambda: text in (relay_.ingest.status().error or ""))

            await fails_with("can't be read")
            token.write_text("\n")
            await fails_with("has no token")
            token.write_text("wrong\n")
            await fails_with("this token is unknown here")
            token.write_text("right\n")
            await relay_.until(world.writer.position)


@pytest.mark.thorough
async def test_clients_notice_nothing_of_a_rolling_restart_but_a_new_stream(
    tmp_path: Path, database: Database
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)")
    top = fanout(tmp_path / "top", database, "{ table = a }")
    middle = relay(tmp_path / "middle", top.grpc_port, "{ table = a }")
    end = relay(tmp_path / "end", middle.grpc_port, "{ table = a }")
    with started(top), started(middle), started(end):
        async with States(end.grpc_port, "public.a") as client:
            for number, restarted in enumerate((top, middle, end)):
                await asyncio.to_thread(restarted.program.stop)
                with database.connect() as owner:
                    owner.execute("INSERT INTO a VALUES (%s, 'x')", (number,))
                restarted.program.start()
                await until(lambda n=number: b"%d" % n in client.rows)  # type: ignore[misc]
            assert len(client.snapshots) == 1
            assert all(each.mode is Mode.DELTA for each in client.handshakes[1:])
        name = 'laredo_relay_goaways_total{source="up"}'
        assert middle.metrics[name] == 0  # it was restarted itself
        shown = middle.status["sources"]["up"]
        assert [hop["address"] for hop in shown["path"]] == [None, f"127.0.0.1:{top.grpc_port}"]
        database.run("INSERT INTO a VALUES (100, 'x')")
        wait_until(
            lambda: all(h["delay_seconds"] for h in end.status["sources"]["up"]["path"]),
            "every hop has measured",
        )
        path = end.status["sources"]["up"]["path"]
        addresses = [f"127.0.0.1:{middle.grpc_port}", f"127.0.0.1:{top.grpc_port}"]
        assert [hop["address"] for hop in path] == [None, *addresses]
        assert len({hop["server_id"] for hop in path}) == 3
        text = end.run("status").stdout
        assert "this server" in text
        assert addresses[1] in text
        metrics = end.metrics
        assert metrics['laredo_relay_hops{source="up"}'] == 2
        assert 'laredo_relay_delay_seconds{hop="2",source="up"}' in metrics
        await asyncio.to_thread(middle.program.stop)
        wait_until(lambda: not end.program.is_ready(), "the end notices")
        eventually(lambda: end.metrics[name], 1)
        middle.program.start()
        wait_until(end.program.is_ready, "it is followed again")


# A relay whose upstream speaks TLS: the files that lead in, and what is said of others.


PEM = Path(__file__).parents[1] / "serving" / "tls"
SERVER = TlsFiles(PEM / "server.pem", PEM / "server.key")
MUTUAL = TlsFiles(PEM / "server.pem", PEM / "server.key", PEM / "ca.pem")
OURS = Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "client.key")
TOKEN = "let-me-in"


def listener(tls: TlsFiles | None, tokens: Path | None = None) -> ListenerOptions:
    return ListenerOptions("127.0.0.1", 0, tls=tls, tokens_file=tokens, drain_grace_s=0.2)


@pytest.mark.parametrize(("served", "tls"), [(SERVER, Tls(PEM / "ca.pem")), (MUTUAL, OURS)])
async def test_rows_come_by_the_right_ca_certificate_and_token(
    tmp_path: Path, served: TlsFiles, tls: Tls
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    async with running(tmp_path / "up", listener=listener(served, tokens)) as world:
        world.writer.publish(rows(0, 10))
        async with relaying(tmp_path / "relay", world.port, tls=tls, token=TOKEN) as relay:
            async with States(relay.port, USERS) as client:
                await client.until(world.writer.position)
                assert set(client.rows.values()) == set(rows(0, 10))
            assert relay.ingest.status().connected


@pytest.mark.parametrize(
    ("served", "tls", "said"),
    [
        (SERVER, Tls(PEM / "stranger.pem"), "stranger.pem has not signed the certificate of"
         " 127.0.0.1:{port}: let sources.up.tls.ca be the file of the CA that did"),
        (SERVER, Tls(), "the system's CAs have not signed"),
        (SERVER, Tls(PEM / "ca.pem", server_name="other"), "as sources.up.tls.server_name"),
        (SERVER, None, "if 127.0.0.1:{port} speaks TLS, give sources.up.tls"),
        (MUTUAL, Tls(PEM / "ca.pem"), "as sources.up.tls.cert and sources.up.tls.key"),
        (MUTUAL, Tls(PEM / "ca.pem", PEM / "stranger.pem", PEM / "stranger.key"),
         "its fanout.grpc.tls.client_ca has signed, as sources.up.tls.cert"),
        (MUTUAL, Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "stranger.key"),
         "sources.up.tls.key must be the key of sources.up.tls.cert"),
        (None, Tls(PEM / "ca.pem"), "doesn't speak TLS: remove sources.up.tls"),
    ],
)  # fmt: skip
async def test_what_is_refused_names_the_key_and_the_cure(
    tmp_path: Path, served: TlsFiles | None, tls: Tls | None, said: str
) -> None:
    async with running(tmp_path / "up", listener=listener(served), users=3) as world:
        relay_path = tmp_path / "relay"
        async with relaying(relay_path, world.port, tls=tls, source_name="up") as relay:
            expected = said.format(port=world.port)
            await until(lambda: relay.ingest.status().error is not None)
            assert expected in (relay.ingest.status().error or "")
            assert not relay.store.tables


@pytest.mark.parametrize(
    "asks", [lambda up: role_of(up, "ours"), lambda up: ask(up, USERS, "ours")]
)
async def test_a_file_that_vanishes_after_it_was_read_is_retried(
    tmp_path: Path, asks: Callable[[RelayOptions], Awaitable[object]]
) -> None:
    """A pipe is there for one reader alone, as a file in a rotation that isn't atomic."""
    ca = tmp_path / "ca.pem"
    os.mkfifo(ca)

    def serve_once() -> None:
        with ca.open("wb") as pipe:
            pipe.write((PEM / "ca.pem").read_bytes())
            ca.unlink()

    serving = Thread(target=serve_once)
    serving.start()
    options = RelayOptions("127.0.0.1:1", "relay", Tls(ca))
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable):
            await asks(options)
    serving.join()
    async with relaying(tmp_path / "relay", 1, tls=Tls(ca)) as relay:
        await until(lambda: "can't read ca" in (relay.ingest.status().error or ""))


async def test_the_configuration_s_files_are_those_that_are_used(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"{TOKEN}\n")
    token.write_text(f"{TOKEN}\n")
    file = tmp_path / "relay.conf"

    def checked(tls: str) -> list[ServerFinding]:
        file.write_text(
            f'state.path = "{tmp_path}/state"\n'
            f'sources.up {{ type = fanout, server = "127.0.0.1:{world.port}", tls {{ {tls} }}'
            f' token_file = "{token}" }}\ntables = [ {{ table = users }} ]\n'
        )
        found = config.load(file)
        assert found.upstream is not None
        return list(check.upstream_findings(found, found.upstream))

    async with running(tmp_path / "up", listener=listener(MUTUAL, tokens), users=3) as world:
        pair = f'cert = "{PEM}/client.pem", key = "{PEM}/client.key"'
        (right,) = await asyncio.to_thread(checked, f'ca = "{PEM}/ca.pem", {pair}')
        assert right.verdict is Verdict.RIGHT, right
        (wrong,) = await asyncio.to_thread(checked, f'ca = "{PEM}/stranger.pem", {pair}')
        assert wrong.verdict is Verdict.MISSING
        assert "let sources.up.tls.ca be the file of the CA that did" in wrong.detail
