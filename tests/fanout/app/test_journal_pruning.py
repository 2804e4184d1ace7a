"""Pruning between two commits, and entries that a client's pin keeps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laredo_fanout.app import ingest_thread
from laredo_fanout.app.ingest_thread import JournalPruning
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import WakeUps
from laredo_fanout.config import JournalConfig
from laredo_fanout.serving.ports import ClientInfo
from laredo_fanout.store.journal import record_key
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.server.serving_world import USERS, Writer, line

BOUNDS = {USERS: JournalConfig.model_validate({"max_entries": 3, "max_age": "100000d"})}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with Store.open(tmp_path, max_size=1 << 28) as store:
        writer = Writer(store, WakeUps())  # type: ignore[arg-type]
        writer.begin()
        yield writer


def test_a_pin_keeps_what_comes_after_it_until_it_is_gone(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_thread, "_PRUNE_EVERY_S", 0.0)
    clients = Clients(10)
    store = writer.store
    table_id = writer.publish()
    pruning = JournalPruning(store, clients, BOUNDS)
    commit_and_prune = _committing(writer, pruning)
    commit_and_prune(2)
    assert store.tables[table_id].entries == 2
    pinned = store.tables[table_id].sequence
    clients.register((1, 1), ClientInfo("a", USERS, "peer", True, False, 0))
    clients.pin((1, 1), table_id, pinned)
    commit_and_prune(10)
    assert store.tables[table_id].oldest_sequence == pinned + 1
    clients.leave_all(1)
    commit_and_prune(1)
    assert store.tables[table_id].entries == 3
    assert pruning.pruned == 10


def _committing(writer: Writer, pruning: JournalPruning) -> Callable[[int], None]:
    numbers = iter(range(1000))

    def commit(times: int) -> None:
        for _ in range(times):
            writer.commit((Action.INSERT, line(next(numbers))))
            pruning.prune()

    return commit


def test_a_table_without_bounds_here_is_left_alone(writer: Writer) -> None:
    """It may have been taken out of the configuration, and come back."""
    table_id = writer.publish()
    _committing(writer, JournalPruning(writer.store, Clients(1), {}))(5)
    assert writer.store.tables[table_id].entries == 5


def test_a_pass_prunes_all_tables_that_are_due_in_one_transaction(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"public.t{number}" for number in range(50)]
    bounds = {each: JournalConfig.model_validate({"max_age": "1s"}) for each in names}
    store = writer.store
    for each in names:
        writer.publish(table=each)
        writer.commit((Action.INSERT, line(1)), table=each)
        writer.commit((Action.INSERT, line(2)), table=each)
    commits = _counted(store, monkeypatch)
    JournalPruning(store, Clients(1), bounds).prune()
    assert {store.tables[table_id].entries for table_id in writer.ids.values()} == {1}
    assert len(commits) == 1


def test_a_pass_is_bounded_and_later_ones_go_on(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PRUNE_PASS_S", "_PRUNE_AGAIN_S", "_PRUNE_EVERY_S"):
        monkeypatch.setattr(ingest_thread, name, 0.0, raising=False)
    monkeypatch.setattr(ingest_thread, "_PRUNE_RECORDS", 70, raising=False)
    bounds = {USERS: JournalConfig.model_validate({"max_entries": 1, "max_age": "100000d"})}
    store = writer.store
    table_id = writer.publish()
    for number in range(200):
        writer.commit((Action.INSERT, line(number)))
    commits = _counted(store, monkeypatch)
    pruning = JournalPruning(store, Clients(1), bounds)
    for entries in (130, 60, 1):
        pruning.prune()
        assert store.tables[table_id].entries == entries
    assert len(commits) == 3


def test_a_damaged_journal_does_not_keep_other_tables_from_being_pruned(writer: Writer) -> None:
    bounds = dict.fromkeys(("public.a", "public.b"), BOUNDS[USERS])
    store = writer.store
    for each in bounds:
        writer.publish(table=each)
        for number in range(20):
            writer.commit((Action.INSERT, line(number)), table=each)
    whole, damaged = (writer.ids[each] for each in bounds)
    oldest = store.tables[damaged].oldest_sequence
    with store.transaction() as transaction:
        context = transaction._context
        key = record_key(damaged, oldest + 9)
        context.transaction.put(key, b"cut", db=context.databases.journal)
    JournalPruning(store, Clients(1), bounds).prune()
    assert store.tables[whole].entries == 3
    # The repair drops the oldest record; the next passes reach the damaged one.
    assert oldest < store.tables[damaged].oldest_sequence < oldest + 9


def _counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each transaction from now on."""
    begun, begin = list[None](), store.transaction
    monkeypatch.setattr(store, "transaction", lambda: begun.append(None) or begin())  # type: ignore[func-returns-value]
    return begun
