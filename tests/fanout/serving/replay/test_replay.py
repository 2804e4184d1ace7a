"""Clients behind the journal, caught up from an archive: mode, rows, positions and numbers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from laredo_fanout.serving.archives import ReplayArchive
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.serving.slices import DaemonThreads
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.position import Position
from tests.support.archive.inspection import destination_at
from tests.support.aws import AwsServer
from tests.support.golden.truth import ARCHIVES
from tests.support.server.replay_reader import (
    DELETE,
    DELTA,
    FULL,
    INSERT,
    REPLAY,
    UPDATE,
    Reader,
    archived,
    read,
)
from tests.support.server.serving_world import COLUMNS, line


async def test_a_client_at_a_boundary_is_caught_up_from_the_archive(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        first = table.position
        ends = []
        for number in range(4):
            table.commit((number, f"at {number}"), (10 + number, "new"))
            table.commit((number, f"then {number}"))
            table.cut()
            ends.append(table.position)
        table.prune()
        table.commit((2, "live"))
        found = await read(world, table, first)
        assert found.mode == REPLAY
        assert found.state == table.state
        assert found.positions == [*ends, table.position]
        assert found.since == dict(zip(ends, [first, *ends], strict=False))
        assert table.outcomes == [Outcome.COMPLETE]
        # Net changes: two keys a diff, numbered to just below the journal's oldest entry.
        oldest = found.handshake.journal_oldest_sequence
        assert found.sequences == [*range(oldest - 8, oldest), found.sequences[-1]]
        assert found.handshake.resume_from_sequence == oldest - 8
        assert found.sequences[-1] == found.handshake.server_current_sequence
        later = await read(world, table, ends[1])
        assert (later.mode, later.state) == (REPLAY, table.state)
        assert later.positions == [*ends[2:], table.position]


async def test_an_epoch_that_went_on_over_a_failover(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        table.commit((1, "one"))
        table.cut()
        inside = table.commit((2, "two"))
        table.fail_over()
        table.commit((3, "three"))
        table.cut()
        table.commit((4, "live"))
        table.prune()
        for before in (start, inside):
            found = await read(world, table, before)
            assert (found.mode, found.state) == (REPLAY, table.state)
        # What another server on the old timeline has shown after the switch.
        beyond = await read(world, table, table.position - 16)
        assert beyond.mode == FULL
        assert table.outcomes == [Outcome.COMPLETE, Outcome.COMPLETE]


async def test_an_archive_in_a_bucket(tmp_path: Path, s3_server: AwsServer) -> None:
    where = ArchiveOptions(
        "users/", ("protobuf",), bucket=s3_server.new_bucket(), prefix="archives",
        region="us-east-1", endpoint=s3_server.endpoint, addressing="path",
    )  # fmt: skip
    place = destination_at(f"s3://{where.bucket}/archives/?endpoint={where.endpoint}")
    formats = where.formats
    async with archived(tmp_path, where=where, destination=place, formats=formats, rows=5) as (
        world,
        table,
    ):
        start = table.position
        table.commit((1, "one"), (9, "new"))
        table.cut()
        table.commit((1, "journal"))
        table.prune()
        found = await read(world, table, start)
        assert (found.mode, found.state) == (REPLAY, table.state)
        assert table.outcomes == [Outcome.COMPLETE]


async def test_an_older_writer_s_window_is_not_entered(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        inside = table.commit((1, "one"))
        table.commit((1, "two"))
        table.cut()
        table.commit((1, "journal"))
        table.prune()
        manifest = tmp_path / "archive" / "users" / "manifest.json"
        text = manifest.read_text()
        assert '"cancelled":0' in text
        manifest.write_text(text.replace(',"cancelled":0', ""))
        assert (await read(world, table, inside)).mode == FULL
        assert (await read(world, table, start)).mode == REPLAY


RED = [wire.FieldPredicate(field="name", prefix="red")]


async def test_a_filter_at_a_boundary_and_inside_a_window(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.commit((1, "red"), (2, "red"))
        table.cut()
        inside = table.commit((3, "red"), (8, "red"), (2, "green"))
        table.commit((1, "blue"), (3, "blue"), (8, "blue"), (4, "red"), (2, "red again"))
        table.cut()
        table.commit((0, "journal"))
        table.prune()
        for position in (start, inside):
            held = {k: v for k, v in table.state_at(position).items() if b'"red' in v}
            found = Reader(world, held, position, filters=RED)
            assert await found.level() == REPLAY
            assert found.state == {b"2": line(2, "red again"), b"4": line(4, "red")}
            actions = {key: action for action, key, *_ in found.changes}
            if position == start:
                assert actions == {b"1": DELETE, b"2": UPDATE, b"4": INSERT}
            else:
                # 3 and 8 were green before the window, and red where the client stopped.
                assert actions == {
                    b"1": DELETE, b"3": DELETE, b"8": DELETE, b"2": UPDATE, b"4": UPDATE
                }  # fmt: skip


async def test_a_filter_shows_a_base_client_no_row_that_it_hides(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        inside = table.commit((3, "red"), (8, "red"))
        table.commit((3, "blue"), (8, "secret"), (1, "red"))
        table.cut()
        table.commit((0, "journal"))
        table.prune()
        stream = world.sync(last_known_source_position=position_.text(inside), filters=RED)
        assert (await stream.next("handshake")).mode == REPLAY
        entries = [await stream.next("journal_entry") for _ in range(5)]
        assert [entry.action for entry in entries] == ["UPDATE", *["UPDATE", "DELETE"] * 2]
        assert not entries[0].HasField("old_values")
        for again, entry, number in zip(entries[1::2], entries[2::2], (3, 8), strict=True):
            assert dict(entry.old_values) == {"id": number}
            # It may not have the row: it gets one to delete, which shows no more.
            assert again.new_values == again.old_values == entry.old_values
            assert again.sequence == entry.sequence - 1


async def test_sequences_of_what_was_replayed_are_not_the_journal_s(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        for number in range(6):
            table.commit((number, "changed"))
        table.cut()
        table.prune()
        table.commit((1, "live"))
        found = await read(world, table, start)
        assert found.mode == REPLAY
        oldest = found.handshake.journal_oldest_sequence
        assert found.sequences[:6] == list(range(oldest - 6, oldest))
        for sequence in found.sequences[:5]:
            stream = world.sync(last_known_sequence=sequence)
            assert (await stream.next("handshake")).mode == FULL
            stream.cancel()
        stream = world.sync(last_known_sequence=oldest - 1)
        greeting = await stream.next("handshake")
        assert (greeting.mode, greeting.resume_from_sequence) == (DELTA, oldest)


async def test_positions_that_the_archive_does_not_lead_from(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        table.commit((1, "one"))
        table.rebase(continues=False)
        table.commit((2, "two"))
        table.cut()
        table.commit((3, "three"))
        table.prune()
        assert (await read(world, table, start)).mode == FULL, "a gap between the epochs"
        other = await read(world, table, table.moments[1].position, history="9:1:1")
        assert other.mode == FULL
        assert table.outcomes == [Outcome.UNCOVERED], "another history isn't the archive's concern"
        table.commit((4, "four"))
        table.commit((5, "five"))
        table.prune()
        table.outcomes.clear()
        late = await read(world, table, table.moments[1].position)
        assert late.mode == FULL, "the archive ends before the journal begins"
        assert (table.outcomes, late.state) == ([Outcome.UNCOVERED], table.state)


async def test_an_archive_that_is_ahead_of_the_server(tmp_path: Path) -> None:
    """Its snapshotter follows another server: what is beyond this one isn't replayed."""
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        table.commit((1, "one"))
        table.cut()
        table.commit((2, "two"))
        table.prune()
        head = table.archive.head
        assert head is not None and head.rows is not None
        table.archive.commit_diff(
            [],
            from_position=head.position,
            to_position=Position(table.position + 0x1000),
            to_time=None,
            rows=99,
            checksum="0" * 32,
            formats=["jsonl"],
            cancelled=0,
        )
        found = await read(world, table, start)
        assert (found.mode, found.state) == (REPLAY, table.state)


async def test_other_columns_are_not_replayed(tmp_path: Path) -> None:
    async with archived(tmp_path) as (world, table):
        table.columns = (*COLUMNS[:1], replace(COLUMNS[1], nullable=False), *COLUMNS[2:])
        table.copied(range(5))
        start = table.position
        table.commit((1, "one"))
        table.cut()
        table.commit((2, "two"))
        table.prune()
        assert (await read(world, table, start)).mode == FULL
        assert table.outcomes == [Outcome.COLUMNS]


async def test_the_journal_is_pinned_where_it_takes_over(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        start = table.position
        table.commit((1, "one"))
        table.cut()
        sequence = table.writer.store.tables[1].sequence
        table.commit((2, "two"))
        table.prune()
        table.commit((3, "three"))
        await read(world, table, start)
        assert world.registry.pins == [("test", sequence), ("test", None)]


async def test_the_objects_of_the_original_are_below_the_prefix(tmp_path: Path) -> None:
    shutil.copytree(ARCHIVES / "original", tmp_path / "users")
    threads = DaemonThreads(1, "test")
    archive = ReplayArchive(
        "public.users",
        ArchiveOptions("users/", path=tmp_path),
        replays=threads,
        manifests=threads,
        directory=None,
        on_outcome=lambda *_: None,
    )
    found, _ = await archive.found(newest=True)
    keys = [entry.key for entry in found.manifest.named()]
    assert keys and all(found.destination.head(key) for key in keys)
