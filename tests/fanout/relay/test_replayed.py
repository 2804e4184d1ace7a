"""A relay behind its upstream's journal, caught up from the table's archive."""

from __future__ import annotations

from pathlib import Path

from laredo_fanout.client.events import Changes, Handshake, Mode
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_fanout.serving.replay import Outcome
from laredo_model.position import Position
from tests.support.processes import until
from tests.support.server.relayed import relaying
from tests.support.server.replay_reader import archived
from tests.support.server.serving_world import HISTORY, USERS


async def test_an_archive_s_diffs_are_one_transaction_each_there_too(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=5) as (world, table):
        world.writer.verify()
        async with relaying(tmp_path / "relay", world.port) as relay:
            first = (await relay.until(table.position)).position
            await until(lambda: relay.record().verified == first)
            copied = relay.ingest.status().tables[USERS].copied_rows
        ends, inside = [], []
        for number in range(4):
            inside.append(table.commit((number, f"at {number}"), (10 + number, "new")))
            table.commit((number, f"then {number}"))
            table.cut()
            ends.append(table.position)
        table.prune()
        last = table.commit((2, "live"))
        world.writer.verify(last)
        async with relaying(tmp_path / "relay", world.port) as relay:
            await relay.until(last)
            assert table.outcomes == [Outcome.COMPLETE]
            assert relay.ingest.status().tables[USERS].copied_rows == 0 < copied
            with relay.store.reader().snapshot(relay.record().id) as snapshot:
                held = {
                    key: line
                    for keys, lines in snapshot.batches()
                    for key, line in zip(keys, lines, strict=True)
                }
            assert held == table.state

            async def offered(position: int, *, boundaries: bool = True) -> list[object]:
                options = SyncOptions(
                    USERS, "c", Position(position), HISTORY, boundaries=boundaries
                )
                endpoint = Endpoint(f"127.0.0.1:{relay.port}")
                found: list[object] = []
                async with open_stream(endpoint, options) as events:
                    async for event in events:
                        if isinstance(event, Handshake):
                            found.append(event.mode)
                            if event.mode is not Mode.DELTA:
                                return found
                        if isinstance(event, Changes):
                            found += zip(
                                event.positions, [event.since] * len(event.counts), strict=True
                            )
                            if event.positions[-1] == last:
                                return found
                return found

            between = list(zip(ends, [first, *ends], strict=False))
            assert await offered(first) == [Mode.DELTA, *between, (last, None)]
            assert await offered(ends[1]) == [Mode.DELTA, *between[2:], (last, None)]
            # A diff's net changes don't lead on from what this relay never had.
            for position in inside:
                assert await offered(position, boundaries=False) == [Mode.FULL_SNAPSHOT]
