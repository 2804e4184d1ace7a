"""Status of an archive in /status: present, readable, and joined to the journal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout import config
from laredo_fanout.app import archive_watch
from laredo_fanout.app.archive_watch import ArchiveWatch
from laredo_fanout.serving import archives
from laredo_fanout.store.writer import Store
from laredo_model import position
from tests.support.processes import PATIENCE_S
from tests.support.server.archived import Archived, local
from tests.support.server.serving_world import USERS, Wakeups, Writer

CONFIG = """
sources {{ pg {{ connection = "postgresql:///db" }} }}
tables = [ {{ table = users, targets = [ {{ archive {{ store_config {{ path = "{path}" }} }} }} ] }}
           {{ table = others }} ]
"""


@asynccontextmanager
async def watching(tmp_path: Path) -> AsyncIterator[tuple[ArchiveWatch, Archived]]:
    file = tmp_path / "fanout.conf"
    file.write_text(CONFIG.format(path=tmp_path / "archive"))
    with Store.open(tmp_path / "state", max_size=1 << 28) as store:
        writer = Writer(store, Wakeups())
        writer.begin()
        watch = ArchiveWatch(config.load(file), store)
        watch.start()
        try:
            yield watch, Archived(writer, local(tmp_path / "archive"))
        finally:
            await watch.stop()


async def seen(watch: ArchiveWatch, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first status that is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = watch.status(USERS)
            assert found is not None
            if wanted(found):
                return found
            await asyncio.sleep(0.01)  # poll


async def test_the_archive_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((archive_watch, "INTERVAL_S"), (archive_watch, "AGAIN_S")):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(archives, "UNAVAILABLE_S", 0.0)
    async with watching(tmp_path) as (watch, table):
        assert watch.status("public.others") is None
        missing = await seen(watch, lambda found: found["problem"])
        assert "no archive there" in missing["problem"]
        assert (missing["readable"], missing["covers_journal"]) == (False, False)
        table.copied(range(5))
        start = position.text(table.position)
        table.commit((1, "one"))
        table.cut()
        head = position.text(table.position)
        found = await seen(watch, lambda found: found.get("reaches_position") == head)
        assert (found["oldest_position"], found["covers_journal"]) == (start, True)
        assert found["problem"] is None and found["uri"].endswith("archive/users/manifest.json")
        for number in range(3):
            table.commit((number, "ahead"))
        table.prune()
        await seen(watch, lambda found: not found["covers_journal"])
        manifest = tmp_path / "archive" / "users" / "manifest.json"
        manifest.write_text("{")
        damaged = await seen(watch, lambda found: found["problem"])
        assert "manifest is damaged" in damaged["problem"] and not damaged["readable"]
