"""Sessions that negotiated batches."""

from pathlib import Path

from laredo_model.checksum import StateChecksum
from laredo_model.line import Action
from laredo_model.position import text
from tests.support.server.serving_world import HISTORY, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action


async def test_fresh_client_gets_a_snapshot_and_then_changes(tmp_path: Path) -> None:
    async with running(tmp_path, users=5000) as world:
        at = world.writer.position
        stream = world.sync(batch=True)

        handshake = await stream.next("handshake")
        assert handshake.mode == 1
        assert handshake.history == str(HISTORY)
        assert handshake.source_position == text(at)
        assert list(handshake.capabilities) == ["batch/json.v1"]
        assert [c.column_name for c in handshake.columns] == ["id", "name", "price", "tags"]
        assert handshake.columns[0].is_primary_key and handshake.columns[0].not_null
        assert handshake.columns[2].type_modifier == 655366

        begin, lines, end = await stream.snapshot()
        assert begin.snapshot_id == handshake.snapshot_id
        assert begin.row_count == end.rows_sent == end.rows == 5000
        assert sorted(lines) == sorted(rows(0, 5000))
        checksum = StateChecksum()
        checksum.add(lines)
        assert end.state_checksum == checksum.hex()
        assert end.source_position == text(at)
        assert handshake.resume_from_sequence == end.sequence + 1

        position = world.writer.commit(
            (UPDATE, line(3, "new")), (INSERT, line(9000)), (DELETE, b"4")
        )
        batch = await stream.next("change_batch")
        assert batch.first_sequence == end.sequence + 1
        assert list(batch.actions) == [UPDATE, INSERT, DELETE]
        assert list(batch.keys) == [b"3", b"9000", b"4"]
        assert list(batch.lines) == [line(3, "new"), line(9000), b""]
        assert list(batch.counts) == [3] and list(batch.positions) == [position]
        assert not batch.open and not batch.old_lines


async def test_a_client_that_still_asks_for_changes_out_of_order_has_them_in_order(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, users=5) as world:
        stream = world.sync(capabilities=["batch/json.v1", "out-of-order.v1"])
        handshake = await stream.next("handshake")
        assert list(handshake.capabilities) == ["batch/json.v1"]
        await stream.snapshot()
        positions = [world.writer.commit((UPDATE, line(1, name))) for name in ("first", "last")]
        found: list[int] = []
        while len(found) < 2:
            found += (await stream.next("change_batch")).positions
        assert found == positions
