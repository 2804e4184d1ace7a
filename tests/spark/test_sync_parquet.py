"""``sync_table`` to Parquet: level with the archive at each step, whole wherever it is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from laredo_archive import failpoint
from laredo_archive.codec import jsonl
from laredo_model.column import Column
from laredo_spark.sync import parquet
from laredo_spark.sync.directory import SyncDirectory
from laredo_spark.sync.errors import (
    OlderThanTarget,
    TargetBusy,
    TargetDiffers,
    TargetMissing,
    TargetRefused,
)
from laredo_spark.sync.plan import Merge, Rebuild, UpToDate
from tests.spark.parquet_copy import sync
from tests.support import drawn
from tests.support.archive.building import HISTORY, Builder, State
from tests.support.archive.many_rows import COUNT, many
from tests.support.spark_reading import manifest_of, names


def rows_of(target: Path) -> list[dict[str, Any]]:
    table = pq.read_table(SyncDirectory(target).shown().path)
    return sorted(table.to_pylist(), key=lambda line: str(line["id"]))


def expected(state: State) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in state.values()]
    as_text = [line | {"doc": _text(line["doc"])} for line in lines]
    return sorted(as_text, key=lambda line: str(line["id"]))


def _text(doc: Any) -> str | None:
    return None if doc is None else json.dumps(doc)


def files_of(target: Path) -> set[str]:
    return {path.name for path in SyncDirectory(target).shown().path.glob("*.parquet")}


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_BYTES", 256 << 10)
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 64 << 10)


@pytest.fixture
def archive(tmp_path: Path) -> Builder:
    builder = Builder(tmp_path / "archive").base(0x10, many())
    builder.write()
    return builder


def test_level_at_each_boundary(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    first = sync(archive.write(), target)
    assert isinstance(first.step, Rebuild) and first.files_written == len(files_of(target))
    assert rows_of(target) == expected(archive.states[-1])
    for position, changed in (
        (0x20, {7: "new", 8: None}),
        (0x30, {7: None, 9999: "only here", 4000: "é"}),
        (0x40, {9999: None}),
    ):
        archive.diff(position, many(changed))
        done = sync(archive.write(), target)
        assert isinstance(done.step, Merge) and done.state.position == position
        assert rows_of(target) == expected(archive.states[-1])
        assert isinstance(sync(archive.write(), target).step, UpToDate)


def test_several_diffs_at_once(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    archive.diff(0x20, many({1: "once", 2: None})).diff(0x30, many({1: "twice", 2: "back"}))
    archive.diff(0x40, many({1: "twice", 2: "back", 3: None}))
    assert isinstance(sync(archive.write(), target).step, Merge)
    assert rows_of(target) == expected(archive.states[-1])


def test_only_files_with_touched_keys_are_written(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    first = sync(archive.write(), target)
    assert len(first.state.files) > 5
    before = files_of(target)
    archive.diff(0x20, many({7: "new"}))
    done = sync(archive.write(), target)
    assert done.files_written == 1
    assert len(before - files_of(target)) == len(files_of(target) - before) == 1


def test_a_truncation_and_what_follows(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    archive.diff(0x20, many({3: "before it"}))
    archive.diff(0x30, names({1: "alone"}), truncate=True).diff(0x40, names({1: "a", 9: "b"}))
    done = sync(archive.write(), target)
    assert isinstance(done.step, Merge) and done.step.truncates
    assert rows_of(target) == expected(archive.states[-1])
    archive.diff(0x50, {}, truncate=True)
    sync(archive.write(), target)
    assert rows_of(target) == []
    archive.diff(0x60, names({2: "again"}))
    assert isinstance(sync(archive.write(), target).step, Merge)
    assert rows_of(target) == expected(archive.states[-1])


def test_a_new_epoch_that_continues(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    archive.diff(0x20, many({1: "a"})).base(0x20, many({1: "a"})).diff(0x30, many({1: "b"}))
    done = sync(archive.write(), target)
    assert isinstance(done.step, Merge) and (done.state.epoch, done.state.position) == (2, 0x30)
    assert rows_of(target) == expected(archive.states[-1])
    # Retention removes the epochs before; the target was level, and goes on without them.
    archive.base(0x30, many({1: "b"}))
    assert isinstance(sync(archive.write(), target).step, UpToDate)
    archive.artifacts = archive.artifacts[-1:]
    archive.diff(0x40, many({1: "c"}))
    assert isinstance(sync(archive.write(), target).step, Merge)
    assert rows_of(target) == expected(archive.states[-1])


@pytest.mark.parametrize("why", ["gap", "history", "retention", "options"])
def test_written_anew(tmp_path: Path, archive: Builder, why: str) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    if why == "history":
        archive.history = HISTORY.replace(":1:", ":2:")
    archive.base(0x10 if why == "history" else 0x30, many({1: "a"}), continues=why == "retention")
    if why == "retention":
        archive.base(0x40, many({1: "b"}))
        archive.artifacts = archive.artifacts[-1:]
    given: dict[str, Any] = {"special_values": "null"} if why == "options" else {}
    done = sync(archive.write(), target, **given)
    reasons = {
        "gap": "continue",
        "history": "new history",
        "retention": "no longer has",
        "options": "options",
    }
    assert isinstance(done.step, Rebuild) and reasons[why] in done.step.reason
    assert [line["name"] for line in rows_of(target) if line["id"] == 1] == [
        "b" if why == "retention" else "a"
    ]


def test_an_older_copy_is_refused(tmp_path: Path, archive: Builder) -> None:
    target, older = tmp_path / "target", Builder(tmp_path / "older").base(0x8, many())
    sync(archive.write(), target)
    with pytest.raises(OlderThanTarget, match=r"is at 0/10, and the archive .* ends at 0/8"):
        sync(older.write(), target)
    assert isinstance(sync(older.write(), target, rebuild=True).step, Rebuild)
    assert SyncDirectory(target).state() is not None


def test_what_isnt_a_target(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    with pytest.raises(TargetMissing, match="nothing was synced"):
        SyncDirectory(target).shown()
    target.mkdir()
    (target / "mine.csv").write_text("x")
    with pytest.raises(TargetRefused, match=r"something else in it \(mine.csv\)"):
        sync(archive.write(), target)
    with pytest.raises(TargetRefused, match="is a file"):
        sync(archive.write(), target / "mine.csv")
    with pytest.raises(TargetRefused, match=r"a path, or a file: URI\), or to a bucket"):
        sync(archive.write(), "hdfs://bucket/x")  # type: ignore[arg-type]
    assert (target / "mine.csv").read_text() == "x"


def test_of_another_table(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    manifest_of(archive.write(), lambda described: described.update(table="public.orders"))
    with pytest.raises(TargetRefused, match=r"holds public.users, .* is of public.orders"):
        sync(tmp_path / "archive" / "users", target)


def test_two_at_once(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    with SyncDirectory(target).locked(), pytest.raises(TargetBusy, match="another sync"):
        sync(archive.write(), target)
    sync(archive.write(), target)


@pytest.mark.parametrize("damage", ["removed", "cut off"])
def test_files_that_someone_changed_are_written_anew(
    tmp_path: Path, archive: Builder, damage: str
) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    file = next(SyncDirectory(target).shown().path.glob("*.parquet"))
    if damage == "removed":
        file.unlink()
    else:
        os.truncate(file, 100)
    done = sync(archive.write(), target)
    assert isinstance(done.step, Rebuild) and "aren't as they were" in done.step.reason
    assert rows_of(target) == expected(archive.states[-1])


def test_other_rows_than_the_manifest_says_are_not_shown(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    sync(archive.write(), target)
    archive.diff(0x20, many({1: None})).write()
    manifest_of(
        archive.directory / "users", lambda described: described["artifacts"][1].update(rows=COUNT)
    )
    with pytest.raises(TargetDiffers, match=rf"has {COUNT} rows .* written has {COUNT - 1}"):
        sync(archive.directory / "users", target)
    assert len(rows_of(target)) == COUNT


COMPOSITE = (
    Column("id", "int8", -1, False, 1, 2),
    Column("name", "text", -1, False, 2, 1),
    Column("at", "timestamptz", -1, False, 3, 3),
    Column("doc", "jsonb", -1, True, 4),
)


def _composite(rows: dict[tuple[int, str], str]) -> State:
    found = {}
    for (number, name), doc in rows.items():
        at = f"2024-02-29T10:00:{number % 60:02d}.5+00:00"
        text = json.dumps(name, ensure_ascii=False)
        key = f'[{text},{number},"{at}"]'
        found[key.encode()] = f'{{"id":{number},"name":{text},"at":"{at}","doc":{doc}}}'.encode()
    return dict(sorted(found.items()))


def test_keys_of_several_columns(tmp_path: Path) -> None:
    first = {(number, f'a"{number % 7}é'): '"x"' for number in range(2000)}
    second = {**first, (7, 'a"0é'): '"changed"', (2**60, ""): "1"}
    del second[8, 'a"1é']
    builder = Builder(tmp_path / "archive", columns=COMPOSITE, key_fields=("name", "id", "at"))
    archive = builder.base(0x10, _composite(first)).write()
    target = tmp_path / "target"
    sync(archive, target)
    assert isinstance(sync(builder.diff(0x20, _composite(second)).write(), target).step, Merge)
    found = {(line["id"], line["name"]): line["doc"] for line in rows_of(target)}
    assert found == second


KEYS = {
    "int8": ["-5", "7", str(2**62)],
    "bool": ["true", "false"],
    "text": ["", 'a"b\\c', "é\U0001f600\n", "42"],
    "uuid": ["6d0a5b3e-0000-4000-8000-000000000001", "6d0a5b3e-0000-4000-8000-000000000002"],
    "numeric": ["1.0", "1.00", "12345678901234567890123456789012345678901.5"],
    "date": ["2024-02-29", "1999-01-01"],
    "timestamptz": ["2024-02-29T10:00:00+00:00", "2024-02-29T10:00:00.000001+00:00"],
    "bytea": ["\\x", "\\x00ff"],
    "float8": ["1.5", "-0", "NaN"],
}


@pytest.mark.parametrize("type_name", list(KEYS))
def test_keys_of_each_type(tmp_path: Path, type_name: str) -> None:
    """Each key is changed, then deleted, beside others that stay."""

    def line(key: str, value: int) -> bytes:
        bare = type_name in ("int8", "bool", "float8") and key != "NaN"
        return f'{{"k":{key if bare else json.dumps(key)},"v":{value}}}'.encode()

    columns = (Column("k", type_name, -1, False, 1, 1), Column("v", "int4", -1, False, 2))
    builder = Builder(tmp_path / "archive", columns=columns, key_fields=("k",))
    target, position = tmp_path / "target", 0x20
    held = dict.fromkeys(KEYS[type_name], 0)

    def state() -> State:
        return dict(sorted((key.encode(), line(key, value)) for key, value in held.items()))

    sync(builder.base(0x10, state()).write(), target)
    for change in range(2):
        for key in KEYS[type_name]:
            held = {**held, key: 1} if change == 0 else {k: v for k, v in held.items() if k != key}
            done = sync(builder.diff(position, state()).write(), target)
            assert isinstance(done.step, Rebuild if type_name == "float8" else Merge)
            values = pq.read_table(SyncDirectory(target).shown().path).column("v").to_pylist()
            assert sorted(values) == sorted(held.values())
            position += 1


def test_versions_stay_as_long_as_said(tmp_path: Path, archive: Builder) -> None:
    target = tmp_path / "target"
    directory = SyncDirectory(target)
    sync(archive.write(), target)
    first = directory.shown().path
    before = rows_of(target)
    sync(archive.diff(0x20, many({1: "a"})).write(), target)
    directory.remove_old(3600)
    assert first != directory.shown().path
    assert sorted(pq.read_table(first).to_pylist(), key=lambda line: str(line["id"])) == before
    directory.remove_old(0)
    assert not first.exists() and rows_of(target) == expected(archive.states[-1])


PROGRAM = """
import sys
from pathlib import Path
from tests.spark.test_sync_parquet import sync
sync(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def killed_at(point: str, archive: Path, target: Path) -> int:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive), str(target)],
        env={**os.environ, failpoint.VARIABLE: point},
        check=False,
    ).returncode


@pytest.mark.parametrize(
    "point", drawn.first(1, ["linked", "committed", "planned", "staged", "written"])
)
def test_killed(tmp_path: Path, archive: Builder, point: str) -> None:
    """Also the first sync; what readers see is always one boundary, and nothing is left over."""
    target = tmp_path / "target"
    directory = SyncDirectory(target)
    for position, changed in ((0x10, {}), (0x20, {1: "a", 2: None}), (0x30, {1: "b"})):
        if position > 0x10:
            archive.diff(position, many(changed))
        before = directory.state()
        assert killed_at(f"sync.{point}", archive.write(), target) == -signal.SIGKILL
        seen = directory.state()
        if point == "committed":
            assert seen is not None and seen.position == position
        else:
            assert seen == before
        if before is not None:
            assert rows_of(target) == expected(archive.states[-1 if point == "committed" else -2])
        sync(archive.write(), target)
        assert rows_of(target) == expected(archive.states[-1])
        left = {path.name for path in target.iterdir()}
        assert left == {"current", "versions", ".lock"}
        assert files_of(target) == {file.name for file in directory.state().files}  # type: ignore[union-attr]
