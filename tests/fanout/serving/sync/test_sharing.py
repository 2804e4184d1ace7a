"""Work that sessions share, which keeps many of them cheap."""

import asyncio
from pathlib import Path

import pytest

from laredo_fanout.serving.filters import RowFilter
from laredo_fanout.serving.forms import BaseForm, BatchForm, Form
from laredo_fanout.serving.journal import RecentRecords
from laredo_fanout.serving.session.client_stream import WakeUp
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.errors import JournalPruned
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S
from tests.support.server.filters import conditions, equals
from tests.support.server.serving_world import COLUMNS, Wakeups, Writer, line

INSERT, UPDATE, DELETE, TRUNCATE = Action


@pytest.fixture
async def writer(tmp_path: Path):
    with Store.open(tmp_path, max_size=1 << 30) as store:
        made = Writer(store, Wakeups())
        made.begin()
        made.publish([line(1)])
        yield made


@pytest.fixture
def recent(writer: Writer) -> RecentRecords:
    return RecentRecords(writer.store.reader())


def named(name: str) -> RowFilter:
    return RowFilter(conditions([equals("name", name)]), COLUMNS)


def forms() -> list[Form]:
    return [
        BatchForm(want_old=False, row_filter=None),
        BatchForm(want_old=True, row_filter=None),
        BatchForm(want_old=False, row_filter=named("a")),
        BatchForm(want_old=False, row_filter=named("b")),
        BaseForm(None, StructRows()),
        BaseForm(named("a"), StructRows()),
    ]


async def test_a_record_is_encoded_once_per_form(writer: Writer, recent: RecentRecords) -> None:
    start = writer.sequence
    for number in range(5):
        writer.commit((UPDATE, line(1, str(number))))
    end = writer.sequence
    for _ in range(10):
        for form in forms():
            cursor = start
            while records := await recent.after(1, cursor, form):
                for record in records:
                    assert record.first_sequence == cursor + 1
                    cursor = record.last_sequence
            assert cursor == end
    assert recent.encoded_total == 5 * len(forms())


async def test_sessions_that_meet_at_a_large_record_have_it_encoded_once(
    writer: Writer, recent: RecentRecords
) -> None:
    after = writer.sequence
    writer.commit(*[(UPDATE, line(1, str(number))) for number in range(1400)])
    found = [recent.after(1, after, forms()[4]) for _ in range(3)]
    leaves, *others = map(asyncio.ensure_future, found)
    await asyncio.sleep(0)
    leaves.cancel()
    first, second = [(await other)[0].messages for other in others]
    assert first is second and len(first) == 1400
    assert recent.encoded_total == 1


async def test_the_cache_is_bounded(writer: Writer) -> None:
    recent = RecentRecords(writer.store.reader(), capacity=50_000)
    cursor = writer.sequence
    for number in range(20):
        writer.commit((UPDATE, line(1, str(number) * 10_000)))
    while records := await recent.after(1, cursor, forms()[0]):
        cursor = records[-1].last_sequence
        assert recent.size <= 50_000
    assert cursor == writer.sequence


async def test_a_cursor_in_the_middle_of_a_record(writer: Writer, recent: RecentRecords) -> None:
    start = writer.sequence
    writer.commit(*[(UPDATE, line(1, str(number))) for number in range(10)])
    for skipped in range(10):
        # A filtered client that may know the transaction's beginning learns that it ended.
        ended = int(skipped > 0)
        for form, count in zip(forms(), (1, 1, ended, ended, 10 - skipped, 0), strict=True):
            (record,) = await recent.after(1, start + skipped, form)
            assert (record.first_sequence, record.last_sequence) == (
                start + skipped + 1,
                start + 10,
            )
            assert len(record.messages) == count


async def test_below_the_journal(writer: Writer, recent: RecentRecords) -> None:
    start = writer.sequence
    for number in range(5):
        writer.commit((UPDATE, line(1, str(number))))
    writer.prune(keep=1)
    with pytest.raises(JournalPruned):
        await recent.after(1, start, forms()[0])


async def test_a_ring_while_looking_is_not_lost() -> None:
    wake_up = WakeUp()
    wake_up.clear()
    wake_up.notify()
    await asyncio.wait_for(wake_up.wait(), PATIENCE_S)
    wake_up.clear()
    waiting = asyncio.create_task(wake_up.wait())
    await asyncio.sleep(0)
    wake_up.notify()
    wake_up.notify()
    await asyncio.wait_for(waiting, PATIENCE_S)
    wake_up.clear()
    waiting = asyncio.create_task(wake_up.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
