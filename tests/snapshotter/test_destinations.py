"""Several destinations: durable is what is on all of them; each may be away, be behind, be refused.

S3 is the test servers', behind the fault proxy.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.aws import AwsServer
from tests.support.faults.fault import Exchange, Fault, Rule, answer, silence
from tests.support.faults.http1 import Message
from tests.support.faults.operation import Operation
from tests.support.faults.proxy import FaultProxy
from tests.support.processes import wait_until
from tests.support.writer.buckets import BucketPath, new_bucket
from tests.support.writer.served import Served, put, serving
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture
def proxy(s3_server: AwsServer) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as through:
        yield through


@pytest.fixture
def bucket(s3_server: AwsServer, proxy: FaultProxy) -> BucketPath:
    """Looked into directly, written to through the proxy."""
    return new_bucket(s3_server)


def through(proxy: FaultProxy, bucket: BucketPath, **more: str) -> str:
    return bucket.configured(endpoint=f'"{proxy.endpoint}"', **more)


def metric(writer: Writer, name: str, **labels: str) -> float | None:
    """The value of a metric with these labels, among others."""
    for found, value in writer.metrics().items():
        if found.startswith(f"{name}{{") and all(
            f'{label}="{wanted}' in found for label, wanted in labels.items()
        ):
            return value
    return None


def assert_same_artifacts(writer: Writer, one: Path | BucketPath, other: Path | BucketPath) -> None:
    """Both name the same artifacts, each by its own URIs, and hold the table at each boundary."""
    told = []
    for place in (one, other):
        writer.archive = place
        writer.assert_equal()
        artifacts = writer.artifacts()
        prefix = place.uri if isinstance(place, BucketPath) else place.as_uri()
        for artifact in artifacts:
            for entry in artifact["formats"].values():
                assert entry.pop("uri") == f"{prefix.rstrip('/')}/{entry.pop('key')}"
        told.append(artifacts)
    assert told[0] == told[1]


def test_buckets_that_are_away_hold_the_commit_and_are_level_when_they_return(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath, s3_server: AwsServer
) -> None:
    here, other = tmp_path / "archive", new_bucket(s3_server)
    with (
        FaultProxy(s3_server.endpoint) as second,
        ReadyWriter(
            tmp_path,
            served,
            destinations=(here, through(proxy, bucket), through(second, other)),
        ) as writer,
    ):
        assert writer.destination(bucket)["state"] == "level"
        assert metric(writer, "snapshotter_destination_up", destination=bucket.uri) == 1
        with proxy.away(), second.away():
            held = served.commit("users", put(1, "held"))
            status = writer.wait_status({"state": "holding", "ready": False})
            assert bucket.uri in status["problem"] or other.uri in status["problem"]
            assert status["holding"]["attempts"] >= 1
            away, level = writer.destination(bucket), writer.destination(here)
            assert (away["state"], level["state"]) == ("away", "level")
            assert writer.destination(other)["state"] == "away"
            assert away["since"] is not None and bucket.uri in away["problem"]
            assert level["problem"] is None
            served.commit("users", put(2, "waits"))
            assert metric(writer, "snapshotter_destination_up", destination=bucket.uri) == 0
            assert metric(writer, "snapshotter_destination_up", destination=here.as_uri()) == 1
            errors = "snapshotter_destination_errors_total"
            before = metric(writer, errors, destination=bucket.uri)
            wait_until(
                lambda: (metric(writer, errors, destination=bucket.uri) or 0) > (before or 0),
                "each attempt that failed is counted",
            )
            assert (
                metric(writer, "snapshotter_destination_away_seconds", destination=bucket.uri) or 0
            ) > 0
            assert metric(writer, errors, destination=here.as_uri()) == 0
            assert writer.head() < held
        writer.wait_head(served.commit("users", put(3, "after")))
        writer.program.wait_ready()
        for each in (bucket, other):
            told = writer.destination(each)
            assert (told["state"], told["problem"]) == ("level", None)
        assert metric(writer, "snapshotter_destination_up", destination=bucket.uri) == 1
        assert writer.program.stop() == 0
    assert_same_artifacts(writer, here, bucket)
    assert_same_artifacts(writer, here, other)


IMPATIENT = """
import sys
from laredo_snapshotter import committer
from laredo_snapshotter.cli import main

committer.PROMPT_S = 1.0
sys.argv = sys.argv[1:]
main()
"""
"""The program, that says after a second what it says after ten."""


def test_a_bucket_that_takes_requests_and_never_answers_is_noticed_before_its_timeouts(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath
) -> None:
    writer = Writer(tmp_path, served, destinations=(through(proxy, bucket),))
    writer.program.wrapper = (sys.executable, "-c", IMPATIENT)
    with writer:
        writer.program.wait_ready()
        writer.archive = bucket
        proxy.add(Rule(silence(), times=None))
        held = served.commit("users", put(1, "held"))
        status = writer.wait_status({"state": "holding", "ready": False})
        # The first attempt's: S3's client gives up a request after 60 s.
        assert status["holding"]["attempts"] == 1
        assert "isn't done after 1" in status["problem"] and bucket.uri in status["problem"]
        assert not writer.program.is_ready()
        assert proxy.faults() == {"silence": 1}
        away = writer.destination(bucket)
        assert away["state"] == "away" and away["since"] is not None
        assert "a request hasn't been answered for" in away["problem"]
        assert metric(writer, "snapshotter_destination_up", destination=bucket.uri) == 0
        proxy.clear()
        with proxy.away():
            pass
        writer.wait_head(held)
        writer.program.wait_ready()
        level = writer.destination(bucket)
        assert (level["state"], level["problem"]) == ("level", None)
        assert metric(writer, "snapshotter_destination_up", destination=bucket.uri) == 1
        assert writer.program.stop() == 0
    writer.assert_equal()


def test_a_stop_doesnt_wait_for_a_bucket_that_hangs_at_the_start(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath
) -> None:
    asked = threading.Event()

    async def hang(exchange: Exchange) -> None:
        asked.set()
        await asyncio.sleep(3600)

    proxy.add(Rule(Fault("hangs", hang), times=None))
    with Writer(tmp_path, served, destinations=(through(proxy, bucket),)) as writer:
        wait_until(asked.is_set, "asked")
        # READ_TIMEOUT_S, and what is tried again after it, is minutes.
        assert writer.program.stop() == 0


def test_what_one_destination_lacks_is_copied_at_the_next_start(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath
) -> None:
    here = tmp_path / "archive"
    writer = Writer(tmp_path, served, destinations=(here, through(proxy, bucket)))
    with writer:
        writer.program.wait_ready()
        # The bucket gets the object, and its manifest doesn't come to name it.
        proxy.add(Rule(answer(403, "AccessDenied"), "PutObject", "*/manifest.json", times=None))
        held = served.commit("users", put(1, "on the directory only"))
        writer.wait_head(held)
        next_ = served.commit("users", put(2, "k + 1 is nowhere before k is everywhere"))
        writer.wait_status({"state": "holding"})
        assert writer.head() == held
        writer.program.kill()
        proxy.clear()
    writer.archive = bucket
    assert [kind for kind, _ in writer.kinds()] == ["snapshot"]
    with writer:
        writer.wait_head(next_)
        assert [kind for kind, _ in writer.kinds()] == ["snapshot", "diff", "diff"]
        (reconciled,) = writer.logged("destination reconciled")
        assert reconciled["copied"] == 1 and reconciled["uri"] == bucket.uri
        assert writer.program.stop() == 0
    assert_same_artifacts(writer, here, bucket)


def test_a_held_base_that_goes_holds_nothing_up(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath
) -> None:
    with ReadyWriter(tmp_path, served, destinations=(through(proxy, bucket),)) as writer:
        writer.archive = bucket
        proxy.add(Rule(answer(403, "AccessDenied"), "PutObject", "*/manifest.json", times=None))
        assert writer.post("/snapshot").status_code == 202
        writer.wait_status({"state": "holding"})
        [base] = (bucket / "users/epoch=2/snapshot-").names()
        bucket.server.client("s3").delete_object(Bucket=bucket.bucket, Key=base)
        proxy.clear()
        wait_until(lambda: writer.logged("re-base failed"), "the base is given up")
        writer.wait_head(served.commit("users", put(1, "goes on")))
        writer.wait_epoch(2)
        writer.assert_equal()


class Callers:
    """Access keys and regions that a store's requests were signed with."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.seen: set[tuple[str, str]] = set()
        proxy.witnesses.append(self._note)

    def _note(self, operation: Operation, request: Message, answered: Message) -> None:
        del operation, answered
        signature = request.head.get("Authorization") or ""
        key, _, region, *_ = signature.partition("Credential=")[2].split(",")[0].split("/")
        self.seen.add((key, region))


def test_two_buckets_in_two_regions_each_with_a_role_of_its_own(
    tmp_path: Path, served: Served, moto: AwsServer, s3_server: AwsServer
) -> None:
    buckets = new_bucket(moto, "eu-west-1"), new_bucket(s3_server, "us-west-2")
    with FaultProxy(moto.endpoint) as first, FaultProxy(s3_server.endpoint) as second:
        one, other = Callers(first), Callers(second)
        destinations = (
            through(first, buckets[0], credentials="here", region="eu-west-1"),
            through(second, buckets[1], credentials="there", region="us-west-2"),
        )
        role = "type = assume_role, role_arn = "
        profiles = f"""credentials {{
            sts {{ type = ambient, region = us-east-1 }}
            here {{ {role} "arn:aws:iam::111111111111:role/here", base = sts
                    endpoint = "{moto.endpoint}", session_name = writer }}
            there {{ {role} "arn:aws:iam::222222222222:role/there", external_id = shared
                     endpoint = "{moto.endpoint}" }}
        }}"""
        with ReadyWriter(tmp_path, served, destinations=destinations, more=profiles) as writer:
            writer.archive = buckets[1]
            writer.wait_head(served.commit("users", put(1, "x")))
            assumed = metric(
                writer,
                "snapshotter_aws_requests_total",
                operation="AssumeRole",
                service="sts",
                status="200",
            )
            assert assumed == 2
            assert writer.program.stop() == 0
    (as_here,), (as_there,) = one.seen, other.seen
    assert (as_here[1], as_there[1]) == ("eu-west-1", "us-west-2")
    keys = {as_here[0], as_there[0]}
    # STS gives out ASIA..., the environment's own begins with AKIA.
    assert len(keys) == 2 and all(key.startswith("ASIA") for key in keys)
    assert_same_artifacts(writer, *buckets)


class Unconditional:
    """A store that doesn't know If-Match and If-None-Match, and so ignores them."""

    def choose(self, operation: Operation, chance: Any) -> Fault | None:
        del chance
        return Fault("unconditional", self._forward) if operation.protocol == "s3" else None

    async def _forward(self, exchange: Exchange) -> None:
        head = exchange.request.head.without("If-Match").without("If-None-Match")
        await exchange.respond(await exchange.forward(replace(exchange.request, head=head)))


def test_a_store_without_conditional_writes_is_refused(
    tmp_path: Path, served: Served, proxy: FaultProxy, bucket: BucketPath
) -> None:
    proxy.add(Unconditional())
    with Writer(
        tmp_path, served, "users", destinations=(through(proxy, bucket / "unconditional"),)
    ) as writer:
        status = writer.wait_status({"state": "failed", "ready": False})
        assert "doesn't honour conditional writes" in status["problem"]
        assert "otherwise use a store" in status["problem"]
        assert (bucket / "unconditional").names() == []
        assert writer.program.stop() == 0


# The writer on S3, end to end: real processes against the test servers.


def test_many_tables_share_a_bucket_and_its_connections(
    tmp_path: Path, s3_server: AwsServer
) -> None:
    bucket, tables = new_bucket(s3_server), [f"t{number}" for number in range(6)]
    archive = bucket / "archive"
    with (
        FaultProxy(s3_server.endpoint) as proxy,
        serving(tmp_path / "many", *tables, count=5) as served,
    ):
        place = through(proxy, archive)
        with ReadyWriter(tmp_path, served, *tables, destinations=(place,)) as writer:
            writer.archive = archive
            probed = proxy.requests("CreateMultipartUpload")
            assert len(probed) == 1, "one probe for all tables"
            positions = {table: served.commit(table, put(1, "x")) for table in tables}
            for table, position in positions.items():
                writer.wait_head(position, table)
            assert writer.program.stop() == 0
    assert "discarding connection" not in writer.program.log.read_text()
    for table in tables:
        writer.assert_equal(table)
        for artifact in writer.artifacts(table):
            entry = artifact["formats"]["jsonl"]
            assert entry["uri"] == f"{archive.uri}/{entry['key']}"
    assert all(key.startswith("archive/") for key in bucket.names())
    assert bucket.unfinished() == []
