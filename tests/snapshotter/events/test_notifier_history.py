"""Random lives of an archive and its sinks: whatever fails, each sink hears all, in order."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive.aws.clients import AwsClients
from laredo_archive.write.table_archive import TableArchive
from tests.snapshotter.events.recording import Recorder
from tests.snapshotter.events.telling import Telling, marks, queue
from tests.support.archive.archiving import (
    ONE,
    ScriptedDestination,
    base_of,
    diffed,
    memory,
    opened,
    rebased,
)
from tests.support.drawn import examples
from tests.support.faults.fault import Fault, Rule, answer, drop, reset, truncate_answer
from tests.support.faults.proxy import FaultProxy

SINKS = 2
_names = count()

FAULTS: list[Fault] = [
    answer(403, "RequestThrottled"),
    answer(403, "AccessDenied"),
    answer(400, "QueueDoesNotExist"),
    answer(500, "InternalFailure"),
    answer(500, "InternalFailure", after=True),
    drop(),
    drop(after=True),
    reset(),
    reset(after=True),
    truncate_answer(),
]
TAKES_EFFECT = {str(fault) for fault in FAULTS if "after" in str(fault)} | {str(FAULTS[-1])}

STEPS = st.one_of(
    st.tuples(st.just("diff")),
    st.tuples(st.just("diff")),
    st.tuples(st.just("base"), st.integers(0, 2)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("record")),
    st.tuples(st.just("restart")),
    st.tuples(
        st.just("fault"),
        st.integers(0, SINKS - 1),
        st.integers(0, len(FAULTS) - 1),
        st.integers(1, 4),
    ),
)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        yield server


@pytest.fixture(scope="module")
def clients() -> Iterator[AwsClients]:
    made = AwsClients()
    yield made
    made.close()


class WriterSession:
    """The archive from process start to process start, and what came of it."""

    def __init__(self, recorder: Recorder, proxy: FaultProxy, clients: AwsClients) -> None:
        self._stores: list[ScriptedDestination] = memory(2)
        self._proxy = proxy
        names = [f"q{next(_names)}" for _ in range(SINKS)]
        self.sinks = [queue(proxy.endpoint, name, clients) for name in names]
        self._threads = {f"public.t to {sink.name}" for sink in self.sinks}
        self.restarts = -1
        self.restart()
        rebased(self.archive, 10, ONE, continues=False)
        self.telling.notifier.wake()

    def restart(self) -> None:
        """As after a kill: nothing is written down.

        A killed process sends nothing later: its threads have ended before the next one sends.
        """
        sending = [each for each in threading.enumerate() if each.name in self._threads]
        if self.restarts >= 0:
            self.telling.notifier.stop()
        self.restarts += 1
        names = [sink.name for sink in self.sinks]
        self.archive: TableArchive = opened(self._stores, f"w{self.restarts}", sinks=names)
        self.telling = Telling(self.archive, *self.sinks)
        for thread in sending:
            thread.join()
        self.telling.notifier.start()

    def step(self, what: str, *more: int) -> None:
        head = self.archive.head
        assert head is not None
        if what == "diff":
            diffed(self.archive, head.position, head.position + 10, ONE, ONE)
        elif what == "base":
            position = max(head.position - 10 * more[0], head.snapshot_position)
            self.archive.commit_base(base_of(self.archive, position, ONE), continues=True)
        elif what == "settle":
            self.telling.notifier.settle(10)
        elif what == "record":
            self.archive.record_notices()
        elif what == "restart":
            self.restart()
        else:
            sink, fault, times = more
            key = self.sinks[sink].name
            self._proxy.add(Rule(FAULTS[fault], key=f"*{key.rpartition('/')[2]}", times=times))
        self.telling.notifier.wake()

    def end(self) -> None:
        """Everything goes well again."""
        self._proxy.clear()
        while not all(status.outstanding == 0 for status in self.telling.notifier.statuses()):
            assert self.telling.notifier.settle(10)
        self.archive.record_notices()
        self.telling.notifier.stop()

    @property
    def notified(self) -> list[dict[str, object]]:
        return [dict(store.manifest.notified) for store in self._stores]


@settings(max_examples=examples(60))
@given(steps=st.lists(STEPS, max_size=25))
def test_each_sink_hears_all_in_order(
    steps: list[tuple[str, ...]], recorder: Recorder, clients: AwsClients
) -> None:
    with FaultProxy(recorder.endpoint) as proxy:
        life = WriterSession(recorder, proxy, clients)
        for what, *more in steps:
            life.step(what, *(int(number) for number in more))
        life.end()
        unclear = sum(times for fault, times in proxy.faults().items() if fault in TAKES_EFFECT)
    wanted = marks(life.archive)
    for sink in life.sinks:
        heard = recorder.artifacts(sink.name)
        assert set(wanted) <= set(heard), "at least once"
        firsts = list(dict.fromkeys((epoch, position) for epoch, position, _ in heard))
        assert all(one < next_ for one, next_ in pairwise(firsts)), "in order"
        for _, times in Counter(heard).items():
            assert times <= 1 + life.restarts + unclear, "again only for a reason"
    head = life.archive.manifest.head if life.archive.manifest else None
    assert life.notified == [{sink.name: head for sink in life.sinks}] * 2
