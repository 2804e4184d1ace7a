"""The local snapshot: what was saved comes back, anything else is refused."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_fanout.client import LocalSnapshotUnusable, equals, is_in
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import ReplicaPosition
from tests.support.drawn import examples
from tests.support.server.local_snapshot import COLUMNS, PLACE, SNAPSHOT, at


@settings(max_examples=examples(30))
@given(rows=st.dictionaries(st.binary(), st.binary(), max_size=50))
def test_rows_come_back(tmp_path: Path, rows: dict[bytes, bytes]) -> None:
    saved = LocalSnapshot(PLACE, COLUMNS, list(rows), list(rows.values()))
    at(tmp_path).save(saved)
    assert at(tmp_path).load() == saved


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    keys = [b"%d" % number for number in range(12_001)]
    saved = LocalSnapshot(ReplicaPosition(), (), keys, keys)
    at(tmp_path).save(saved)
    assert at(tmp_path).load() == saved


def test_no_file_is_no_snapshot(tmp_path: Path) -> None:
    assert at(tmp_path).load() is None


def test_a_directory_gets_a_file_named_after_the_table(tmp_path: Path) -> None:
    SnapshotFile(tmp_path, "public.users", ()).save(SNAPSHOT)
    assert [path.name for path in tmp_path.iterdir()] == ["public.users.snapshot"]


def test_the_directories_above_are_made(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "a" / "b" / "cache", "public.users", ())
    file.save(SNAPSHOT)
    assert file.load() == SNAPSHOT


def _damaged(whole: bytes) -> Iterator[bytes]:
    """With a changed byte, with one more, and cut short anywhere."""
    for where in (0, 20, -40, -1):
        changed = bytearray(whole)
        changed[where] ^= 1
        yield bytes(changed)
    yield whole + b"x"
    yield from (whole[:size] for size in range(len(whole)))


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.save(SNAPSHOT)
    for damaged in _damaged(file.path.read_bytes()):
        file.path.write_bytes(damaged)
        with pytest.raises(LocalSnapshotUnusable, match="cache"):
            file.load()


def test_another_table_s_file_is_refused(tmp_path: Path) -> None:
    at(tmp_path).save(SNAPSHOT)
    with pytest.raises(LocalSnapshotUnusable, match=r"public\.orders"):
        at(tmp_path, "public.orders").load()


def test_other_filters_are_refused(tmp_path: Path) -> None:
    at(tmp_path, filters=(equals("tenant", "acme"),)).save(SNAPSHOT)
    assert at(tmp_path, filters=(equals("tenant", "acme"),)).load() == SNAPSHOT
    for other in [(), (equals("tenant", "zeta"),), (is_in("tenant", ["acme"]),)]:
        with pytest.raises(LocalSnapshotUnusable, match="other filters"):
            at(tmp_path, filters=other).load()


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("laredo_fanout.client.table.local_snapshot.VERSION", 2)
        at(tmp_path).save(SNAPSHOT)
    with pytest.raises(LocalSnapshotUnusable, match="has version 2; this library reads 1"):
        at(tmp_path).load()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.save(SNAPSHOT)
    with pytest.raises(TypeError):
        file.save(LocalSnapshot(PLACE, COLUMNS, [b"1"], ["not bytes"]))  # type: ignore[list-item]
    assert file.load() == SNAPSHOT
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_file_that_another_client_never_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "laredo_fanout.client.table.local_snapshot._LOCK_WAIT_S", 0.1, raising=False
    )
    file = at(tmp_path)
    file.save(SNAPSHOT)
    new = tmp_path / ".cache.new"
    with new.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"\.cache\.new open for 0\.1 s; give every client"):
            file.save(SNAPSHOT)
    assert file.load() == SNAPSHOT
    file.save(SNAPSHOT)
    assert not new.exists()
