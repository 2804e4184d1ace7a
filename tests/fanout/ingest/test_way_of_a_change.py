"""The way of one UPDATE through the ingest is the one that docs/architecture.md draws."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import laredo_fanout
from laredo_fanout.ingest.loop import IngestLoop
from laredo_fanout.ingest.session_tables import SessionTables
from laredo_fanout.postgres.replication_stream import ReplicationStream
from tests.support.ingest import Start
from tests.support.postgres import Database
from tests.support.repository import DOCS

_ROOT = Path(laredo_fanout.__file__).parent.parent
_SCAN = re.compile(r"decode/(_?row_|plain_)")
"""Files of which the installation decides if they are C or Python."""


def _drawn() -> list[str]:
    page = (DOCS / "architecture.md").read_text()
    section = page.partition("### One UPDATE, file by file")[2].partition("\n## ")[0]
    found = re.findall(r"^\|[^|]*\| `(laredo_fanout/[\w/.]+)` \|", section, re.M)
    return [each for each in found if not _SCAN.search(each)]


def test_an_update_passes_the_files_that_are_drawn(
    database: Database, ingesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a'), (2, 'a')"
    )
    ingest = ingesting("public.t", heartbeat_interval=60.0)
    ingest.wait_live()
    database.run("UPDATE t SET a = 'b' WHERE id = 1")
    ingest.assert_equal()
    passed: list[list[str]] = []
    confirmed: list[list[str]] = []
    take_reports, confirm = SessionTables.take_reports, ReplicationStream.confirm

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(_ROOT / "laredo_fanout"):
            passed[-1].append(str(file.relative_to(_ROOT)))

    def beginning(tables: SessionTables) -> None:
        take_reports(tables)
        passed.append([])
        sys.setprofile(profile)

    def confirming(stream: ReplicationStream, position: int, *, reply: bool = False) -> None:
        sys.setprofile(None)
        confirm(stream, position, reply=reply)
        confirmed.append(passed[-1])

    monkeypatch.setattr(SessionTables, "take_reports", beginning)
    monkeypatch.setattr(ReplicationStream, "confirm", confirming)
    # A turn that waits already isn't followed.
    ingest.wait_until(lambda: passed, "a turn that is followed")
    database.run("UPDATE t SET a = 'c' WHERE id = 2")
    journal = "laredo_fanout/store/format.py"
    ingest.wait_until(lambda: any(journal in each for each in confirmed), "it is confirmed")
    files = next(each for each in confirmed if journal in each)
    way = [each for each in dict.fromkeys(files) if not _SCAN.search(each)]
    assert way == _drawn()
    assert IngestLoop.__module__.replace(".", "/") + ".py" == way[0]
