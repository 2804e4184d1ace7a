"""Certificates that are replaced under a server: new connections get them, open streams go on."""

import shutil
import socket
import ssl
from asyncio import to_thread
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import pytest

from laredo_fanout.serving.endpoints import tls
from laredo_fanout.serving.options import TlsFiles
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.replication_pb2_grpc import LaredoReplicationServiceStub
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S
from tests.support.server.certificates import Authority, put_in_place
from tests.support.server.connect_client import ConnectClient, connect_listener, connected
from tests.support.server.serving_world import line

STATUS = wire.GetReplicationStatusRequest(schema="public", table="users")


def shown(port: int, authority: Authority) -> str:
    """The name of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=authority.pem)
    with (
        socket.create_connection(("localhost", port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return str(dict(part[0] for part in found["subject"])["commonName"])  # type: ignore[misc]


async def by_connect(port: int, authority: Authority, client: TlsFiles) -> None:
    context = ssl.create_default_context(cafile=authority.pem)
    context.load_cert_chain(client.cert, client.key)
    caller = ConnectClient(port, verify=context)
    async with caller.http:
        await caller.unary("GetReplicationStatus", STATUS)


async def by_grpc(port: int, authority: Authority, client: TlsFiles) -> None:
    credentials = grpc.ssl_channel_credentials(
        authority.pem.read_bytes(), client.key.read_bytes(), client.cert.read_bytes()
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        stub = LaredoReplicationServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.GetReplicationStatus(STATUS, timeout=PATIENCE_S)


async def test_both_ports_show_the_new_one_and_streams_go_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.sign("first")
    listener = connect_listener(tls=files)
    async with connected(tmp_path, listener=listener, users=3) as (world, plain):
        ports = (world.port, plain.http.base_url.port or 0)
        context = ssl.create_default_context(cafile=authority.pem)
        stream = world.sync_by_tls(authority.directory, None)
        await stream.next("handshake")
        client = ConnectClient(ports[1], verify=context)
        async with client.http, client.sync() as other:
            await other.next("handshake")
            assert [await to_thread(shown, port, authority) for port in ports] == ["first"] * 2
            put_in_place(authority.sign("second"), files)
            assert [await to_thread(shown, port, authority) for port in ports] == ["second"] * 2
            shutil.copy(authority.sign("third").cert, files.cert)
            assert [await to_thread(shown, port, authority) for port in ports] == ["second"] * 2, (
                "a certificate whose key isn't there yet"
            )
            world.writer.commit((Action.UPDATE, line(1, "written later")))
            for open_stream in (stream, other):
                while "written later" not in str(await open_stream.next()):
                    pass


async def test_files_that_vanish_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.sign("first")
    away, check = tmp_path / "away", tls._context

    def vanishing(found: TlsFiles) -> ssl.SSLContext:
        context = check(found)
        if not away.exists():
            files.key.rename(away)
        return context

    async with connected(tmp_path, listener=connect_listener(tls=files), users=3) as (world, _):
        assert await to_thread(shown, world.port, authority) == "first"
        put_in_place(authority.sign("second"), files)
        monkeypatch.setattr(tls, "_context", vanishing)
        assert await to_thread(shown, world.port, authority) == "first"
        away.rename(files.key)
        away.touch()
        assert await to_thread(shown, world.port, authority) == "second"


async def test_clients_of_an_authority_that_was_taken_out_are_refused(tmp_path: Path) -> None:
    servers, old, new = (Authority(tmp_path / name, name) for name in ("servers", "old", "new"))
    files = replace(servers.sign("server"), client_ca=tmp_path / "clients.pem")
    shutil.copy(old.pem, tmp_path / "clients.pem")
    listener = connect_listener(tls=files)
    mine, others = old.sign("mine"), new.sign("others")
    async with connected(tmp_path, listener=listener, users=3) as (world, plain):
        port = plain.http.base_url.port or 0
        await by_connect(port, servers, mine)
        await by_grpc(world.port, servers, mine)
        shutil.copy(new.pem, tmp_path / "clients.pem")
        await by_connect(port, servers, others)
        await by_grpc(world.port, servers, others)
        with pytest.raises(httpx.HTTPError):
            await by_connect(port, servers, mine)
        with pytest.raises(grpc.aio.AioRpcError):
            await by_grpc(world.port, servers, mine)


# Both ports over TLS: the same files, the same identities.


TLS = Path(__file__).with_name("tls")
SERVER_TLS = TlsFiles(TLS / "server.pem", TLS / "server.key")
MUTUAL_TLS = TlsFiles(TLS / "server.pem", TLS / "server.key", TLS / "ca.pem")


def trusting(certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    if certificate is not None:
        context.load_cert_chain(TLS / f"{certificate}.pem", TLS / f"{certificate}.key")
    return context


async def test_tls(tmp_path: Path) -> None:
    listener = connect_listener(tls=SERVER_TLS)
    async with connected(tmp_path, listener=listener, users=3) as (world, plain):
        client = ConnectClient(plain.http.base_url.port or 0, verify=trusting())
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
        await world.sync_by_tls(TLS, None).next("handshake")
        # Without TLS there is no way in.
        with pytest.raises(httpx.HTTPError):
            await plain.unary("GetReplicationStatus", STATUS)
        assert (await world.sync().ends())[0] is grpc.StatusCode.UNAVAILABLE


async def test_client_certificates(tmp_path: Path) -> None:
    listener = connect_listener(tls=MUTUAL_TLS)
    async with connected(tmp_path, listener=listener, users=3) as (world, plain):
        port = plain.http.base_url.port or 0
        client = ConnectClient(port, verify=trusting("client"))
        by_grpc = world.sync_by_tls(TLS, "client")
        await by_grpc.next("handshake")
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
            owners = {lease.state.info.owner for lease in world.registry.leases}
            assert len(owners) == 1 and owners.pop().startswith("certificate ")
        for certificate in (None, "stranger"):
            stranger = ConnectClient(port, verify=trusting(certificate))
            with pytest.raises(httpx.HTTPError):
                await stranger.unary("GetReplicationStatus", STATUS)
            await stranger.http.aclose()
            by_grpc = world.sync_by_tls(TLS, certificate)
            assert (await by_grpc.ends())[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_with_special_characters_is_one_identity(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    listener = connect_listener(
        tls=replace(authority.sign("server"), client_ca=authority.pem),
    )
    signed = authority.sign("a, b; <c>")
    async with connected(tmp_path, listener=listener, users=3) as (world, plain):
        context = ssl.create_default_context(cafile=authority.pem)
        context.load_cert_chain(signed.cert, signed.key)
        client = ConnectClient(plain.http.base_url.port or 0, verify=context)
        by_grpc = world.sync_by_tls(authority.directory, "a, b; <c>")
        await by_grpc.next("handshake")
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
            owners = [lease.state.info.owner for lease in world.registry.leases]
            assert len(owners) == 2 and len(set(owners)) == 1
