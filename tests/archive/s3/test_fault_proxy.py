"""The fault proxy does what it says: seen from both of its sides."""

import gc
import http.client
import socket
import threading
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, HTTPClientError

from tests.support.archive.answering import Answer, Answering, Asked, answering
from tests.support.faults.fault import Rule, drop, reset
from tests.support.faults.operation import Operation
from tests.support.faults.proxy import FaultProxy
from tests.support.faults.weather import Weather

LOST = (ConnectionClosedError, HTTPClientError)


@pytest.fixture
def store() -> Iterator[Answering]:
    with answering(Answer()) as server:
        yield server


@pytest.fixture
def proxy(store: Answering) -> Iterator[FaultProxy]:
    with FaultProxy(store.endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3(proxy: FaultProxy) -> Iterator[Any]:
    client = boto3.client(
        "s3",
        endpoint_url=proxy.endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
            read_timeout=60,
            request_checksum_calculation="when_required",
        ),
    )
    yield client
    client.close()


def put(s3) -> None:  # type: ignore[no-untyped-def]
    s3.put_object(Bucket="b", Key="t/manifest.json", Body=b"0123456789")


def test_what_is_signed_is_sent_on_as_it_is(s3, store: Answering, proxy: FaultProxy) -> None:  # type: ignore[no-untyped-def]
    put(s3)
    headers = store.asked[0].headers
    assert headers["Host"] == f"127.0.0.1:{proxy.port}"
    signed = headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert "host" in signed
    assert set(signed) <= {name.lower() for name in headers}


def test_end_and_reset_are_two_things(proxy: FaultProxy) -> None:
    def sent() -> socket.socket:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        client.sendall(b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        return client

    proxy.add(Rule(drop()), Rule(reset()))
    with sent() as dropped:
        assert dropped.recv(100) == b""
    with sent() as broken, pytest.raises(ConnectionResetError):
        broken.recv(100)


def test_a_chunked_body_arrives_whole(store: Answering, proxy: FaultProxy) -> None:
    client = http.client.HTTPConnection("127.0.0.1", proxy.port)
    client.request("PUT", "/b/k", body=iter([b"01", b"234"]), encode_chunked=True)
    assert client.getresponse().read() == b""
    client.close()
    assert [asked.body for asked in store.asked] == [b"01234"]


def test_what_is_under_way_when_it_goes_away_is_witnessed(
    s3, store: Answering, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    asked, go_on, seen = threading.Event(), threading.Event(), []

    def answer_when_told(_: Asked) -> Answer:
        asked.set()
        go_on.wait()
        return Answer()

    monkeypatch.setattr(store, "next", answer_when_told)
    proxy.witnesses.append(lambda operation, _, answered: seen.append(answered.status))

    def put_in_vain() -> None:
        with pytest.raises(LOST):
            put(s3)

    client = threading.Thread(target=put_in_vain)
    client.start()
    asked.wait()
    with proxy.away():
        client.join()
        assert seen == []
        go_on.set()
    proxy.settle()
    assert seen == [200]


def test_it_leaves_no_connection_behind() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(30):  # one that is being accepted while the proxy ends: each second time
            with FaultProxy("http://127.0.0.1:1") as proxy:
                client = socket.create_connection(("127.0.0.1", proxy.port))
            client.close()
            del proxy
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_the_same_seed_does_the_same() -> None:
    def storm(seed: int) -> list[str]:
        proxy = FaultProxy("http://127.0.0.1:1", seed)
        proxy.add(Weather(0.5))
        operation = Operation("PutObject", "s3", "b", "k", True)
        return [str(proxy.chosen(operation)[0]) for _ in range(50)]

    assert storm(1) == storm(1)
    assert storm(1) != storm(2)
    assert 10 < storm(1).count("None") < 40


def test_weather_has_what_the_operation_can_meet() -> None:
    def met(name: str, *, conditional: bool = False, protocol: str = "s3") -> set[str]:
        operation = Operation(name, protocol, "b", "k", conditional)
        faults = (Weather(1, lateness=0).choose(operation, Random(n)) for n in range(2000))
        return {str(fault).split(",")[0].partition(" to ")[0] for fault in faults}

    reads = met("GetObject")
    assert "answer truncated" in reads
    assert not {"late by 0 s", "412 PreconditionFailed before", "duplicate"} & reads
    writes = met("PutObject", conditional=True)
    assert writes >= {
        "409 ConditionalRequestConflict before",
        "412 PreconditionFailed before",
        "500 InternalError after",
        "reset after",
        "late by 0 s",
        "duplicate",
        "request truncated",
        "400 BadDigest before",
    }
    assert "412 PreconditionFailed before" not in met("PutObject")
    assert "400 ProvisionedThroughputExceededException before" in met("PutRecord", protocol="json")
