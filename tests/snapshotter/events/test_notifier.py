"""The notifier over real HTTP: what each sink hears when sinks, commits and restarts go wrong."""

import gc
import threading
import time
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from laredo_archive.aws.clients import AwsClients
from laredo_archive.manifest.model import Artifact, ArtifactKind, EpochPosition, FormatEntry
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from laredo_service.retry import Backoff
from laredo_snapshotter.events import notifier as notifier_
from laredo_snapshotter.events.notices import Notice
from laredo_snapshotter.events.sinks import Sink
from tests.snapshotter.events.recording import Recorder
from tests.snapshotter.events.telling import Telling, marks, queue
from tests.support.archive.archiving import (
    HISTORY,
    MANIFEST,
    MORNING,
    ONE,
    TWO,
    base_of,
    based,
    diffed,
    memory,
    opened,
    rebased,
)
from tests.support.faults.fault import Rule, answer, delay, drop
from tests.support.faults.proxy import FaultProxy
from tests.support.processes import wait_until

NEVER_S = 600.0


def written(sink: Sink) -> TableArchive:
    """A base and a diff."""
    archive = based(memory(2), sinks=[sink.name])
    diffed(archive, 10, 20, ONE, TWO)
    return archive


def outstanding(notifier: notifier_.Notifier, sink: Sink) -> int:
    (state,) = [each for each in notifier.statuses() if each.name == sink.name]
    return state.outstanding


def test_a_sink_that_is_down_holds_up_nothing_and_nobody(
    recorder: Recorder, proxy: FaultProxy, clients: AwsClients
) -> None:
    hanging = queue(proxy.endpoint, "hanging", clients)
    well = queue(recorder.endpoint, "well", clients)
    proxy.add(Rule(delay(NEVER_S), times=None))
    with FaultProxy(recorder.endpoint) as other:
        other.add(Rule(answer(403, "AccessDenied"), times=None))
        refusing = queue(other.endpoint, "refusing", clients)
        archive = opened(memory(2), sinks=[s.name for s in (hanging, refusing, well)])
        with Telling(archive, hanging, refusing, well) as notifier:
            rebased(archive, 10, ONE, continues=False)
            notifier.wake()
            wait_until(proxy.requests, "it hangs")
            for end in range(20, 220, 10):
                diffed(archive, end - 10, end, ONE, ONE)
                notifier.wake()
            wait_until(lambda: recorder.artifacts(well.name) == marks(archive), "one hears all")
            wait_until(lambda: not outstanding(notifier, well), "its last answer is taken")
            wait_until(lambda: other.faults()["403 AccessDenied before"] > 3, "the other tries")
            archive.record_notices()
            assert not notifier.settle(0.0)
            statuses = {status.name: status for status in notifier.statuses()}
        assert not recorder.artifacts(hanging.name)
        assert len(proxy.requests()) == 1
    assert statuses[well.name].outstanding == 0
    assert statuses[well.name].trouble is None
    assert statuses[well.name].last_notified == EpochPosition(1, Position(210))
    assert statuses[hanging.name].outstanding == statuses[refusing.name].outstanding == 21
    trouble = statuses[refusing.name].trouble
    assert trouble is not None
    assert trouble.problem.startswith(f"sqs:SendMessage on {refusing.name} as profile ambient")
    assert trouble.attempts > 3
    assert archive.manifest is not None
    assert archive.manifest.notified == {
        hanging.name: None,
        refusing.name: None,
        well.name: EpochPosition(1, Position(210)),
    }


def test_failures_are_counted_logged_and_forgotten_with_the_next_success(
    proxy: FaultProxy, recorder: Recorder, clients: AwsClients
) -> None:
    sink = queue(proxy.endpoint, "q", clients)
    proxy.add(Rule(answer(503, "ServiceUnavailable"), times=3), Rule(drop(after=True)))
    archive = written(sink)
    telling = Telling(archive, sink)
    with capture_logs() as logs, telling as notifier:
        wait_until(lambda: recorder.artifacts(sink.name)[2:], "both are told, one of them twice")
        assert wait_until(lambda: telling.counts.sent[sink.name] == 2, "all is told")
        wait_until(lambda: [e for e in logs if e["event"] == "sink notified"][1:], "and in the log")
        [status] = notifier.statuses()
    assert recorder.artifacts(sink.name) == [marks(archive)[0], *marks(archive)]
    assert telling.counts.sinks == [sink.name]
    assert telling.counts.refused == {sink.name: 4}
    assert (status.outstanding, status.trouble) == (0, None)
    assert status.last_notified_at is not None
    failed = [line for line in logs if line["event"] == "sink not notified"]
    # A line for each kind of failure; further attempts of the kind are seen at level debug.
    assert [(line["attempt"], line["log_level"]) for line in failed] == [
        (1, "warning"),
        (2, "debug"),
        (3, "debug"),
        (4, "warning"),
    ]
    assert {line["kind"] for line in failed} == {"SinkError"}
    assert all(line["sink"] == sink.name and line["table"] == "public.t" for line in failed)
    assert [line["failed_attempts"] for line in logs if line["event"] == "sink notified"] == [4, 0]


def test_a_defect_in_one_sink_leaves_the_others(recorder: Recorder, clients: AwsClients) -> None:
    class Defect:
        name = "arn:defect"

        def send(self, notice: Notice) -> None:
            raise ZeroDivisionError(notice.table)

        def check(self) -> str:
            raise AssertionError

    well = queue(recorder.endpoint, "q", clients)
    archive = based(memory(1), sinks=["arn:defect", well.name])
    telling = Telling(archive, Defect(), well)
    with capture_logs() as logs, telling:
        wait_until(lambda: telling.counts.refused["arn:defect"] > 2, "it is tried again")
        wait_until(lambda: recorder.artifacts(well.name) == marks(archive), "the other hears all")
    assert any(isinstance(line.get("exc_info"), ZeroDivisionError) for line in logs)


def test_what_left_the_manifest_untold_is_counted_and_the_rest_is_told(
    recorder: Recorder, proxy: FaultProxy, clients: AwsClients
) -> None:
    down, well = queue(proxy.endpoint, "down", clients), queue(recorder.endpoint, "well", clients)
    archive = based(memory(2), sinks=[down.name, well.name], keep_epochs=1)
    telling = Telling(archive, down, well)
    with capture_logs() as logs, telling as notifier:
        assert notifier.settle(10)
        with proxy.away():
            for end in (20, 30, 40):
                diffed(archive, end - 10, end, ONE, ONE)
            notifier.wake()
            wait_until(lambda: notifier.statuses()[0].trouble, "it is away")
            wait_until(lambda: len(recorder.artifacts(well.name)) == 4, "the other isn't")
            # 10 to 30 leave; the diff to 40 becomes the new epoch's.
            archive.commit_base(base_of(archive, 30, ONE), continues=True)
            notifier.wake()
            wait_until(lambda: len(recorder.artifacts(well.name)) == 6, "all of the new epoch")
            assert [status.missed for status in notifier.statuses()] == [2, 0]
        wait_until(lambda: notifier.statuses()[0].outstanding == 0, "it is back")
    assert recorder.artifacts(down.name) == [(1, 10, "snapshot"), *marks(archive)]
    [warned] = [
        line for line in logs if line["event"].startswith("artifacts dropped from the manifest")
    ]
    assert (warned["sink"], warned["artifacts"], warned["epochs"]) == (down.name, 2, [1])
    assert "keep_epochs" in warned["advice"]


def test_an_answer_that_doesnt_come_shows(
    recorder: Recorder, proxy: FaultProxy, clients: AwsClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = queue(proxy.endpoint, "q", clients)
    proxy.add(Rule(delay(NEVER_S), times=None))
    with Telling(written(sink), sink) as notifier:
        wait_until(proxy.requests, "it hangs")
        assert notifier.statuses()[0].trouble is None, "it may come yet"
        monkeypatch.setattr(notifier_, "SLOW_S", 0.01)
        trouble = wait_until(lambda: notifier.statuses()[0].trouble, "it shows")
        assert trouble.problem.startswith(f"{sink.name}: no answer for ")
        assert not notifier.settle(0.0), "it isn't settled, all the same"


def test_stopping_waits_for_no_sink(
    recorder: Recorder, proxy: FaultProxy, clients: AwsClients
) -> None:
    sink = queue(proxy.endpoint, "q", clients)
    proxy.add(Rule(delay(NEVER_S)))
    archive = written(sink)
    telling = Telling(archive, sink, retry=Backoff(NEVER_S, NEVER_S))
    with telling as notifier:
        wait_until(proxy.requests, "it hangs")
        began = time.monotonic()
        assert not notifier.settle(0.05)
    assert time.monotonic() - began < NEVER_S / 10
    assert all(thread.daemon for thread in telling_threads(sink))


def test_stopping_ends_the_wait_before_the_next_attempt(
    proxy: FaultProxy, clients: AwsClients
) -> None:
    sink = queue(proxy.endpoint, "q", clients)
    proxy.add(Rule(answer(403, "AccessDenied"), times=None))
    archive = written(sink)
    with Telling(archive, sink, retry=Backoff(NEVER_S, NEVER_S)) as notifier:
        assert notifier.settle(10), "in trouble is settled"
    wait_until(lambda: not telling_threads(sink), "its thread ends")
    assert len(proxy.requests()) == 1


def telling_threads(sink: Sink) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith(f"to {sink.name}")]


def test_a_record_is_due_once_nothing_was_committed_for_a_while(
    recorder: Recorder, clients: AwsClients
) -> None:
    sink = queue(recorder.endpoint, "q", clients)
    archive = opened(memory(2), sinks=[sink.name])
    with Telling(archive, sink) as notifier:
        assert not notifier.recording_due(0.0), "nothing was told"
        rebased(archive, 10, ONE, continues=False)
        notifier.wake()
        assert notifier.settle(10)
        assert not notifier.recording_due(NEVER_S)
        assert notifier.recording_due(0.0)
        diffed(archive, 10, 20, ONE, TWO)
        assert not notifier.recording_due(0.0), "the commit has recorded it"
        notifier.wake()
        assert notifier.settle(10)
        assert notifier.recording_due(0.0)
        archive.record_notices()
        assert not notifier.recording_due(0.0)


@pytest.mark.thorough
def test_thousands_of_outstanding_notices_cost_no_memory(
    recorder: Recorder, proxy: FaultProxy, clients: AwsClients
) -> None:
    count = 1000
    [store], sink = memory(1), queue(proxy.endpoint, "q", clients)
    rebased(opened([store], sinks=[sink.name]), 10, ONE, continues=False)
    long = replace(store.manifest, artifacts=(store.manifest.artifacts[0], *diffs(count)))
    long = replace(long, head_position=long.artifacts[-1].to_position)
    store.store.objects[MANIFEST] = (long.to_bytes(), *store.store.objects[MANIFEST][1:])
    archive = opened([store], "w2", sinks=[sink.name])
    telling = Telling(archive, sink)
    proxy.add(Rule(answer(503, "ServiceUnavailable"), times=None))
    tracemalloc.start()
    with telling as notifier:
        wait_until(lambda: telling.counts.refused.total() > 10, "tried")
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            notifier.wake()
            assert [status.outstanding for status in notifier.statuses()] == [count + 1]
        wait_until(lambda: telling.counts.refused.total() > 50, "tried")
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        assert sum(isinstance(thing, Notice) for thing in gc.get_objects()) <= 1
        assert grown < 200 * count, "not even a list of what is outstanding"
        tracemalloc.stop()
        proxy.clear()
        wait_until(lambda: telling.counts.sent.total() > count / 10, "it is told")
    told = recorder.artifacts(sink.name)
    assert told == marks(archive)[: len(told)]


def diffs(count: int) -> list[Artifact]:
    """Entries such as a manifest has, without their objects."""
    return [
        Artifact(
            kind=ArtifactKind.DIFF,
            epoch=1,
            from_position=Position(10 + number),
            to_position=Position(11 + number),
            created_at=datetime(2026, 6, 3, tzinfo=UTC),
            formats={"jsonl": FormatEntry(f"mem://d{number}", 1, f"d{number}")},
            change_count=1,
            history=HISTORY,
            to_time=MORNING,
        )
        for number in range(count)
    ]
