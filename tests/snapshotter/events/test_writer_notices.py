"""The writer's process tells real topics, queues and streams, whatever it is killed between."""

import json
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.failpoint import VARIABLE
from laredo_snapshotter.config_outputs import SinkConfig
from tests.support import drawn
from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, answer
from tests.support.faults.proxy import FaultProxy
from tests.support.processes import wait_until
from tests.support.writer.buckets import new_bucket
from tests.support.writer.listening import EARS, Ear, QueueEar, StreamEar
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer

Marks = list[tuple[str, int, str]]


def events(*sinks: SinkConfig) -> str:
    blocks = []
    for sink in sinks:
        pairs = sink.model_dump(exclude_none=True).items()
        blocks.append("{ " + ", ".join(f'{name} = "{value}"' for name, value in pairs) + " }")
    return f"events = [ {', '.join(blocks)} ]"


def writer_for(tmp_path: Path, served: Served, *sinks: SinkConfig, **options: Any) -> Writer:
    return ReadyWriter(tmp_path, served, more=events(*sinks), **options)


def marks(writer: Writer) -> Marks:
    return [(a["kind"], a["epoch"], a["to_position"]) for a in writer.artifacts()]


def heard(ear: Ear) -> Marks:
    return [message.artifact for message in ear.hear()]


def wait_heard(ear: Ear, wanted: Marks) -> Marks:
    """Wait until all of ``wanted`` were heard; return everything that was heard."""
    wait_until(lambda: set(wanted) <= set(heard(ear)), f"{wanted} heard, not {heard(ear)}")
    return heard(ear)


def commit(writer: Writer, served: Served, count: int) -> None:
    """Commit ``count`` diffs."""
    for number in range(count):
        writer.wait_head(served.commit("users", put(number, f"again at {served.position}")))


def wait_recorded(writer: Writer, sinks: Sequence[SinkConfig]) -> None:
    """Until the manifest says that each sink knows of all."""

    def recorded() -> bool:
        manifest = writer.manifest()
        head = {"epoch": manifest["epoch"], "position": manifest["head_position"]}
        return all(manifest["notified"][sink.name] == head for sink in sinks)

    wait_until(recorded, "recorded in the manifest")


def test_every_kind_of_sink_hears_every_artifact(
    tmp_path: Path, served: Served, ministack: AwsServer
) -> None:
    ears = [make(ministack) for make in EARS.values()]
    configs = [ear.config for ear in ears]
    bucket, directory = new_bucket(ministack), tmp_path / "archive"
    places = (bucket, directory)
    with writer_for(tmp_path, served, *configs, destinations=places) as writer:
        commit(writer, served, 3)
        assert writer.post("/snapshot?wait=true").status_code == 200
        commit(writer, served, 1)
        wanted = marks(writer)
        assert [kind for kind, _, _ in wanted] == ["snapshot"] + ["diff"] * 3 + ["snapshot", "diff"]
        for ear in ears:
            found = wait_heard(ear, wanted)
            assert Counter(found) == Counter(wanted), "once, as long as nothing goes wrong"
            if ear.in_order:
                assert found == wanted
        wait_recorded(writer, configs)
        told = writer.manifest()["notified"]
        wait_until(
            lambda: manifest_in(directory)["notified"] == told,
            "recorded on the other destination too",
        )
        entries = {(a["kind"], a["to_position"]): a for a in writer.artifacts()}
        for message in ears[0].hear():
            # Of the destination that is configured first, though its URI isn't the first.
            assert message.body["manifest_uri"] == f"{bucket.uri}users/manifest.json"
            entry = entries[message.body["kind"], message.body["to_position"]]
            assert message.body["created_at"] == entry["created_at"]
            named = message.body["formats"]["jsonl"].removeprefix(bucket.uri)
            data = (bucket / named).read_bytes()
            assert sha256(data).hexdigest() == entry["formats"]["jsonl"]["sha256"]
        sent = {
            name: value
            for name, value in writer.metrics().items()
            if name.startswith("snapshotter_notices_sent_total")
        }
        assert sorted(sent.values()) == [len(wanted)] * len(ears)


def manifest_in(archive: Path) -> dict[str, Any]:
    return json.loads((archive / "users" / "manifest.json").read_bytes())


POINTS = {
    # Name of the point, and which time: the base's notice is the first.
    "committed, not sent": "notice.sending:3",
    "sent, not known": "notice.sent:3",
    "known, not written down": "notice.told:3",
}


@pytest.mark.parametrize("point", drawn.first(1, POINTS))
def test_killed_between_a_commit_and_its_record_it_tells_again(
    point: str, tmp_path: Path, served: Served, ministack: AwsServer
) -> None:
    ears: list[Ear] = [StreamEar(ministack), QueueEar(ministack, fifo=True)]
    stream, fifo = ears
    configs = [stream.config, fifo.config]
    with Writer(tmp_path, served, more=events(*configs), interval="100ms") as writer:
        writer.program.kill()
        writer.program.environment = {VARIABLE: POINTS[point]}
        writer.program.start()
        tell_until_killed(writer, served)
        writer.program.environment = {}
        writer.program.start()
        writer.program.wait_ready()
        commit(writer, served, 2)
        wanted = marks(writer)
        found = wait_heard(stream, wanted)
        assert list(dict.fromkeys(found)) == wanted, "in order"
        assert wait_heard(fifo, wanted) == wanted, "and a FIFO queue hears nothing twice"
        wait_recorded(writer, configs)
        writer.assert_equal()


def tell_until_killed(writer: Writer, served: Served) -> None:
    def dead() -> bool:
        served.commit("users", put(7, f"at {served.position}"))
        return not writer.program.is_running()

    wait_until(dead, "killed at the point")
    assert writer.program.wait() == -signal.SIGKILL


def test_a_restart_that_was_asked_for_repeats_nothing(
    tmp_path: Path, served: Served, ministack: AwsServer
) -> None:
    ear = StreamEar(ministack)
    # The record of an idle table would come only after the interval.
    with writer_for(tmp_path, served, ear.config, interval="600s") as writer:
        for number in range(2):
            assert writer.post("/snapshot?wait=true").status_code == 200
            wait_heard(ear, marks(writer))
            position = served.commit("users", put(number, "x"))
            writer.wait_status({"stream_position": f"0/{position:X}"})
            assert writer.program.stop() == 0
            wait_recorded(writer, [ear.config])
            writer.program.start()
            writer.program.wait_ready()
        assert marks(writer)[-1][0] == "diff", "the last one"
        assert heard(ear) == marks(writer)


def test_of_a_fenced_writer_the_one_that_took_over_tells_the_rest(
    tmp_path: Path, served: Served, ministack: AwsServer
) -> None:
    ear = QueueEar(ministack, fifo=True)
    with FaultProxy(ministack.endpoint) as proxy:
        proxy.add(Rule(answer(403, "AccessDenied"), times=None))
        refused = ear.config.model_copy(update={"endpoint": proxy.endpoint})
        # At this level each attempt has its line.
        debug = ("--log-level", "debug")
        with writer_for(tmp_path, served, refused, arguments=debug) as first:
            commit(first, served, 1)
            with writer_for(tmp_path, served, ear.config, name="second") as second:
                commit(second, served, 1)
                first.wait_status({"state": "fenced"})
                proxy.clear()
                commit(second, served, 3)
                assert wait_heard(ear, marks(second)) == marks(second)
                wait_until(lambda: datetime.now(UTC) > next_attempt(first), "it would have tried")
                assert first.logged("sink notified") == []


def next_attempt(writer: Writer) -> datetime:
    """Time by which a sink that failed is tried again, with room for a slow machine."""
    failed = writer.logged("sink not notified")[-1]
    at = datetime.fromisoformat(failed["timestamp"])
    return at + timedelta(seconds=failed["retry_in_s"] + 1)


def test_a_table_whose_manifest_is_damaged_still_tells_what_it_committed(
    tmp_path: Path, served: Served, ministack: AwsServer
) -> None:
    ear = QueueEar(ministack, fifo=True)
    with FaultProxy(ministack.endpoint) as proxy:
        proxy.add(Rule(answer(403, "AccessDenied"), times=None))
        refused = ear.config.model_copy(update={"endpoint": proxy.endpoint})
        with writer_for(tmp_path, served, refused) as writer:
            commit(writer, served, 1)
            wanted = marks(writer)
            manifest = tmp_path / "archive" / "users" / "manifest.json"
            manifest.write_text("not a manifest")
            served.commit("users", put(1, "y"))
            writer.wait_status({"state": "holding"})
            proxy.clear()
            assert wait_heard(ear, wanted) == wanted
