"""Pruning between two commits, and entries that a client's pin keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_fanout.app import ingest_thread
from laredo_fanout.app.ingest_thread import JournalPruning
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import WakeUps
from laredo_fanout.config import JournalConfig
from laredo_fanout.serving.ports import ClientInfo
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.server.serving_world import USERS, Writer, line

BOUNDS = {USERS: JournalConfig.model_validate({"max_entries": 3, "max_age": "100000d"})}


def test_a_pin_keeps_what_comes_after_it_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_thread, "_PRUNE_EVERY_S", 0.0)
    clients = Clients(10)
    with Store.open(tmp_path, max_size=1 << 28) as store:
        writer = Writer(store, WakeUps())  # type: ignore[arg-type]
        writer.begin()
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


def test_a_table_without_bounds_here_is_left_alone(tmp_path: Path) -> None:
    """It may have been taken out of the configuration, and come back."""
    with Store.open(tmp_path, max_size=1 << 28) as store:
        writer = Writer(store, WakeUps())  # type: ignore[arg-type]
        writer.begin()
        table_id = writer.publish()
        pruning = JournalPruning(store, Clients(1), {})
        _committing(writer, pruning)(5)
        assert store.tables[table_id].entries == 5
