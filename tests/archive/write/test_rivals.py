"""Several writer processes on one archive: the newest wins, and nothing is lost or overwritten."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from laredo_archive.manifest.model import Manifest
from tests.archive.write.rival_writer import FENCED, truth
from tests.support import drawn
from tests.support.archive.inspection import assert_true, destination_at, manifest_of, unfinished
from tests.support.aws import AwsServer
from tests.support.faults.proxy import FaultProxy
from tests.support.faults.witness import StoreWitness
from tests.support.processes import PATIENCE_S, wait_until

ENDLESS = 10**9


class Rivals:
    """The places that they write to, and who saw what came there."""

    def __init__(self, places: list[str], witnesses: list[StoreWitness]) -> None:
        self.places = places
        self._witnesses = witnesses

    def start(self, last: int) -> "subprocess.Popen[str]":
        program = [
            sys.executable,
            "-m",
            "tests.archive.write.rival_writer",
            str(last),
            *self.places,
        ]
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def manifests(self) -> list[Manifest]:
        found = [manifest_of(destination_at(place)) for place in self.places]
        return [manifest for manifest in found if manifest is not None]

    def head(self) -> int:
        manifests = self.manifests()
        return min(manifest.head_position or 0 for manifest in manifests) if manifests else 0

    def check(self) -> None:
        for place in self.places:
            destination = destination_at(place)
            manifest = manifest_of(destination)
            assert manifest is not None
            assert_true(destination, manifest, truth)
            assert unfinished(place) == []
        for witness in self._witnesses:
            witness.check(truth)
            assert len(witness.manifests) == 1


@pytest.fixture(params=drawn.first(1, ["s3 and a directory", "directories", "s3"]))
def rivals(
    request: pytest.FixtureRequest, tmp_path: Path, s3_server: AwsServer
) -> Iterator[Rivals]:
    directories = [str(tmp_path / name) for name in ("one", "other")]
    with ExitStack() as stack:
        places, witnesses = [], []
        for _ in range({"directories": 0, "s3": 2, "s3 and a directory": 1}[request.param]):
            proxy = stack.enter_context(FaultProxy(s3_server.endpoint))
            witnesses.append(StoreWitness())
            proxy.witnesses.append(witnesses[-1])
            places.append(f"s3://{s3_server.new_bucket()}/?endpoint={proxy.endpoint}")
        yield Rivals([*places, *directories[len(places) :]], witnesses)


def test_each_newer_writer_takes_over(rivals: Rivals) -> None:
    losers: list[subprocess.Popen[str]] = []
    for _ in range(2):
        before = rivals.head()
        newest = rivals.start(ENDLESS)
        if losers:
            told, _ = losers[-1].communicate(timeout=PATIENCE_S)
            assert losers[-1].returncode == FENCED
            assert "has taken over from this one" in told
            writer = rivals.manifests()[0].writer_id
            assert f"writer {writer} " in told, "it says who"
        losers.append(newest)
        wait_until(lambda before=before: rivals.head() > before + 20, "it writes")  # type: ignore[misc]
    end = rivals.head() + 50
    last = rivals.start(end)
    last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0
    losers[-1].communicate(timeout=PATIENCE_S)
    assert [loser.returncode for loser in losers] == [FENCED] * 2
    rivals.check()
    for manifest in rivals.manifests():
        assert manifest.writer_term == 3
        assert manifest.epoch == 1, "a handover needs no new epoch"
        assert manifest.head_position is not None
        assert manifest.head_position >= end


@pytest.mark.parametrize("count", drawn.first(1, [3, 2, 4]))
def test_of_writers_that_start_together_one_writes(rivals: Rivals, count: int) -> None:
    writers = [rivals.start(150) for _ in range(count)]
    told = [writer.communicate(timeout=PATIENCE_S)[0] for writer in writers]
    codes = [writer.returncode for writer in writers]
    assert set(codes) <= {0, FENCED}
    assert codes.count(0) >= 1, told
    rivals.check()
    for manifest in rivals.manifests():
        assert manifest.head_position == 150
        assert len(manifest.artifacts) == 15
