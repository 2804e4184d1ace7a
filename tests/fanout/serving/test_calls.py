"""Callers that are accepted, and the codes with which others are refused."""

import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_fanout.serving.call import BadTokensFile, Tokens, caller_from
from laredo_fanout.serving.errors import CannotListen
from laredo_fanout.serving.options import ConnectOptions, ListenerOptions, TlsFiles
from laredo_fanout.serving.service import SERVICE
from tests.support.server.serving_world import Stream, running, with_tokens

TLS = Path(__file__).parent / "tls"

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"table": ""}, "table"),
        ({"schema": ""}, "schema"),
        ({"last_known_sequence": -1}, "last_known_sequence"),
        ({"last_known_source_position": "0-16B"}, "last_known_source_position"),
        ({"history": "x", "batch": True}, "history"),
        ({"client_id": "c" * 1000}, "client_id"),
    ],
)
async def test_a_wrong_request_names_the_field(
    tmp_path: Path, asked: dict[str, Any], names: str
) -> None:
    async with running(tmp_path, users=3) as world:
        code, details = await world.sync(**asked).ends()
        assert code is Code.INVALID_ARGUMENT and names in details
        assert not world.registry.closed and not world.registry.leases


async def test_a_table_that_is_not_configured_or_not_ready_and_bytes_that_are_no_request(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        code, details = await world.sync(table="nope").ends()
        assert code is Code.NOT_FOUND
        assert "public.nope" in details and "public.users" in details
        code, details = await world.sync().ends()
        assert code is Code.FAILED_PRECONDITION and "public.users" in details
        world.writer.add()
        code, details = await world.sync().ends()
        assert code is Code.FAILED_PRECONDITION and "copying" in details
        raw = world.channel().unary_stream(f"/{SERVICE}/Sync")
        code, _ = await Stream(raw(b"\xff\xff\xff")).ends()
        assert code is Code.INVALID_ARGUMENT
        assert not world.registry.leases


@pytest.mark.parametrize(
    ("address", "host", "is_local"),
    [
        ("192.0.2.7", "192.0.2.7", False),
        ("::ffff:192.0.2.7", "192.0.2.7", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("2001:db8::7", "2001:db8::/64", False),
        ("::1", "::1", True),
    ],
)
def test_a_caller_counts_by_its_host(address: str, host: str, is_local: bool) -> None:
    caller = caller_from((address, 50_000), "", None)
    assert (caller.host, caller.is_local) == (host, is_local)


async def test_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    listener = with_tokens(tokens, "# ours\nall-tables\nother public.orders # not users\n")
    async with running(tmp_path / "store", listener=listener, users=3) as world:

        async def code_of(authorization: str | None) -> grpc.StatusCode:
            metadata = [("authorization", authorization)] if authorization else None
            return (await world.sync(metadata=metadata).ends())[0]

        assert await code_of(None) is Code.UNAUTHENTICATED
        assert await code_of("Bearer wrong") is Code.UNAUTHENTICATED
        assert await code_of("all-tables") is Code.UNAUTHENTICATED
        assert await code_of("Bearer other") is Code.PERMISSION_DENIED
        known = world.sync(metadata=[("authorization", "bearer all-tables")])
        await known.next("handshake")

        # The file is read again when it changes.
        tokens.write_text("newcomer\n")
        os.utime(tokens, ns=(1, 1))
        assert await code_of("Bearer all-tables") is Code.UNAUTHENTICATED
        await world.sync(metadata=[("authorization", "Bearer newcomer")]).next("handshake")
        # While it can't be read, what was known stays.
        tokens.unlink()
        await world.sync(metadata=[("authorization", "Bearer newcomer")]).next("handshake")


@pytest.mark.parametrize("content", [None, "", "# nothing\n", b"\xff\xfe"])
def test_a_tokens_file_that_lets_nobody_in_is_refused(
    tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "tokens"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(BadTokensFile, match=str(path)):
        Tokens(path)


def over_tls(*files: str) -> ListenerOptions:
    return ListenerOptions("127.0.0.1", 0, tls=TlsFiles(*(TLS / each for each in files)))


@pytest.mark.parametrize(
    ("listener", "names"),
    [
        (over_tls("none.pem", "server.key"), "tls.cert"),
        (over_tls("server.pem", "README.md"), "tls.key"),
        (over_tls("server.pem", "server.key", "README.md"), "tls.client_ca"),
        (ListenerOptions("192.0.2.1", 0), r"192\.0\.2\.1"),
        (
            ListenerOptions("127.0.0.1", 0, connect=ConnectOptions("192.0.2.1", 0)),
            r"192\.0\.2\.1.*fanout\.connect",
        ),
    ],
)
async def test_tls_files_that_cannot_be_used_and_an_address_that_is_not_ours(
    tmp_path: Path, listener: ListenerOptions, names: str
) -> None:
    with pytest.raises(CannotListen, match=names):
        async with running(tmp_path, listener=listener):
            pass


async def test_two_servers_share_a_port(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as first:
        listener = ListenerOptions("127.0.0.1", first.port, drain_grace_s=0.2)
        async with running(tmp_path / "b", listener=listener) as second:
            assert second.port == first.port
