"""Refusals of AWS: each has its own message, in `check` and at the start.

Every table has a bucket that is refused for another reason; one has a good one.
The test servers don't refuse anybody: the fault proxy does, in AWS's words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.support import processes
from tests.support.aws import AwsServer
from tests.support.faults.fault import Fault, Rule, answer
from tests.support.faults.operation import Operation
from tests.support.faults.proxy import FaultProxy
from tests.support.writer.buckets import new_bucket
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import Writer


@dataclass(frozen=True)
class Refusal:
    """``status`` and ``code``: what S3 answers to ``operation``; ``settings``: of the destination;
    ``said``: what people are told."""

    said: tuple[str, ...]
    status: int = 403
    code: str = ""
    operation: str = "*"
    settings: tuple[tuple[str, str], ...] = ()


ROLE = "arn:aws:iam::123456789012:role/not-yours"
REFUSALS = {
    "denied": Refusal(("s3:PutObject", "AccessDenied", "policy"), 403, "AccessDenied", "PutObject"),
    "expired": Refusal(("ExpiredToken", "profile ambient"), 400, "ExpiredToken"),
    "skewed": Refusal(("RequestTimeTooSkewed", "clock"), 403, "RequestTimeTooSkewed"),
    "moved": Refusal(("region", "PermanentRedirect"), 301, "PermanentRedirect"),
    "keyless": Refusal(
        ("KMS.DisabledException", "key"),
        400,
        "KMS.DisabledException",
        "PutObject",
        (("server_side_encryption", '"aws:kms"'), ("kms_key_id", '"alias/archive"')),
    ),
    "unknown": Refusal(("InvalidAccessKeyId",), 403, "InvalidAccessKeyId"),
    "roleless": Refusal((ROLE, "sts:AssumeRole"), settings=(("credentials", "not_mine"),)),
    "homeless": Refusal(("NoSuchBucket", "create the bucket"), settings=(("bucket", "nowhere"),)),
}


@dataclass(frozen=True)
class InBucket:
    """A rule for one bucket only."""

    bucket: str
    rule: Rule

    def choose(self, operation: Operation, chance: Random) -> Fault | None:
        return self.rule.choose(operation, chance) if operation.bucket == self.bucket else None


@dataclass
class World:
    served: Served
    writer: Writer
    proxies: tuple[FaultProxy, ...]
    topic: str


@pytest.fixture
def world(tmp_path: Path, s3_server: AwsServer, moto: AwsServer) -> Iterator[World]:
    topic = moto.client("sns").create_topic(Name="refusals")["TopicArn"]
    with (
        Served(tmp_path / "state") as served,
        FaultProxy(s3_server.endpoint) as s3,
        FaultProxy(moto.endpoint) as sts,
    ):
        sts.add(Rule(answer(403, "AccessDenied"), "AssumeRole", times=None))
        per_table = {}
        for table, refusal in REFUSALS.items():
            bucket = new_bucket(s3_server)
            settings = {"endpoint": f'"{s3.endpoint}"', **dict(refusal.settings)}
            per_table[table] = f"destinations = [ {bucket.configured(**settings)} ]"
            if refusal.code:
                fault = answer(refusal.status, refusal.code, message=f"as {table} is refused")
                s3.add(InBucket(bucket.bucket, Rule(fault, refusal.operation, times=None)))
        for table in ("users", *REFUSALS):
            served.add(table, rows(0, 5))
        served.start()
        writer = Writer(
            tmp_path,
            served,
            "users",
            *REFUSALS,
            destinations=(new_bucket(s3_server),),
            per_table=per_table,
            more=f"""credentials {{ not_mine {{
                type = assume_role, role_arn = "{ROLE}", endpoint = "{sts.endpoint}" }} }}
                events = [
                    {{ type = sns, topic_arn = "{topic}", endpoint = "{moto.endpoint}" }}
                    {{ type = sns, topic_arn = "{topic}-gone", endpoint = "{moto.endpoint}" }} ]
            """,
        )
        yield World(served, writer, (s3, sts), topic)


def test_check_finds_each_before_the_first_write(world: World) -> None:
    ended = processes.run("laredo-snapshotter", "check", "--config", world.writer.program.config)
    assert ended.returncode == 1, ended.stderr
    told = ended.stdout.splitlines()
    wrong = [line for line in told if ": wrong: " in line]
    for table, refusal in REFUSALS.items():
        found = [line for line in wrong if all(part in line for part in refusal.said)]
        assert found, f"{table}:\n{ended.stdout}"
        assert all("What to do: " in line for line in found)
        # Other steps are tried only where they may go better.
        steps = [line for line in found if line.startswith("destination ")]
        assert len(steps) == (2 if refusal.operation == "PutObject" else 1)
        assert all("as profile " in line and "s3://" in line for line in found[-1:])
    assert [line for line in told if f"ok: sns {world.topic}: " in line]
    (gone,) = [line for line in wrong if "sns:GetTopicAttributes" in line]
    assert f"{world.topic}-gone" in gone
    (good,) = {
        line.split(": ok: ")[0]
        for line in told
        if ": conditional writes" in line and "honoured" in line
    }
    assert world.writer.archive.uri in good
    for line in ("list: empty", "write, read, delete: ", "unfinished uploads: can be listed"):
        assert f"{good}: ok: {line}" in ended.stdout
    # What is tried there is removed again, and no table's archive is begun.
    assert world.writer.archive.names() == []
    assert told[-1] == f"{len(told) - 1} checked, {len(wrong)} wrong"


def test_the_writer_says_each_and_goes_on_once_it_is_put_right(world: World) -> None:
    writer = world.writer
    with writer:
        for table, refusal in REFUSALS.items():
            status = writer.wait_status({"state": "holding", "ready": False}, table)
            assert all(part in status["problem"] for part in refusal.said), (table, status)
            (place,) = status["destinations"]
            assert place["state"] == "away" and place["problem"] == status["problem"]
            assert place["errors"] >= 1
        writer.wait_status({"state": "following", "ready": True})
        writer.wait_head(world.served.commit("users", put(1, "goes on")))
        ready = writer.program.get("/health/ready")
        assert ready is not None and set(ready.json()["not_ready"]) == {
            f"public.{table}" for table in REFUSALS
        }
        for proxy in world.proxies:
            proxy.clear()
        for table in REFUSALS:
            if table != "homeless":
                writer.wait_status({"state": "following", "ready": True}, table)
        assert writer.program.stop() == 0
