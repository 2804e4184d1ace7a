"""Limits of a request, and refusals that cost nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from laredo_fanout.relay.path import RelayOptions, UpstreamUnavailable
from laredo_fanout.relay.peers import Peer
from laredo_fanout.serving import call as call_
from laredo_fanout.serving import filters as filters_
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.service import SERVICE
from laredo_fanout.wire import replication_pb2 as wire
from tests.support.server.filters import conditions
from tests.support.server.serving_world import Stream, World, running, with_tokens

Code = grpc.StatusCode
COLLIDES = 2**61 - 1
"""Python's hash of a number is its remainder by this."""
STREAMING = ("Sync", "FetchSnapshot")


def listed(*values: struct_pb2.Value) -> wire.FieldPredicate:
    predicate = wire.FieldPredicate(field="id")
    getattr(predicate, "in").values.extend(values)
    return predicate


def asking(*filters: wire.FieldPredicate, **more: Any) -> bytes:
    asked = {"schema": "public", "table": "users", "client_id": "test", **more}
    return wire.SyncRequest(filters=filters, **asked).SerializeToString()


def texts(count: int, text: Callable[[int], str]) -> wire.FieldPredicate:
    return listed(*(struct_pb2.Value(string_value=text(n)) for n in range(count)))


def raw(world: World, call: str, data: bytes, metadata: Any = None) -> Stream:
    channel = world.channel()
    kind = channel.unary_stream if call in STREAMING else channel.unary_unary
    return Stream(kind(f"/{SERVICE}/{call}")(data, metadata=metadata))


HOSTILE = {
    "a megabyte of decimals that collide": asking(texts(38_000, lambda n: str(n * COLLIDES))),
    "990 KB of doubles": asking(
        listed(*(struct_pb2.Value(number_value=n + 0.5) for n in range(90_000)))
    ),
    "500,000 empty predicates": asking() + b"\x3a\x00" * 500_000,
    "one predicate too many": asking(*[wire.FieldPredicate(field="id", prefix="1")] * 65),
    "one value too many": asking(texts(5000, str), texts(5001, str)),
    "an empty predicate": asking(wire.FieldPredicate()),
    "a predicate without a test": asking(wire.FieldPredicate(field="id")),
    "a long name of a column": asking(wire.FieldPredicate(field="x" * 100_000, prefix="")),
    "a list within a value": asking(
        listed(struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value()])))
    ),
    "a long table": asking(table="t" * 100_000),
    "a long schema": asking(schema="s" * 100_000),
    "a long client id": asking(client_id="c" * 257),
    "a long snapshot id": asking(last_snapshot_id="i" * 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_too_much_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    async with running(tmp_path, users=3) as world:
        code, details = await raw(world, "Sync", HOSTILE[name]).ends()
        assert code is Code.INVALID_ARGUMENT, details
        assert 10 < len(details) < 2500
        assert not world.registry.leases
        # The server goes on.
        await world.sync().next("handshake")


@pytest.mark.parametrize("call", ["ListSnapshots", "FetchSnapshot", "GetReplicationStatus"])
async def test_other_calls_are_limited_too(tmp_path: Path, call: str) -> None:
    async with running(tmp_path, users=3) as world:
        stream = raw(world, call, b"\x0a" + b"\x80\x80\x20" + b"x" * (1 << 19))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.call.read() if call in STREAMING else await stream.call
        assert refused.value.code() is Code.INVALID_ARGUMENT
        assert "524292" in (refused.value.details() or "")


@pytest.mark.parametrize("call", ["Sync", "ListSnapshots", "FetchSnapshot", "GetReplicationStatus"])
async def test_who_has_no_token_is_refused_before_anything_is_decoded(
    tmp_path: Path, call: str
) -> None:
    listener = with_tokens(tmp_path / "tokens", "secret\n")
    async with running(tmp_path / "store", listener=listener, users=3) as world:
        for metadata in (None, [("authorization", "Bearer guess")]):
            stream = raw(world, call, b"\xff" * 1000, metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.call.read() if call in STREAMING else await stream.call
            assert refused.value.code() is Code.UNAUTHENTICATED


async def test_whose_token_is_for_another_table_costs_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    read = filters_.AllowedValues.add
    monkeypatch.setattr(
        filters_.AllowedValues, "add", lambda *given: (built.append(1), read(*given))[1]
    )
    listener = with_tokens(tmp_path / "tokens", "secret public.orders\n")
    async with running(tmp_path / "store", listener=listener, users=3) as world:
        metadata = [("authorization", "Bearer secret")]
        stream = raw(world, "Sync", asking(texts(100, str)), metadata)
        assert (await stream.ends())[0] is Code.PERMISSION_DENIED
    assert not built


def test_numbers_are_never_looked_up_by_their_own_hash() -> None:
    """Only text, whose hash is keyed in each process, and the two booleans."""
    values = [struct_pb2.Value(number_value=float(n)) for n in range(100)]
    values += [struct_pb2.Value(string_value=str(n * COLLIDES)) for n in range(100)]
    values += [struct_pb2.Value(string_value="1e999999999"), struct_pb2.Value(bool_value=True)]
    (condition,) = conditions([listed(*values)]).each
    assert condition.wanted is not None
    kept = [each for found in vars(condition.wanted).values() for each in found]
    assert len(kept) > 300
    assert {type(each) for each in kept} == {str, bool}
    assert max(len(each) for each in kept if isinstance(each, str)) < 30


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1", "1e0"),
        ("1.00", "1e0"),
        ("+10e-1", "1e0"),
        ("-0.050", "-5e-2"),
        ("000", "0"),
        ("-0.0", "0"),
        ("0e99999999999999999999", "0"),
        ("1e999999999", "1e999999999"),
        ("1e-00000000000000000000007", "1e-7"),
        ("1e1000000000000000000", None),
        ("1e", None),
        ("٣", None),
        ("1_000", None),
        (" 1", None),
        ("NaN", None),
    ],
)
def test_equal_numbers_have_one_text(text: str, canonical: str | None) -> None:
    assert filters_.canonical(text) == canonical


def test_a_request_of_the_greatest_size_is_taken() -> None:
    data = asking(texts(call_.MAX_VALUES - 1, str), table="t")
    assert len(data) < call_.MAX_REQUEST_BYTES
    _, filters = call_.parse_sync(data)
    assert len(conditions(filters).each) == 1


async def test_a_standby_reports_thousands_of_tables_and_a_stranger_does_not(
    tmp_path: Path,
) -> None:
    report = {f"{number:063d}.{'t' * 63}": (number, 2**63) for number in range(6_000)}
    reported: list[object] = []

    async def take(_: str, tables: object, __: str) -> wire.ServerRole:
        reported.append(tables)
        return wire.ServerRole(holder=True)

    listener = ListenerOptions("127.0.0.1", 0, peer_token=call_.peer_token("ours"))
    async with running(tmp_path / "store", listener=listener, report_standby=take) as world:
        server = f"127.0.0.1:{world.port}"
        async with Peer(RelayOptions(server, "standby", token="ours")) as peer:
            assert (await peer.role("a", report)).holder
        assert reported == [report]
        async with Peer(RelayOptions(server, "stranger", token="another")) as peer:
            with pytest.raises(UpstreamUnavailable, match="more than 131072"):
                await peer.role("b", report)
