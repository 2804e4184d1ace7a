"""A client behind the journal is caught up from a compressed archive too."""

from __future__ import annotations

from pathlib import Path

import pytest

from laredo_fanout.serving.replay import Outcome
from tests.support.server.replay_reader import REPLAY, archived, read


@pytest.mark.parametrize("format_id", ["jsonl.zst", "protobuf.zst"])
async def test_a_client_is_caught_up_from_compressed_diffs(tmp_path: Path, format_id: str) -> None:
    outcomes: list[Outcome] = []
    async with archived(tmp_path, outcomes=outcomes, formats=(format_id,)) as (world, table):
        table.copied(range(5))
        first = table.position
        for number in range(4):
            table.commit((number, f"at {number}"), (10 + number, "new"))
            table.cut()
        table.prune()
        found = await read(world, table, first)
        assert (found.mode, found.state) == (REPLAY, table.state)
        assert outcomes == [Outcome.COMPLETE]
