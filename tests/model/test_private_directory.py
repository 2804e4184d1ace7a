"""Directories with rows are private, whatever the umask or an older version left open."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_fanout.app.processes.control_wire import WakeUps
from laredo_fanout.snapshots import Retention, take
from laredo_fanout.store.writer import Store
from laredo_service import files
from tests.support.server.local_snapshot import SNAPSHOT, at
from tests.support.server.serving_world import USERS, Writer, rows


@pytest.fixture(autouse=True)
def wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_store_and_its_snapshots_are_their_owner_s(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Store.open(state, max_size=1 << 28) as store:
        writer = Writer(store, WakeUps())  # type: ignore[arg-type]
        writer.begin()
        writer.publish(rows(0, 3))
        take(store.reader(), USERS, state / "snapshots", Retention(1, 1e9))
    made = [state, *state.rglob("*")]
    assert {path.name for path in made} >= {"data.mdb", "server.lock", ".lock"}
    assert {path: oct(mode(path)) for path in made} == {
        path: oct(0o700 if path.is_dir() else 0o600) for path in made
    }


def test_an_older_version_s_store_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    Store.open(state, max_size=1 << 28).close()
    for path in (state, *state.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    Store.open(state, max_size=1 << 28).close()
    assert mode(state) == 0o700
    assert {mode(path) for path in state.iterdir()} == {0o600}
    assert "directory closed to others" in capsys.readouterr().out


def test_a_directory_that_is_not_ours_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    (shared / "somebody's").touch(0o666)
    files.make_private(shared, ("data.mdb",))
    assert (mode(shared), mode(shared / "somebody's")) == (0o777, 0o666)
    assert "directory left open to others: not ours" in capsys.readouterr().out


def test_a_mark_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(0o644)
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    (state / "data.mdb").symlink_to(elsewhere)
    files.make_private(state, ("data.mdb",))
    assert (mode(state), mode(elsewhere)) == (0o700, 0o644)


def test_an_empty_directory_of_ours_is_closed(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(mode=0o755)
    files.make_private(tmp_path / "spool")
    assert mode(tmp_path / "spool") == 0o700


def test_a_client_s_local_snapshot_is_its_owner_s(tmp_path: Path) -> None:
    at(tmp_path / "cache").save(SNAPSHOT)
    assert mode(tmp_path / "cache") == 0o700
    assert mode(tmp_path / "cache" / "cache") == 0o600
