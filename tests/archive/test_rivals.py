"""Several writer processes on one archive: the newest wins, and nothing is lost or overwritten."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from laredo_archive import chain, codec, manifest_parser
from laredo_archive.local import LocalDestination
from laredo_archive.manifest import Manifest
from tests.archive.archiving import MANIFEST
from tests.archive.rival_writer import FENCED, truth
from tests.archive.simulation.truth import COLUMNS

ENDLESS = 10**9


def start(directory: Path, last: int) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.archive.rival_writer", str(directory), str(last)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def manifest_of(place: LocalDestination) -> Manifest | None:
    found = place.get(MANIFEST)
    return manifest_parser.parse(found.data, place.uri) if found else None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_each_newer_writer_takes_over(tmp_path: Path) -> None:
    places = [LocalDestination(tmp_path / name) for name in ("one", "other")]

    def head() -> int:
        manifest = manifest_of(places[1])
        return (manifest.head_position or 0) if manifest else 0

    losers: list[subprocess.Popen[str]] = []
    for _ in range(3):
        before = head()
        newest = start(tmp_path, ENDLESS)
        if losers:
            told, _ = losers[-1].communicate(timeout=60)
            assert losers[-1].returncode == FENCED
            assert "has taken over from this one" in told
            manifest = manifest_of(places[0])
            assert manifest is not None
            assert f"writer {manifest.writer_id} " in told, "it says who"
        losers.append(newest)
        wait_until(lambda before=before: head() > before + 50)  # type: ignore[misc]
    end = head() + 200
    last = start(tmp_path, end)
    last.communicate(timeout=60)
    assert last.returncode == 0
    losers[-1].communicate(timeout=60)
    assert [loser.returncode for loser in losers] == [FENCED] * 3
    for place in places:
        manifest = manifest_of(place)
        assert manifest is not None
        assert list(chain.check(manifest)) == []
        assert manifest.writer_term == 4
        assert manifest.epoch == 1, "a handover needs no new epoch"
        assert manifest.head_position is not None
        assert manifest.head_position >= end
        for artifact in manifest.artifacts[1:]:
            with closing(place.open(artifact.formats["jsonl"].key)) as file:
                [change] = codec.read_diff("jsonl", COLUMNS, file)
            assert change.new == truth(artifact.to_position)[b"1"]


def test_of_writers_that_start_together_one_writes(tmp_path: Path) -> None:
    writers = [start(tmp_path, 300) for _ in range(4)]
    told = [writer.communicate(timeout=60)[0] for writer in writers]
    codes = [writer.returncode for writer in writers]
    assert set(codes) <= {0, FENCED}
    assert codes.count(0) >= 1, told
    manifests = [manifest_of(LocalDestination(tmp_path / name)) for name in ("one", "other")]
    for manifest in manifests:
        assert manifest is not None
        assert list(chain.check(manifest)) == []
        assert manifest.head_position == 300
        assert len(manifest.artifacts) == 30
