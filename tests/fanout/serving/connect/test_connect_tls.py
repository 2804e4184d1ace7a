"""The Connect port over TLS: the same files, the same identities as gRPC's."""

import ssl
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from laredo_fanout.serving.errors import CannotListen
from laredo_fanout.serving.options import ConnectOptions, ListenerOptions, TlsFiles
from laredo_fanout.wire import replication_pb2 as wire
from tests.support.server.certificates import Authority
from tests.support.server.connect_client import ConnectClient, connect_listener, connected
from tests.support.server.serving_world import running

TLS = Path(__file__).parents[1] / "tls"
SERVER_TLS = TlsFiles(TLS / "server.pem", TLS / "server.key")
MUTUAL_TLS = TlsFiles(TLS / "server.pem", TLS / "server.key", TLS / "ca.pem")
STATUS = wire.GetReplicationStatusRequest(schema="public", table="users")


def trusting(certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    if certificate is not None:
        context.load_cert_chain(TLS / f"{certificate}.pem", TLS / f"{certificate}.key")
    return context


async def test_tls(tmp_path: Path) -> None:
    listener = connect_listener(tls=SERVER_TLS)
    async with connected(tmp_path, listener=listener, users=3) as (_, plain):
        client = ConnectClient(plain.http.base_url.port or 0, verify=trusting())
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
        with pytest.raises(httpx.HTTPError):
            await plain.unary("GetReplicationStatus", STATUS)


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


async def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, connect=ConnectOptions("192.0.2.1", 0))
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1.*fanout\.connect"):
        async with running(tmp_path, listener=listener):
            pass
