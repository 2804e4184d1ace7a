"""A snapshot appears once a catalog check has verified its position."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from laredo_fanout.snapshots import (
    Retention,
    SnapshotDirectory,
    SnapshotUnverified,
    TakenSnapshot,
    take,
)
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.position import History
from tests.support.processes import wait_until
from tests.support.server.store_sample import commit, insert, live_table, open_store

POSITION = 0x19F000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        with opened.transaction() as transaction:
            transaction.set_source(SourceIdentity(History(7300, 1, 16384), "laredo", "laredo"))
        yield opened


@pytest.fixture
def table(store: Store) -> int:
    table = live_table(store)
    commit(store, table, (POSITION, [insert("a", 1)]))
    return table


@pytest.fixture
def shelf(tmp_path: Path) -> SnapshotDirectory:
    return SnapshotDirectory(tmp_path / "snapshots")


def verify(store: Store, table: int, position: int) -> None:
    with store.transaction() as transaction:
        transaction.set_verified(table, position)


def take_within(store: Store, shelf: SnapshotDirectory, seconds: float) -> TakenSnapshot:
    keep = Retention(keep_count=3, max_age_s=3600)
    return take(store.reader(), "public.users", shelf.path, keep, verified_within_s=seconds)


def test_it_waits_until_its_position_is_verified(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    verify(store, table, POSITION - 1)
    taken: list[TakenSnapshot] = []
    taking = threading.Thread(target=lambda: taken.append(take_within(store, shelf, 30)))
    taking.start()
    wait_until(lambda: list(shelf.path.glob("[!.]*")), "the rows are written")
    assert shelf.newest() is None
    verify(store, table, POSITION)
    taking.join()
    assert taken[0].written
    assert shelf.newest() == taken[0].snapshot


def test_it_is_given_up_without_a_catalog_check(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    with pytest.raises(SnapshotUnverified, match="no catalog check has verified that position"):
        take_within(store, shelf, 0.1)
    assert shelf.newest() is None


def test_it_is_given_up_when_the_table_is_closed(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    with store.transaction() as transaction:
        closed = replace(store.tables[table], status=Status.CLOSED, closed_at=POSITION)
        transaction.put_table(closed)
    with pytest.raises(SnapshotUnverified, match="it is closed"):
        take_within(store, shelf, 30)
    assert shelf.newest() is None
